"""Finds which decodes of a model are exact, by decoding the same tokens in several sizes.

A decode of several tokens uses other kernels than a decode of one token, and kernels add in
different orders. The choice of kernels depends on the processor, the types of weights and
caches, and the numbers of tokens, threads and cached tokens. So a few of each are tried on the
loaded model, in a context of its own. Whole rows of logits are compared, and also the rows
before the output layer, whose rounding hides small differences.

If some sizes have other rows than single tokens, classes of sizes are searched for: texts are
decoded in steps of 1, 2, 3 … tokens as an engine would, short steps padded.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import replace

from localspec.errors import DecodeError
from localspec.exactness import Exactness
from localspec.gguf_file.adapter import USUAL_SCALE
from localspec.llama.batch import TextPart, TokenBatch
from localspec.llama.handle import Handle, set_scales
from localspec.llama.library import llama_cpp
from localspec.llama.model_options import LlamaOptions
from localspec.llama.opening import context_params, new_context

# Cached tokens before the compared decodes. Attention of one token is split among threads from
# 512 cells on, counted in blocks of 256; the decodes after the longer text reach that number.
_SHORT = 40
_LONG = 250
_COMPARED = 9  # rows that are compared after each of them
# Tokens of a step at which kernels change: prompts have other tiles from 64 tokens on.
_STEPS: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8, 9, 17, 64)
# The possible smallest sizes of a class. The first class whose largest size is large enough is
# taken.
_SMALLEST = (1, 2, 3, 4)
_LARGE_ENOUGH = 3
_JOINT_SIZES = (1, 2, 4, 8)  # tokens of each text in joint decodes
_NUM_TIMED = 8  # decodes of a size, the fastest of which counts


def probe_exactness(handle: Handle, options: LlamaOptions) -> Exactness:
    """Find out which decodes of a model are exact.

    Args:
        handle: The model.
        options: The options with which it was opened.

    Raises:
        DecodeError: If libllama cannot decode, or the context is too short for a probe. Opening
            a context raises further errors.
    """
    handle.require_open()
    probe = _ExactProbe(handle, options)
    try:
        return probe.run()
    finally:
        llama_cpp.llama_free(probe.context)


class _ExactProbe:
    """A context that has a text in each of its sequences."""

    def __init__(self, handle: Handle, options: LlamaOptions) -> None:
        model = handle.model
        assert model is not None
        most = _LONG + _STEPS[-1]
        if llama_cpp.llama_model_n_ctx_train(model) < most:
            raise DecodeError("its context is too short for a probe")
        params = context_params(options, most)
        params.n_outputs_max = max(_STEPS[-1], _JOINT_SIZES[-1] * options.num_sequences)
        self._threads: int = params.n_threads
        self._width: int = llama_cpp.llama_model_n_embd_out(model)
        vocabulary = llama_cpp.llama_model_get_vocab(model)
        self._vocab_size: int = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self._can_cut = not (
            llama_cpp.llama_model_is_recurrent(model) or llama_cpp.llama_model_is_hybrid(model)
        )
        self._num_sequences = options.num_sequences
        self.context = new_context(model, handle.name, params)
        # With all adapters: a scale of 0 leaves out the products of an adapter.
        set_scales(self.context, handle.adapters, (USUAL_SCALE,) * len(handle.adapters))
        self._memory = llama_cpp.llama_get_memory(self.context)
        self._batch = TokenBatch(llama_cpp.llama_n_batch(self.context))

    def run(self) -> Exactness:
        """Find the class of all sizes if it is exact, or else the best class."""
        largest, reason = self._largest_step(Exactness())
        if largest < _STEPS[-1]:
            return self._best_class(reason)
        joined = self._num_sequences > 1 and self._joins_exactly()
        return Exactness(
            largest_step=largest,
            all_sizes=True,
            joined=joined,
            reason="",
        )

    def _best_class(self, reason: str) -> Exactness:
        """The class with the smallest sizes, if it is large enough; else the largest.

        Args:
            reason: Why some sizes have other rows.
        """
        best = Exactness(reason=reason)
        candidates: tuple[int, ...] = _SMALLEST
        if not self._can_cut:
            # A recurrent state would have to take back padding, and then refused tokens.
            candidates = _SMALLEST[:1]
        for smallest in candidates:
            if best.largest_step >= _LARGE_ENOUGH:
                break
            kept = Exactness(
                smallest_step=smallest,
                largest_step=_STEPS[-1],
                reason="",
            )
            largest, _ = self._largest_step(kept)
            if largest >= max(smallest, best.largest_step + 1):
                best = replace(kept, largest_step=largest)
        if best.smallest_step == 1:
            return best
        self._fill(0, _SHORT)
        padded_s = []
        single_s = []
        for _ in range(_NUM_TIMED):
            padded_s.append(self._seconds(best.smallest_step))
            single_s.append(self._seconds(1))
        cost = min(padded_s) / min(single_s)
        return replace(best, plain_cost=max(round(cost, 2), 1.0))

    def _largest_step(self, kept: Exactness) -> tuple[int, str]:
        """The largest step up to which all sizes have the rows of plain decoding.

        Args:
            kept: The class within which all tokens are decoded.

        Returns:
            Its tokens, and why larger steps differ.
        """
        steps = _STEPS
        reason = ""
        usual = self._threads
        for length in (_LONG, _SHORT):
            self._fill(0, length)
            plain = self._text(0, length, kept=kept)
            for count in {1, 2, 3} - {usual}:
                llama_cpp.llama_set_n_threads(self.context, count, count)
                rows = self._text(0, length, 3, kept=kept)
                llama_cpp.llama_set_n_threads(self.context, usual, usual)
                if rows != plain[:3]:
                    return 1, f"{count} threads give other rows than {usual}"
            for index, step in enumerate(steps):
                if (
                    self._text(
                        0,
                        length,
                        step=step,
                        kept=kept,
                    )
                    != plain
                ):
                    reason = (
                        f"rows of a decode of {step} tokens differ from those of single ones"
                    )
                    steps = steps[:index]
                    break
        return max(steps, default=1), reason

    def _seconds(self, size: int) -> float:
        """The time of a decode of that size after the short text."""
        started = time.perf_counter()
        self._rows([(0, _SHORT)], size)
        return time.perf_counter() - started

    def _joins_exactly(self) -> bool:
        """Whether decodes of a text in each sequence have the rows of single tokens."""
        texts = []
        for number in range(self._num_sequences):
            length = (_LONG, _SHORT)[number % 2]
            self._fill(number, length)
            texts.append((number, length))
        singles = []
        for number, length in texts:
            singles.append(
                self._text(
                    number,
                    length,
                    _JOINT_SIZES[-1],
                    kept=Exactness(),
                )
            )
        for size in _JOINT_SIZES:
            expected = []
            for rows in singles:
                expected += rows[:size]
            if self._rows(texts, size) != expected:
                return False
        return True

    def _text(
        self,
        sequence: int,
        length: int,
        count: int = _COMPARED,
        *,
        step: int = 1,
        kept: Exactness,
    ) -> list[bytes]:
        """Rows of tokens after a sequence's first tokens.

        Args:
            sequence: The sequence.
            length: Its first tokens, which are cached.
            count: Tokens whose rows are returned.
            step: Tokens of a decode.
            kept: The class within which the tokens are decoded.
        """
        self._cut(sequence, length)
        rows = list[bytes]()
        begin = length
        while begin < length + count:
            end = kept.end_of_piece(begin, begin + step)
            part = self._part(sequence, begin, end - begin)
            num_padding = max(kept.smallest_step - len(part.tokens), 0)
            rows += self._decoded([part._replace(num_padding=num_padding)])
            if num_padding:
                llama_cpp.llama_memory_seq_rm(self._memory, sequence, end, -1)
            begin = end
        return rows[:count]

    def _rows(self, texts: list[tuple[int, int]], size: int) -> list[bytes]:
        """Rows of a joint decode.

        Args:
            texts: The sequence and the cached length of each text.
            size: Tokens of each text in the decode.
        """
        parts = []
        for sequence, length in texts:
            self._cut(sequence, length)
            parts.append(self._part(sequence, length, size))
        return self._decoded(parts)

    def _fill(self, sequence: int, length: int) -> None:
        """Fill a sequence with its first `length` tokens."""
        llama_cpp.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        self._decoded([self._part(sequence, 0, length)._replace(num_logits=0)])

    def _cut(self, sequence: int, length: int) -> None:
        """Cut a sequence to its first tokens. A recurrent state has to be computed again."""
        memory = self._memory
        if not (self._can_cut and llama_cpp.llama_memory_seq_rm(memory, sequence, length, -1)):
            self._fill(sequence, length)

    def _part(self, sequence: int, position: int, count: int) -> TextPart:
        """Tokens of a sequence's text from a position on."""
        tokens = []
        for place in range(position, position + count):
            tokens.append((7919 * place + 13 + 101 * sequence) % self._vocab_size)
        return TextPart(sequence, position, tokens, count)

    def _decoded(self, parts: list[TextPart]) -> list[bytes]:
        """Decode the parts together; the rows of their last num_logits tokens."""
        context = self.context
        count = sum(part.num_logits for part in parts)
        llama_cpp.llama_set_embeddings(context, count > 0)
        status = llama_cpp.llama_decode(context, self._batch.joined(parts))
        if status != 0:
            raise DecodeError(f"a probe of its decodes failed (status {status})")
        rows = []
        for index in range(count):
            hidden = llama_cpp.llama_get_embeddings_ith(context, index)
            logits = llama_cpp.llama_get_logits_ith(context, index)
            row = ctypes.string_at(hidden, 4 * self._width)
            row += ctypes.string_at(logits, 4 * self._vocab_size)
            rows.append(row)
        return rows
