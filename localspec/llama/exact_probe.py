"""Finds which decodes of a model are exact, by decoding the same tokens in several sizes.

A decode of several tokens takes other kernels than one of a single token, and kernels add in
different orders. Which are taken depends on the processor, the types of weights and caches,
the number of tokens, of threads and of cached tokens: so a few of each are tried, on the model
as it is loaded, in a context of its own, and whole rows of logits are compared, with the rows
before the output layer, whose rounding hides small differences.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools

from localspec.errors import DecodeError
from localspec.exactness import Exactness
from localspec.llama import params as llama_params
from localspec.llama.batch import TextPart, TokenBatch
from localspec.llama.handle import Handle
from localspec.llama.library import llama_cpp
from localspec.llama.opening import new_context
from localspec.llama.options import LlamaOptions

# Tokens that are cached, and sizes of decodes behind them at which kernels change: a prompt's
# have other tiles from 64 on. Attention of one token is split among threads from 512
# cells on, which count in blocks of 256; the decodes behind the longer text come to those.
_SHORT, _SHORT_SIZES = 40, (2, 8, 64)
_LONG, _LONG_SIZES = 250, (2, 3, 4, 5, 8, 17)
_COMPARED = 17  # first rows of a decode
_JOINT_SIZES = (1, 2, 4, 8)  # tokens of each text in decodes that several have a part in


def probe_exactness(handle: Handle, options: LlamaOptions) -> Exactness:
    """Find out which decodes of a model are exact. options: it was opened with.

    Raises DecodeError if libllama cannot decode, or the context is too short to know; or what
    opening a context raises.
    """
    handle.require_open()
    with contextlib.closing(_ExactProbe(handle, options)) as probe:
        return probe.run()


class _ExactProbe:
    """A context, each sequence of which has a text."""

    def __init__(self, handle: Handle, options: LlamaOptions) -> None:
        model = handle.model
        assert model is not None
        most = _LONG + _SHORT_SIZES[-1]
        if llama_cpp.llama_model_n_ctx_train(model) < most:
            raise DecodeError("its context is too short for a probe")
        params = llama_params.context_params(options, most)
        params.n_outputs_max = max(_SHORT_SIZES[-1], _JOINT_SIZES[-1] * options.num_sequences)
        self._threads: int = params.n_threads
        self._width: int = llama_cpp.llama_model_n_embd_out(model)
        vocabulary = llama_cpp.llama_model_get_vocab(model)
        self._vocab_size: int = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self._can_cut = not (
            llama_cpp.llama_model_is_recurrent(model) or llama_cpp.llama_model_is_hybrid(model)
        )
        self._num_sequences = options.num_sequences
        self._context = new_context(model, handle.name, params)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = TokenBatch(llama_cpp.llama_n_batch(self._context))

    def close(self) -> None:
        """Free the context."""
        llama_cpp.llama_free(self._context)

    def run(self) -> Exactness:
        """Decode in all sizes, with several numbers of threads, and several texts at once."""
        for length, sizes in ((_LONG, _LONG_SIZES), (_SHORT, _SHORT_SIZES)):
            self._fill(0, length)
            singles = self._singles(0, length, _COMPARED)
            for before, size in itertools.pairwise((1, *sizes)):
                if self._rows([(0, length)], size)[:_COMPARED] != singles[:size]:
                    reason = (
                        f"rows of a decode of {size} tokens differ from those of single ones"
                    )
                    return Exactness(largest_step=before, reason=reason)
            for count in {1, 2, 3} - {self._threads}:
                if self._with_threads(count, length) != singles[:3]:
                    reason = f"with {count} threads rows differ from those with {self._threads}"
                    return Exactness(reason=reason)
        joined = self._num_sequences > 1 and self._joins_exactly()
        return Exactness(largest_step=size, all_sizes=True, joined=joined, reason="")

    def _with_threads(self, count: int, length: int) -> list[bytes]:
        """Rows of single tokens, computed by that many threads."""
        llama_cpp.llama_set_n_threads(self._context, count, count)
        rows = self._singles(0, length, 3)
        llama_cpp.llama_set_n_threads(self._context, self._threads, self._threads)
        return rows

    def _joins_exactly(self) -> bool:
        """Whether decodes of a text in each sequence have the rows of single tokens."""
        texts = [(number, (_LONG, _SHORT)[number % 2]) for number in range(self._num_sequences)]
        for text in texts:
            self._fill(*text)
        singles = [self._singles(*text, _JOINT_SIZES[-1]) for text in texts]
        return all(
            self._rows(texts, size) == [row for rows in singles for row in rows[:size]]
            for size in _JOINT_SIZES
        )

    def _singles(self, sequence: int, length: int, count: int) -> list[bytes]:
        """Rows of `count` decodes of a single token, after the first `length` tokens."""
        self._cut(sequence, length)
        positions = range(length, length + count)
        return [self._decoded([self._part(sequence, position, 1)])[0] for position in positions]

    def _rows(self, texts: list[tuple[int, int]], size: int) -> list[bytes]:
        """Rows of a decode of so many tokens of each text. texts: sequences and lengths."""
        for sequence, length in texts:
            self._cut(sequence, length)
        return self._decoded([self._part(*text, size) for text in texts])

    def _fill(self, sequence: int, length: int) -> None:
        """Fill a sequence with that many tokens."""
        llama_cpp.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        self._decoded([self._part(sequence, 0, length)._replace(num_logits=0)])

    def _cut(self, sequence: int, length: int) -> None:
        """Keep the first tokens of a sequence; a recurrent state has to be computed anew."""
        memory = self._memory
        if not (self._can_cut and llama_cpp.llama_memory_seq_rm(memory, sequence, length, -1)):
            self._fill(sequence, length)

    def _part(self, sequence: int, position: int, count: int) -> TextPart:
        """Tokens of a sequence's text from a position on."""
        tokens = [
            (7919 * each + 13 + 101 * sequence) % self._vocab_size
            for each in range(position, position + count)
        ]
        return TextPart(sequence, position, tokens, count)

    def _decoded(self, parts: list[TextPart]) -> list[bytes]:
        """Decode the parts together; the rows of their last num_logits tokens."""
        context, count = self._context, sum(part.num_logits for part in parts)
        llama_cpp.llama_set_embeddings(context, count > 0)
        status = llama_cpp.llama_decode(context, self._batch.joined(parts))
        if status != 0:
            raise DecodeError(f"a probe of its decodes failed (status {status})")
        return [
            ctypes.string_at(
                llama_cpp.llama_get_embeddings_ith(context, index), 4 * self._width
            )
            + ctypes.string_at(
                llama_cpp.llama_get_logits_ith(context, index), 4 * self._vocab_size
            )
            for index in range(count)
        ]
