"""Heads driven as llama.cpp's own driver does it (common/speculative.cpp), a token at a time.

Nothing of the package's heads is used: batches of libllama's other interface, which copies what
it is given, and a fresh decode of everything.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
from llama_cpp import llama_cpp_ext
from numpy.typing import NDArray

from localspec.llama import native

Rows = NDArray[np.float32]
Entry = tuple[int | None, int, Rows | None]  # token, position, and a row that comes with it
CONTEXT_LENGTH = 1024
_FLOATS = ctypes.POINTER(ctypes.c_float)


class Reference:
    """A target, and its head if libllama has it, in the target's file or in one of its own."""

    def __init__(self, target: Path, head: Path | None, *, is_mtp: bool = False) -> None:
        self._models = [_load(path, is_mtp) for path in (target, head) if path is not None]
        self._target = _context(self._models[0])
        self._contexts = [self._target]
        vocabulary = llama_cpp.llama_model_get_vocab(self._models[0])
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(vocabulary)

    def close(self) -> None:
        for context in reversed(self._contexts):
            llama_cpp.llama_free(context)
        for model in self._models:
            llama_cpp.llama_model_free(model)

    def _open_head(self, *, is_mtp: bool = False) -> None:
        self._head = _context(self._models[-1], self._target, is_mtp=is_mtp)
        self._contexts.append(self._head)

    def _clear(self, *contexts: int) -> None:
        for context in contexts:
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)

    def _decode(
        self, context: int, entries: Sequence[Entry], num_outputs: int = 1, *, encodes=False
    ) -> None:
        """Decode entries, and compute logits of the last of them."""
        batch = llama_cpp.llama_batch_ext_init(context)
        for number, (token, position, row) in enumerate(entries):
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
            is_output = number >= len(entries) - num_outputs
            assert llama_cpp.llama_batch_ext_set_output_logits(batch, index, is_output)
        kind = llama_cpp.LLAMA_PROCESS_TYPE_DECODE
        if encodes:
            kind = llama_cpp.LLAMA_PROCESS_TYPE_ENCODE
        assert llama_cpp.llama_process(context, kind, batch) == 0
        llama_cpp.llama_batch_ext_free(batch)

    def _last_logits(self) -> Rows:
        return _copied(llama_cpp.llama_get_logits_ith(self._head, -1), self._vocab_size)


class MtpReference(Reference):
    """MTP layers. num_chained: of them take turns; shares_cache: they read the target's."""

    def __init__(
        self, target: Path, head: Path | None, *, num_chained: int, shares_cache: bool
    ) -> None:
        super().__init__(target, head, is_mtp=True)
        self._open_head(is_mtp=True)
        self._num_chained = num_chained
        self._shares_cache = shares_cache
        self._width = llama_cpp.llama_model_n_embd_out(self._models[0])
        llama_cpp_ext.llama_set_embeddings_nextn(self._target, True, False)
        llama_cpp_ext.llama_set_embeddings_nextn(self._head, True, True)

    def rows(self, text: Sequence[int], drafted: Sequence[int], begins_at: int = 0) -> Rows:
        """Logits (1 + drafted, vocab) of the head after the text and after each drafted token.

        begins_at: position of the first token that it reads.
        """
        self._clear(*self._contexts[: 1 if self._shares_cache else 2])
        hidden = [np.zeros(self._width, dtype=np.float32)]  # in front of each token
        for position, token in enumerate(text[:-1]):
            self._decode(self._target, [(token, position, None)])
            hidden.append(self._hidden(self._target, 0))
        last = len(text) - 1
        if not self._shares_cache:
            for layer in range(self._num_chained):
                self._select(layer, begins_at)
                for position in range(begins_at, last):
                    self._decode(self._head, [(text[position], position, hidden[position])])
        rows = []
        entries: list[Entry] = [(text[-1], last, hidden[last])]
        for step in range(1 + len(drafted)):
            if self._num_chained > 1:
                self._select(step, last)
                self._decode(self._head, entries)
            else:
                self._decode(self._head, entries[-1:])
            rows.append(self._last_logits())
            if step < len(drafted):
                position = last if self._shares_cache else last + step + 1
                entries.append((drafted[step], position, self._hidden(self._head, -1)))
        return np.array(rows)

    def _select(self, layer: int, position: int) -> None:
        memory = llama_cpp.llama_get_memory(self._head)
        llama_cpp.llama_memory_seq_rm(memory, 0, position, -1)
        if self._num_chained > 1:
            llama_cpp_ext.llama_set_nextn_layer_offset(self._head, layer)

    def _hidden(self, context: int, index: int) -> Rows:
        return _copied(
            llama_cpp_ext.llama_get_embeddings_nextn_ith(context, index), self._width
        )


class EagleReference(Reference):
    """An EAGLE-3 head. layers: of the target that it reads."""

    def __init__(self, target: Path, head: Path, *, layers: Sequence[int]) -> None:
        super().__init__(target, head)
        self._open_head()
        self._layers = layers
        self._width, self._own_width = map(llama_cpp.llama_model_n_embd, self._models)
        give = _function("llama_set_embeddings_layer_inpP13llama_contextjb")
        give.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool]
        self._get = _function("llama_get_embeddings_layer_inpP13llama_contextj")
        self._get.argtypes, self._get.restype = [ctypes.c_void_p, ctypes.c_uint32], _FLOATS
        for layer in layers:
            give(self._target, layer, True)
        llama_cpp_ext.llama_set_embeddings_nextn(self._head, True, True)

    def rows(self, text: Sequence[int], drafted: Sequence[int], begins_at: int = 1) -> Rows:
        """As `MtpReference.rows`; begins_at is not the text's first token."""
        encoded = []
        for row in self._inputs(text):
            self._decode(self._head, [(None, 0, row)], encodes=True)
            encoded.append(self._own_row())
        for position in range(begins_at, len(text) - 1):
            self._decode(self._head, [(text[position], position - 1, encoded[position - 1])])
        rows, token, row = [], text[-1], encoded[-1]
        for step in range(1 + len(drafted)):
            self._decode(self._head, [(token, len(text) - 2 + step, row)])
            rows.append(self._last_logits())
            if step < len(drafted):
                row, token = self._own_row(), drafted[step]
        return np.array(rows)

    def _inputs(self, text: Sequence[int]) -> list[Rows]:
        """The inputs of the layers at each token but the last, side by side."""
        self._clear(*self._contexts)
        rows = []
        for position, token in enumerate(text[:-1]):
            self._decode(self._target, [(token, position, None)])
            given = [_copied(self._get(self._target, n), self._width) for n in self._layers]
            rows.append(np.concatenate(given))
        return rows

    def _own_row(self) -> Rows:
        row = llama_cpp_ext.llama_get_embeddings_nextn_ith(self._head, 0)
        return _copied(row, self._own_width)


class BlockReference(EagleReference):
    """A DFlash head. mask: the token of a block's masks. is_cropped: False for DFlash2."""

    def __init__(
        self,
        target: Path,
        head: Path,
        *,
        layers: Sequence[int],
        mask: int,
        is_causal: bool,
        is_cropped: bool,
    ) -> None:
        super().__init__(target, head, layers=layers)
        self._mask = mask
        llama_cpp_ext.llama_set_embeddings_nextn(self._head, True, is_cropped)
        llama_cpp.llama_set_causal_attn(self._head, is_causal)

    def block(self, text: Sequence[int], size: int, begins_at: int = 0) -> tuple[Rows, Rows]:
        """Logits (size, vocab) of a block behind the text, and its rows (size, width).

        size: the text's last token and masks. begins_at: of the text that the head reads.
        """
        for position, row in enumerate(self._inputs(text)):
            if position >= begins_at:
                self._decode(self._head, [(None, position, row)], 0)
        tokens = [text[-1], *[self._mask] * (size - 1)]
        entries = [(token, len(text) - 1 + n, None) for n, token in enumerate(tokens)]
        self._decode(self._head, entries, size)
        logits = _copied(llama_cpp.llama_get_logits(self._head), size * self._vocab_size)
        given = llama_cpp_ext.llama_get_embeddings_nextn(self._head)
        rows = _copied(given, size * self._own_width)
        return logits.reshape(size, -1), rows.reshape(size, -1)


class MedusaReference(Reference):
    """Medusa heads by the paper's formula, in float64."""

    def __init__(self, target: Path, heads: Path) -> None:
        super().__init__(target, None)
        self._weights = {
            tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            for tensor in gguf.GGUFReader(heads).tensors
            if tensor.name != "d2t"
        }
        [self.known] = [
            tensor.data for tensor in gguf.GGUFReader(heads).tensors if tensor.name == "d2t"
        ] or [slice(None)]
        llama_cpp.llama_set_embeddings(self._target, True)

    def rows(self, text: Sequence[int], count: int) -> NDArray[np.float64]:
        """Logits (count, vocab) of the first heads after the text."""
        self._clear(self._target)
        for position, token in enumerate(text[:-1]):
            self._decode(self._target, [(token, position, None)])
        width = llama_cpp.llama_model_n_embd(self._models[0])
        given = _copied(llama_cpp.llama_get_embeddings_ith(self._target, -1), width)
        rows = np.full((count, self._vocab_size), -np.inf)
        for head in range(count):
            hidden, residual = given.astype(np.float64), 0
            while (name := f"blk.{head}.residual.{residual}") + ".weight" in self._weights:
                inner = self._weights[f"{name}.weight"] @ hidden + self._weights[f"{name}.bias"]
                hidden = hidden + inner / (1 + np.exp(-inner))
                residual += 1
            rows[head, self.known] = self._weights[f"blk.{head}.output.weight"] @ hidden
        return rows


def _copied(values: object, size: int) -> Rows:
    return np.ctypeslib.as_array(values, (size,)).copy()


def _function(mangled: str) -> ctypes._CFuncPtr:
    library = native.shared_library(llama_cpp)
    plain = mangled.partition("P13")[0]
    return getattr(library, f"_Z{len(plain)}{mangled}")


def _load(path: Path, is_mtp: bool) -> int:
    params = llama_cpp.llama_model_default_params()
    params.load_mtp = is_mtp
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    assert model
    return model


def _context(model: int, target: int | None = None, *, is_mtp: bool = False) -> int:
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch = CONTEXT_LENGTH, 64
    params.n_threads = params.n_threads_batch = 1
    # Flash attention adds up in half precision.
    params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    if target is not None:
        params.ctx_other = target
    if is_mtp:
        params.ctx_type = llama_cpp.LLAMA_CONTEXT_TYPE_MTP
    context = llama_cpp.llama_init_from_model(model, params)
    assert context
    return context
