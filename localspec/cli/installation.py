"""The facts of `localspec doctor`: the state of this machine, and what could be better."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec._version import __version__
from localspec.errors import PresetError, RpcError
from localspec.hub.api import is_offline
from localspec.hub.model_stores import HubCache, free_bytes
from localspec.llama.binding import installed_library
from localspec.llama.devices import Device, hiding_variable
from localspec.llama.drivers import driver_fault
from localspec.llama.own_build import OWN_ORIGIN, all_builds
from localspec.llama.placement import unused_gpu, usable_gpus
from localspec.llama.quirks.amx import AmxTrial
from localspec.llama.rpc_servers import RpcServer, ask_servers
from localspec.planning.device_trials import trials_in_words
from localspec.planning.free_memory import MemoryRoom, free_memory
from localspec.planning.plan import MARGIN_BYTES
from localspec.policy.profile import is_of_exactness, kept_profiles, profiles_folder
from localspec.presets.presets import load_presets, user_presets, user_presets_file
from localspec.system.machine import Cores, Memory, cores_here, memory_here

_LITTLE_DISK_BYTES = 2_000_000_000
_LITTLE_MEMORY_BYTES = 1_000_000_000
_BUILDS = "https://github.com/abetlen/llama-cpp-python#installation"
# libllama's name for a feature, and the processor's flag for it.
_FEATURES = {
    "AVX2": "avx2",
    "FMA": "fma",
    "AVX512": "avx512f",
    "AVX512_VNNI": "avx512_vnni",
    "AMX_INT8": "amx_int8",
    "DOTPROD": "asimddp",
}
_PACKAGES = ("llama-cpp-python", "numpy", "huggingface-hub")


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem, and what to do about it."""

    what: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HubCacheState:
    """The hub's cache."""

    path: Path
    size_bytes: int
    free_bytes: int
    is_writable: bool
    unfinished: dict[Path, int]
    """Files that a download left behind, with their bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The state of this machine; `problems` judges it."""

    version: str
    python: str
    system: str
    packages: dict[str, str]
    """Versions by name."""

    library: str
    """Where libllama is from."""

    build: str
    """libllama's own description."""

    stale_builds: dict[Path, str]
    """Why each libllama that was compiled here is not used, by its folder."""

    amx_verdict: AmxTrial
    """What a trial of its AMX kernels found."""

    processor_flags: frozenset[str]
    """The processor's features, as the system names them; empty if they are not known."""

    unused_gpu: str
    """A GPU that libllama cannot compute on, and why, or ""."""

    driver_fault: str
    """A driver or a device that should be there and is not, in words, or ""."""

    trials: tuple[str, ...]
    """What was measured of devices, a sentence for each."""

    devices: tuple[Device, ...]
    """The devices, those of RPC servers included."""

    rpc_faults: tuple[tuple[str, str], ...]
    """Message and hint for each fault of a server."""

    cores: Cores
    memory: Memory
    room: MemoryRoom
    """Free memory of this machine."""

    cache: HubCacheState
    num_profiles: int
    """Pairs and settings whose costs are known."""

    num_exact: int
    """Models and settings that were found exact."""

    profiles_folder: Path
    presets_file: Path
    presets_fault: tuple[str, str] | None
    """Message and hint if the user's presets are malformed."""

    is_offline: bool

    @property
    def problems(self) -> list[Problem]:
        """All problems, the most serious first."""
        finders = (_faults, _build, _limits)
        return [problem for find in finders for problem in find(self)]


def inspect_installation(rpc: Sequence[str]) -> Installation:
    """Look at everything once. Only RPC servers are contacted: these, and those of presets.

    Args:
        rpc: Checked addresses.
    """
    from localspec.llama.library import amx_verdict, devices, system_info  # loads libllama
    from localspec.llama.loaded import library

    of_presets = [address for one in load_presets().values() for address in one.rpc]
    servers, rpc_faults = _servers(tuple(dict.fromkeys((*rpc, *of_presets))))
    kept = [is_of_exactness(identity) for _, identity, _ in kept_profiles()]
    return Installation(
        version=__version__,
        python=platform.python_version(),
        system=platform.platform(),
        packages={name: importlib.metadata.version(name) for name in _PACKAGES},
        library=library.origin,
        build=system_info(),
        stale_builds=_stale_builds(),
        amx_verdict=amx_verdict,
        processor_flags=_processor_flags(),
        unused_gpu="" if usable_gpus(devices()) else unused_gpu((), None),
        driver_fault=driver_fault(devices(), load_libraries=True),
        trials=tuple(trials_in_words()),
        devices=(*devices(), *(device for server in servers for device in server.devices)),
        rpc_faults=rpc_faults,
        cores=cores_here(),
        memory=memory_here(),
        room=free_memory(),
        cache=_cache_state(HubCache()),
        num_profiles=sum(not exact for exact in kept),
        num_exact=sum(kept),
        profiles_folder=profiles_folder(),
        presets_file=user_presets_file(),
        presets_fault=_presets_fault(),
        is_offline=is_offline(),
    )


def _stale_builds() -> dict[Path, str]:
    if "LLAMA_CPP_LIB_PATH" in os.environ:  # none is used, and none is stale for that
        return {}
    installed = installed_library().origin
    reasons = {build.folder: build.staleness(installed) for build in all_builds()}
    return {folder: reason for folder, reason in reasons.items() if reason}


def _servers(addresses: tuple[str, ...]) -> tuple[list[RpcServer], tuple[tuple[str, str], ...]]:
    """The RPC servers that answer, and message and hint of every fault."""
    from localspec.llama.rpc_backend import server_fault  # loads libllama

    found = []
    faults = []
    for server in ask_servers(addresses):
        fault = server if isinstance(server, RpcError) else server_fault(server)
        if not isinstance(server, RpcError):
            found.append(server)
        if fault is not None:
            faults.append((str(fault), fault.hint))
    return found, tuple(dict.fromkeys(faults))


def _processor_flags() -> frozenset[str]:
    """Linux's names (avx2, avx512f); empty on other systems."""
    if sys.platform.startswith("linux"):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, values = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return frozenset(values.split())
    return frozenset()


def _cache_state(cache: HubCache) -> HubCacheState:
    root = cache.root
    existing = next(folder for folder in (root, *root.parents) if folder.exists())
    return HubCacheState(
        path=root,
        size_bytes=cache.num_bytes(),
        free_bytes=free_bytes(root),
        is_writable=os.access(existing, os.W_OK),
        unfinished=cache.unfinished(),
    )


def _presets_fault() -> tuple[str, str] | None:
    try:
        user_presets()
    except PresetError as error:
        return str(error), error.hint
    return None


def _faults(found: Installation) -> Iterator[Problem]:
    if found.presets_fault is not None:
        yield Problem(*found.presets_fault)
    if not found.cache.is_writable:
        yield Problem(
            f"the cache at {found.cache.path} cannot be written",
            "Change its owner, or choose another place: HF_HUB_CACHE=DIR.",
        )
    for fault in found.rpc_faults:
        yield Problem(*fault)
    if found.is_offline:
        yield Problem(
            "offline mode is on (HF_HUB_OFFLINE): nothing can be downloaded", "Unset it."
        )


def _build(found: Installation) -> Iterator[Problem]:
    """Features that the build of llama.cpp does not use."""
    reinstall = (
        "python -m pip install --force-reinstall --no-deps --no-cache-dir --no-binary "
        f"llama-cpp-python llama-cpp-python=={found.packages['llama-cpp-python']}"
    )
    if found.driver_fault:
        yield Problem(
            found.driver_fault,
            "Install the driver again, or name its file or the device right; the processor "
            "computes meanwhile.",
        )
    if found.unused_gpu:
        variable = hiding_variable()
        build = f"Install a build of llama-cpp-python for it: {_BUILDS}"
        if found.library.startswith(OWN_ORIGIN):
            build = "If the installed libllama can: localspec kernels --remove. Else " + build
        yield Problem(found.unused_gpu, f"Unset {variable}." if variable else build)
    missing = [
        name
        for name, flag in _FEATURES.items()
        if flag in found.processor_flags and f"{name} = 1" not in found.build
    ]
    if found.amx_verdict is not AmxTrial.ABSENT and "AMX_INT8" in missing:
        missing.remove("AMX_INT8")  # it has them, and they are left out: see below
    if missing:
        compile_it = "Compile libllama for this processor: localspec kernels"
        if usable_gpus(found.devices):
            compile_it = f"Build it here, with a C++ compiler: {reinstall}"
        yield Problem(
            f"the processor has {', '.join(missing)}, and this build of llama.cpp does not "
            "use it",
            compile_it,
        )
    for folder, reason in found.stale_builds.items():
        yield Problem(
            f"the libllama in {folder} is not used: {reason}",
            "Remove it: localspec kernels --remove. Then compile it anew: localspec kernels",
        )
    if found.amx_verdict is AmxTrial.UNTRIED:
        yield Problem(
            "this build's AMX kernels could not be tried in another process, and are left out: "
            "quantised models could be twice as fast",
            "Use localspec in a Python that is neither frozen nor embedded; if it is, report "
            "this with the output of localspec doctor.",
        )
    if found.amx_verdict is AmxTrial.WRONG:
        yield Problem(
            "this build's AMX kernels fail, as those that GCC 12 compiles do, and are left "
            "out: quantised models could be twice as fast",
            f"Build it without the optimisation at fault: CXXFLAGS=-fno-dse {reinstall}",
        )


def _limits(found: Installation) -> Iterator[Problem]:
    """Cores, memory and disk that are closed or full, and unfinished downloads."""
    cores = found.cores
    memory = found.memory
    if cores.allowed < cores.logical or cores.is_bound_by_quota:
        given = cores.usable if cores.is_bound_by_quota else cores.allowed
        yield Problem(
            f"this process may use {given} of {cores.logical} cores",
            "If you did not intend that, check taskset or the limits of the container.",
        )
    if memory.available_bytes < _LITTLE_MEMORY_BYTES:
        yield Problem(
            f"{memory.available_bytes / 1e9:.1f} GB of memory is free", "Close other programs."
        )
    for gpu in usable_gpus(found.devices):
        if gpu.total_bytes > 0 and gpu.free_bytes <= MARGIN_BYTES:
            yield Problem(
                f"{gpu.free_bytes / 1e9:.1f} GB of memory is free on {gpu.name}, and "
                f"{MARGIN_BYTES / 1e9:.1f} GB is always left free: no layers go there by "
                "default",
                "Close the programs that use it, or set the number of layers: "
                "num_gpu_layers=N.",
            )
    if found.cache.free_bytes < _LITTLE_DISK_BYTES:
        yield Problem(
            f"{found.cache.free_bytes / 1e9:.1f} GB of disk space is free at "
            f"{found.cache.path}",
            "Free some space (localspec models remove PRESET), or choose another place: "
            "HF_HUB_CACHE=DIR.",
        )
    for path, size in found.cache.unfinished.items():
        yield Problem(
            f"a download stopped after {size / 1e6:.1f} MB: {path}",
            "Repeat the download to continue it, or delete the file if no program is "
            "downloading it.",
        )
