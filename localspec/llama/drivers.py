"""Drivers of GPUs: their versions, and why an installed driver cannot be used."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from localspec.llama.devices import Device

# Environment variables that name the files which describe Vulkan's drivers: in place of the
# files in the usual folders, or in addition to these.
_REPLACING = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")
_ADDING = "VK_ADD_DRIVER_FILES"
# The names of libraries on systems other than Linux.
_VULKAN = {"win32": "vulkan-1.dll", "darwin": "libvulkan.1.dylib"}
_CUDA = {"win32": "nvcuda.dll"}
# Folders in which Vulkan's loader looks for drivers on Linux, in the order of its
# documentation.
_FOLDERS = ("/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/usr/share/vulkan/icd.d")
_MOST_VULKAN_DEVICES = 16


class _InstanceInfo(ctypes.Structure):
    """VkInstanceCreateInfo, with all fields empty."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("application", ctypes.c_void_p),
        ("num_layers", ctypes.c_uint32),
        ("layers", ctypes.c_void_p),
        ("num_extensions", ctypes.c_uint32),
        ("extensions", ctypes.c_void_p),
    )


class _DeviceProperties(ctypes.Structure):
    """The beginning of VkPhysicalDeviceProperties, and space for its other fields."""

    _fields_ = (
        ("api_version", ctypes.c_uint32),
        ("driver_version", ctypes.c_uint32),
        ("vendor", ctypes.c_uint32),
        ("device", ctypes.c_uint32),
        ("type", ctypes.c_int),
        ("name", ctypes.c_char * 256),
        ("rest", ctypes.c_byte * 2048),
    )


def driver_version(device: Device) -> str:
    """A text that differs for each version of a GPU's driver, to be compared only.

    With the system's version instead if the driver's is not known, as for Metal.
    """
    version = ""
    if device.name.startswith("Vulkan"):
        version = _vulkan_versions().get(device.description, "")
    elif device.name.startswith("CUDA"):
        version = _cuda_version()
    return version or f"{platform.system()} {platform.version()}"


def _vulkan_versions() -> dict[str, str]:
    """For each Vulkan device, by name, a text that differs for each version of its driver.

    The numbers are packed and shown as they are, in hexadecimal: they are only compared. Empty
    if Vulkan's loader is not installed, or fails.
    """
    try:
        vulkan: Any = ctypes.CDLL(_VULKAN.get(sys.platform, "libvulkan.so.1"))
    except OSError:
        return {}
    instance = ctypes.c_void_p()
    info = _InstanceInfo(type=1)  # VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO
    if vulkan.vkCreateInstance(ctypes.byref(info), None, ctypes.byref(instance)):
        return {}
    versions = {}
    count = ctypes.c_uint32(_MOST_VULKAN_DEVICES)
    devices = (ctypes.c_void_p * _MOST_VULKAN_DEVICES)()
    if vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), devices) >= 0:
        for pointer in devices[: count.value]:
            device = ctypes.c_void_p(pointer)
            properties = _DeviceProperties()
            vulkan.vkGetPhysicalDeviceProperties(device, ctypes.byref(properties))
            name = properties.name.decode(errors="replace")
            driver = f"driver {properties.driver_version:x}"
            versions[name] = f"{driver}, Vulkan {properties.api_version:x}"
    vulkan.vkDestroyInstance(instance, None)
    return versions


def _cuda_version() -> str:
    """A text with the version of CUDA's driver; "" if it is not installed."""
    version = ctypes.c_int(0)
    try:
        driver: Any = ctypes.CDLL(_CUDA.get(sys.platform, "libcuda.so.1"))
        driver.cuDriverGetVersion(ctypes.byref(version))
    except (AttributeError, OSError):
        return ""
    return f"CUDA driver {version.value}"


def driver_fault(devices: Sequence[Device], *, load_libraries: bool = False) -> str:
    """Why Vulkan cannot use an installed driver, or a device that a variable names, in words.

    Returns "" if there is no fault, or if libllama has a GPU. Drivers are searched for on
    Linux; on other systems only drivers that an environment variable names are checked.

    Args:
        devices: All devices of libllama.
        load_libraries: Whether to try to load drivers that are named without a folder, which
            takes longer. Done in any case if an environment variable names drivers.
    """
    if any(device.kind in ("GPU", "integrated GPU") for device in devices):
        return ""
    variables = (*_REPLACING, _ADDING)
    load_libraries = load_libraries or any(map(os.environ.get, variables))
    for file in _driver_files():
        fault = _file_fault(file, load_library=load_libraries)
        if fault:
            return f"the Vulkan driver of {file} cannot be loaded: {fault}"
    numbers = os.environ.get("GGML_VK_VISIBLE_DEVICES", "")
    if numbers not in ("", "-1"):
        return f"GGML_VK_VISIBLE_DEVICES={numbers} names a device that is not there"
    return ""


def _driver_files() -> list[Path]:
    """The files that describe Vulkan's drivers, as Vulkan's loader finds them."""
    for variable in _REPLACING:
        if os.environ.get(variable):
            return _json_files(_listed_paths(variable))
    paths = _listed_paths(_ADDING)
    if sys.platform.startswith("linux"):
        paths += map(Path, _FOLDERS)
        # Not `Path.home`, which raises an error for a user without a home folder.
        paths.append(Path(os.path.expanduser("~/.local/share/vulkan/icd.d")))
    return _json_files(paths)


def _listed_paths(variable: str) -> list[Path]:
    """The paths that an environment variable lists; none if it is not set."""
    paths = os.environ.get(variable, "").split(os.pathsep)
    return [Path(path) for path in paths if path]


def _json_files(paths: list[Path]) -> list[Path]:
    """The JSON files among these paths, and in the folders among them."""
    files = []
    for path in paths:
        if path.is_dir():
            files += sorted(path.glob("*.json"))
        elif path.suffix == ".json":
            files.append(path)
    return files


def _file_fault(file: Path, *, load_library: bool) -> str:
    """Why a driver cannot be loaded, in words; "" if it can.

    Args:
        file: The file that describes the driver, in Vulkan's JSON format.
        load_library: Whether to load a library that is named without a folder. If not, it
            counts as present.
    """
    try:
        library = json.loads(file.read_text(encoding="utf-8"))["ICD"]["library_path"]
    except OSError as error:
        return error.strerror or str(error)
    except (ValueError, KeyError, TypeError):
        return "it is no description of a driver"
    if "/" in library or "\\" in library:
        path = file.parent / library
        if path.exists():
            return ""
        return f"{path} does not exist"
    if load_library:
        with contextlib.suppress(OSError):
            ctypes.CDLL(library)
            return ""
        return f"{library} is not there, or does not fit this machine"
    return ""
