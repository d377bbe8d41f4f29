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
    """Have the embedder of that name read texts; without texts it is only loaded.

    Between batches it reads for other requests. A disconnect cancels the batches to come.

    Args:
        service: the server's.
        name: the name of the embedder, as the client gave it.
        texts: what it reads.
        ask: makes the question to it about some of the texts.

    Returns:
        The model's name, its vectors or scores of the texts, and the nanoseconds that this
        took, in Ollama's fields.
    """
    started_s = time.monotonic()
    models = service.models
    embedder = service.models.embedder_named(name)
    given = texts or ["a"]
    batches = []
    for first in range(0, len(given), _MOST_TEXTS):
        part = given[first : first + _MOST_TEXTS]
        async with embedder.turn, models.opened(embedder) as engine:
            if service.is_stopping:
                raise stopping()
            try:
                batches.append(await in_thread(partial(engine.call, ask(part))))
            except CrashedError as error:
                await models.close_one(embedder)
                if service.is_stopping:
                    raise stopping() from error
                raise
    num_tokens = 0
    if texts:
        num_tokens = sum(batch.num_tokens for batch in batches)
    counters = service.counters
    counters.add("localspec_embedded_texts_total", len(texts), model=embedder.name)
    counters.add("localspec_embedded_tokens_total", num_tokens, model=embedder.name)
    values = np.concatenate([batch.values for batch in batches])
    load_s = embedder.loading_s(started_s)
    total_s = time.monotonic() - started_s
    took = {"total_duration": round(1e9 * total_s), "load_duration": round(1e9 * load_s)}
    return embedder.name, Embedded(values[: len(texts)], num_tokens), took


def embeddings(fields: Fields) -> Handler:
    """Answer a request to /v1/embeddings."""
    texts = fields.prompts("input", _MOST_INPUTS)
    form = fields.text("encoding_format")
    name = fields.text("model")
    dimensions = fields.integer("dimensions")
    if form not in (None, "float", "base64"):
        fields.refuse("encoding_format", "Choose float or base64.")

    async def result(service: Service) -> dict[str, Any]:
        model, read, _ = await _ask_embedder(
            service,
            name,
            texts,
            partial(Embed, dimensions=dimensions),
        )
        vectors: list[Any] = read.values.tolist()
        if form == "base64":  # of little-endian float32
            rows = read.values.astype("<f4")
            vectors = [base64.b64encode(row.tobytes()).decode() for row in rows]
        data = []
        for index, vector in enumerate(vectors):
            data.append(
                {
                    "object": "embedding",
                    "index": index,
                    "embedding": vector,
                }
            )
        usage = _usage(read.num_tokens)
        return {
            "object": "list",
            "data": data,
            "model": model,
            "usage": usage,
        }

    return result


def ollama_embed(fields: Fields) -> Handler:
    """Answer a request to /api/embed."""
    texts: Sequence[Any] = []
    if fields.value("input"):
        texts = fields.prompts("input", _MOST_INPUTS)
    truncates = fields.flag("truncate") is not False
    name = fields.text("model")
    dimensions = fields.integer("dimensions")

    async def result(service: Service) -> dict[str, Any]:
        ask = partial(Embed, dimensions=dimensions, truncate=truncates)
        model, read, took = await _ask_embedder(service, name, texts, ask)
        return {
            "model": model,
            "embeddings": read.values.tolist(),
            "prompt_eval_count": read.num_tokens,
            **took,
        }

    return result


def ollama_embeddings(fields: Fields) -> Handler:
    """Answer a request to /api/embeddings, which is older."""
    name = fields.text("model")
    prompt = fields.text("prompt")
    texts = []
    if prompt:
        texts.append(prompt)

    async def result(service: Service) -> dict[str, Any]:
        _, read, _ = await _ask_embedder(service, name, texts, partial(Embed, truncate=True))
        vectors = read.values.tolist()
        return {"embedding": vectors[0] if vectors else []}

    return result


def rerank(fields: Fields) -> Handler:
    """Answer a request to /v1/rerank: which documents fit a query."""
    name = fields.text("model")
    query = fields.text("query")
    given = fields.value("documents")
    if not query:
        fields.refuse("query", "Give a text.")
    texts: list[Any] = []
    if isinstance(given, list):
        texts = [_text_of(document) for document in given]
    are_texts = all(isinstance(text, str) for text in texts)
    if not 0 < len(texts) <= _MOST_INPUTS or not are_texts:
        fields.refuse("documents", f"Give a list of 1 to {_MOST_INPUTS} texts.")
    top = fields.integer_between("top_n", 1, 2**31) or len(texts)
    returns_documents = fields.flag("return_documents")

    async def result(service: Service) -> dict[str, Any]:
        model, read, _ = await _ask_embedder(service, name, texts, partial(Rank, query))
        scores = read.values.tolist()
        best_first = sorted(range(len(scores)), key=lambda index: -scores[index])
        results = []
        for index in best_first[:top]:
            ranked = {"index": index, "relevance_score": scores[index]}
            if returns_documents:
                ranked["document"] = {"text": texts[index]}
            results.append(ranked)
        usage = _usage(read.num_tokens)
        return {
            "object": "list",
            "model": model,
            "results": results,
            "usage": usage,
        }

    return result


def _text_of(document: object) -> object:
    """The text of a document, which clients send alone or in an object."""
    if isinstance(document, dict):
        return document.get("text")
    return document
