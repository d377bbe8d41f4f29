"""The devices that ggml can compute on.

`lib` is always the llama_cpp module: `llama/loaded.py` alone imports it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.llama.native import ggml_function

REMOTE = "remote"  # the kind of a device of an RPC server
_KINDS = ("CPU", "GPU", "integrated GPU", "accelerator", "group")  # by ggml_backend_dev_type
# Environment variables that name the GPUs to use, and so hide all others.
_HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES")
_LEAST_CARD_BYTES = 4_000_000_000  # a GPU with less memory of its own is mostly in a processor


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A processor that ggml can compute on."""

    name: str
    """llama.cpp's name, as "Vulkan0"."""

    description: str
    """The driver's name for it, such as the model of a card."""

    kind: str
    """"CPU", "GPU", "integrated GPU" (in the main memory), "accelerator" (of the CPU),
    "group" (of GPUs), or "remote" (of an RPC server, which does not say what it is)."""

    free_bytes: int
    """Free memory, as the driver says."""

    total_bytes: int
    """All memory, as the driver says."""

    server: str = ""
    """The address of the RPC server; empty for a device of this machine."""


def device_pointers(lib: Any) -> list[int]:
    """ggml's pointers to every device of every back end of this build."""
    size = ctypes.c_size_t
    count = ggml_function(lib, "ggml_backend_dev_count", size)
    get = ggml_function(lib, "ggml_backend_dev_get", ctypes.c_void_p, size)
    return [get(index) for index in range(count())]


def list_devices(lib: Any) -> tuple[Device, ...]:
    """The devices of `device_pointers`, in the same order."""
    text = ctypes.c_char_p
    pointer = ctypes.c_void_p
    name_of = ggml_function(lib, "ggml_backend_dev_name", text, pointer)
    description_of = ggml_function(lib, "ggml_backend_dev_description", text, pointer)
    type_of = ggml_function(lib, "ggml_backend_dev_type", ctypes.c_int, pointer)
    devices = []
    for device in device_pointers(lib):
        free_bytes, total_bytes = device_memory(lib, device)
        type_number = type_of(device)
        kind = f"kind {type_number}"
        if type_number < len(_KINDS):
            kind = _KINDS[type_number]
        devices.append(
            Device(
                name=name_of(device).decode(errors="replace"),
                description=description_of(device).decode(errors="replace"),
                kind=kind,
                free_bytes=free_bytes,
                total_bytes=total_bytes,
            )
        )
    return tuple(devices)


def device_memory(lib: Any, device: int) -> tuple[int, int]:
    """The free and the total bytes of a device's memory. device: ggml's pointer to it."""
    name = "ggml_backend_dev_memory"
    size_pointer = ctypes.POINTER(ctypes.c_size_t)
    get_memory = ggml_function(lib, name, None, ctypes.c_void_p, size_pointer, size_pointer)
    free = ctypes.c_size_t(0)
    total = ctypes.c_size_t(0)
    get_memory(device, ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def gpus_of_drivers(root: Path = Path("/")) -> list[str]:
    """Names of the GPUs for which drivers are installed, whether libllama can use them or not.

    Args:
        root: The folder below which Linux's proc and sys are read.
    """
    if sys.platform == "darwin":
        if platform.machine() == "arm64":
            return ["the GPU of this Mac"]
        return []
    names = []
    with contextlib.suppress(OSError, ValueError):
        for file in sorted(root.glob("proc/driver/nvidia/gpus/*/information")):
            names += re.findall(r"^Model:\s*(.+)", file.read_text(), re.MULTILINE)
        for file in root.glob("sys/class/drm/card*/device/mem_info_vram_total"):  # AMD's
            if int(file.read_text()) >= _LEAST_CARD_BYTES:
                names.append("an AMD GPU")
    if not names and shutil.which("nvidia-smi") is not None:
        names.append("an NVIDIA GPU")
    return names


def hiding_variable() -> str | None:
    """The environment variable that hides CUDA's, ROCm's or Vulkan's GPUs from libllama.

    It does so if it is set to nothing, or to -1. Returns None if no variable does.
    """
    for name in _HIDING:
        if os.environ.get(name) in ("", "-1"):
            return name
    return None
