"""Finds which decodes of a model are exact, by decoding the same tokens in several sizes.

The *size* of a decode is its number of tokens. Sizes are exact if their rows are equal to the
bit to those of single tokens, whichever sizes a text is decoded in.

A decode of several tokens uses other kernels than a decode of one token, and kernels add in
different orders. The choice of kernels depends on the processor, the types of weights and
caches, and the numbers of tokens, threads and cached tokens. So a few of each are tried on the
loaded model, in a context of its own. Whole rows of logits are compared, and also the hidden
rows before the output layer, since rounding in that layer can hide small differences.

If not all sizes are exact, a class of sizes is searched for (`Exactness`): from a smallest
size, to which smaller decodes are padded, up to a largest size.
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
_NUM_COMPARED = 9  # tokens after the cached ones whose rows are compared
# The sizes that are tried. Kernels change at them: prompts have other tiles from 64 tokens on.
_SIZES: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8, 9, 17, 64)
# The possible smallest sizes of a class. The first class whose largest size is large enough is
# taken.
_SMALLEST = (1, 2, 3, 4)
_LARGE_ENOUGH = 3
# Numbers of threads that are tried besides the usual one, and the tokens after the cached ones
# whose rows are then compared.
_THREADS = (1, 2, 3)
_NUM_THREAD_ROWS = 3
_JOINT_SIZES = (1, 2, 4, 8)  # tokens of each text in joint decodes
_NUM_TIMED = 8  # decodes of a size, the fastest of which counts


def probe_exactness(handle: Handle, options: LlamaOptions) -> Exactness:
    """Find out which decodes of a model are exact.

    Args:
        handle: The model's handle.
        options: The options with which it was opened.

    Returns:
        The class of all sizes if all are exact; else the best class. If there is no class, an
        `Exactness` with the reason.

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
    """A context for the probe, which has a made-up text in each of its sequences.

    Rows are compared as bytes: for each token its hidden row and its logits.

    Args:
        handle: The model's handle.
        options: The options with which it was opened.
    """

    def __init__(self, handle: Handle, options: LlamaOptions) -> None:
        model = handle.model
        assert model is not None
        most_tokens = _LONG + _SIZES[-1]
        if llama_cpp.llama_model_n_ctx_train(model) < most_tokens:
            raise DecodeError("its context is too short for a probe")
        params = context_params(options, most_tokens)
        most_joint_rows = _JOINT_SIZES[-1] * options.num_sequences
        params.n_outputs_max = max(_SIZES[-1], most_joint_rows)
        self._threads: int = params.n_threads
        self._width: int = llama_cpp.llama_model_n_embd_out(model)
        vocabulary = llama_cpp.llama_model_get_vocab(model)
        self._vocab_size: int = llama_cpp.llama_vocab_n_tokens(vocabulary)
        is_recurrent = llama_cpp.llama_model_is_recurrent(model)
        is_hybrid = llama_cpp.llama_model_is_hybrid(model)
        self._can_cut = not (is_recurrent or is_hybrid)  # whether tokens can be removed
        self._num_sequences = options.num_sequences
        self.context = new_context(model, handle.name, params)
        # Adapters add products, whose kernels have to be tried, too: not with a scale of 0,
        # which leaves them out.
        set_scales(self.context, handle.adapters, (USUAL_SCALE,) * len(handle.adapters))
        self._memory = llama_cpp.llama_get_memory(self.context)
        self._batch = TokenBatch(llama_cpp.llama_n_batch(self.context))

    def run(self) -> Exactness:
        """The result of `probe_exactness`."""
        largest, reason = self._largest_size(Exactness())
        if largest < _SIZES[-1]:
            return self._best_class(reason)
        joined = self._num_sequences > 1 and self._joins_exactly()
        return Exactness(
            largest_step=largest,
            all_sizes=True,
            joined=joined,
            reason="",
        )

    def _best_class(self, reason: str) -> Exactness:
        """The first class whose largest size is large enough; else the one with the largest.

        Args:
            reason: Why not all sizes are exact. The result has it if there is no class.
        """
        best = Exactness(reason=reason)
        candidates: tuple[int, ...] = _SMALLEST
        if not self._can_cut:
            # Padding cannot be removed from a recurrent state, so nothing may be padded.
            candidates = _SMALLEST[:1]
        for smallest in candidates:
            if best.largest_step >= _LARGE_ENOUGH:
                break
            exactness = Exactness(
                smallest_step=smallest,
                largest_step=_SIZES[-1],
                reason="",
            )
            largest, _ = self._largest_size(exactness)
            if largest >= smallest and largest > best.largest_step:
                best = replace(exactness, largest_step=largest)
        if best.smallest_step == 1:  # nothing is padded, so there is no cost to measure
            return best
        self._fill(0, _SHORT)
        padded_s = []
        single_s = []
        for _ in range(_NUM_TIMED):
            padded_s.append(self._decode_s(best.smallest_step))
            single_s.append(self._decode_s(1))
        cost = min(padded_s) / min(single_s)
        # Padding saves nothing, so less than 1 is noise.
        return replace(best, plain_cost=max(round(cost, 2), 1.0))

    def _largest_size(self, exactness: Exactness) -> tuple[int, str]:
        """The largest size up to which all sizes have the rows of single tokens.

        Args:
            exactness: The class of sizes to keep to: decodes below its smallest size are padded
                to it, those of single tokens, too.

        Returns:
            The size: 1 if no larger one is exact, or if another number of threads gives other
            rows. And why no larger one is exact, "" if all sizes are.
        """
        sizes = _SIZES
        reason = ""
        usual_threads = self._threads
        for length in (_LONG, _SHORT):
            self._fill(0, length)
            single_rows = self._text_rows(0, length, exactness=exactness)
            for num_threads in _THREADS:
                if num_threads == usual_threads:
                    continue
                llama_cpp.llama_set_n_threads(self.context, num_threads, num_threads)
                rows = self._text_rows(0, length, _NUM_THREAD_ROWS, exactness=exactness)
                llama_cpp.llama_set_n_threads(self.context, usual_threads, usual_threads)
                if rows != single_rows[:_NUM_THREAD_ROWS]:
                    return 1, f"{num_threads} threads give other rows than {usual_threads}"
            for index, size in enumerate(sizes):
                rows = self._text_rows(
                    0,
                    length,
                    size=size,
                    exactness=exactness,
                )
                if rows != single_rows:
                    reason = (
                        f"rows of a decode of {size} tokens differ from those of single ones"
                    )
                    sizes = sizes[:index]
                    break
        return max(sizes, default=1), reason

    def _decode_s(self, size: int) -> float:
        """Seconds of a decode of that size after the short text."""
        started = time.perf_counter()
        self._joint_rows([(0, _SHORT)], size)
        return time.perf_counter() - started

    def _joins_exactly(self) -> bool:
        """Whether joint decodes with a text in each sequence have the rows of single tokens."""
        texts = []
        for sequence in range(self._num_sequences):
            length = _LONG
            if sequence % 2 == 1:  # they alternate
                length = _SHORT
            self._fill(sequence, length)
            texts.append((sequence, length))
        rows_by_text = []
        for sequence, length in texts:
            rows = self._text_rows(
                sequence,
                length,
                _JOINT_SIZES[-1],
                exactness=Exactness(),
            )
            rows_by_text.append(rows)
        for size in _JOINT_SIZES:
            expected = []
            for rows in rows_by_text:
                expected += rows[:size]
            if self._joint_rows(texts, size) != expected:
                return False
        return True

    def _text_rows(
        self,
        sequence: int,
        length: int,
        count: int = _NUM_COMPARED,
        *,
        size: int = 1,
        exactness: Exactness,
    ) -> list[bytes]:
        """Rows of the tokens of a text after its first `length` tokens.

        Args:
            sequence: The text's sequence, in which the first tokens are cached.
            length: The number of these tokens.
            count: Tokens whose rows are returned.
            size: Tokens of each decode.
            exactness: The class of sizes in which they are decoded; smaller decodes are padded.
        """
        self._cut(sequence, length)
        rows = list[bytes]()
        begin = length
        while begin < length + count:
            end = exactness.end_of_piece(begin, begin + size)
            part = self._part(sequence, begin, end - begin)
            num_padding = max(exactness.smallest_step - len(part.tokens), 0)
            rows += self._decode([part._replace(num_padding=num_padding)])
            if num_padding:
                llama_cpp.llama_memory_seq_rm(self._memory, sequence, end, -1)
            begin = end
        return rows[:count]

    def _joint_rows(self, texts: list[tuple[int, int]], size: int) -> list[bytes]:
        """Rows of a joint decode of several texts.

        Args:
            texts: The sequence of each text, and the number of its first tokens that stay
                cached.
            size: Tokens of each text in the decode.
        """
        parts = []
        for sequence, length in texts:
            self._cut(sequence, length)
            parts.append(self._part(sequence, length, size))
        return self._decode(parts)

    def _fill(self, sequence: int, length: int) -> None:
        """Put the first `length` tokens of its text, and no others, into a sequence."""
        llama_cpp.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        part = self._part(sequence, 0, length)
        self._decode([part._replace(num_logits=0)])

    def _cut(self, sequence: int, length: int) -> None:
        """Cut a sequence to its first `length` tokens, or decode these again if that fails."""
        is_cut = False
        if self._can_cut:
            is_cut = llama_cpp.llama_memory_seq_rm(self._memory, sequence, length, -1)
        if not is_cut:
            self._fill(sequence, length)

    def _part(self, sequence: int, position: int, count: int) -> TextPart:
        """`count` tokens of a sequence's made-up text from a position on, all with logits."""
        tokens = []
        for index in range(position, position + count):
            # Primes spread the tokens over the vocabulary; each sequence has another text.
            number = 7919 * index + 101 * sequence + 13
            tokens.append(number % self._vocab_size)
        return TextPart(sequence, position, tokens, count)

    def _decode(self, parts: list[TextPart]) -> list[bytes]:
        """Decode the parts together.

        Returns the rows of the last num_logits tokens of each part, in order.
        """
        context = self.context
        count = sum(part.num_logits for part in parts)
        llama_cpp.llama_set_embeddings(context, count > 0)
        status = llama_cpp.llama_decode(context, self._batch.joined(parts))
        if status != 0:
            raise DecodeError(f"a probe of its decodes failed (status {status})")
        num_hidden_bytes = 4 * self._width  # of float32
        num_logit_bytes = 4 * self._vocab_size
        rows = []
        for index in range(count):
            hidden = llama_cpp.llama_get_embeddings_ith(context, index)
            logits = llama_cpp.llama_get_logits_ith(context, index)
            row = ctypes.string_at(hidden, num_hidden_bytes)
            row += ctypes.string_at(logits, num_logit_bytes)
            rows.append(row)
        return rows
