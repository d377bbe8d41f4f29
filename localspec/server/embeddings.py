"""Embeddings of texts, and documents ranked by a query, in OpenAI's and Ollama's protocols."""

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

_MOST_INPUTS = 2048  # texts in a request, as at OpenAI
# Texts that the model reads before it reads for another request; they fit into one decode.
_TEXTS_PER_CALL = 16
_ANY_TEXT = "a"  # read in place of no texts: it gives an array of the right shape


def _usage(num_tokens: int) -> dict[str, int]:
    """The field "usage" of a response to a request whose texts have that many tokens."""
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


async def _ask_embedder(
    service: Service,
    name: str | None,
    texts: Sequence[Any],
    make_question: Callable[[Sequence[Any]], EmbedderQuestion],
) -> tuple[str, Embedded, dict[str, int]]:
    """Have the embedder read texts, in batches. Without texts it is only loaded.

    Between two batches it may read for other requests. If the client disconnects, the batches
    that are left are not read.

    Args:
        service: the server's.
        name: the embedder's name in the request, if it has one.
        texts: the texts, or the token ids of texts.
        make_question: makes the message to the embedder for some of the texts.

    Returns:
        The embedder's name, a vector or a score for each text, and the nanoseconds that this
        took, in Ollama's fields.

    Raises:
        RequestError: there is no embedder of that name, or the server is stopping.
        LocalspecError: the embedder cannot be loaded, or cannot read the texts.
    """
    started_s = time.monotonic()
    models = service.models
    embedder = models.embedder_named(name)
    texts_to_read = texts or [_ANY_TEXT]
    results = []
    for start in range(0, len(texts_to_read), _TEXTS_PER_CALL):
        question = make_question(texts_to_read[start : start + _TEXTS_PER_CALL])
        async with embedder.turn:
            if service.is_stopping:  # before a load, which the stop would have to wait for
                raise stopping()
            async with models.opened(embedder) as engine:
                if service.is_stopping:
                    raise stopping()
                try:
                    result = await in_thread(partial(engine.call, question))
                except CrashedError as error:
                    await models.close_one(embedder)
                    if service.is_stopping:
                        raise stopping() from error
                    raise
        results.append(result)
    num_tokens = 0
    if texts:
        num_tokens = sum(result.num_tokens for result in results)
    counters = service.counters
    counters.add("localspec_embedded_texts_total", len(texts), model=embedder.name)
    counters.add("localspec_embedded_tokens_total", num_tokens, model=embedder.name)
    values = np.concatenate([result.values for result in results])
    values = values[: len(texts)]  # without the vector of `_ANY_TEXT`
    load_s = embedder.loading_s(started_s)
    total_s = time.monotonic() - started_s
    durations = {"total_duration": round(1e9 * total_s), "load_duration": round(1e9 * load_s)}
    return embedder.name, Embedded(values, num_tokens), durations


def embeddings(fields: Fields) -> Handler:
    """The handler of a request to /v1/embeddings."""
    texts = fields.prompts("input", _MOST_INPUTS)
    encoding = fields.text("encoding_format")
    name = fields.text("model")
    dimensions = fields.integer("dimensions")
    if encoding not in (None, "float", "base64"):
        fields.refuse("encoding_format", "Choose float or base64.")

    async def respond(service: Service) -> dict[str, Any]:
        make_question = partial(Embed, dimensions=dimensions)
        model_name, embedded, _ = await _ask_embedder(service, name, texts, make_question)
        vectors: list[Any] = embedded.values.tolist()
        if encoding == "base64":  # of little-endian float32
            rows = embedded.values.astype("<f4")
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
        return {
            "object": "list",
            "data": data,
            "model": model_name,
            "usage": _usage(embedded.num_tokens),
        }

    return respond


def ollama_embed(fields: Fields) -> Handler:
    """The handler of a request to /api/embed. Without an input it only loads the model."""
    texts: Sequence[Any] = []
    if fields.value("input"):
        texts = fields.prompts("input", _MOST_INPUTS)
    truncates = fields.flag("truncate") is not False
    name = fields.text("model")
    dimensions = fields.integer("dimensions")

    async def respond(service: Service) -> dict[str, Any]:
        make_question = partial(Embed, dimensions=dimensions, truncate=truncates)
        answer = await _ask_embedder(service, name, texts, make_question)
        model_name, embedded, durations = answer
        return {
            "model": model_name,
            "embeddings": embedded.values.tolist(),
            "prompt_eval_count": embedded.num_tokens,
            **durations,
        }

    return respond


def ollama_embeddings(fields: Fields) -> Handler:
    """The handler of a request to /api/embeddings, which older clients of Ollama use.

    Without a prompt it only loads the model, and the embedding is [].
    """
    name = fields.text("model")
    prompt = fields.text("prompt")
    texts = []
    if prompt:
        texts.append(prompt)

    async def respond(service: Service) -> dict[str, Any]:
        make_question = partial(Embed, truncate=True)
        _, embedded, _ = await _ask_embedder(service, name, texts, make_question)
        vector: list[float] = []
        if texts:
            vector = embedded.values[0].tolist()
        return {"embedding": vector}

    return respond


def rerank(fields: Fields) -> Handler:
    """The handler of a request to /v1/rerank. Its response ranks documents by a query."""
    name = fields.text("model")
    query = fields.text("query")
    documents = fields.value("documents")
    if not query:
        fields.refuse("query", "Give a text.")
    texts: list[Any] = []
    if isinstance(documents, list):
        texts = [_document_text(document) for document in documents]
    has_right_length = 0 < len(texts) <= _MOST_INPUTS
    if not has_right_length or not all(isinstance(text, str) for text in texts):
        fields.refuse("documents", f"Give a list of 1 to {_MOST_INPUTS} texts.")
    num_results = fields.integer_between("top_n", 1, 2**31) or len(texts)
    returns_documents = fields.flag("return_documents")

    async def respond(service: Service) -> dict[str, Any]:
        make_question = partial(Rank, query)
        model_name, ranked, _ = await _ask_embedder(service, name, texts, make_question)
        scores = ranked.values.tolist()
        best_first = sorted(range(len(scores)), key=lambda index: -scores[index])
        results = []
        for index in best_first[:num_results]:
            result = {"index": index, "relevance_score": scores[index]}
            if returns_documents:
                result["document"] = {"text": texts[index]}
            results.append(result)
        return {
            "object": "list",
            "model": model_name,
            "results": results,
            "usage": _usage(ranked.num_tokens),
        }

    return respond


def _document_text(document: object) -> object:
    """The text of a document, which a client sends as it is or in an object.

    The result is no string if the request is wrong.
    """
    if isinstance(document, dict):
        return document.get("text")
    return document
