"""Trained heads that libllama computes: contexts of their own, which read a target's rows.

An MTP head reads token x_p together with the target's row at p - 1, and predicts x_(p+1)
(DeepSeek-V3, arXiv 2412.19437, section 2.2). If the token at p - 1 was drafted, the target
has not reached it, and the head reads its own row. llama.cpp's driver decodes twice in each
step; here accepted tokens are read in the decode that drafts the first token.

The other kinds (`_KINDS`) differ in where the rows come from and where entries are kept.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.errors import DecodeError
from localspec.gguf_file.architectures import HeadGraph
from localspec.gguf_file.head_facts import HeadFacts
from localspec.llama.batch import TokenBatch
from localspec.llama.context import LlamaContext
from localspec.llama.handle import Handle, Stop
from localspec.llama.hidden_rows import HiddenRows, Rows, TargetRows
from localspec.llama.kv_cache import copied_entries, put_entries
from localspec.llama.library import llama_cpp
from localspec.llama.model import LlamaModel
from localspec.llama.model_options import ROWS_BATCH_SIZE, LlamaOptions
from localspec.llama.native import LoadWatch
from localspec.llama.opening import context_params, loaded_weights, new_context, open_watched
from localspec.llama.quirks.nextn import require_nextn_functions
from localspec.sampling.distribution import Logits

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on


class HeadCopy(NamedTuple):
    """A head's state of a text: num_cached entries from begins_at on, and the target's rows."""

    rows: HiddenRows
    begins_at: int
    num_cached: int
    state: NDArray[np.uint8] | None
    """The entries, in libllama's format; None without entries."""


class LlamaHead(LlamaContext):
    """A trained head and its cache, which holds a part of the target's text.

    Implements `heads.HeadModel`. If it has several MTP layers, each drafts one token, and each
    reads the whole text (Step 3.5).
    """

    read_size = 0
    """See `heads.HeadModel`."""

    _lag = 0  # position of a token in the text minus its entry's position in the cache

    def __init__(
        self,
        handle: Handle,
        target: LlamaModel,
        facts: HeadFacts,
        options: LlamaOptions,
    ) -> None:
        super().__init__(handle)
        self._title = f"the head of {self.name}"
        self._nextn = require_nextn_functions(reads_layers=bool(facts.layers_read))
        self._target_rows = target.keep_rows(TargetRows(target.handle, facts.layers_read))
        self._setting = options.summary
        num_layers = facts.num_chained
        self.num_layers = num_layers
        self._has_output_rows_only = facts.has_output_rows_only
        self.vocab_size = target.vocab_size
        self.context_length = target.context_length
        self.max_outputs = options.max_outputs

        self.num_weight_bytes = facts.num_read_bytes
        """Bytes of weights that a decode of one token reads."""

        self.max_rollback = target.context_length
        self.max_draft_tokens = target.context_length
        if num_layers > 1:
            self.max_draft_tokens = num_layers

        self.begins_at = 0
        """The position in the text of its first entry."""

        self.num_cached = 0
        self._drafted: list[int] = []  # its latest tokens, which it read with its own rows
        self._sequence = 0
        width = int(llama_cpp.llama_model_n_embd_out(handle.model))
        self._width = width
        self._own_rows = np.zeros((num_layers, width), dtype=np.float32)
        size = llama_cpp.llama_n_batch(handle.context)
        self._batch = TokenBatch(size, width)
        if facts.layers_read:
            self._features = TokenBatch(size, self._target_rows.width, rows_alone=True)
        # Other graphs give wrong rows if only rows with logits are asked for.
        self._nextn.set_embeddings_nextn(handle.context, True, facts.has_output_rows_only)

    @property
    def readable(self) -> range:
        """Positions at which it can read: the target's row before each of them is kept."""
        begin = self._target_rows.first
        if begin > 0:
            begin += 1
        return range(begin, self._target_rows.end + 1)

    def pause(self, num_tokens: int) -> None:
        """Read nothing for `num_tokens` tokens, whose rows the target need not give."""
        self._target_rows.pause(num_tokens)

    @property
    def identity(self) -> str | None:
        """Identity like that of `LlamaModel`, without the build and the processor."""
        if self.content is None:
            return None
        return f"{self.content} · {self._setting}"

    def sibling(self, number: int, target: LlamaModel) -> Self:
        """A view of this head for another text.

        Args:
            number: The sequence of that text.
            target: The view of the target at the same sequence.
        """
        other = copy.copy(self)
        other._stop = Stop()
        other._sequence = number
        other._target_rows = target.kept_rows
        other.begins_at = 0
        other.num_cached = 0
        other._drafted = []
        other._own_rows = np.zeros_like(self._own_rows)
        return other

    def copied(self) -> HeadCopy:
        """A copy of its state, and of the rows with which it continues to read."""
        count = self.num_cached - len(self._drafted)
        return HeadCopy(self._target_rows.copied(), self.begins_at, count, self._state())

    def take_over(self, other: HeadCopy, num_cached: int) -> None:
        """Take over the state of another text, up to its first num_cached tokens.

        Both texts begin with these tokens, which are all that the target has cached.
        """
        self.read_from(0)
        self._target_rows.take_over(other.rows, num_cached)
        if other.state is not None:
            if put_entries(self.handle.context, self._sequence, other.state):
                self.begins_at = other.begins_at
                self.num_cached = other.num_cached
            else:
                self._remove_from(-1)
        # A copied state may have drafted tokens, too.
        most = max(num_cached - self.begins_at, 0)
        self._cut(min(most, self.num_cached))

    def _state(self) -> NDArray[np.uint8] | None:
        """A copy of its entries; None if libllama fails to give it."""
        return copied_entries(self.handle.context, self._sequence)

    def read_from(self, position: int) -> None:
        """Forget everything, and continue at that position of the text."""
        self.truncate(0)
        self.begins_at = position

    def decode(self, tokens: Sequence[int], num_logits: int) -> Logits:
        """Decode as `Model.decode` does; after `readable`, one token at a time.

        Raises DecodeError or Interrupted.
        """
        self.handle.require_open()
        before = self.num_cached - len(self._drafted)
        try:
            if self.begins_at + self.num_cached < self.readable.stop:
                num_rows = self._read_batches(tokens, num_logits)
            elif len(tokens) == 1:
                self._draft(tokens)
                num_rows = 1
            else:
                raise DecodeError(f"{self._title} drafts one token at a time")
        except BaseException:
            self._cut(before)
            raise
        if num_logits == 0:
            return np.empty((0, self.vocab_size), dtype=np.float32)
        pointer = llama_cpp.llama_get_logits(self.handle.context)
        logits = np.ctypeslib.as_array(pointer, (num_rows, self.vocab_size))
        return logits[num_rows - num_logits :]

    def _read_batches(self, tokens: Sequence[int], num_logits: int) -> int:
        """Read tokens of the text with the target's rows. Returns the rows of logits."""
        while len(tokens) > self._batch.size:
            size = min(self._batch.size, len(tokens) - num_logits)
            self._read_batch(tokens[:size], 0)
            tokens = tokens[size:]
        return self._read_batch(tokens, num_logits)

    def _read_batch(self, tokens: Sequence[int], num_logits: int) -> int:
        count = len(tokens)
        position = self.begins_at + self.num_cached
        readable = self.readable
        if self._drafted or position < readable.start or position + count > readable.stop:
            raise DecodeError(
                f"{self._title} can read tokens {readable.start} to {readable.stop - 1}, "
                f"not {position} to {position + count - 1}"
            )
        self._take_rows(position, count)
        if num_logits == 0:
            padding = [tokens[-1]] * self._padding(self._batch, count)
            tokens = [*tokens, *padding]
        # The first layer comes last: it drafts first, from the row of its decode.
        for layer in reversed(range(1, self.num_layers)):
            self._decode_batch(tokens, position, 0, layer)
            self._remove_from(position)
        num_rows = self._decode_batch(tokens, position, num_logits, 0)
        if len(tokens) > count:
            self._remove_from(position + count - self._lag)
        if num_logits:
            self._own_rows[0] = self._row_of_last(count, num_logits)
        self.num_cached += count
        return num_rows

    def _padding(self, batch: TokenBatch, count: int) -> int:
        """How many tokens pad a decode of `count` tokens without logits.

        They get the last token's row, and are removed from the cache after the decode.
        """
        padding = max(self.read_size - count, 0)
        if self.begins_at + self.num_cached + count + padding > self.context_length:
            return 0
        batch.rows[count : count + padding] = batch.rows[count - 1]
        return padding

    def _take_rows(self, position: int, count: int) -> None:
        """Put the rows that `count` tokens from a position on need into the batch."""
        out = self._batch.rows[:count]
        if position == 0:
            out[0] = 0.0
            self._target_rows.copy_to(out[1:], 0)
        else:
            self._target_rows.copy_to(out, position - 1)

    def _draft(self, tokens: Sequence[int]) -> None:
        """Read one drafted token, with the row from which it was drafted."""
        position = self._draft_position()
        num_drafted = len(self._drafted)
        self._drafted += tokens
        self.num_cached += 1
        if self.num_layers == 1:
            self._batch.rows[0] = self._own_rows[0]
            self._decode_batch(tokens, position, 1, 0)
            self._own_rows[0] = self._row_of_last(1, 1)
            return
        # Each layer has its own cache, and this layer's has none of the drafted tokens.
        first = position - num_drafted
        layer = num_drafted + 1
        self._remove_from(first)
        self._batch.rows[:layer] = self._own_rows[:layer]
        self._decode_batch(self._drafted, first, 1, layer)
        if layer + 1 < self.num_layers:
            self._own_rows[layer] = self._row_of_last(layer, 1)

    def _draft_position(self) -> int:
        """The position at which the next drafted token is decoded."""
        return self.begins_at + self.num_cached

    def _decode_batch(
        self,
        tokens: Sequence[int],
        position: int,
        num_logits: int,
        layer: int,
    ) -> int:
        """Decode with one of the layers. Returns the number of rows of logits."""
        count = len(tokens)
        context = self.handle.context
        self._start_decode(count)
        if self.num_layers > 1:
            self._nextn.set_nextn_layer_offset(context, layer)
        batch = self._batch.filled(tokens, position - self._lag, num_logits, self._sequence)
        self._check_decoded(llama_cpp.llama_decode(context, batch), count, position)
        return num_logits

    def _row_of_last(self, count: int, num_logits: int) -> Rows:
        """The head's own row at the last of count tokens: a view until the next decode."""
        num_rows = count
        if self._has_output_rows_only:
            num_rows = num_logits
        last: Rows = self._given_rows(num_rows)[-1]
        return last

    def _given_rows(self, count: int) -> Rows:
        """The `count` rows of the last decode: a view until the next one."""
        rows = self._nextn.get_embeddings_nextn(self.handle.context)
        return np.ctypeslib.as_array(rows, (count, self._width))

    def truncate(self, num_cached: int) -> None:
        """Cut as `Model.truncate` does; tokens that it read with its own rows always go."""
        num_cached = min(num_cached, self.num_cached - len(self._drafted))
        if num_cached < self.num_cached:
            self.handle.require_pointers()
            self._cut(num_cached)

    def _cut(self, num_cached: int) -> None:
        self.num_cached = num_cached
        self._drafted.clear()
        self._remove_from(self.begins_at + self.num_cached - self._lag)

    def _remove_from(self, position: int) -> None:
        memory = self.handle.memory
        llama_cpp.llama_memory_seq_rm(memory, self._sequence, position, -1)

    def checkpoint(self) -> None:
        """Nothing to do: the cache can be cut anywhere."""

    def make_ready(self) -> None:
        """Allow decodes again after `interrupt`, and cut the cache to what is recorded."""
        self.require_open()
        self._stop.is_wanted = False
        self.pause(0)
        self._cut(self.num_cached - len(self._drafted))


class AssistantHead(LlamaHead):
    """A head without a cache, as Gemma 4's: it attends to its target's keys and values.

    It drafts after the last token that its target has cached, and decodes all tokens of a
    draft at one position, as in its training: see src/models/gemma4-assistant.cpp and
    common/speculative.cpp of llama.cpp.
    """

    @property
    def readable(self) -> range:
        """The position after the target's tokens, if there are any."""
        rows = self._target_rows
        return range(rows.end, rows.end + (rows.end > rows.first))

    def _draft_position(self) -> int:
        return self.begins_at + self.num_cached - len(self._drafted) - 1

    def _state(self) -> None:
        """Nothing: the target owns the entries."""

    def _remove_from(self, position: int) -> None:
        """Nothing: the target owns the entries."""


class EagleHead(LlamaHead):
    """An EAGLE-3 head (Li et al., arXiv 2503.01840, section 3): one layer.

    At each token, the inputs of three of the target's layers are encoded into one row. The
    layer reads token x_p together with the row of p - 1, and predicts x_(p+1). At drafted
    tokens it reads its own rows. There is no entry for the text's first token: each entry has
    the position of its row, one before that of the token. Only rows that the layer reads are
    encoded, so an idle head costs only a copy. libllama gives logits of all tokens of a decode
    or of none; for some of the tokens they would be wrong.
    """

    _lag = 1

    @property
    def readable(self) -> range:
        return range(self._target_rows.first + 1, self._target_rows.end + 1)

    def _take_rows(self, position: int, count: int) -> None:
        rows = self._features.rows
        size = min(max(count, self.read_size), len(rows))  # padded with the last row
        self._target_rows.copy_to(rows[:count], position - 1)
        rows[count:size] = rows[count - 1]
        self._start_decode(size)
        batch = self._features.filled([0] * size, position - self._lag, size, self._sequence)
        status = llama_cpp.llama_encode(self.handle.context, batch)
        self._check_decoded(status, count, position)
        self._batch.rows[:count] = self._given_rows(size)[:count]

    def _decode_batch(
        self,
        tokens: Sequence[int],
        position: int,
        num_logits: int,
        layer: int,
    ) -> int:
        if num_logits:
            num_logits = len(tokens)
        return super()._decode_batch(tokens, position, num_logits, layer)


class DflashHead(LlamaHead):
    """A DFlash head (arXiv 2602.06036), DSpark and DFlash2 included.

    For each token of the text, the head reads the inputs of some layers of its target. libllama
    turns that row into keys and values, and the head keeps only these. A draft is one decode of
    the last token and masks, whose entries are removed again. See src/models/dflash.cpp and
    common/speculative.cpp of llama.cpp, whose driver takes the likeliest token of each row;
    here the head gives rows, from which tokens are drawn.

    Implements `heads.BlockModel`. num_weight_bytes counts the bytes read to draft one block.
    """

    is_block = True

    def __init__(
        self,
        handle: Handle,
        target: LlamaModel,
        facts: HeadFacts,
        options: LlamaOptions,
    ) -> None:
        super().__init__(handle, target, facts, options)
        assert facts.block is not None
        self._block = facts.block
        self.first_row = facts.block.first_row  # the first row of a decode that drafts a token
        self.max_draft_tokens = self._block.most_tokens
        self._batch = TokenBatch(self._batch.size)
        self._logits: Logits = np.empty((0, self.vocab_size), dtype=np.float32)
        self._given: Rows = np.empty((0, self._width), dtype=np.float32)
        self._pairs: Logits = np.empty(self.vocab_size, dtype=np.float32)
        llama_cpp.llama_set_causal_attn(handle.context, self._block.is_causal)

    def sibling(self, number: int, target: LlamaModel) -> Self:
        other = super().sibling(number, target)
        other._pairs = self._pairs.copy()
        return other

    @property
    def readable(self) -> range:
        rows = self._target_rows
        return range(rows.first, rows.end + (rows.end > rows.first))

    def decode_block(self, tokens: Sequence[int], num_tokens: int) -> None:
        """Read tokens of the text, and decode a block after them that drafts num_tokens.

        Args:
            tokens: Tokens of the text that are not read yet; the last one begins the block.
            num_tokens: Tokens to draft.

        Raises:
            DecodeError: If libllama refuses the block.
            Interrupted: If it was interrupted.
        """
        self.handle.require_open()
        size = num_tokens + self.first_row
        try:
            self._read_rows(len(tokens) - 1)
            masks = [self._block.mask] * (size - 1)
            block = [tokens[-1], *masks]
            self._decode_batch(block, self.begins_at + self.num_cached, size, 0)
        finally:
            self._cut(self.num_cached)
        context = self.handle.context
        first = self.first_row
        pointer = llama_cpp.llama_get_logits(context)
        logits = np.ctypeslib.as_array(pointer, (size, self.vocab_size))
        self._logits = logits[first:]
        if self._block.num_candidates or self._block.has_confidences:
            self._given = self._given_rows(size)[first:]

    def _read_rows(self, count: int) -> None:
        """Read `count` tokens of the text, as rows of the target."""
        while count > 0:
            size = min(count, self._features.size)
            position = self.begins_at + self.num_cached
            if position < self._target_rows.first or position + size > self._target_rows.end:
                raise DecodeError(f"{self._title} has no rows of tokens from {position} on")
            self._target_rows.copy_to(self._features.rows[:size], position)
            padding = self._padding(self._features, size)
            self._start_decode(size + padding)
            zeros = [0] * (size + padding)
            batch = self._features.filled(zeros, position, 0, self._sequence)
            status = llama_cpp.llama_decode(self.handle.context, batch)
            self._check_decoded(status, size, position)
            self.num_cached += size
            count -= size
            if padding:
                self._remove_from(position + size)

    def row(self, drafted: Sequence[int]) -> Logits:
        """(vocab,) logits of the token after those that were drafted from this block.

        A view that may be written to, valid until the next call. With DFlash2 they are the
        selector's scores of this token's candidates, given the token before, and -inf for all
        other tokens.
        """
        index = len(drafted)
        count = self._block.num_candidates
        if not count:
            row: Logits = self._logits[index]
            return row
        before = 0  # after the text's last token all rows of scores are alike
        if drafted:
            candidates = self._candidates(index - 1).tolist()
            before = candidates.index(drafted[-1])
        begin = count * (1 + before)
        self._pairs.fill(-np.inf)
        self._pairs[self._candidates(index)] = self._given[index, begin : begin + count]
        return self._pairs

    def _candidates(self, index: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The ids of a token's candidates."""
        return self._given[index, : self._block.num_candidates].astype(np.int64)

    def confidence(self, index: int) -> float | None:
        """The probability that the token at that index is right; None if the head has none."""
        if not self._block.has_confidences:
            return None
        return float(self._given[index, 0])


_KINDS = {
    HeadGraph.ASSISTANT: AssistantHead,
    HeadGraph.EAGLE3: EagleHead,
    HeadGraph.DFLASH: DflashHead,
}


def open_head(
    target: LlamaModel,
    path: Path | None,
    options: LlamaOptions,
    facts: HeadFacts,
    progress: Callable[[float], None] = lambda _fraction: None,
) -> LlamaHead:
    """Open the head at `path`, or the head in the file of a target opened `with_head`.

    Raises what `LlamaModel.open` does, and EngineError if libllama lacks a function for such a
    head.

    Args:
        target: The target, which keeps rows from now on.
        path: The head's own file; None for the target's.
        options: The head's options.
        facts: The facts of the head, checked by `gguf_file.head_facts`; not of Medusa.
        progress: Called with the loaded share, 0 … 1.
    """
    require_nextn_functions(reads_layers=bool(facts.layers_read))
    if path is None:
        context = _new_context(target, target.handle.model, options, facts)
        handle = Handle(context, target.name, model_of=target.handle)
    else:

        def load(watch: LoadWatch) -> Handle:
            # Without its layers, the first decode ends the process.
            with loaded_weights(path, replace(options, with_head=True), watch) as model:
                context = _new_context(target, model, options, facts)
            return Handle(context, path.name)

        handle = open_watched(progress, load)
    kind = _KINDS.get(facts.graph, LlamaHead)
    with handle.closed_on_failure():
        return kind(handle, target, facts, options)


def _new_context(
    target: LlamaModel,
    model: int | None,
    options: LlamaOptions,
    facts: HeadFacts,
) -> int:
    assert model is not None
    params = context_params(options, target.context_length)
    # Sequences draft one after the other, but libllama wants a row for each of them.
    params.n_outputs_max = max(options.max_outputs, options.num_sequences)
    if facts.layers_read:
        params.n_ubatch = min(params.n_ubatch, ROWS_BATCH_SIZE)
        params.n_batch = params.n_ubatch
    else:
        params.ctx_type = llama_cpp.LLAMA_CONTEXT_TYPE_MTP
    params.ctx_other = target.handle.context
    return new_context(model, f"the head of {target.name}", params)
