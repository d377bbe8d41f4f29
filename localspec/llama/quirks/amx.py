"""Uses ggml's AMX kernels only where a trial shows that they compute correctly.

A source build on a Linux processor with AMX has them. GCC 12 drops all but the first bytes of
the tile configuration in ggml_tile_config_init as dead stores (its ldtilecfg is said to read
eight bytes), and the first product of a batch ends the process. Where they are right they
decode a quantised model more than twice as fast as the AVX-512 kernels (docs/performance.md).

    python amx.py LIBLLAMA BACK_END NAME

is the trial, in another process, as a file that imports nothing of the package. It writes that
it begins, and then its verdict: a process that ends in between was ended by the product.

Remove it when the oldest supported llama-cpp-python has a ggml that writes that configuration
so that no compiler drops it, or can no longer be built by GCC 12.
"""

from __future__ import annotations

import ctypes
import enum
import os
import struct
import sys
from typing import Any

BUFFER_TYPE = b"AMX"  # the name of ggml's buffer type for weights in the kernels' order
_BEGINS = "begins"  # what the trial writes before the product

_WIDTH = 256
_NUM_OUTPUTS = 64
_NUM_ROWS = 32  # of weights and of a batch
_F32 = 0
_Q8_0 = 8  # of enum ggml_type
_CPU_DEVICE = 0  # of enum ggml_backend_dev_type
_Pointer = ctypes.c_void_p
_Size = ctypes.c_size_t


class _InitParams(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = (("mem_size", _Size), ("mem_buffer", _Pointer), ("no_alloc", ctypes.c_bool))


class AmxTrial(str, enum.Enum):
    """The verdict of a trial. A trial writes the values of the first two."""

    RIGHT = "right"
    WRONG = "wrong"  # a product was wrong, or ended the process
    UNTRIED = "untried"  # no product was computed
    ABSENT = "absent"  # there are no such kernels here, so there was no trial


def leave_out_unless_right(lib: Any) -> AmxTrial:
    """Keep ggml from using the AMX kernels, unless a trial found them right.

    Args:
        lib: The llama_cpp module, whose back ends are loaded.
    """
    from localspec.llama import native

    has_kernels = b"AMX_INT8 = 1" in lib.llama_print_system_info()
    if not (sys.platform.startswith("linux") and has_kernels):
        return AmxTrial.ABSENT
    ggml = native.shared_library(lib)
    verdict = tried(ggml, BUFFER_TYPE)
    if verdict is AmxTrial.RIGHT:
        return verdict
    buffer_types = extra_buffer_types(ggml)
    kept: list[int | None] = []
    for buffer_type in listed(buffer_types):
        if name_of(ggml, buffer_type) != BUFFER_TYPE:
            kept.append(buffer_type)
    kept.append(None)  # the array's end
    for index, kept_type in enumerate(kept):
        buffer_types[index] = kept_type
    return verdict


def tried(ggml: ctypes.CDLL, buffer_type_name: bytes) -> AmxTrial:
    """The verdict of another process on the kernels of a buffer type."""
    from localspec.llama.quirks.own_process import written_by

    library = ggml._name
    back_end = _file_of_cpu_back_end(ggml)
    written = written_by(__file__, library, back_end, buffer_type_name.decode())
    return verdict_of(written)


def verdict_of(written: str) -> AmxTrial:
    """The verdict of a trial by its output."""
    lines = written.split()
    if _BEGINS not in lines:
        return AmxTrial.UNTRIED
    if lines[-1] == AmxTrial.RIGHT.value:
        return AmxTrial.RIGHT
    return AmxTrial.WRONG


def _call(ggml: ctypes.CDLL, name: str, *arguments: Any) -> Any:
    """Result of a function of ggml, as a pointer. Whole numbers are passed as size_t."""
    function = ggml[name]
    function.restype = _Pointer
    values = []
    for argument in arguments:
        if isinstance(argument, int):
            values.append(_Size(argument))
        else:
            values.append(argument)
    return function(*values)


def extra_buffer_types(ggml: ctypes.CDLL) -> Any:
    """The CPU backend's own buffer types, the preferred first: an array that ends with NULL.

    The result is ggml's own array, from which a load chooses one for each weight.
    """
    cpu = _call(ggml, "ggml_backend_dev_by_type", _CPU_DEVICE)
    address = _finder_of_extra_buffer_types(ggml, cpu)
    find = ctypes.CFUNCTYPE(ctypes.POINTER(_Pointer), _Pointer)(address)
    return find(cpu)


def _finder_of_extra_buffer_types(ggml: ctypes.CDLL, cpu: int) -> Any:
    """The address of the CPU back end's function that lists its buffer types."""
    registry = _call(ggml, "ggml_backend_dev_backend_reg", cpu)
    wanted = b"ggml_backend_dev_get_extra_bufts"
    return _call(ggml, "ggml_backend_reg_get_proc_address", registry, wanted)


class _Place(ctypes.Structure):
    """Dl_info."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", _Pointer),
        ("symbol", ctypes.c_char_p),
        ("address", _Pointer),
    )


def _file_of_cpu_back_end(ggml: ctypes.CDLL) -> str:
    """The file from which the CPU back end in use was loaded; several may be loaded."""
    cpu = _call(ggml, "ggml_backend_dev_by_type", _CPU_DEVICE)
    address = _finder_of_extra_buffer_types(ggml, cpu)
    place = _Place()
    find = ctypes.CDLL(None).dladdr
    find.argtypes = (_Pointer, ctypes.POINTER(_Place))
    find(address, ctypes.byref(place))
    return os.fsdecode(place.file)


def listed(buffer_types: Any) -> list[int]:
    """The buffer types in an array that ends with NULL, without the NULL."""
    kept = []
    for buffer_type in buffer_types:
        if buffer_type is None:
            break
        kept.append(buffer_type)
    return kept


def name_of(ggml: ctypes.CDLL, buffer_type: int) -> bytes:
    """The name of a buffer type."""
    return ctypes.string_at(_call(ggml, "ggml_backend_buft_name", buffer_type))


def products_are_right(ggml: ctypes.CDLL, buffer_type: int) -> bool:
    """Whether ones times ones, with weights in such a buffer, give the weights' width.

    Nothing is freed: the process ends soon.
    """
    params = _InitParams(mem_size=1 << 20, no_alloc=True)
    for_weights = _call(ggml, "ggml_init", params)
    for_rows = _call(ggml, "ggml_init", params)
    weight = _call(ggml, "ggml_new_tensor_2d", for_weights, _Q8_0, _WIDTH, _NUM_OUTPUTS)
    _call(ggml, "ggml_backend_alloc_ctx_tensors_from_buft", for_weights, buffer_type)
    ones = [1] * 32
    block = struct.pack("<e32b", 1.0, *ones)
    data = block * (_WIDTH * _NUM_OUTPUTS // 32)
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
    results = (ctypes.c_float * (_NUM_ROWS * _NUM_OUTPUTS))()
    _call(ggml, "ggml_backend_tensor_get", product, results, 0, ctypes.sizeof(results))
    return all(abs(result - _WIDTH) < 1.0 for result in results)


def main(library: str, back_end: str, name: str) -> None:
    """Try the kernels of a buffer type.

    Args:
        library: The path of libllama.
        back_end: The path of its CPU back end, loaded if libllama is not linked to one.
        name: The name of the buffer type. Nothing is written if there is none of that name.
    """
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # leave no core file
    ggml = ctypes.CDLL(library)
    if not ggml.ggml_backend_reg_count():
        _call(ggml, "ggml_backend_load", back_end.encode())
    cpu = _call(ggml, "ggml_backend_dev_by_type", _CPU_DEVICE)
    usual = _call(ggml, "ggml_backend_dev_buffer_type", cpu)
    for buffer_type in [*listed(extra_buffer_types(ggml)), usual]:
        if name_of(ggml, buffer_type) != name.encode():
            continue
        sys.stdout.write(f"{_BEGINS}\n")
        sys.stdout.flush()
        is_right = products_are_right(ggml, buffer_type)
        verdict = AmxTrial.RIGHT if is_right else AmxTrial.WRONG
        sys.stdout.write(verdict.value)
        return


if __name__ == "__main__":
    main(*sys.argv[1:])
