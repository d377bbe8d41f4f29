"""What localspec finds on this machine: versions, processors, memory, places for files."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from localspec import __version__
from localspec.errors import LocalspecError, PresetError
from localspec.gguf_file.check import check_model_file
from localspec.llama.devices import Device
from localspec.llama.options import LlamaOptions
from localspec.machine import Cores, Memory, cores_here, memory_here
from localspec.models.cache import HubCache
from localspec.models.disk import free_bytes
from localspec.models.hub import locate, missing_files
from localspec.models.hub_api import is_offline
from localspec.models.presets import load_presets, user_presets, user_presets_file
from localspec.policy.profile import num_profiles, profiles_folder
from localspec.preflight.fit import plan_here, room_here
from localspec.preflight.room import PairMemory, Planned, Room

_PACKAGES = ("llama-cpp-python", "numpy", "huggingface-hub", "requests")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheState:
    """The hub's cache. unfinished: files that a download left behind, with their bytes."""

    path: Path
    size_bytes: int
    free_bytes: int
    is_writable: bool
    unfinished: dict[Path, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Facts, not judged.

    packages: versions by name. build: what libllama says of itself. amx_is_left_out: whether
    its AMX kernels are not used, being wrong. processor_flags: what the processor can do, as
    the system names it; empty where that is not known. has_nvidia: whether the driver of an
    NVIDIA GPU is there. room: for models. plans: what each preset whose files are here would
    take of it. presets_fault: message and hint of what is wrong with the user's presets.
    num_profiles: pairs and settings whose costs are known.
    """

    version: str
    python: str
    system: str
    packages: dict[str, str]
    build: str
    amx_is_left_out: bool
    processor_flags: frozenset[str]
    has_nvidia: bool
    devices: tuple[Device, ...]
    cores: Cores
    memory: Memory
    room: Room
    plans: dict[str, PairMemory]
    cache: CacheState
    num_profiles: int
    profiles_folder: Path
    presets_file: Path
    presets_fault: tuple[str, str] | None
    is_offline: bool


def inspect_installation() -> Installation:
    """Look at everything once. Asks no network."""
    from localspec.llama.library import amx_is_left_out, devices, system_info  # loads libllama

    return Installation(
        version=__version__,
        python=platform.python_version(),
        system=platform.platform(),
        packages={name: importlib.metadata.version(name) for name in _PACKAGES},
        build=system_info(),
        amx_is_left_out=amx_is_left_out,
        processor_flags=_processor_flags(),
        has_nvidia=shutil.which("nvidia-smi") is not None,
        devices=devices(),
        cores=cores_here(),
        memory=memory_here(),
        room=room_here(),
        plans=_plans(),
        cache=_cache_state(),
        num_profiles=num_profiles(),
        profiles_folder=profiles_folder(),
        presets_file=user_presets_file(),
        presets_fault=_presets_fault(),
        is_offline=is_offline(),
    )


def _processor_flags() -> frozenset[str]:
    """Flags in Linux's words (avx2, avx512f); elsewhere none are known."""
    if not sys.platform.startswith("linux"):
        return frozenset()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, values = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(values.split())
    return frozenset()


def _plans() -> dict[str, PairMemory]:
    """What presets whose files are here would take, by their names; none of faulty ones."""
    plans = {}
    for name, preset in load_presets().items():
        if missing_files(preset):
            continue
        with contextlib.suppress(LocalspecError):
            options = LlamaOptions(context_length=preset.context_length)
            plans[name] = plan_here(
                [
                    Planned(check_model_file(path), options, role)
                    for role, path in locate(preset).by_role().items()
                ]
            ).memory
    return plans


def _cache_state() -> CacheState:
    cache = HubCache()
    root = cache.root
    there = next(place for place in (root, *root.parents) if place.exists())
    return CacheState(
        path=root,
        size_bytes=cache.num_bytes(),
        free_bytes=free_bytes(root),
        is_writable=os.access(there, os.W_OK),
        unfinished=cache.unfinished(),
    )


def _presets_fault() -> tuple[str, str] | None:
    try:
        user_presets()
    except PresetError as error:
        return str(error), error.hint
    return None
