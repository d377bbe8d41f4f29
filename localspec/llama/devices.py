"""The devices that ggml can compute on.

Each function takes the llama_cpp module: `llama/library.py` is the one place that imports it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from localspec.llama import native

REMOTE = "remote"  # the kind of a device of an RPC server, which does not say what it is
_KINDS = ("CPU", "GPU", "integrated GPU", "accelerator", "group")  # of ggml_backend_dev_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A processor that ggml knows.

    kind: "CPU", "GPU", "integrated GPU" (in the main memory), "accelerator" (beside the CPU),
    "group" (of GPUs), or "remote" for one of an RPC server, which does not say what it is.
    free_bytes, total_bytes: its memory as the driver states it. server: the address of that
    RPC server; empty for a device of this machine.
    """

    name: str
    description: str
    kind: str
    free_bytes: int
    total_bytes: int
    server: str = ""


def device_pointers(lib: Any) -> list[int]:
    """ggml's pointers to every device of every backend of this build."""
    ggml, size = native.shared_library(lib), ctypes.c_size_t
    count = ctypes.CFUNCTYPE(size)(("ggml_backend_dev_count", ggml))
    get = ctypes.CFUNCTYPE(ctypes.c_void_p, size)(("ggml_backend_dev_get", ggml))
    return [get(index) for index in range(count())]


def list_devices(lib: Any) -> tuple[Device, ...]:
    """What those devices are, in the same order."""
    ggml = native.shared_library(lib)
    pointer = ctypes.c_void_p
    name = ctypes.CFUNCTYPE(ctypes.c_char_p, pointer)(("ggml_backend_dev_name", ggml))
    about = ctypes.CFUNCTYPE(ctypes.c_char_p, pointer)(("ggml_backend_dev_description", ggml))
    kind = ctypes.CFUNCTYPE(ctypes.c_int, pointer)(("ggml_backend_dev_type", ggml))
    devices = []
    for device in device_pointers(lib):
        free_bytes, total_bytes = device_memory(lib, device)
        number = kind(device)
        devices.append(
            Device(
                name=name(device).decode(errors="replace"),
                description=about(device).decode(errors="replace"),
                kind=_KINDS[number] if number < len(_KINDS) else f"kind {number}",
                free_bytes=free_bytes,
                total_bytes=total_bytes,
            )
        )
    return tuple(devices)


def device_memory(lib: Any, device: int) -> tuple[int, int]:
    """What is free and what there is, in bytes. device: ggml's pointer to it."""
    sizes = ctypes.POINTER(ctypes.c_size_t)
    ask = ctypes.CFUNCTYPE(None, ctypes.c_void_p, sizes, sizes)(
        ("ggml_backend_dev_memory", native.shared_library(lib))
    )
    free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
    ask(device, ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def cpu_buffer_type(lib: Any) -> int:
    """ggml's pointer to the kind of buffers in main memory."""
    ggml = native.shared_library(lib)
    found: int = ctypes.CFUNCTYPE(ctypes.c_void_p)(("ggml_backend_cpu_buffer_type", ggml))()
    return found
