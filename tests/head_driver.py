"""libllama's contexts for heads, driven without localspec's own classes for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from localspec.llama.batch import TokenBatch
from localspec.llama.library import llama_cpp
from localspec.llama.quirks.nextn import require_nextn_functions

CELLS = 256
Rows = NDArray[np.float32]


class Weights:
    """A model's file, loaded with its head. Raises ValueError if libllama refuses it."""

    def __init__(self, path: Path) -> None:
        params = llama_cpp.llama_model_default_params()
        params.load_mtp = True
        params.n_gpu_layers = 0
        self.pointer = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
        if self.pointer is None:
            raise ValueError(f"libllama does not load {path.name}")
        vocabulary = llama_cpp.llama_model_get_vocab(self.pointer)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self.row_width = llama_cpp.llama_model_n_embd_out(self.pointer)

    def numbers(self) -> tuple[int, int, int]:
        """Layers of the model and of the head, and the width of a row."""
        return (
            llama_cpp.llama_model_n_layer(self.pointer),
            llama_cpp.llama_model_n_layer_nextn(self.pointer),
            self.row_width,
        )

    def close(self) -> None:
        llama_cpp.llama_model_free(self.pointer)


class Context:
    """Of a model, or of a head beside a target: then each token is read with a row."""

    def __init__(
        self,
        weights: Weights,
        target: Context | None = None,
        *,
        is_cropped: bool = False,
        kind_is_mtp: bool = True,
    ) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = CELLS
        params.n_threads = params.n_threads_batch = 1
        params.swa_full = True
        if target is not None:
            if kind_is_mtp:
                params.ctx_type = llama_cpp.LLAMA_CONTEXT_TYPE_MTP
            params.ctx_other = target.pointer
        self.weights = weights
        self.pointer = llama_cpp.llama_init_from_model(weights.pointer, params)
        assert self.pointer
        self.memory = llama_cpp.llama_get_memory(self.pointer)
        self._nextn = require_nextn_functions(reads_layers=False)
        self._nextn.set_embeddings_nextn(self.pointer, True, is_cropped)
        self._is_cropped = is_cropped
        self._batch = TokenBatch(CELLS, 0 if target is None else weights.row_width)

    def decode(
        self, tokens: list[int], position: int, num_logits: int, rows: Rows | None = None
    ) -> tuple[Rows, Rows]:
        """Logits of the last tokens; and the rows of all, or of those if it is cropped.

        Raises ValueError with libllama's status.
        """
        if rows is not None:
            self._batch.rows[: len(tokens)] = rows
        batch = self._batch.filled(tokens, position, num_logits)
        if status := llama_cpp.llama_decode(self.pointer, batch):
            raise ValueError(f"status {status}")
        logits = llama_cpp.llama_get_logits(self.pointer)
        out = self._nextn.get_embeddings_nextn(self.pointer)
        num_rows = num_logits if self._is_cropped else len(tokens)
        return (
            _copied(logits, num_logits, self.weights.vocab_size),
            _copied(out, num_rows, self.weights.row_width),
        )

    def give_layer(self, layer: int) -> None:
        """Give what goes into it from now on."""
        self._nextn.set_embeddings_layer_inp(self.pointer, layer, True)

    def choose(self, layer: int) -> None:
        """The one of several heads that decodes from now on."""
        self._nextn.set_nextn_layer_offset(self.pointer, layer)

    def cut(self, position: int) -> None:
        """Forget what it has from there on."""
        llama_cpp.llama_memory_seq_rm(self.memory, 0, position, -1)

    def clear(self) -> None:
        """Forget all."""
        llama_cpp.llama_memory_clear(self.memory, False)

    @property
    def last_position(self) -> int:
        """Of its cache; -1 if that is empty."""
        return llama_cpp.llama_memory_seq_pos_max(self.memory, 0)

    @property
    def shares_cache(self) -> bool:
        """Whether it attends with another's."""
        return bool(self._nextn.get_ctx_other(self.pointer))

    def close(self) -> None:
        llama_cpp.llama_free(self.pointer)


def _copied(values, num_rows: int, width: int) -> Rows:
    if num_rows == 0:
        return np.empty((0, width), dtype=np.float32)
    return np.ctypeslib.as_array(values, (num_rows, width)).copy()


def in_a_child(code: str) -> int:
    """What a process with this code returns: negative if a signal ended it."""
    given = f"from pathlib import Path; from head_driver import Context, Weights; {code}"
    quiet = {**os.environ, "GGML_NO_BACKTRACE": "1"}
    paths = {"PYTHONPATH": os.fspath(Path(__file__).parent)}
    command = [sys.executable, "-c", given]
    return subprocess.run(
        command, capture_output=True, env=quiet | paths, check=False
    ).returncode
