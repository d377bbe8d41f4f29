"""The devices that ggml can compute on.

Each function takes the llama_cpp module: `llama/library.py` is the one place that imports it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from localspec.llama import native

_KINDS = ("CPU", "GPU", "integrated GPU", "accelerator", "group")  # of ggml_backend_dev_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A processor that ggml knows.

    kind: "CPU", "GPU", "integrated GPU" (in the main memory), "accelerator" (beside the CPU)
    or "group" (of GPUs). free_bytes, total_bytes: its memory as the driver states it.
    """

    name: str
    description: str
    kind: str
    free_bytes: int
    total_bytes: int


def list_devices(lib: Any) -> tuple[Device, ...]:
    """Every device of every backend of this build."""
    ggml = native.shared_library(lib)
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    count = ctypes.CFUNCTYPE(size)(("ggml_backend_dev_count", ggml))
    get = ctypes.CFUNCTYPE(pointer, size)(("ggml_backend_dev_get", ggml))
    name = ctypes.CFUNCTYPE(ctypes.c_char_p, pointer)(("ggml_backend_dev_name", ggml))
    about = ctypes.CFUNCTYPE(ctypes.c_char_p, pointer)(("ggml_backend_dev_description", ggml))
    kind = ctypes.CFUNCTYPE(ctypes.c_int, pointer)(("ggml_backend_dev_type", ggml))
    sizes = ctypes.POINTER(size)
    memory = ctypes.CFUNCTYPE(None, pointer, sizes, sizes)(("ggml_backend_dev_memory", ggml))
    devices = []
    for index in range(count()):
        device = get(index)
        free, total = size(0), size(0)
        memory(device, ctypes.byref(free), ctypes.byref(total))
        number = kind(device)
        devices.append(
            Device(
                name=name(device).decode(errors="replace"),
                description=about(device).decode(errors="replace"),
                kind=_KINDS[number] if number < len(_KINDS) else f"kind {number}",
                free_bytes=free.value,
                total_bytes=total.value,
            )
        )
    return tuple(devices)


def cpu_buffer_type(lib: Any) -> int:
    """ggml's pointer to the kind of buffers that lie in the main memory."""
    ggml = native.shared_library(lib)
    found: int = ctypes.CFUNCTYPE(ctypes.c_void_p)(("ggml_backend_cpu_buffer_type", ggml))()
    return found
