"""A program that multiplies with ggml's AMX kernels and checks the products.

    python amx_trial.py LIBLLAMA

`amx` runs it in another process, since faulty kernels can end that. It runs as a file, so it
imports nothing of the package. Remove it with `amx`.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
import sys
from typing import Any

BUFFER_TYPE = b"AMX"  # the name of ggml's buffer type for weights in the kernels' order
RIGHT = "right"  # what the program writes

_WIDTH, _NUM_OUTPUTS, _NUM_ROWS = 256, 64, 32  # of weights and of a batch
_F32, _Q8_0 = 0, 8  # of enum ggml_type
_BLOCK_SIZE = 32  # weights of Q8_0 that share a scale
_SCALE = 0.5
_CPU_DEVICE = 0  # of enum ggml_backend_dev_type
_TOLERANCE = 0.02  # of the largest product: the batch is rounded to 8 bits
_Pointer, _Size = ctypes.c_void_p, ctypes.c_size_t


class _InitParams(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", _Pointer),
        ("no_alloc", ctypes.c_bool),
    )


# Of each function of ggml: its result and its arguments.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "ggml_init": (_Pointer, _InitParams),
    "ggml_new_tensor_2d": (_Pointer, _Pointer, ctypes.c_int, ctypes.c_int64, ctypes.c_int64),
    "ggml_mul_mat": (_Pointer, _Pointer, _Pointer, _Pointer),
    "ggml_new_graph": (_Pointer, _Pointer),
    "ggml_build_forward_expand": (None, _Pointer, _Pointer),
    "ggml_backend_dev_by_type": (_Pointer, ctypes.c_int),
    "ggml_backend_dev_backend_reg": (_Pointer, _Pointer),
    "ggml_backend_reg_get_proc_address": (_Pointer, _Pointer, ctypes.c_char_p),
    "ggml_backend_buft_name": (ctypes.c_char_p, _Pointer),
    "ggml_backend_dev_init": (_Pointer, _Pointer, ctypes.c_char_p),
    "ggml_backend_alloc_ctx_tensors": (_Pointer, _Pointer, _Pointer),
    "ggml_backend_alloc_ctx_tensors_from_buft": (_Pointer, _Pointer, _Pointer),
    "ggml_backend_tensor_set": (None, _Pointer, ctypes.c_char_p, _Size, _Size),
    "ggml_backend_tensor_get": (None, _Pointer, _Pointer, _Size, _Size),
    "ggml_backend_graph_compute": (ctypes.c_int, _Pointer, _Pointer),
}


def _call(ggml: ctypes.CDLL, name: str, *arguments: Any) -> Any:
    """Call the function of _FUNCTIONS with that name."""
    return ctypes.CFUNCTYPE(*_FUNCTIONS[name])((name, ggml))(*arguments)


def extra_buffer_types(ggml: ctypes.CDLL) -> Any:
    """The CPU backend's own buffer types, the preferred first: an array that ends with NULL.

    The result is ggml's own array, from which a load chooses one for each weight.
    """
    cpu = _call(ggml, "ggml_backend_dev_by_type", _CPU_DEVICE)
    registry = _call(ggml, "ggml_backend_dev_backend_reg", cpu)
    find, wanted = "ggml_backend_reg_get_proc_address", b"ggml_backend_dev_get_extra_bufts"
    address = _call(ggml, find, registry, wanted)
    return ctypes.CFUNCTYPE(ctypes.POINTER(_Pointer), _Pointer)(address)(cpu)


def listed(buffer_types: Any) -> list[int]:
    """The buffer types in such an array, without the NULL."""
    return list(itertools.takewhile(lambda buffer_type: buffer_type is not None, buffer_types))


def name_of(ggml: ctypes.CDLL, buffer_type: int) -> bytes:
    """The name of a buffer type."""
    name: bytes = _call(ggml, "ggml_backend_buft_name", buffer_type)
    return name


def products_are_right(ggml: ctypes.CDLL, buffer_type: int) -> bool:
    """Whether a batch times weights in such a buffer gives the right products."""
    weights = [
        [(5 * output + 3 * column + output * column) % 15 - 7 for column in range(_WIDTH)]
        for output in range(_NUM_OUTPUTS)
    ]
    rows = [
        [(row + 7 * column + row * column) % 5 - 2 for column in range(_WIDTH)]
        for row in range(_NUM_ROWS)
    ]
    expected = [
        _SCALE * sum(one * other for one, other in zip(row, output, strict=True))
        for row in rows
        for output in weights
    ]
    found = _product(ggml, buffer_type, weights, rows)
    most = _TOLERANCE * max(map(abs, expected))
    return all(abs(one - other) <= most for one, other in zip(found, expected, strict=True))


def _product(
    ggml: ctypes.CDLL, buffer_type: int, weights: list[list[int]], rows: list[list[int]]
) -> list[float]:
    """ggml's product, row by row. Nothing is freed: the process ends soon."""
    params = _InitParams(mem_size=1 << 20, no_alloc=True)
    for_weights, for_rows = (_call(ggml, "ggml_init", params) for _ in range(2))
    weight = _call(ggml, "ggml_new_tensor_2d", for_weights, _Q8_0, _WIDTH, len(weights))
    _call(ggml, "ggml_backend_alloc_ctx_tensors_from_buft", for_weights, buffer_type)
    data = b"".join(map(q8_blocks, weights))
    _call(ggml, "ggml_backend_tensor_set", weight, data, 0, len(data))

    cpu = _call(ggml, "ggml_backend_dev_by_type", _CPU_DEVICE)
    backend = _call(ggml, "ggml_backend_dev_init", cpu, None)
    batch = _call(ggml, "ggml_new_tensor_2d", for_rows, _F32, _WIDTH, len(rows))
    product = _call(ggml, "ggml_mul_mat", for_rows, weight, batch)
    graph = _call(ggml, "ggml_new_graph", for_rows)
    _call(ggml, "ggml_build_forward_expand", graph, product)
    _call(ggml, "ggml_backend_alloc_ctx_tensors", for_rows, backend)
    data = b"".join(struct.pack(f"<{_WIDTH}f", *row) for row in rows)
    _call(ggml, "ggml_backend_tensor_set", batch, data, 0, len(data))
    _call(ggml, "ggml_backend_graph_compute", backend, graph)
    found = (ctypes.c_float * (len(rows) * len(weights)))()
    size, address = ctypes.sizeof(found), ctypes.addressof(found)
    _call(ggml, "ggml_backend_tensor_get", product, address, 0, size)
    return list(found)


def q8_blocks(row: list[int]) -> bytes:
    """The row as Q8_0."""
    return b"".join(
        struct.pack(f"<e{_BLOCK_SIZE}b", _SCALE, *row[first : first + _BLOCK_SIZE])
        for first in range(0, _WIDTH, _BLOCK_SIZE)
    )


def main(library: str) -> None:
    """Try the kernels of the library at that path."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # leave no core file
    ggml = ctypes.CDLL(library)
    for buffer_type in listed(extra_buffer_types(ggml)):
        if name_of(ggml, buffer_type) == BUFFER_TYPE and products_are_right(ggml, buffer_type):
            sys.stdout.write(RIGHT)


if __name__ == "__main__":
    main(sys.argv[1])
