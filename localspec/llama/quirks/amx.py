"""Uses ggml's AMX kernels only where a trial shows that they compute correctly.

A source build on a Linux processor with AMX has them. GCC 12 drops all but the first bytes of
the tile configuration in ggml_tile_config_init as dead stores (its ldtilecfg is said to read
eight bytes), and the first product of a batch ends the process. Where they are right they
decode a quantised model more than twice as fast as the AVX-512 kernels (docs/performance.md).

    python amx.py LIBLLAMA

is the trial, in another process, as a file that imports nothing of the package.

Remove it when the oldest supported llama-cpp-python has a ggml that writes that configuration
so that no compiler drops it, or can no longer be built by GCC 12.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
import sys
from typing import Any

BUFFER_TYPE = b"AMX"  # the name of ggml's buffer type for weights in the kernels' order
RIGHT = "right"  # what the trial writes

_WIDTH, _NUM_OUTPUTS, _NUM_ROWS = 256, 64, 32  # of weights and of a batch
_F32, _Q8_0 = 0, 8  # of enum ggml_type
_CPU_DEVICE = 0  # of enum ggml_backend_dev_type
_Pointer, _Size = ctypes.c_void_p, ctypes.c_size_t


class _InitParams(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = (("mem_size", _Size), ("mem_buffer", _Pointer), ("no_alloc", ctypes.c_bool))


def leave_out_if_wrong(lib: Any) -> bool:
    """Keep ggml from placing weights where faulty kernels would multiply them.

    Returns whether that was necessary. lib: the llama_cpp module.
    """
    from localspec.llama import native
    from localspec.llama.quirks.own_process import written_by

    has_kernels = b"AMX_INT8 = 1" in lib.llama_print_system_info()
    if not (sys.platform.startswith("linux") and has_kernels):
        return False
    ggml = native.shared_library(lib)
    if written_by(__file__, ggml._name) == RIGHT:
        return False
    buffer_types = extra_buffer_types(ggml)
    kept = [each for each in listed(buffer_types) if name_of(ggml, each) != BUFFER_TYPE]
    for index, buffer_type in enumerate([*kept, None]):
        buffer_types[index] = buffer_type
    return True


def _call(ggml: ctypes.CDLL, name: str, *arguments: Any) -> Any:
    """Result of a function of ggml, as a pointer."""
    function = ggml[name]
    function.restype = _Pointer
    return function(*(_Size(each) if isinstance(each, int) else each for each in arguments))


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
    return ctypes.string_at(_call(ggml, "ggml_backend_buft_name", buffer_type))


def products_are_right(ggml: ctypes.CDLL, buffer_type: int) -> bool:
    """Whether a batch of ones times weights in such a buffer, all ones, gives their number.

    Nothing is freed: the process ends soon.
    """
    params = _InitParams(mem_size=1 << 20, no_alloc=True)
    for_weights, for_rows = (_call(ggml, "ggml_init", params) for _ in range(2))
    weight = _call(ggml, "ggml_new_tensor_2d", for_weights, _Q8_0, _WIDTH, _NUM_OUTPUTS)
    _call(ggml, "ggml_backend_alloc_ctx_tensors_from_buft", for_weights, buffer_type)
    data = struct.pack("<e32b", 1.0, *[1] * 32) * (_WIDTH * _NUM_OUTPUTS // 32)
    _call(ggml, "ggml_backend_tensor_set", weight, data, 0, len(data))

    cpu = _call(ggml, "ggml_backend_dev_by_type", _CPU_DEVICE)
    backend = _call(ggml, "ggml_backend_dev_init", cpu, None)
    batch = _call(ggml, "ggml_new_tensor_2d", for_rows, _F32, _WIDTH, _NUM_ROWS)
    product = _call(ggml, "ggml_mul_mat", for_rows, weight, batch)
    graph = _call(ggml, "ggml_new_graph", for_rows)
    _call(ggml, "ggml_build_forward_expand", graph, product)
    _call(ggml, "ggml_backend_alloc_ctx_tensors", for_rows, backend)
    data = struct.pack("<f", 1.0) * (_WIDTH * _NUM_ROWS)
    _call(ggml, "ggml_backend_tensor_set", batch, data, 0, len(data))
    _call(ggml, "ggml_backend_graph_compute", backend, graph)
    found = (ctypes.c_float * (_NUM_ROWS * _NUM_OUTPUTS))()
    _call(ggml, "ggml_backend_tensor_get", product, found, 0, ctypes.sizeof(found))
    return all(abs(each - _WIDTH) < 1.0 for each in found)


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
