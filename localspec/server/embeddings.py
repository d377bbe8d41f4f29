"""Texts as vectors, and documents by how well they fit, in OpenAI's and Ollama's protocols."""

from __future__ import annotations

import abc
import base64
import time
from collections.abc import Mapping, Sequence
from typing import Any

from localspec.server.answering import Service
from localspec.server.fields import Fields

_MOST_INPUTS = 2048  # as at OpenAI


class _EmbeddingAside(abc.ABC):
    """A request for vectors or scores. A subclass reads it, and writes the response.

    _call: a method of `Embedder` with its arguments but the texts; without any texts the model
    is only loaded.
    """

    _call: tuple[str, ...] = ("embed",)
    _texts: Sequence[Any]
    _keywords: Mapping[str, Any] = {}

    def __init__(self, fields: Fields) -> None:
        self._model_name = fields.text("model")

    async def __call__(self, service: Service) -> Any:
        started_s = time.monotonic()
        embedder = service.models.embedder_named(self._model_name)
        was_loaded, num_texts = embedder.isolated is not None, len(self._texts)
        found = await embedder.call(*self._call, self._texts or ["a"], **self._keywords)
        num_tokens = found.num_tokens if num_texts else 0
        service.counters.add_embedded(embedder.name, num_texts, num_tokens)
        self._load_s = 0.0 if was_loaded else embedder.load_s
        self._total_s = time.monotonic() - started_s
        return self._written(embedder.name, found.values[:num_texts], num_tokens)

    @abc.abstractmethod
    def _written(self, name: str, values: Any, num_tokens: int) -> dict[str, Any]:
        """The response. values: (inputs, dimensions) or (inputs,) float32."""


class Embeddings(_EmbeddingAside):
    """A request to /v1/embeddings."""

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        self._texts = fields.prompts("input", _MOST_INPUTS)
        self._keywords = {"dimensions": fields.whole("dimensions")}
        self._format = fields.text("encoding_format") or "float"
        if self._format not in ("float", "base64"):
            fields.refuse("encoding_format", "Choose float or base64.")

    def _written(self, name: str, values: Any, num_tokens: int) -> dict[str, Any]:
        data = []
        for index, each in enumerate(values):
            vector = each.tolist()
            if self._format == "base64":  # of little-endian float32
                vector = base64.b64encode(each.astype("<f4").tobytes()).decode()
            data.append({"object": "embedding", "index": index, "embedding": vector})
        return {"object": "list", "data": data, "model": name, "usage": _usage(num_tokens)}


class OllamaEmbed(_EmbeddingAside):
    """A request to /api/embed."""

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        self._texts = fields.prompts("input", _MOST_INPUTS) if fields.any("input") else []
        truncates = fields.flag("truncate") is not False
        self._keywords = {"dimensions": fields.whole("dimensions"), "truncate": truncates}

    def _written(self, name: str, values: Any, num_tokens: int) -> dict[str, Any]:
        return {
            "model": name,
            "embeddings": values.tolist(),
            "total_duration": round(1e9 * self._total_s),
            "load_duration": round(1e9 * self._load_s),
            "prompt_eval_count": num_tokens,
        }


class OllamaEmbeddings(_EmbeddingAside):
    """A request to /api/embeddings, which is older."""

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        self._texts = list(filter(None, [fields.text("prompt")]))
        self._keywords = {"truncate": True}

    def _written(self, name: str, values: Any, num_tokens: int) -> dict[str, Any]:
        return {"embedding": values[0].tolist() if len(values) else []}


class Rerank(_EmbeddingAside):
    """A request to /v1/rerank: which documents fit a query."""

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        query, given = fields.text("query"), fields.any("documents")
        if not query:
            fields.refuse("query", "Give a text.")
        documents = given if isinstance(given, list) else []
        texts = [each.get("text") if isinstance(each, dict) else each for each in documents]
        if not 0 < len(texts) <= _MOST_INPUTS or not all(isinstance(x, str) for x in texts):
            fields.refuse("documents", f"Give a list of 1 to {_MOST_INPUTS} texts.")
        self._call, self._texts = ("rank", query), texts
        self._top = fields.whole("top_n")
        if self._top is not None and self._top < 1:
            fields.refuse("top_n", "Give 1 or more.")
        self._returns_documents = bool(fields.flag("return_documents"))

    def _written(self, name: str, values: Any, num_tokens: int) -> dict[str, Any]:
        scores = values.tolist()
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: self._top]
        results: list[dict[str, Any]] = []
        for index in order:
            results.append({"index": index, "relevance_score": scores[index]})
            if self._returns_documents:
                results[-1]["document"] = {"text": self._texts[index]}
        usage = _usage(num_tokens)
        return {"object": "list", "model": name, "results": results, "usage": usage}


def _usage(num_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
