"""Uses ggml's AMX kernels only where a trial shows that they compute correctly.

A source build on a Linux processor with AMX has such kernels. Compiled by GCC 12, they end the
process at the first product of a batch: GCC 12 believes that ldtilecfg reads only eight bytes
of the tile configuration, and drops the code in ggml_tile_config_init that writes the others.
Where the kernels are right they decode a quantised model more than twice as fast as the AVX-512
kernels (docs/performance.md).

    python amx.py LIBLLAMA BACK_END NAME

runs the trial, in another process, since a product may end it. So this file imports nothing of
the package at its top. The trial writes that it begins, and then its verdict; if the verdict is
missing, the product has ended the process.

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

# The trial's product: weights (_NUM_OUTPUTS, _WIDTH) times a batch (_NUM_ROWS, _WIDTH).
_WIDTH = 256
_NUM_OUTPUTS = 64
_NUM_ROWS = 32
_BLOCK_WIDTH = 32  # numbers of a block of Q8_0, which has a scale (float16) and their bytes
_F32 = 0  # of enum ggml_type
_Q8_0 = 8  # of enum ggml_type
_CPU_DEVICE = 0  # of enum ggml_backend_dev_type
_MEMORY_BYTES = 1 << 20  # for the descriptions of tensors and of the graph
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
    """Keep ggml from using the AMX kernels, unless a trial finds them right.

    Args:
        lib: The llama_cpp module, whose back ends are loaded.

    Returns:
        The verdict of the trial.
    """
    from localspec.llama import native

    has_kernels = b"AMX_INT8 = 1" in lib.llama_print_system_info()
    if not (sys.platform.startswith("linux") and has_kernels):
        return AmxTrial.ABSENT
    ggml = native.shared_library(lib)
    verdict = run_trial(ggml, BUFFER_TYPE)
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


def run_trial(ggml: ctypes.CDLL, buffer_type_name: bytes) -> AmxTrial:
    """Try the kernels of a buffer type in another process. Returns the verdict."""
    from localspec.llama.quirks.own_process import program_output

    library = ggml._name
    back_end = _file_of_cpu_back_end(ggml)
    output = program_output(__file__, library, back_end, buffer_type_name.decode())
    return verdict_of(output)


def verdict_of(output: str) -> AmxTrial:
    """The verdict that the output of a trial stands for."""
    words = output.split()
    if _BEGINS not in words:
        return AmxTrial.UNTRIED
    if words[-1] == AmxTrial.RIGHT.value:
        return AmxTrial.RIGHT
    return AmxTrial.WRONG


def _call(ggml: ctypes.CDLL, name: str, *arguments: Any) -> Any:
    """Call a function of ggml. Returns its result as a pointer.

    Args:
        ggml: A library through which the function can be found.
        name: The function's name.
        arguments: Its arguments. An int is passed as size_t.
    """
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
    """The CPU back end's own buffer types, the preferred first: an array that ends with NULL.

    This is ggml's own array, not a copy: a load chooses a buffer type from it for each weight.
    """
    cpu = _call(ggml, "ggml_backend_dev_by_type", _CPU_DEVICE)
    address = _address_of_buffer_type_lister(ggml, cpu)
    list_types = ctypes.CFUNCTYPE(ctypes.POINTER(_Pointer), _Pointer)(address)
    return list_types(cpu)


def _address_of_buffer_type_lister(ggml: ctypes.CDLL, cpu: int) -> Any:
    """The address of the CPU back end's function that lists its own buffer types.

    Args:
        ggml: libllama.
        cpu: ggml's pointer to the CPU device.
    """
    registry = _call(ggml, "ggml_backend_dev_backend_reg", cpu)
    function_name = b"ggml_backend_dev_get_extra_bufts"
    return _call(ggml, "ggml_backend_reg_get_proc_address", registry, function_name)


class _SymbolInfo(ctypes.Structure):
    """Dl_info of the C library: where the code at an address comes from."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", _Pointer),
        ("symbol", ctypes.c_char_p),
        ("address", _Pointer),
    )


def _file_of_cpu_back_end(ggml: ctypes.CDLL) -> str:
    """The path of the library that has the CPU back end in use, one of perhaps several."""
    cpu = _call(ggml, "ggml_backend_dev_by_type", _CPU_DEVICE)
    address = _address_of_buffer_type_lister(ggml, cpu)
    info = _SymbolInfo()
    dladdr = ctypes.CDLL(None).dladdr
    dladdr.argtypes = (_Pointer, ctypes.POINTER(_SymbolInfo))
    dladdr(address, ctypes.byref(info))
    return os.fsdecode(info.file)


def listed(buffer_types: Any) -> list[int]:
    """The elements before the NULL in an array of pointers to buffer types."""
    elements = []
    for buffer_type in buffer_types:
        if buffer_type is None:
            break
        elements.append(buffer_type)
    return elements


def name_of(ggml: ctypes.CDLL, buffer_type: int) -> bytes:
    """The name of a buffer type. buffer_type: ggml's pointer to it."""
    name_pointer = _call(ggml, "ggml_backend_buft_name", buffer_type)
    return ctypes.string_at(name_pointer)


def products_are_right(ggml: ctypes.CDLL, buffer_type: int) -> bool:
    """Whether ggml multiplies rightly with weights in a buffer of a type.

    Weights and batch consist of ones, so each number of the product has to be their width.
    Nothing is freed: the process ends soon.
    """
    params = _InitParams(mem_size=_MEMORY_BYTES, no_alloc=True)
    weights_context = _call(ggml, "ggml_init", params)
    batch_context = _call(ggml, "ggml_init", params)
    new_tensor = "ggml_new_tensor_2d"
    weights = _call(ggml, new_tensor, weights_context, _Q8_0, _WIDTH, _NUM_OUTPUTS)
    _call(ggml, "ggml_backend_alloc_ctx_tensors_from_buft", weights_context, buffer_type)
    scale = struct.pack("<e", 1.0)
    block = scale + b"\1" * _BLOCK_WIDTH
    num_blocks = _WIDTH * _NUM_OUTPUTS // _BLOCK_WIDTH
    weights_data = block * num_blocks
    _call(ggml, "ggml_backend_tensor_set", weights, weights_data, 0, len(weights_data))

    cpu = _call(ggml, "ggml_backend_dev_by_type", _CPU_DEVICE)
    backend = _call(ggml, "ggml_backend_dev_init", cpu, None)
    batch = _call(ggml, new_tensor, batch_context, _F32, _WIDTH, _NUM_ROWS)
    product = _call(ggml, "ggml_mul_mat", batch_context, weights, batch)
    graph = _call(ggml, "ggml_new_graph", batch_context)
    _call(ggml, "ggml_build_forward_expand", graph, product)
    _call(ggml, "ggml_backend_alloc_ctx_tensors", batch_context, backend)
    one = struct.pack("<f", 1.0)
    batch_data = one * (_WIDTH * _NUM_ROWS)
    _call(ggml, "ggml_backend_tensor_set", batch, batch_data, 0, len(batch_data))
    _call(ggml, "ggml_backend_graph_compute", backend, graph)
    results = (ctypes.c_float * (_NUM_ROWS * _NUM_OUTPUTS))()
    _call(ggml, "ggml_backend_tensor_get", product, results, 0, ctypes.sizeof(results))
    return all(abs(result - _WIDTH) < 1.0 for result in results)


def main(library: str, back_end: str, name: str) -> None:
    """Run the trial: compute a product with the kernels of a buffer type, and write a verdict.

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
    buffer_types = listed(extra_buffer_types(ggml))
    buffer_types.append(_call(ggml, "ggml_backend_dev_buffer_type", cpu))  # the usual one
    for buffer_type in buffer_types:
        if name_of(ggml, buffer_type) != name.encode():
            continue
        sys.stdout.write(f"{_BEGINS}\n")
        sys.stdout.flush()
        verdict = AmxTrial.WRONG
        if products_are_right(ggml, buffer_type):
            verdict = AmxTrial.RIGHT
        sys.stdout.write(verdict.value)
        return


if __name__ == "__main__":
    main(*sys.argv[1:])
