"""Texts as vectors, and documents by how well they fit, in OpenAI's and Ollama's protocols."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from localspec.engine.embedder import Embedded
from localspec.errors import CrashedError
from localspec.isolated.process_messages import Embed, EmbedderQuestion, Rank
from localspec.server.answering import Service
from localspec.server.fields import Fields
from localspec.server.form import Handler, in_thread
from localspec.server.refusal import stopping

_MOST_INPUTS = 2048  # as at OpenAI
_MOST_TEXTS = 16  # in one call, for which other requests wait; as many as in one decode


def _usage(num_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


async def _ask_embedder(
    service: Service,
    name: str | None,
    texts: Sequence[Any],
    ask: Callable[[Sequence[Any]], EmbedderQuestion],
) -> tuple[str, Embedded, dict[str, int]]:
    """Have the embedder of that name read texts; without any it is only loaded.

    Other requests are read for between batches; a disconnect cancels the rest.

    Args:
        service: of the server.
        name: of the embedder, as the client gave it.
        texts: for it.
        ask: the question to it about some of the texts.

    Returns:
        The model's name, what it made of the texts, and the nanoseconds that this took, in
        Ollama's fields.
    """
    started_s = time.monotonic()
    models = service.models
    embedder = service.models.embedder_named(name)
    given = texts or ["a"]
    found = []
    for first in range(0, len(given), _MOST_TEXTS):
        part = given[first : first + _MOST_TEXTS]
        async with embedder.turn, models.opened(embedder) as engine:
            if service.is_stopping:
                raise stopping()
            try:
                found.append(await in_thread(partial(engine.call, ask(part))))
            except CrashedError as error:
                await models.close_one(embedder)
                if service.is_stopping:
                    raise stopping() from error
                raise
    num_tokens = sum(each.num_tokens for each in found) if texts else 0
    for what, number in (("texts", len(texts)), ("tokens", num_tokens)):
        service.counters.add(f"localspec_embedded_{what}_total", number, model=embedder.name)
    values = np.concatenate([each.values for each in found])[: len(texts)]
    load_s = embedder.loading_s(started_s)
    total_s = time.monotonic() - started_s
    took = {"total_duration": round(1e9 * total_s), "load_duration": round(1e9 * load_s)}
    return embedder.name, Embedded(values, num_tokens), took


def embeddings(fields: Fields) -> Handler:
    """Answer a request to /v1/embeddings."""
    texts = fields.prompts("input", _MOST_INPUTS)
    form = fields.text("encoding_format")
    name = fields.text("model")
    dimensions = fields.whole("dimensions")
    if form not in (None, "float", "base64"):
        fields.refuse("encoding_format", "Choose float or base64.")

    async def result(service: Service) -> dict[str, Any]:
        model, read, _ = await _ask_embedder(
            service, name, texts, partial(Embed, dimensions=dimensions)
        )
        vectors: list[Any] = read.values.tolist()
        if form == "base64":  # of little-endian float32
            rows = read.values.astype("<f4")
            vectors = [base64.b64encode(row.tobytes()).decode() for row in rows]
        data = [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(vectors)
        ]
        usage = _usage(read.num_tokens)
        return {"object": "list", "data": data, "model": model, "usage": usage}

    return result


def ollama_embed(fields: Fields) -> Handler:
    """Answer a request to /api/embed."""
    texts = fields.prompts("input", _MOST_INPUTS) if fields.any("input") else []
    truncates = fields.flag("truncate") is not False
    name = fields.text("model")
    dimensions = fields.whole("dimensions")

    async def result(service: Service) -> dict[str, Any]:
        ask = partial(Embed, dimensions=dimensions, truncate=truncates)
        model, read, took = await _ask_embedder(service, name, texts, ask)
        told = {"embeddings": read.values.tolist(), "prompt_eval_count": read.num_tokens}
        return {"model": model, **told, **took}

    return result


def ollama_embeddings(fields: Fields) -> Handler:
    """Answer a request to /api/embeddings, which is older."""
    name = fields.text("model")
    texts = list(filter(None, [fields.text("prompt")]))

    async def result(service: Service) -> dict[str, Any]:
        _, read, _ = await _ask_embedder(service, name, texts, partial(Embed, truncate=True))
        return {"embedding": read.values[0].tolist() if texts else []}

    return result


def rerank(fields: Fields) -> Handler:
    """Answer a request to /v1/rerank: which documents fit a query."""
    name = fields.text("model")
    query = fields.text("query")
    given = fields.any("documents")
    if not query:
        fields.refuse("query", "Give a text.")
    documents = given if isinstance(given, list) else []
    texts = [each.get("text") if isinstance(each, dict) else each for each in documents]
    if not 0 < len(texts) <= _MOST_INPUTS or not all(isinstance(x, str) for x in texts):
        fields.refuse("documents", f"Give a list of 1 to {_MOST_INPUTS} texts.")
    top = fields.whole_from("top_n", 1, 2**31) or len(texts)
    returns_documents = fields.flag("return_documents")

    async def result(service: Service) -> dict[str, Any]:
        model, read, _ = await _ask_embedder(service, name, texts, partial(Rank, query))
        scores = read.values.tolist()
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[:top]
        results: list[dict[str, Any]] = [
            {"index": index, "relevance_score": scores[index]} for index in order
        ]
        if returns_documents:
            for each in results:
                each["document"] = {"text": texts[each["index"]]}
        usage = _usage(read.num_tokens)
        return {"object": "list", "model": model, "results": results, "usage": usage}

    return result
