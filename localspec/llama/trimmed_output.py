"""The output layer of an MTP head, or of a draft, with some tokens alone.

A head gives the input of its output layer without computing that layer. A small model of some
of its rows computes those, quantised as they are: see `gguf_file.trimmed`. Its one layer
changes nothing, but it scales each row, which is undone here.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np

from localspec.gguf_file.header import Header
from localspec.gguf_file.trimmed import SPARED_BYTES, proposed_ids
from localspec.llama.batch import TokenBatch
from localspec.llama.context import LlamaContext
from localspec.llama.handle import Handle
from localspec.llama.hidden_rows import Rows
from localspec.llama.library import llama_cpp
from localspec.llama.native import LoadWatch
from localspec.llama.opening import load_context, open_watched
from localspec.llama.options import LlamaOptions
from localspec.sampling.distribution import Logits


class TrimmedOutput(LlamaContext):
    """Logits of some tokens for rows that a head gives.

    num_weight_bytes: that it reads for a row. num_spared_bytes: of the whole output layer.
    """

    def __init__(
        self, header: Header, handle: Handle, options: LlamaOptions, vocab_size: int
    ) -> None:
        super().__init__(handle)
        width = header.number(f"{header.architecture}.embedding_length")
        self.num_weight_bytes: int = llama_cpp.llama_model_size(handle.model)
        self.num_spared_bytes = header.number(SPARED_BYTES)
        self._scattered = Scattered(header, options.max_outputs, vocab_size)
        self.num_tokens = self._scattered.num_tokens
        self._batch = TokenBatch(options.max_outputs, width, rows_alone=True)

    @classmethod
    def open(cls, header: Header, options: LlamaOptions, vocab_size: int) -> TrimmedOutput:
        """Load the file of that header, with a head's options. Raises as `LlamaModel.open`."""
        options = replace(options, context_length=options.max_outputs, with_head=False, rpc=())
        load = functools.partial(cls._load, header, options, vocab_size)
        return open_watched(lambda _fraction: None, load)

    @classmethod
    def _load(
        cls, header: Header, options: LlamaOptions, vocab_size: int, watch: LoadWatch
    ) -> TrimmedOutput:
        handle, _length = load_context(header.path, options, watch)
        with handle.closed_on_failure():
            return cls(header, handle, options, vocab_size)

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
        return self._scattered.rows(scaled * scales)


class Scattered:
    """Logits of the tokens that a trimmed file proposes, as rows of all: -inf elsewhere."""

    def __init__(self, header: Header, max_rows: int, vocab_size: int) -> None:
        self._ids = np.array(proposed_ids(header), dtype=np.int64)
        self._rows: Logits = np.full((max_rows, vocab_size), -np.inf, dtype=np.float32)

    @property
    def num_tokens(self) -> int:
        return len(self._ids)

    def rows(self, logits: Logits) -> Logits:
        """(n, all tokens) of logits (n, proposed tokens): a view, valid until the next call."""
        rows: Logits = self._rows[: len(logits)]
        rows[:, self._ids] = logits
        return rows
