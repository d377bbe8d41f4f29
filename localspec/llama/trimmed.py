"""A draft whose output layer knows only some tokens.

`gguf_file.trimmed` says what its file has. libllama takes it for a model of so many tokens
without a tokenizer, and is given the embeddings of tokens in place of their ids.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from localspec.gguf_file.header import Header
from localspec.gguf_file.header_vocabulary import HeaderVocabulary
from localspec.gguf_file.tensor_types import dequantized, row_bytes
from localspec.gguf_file.trimmed import KIND
from localspec.llama.batch import TextPart, TokenBatch
from localspec.llama.handle import Handle
from localspec.llama.hidden_rows import Rows
from localspec.llama.model import LlamaModel
from localspec.llama.native import LoadWatch
from localspec.llama.opening import load_context, open_watched
from localspec.llama.options import LlamaOptions
from localspec.llama.trimmed_output import Scattered
from localspec.sampling.distribution import Logits
from localspec.vocabulary import TokenTable

# They scale the embeddings of tokens, and take those that are given as they are.
_SCALING = frozenset({"gemma3"})


class TrimmedModel(LlamaModel):
    """A draft that reads every token of its vocabulary, and gives logits of some.

    header: of its file, which has no `trimmed_fault`. Open one with `open_trimmed`. Its rows
    have all tokens, with -inf for those that it does not propose.
    """

    def __init__(
        self, header: Header, handle: Handle, context_length: int, options: LlamaOptions
    ) -> None:
        self._header = header
        self._embeddings = TokenRows(header)
        self._scattered = Scattered(header, options.max_outputs, len(header.tokens))
        super().__init__(handle, context_length, options.max_outputs, options.summary)

    @classmethod
    def open_trimmed(
        cls,
        header: Header,
        options: LlamaOptions,
        progress: Callable[[float], None] = lambda _fraction: None,
    ) -> TrimmedModel:
        """Load the file of that header. Raises what `LlamaModel.open` does."""
        return open_watched(progress, functools.partial(cls._load_trimmed, header, options))

    @classmethod
    def _load_trimmed(
        cls, header: Header, options: LlamaOptions, watch: LoadWatch
    ) -> TrimmedModel:
        handle, length = load_context(header.path, options, watch, header)
        with handle.closed_on_failure():
            return cls(header, handle, length, options)

    def _token_table(self) -> TokenTable:
        return HeaderVocabulary(self._header)

    def _new_batch(self, size: int) -> TokenBatch:
        return TokenBatch(size, self._embeddings.width, rows_alone=True)

    def _filled(self, tokens: Sequence[int], num_logits: int) -> Any:
        self._embeddings.copy_to(self._batch.rows[: len(tokens)], tokens)
        return super()._filled(tokens, num_logits)

    def _joined(self, parts: Sequence[TextPart]) -> Any:
        tokens = [token for part in parts for token in part.tokens]
        self._embeddings.copy_to(self._batch.rows[: len(tokens)], tokens)
        return super()._joined(parts)

    def _in_vocabulary(self, rows: Logits) -> Logits:
        return self._scattered.rows(rows)


class TokenRows:
    """The embeddings of all tokens, behind the tensors of a trimmed draft, still quantised."""

    def __init__(self, header: Header) -> None:
        self.width = header.number(f"{header.architecture}.embedding_length")
        self._kind = header.number(KIND)
        size = row_bytes(self._kind, self.width)
        count = len(header.tokens)
        data = np.memmap(header.path, dtype=np.uint8, mode="r")
        self._rows = data[header.size_bytes - count * size :].reshape(count, size)
        self._factor = self.width**0.5 if header.architecture in _SCALING else 1.0

    def copy_to(self, out: Rows, tokens: Sequence[int]) -> None:
        """Fill `out` (n, width) with those of n tokens."""
        # A prompt has many tokens twice.
        different, places = np.unique(np.asarray(tokens), return_inverse=True)
        rows = dequantized(self._rows[different], self._kind)
        out[:] = rows[places.reshape(-1)]
        if self._factor != 1.0:
            out *= self._factor
