"""A DFlash head of libllama (arXiv 2602.06036), DSpark and DFlash2 included.

The head reads a token of the text in the shape of what went into some layers of its target
there: libllama turns that row into keys and values, which is all that the head keeps. A draft
is one decode of the last token and masks, whose entries are removed again. See
src/models/dflash.cpp and common/speculative.cpp of llama.cpp, whose driver takes the likeliest
token of each row; here rows are given, and tokens are drawn from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from localspec.errors import DecodeError
from localspec.gguf_file.head import HeadFacts
from localspec.llama.batch import TokenBatch
from localspec.llama.handle import Handle
from localspec.llama.head import LlamaHead
from localspec.llama.hidden_rows import Rows
from localspec.llama.library import llama_cpp
from localspec.llama.model import LlamaModel
from localspec.llama.options import LlamaOptions
from localspec.sampling.distribution import Logits

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on


class DflashHead(LlamaHead):
    """A head, whose cache holds a part of the target's text.

    Implements `heads.BlockModel`. num_weight_bytes: read to draft one block. row_width: numbers
    of a row that it reads.
    """

    is_block = True

    def __init__(
        self, handle: Handle, target: LlamaModel, facts: HeadFacts, options: LlamaOptions
    ) -> None:
        super().__init__(handle, target, facts, options)
        assert facts.block is not None
        self._block = facts.block
        self.first_row = facts.block.first_row  # of a decode, the first that drafts a token
        self.row_width = self._target_rows.width
        self.max_draft_tokens = self._block.most_tokens
        self._features = TokenBatch(self._batch.size, self.row_width, rows_alone=True)
        self._batch = TokenBatch(self._batch.size)
        self._logits: Logits = np.empty((0, self.vocab_size), dtype=np.float32)
        self._given: Rows = np.empty((0, self._width), dtype=np.float32)
        self._pairs: Logits = np.empty(self.vocab_size, dtype=np.float32)
        llama_cpp.llama_set_causal_attn(handle.context, self._block.is_causal)

    def beside(self, number: int, target: LlamaModel) -> Self:
        other = super().beside(number, target)
        other._pairs = self._pairs.copy()
        return other

    @property
    def readable(self) -> range:
        rows = self._target_rows
        return range(rows.first, rows.end + (rows.end > rows.first))

    def decode_block(self, tokens: Sequence[int], num_tokens: int) -> None:
        """Read tokens of the text, and decode a block behind them that drafts num_tokens.

        tokens: what it has not read; the last of them begins the block. Raises DecodeError or
        Interrupted.
        """
        self.handle.require_open()
        with self._alone(len(tokens) + num_tokens):
            self._decode_alone(tokens, num_tokens + self.first_row)
            if self._computing is not None:  # another's block comes in their place
                self._logits, self._given = self._logits.copy(), self._given.copy()

    def _decode_alone(self, tokens: Sequence[int], size: int) -> None:
        try:
            self._read_rows(len(tokens) - 1)
            block = [tokens[-1], *[self._block.mask] * (size - 1)]
            self._decode_batch(block, self.begins_at + self.num_cached, size, 0)
        finally:
            self._cut(self.num_cached)
        context, first = self.handle.context, self.first_row
        logits = llama_cpp.llama_get_logits(context)
        self._logits = np.ctypeslib.as_array(logits, (size, self.vocab_size))[first:]
        if self._block.num_candidates or self._block.has_confidences:
            self._given = self._given_rows(size)[first:]

    def _read_rows(self, count: int) -> None:
        """Read so many tokens of the text, as rows of the target."""
        while count > 0:
            size, position = min(count, self._features.size), self.begins_at + self.num_cached
            if position < self._target_rows.first or position + size > self._target_rows.end:
                raise DecodeError(f"{self._title} has no rows of tokens from {position} on")
            self._target_rows.copy_to(self._features.rows[:size], position)
            self._start_decode(size)
            batch = self._features.filled([0] * size, position, 0, self._sequence)
            status = llama_cpp.llama_decode(self.handle.context, batch)
            self._check_decoded(status, size, position)
            self.num_cached += size
            count -= size

    def row(self, drafted: Sequence[int]) -> Logits:
        """(vocab,) logits of the token behind those that were drafted from this block.

        A view that may be written to, valid until the next call. Of DFlash2 they are the
        selector's scores of this place's candidates, given the token before, and -inf for
        other tokens.
        """
        place, count = len(drafted), self._block.num_candidates
        if not count:
            row: Logits = self._logits[place]
            return row
        before = 0  # all rows of scores are alike behind the text's last token
        if drafted:
            before = self._candidates(place - 1).tolist().index(drafted[-1])
        begin = count * (1 + before)
        self._pairs.fill(-np.inf)
        self._pairs[self._candidates(place)] = self._given[place, begin : begin + count]
        return self._pairs

    def _candidates(self, place: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return self._given[place, : self._block.num_candidates].astype(np.int64)

    def confidence(self, index: int) -> float | None:
        """How likely the token at that index is right; None if the head does not say."""
        if not self._block.has_confidences:
            return None
        return float(self._given[index, 0])
