"""`LlamaOptions` as libllama's parameters of a model and of its context."""

from __future__ import annotations

import ctypes
from typing import Any

from localspec.errors import OptionError
from localspec.gguf_file.tensor_types import type_number
from localspec.llama.devices import cpu_buffer_type, device_pointers, list_devices
from localspec.llama.library import llama_cpp
from localspec.llama.options import BATCH_SIZE, LlamaOptions, graph_batch_size, num_cells
from localspec.llama.placement import experts_pattern, usable_gpus
from localspec.llama.rpc_backend import remote_pointers
from localspec.machine import num_usable_cores

_FLASH_ATTENTION = {"auto": "AUTO", "on": "ENABLED", "off": "DISABLED"}


def model_params(options: LlamaOptions) -> Any:
    """llama_model_params, which keep alive what they point to."""
    params = llama_cpp.llama_model_default_params()
    params.load_mtp = bool(options.with_head)
    params.use_extra_bufts = options.repack is not False
    if options.num_gpu_layers is not None:
        params.n_gpu_layers = options.num_gpu_layers
    if options.rpc:
        devices = [*remote_pointers(options.rpc), *_gpus_here(), None]
        _point_to(params, "devices", (ctypes.c_void_p * len(devices))(*devices))
    elif options.num_gpu_layers == 0:
        # Otherwise libllama takes GPU memory all the same, to compute prompts there, and does
        # not repack weights for the processor.
        _point_to(params, "devices", (ctypes.c_void_p * 1)(None))
    if options.num_cpu_moe_layers:
        experts = _BufferOverride(
            experts_pattern(options.num_cpu_moe_layers).encode(), cpu_buffer_type(llama_cpp)
        )
        _point_to(params, "tensor_buft_overrides", (_BufferOverride * 2)(experts))
    if options.main_gpu is not None:
        _check_gpu(options.main_gpu)
        params.main_gpu = options.main_gpu
        params.split_mode = llama_cpp.LLAMA_SPLIT_MODE_NONE  # otherwise it is ignored
    if options.tensor_split:
        shares = (ctypes.c_float * llama_cpp.llama_max_devices())(*options.tensor_split)
        params.tensor_split = shares
    if options.use_mmap is not None or options.use_mlock:
        use_mmap = options.use_mmap is not False
        mode = {
            (True, True): llama_cpp.LLAMA_LOAD_MODE_MMAP_MLOCK,
            (True, False): llama_cpp.LLAMA_LOAD_MODE_MMAP,
            (False, True): llama_cpp.LLAMA_LOAD_MODE_MLOCK,
            (False, False): llama_cpp.LLAMA_LOAD_MODE_NONE,
        }
        params.load_mode = mode[use_mmap, options.use_mlock]
    return params


class _BufferOverride(ctypes.Structure):
    """llama_model_tensor_buft_override; an array of them ends with one of nulls."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def _point_to(params: Any, field: str, array: Any) -> None:
    """Set a field that llama-cpp-python has as an untyped pointer; keep the array alive."""
    setattr(params, field, ctypes.addressof(array))
    setattr(params, f"{field}_array", array)  # kept by Python: the field holds a number


def _gpus_here() -> list[int]:
    """ggml's pointers to the GPUs that libllama takes by itself."""
    found = list_devices(llama_cpp)
    usable = usable_gpus(found)
    pointers = zip(device_pointers(llama_cpp), found, strict=True)
    return [pointer for pointer, device in pointers if device in usable]


def _check_gpu(number: int) -> None:
    """Raise OptionError for a GPU that does not exist; without any, the processor computes."""
    names = [gpu.name for gpu in usable_gpus(list_devices(llama_cpp))]
    if names and number >= len(names):
        listed = ", ".join(f"{index} for {name}" for index, name in enumerate(names))
        raise OptionError(f"there is no GPU {number}", f"Choose main_gpu=N: {listed}.")


def context_params(options: LlamaOptions, context_length: int) -> Any:
    """llama_context_params."""
    params = llama_cpp.llama_context_default_params()
    # Each sequence has cells of its own, and its decodes are those of a context of one, to the
    # bit. In cells that all share, attention would read those of the others, too.
    params.n_seq_max = options.num_sequences
    params.n_ctx = num_cells(context_length) * options.num_sequences
    # libllama ends the process where a batch or its rows are fewer than its sequences, or than
    # the cells of a picture that is read at once.
    at_once = options.num_picture_cells
    params.n_batch = max(min(BATCH_SIZE, context_length), options.num_sequences, at_once)
    params.n_ubatch = max(graph_batch_size(options.flash_attention, context_length), at_once)
    params.n_outputs_max = options.most_outputs
    params.n_rs_seq = options.num_snapshots or 0
    params.n_threads = options.num_threads or num_usable_cores()
    # By default the same: otherwise a batch of one and a batch of n run on different cores,
    # and verifying does not cost what was measured.
    params.n_threads_batch = options.num_batch_threads or params.n_threads
    flash_attention = _FLASH_ATTENTION[options.flash_attention]
    params.flash_attn_type = getattr(llama_cpp, f"LLAMA_FLASH_ATTN_TYPE_{flash_attention}")
    for field, name in (("type_k", options.cache_type_k), ("type_v", options.cache_type_v)):
        if name is not None:
            setattr(params, field, type_number(name))
    return params
