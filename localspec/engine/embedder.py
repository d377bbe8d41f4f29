"""Texts → vectors, with a model trained for it; scores of how well documents fit a query."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from localspec.errors import ContextError, OptionError, at_most
from localspec.gguf_file.check import check_embedder_file
from localspec.gguf_file.header import Header
from localspec.llama.model_options import LlamaOptions
from localspec.presets.located import locate_model

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Self  # in typing from Python 3.11 on

_MOST_TEXTS = 1 << 20  # of one call
_MOST_IDS = 1 << 24  # of a text; more than any context holds


class Embedded(NamedTuple):
    """An embedder's result for some texts."""

    values: np.ndarray[Any, np.dtype[np.float32]]
    """A vector for each text, (texts, dimensions) float32; or a score for each, (texts,)."""

    num_tokens: int
    """The tokens of all texts together."""


class Embedder:
    """A model that turns texts into vectors. Made by `load_embedder`.

    `name` is the name of the model's file, `context_length` the most tokens of a text, `width`
    the length of a vector, and `ranks` whether the model is a reranker, which gives documents
    scores, and no vectors.

    It may be used from any thread; one call runs at a time, and others wait. The end of its
    `with` block closes it.
    """

    def __init__(
        self,
        header: Header,
        options: LlamaOptions,
        progress: Callable[[float], None],
    ) -> None:
        from localspec.llama.embedding_model import LlamaEmbedder
        from localspec.llama.opening import open_watched

        self._model = open_watched(progress, partial(LlamaEmbedder.load, header, options))
        self._in_use = threading.Lock()
        self.name = self._model.name
        self.context_length = self._model.context_length
        self.width = self._model.width
        self.ranks = self._model.ranks

    def embed(
        self,
        texts: str | Sequence[str | Sequence[int]],
        *,
        dimensions: int | None = None,
        truncate: bool = False,
    ) -> Embedded:
        """The vectors of texts, each of length 1 (Euclidean).

        Raises OptionError, and ContextError for a text that does not fit.

        Args:
            texts: One text or several, each a str or a list of token ids.
            dimensions: The length of a vector; the remaining numbers are cut off. For models
                that are trained for that.
            truncate: Cut off the end of a text that does not fit.
        """
        import numpy as np

        if self.ranks:
            raise OptionError(f"{self.name} is a reranker", "Ask it for scores: rank().")
        if dimensions is not None and not 1 <= dimensions <= self.width:
            raise OptionError(f"dimensions is {dimensions}", f"Choose 1 to {self.width}.")
        if isinstance(texts, str):
            texts = [texts]
        texts = at_most(_MOST_TEXTS, texts, "texts")
        with self._in_use:
            token_lists = []
            for text in texts:
                tokens = self._tokens(text)
                token_lists.append(self._fitting(tokens, truncate=truncate))
            vectors = self._model.pool(token_lists)[:, :dimensions]
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        lengths[lengths == 0] = 1  # a vector of zeros stays as it is
        units = (vectors / lengths).astype(np.float32)
        return Embedded(units, _num_tokens(token_lists))

    def rank(self, query: str, documents: Sequence[str], *, truncate: bool = False) -> Embedded:
        """Scores of how well each document fits the query: the higher, the better.

        Raises OptionError if the model is no reranker, ContextError as `embed` does.
        """
        if not self.ranks:
            raise OptionError(f"{self.name} is not a reranker", "Choose a reranker.")
        with self._in_use:
            token_lists = []
            for document in at_most(_MOST_TEXTS, documents, "documents"):
                tokens = self._model.pair_tokens(query, document)
                token_lists.append(self._fitting(tokens, truncate=truncate))
            scores = self._model.pool(token_lists)[:, 0]
        return Embedded(scores, _num_tokens(token_lists))

    def _tokens(self, text: str | Sequence[int]) -> list[int]:
        """The token ids of a text, or the ids themselves. Raises OptionError for bad ids."""
        if isinstance(text, str):
            return self._model.text_tokens(text)
        ids = at_most(_MOST_IDS, text, "token ids")
        if ids:
            # Called only for its error: if these two are ids, all between them are.
            self._model.vocabulary.detokenize([min(ids), max(ids)])
        return ids

    def _fitting(self, tokens: list[int], *, truncate: bool) -> list[int]:
        """The tokens of a text, cut off at the context's length if `truncate`.

        Raises OptionError for no tokens, and ContextError for too many.
        """
        if not tokens:
            raise OptionError("a text is empty", "Give at least one token.")
        if len(tokens) <= self.context_length:
            return tokens
        if truncate:
            return tokens[: self.context_length]
        raise ContextError(
            f"a text has {len(tokens)} tokens; {self.name} reads {self.context_length}",
            "Cut it into pieces.",
            num_tokens=len(tokens),
            context_length=self.context_length,
        )

    def close(self) -> None:
        """Free the model, once nothing uses it. Idempotent."""
        with self._in_use:
            self._model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def _num_tokens(texts: Sequence[Sequence[int]]) -> int:
    """Tokens of all texts together."""
    return sum(len(tokens) for tokens in texts)


def load_embedder(
    model: str | os.PathLike[str],
    *,
    context_length: int | None = None,
    num_threads: int | None = None,
    num_gpu_layers: int | None = None,
    progress: Callable[[float], None] = lambda _fraction: None,
) -> Embedder:
    """Open a model that turns texts into vectors, or a reranker.

    Raises ModelFileError if it is no such model, PresetError if its file is not on this
    machine, OptionError, and MemoryLimitError.

    Args:
        model: A preset ("bge-small-en-v1.5", "nomic-embed-text-v1.5"), a GGUF file, or a name
            of the hub as hf:owner/repo/file.gguf; it has to be on this machine.
        context_length: The most tokens of a text; by default the number for which the model
            was trained, up to 8192.
        progress: Called with the loaded share, 0 … 1.
    """
    header = check_embedder_file(locate_model(model))
    options = LlamaOptions(
        context_length=context_length,
        num_threads=num_threads,
        num_gpu_layers=num_gpu_layers,
    )
    return Embedder(header, options, progress)
