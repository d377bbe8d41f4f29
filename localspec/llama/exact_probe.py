"""Which decodes of a model are exact, found by decoding the same tokens in different sizes.

A decode of several tokens takes other kernels than one of a single token, and kernels add in
different orders. Which ones do is decided by the processor, the types of weights and caches,
the number of tokens, of threads and of cached tokens: so all of these are tried, on the model
as it is loaded, in a context of its own.

Kernels are the same in every layer with the same types. So only as many of the first layers
are computed as have one of each kind, and what leaves the last of them is compared. Tokens that
only fill the cache are not computed at all: they take their cells, and the decode ends. Models
with a recurrent state are computed whole, since libllama keeps states at a decode's very end.
"""

from __future__ import annotations

import contextlib
import ctypes
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from localspec.errors import DecodeError
from localspec.exactness import Exactness
from localspec.llama import params as llama_params
from localspec.llama.batch import TextPart, TokenBatch
from localspec.llama.handle import Handle
from localspec.llama.library import llama_cpp
from localspec.llama.native import LoadWatch, ggml_function
from localspec.llama.opening import new_context
from localspec.llama.options import LlamaOptions

# Sizes at which kernels change: of steps, and of a prompt (flash attention has tiles from 64).
_STEPS = (2, 3, 4, 5, 8, 9, 17)
_SHORT_STEPS = (8,)  # behind a short text, where attention has the kernels of a long one
_PROMPT = 64
_CONTEXT = 2048  # or what the model was trained for: some have no more positions
# Cached tokens. Attention of one token is split among threads from 512 cells on, and cells
# count in blocks of 256; so decodes here begin with 512 of them and end with 768.
_SHORT, _LONG = 40, 505
_FILLED = 32  # tokens of a piece that fills the cache, and
_COMPUTED = 4  # behind each such piece, which attention reads
_WHOLE = b"result_norm"  # what goes into the output layer
_LAST_ROWS = (8, 4, 3, 2)  # sizes for the output layer
_JOINED_STEPS = (1, 2, 4, 8)  # tokens of each text in decodes that several have a part in
_JOINED_CONTEXT = 768  # of each
_TIMED = (1, 5)  # tokens of decodes that are timed, without and with a draft,
_TIMED_BEHIND = (1500, 100)  # that many cached tokens,
_TIMED_ROUNDS = 9  # with exact and usual settings in turn
_STEADY = 1.1  # median ÷ least time, beyond which other programs disturb too much


class ExactProbe:
    """Decodes the first layers of a model.

    handle: of the model. options: of the context, which has their number of sequences.
    num_layers: of the model's, to be computed. interrupts: notices Ctrl-C within a callback,
    and is entered by the caller.
    """

    def __init__(
        self, handle: Handle, options: LlamaOptions, num_layers: int, interrupts: LoadWatch
    ) -> None:
        model = handle.model
        assert model is not None
        self._last = f"l_out-{num_layers - 1}".encode()  # or _WHOLE, where none is called so
        self._mode = "layers"  # "cells": nothing is computed; "all": everything
        self._rows = b""
        self._interrupts = interrupts
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self._name = ggml_function(llama_cpp, "ggml_get_name", ctypes.c_char_p, pointer)
        self._size = ggml_function(llama_cpp, "ggml_nbytes", size, pointer)
        self._get = ggml_function(
            llama_cpp, "ggml_backend_tensor_get", None, pointer, pointer, size, size
        )
        trained: int = llama_cpp.llama_model_n_ctx_train(model)
        self._num_sequences = options.num_sequences
        self._sequence = 0  # that decodes are of
        self._length = min(_CONTEXT if self._num_sequences == 1 else _JOINED_CONTEXT, trained)
        self._long = min(_LONG, self._length - _PROMPT)
        params = llama_params.context_params(options, self._length)
        self._is_whole: bool = llama_cpp.llama_model_is_recurrent(
            model
        ) or llama_cpp.llama_model_is_hybrid(model)
        # Else the last layer computes fewer rows.
        params.n_outputs_max = max(_PROMPT, _JOINED_STEPS[-1] * self._num_sequences)
        # C keeps its pointer, so it lives as long as the context.
        self._watch = llama_cpp.ggml_backend_sched_eval_callback(self.watched)
        params.cb_eval = self._watch
        self._threads: int = params.n_threads
        vocabulary = llama_cpp.llama_model_get_vocab(model)
        self._vocab_size: int = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self._context = new_context(model, handle.name, params)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = TokenBatch(llama_cpp.llama_n_batch(self._context))

    def close(self) -> None:
        """Free the context."""
        llama_cpp.llama_free(self._context)

    def run(self) -> Exactness:
        """What was found.

        Raises DecodeError if libllama cannot decode, or the context is too short to know.
        """
        if self._long < _SHORT:
            raise DecodeError("its context is too short for a probe")
        largest = self._largest_step(self._long, (*_STEPS, _PROMPT))
        if largest > 1 and (reason := self._threads_differ()) is not None:
            return Exactness(reason=reason)
        if largest > 1:
            largest = min(largest, self._largest_step(_SHORT, _SHORT_STEPS))
            largest = min(largest, self._largest_output())
        if largest == _PROMPT:
            return Exactness(largest_step=_STEPS[-1], all_sizes=True, reason="")
        smallest = next(size for size in (*_STEPS, _PROMPT) if size > largest)
        return Exactness(
            largest_step=largest,
            reason=f"rows of a decode of {smallest} tokens differ from those of single ones",
        )

    def joins_exactly(self) -> bool:
        """Whether a decode of a text in each sequence has the rows of single tokens."""
        lengths, singles = list[int](), list[list[bytes]]()
        for number in range(self._num_sequences):
            self._sequence = number
            # A recurrent model has to compute all of it, and looks at its state alone.
            is_long = number % 2 == 1 and not self._is_whole
            length = self._long if is_long else _SHORT
            self._fill(length)
            steps = range(length, length + _JOINED_STEPS[-1])
            singles.append([self._decode(position, 1)[0] for position in steps])
            lengths.append(length)
        for size in _JOINED_STEPS:
            parts = []
            for number, length in enumerate(lengths):
                self._sequence = number
                self._cut(length)
                parts.append(TextPart(number, length, self._tokens(length, size), size))
            self._rows = b""
            self._decode_batch(self._batch.joined(parts), size * len(parts))
            alone = [row for rows in singles for row in rows[:size]]
            if self._rows != b"".join(alone):
                return False
        return True

    def slowdown(self, usual: ExactProbe) -> float | None:
        """Time of the first layers of the worst decode ÷ the same in another context.

        usual: the same layers with the usual settings. None where it takes long to find out,
        the context is too short, or other programs make times vary.
        """
        if self._is_whole or self._length < _TIMED_BEHIND[0] + _TIMED[-1]:
            return None
        ratios: list[float] = []
        for length in _TIMED_BEHIND:
            self._fill(length)
            usual._fill(length)
            for size in _TIMED:
                times = [
                    (self.seconds(length, size), usual.seconds(length, size))
                    for _ in range(_TIMED_ROUNDS)
                ]
                exact_s, usual_s = zip(*times, strict=True)
                if not (_is_steady(exact_s) and _is_steady(usual_s)):
                    return None
                ratios.append(min(exact_s) / min(usual_s))
        return max(ratios)

    def seconds(self, length: int, num_tokens: int) -> float:
        """Of a decode behind that many tokens, in the layers that are computed."""
        self._cut(length)
        started = time.perf_counter()
        self._decode(length, num_tokens)
        return time.perf_counter() - started

    def _largest_step(self, length: int, sizes: Sequence[int]) -> int:
        """Up to which size decodes behind that many tokens have the rows of single ones.

        1 if the smallest has not, and _PROMPT if all have.
        """
        self._fill(length)
        count = min(max(sizes), _STEPS[-1])
        singles = [self._decode(length + index, 1)[0] for index in range(count)]
        largest = 1
        for size in sizes:
            self._cut(length)
            if self._decode(length, size)[:count] != singles[:size]:
                return largest
            largest = size
        return _PROMPT

    def _threads_differ(self) -> str | None:
        """Whether rows behind the long text depend on how many threads there are, in words."""
        found = {}
        for count in sorted({1, 2, 3, max(self._threads // 2, 1), self._threads}):
            llama_cpp.llama_set_n_threads(self._context, count, count)
            self._cut(self._long)
            found[count] = [self._decode(self._long + index, 1) for index in range(3)]
        threads = self._threads
        llama_cpp.llama_set_n_threads(self._context, threads, threads)
        for count, rows in found.items():
            if rows != found[threads]:
                return f"with {count} threads rows differ from those with {threads}"
        return None

    def _largest_output(self) -> int:
        """Up to which size the rows of logits are those of single ones."""
        self._fill(_SHORT)
        single = self._logits(1)
        for size in _LAST_ROWS:
            if self._logits(size) == single:
                return _PROMPT if size == _LAST_ROWS[0] else size
        return 1

    def _logits(self, num_tokens: int) -> bytes:
        """The first row of logits of a decode of so many tokens behind the short text."""
        self._cut(_SHORT)
        self._mode = "all"
        try:
            self._decode_raw(_SHORT, num_tokens)
        finally:
            self._mode = "layers"
        row = llama_cpp.llama_get_logits_ith(self._context, 0)
        return ctypes.string_at(row, 4 * self._vocab_size)

    def _fill(self, length: int) -> None:
        """Make that many tokens cached; most of them only take their cells."""
        if self._sequence == 0:
            llama_cpp.llama_memory_clear(self._memory, True)
        else:
            llama_cpp.llama_memory_seq_rm(self._memory, self._sequence, -1, -1)
        position = 0
        while position < length:
            filled = min(_FILLED, length - position)
            self._mode = "layers" if self._is_whole else "cells"
            try:
                self._decode_raw(position, filled)
            finally:
                self._mode = "layers"
            position += filled
            computed = min(_COMPUTED, length - position)
            if computed > 0:
                self._decode_raw(position, computed)
            position += max(computed, 0)

    def _cut(self, length: int) -> None:
        """Keep the first tokens that are cached; fill the cache anew where that cannot be."""
        removed = not self._is_whole and llama_cpp.llama_memory_seq_rm(
            self._memory, self._sequence, length, -1
        )
        if not removed:
            self._fill(length)

    def _decode(self, position: int, num_tokens: int) -> list[bytes]:
        """The rows of these tokens behind the last layer that is computed."""
        self._rows = b""
        self._decode_raw(position, num_tokens)
        if not self._rows and self._last != _WHOLE:
            self._last = _WHOLE
            self._fill(position)
            return self._decode(position, num_tokens)
        width = len(self._rows) // num_tokens
        if width == 0:
            raise DecodeError("nothing of this model can be watched")
        return [self._rows[width * i : width * (i + 1)] for i in range(num_tokens)]

    def _tokens(self, position: int, count: int) -> list[int]:
        """Those of the sequence's text from there on."""
        places = range(position, position + count)
        return [
            (7919 * place + 13 + 101 * self._sequence) % self._vocab_size for place in places
        ]

    def _decode_raw(self, position: int, num_tokens: int) -> None:
        tokens = self._tokens(position, num_tokens)
        num_logits = min(num_tokens, _PROMPT)
        batch = self._batch.filled(tokens, position, num_logits, self._sequence)
        self._decode_batch(batch, num_tokens)

    def _decode_batch(self, batch: Any, num_tokens: int) -> None:
        status = llama_cpp.llama_decode(self._context, batch)
        if self._interrupts.error is not None:
            raise self._interrupts.error
        if status != 0:
            raise DecodeError(f"a probe of {num_tokens} tokens failed (status {status})")

    def watched(self, tensor: int, ask: bool, _data: object) -> bool:  # noqa: FBT001  C's call
        """libllama asks of each node whether it is watched; then whether to go on behind it."""
        if self._mode == "all":
            return False
        if self._mode == "cells":
            return ask
        if self._name(tensor) != self._last:
            return False
        if ask:
            return True
        size = self._size(tensor)
        buffer = ctypes.create_string_buffer(size)
        self._get(tensor, buffer, 0, size)
        self._rows = buffer.raw
        return self._is_whole


def _is_steady(times: Sequence[float]) -> bool:
    return statistics.median(times) <= _STEADY * min(times)


def probe_exactness(
    handle: Handle, options: LlamaOptions, usual: LlamaOptions | None, num_layers: int
) -> Exactness:
    """Find out which decodes of a model are exact, see `ExactProbe`, and what that costs.

    options: it was opened with. usual: for a context that exact decodes are compared with.
    Raises DecodeError, or what opening a context raises.
    """
    handle.require_open()
    interrupts = LoadWatch(lambda _fraction: None)
    with interrupts, contextlib.ExitStack() as undo:
        alone = replace(options, num_sequences=1)
        probe = ExactProbe(handle, alone, num_layers, interrupts)
        undo.callback(probe.close)
        found = probe.run()
        if found.all_sizes and options.num_sequences > 1:
            several = ExactProbe(handle, options, num_layers, interrupts)
            undo.callback(several.close)
            found = replace(found, joined=several.joins_exactly())
        if not found.all_sizes or usual is None:
            return found
        usual = replace(usual, num_sequences=1)
        other = ExactProbe(handle, usual, num_layers, interrupts)
        undo.callback(other.close)
        return replace(found, slowdown=probe.slowdown(other))
