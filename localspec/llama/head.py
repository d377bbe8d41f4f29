"""Trained heads that libllama computes: contexts of their own, which read a target's rows.

An MTP head reads token x_p together with the target's row at p - 1, and predicts x_(p+1)
(DeepSeek-V3, arXiv 2412.19437, section 2.2). If the token at p - 1 was drafted, the target has
not decoded it yet, and the head reads the row that it computed itself. llama.cpp's driver
decodes twice in each step; here accepted tokens are read in the decode that drafts the first
token.

The other classes of heads (`_CLASSES`) differ in where the rows come from and where cache
entries are kept.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.errors import DecodeError
from localspec.gguf_file.architectures import HeadGraph
from localspec.gguf_file.head_facts import HeadFacts
from localspec.llama.batch import TokenBatch
from localspec.llama.context import LlamaContext
from localspec.llama.handle import Handle, Stop
from localspec.llama.hidden_rows import HiddenRows, Rows, TargetRows
from localspec.llama.kv_cache import copy_entries, restore_entries
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
    """A copy of what a head has of a text."""

    rows: HiddenRows
    """The target's hidden rows."""

    begins_at: int
    """See `LlamaHead.begins_at`."""

    num_cached: int
    """Tokens of the text that the head has cached."""

    entries: NDArray[np.uint8] | None
    """The head's cache entries, in libllama's format; None without entries."""


class LlamaHead(LlamaContext):
    """A trained head for one text: its cache holds a part of the target's text.

    This class is an MTP head; others derive from it. Implements `heads.HeadModel`. If the head
    has several MTP layers, as Step 3.5's, each layer drafts one token, and each reads the whole
    text.

    Args:
        handle: The head's context.
        target: The target, which keeps its hidden rows from now on.
        facts: The facts of the head.
        options: The options with which it was opened.
    """

    read_size = 0
    """See `heads.RowReader`."""

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
        """The position in the text of the first token that it has cached."""

        self.num_cached = 0
        """Tokens that it has cached, drafted ones included."""

        # The drafted tokens, which are the last cached ones: read with the head's own rows.
        self._drafted: list[int] = []
        self._sequence = 0  # the number of its sequence in the context
        width = int(llama_cpp.llama_model_n_embd_out(handle.model))
        self._width = width
        # The rows with which drafted tokens are read: the last token's, or one of each layer.
        self._own_rows = np.zeros((num_layers, width), dtype=np.float32)
        size = llama_cpp.llama_n_batch(handle.context)
        self._batch = TokenBatch(size, width)
        if facts.layers_read:
            # Rows of the target that libllama turns into rows of the head, or into entries.
            self._features = TokenBatch(size, self._target_rows.width, rows_alone=True)
        # Other graphs give wrong rows if only rows with logits are asked for.
        self._nextn.set_embeddings_nextn(handle.context, True, facts.has_output_rows_only)

    @property
    def readable(self) -> range:
        """Positions of tokens that it can read: the target's row one before each is kept.

        The text's first token needs no row.
        """
        begin = self._target_rows.first
        if begin > 0:
            begin += 1
        return range(begin, self._target_rows.end + 1)

    def pause(self, num_tokens: int) -> None:
        """Let the target leave out rows while the head reads nothing, for `num_tokens`."""
        self._target_rows.pause(num_tokens)

    @property
    def identity(self) -> str | None:
        """The head's file and settings, in words; None if the file's hash is unknown.

        Unlike `LlamaModel.identity` it names neither the build of libllama nor the processor.
        """
        if self.content is None:
            return None
        return f"{self.content} · {self._setting}"

    def sibling(self, number: int, target: LlamaModel) -> Self:
        """A view of this head for another text, with nothing cached.

        Args:
            number: The sequence of that text in the context.
            target: The target's view for the same text.
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

    def copy_state(self) -> HeadCopy:
        """A copy of the target's rows and of the cache; its num_cached counts no drafts."""
        num_read = self.num_cached - len(self._drafted)
        rows = self._target_rows.copy_rows()
        return HeadCopy(rows, self.begins_at, num_read, self._copy_entries())

    def restore_copy(self, other: HeadCopy, num_cached: int) -> None:
        """Put a copied state into the cache, for another text that begins with the same tokens.

        Args:
            other: The copy.
            num_cached: The tokens that the target has cached of the new text. Both texts begin
                with them.
        """
        self.read_from(0)
        self._target_rows.restore_copy(other.rows, num_cached)
        if other.entries is not None:
            if restore_entries(self.handle.context, self._sequence, other.entries):
                self.begins_at = other.begins_at
                self.num_cached = other.num_cached
            else:
                self._remove_from(-1)  # all entries
        # Also removes entries of drafted tokens, which the copy may contain.
        num_shared = max(num_cached - self.begins_at, 0)
        self._cut(min(num_shared, self.num_cached))

    def _copy_entries(self) -> NDArray[np.uint8] | None:
        """A copy of the cache entries, drafted tokens included; None if libllama fails."""
        return copy_entries(self.handle.context, self._sequence)

    def read_from(self, position: int) -> None:
        """Forget everything, and continue at that position of the text."""
        self.truncate(0)
        self.begins_at = position

    def decode(self, tokens: Sequence[int], num_logits: int) -> Logits:
        """Read tokens with the target's rows, or one drafted token with the head's own row.

        A token after the readable positions counts as drafted. Otherwise as `Model.decode`.
        Raises DecodeError or Interrupted; the cache is as before then, without drafted tokens.
        """
        self.handle.require_open()
        num_read_before = self.num_cached - len(self._drafted)
        try:
            if self._next_position < self.readable.stop:
                num_rows = self._read_text(tokens, num_logits)
            elif len(tokens) == 1:
                self._read_drafted(tokens)
                num_rows = 1
            else:
                raise DecodeError(f"{self._title} drafts one token at a time")
        except BaseException:
            self._cut(num_read_before)
            raise
        if num_logits == 0:
            return np.empty((0, self.vocab_size), dtype=np.float32)
        return self._last_logits(num_rows)[num_rows - num_logits :]

    def _read_text(self, tokens: Sequence[int], num_logits: int) -> int:
        """Read tokens of the text with the target's rows, in batches.

        Returns the number of rows of logits that libllama has then: see `_decode_batch`.
        """
        while len(tokens) > self._batch.size:
            # The last batch must have all tokens whose logits are asked for.
            size = min(self._batch.size, len(tokens) - num_logits)
            self._read_batch(tokens[:size], 0)
            tokens = tokens[size:]
        return self._read_batch(tokens, num_logits)

    def _read_batch(self, tokens: Sequence[int], num_logits: int) -> int:
        """Do `_read_text` for a single batch, with all layers."""
        count = len(tokens)
        position = self._next_position
        readable = self.readable
        is_readable = readable.start <= position and position + count <= readable.stop
        if self._drafted or not is_readable:
            raise DecodeError(
                f"{self._title} can read tokens {readable.start} to {readable.stop - 1}, "
                f"not {position} to {position + count - 1}"
            )
        self._take_rows(position, count)
        if num_logits == 0:
            num_padding = self._pad_rows(self._batch, count)
            padding = [tokens[-1]] * num_padding
            tokens = [*tokens, *padding]
        # The first layer comes last: it drafts first, from the row of its decode.
        for layer in reversed(range(1, self.num_layers)):
            self._decode_batch(tokens, position, 0, layer)
            self._remove_from(position)  # the next layer decodes at the same positions
        num_rows = self._decode_batch(tokens, position, num_logits, 0)
        if len(tokens) > count:
            self._remove_from(position + count - self._lag)
        if num_logits:
            self._own_rows[0] = self._row_of_last(count, num_logits)
        self.num_cached += count
        return num_rows

    def _pad_rows(self, batch: TokenBatch, count: int) -> int:
        """Repeat the last of a batch's `count` rows up to `read_size` rows.

        Returns the number of repeated rows, which is the number of tokens that pad the decode;
        0 if the context has no room for them. The caller cuts them from the cache afterwards.
        """
        num_padding = max(self.read_size - count, 0)
        if self._next_position + count + num_padding > self.context_length:
            return 0
        batch.rows[count : count + num_padding] = batch.rows[count - 1]
        return num_padding

    def _take_rows(self, position: int, count: int) -> None:
        """Put the target's rows for `count` tokens from a position on into the batch.

        Each token is read with the row one before its position; the text's first token has
        none, and gets zeros.
        """
        out = self._batch.rows[:count]
        if position == 0:
            out[0] = 0.0
            self._target_rows.copy_to(out[1:], 0)
        else:
            self._target_rows.copy_to(out, position - 1)

    def _read_drafted(self, tokens: Sequence[int]) -> None:
        """Read one drafted token with the head's own row, and keep the row for the next one.

        Args:
            tokens: The token.
        """
        position = self._draft_position()
        num_drafted = len(self._drafted)
        self._drafted += tokens
        self.num_cached += 1
        if self.num_layers == 1:
            self._batch.rows[0] = self._own_rows[0]
            self._decode_batch(tokens, position, 1, 0)
            self._own_rows[0] = self._row_of_last(1, 1)
            return
        # Layer n drafts the token after n drafted ones. It first has to read these, each with
        # the row of the layer that drafted it: they are not in this layer's own cache.
        first_position = position - num_drafted
        layer = num_drafted + 1
        self._remove_from(first_position)
        self._batch.rows[:layer] = self._own_rows[:layer]
        self._decode_batch(self._drafted, first_position, 1, layer)
        if layer + 1 < self.num_layers:
            self._own_rows[layer] = self._row_of_last(layer, 1)

    def _draft_position(self) -> int:
        """The position in the text at which the next drafted token is decoded."""
        return self._next_position

    @property
    def _next_position(self) -> int:
        """The position in the text after the last token that it has cached."""
        return self.begins_at + self.num_cached

    def _decode_batch(
        self,
        tokens: Sequence[int],
        position: int,
        num_logits: int,
        layer: int,
    ) -> int:
        """Decode tokens, whose rows are in the batch, with one of the layers.

        Returns the number of rows of logits that libllama has then: those of the last tokens.

        Args:
            tokens: The tokens.
            position: The position of the first one in the text.
            num_logits: Tokens at the end whose logits are needed.
            layer: The number of the MTP layer, from 0.
        """
        count = len(tokens)
        context = self.handle.context
        self._start_decode(count)
        if self.num_layers > 1:
            self._nextn.set_nextn_layer_offset(context, layer)
        batch = self._batch.filled(tokens, position - self._lag, num_logits, self._sequence)
        self._check_decoded(llama_cpp.llama_decode(context, batch), count, position)
        return num_logits

    def _feature_batch(self, num_rows: int, position: int, num_logits: int) -> Any:
        """The C batch with rows of the target alone, which are in `_features`.

        Args:
            num_rows: The number of rows.
            position: The position in the text of the first one's token.
            num_logits: Rows at the end that have an output.
        """
        no_tokens = [0] * num_rows
        first = position - self._lag
        return self._features.filled(no_tokens, first, num_logits, self._sequence)

    def _row_of_last(self, count: int, num_logits: int) -> Rows:
        """(width,) the head's row of the last decode's last token: a view until the next.

        Args:
            count: The tokens of that decode.
            num_logits: Those of them that have logits.
        """
        num_rows = count
        if self._has_output_rows_only:
            num_rows = num_logits
        last: Rows = self._last_rows(num_rows)[-1]
        return last

    def _last_logits(self, num_rows: int) -> Logits:
        """(num_rows, vocab) logits of the head's last decode: a view until the next one."""
        pointer = llama_cpp.llama_get_logits(self.handle.context)
        return np.ctypeslib.as_array(pointer, (num_rows, self.vocab_size))

    def _last_rows(self, count: int) -> Rows:
        """(count, width) the head's rows of its last decode: a view until the next one.

        Args:
            count: The number of rows that the decode has given.
        """
        rows = self._nextn.get_embeddings_nextn(self.handle.context)
        return np.ctypeslib.as_array(rows, (count, self._width))

    def truncate(self, num_cached: int) -> None:
        """Cut to the first num_cached tokens as `Model.truncate`; drafted ones always go."""
        num_cached = min(num_cached, self.num_cached - len(self._drafted))
        if num_cached < self.num_cached:
            self.handle.require_pointers()
            self._cut(num_cached)

    def _cut(self, num_cached: int) -> None:
        """Cut the cache to num_cached tokens, none of which is drafted."""
        self.num_cached = num_cached
        self._drafted.clear()
        self._remove_from(self._next_position - self._lag)

    def _remove_from(self, position: int) -> None:
        """Remove the cache entries from a position of the cache on; -1 removes all."""
        memory = self.handle.memory
        llama_cpp.llama_memory_seq_rm(memory, self._sequence, position, -1)

    def checkpoint(self) -> None:
        """Nothing to do: the cache can be cut anywhere."""

    def make_ready(self) -> None:
        """Prepare for an answer: cut drafted tokens, and take rows of the target again.

        Allows decodes again after `interrupt`.
        """
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
        """The position after the target's tokens; no position if the target has no row."""
        rows = self._target_rows
        if rows.first == rows.end:
            return range(rows.end, rows.end)
        return range(rows.end, rows.end + 1)

    def _draft_position(self) -> int:
        """The position of the last token that was not drafted."""
        return self._next_position - len(self._drafted) - 1

    def _copy_entries(self) -> None:
        """None: the target owns the entries."""

    def _remove_from(self, position: int) -> None:
        """Nothing: the target owns the entries."""


class EagleHead(LlamaHead):
    """An EAGLE-3 head (Li et al., arXiv 2503.01840, section 3): one layer.

    The inputs of three of the target's layers at a token are encoded into one row. The head's
    layer reads token x_p together with the encoded row of p - 1, and predicts x_(p+1). It reads
    drafted tokens with its own rows. The text's first token has no cache entry: each entry has
    the position of its row, one before that of its token. Rows are encoded only when they are
    read, so an idle head costs only a copy. Either all tokens of a decode have logits or none:
    libllama's logits would be wrong if only some had.
    """

    _lag = 1

    @property
    def readable(self) -> range:
        """Positions of tokens that it can read: the target's row one before each is kept."""
        return range(self._target_rows.first + 1, self._target_rows.end + 1)

    def _take_rows(self, position: int, count: int) -> None:
        """Encode the target's rows for `count` tokens from a position on, into the batch.

        The encoder's input is padded with the last row up to `read_size`.
        """
        rows = self._features.rows
        size = min(max(count, self.read_size), len(rows))
        self._target_rows.copy_to(rows[:count], position - 1)
        rows[count:size] = rows[count - 1]
        self._start_decode(size)
        batch = self._feature_batch(size, position, size)
        status = llama_cpp.llama_encode(self.handle.context, batch)
        self._check_decoded(status, count, position)
        encoded = self._last_rows(size)
        self._batch.rows[:count] = encoded[:count]

    def _decode_batch(
        self,
        tokens: Sequence[int],
        position: int,
        num_logits: int,
        layer: int,
    ) -> int:
        """Decode as an MTP head does, with logits of all tokens or of none."""
        if num_logits:
            num_logits = len(tokens)
        return super()._decode_batch(tokens, position, num_logits, layer)


class DflashHead(LlamaHead):
    """A DFlash head (arXiv 2602.06036), DSpark and DFlash2 included.

    For each token of the text the head reads one row, the inputs of some of the target's
    layers. libllama turns it into keys and values, and the head's cache has only these. A draft
    is one decode of a block: the text's last token, and a mask token for each further token.
    The block's cache entries are removed after the decode. See src/models/dflash.cpp and
    common/speculative.cpp of llama.cpp, whose driver takes the likeliest token of each row of
    logits; here `row` gives the logits, and the proposer draws the tokens.

    Implements `heads.BlockModel`. num_weight_bytes counts the bytes read to draft one block.
    """

    is_block = True
    """One decode gives the rows of a whole draft."""

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
        self.first_row = facts.block.first_row  # the first row of a block that drafts a token
        self.max_draft_tokens = self._block.most_tokens
        self._batch = TokenBatch(self._batch.size)
        # The last block's logits, and its output rows: a view of each, from first_row on.
        self._logits: Logits = np.empty((0, self.vocab_size), dtype=np.float32)
        self._block_rows: Rows = np.empty((0, self._width), dtype=np.float32)
        self._scores: Logits = np.empty(self.vocab_size, dtype=np.float32)  # of DFlash2's `row`
        llama_cpp.llama_set_causal_attn(handle.context, self._block.is_causal)

    def sibling(self, number: int, target: LlamaModel) -> Self:
        """A view of this head for another text. Arguments as in `LlamaHead.sibling`."""
        other = super().sibling(number, target)
        other._scores = self._scores.copy()
        return other

    @property
    def readable(self) -> range:
        """Positions with a row of the target, and the next one, where a block can begin."""
        rows = self._target_rows
        if rows.first == rows.end:
            return range(rows.end, rows.end)
        return range(rows.first, rows.end + 1)

    def decode_block(self, tokens: Sequence[int], num_tokens: int) -> None:
        """Read all of the tokens but the last, and decode a block that begins with the last.

        The block's logits and rows are kept for `row` and `confidence`.

        Args:
            tokens: Tokens of the text that are not read yet.
            num_tokens: Tokens to draft.

        Raises:
            DecodeError: If libllama refuses the block.
            Interrupted: If it was interrupted.
        """
        self.handle.require_open()
        size = num_tokens + self.first_row
        masks = [self._block.mask] * (size - 1)
        block = [tokens[-1], *masks]
        try:
            self._read_rows(len(tokens) - 1)
            self._decode_batch(block, self._next_position, size, 0)
        finally:
            self._cut(self.num_cached)
        first = self.first_row
        logits = self._last_logits(size)
        self._logits = logits[first:]
        if self._block.num_candidates or self._block.has_confidences:
            rows = self._last_rows(size)
            self._block_rows = rows[first:]

    def _read_rows(self, count: int) -> None:
        """Read the next `count` tokens of the text: the target's rows of them, in batches."""
        num_left = count
        while num_left > 0:
            size = min(num_left, self._features.size)
            position = self._next_position
            if position < self._target_rows.first or position + size > self._target_rows.end:
                raise DecodeError(f"{self._title} has no rows of tokens from {position} on")
            self._target_rows.copy_to(self._features.rows[:size], position)
            num_padding = self._pad_rows(self._features, size)
            num_rows = size + num_padding
            self._start_decode(num_rows)
            batch = self._feature_batch(num_rows, position, 0)
            status = llama_cpp.llama_decode(self.handle.context, batch)
            self._check_decoded(status, size, position)
            self.num_cached += size
            num_left -= size
            if num_padding:
                self._remove_from(position + size)

    def row(self, drafted: Sequence[int]) -> Logits:
        """(vocab,) logits of the token after `drafted`, the tokens drafted from this block.

        A view that may be written to, valid until the next call. With DFlash2 they are the
        selector's scores of the token's candidates, given the token before it, and -inf for all
        other tokens.
        """
        index = len(drafted)
        count = self._block.num_candidates
        if not count:
            row: Logits = self._logits[index]
            return row
        # A row of the block has the ids of `count` candidates, and then, for each candidate of
        # the token before, the scores of these candidates.
        previous = 0  # any: after the text's last token these scores are the same for each
        if drafted:
            candidates = self._candidates(index - 1).tolist()
            previous = candidates.index(drafted[-1])
        begin = count * (1 + previous)
        self._scores.fill(-np.inf)
        self._scores[self._candidates(index)] = self._block_rows[index, begin : begin + count]
        return self._scores

    def _candidates(self, index: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The ids of the candidates of the draft's token at an index."""
        return self._block_rows[index, : self._block.num_candidates].astype(np.int64)

    def confidence(self, index: int) -> float | None:
        """The probability that the draft's token at an index is right; None if not known."""
        if not self._block.has_confidences:
            return None
        return float(self._block_rows[index, 0])


_CLASSES = {
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
    """Open the head in a file of its own, or in the file of its target.

    Raises what `LlamaModel.open` does, and EngineError if libllama lacks a function that the
    head needs.

    Args:
        target: The target, which keeps its hidden rows from now on.
        path: The head's own file; None for a head in the file of a target opened `with_head`.
        options: The head's options.
        facts: The facts of the head, checked by `gguf_file.head_facts`; not of Medusa.
        progress: Called with the loaded share, 0 … 1.
    """
    require_nextn_functions(reads_layers=bool(facts.layers_read))
    if path is None:
        context = _new_context(target, target.handle.model, options, facts)
        handle = Handle(context, target.name, weights_owner=target.handle)
    else:

        def load(watch: LoadWatch) -> Handle:
            # Without with_head libllama leaves out the head's layers, and then the first decode
            # ends the process.
            load_options = replace(options, with_head=True)
            with loaded_weights(path, load_options, watch) as model:
                context = _new_context(target, model, options, facts)
            return Handle(context, path.name)

        handle = open_watched(progress, load)
    head_class = _CLASSES.get(facts.graph, LlamaHead)
    with handle.closed_on_failure():
        return head_class(handle, target, facts, options)


def _new_context(
    target: LlamaModel,
    model: int | None,
    options: LlamaOptions,
    facts: HeadFacts,
) -> int:
    """libllama's pointer to a new context of a head. model: libllama's pointer to its model."""
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
