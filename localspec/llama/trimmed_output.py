"""The output layer of an MTP head, or of a draft, with some tokens alone.

A head gives the input of its output layer without computing that layer. A small model of some
of its rows computes those, quantised as they are: see `gguf_file.trimmed`. Its one layer
changes nothing, but it scales each row, which is undone here. Tokens of the text that are not
among them join in: their rows are read from the whole file, and multiplied here.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from localspec.gguf_file.header import Header
from localspec.gguf_file.tensor_types import dequantized
from localspec.gguf_file.trimmed import SPARED_BYTES, proposed_ids
from localspec.gguf_file.trimming import whole_output
from localspec.llama.batch import TokenBatch
from localspec.llama.context import LlamaContext
from localspec.llama.handle import Handle
from localspec.llama.hidden_rows import Rows, products
from localspec.llama.library import llama_cpp
from localspec.llama.native import LoadWatch
from localspec.llama.opening import load_context, open_watched
from localspec.llama.options import LlamaOptions
from localspec.sampling.distribution import Logits

_MOST_OF_TEXTS = 512  # tokens: of a row of 2 560 numbers they take 5 MB


class TrimmedOutput(LlamaContext):
    """Logits of some tokens for rows that a head gives.

    num_weight_bytes: that it reads for a row. num_spared_bytes: of the whole output layer.
    """

    def __init__(
        self, files: _Files, handle: Handle, options: LlamaOptions, vocab_size: int
    ) -> None:
        super().__init__(handle)
        header = files.trimmed
        width = header.number(f"{header.architecture}.embedding_length")
        self.num_weight_bytes: int = llama_cpp.llama_model_size(handle.model)
        self.num_spared_bytes = header.number(SPARED_BYTES)
        self._scattered = Scattered(header, options.max_outputs, vocab_size)
        self.num_tokens = self._scattered.num_tokens
        self._batch = TokenBatch(options.max_outputs, width, rows_alone=True)
        self._more = _TextTokens(files.whole, self._scattered)

    @classmethod
    def open(
        cls, header: Header, whole: Header, options: LlamaOptions, vocab_size: int
    ) -> TrimmedOutput:
        """Load the file of that header, with a head's options. whole: of the head's own file.

        Raises as `LlamaModel.open`.
        """
        options = replace(options, context_length=options.max_outputs, with_head=False, rpc=())
        files = _Files(header, whole)
        load = functools.partial(cls._load, files, options, vocab_size)
        return open_watched(lambda _fraction: None, load)

    @classmethod
    def _load(
        cls, files: _Files, options: LlamaOptions, vocab_size: int, watch: LoadWatch
    ) -> TrimmedOutput:
        handle, _length = load_context(files.trimmed.path, options, watch)
        with handle.closed_on_failure():
            return cls(files, handle, options, vocab_size)

    def add(self, tokens: Sequence[int]) -> None:
        """Let tokens of a text be proposed from now on, whether they are in the file or not."""
        self._more.add(tokens)

    def logits(self, rows: Rows, num_threads: int) -> Logits:
        """(n, all tokens) logits of n rows, -inf for all but some tokens.

        A view, valid until the next call. Raises DecodeError.
        """
        count = len(rows)
        self.num_threads = num_threads
        self._start_decode(count)
        llama_cpp.llama_memory_seq_rm(self.handle.memory, -1, -1, -1)
        self._batch.rows[:count] = rows
        batch = self._batch.filled([0] * count, 0, count)
        self._check_decoded(llama_cpp.llama_decode(self.handle.context, batch), count, 0)
        given = llama_cpp.llama_get_logits(self.handle.context)
        scaled = np.ctypeslib.as_array(given, (count, self.num_tokens))
        scales = np.sqrt(np.mean(np.square(rows), axis=1, keepdims=True))
        return self._more.scored(self._scattered.rows(scaled * scales), rows)


class _Files(NamedTuple):
    """The headers of a trimmed output layer, and of the file that has the whole one."""

    trimmed: Header
    whole: Header


class _TextTokens:
    """Tokens that came in texts and that the file does not propose: the latest of them."""

    def __init__(self, whole: Header, scattered: Scattered) -> None:
        self._rows, self._kind = whole_output(whole)
        width = whole.number(f"{whole.architecture}.embedding_length")
        self._scattered = scattered
        self._matrix = np.empty((_MOST_OF_TEXTS, width), dtype=np.float32)
        self._ids: list[int] = []  # of its first rows
        self._oldest = 0  # place of the one that a new one takes the place of

    def add(self, tokens: Sequence[int]) -> None:
        """Read the rows of those that are new."""
        new = [token for token in dict.fromkeys(tokens) if self._scattered.lacks(token)]
        new = [token for token in new if token not in self._ids and token < len(self._rows)]
        new = new[-_MOST_OF_TEXTS:]
        if not new:
            return
        rows = dequantized(self._rows[new], self._kind)
        for token, row in zip(new, rows, strict=True):
            # The row first: an exception of a signal handler may come in between.
            if len(self._ids) < _MOST_OF_TEXTS:
                self._matrix[len(self._ids)] = row
                self._ids.append(token)
                continue
            self._scattered.forget(self._ids[self._oldest])
            self._matrix[self._oldest] = row
            self._ids[self._oldest] = token
            self._oldest = (self._oldest + 1) % _MOST_OF_TEXTS

    def scored(self, logits: Logits, rows: Rows) -> Logits:
        """The logits (n, all tokens) of these rows, with those of these tokens in place."""
        if self._ids:
            logits[:, self._ids] = products(self._matrix[: len(self._ids)], rows)
        return logits


class Scattered:
    """Logits of the tokens that a trimmed file proposes, as rows of all: -inf elsewhere."""

    def __init__(self, header: Header, max_rows: int, vocab_size: int) -> None:
        self._ids = np.array(proposed_ids(header), dtype=np.int64)
        self._rows: Logits = np.full((max_rows, vocab_size), -np.inf, dtype=np.float32)

        self._proposed = set(self._ids.tolist())

    @property
    def num_tokens(self) -> int:
        return len(self._ids)

    def lacks(self, token: int) -> bool:
        """Whether the file does not propose a token."""
        return token not in self._proposed

    def forget(self, token: int) -> None:
        """Propose a token no more that it lacks."""
        self._rows[:, token] = -np.inf

    def rows(self, logits: Logits) -> Logits:
        """(n, all tokens) of logits (n, proposed tokens): a view, valid until the next call."""
        rows: Logits = self._rows[: len(logits)]
        rows[:, self._ids] = logits
        return rows
