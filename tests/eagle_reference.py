"""EAGLE-3 heads driven as llama.cpp's own driver does it (common/speculative.cpp), a token at a
time, with a fresh decode of everything. Nothing of the package is used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp_ext
from numpy.typing import NDArray

from localspec.llama import native

Rows = NDArray[np.float32]
CONTEXT_LENGTH = 1024
_FLOATS = ctypes.POINTER(ctypes.c_float)


class EagleReference:
    """A target and its head. layers: of the target that the head reads, each `width` wide."""

    def __init__(self, target: Path, head: Path, *, layers: Sequence[int]) -> None:
        self._layers = layers
        self._models = [_load(target), _load(head)]
        self._target = _context(self._models[0], None)
        self._head = _context(self._models[1], self._target)
        self._width, self._own_width = map(llama_cpp.llama_model_n_embd, self._models)
        vocabulary = llama_cpp.llama_model_get_vocab(self._models[0])
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self._set = _function("llama_set_embeddings_layer_inpP13llama_contextjb")
        self._set.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool]
        self._get = _function("llama_get_embeddings_layer_inpP13llama_contextj")
        self._get.argtypes, self._get.restype = [ctypes.c_void_p, ctypes.c_uint32], _FLOATS
        for layer in layers:
            self._set(self._target, layer, True)
        llama_cpp_ext.llama_set_embeddings_nextn(self._head, True, True)

    def rows(self, text: Sequence[int], drafted: Sequence[int], begins_at: int = 1) -> Rows:
        """Logits (1 + drafted, vocab) of the head after the text and after each drafted token.

        begins_at: position of the token that it reads first, not the text's first one.
        """
        for context in (self._target, self._head):
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        encoded = []
        for position, token in enumerate(text[:-1]):
            self._process(self._target, position, token, None)
            sides = [
                self._copied(self._get(self._target, n), self._width) for n in self._layers
            ]
            encoded.append(np.concatenate(sides))
        encoded = [self._encode(row) for row in encoded]
        for position in range(begins_at, len(text) - 1):
            self._process(self._head, position - 1, text[position], encoded[position - 1])
        rows, token, row = [], text[-1], encoded[-1]
        for step in range(1 + len(drafted)):
            self._process(self._head, len(text) - 2 + step, token, row)
            logits = llama_cpp.llama_get_logits_ith(self._head, -1)
            rows.append(self._copied(logits, self._vocab_size))
            if step < len(drafted):
                row, token = self._given(), drafted[step]
        return np.array(rows)

    def close(self) -> None:
        for context in (self._head, self._target):
            llama_cpp.llama_free(context)
        for model in self._models:
            llama_cpp.llama_model_free(model)

    def _encode(self, row: Rows) -> Rows:
        self._process(self._head, 0, None, row)
        return self._given()

    def _given(self) -> Rows:
        row = llama_cpp_ext.llama_get_embeddings_nextn_ith(self._head, 0)
        return self._copied(row, self._own_width)

    @staticmethod
    def _copied(values: object, size: int) -> Rows:
        return np.ctypeslib.as_array(values, (size,)).copy()

    def _process(
        self, context: int, position: int, token: int | None, row: Rows | None
    ) -> None:
        """Decode one token with its row, or encode a row that has no token."""
        batch = llama_cpp.llama_batch_ext_init(context)
        given = None
        if row is not None:
            given = llama_cpp.llama_embd(row.ctypes.data_as(_FLOATS), 1, len(row))
        if token is None:
            index = llama_cpp.llama_batch_ext_add_embd(batch, 0, given)
        else:
            index = llama_cpp.llama_batch_ext_add_token(batch, 0, token)
            if given is not None:
                assert llama_cpp.llama_batch_ext_set_embd_token(batch, index, given)
        where = (ctypes.c_int32 * 4)(position, position, position, 0)
        assert llama_cpp.llama_batch_ext_set_pos(batch, index, where)
        assert llama_cpp.llama_batch_ext_set_output_logits(batch, index, True)
        kind = llama_cpp.LLAMA_PROCESS_TYPE_DECODE
        if token is None:
            kind = llama_cpp.LLAMA_PROCESS_TYPE_ENCODE
        assert llama_cpp.llama_process(context, kind, batch) == 0
        llama_cpp.llama_batch_ext_free(batch)


def _function(mangled: str) -> ctypes._CFuncPtr:
    library = native.shared_library(llama_cpp)
    plain = mangled.partition("P13")[0]
    return getattr(library, f"_Z{len(plain)}{mangled}")


def _load(path: Path) -> int:
    params = llama_cpp.llama_model_default_params()
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
        params.ctx_other = target
    context = llama_cpp.llama_init_from_model(model, params)
    assert context
    return context
