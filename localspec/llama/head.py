"""An MTP head of libllama: a context beside a target's, which reads its hidden rows.

The head reads token x_p together with the target's row at p - 1, and predicts x_(p+1)
(DeepSeek-V3, arXiv 2412.19437, section 2.2). If the target has not reached p - 1 yet, since
the token there was drafted, the head's own row is taken. llama.cpp's driver decodes twice in
each round; here what was accepted is read in the decode that drafts the first token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from localspec.errors import DecodeError, Interrupted
from localspec.gguf_file.head import HeadFacts
from localspec.llama.batch import TokenBatch
from localspec.llama.handle import Handle
from localspec.llama.hidden_rows import Rows
from localspec.llama.library import complaints, llama_cpp
from localspec.llama.model import LlamaModel
from localspec.llama.options import LlamaOptions
from localspec.llama.quirks.nextn import require_nextn_functions
from localspec.llama.thread_count import ThreadCount
from localspec.sampling.distribution import Logits


class LlamaHead:
    """One trained head and its cache, which holds a part of the target's text.

    Implements `heads.HeadModel`. Made of `num_layers` MTP layers: if there are several,
    each drafts one token, and each reads the whole text (Step 3.5). begins_at: position in
    the text of what it read first. name: of the file that it is in. num_weight_bytes: that a
    decode of a token reads.
    """

    _lag = 0  # of an entry's position in its cache behind that of its token in the text

    def __init__(
        self,
        handle: Handle,
        name: str,
        target: LlamaModel,
        facts: HeadFacts,
        options: LlamaOptions,
    ) -> None:
        self._nextn = require_nextn_functions(reads_layers=bool(facts.layers_read))
        self.handle = handle
        self._target_rows = target.keep_rows(facts.layers_read)
        self._threads = ThreadCount(llama_cpp, handle)
        self._setting = options.summary
        self._num_layers = num_layers = facts.num_chained
        self._is_cropped = facts.is_cropped
        self.name = name
        self.content: str | None = None  # see `LlamaModel.content`
        self.vocab_size = target.vocab_size
        self.context_length = target.context_length
        self.max_outputs = options.max_outputs
        self.num_weight_bytes = facts.num_read_bytes
        self.max_rollback = target.context_length
        self.max_draft_tokens = num_layers if num_layers > 1 else target.context_length
        self.begins_at = 0
        self.num_cached = 0
        self._drafted: list[int] = []  # what was read last, with rows of its own
        width = self._width = int(llama_cpp.llama_model_n_embd_out(handle.model))
        self._own_rows = np.zeros((num_layers, width), dtype=np.float32)
        self._batch = TokenBatch(llama_cpp, llama_cpp.llama_n_batch(handle.context), width)
        # Masked to the rows of logits, what is not cropped there gives wrong ones.
        self._nextn.set_embeddings_nextn(handle.context, True, facts.is_cropped)

    @property
    def readable(self) -> range:
        """Positions at which it can read: the target's row before each of them is known."""
        first = self._target_rows.first
        return range(0 if first == 0 else first + 1, self._target_rows.end + 1)

    @property
    def identity(self) -> str | None:
        """See `LlamaModel.identity`; what it says of this machine is not repeated."""
        return None if self.content is None else f"{self.content} · {self._setting}"

    @property
    def num_threads(self) -> int:
        return self._threads.of_steps

    @num_threads.setter
    def num_threads(self, count: int) -> None:
        self._threads.use(count)

    def read_from(self, position: int) -> None:
        """Forget everything, and go on at that position of the text."""
        self.truncate(0)
        self.begins_at = position

    def decode(self, tokens: Sequence[int], num_logits: int) -> Logits:
        """See `Model.decode`. Beyond `readable` it takes one token at a time.

        Raises DecodeError or Interrupted.
        """
        self.handle.require_open()
        before = self.num_cached - len(self._drafted)
        try:
            if self.begins_at + self.num_cached < self.readable.stop:
                num_rows = self._read(tokens, num_logits)
            elif len(tokens) == 1:
                self._draft(tokens)
                num_rows = 1
            else:
                raise DecodeError(f"the head of {self.name} drafts a token at a time")
        except BaseException:
            self._cut(before)
            raise
        if num_logits == 0:
            return np.empty((0, self.vocab_size), dtype=np.float32)
        rows = llama_cpp.llama_get_logits(self.handle.context)
        all_rows: Logits = np.ctypeslib.as_array(rows, (num_rows, self.vocab_size))
        return all_rows[num_rows - num_logits :]

    def _read(self, tokens: Sequence[int], num_logits: int) -> int:
        """Tokens of the text, with the target's rows. Returns how many rows of logits came."""
        while len(tokens) > self._batch.size:
            size = min(self._batch.size, len(tokens) - num_logits)
            self._read_batch(tokens[:size], 0)
            tokens = tokens[size:]
        return self._read_batch(tokens, num_logits)

    def _read_batch(self, tokens: Sequence[int], num_logits: int) -> int:
        count, position = len(tokens), self.begins_at + self.num_cached
        readable = self.readable
        if self._drafted or position < readable.start or position + count > readable.stop:
            raise DecodeError(
                f"the head of {self.name} can read tokens {readable.start} to "
                f"{readable.stop - 1}, not {position} to {position + count - 1}"
            )
        self._take_rows(position, count)
        # The first layer drafts first, so it comes last.
        for layer in reversed(range(1, self._num_layers)):
            self._decode_batch(tokens, position, 0, layer)
            llama_cpp.llama_memory_seq_rm(self.handle.memory, 0, position, -1)
        num_rows = self._decode_batch(tokens, position, num_logits, 0)
        if num_logits:
            self._own_rows[0] = self._row_of_last(count, num_logits)
        self.num_cached += count
        return num_rows

    def _take_rows(self, position: int, count: int) -> None:
        """Put the rows in front of so many tokens, from a position on, into the batch."""
        out = self._batch.rows[:count]
        if position == 0:
            out[0] = 0.0
            self._target_rows.copy_to(out[1:], 0)
        else:
            self._target_rows.copy_to(out, position - 1)

    def _draft(self, tokens: Sequence[int]) -> None:
        """One token that was drafted, with the row that its draft came of."""
        if len(tokens) > 1:
            raise DecodeError(
                f"the head of {self.name} is to draft after {len(tokens)} tokens at once"
            )
        num_drafted = len(self._drafted)
        self._drafted += tokens
        self.num_cached += 1
        position = self.begins_at + self.num_cached - 1
        if self._num_layers == 1:
            self._batch.rows[0] = self._own_rows[0]
            self._decode_batch(tokens, position, 1, 0)
            self._own_rows[0] = self._row_of_last(1, 1)
            return
        # Each layer has a cache of its own, and this one has none of the drafted tokens.
        first, layer = position - num_drafted, num_drafted + 1
        llama_cpp.llama_memory_seq_rm(self.handle.memory, 0, first, -1)
        self._batch.rows[:layer] = self._own_rows[:layer]
        self._decode_batch(self._drafted, first, 1, layer)
        if layer + 1 < self._num_layers:
            self._own_rows[layer] = self._row_of_last(layer, 1)

    def _decode_batch(
        self, tokens: Sequence[int], position: int, num_logits: int, layer: int
    ) -> int:
        """Decode with one of the layers. Returns how many rows of logits came."""
        if self.handle.is_interrupted:
            raise Interrupted(f"a decode of the head of {self.name} was cancelled")
        count, context = len(tokens), self.handle.context
        if self._num_layers > 1:
            self._nextn.set_nextn_layer_offset(context, layer)
        self._threads.get_ready(count)
        batch = self._batch.filled(tokens, position - self._lag, num_logits)
        self._check_status(llama_cpp.llama_decode(context, batch), count, position)
        return num_logits

    def _check_status(self, status: int, count: int, position: int) -> None:
        if status == 2:
            raise Interrupted(f"a decode of the head of {self.name} was cancelled")
        if status != 0:
            raise DecodeError(
                f"libllama could not decode {count} tokens after {position} with the head of "
                f"{self.name} (status {status}){complaints.because()}",
                "Out of memory? Try a smaller context or fewer GPU layers.",
            )

    def _row_of_last(self, count: int, num_logits: int) -> Rows:
        """The head's own row at the last of count tokens; a view, valid until the next."""
        last: Rows = self._given_rows(num_logits if self._is_cropped else count)[-1]
        return last

    def _given_rows(self, count: int) -> Rows:
        rows = self._nextn.get_embeddings_nextn(self.handle.context)
        return np.ctypeslib.as_array(rows, (count, self._width))

    def truncate(self, num_cached: int) -> None:
        """See `Model.truncate`: what it read with rows of its own goes in any case."""
        num_cached = min(num_cached, self.num_cached - len(self._drafted))
        if num_cached < self.num_cached:
            self.handle.require_pointers()
            self._cut(num_cached)

    def _cut(self, num_cached: int) -> None:
        self.num_cached = num_cached
        self._drafted.clear()
        begin = self.begins_at + self.num_cached - self._lag
        llama_cpp.llama_memory_seq_rm(self.handle.memory, 0, begin, -1)

    def checkpoint(self) -> None:
        """See `Model.checkpoint`: nothing to do."""

    def require_open(self) -> None:
        """Raise EngineError if it was freed, or forked."""
        self.handle.require_open()

    def begin(self) -> None:
        """Allow decodes again after `interrupt`; libllama has what is thought to be cached."""
        self.handle.require_open()
        self.handle.allow()
        self._cut(self.num_cached - len(self._drafted))

    def interrupt(self) -> None:
        """End a running decode, and refuse new ones until `begin`. From any thread."""
        self.handle.interrupt()

    def close(self) -> None:
        """Free it, before its target. Idempotent."""
        self.handle.close()


class AssistantHead(LlamaHead):
    """A head without a cache, as Gemma 4's: it attends with its target's keys and values.

    It drafts behind the last token that its target has cached.

    All tokens of a draft are decoded at one position: that is how it was trained, see
    src/models/gemma4-assistant.cpp and common/speculative.cpp of llama.cpp.
    """

    @property
    def readable(self) -> range:
        """The position behind the target's tokens, if there is any."""
        rows = self._target_rows
        return range(rows.end, rows.end + (rows.end > rows.first))

    def _draft(self, tokens: Sequence[int]) -> None:
        position = self.begins_at + self.num_cached - len(self._drafted) - 1
        self._drafted += tokens
        self.num_cached += 1
        self._batch.rows[0] = self._own_rows[0]
        self._decode_batch(tokens, position, 1, 0)
        self._own_rows[0] = self._row_of_last(1, 1)

    def _cut(self, num_cached: int) -> None:
        # The cells are the target's.
        self.num_cached = num_cached
        self._drafted.clear()
