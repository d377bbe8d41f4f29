"""Heads driven as llama.cpp's own driver does it (common/speculative.cpp), a token at a time.

Nothing of the package is used: batches of libllama's other interface, which copies what it is
given, and a fresh decode of everything.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp_ext
from numpy.typing import NDArray

Rows = NDArray[np.float32]
CONTEXT_LENGTH = 1024


class HeadReference:
    """A target and its head, in the target's file or in one of its own.

    num_chained: heads that take turns; shares_cache: it reads the target's keys and values.
    """

    def __init__(
        self,
        target: Path,
        head: Path | None = None,
        *,
        num_chained: int = 1,
        shares_cache: bool = False,
    ) -> None:
        self._models = [_load(target)]
        self._target = _context(self._models[0], None)
        if head is not None:
            self._models.append(_load(head))
        self._head = _context(self._models[-1], self._target)
        self._num_chained = num_chained
        self._shares_cache = shares_cache
        self._width = llama_cpp.llama_model_n_embd_out(self._models[0])
        vocabulary = llama_cpp.llama_model_get_vocab(self._models[0])
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        llama_cpp_ext.llama_set_embeddings_nextn(self._target, True, False)
        llama_cpp_ext.llama_set_embeddings_nextn(self._head, True, True)

    def rows(self, text: Sequence[int], drafted: Sequence[int], begins_at: int = 0) -> Rows:
        """Logits (1 + drafted, vocab) of the head after the text and after each drafted token.

        begins_at: position of what it reads first.
        """
        for context in (self._target, self._head):
            if context is self._target or not self._shares_cache:
                llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        hidden = [np.zeros(self._width, dtype=np.float32)]  # in front of each token
        for position, token in enumerate(text[:-1]):
            self._decode(self._target, [(token, position, None)])
            hidden.append(self._hidden(self._target))
        last = len(text) - 1
        if not self._shares_cache:
            for layer in range(self._num_chained):
                self._select(layer, begins_at)
                for position in range(begins_at, last):
                    self._decode(self._head, [(text[position], position, hidden[position])])
        rows = []
        prefix = [(text[-1], last, hidden[last])]
        for step in range(1 + len(drafted)):
            if self._num_chained > 1:
                self._select(step, last)
                self._decode(self._head, prefix)
            else:
                self._decode(self._head, prefix[-1:])
            logits = llama_cpp.llama_get_logits_ith(self._head, -1)
            rows.append(np.ctypeslib.as_array(logits, (self._vocab_size,)).copy())
            if step < len(drafted):
                position = last if self._shares_cache else last + step + 1
                prefix.append((drafted[step], position, self._hidden(self._head, -1)))
        return np.array(rows)

    def close(self) -> None:
        for context in (self._head, self._target):
            llama_cpp.llama_free(context)
        for model in self._models:
            llama_cpp.llama_model_free(model)

    def _select(self, layer: int, position: int) -> None:
        memory = llama_cpp.llama_get_memory(self._head)
        llama_cpp.llama_memory_seq_rm(memory, 0, position, -1)
        if self._num_chained > 1:
            llama_cpp_ext.llama_set_nextn_layer_offset(self._head, layer)

    def _hidden(self, context: int, index: int = 0) -> Rows:
        row = llama_cpp_ext.llama_get_embeddings_nextn_ith(context, index)
        return np.ctypeslib.as_array(row, (self._width,)).copy()

    def _decode(self, context: int, places: list[tuple[int, int, Rows | None]]) -> None:
        """Tokens, positions and rows in front of them; logits of the last."""
        batch = llama_cpp.llama_batch_ext_init(context)
        for token, position, row in places:
            index = llama_cpp.llama_batch_ext_add_token(batch, 0, token)
            where = (ctypes.c_int32 * 4)(position, position, position, 0)
            assert llama_cpp.llama_batch_ext_set_pos(batch, index, where)
            if row is not None:
                floats = row.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
                given = llama_cpp.llama_embd(floats, 1, len(row))
                assert llama_cpp.llama_batch_ext_set_embd_token(batch, index, given)
            is_last = index == len(places) - 1
            assert llama_cpp.llama_batch_ext_set_output_logits(batch, index, is_last)
        decode = llama_cpp.LLAMA_PROCESS_TYPE_DECODE
        assert llama_cpp.llama_process(context, decode, batch) == 0
        llama_cpp.llama_batch_ext_free(batch)


def _load(path: Path) -> int:
    params = llama_cpp.llama_model_default_params()
    params.load_mtp = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    assert model
    return model


def _context(model: int, target: int | None) -> int:
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch = CONTEXT_LENGTH, 64
    params.n_threads = params.n_threads_batch = 1
    # Which adds up in half precision.
    params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    if target is not None:
        params.ctx_type, params.ctx_other = llama_cpp.LLAMA_CONTEXT_TYPE_MTP, target
    context = llama_cpp.llama_init_from_model(model, params)
    assert context
    return context
