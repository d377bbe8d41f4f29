"""DFlash heads driven as llama.cpp's own driver does it (common/speculative.cpp), from a fresh
decode of everything. Nothing of the package's heads is used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import llama_cpp
import numpy as np
from eagle_reference import EagleReference, Rows
from llama_cpp import llama_cpp_ext


class BlockReference(EagleReference):
    """A target and its head.

    layers: of the target that the head reads. mask: the token of a block's masks. is_cropped:
    False if rows of all tokens are wanted, as of DFlash2.
    """

    def __init__(
        self,
        target: Path,
        head: Path,
        *,
        layers: Sequence[int],
        mask: int,
        is_causal: bool = False,
        is_cropped: bool = True,
    ) -> None:
        super().__init__(target, head, layers=layers)
        self._mask = mask
        llama_cpp_ext.llama_set_embeddings_nextn(self._head, True, is_cropped)
        llama_cpp.llama_set_causal_attn(self._head, is_causal)

    def block(self, text: Sequence[int], size: int, begins_at: int = 0) -> tuple[Rows, Rows]:
        """Logits (size, vocab) of a block behind the text, and its rows (size, width).

        size: the text's last token and masks. begins_at: of the text that the head reads. The
        rows of a head that gives none are None.
        """
        for context in (self._target, self._head):
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        for position, token in enumerate(text[:-1]):
            self._process(self._target, position, token, None)
            if position >= begins_at:
                row = np.concatenate(
                    [self._copied(self._get(self._target, n), self._width)
                     for n in self._layers]
                )  # fmt: skip
                self._inject(position, row)
        batch = llama_cpp.llama_batch_ext_init(self._head)
        for place in range(size):
            token = text[-1] if place == 0 else self._mask
            index = llama_cpp.llama_batch_ext_add_token(batch, 0, token)
            where = (ctypes.c_int32 * 4)(*[len(text) - 1 + place] * 3, 0)
            assert llama_cpp.llama_batch_ext_set_pos(batch, index, where)
            assert llama_cpp.llama_batch_ext_set_output_logits(batch, index, True)
        self._run(batch)
        logits = self._copied(llama_cpp.llama_get_logits(self._head), size * self._vocab_size)
        given = llama_cpp_ext.llama_get_embeddings_nextn(self._head)
        rows = self._copied(given, size * self._own_width)
        return logits.reshape(size, -1), rows.reshape(size, -1)

    def _inject(self, position: int, row: Rows) -> None:
        batch = llama_cpp.llama_batch_ext_init(self._head)
        floats = row.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        given = llama_cpp.llama_embd(floats, 1, len(row))
        index = llama_cpp.llama_batch_ext_add_embd(batch, 0, given)
        where = (ctypes.c_int32 * 4)(position, position, position, 0)
        assert llama_cpp.llama_batch_ext_set_pos(batch, index, where)
        self._run(batch)

    def _run(self, batch: ctypes.c_void_p) -> None:
        kind = llama_cpp.LLAMA_PROCESS_TYPE_DECODE
        assert llama_cpp.llama_process(self._head, kind, batch) == 0
        llama_cpp.llama_batch_ext_free(batch)
