"""Texts as vectors, and documents by how well they fit, in OpenAI's and Ollama's protocols."""

from __future__ import annotations

import abc
import base64
import time
from collections.abc import Mapping, Sequence
from typing import Any

from localspec.server.answering import Service
from localspec.server.fields import Fields
from localspec.server.form import Aside

_MOST_INPUTS = 2048  # as at OpenAI

Vectors = Sequence[Sequence[float]]


class _EmbeddingAside(Aside):
    """A request for the vectors of texts. A subclass reads it, and writes the response."""

    _inputs: Sequence[str | Sequence[int]]
    _keywords: Mapping[str, Any]

    async def result(self, service: Service) -> Any:
        started_s = time.monotonic()
        embedder = service.models.embedder_named(self.model_name)
        was_loaded = embedder.isolated is not None
        if not self._inputs:  # the model is to be loaded
            values, num_tokens = (await embedder.call("embed", ["a"])).values[:0], 0
        else:
            values, num_tokens = await embedder.call("embed", self._inputs, **self._keywords)
            service.counters.add_embedded(embedder.name, len(self._inputs), num_tokens)
        self._name = embedder.name
        self._load_s = 0.0 if was_loaded else embedder.load_s
        self._total_s = time.monotonic() - started_s
        return self._written(values, num_tokens)

    @abc.abstractmethod
    def _written(self, vectors: Any, num_tokens: int) -> Any:
        """The response. vectors: (inputs, dimensions) float32."""


class Embeddings(_EmbeddingAside):
    """A request to /v1/embeddings."""

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        self._inputs = _inputs(fields, "input")
        self._keywords = {"dimensions": _dimensions(fields)}
        self._format = fields.text("encoding_format") or "float"
        if self._format not in ("float", "base64"):
            fields.refuse("encoding_format", "Choose float or base64.")

    def _written(self, vectors: Any, num_tokens: int) -> dict[str, Any]:
        in_text = self._format == "base64"  # of little-endian float32
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": base64.b64encode(each.astype("<f4").tobytes()).decode()
                if in_text
                else each.tolist(),
            }
            for index, each in enumerate(vectors)
        ]
        usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        return {"object": "list", "data": data, "model": self._name, "usage": usage}


class OllamaEmbed(_EmbeddingAside):
    """A request to /api/embed."""

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        self._inputs = _inputs(fields, "input") if fields.any("input") else []
        is_cut = fields.flag("truncate") is not False
        self._keywords = {"dimensions": _dimensions(fields), "truncate": is_cut}

    def _written(self, vectors: Any, num_tokens: int) -> dict[str, Any]:
        return {
            "model": self._name,
            "embeddings": [each.tolist() for each in vectors],
            "total_duration": round(1e9 * self._total_s),
            "load_duration": round(1e9 * self._load_s),
            "prompt_eval_count": num_tokens,
        }


class OllamaEmbeddings(_EmbeddingAside):
    """A request to /api/embeddings, which is older."""

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        text = fields.text("prompt")
        self._inputs, self._keywords = [text] if text else [], {"truncate": True}

    def _written(self, vectors: Any, num_tokens: int) -> dict[str, Any]:
        return {"embedding": vectors[0].tolist() if len(vectors) else []}


class Rerank(Aside):
    """A request to /v1/rerank: which documents fit a query."""

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        self._query = fields.text("query")
        if not self._query:
            fields.refuse("query", "Give a text.")
        given = fields.any("documents")
        is_list = isinstance(given, list) and 0 < len(given) <= _MOST_INPUTS
        documents = given if is_list else []
        texts = [each.get("text") if isinstance(each, dict) else each for each in documents]
        if not is_list or not all(isinstance(each, str) for each in texts):
            fields.refuse("documents", f"Give a list of 1 to {_MOST_INPUTS} texts.")
        self._documents = texts
        self._top = fields.whole("top_n")
        if self._top is not None and self._top < 1:
            fields.refuse("top_n", "Give 1 or more.")
        self._returns_documents = bool(fields.flag("return_documents"))

    async def result(self, service: Service) -> Any:
        embedder = service.models.embedder_named(self.model_name)
        found = await embedder.call("rank", self._query, self._documents)
        service.counters.add_embedded(embedder.name, len(self._documents), found.num_tokens)
        scores = found.values.tolist()
        order = sorted(range(len(scores)), key=lambda index: -scores[index])
        results = []
        for index in order[: self._top]:
            result = {"index": index, "relevance_score": scores[index]}
            if self._returns_documents:
                result["document"] = {"text": self._documents[index]}
            results.append(result)
        usage = {"prompt_tokens": found.num_tokens, "total_tokens": found.num_tokens}
        return {"object": "list", "model": embedder.name, "results": results, "usage": usage}


def _inputs(fields: Fields, name: str) -> list[Any]:
    """One text or several, each as text or token ids. Raises RequestError."""
    value = fields.any(name)
    given = [value] if isinstance(value, str) or _is_ids(value) else value
    is_list = isinstance(given, list) and 0 < len(given) <= _MOST_INPUTS
    if not is_list or not all(isinstance(each, str) or _is_ids(each) for each in given):
        fields.refuse(
            name, f"Give a text, a list of token ids, or up to {_MOST_INPUTS} of these."
        )
    return list(given)


def _is_ids(value: object) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(each, int) and not isinstance(each, bool) for each in value)


def _dimensions(fields: Fields) -> int | None:
    number = fields.whole("dimensions")
    if number is not None and number < 1:
        fields.refuse("dimensions", "Give 1 or more.")
    return number
