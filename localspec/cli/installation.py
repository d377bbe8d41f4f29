"""The facts of `localspec doctor`: the state of this machine, and what could be better."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec._version import __version__
from localspec.cli.fact_sheet import FactSheet, Severity
from localspec.cli.screen import counted, readable_bytes
from localspec.errors import LocalspecError, PresetError, RpcError
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
from localspec.planning.free_memory import free_memory
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HubCacheState:
    """The hub's cache."""

    path: Path
    size_bytes: int
    free_bytes: int
    is_writable: bool
    unfinished: dict[Path, int]
    """Files of downloads that were not completed, with their sizes in bytes."""


def inspect_installation(rpc: Sequence[str]) -> FactSheet:
    """Collect the facts of this installation, and its problems.

    Nothing is sent over the network, except to RPC servers: those in `rpc` and of presets.

    Args:
        rpc: Valid addresses of RPC servers, HOST:PORT.
    """
    from localspec.llama.library import amx_verdict, devices, system_info  # loads libllama
    from localspec.llama.loaded import library

    addresses = list(rpc)
    for preset in load_presets().values():
        addresses += preset.rpc
    servers, rpc_faults = _ask_rpc_servers(tuple(dict.fromkeys(addresses)))
    all_devices = list(devices())
    for server in servers:
        all_devices += server.devices
    gpus = usable_gpus(all_devices)

    sheet = FactSheet()
    sheet.values["room"] = free_memory()
    add_versions(sheet)
    add_build(
        sheet,
        library.origin,
        system_info(),
        amx_verdict,
        _processor_flags(),
        has_gpus=bool(gpus),
    )
    add_stale_builds(sheet, _stale_builds())
    add_heads(sheet)
    fault_of_driver = ""
    if library.has_vulkan:
        fault_of_driver = driver_fault(devices(), load_libraries=True)
    add_devices(sheet, all_devices, fault_of_driver)
    unused_reason = ""
    if not usable_gpus(devices()):
        unused_reason = unused_gpu(gpus=(), num_gpu_layers=None)
    add_unused_gpu(sheet, unused_reason, library.origin)
    sheet.values["rpc_faults"] = rpc_faults
    for fault in rpc_faults:
        sheet.add_problem(Severity.BROKEN, *fault)
    trials = list(trials_in_words())
    sheet.add("Measured", *trials, trials=trials)
    add_cores(sheet, cores_here())
    add_memory(sheet, memory_here(), gpus)
    add_cache(sheet, cache_state(HubCache()), is_offline=is_offline())
    add_profiles(sheet)
    add_conversations(sheet)
    add_presets(sheet)
    return sheet


def add_versions(sheet: FactSheet) -> None:
    """Add the versions of localspec, Python, the system and the packages."""
    python = platform.python_version()
    system = platform.platform()
    packages = {name: importlib.metadata.version(name) for name in _PACKAGES}
    sheet.add(
        "localspec",
        f"{__version__}, Python {python}, {system}",
        version=__version__,
        python=python,
        system=system,
    )
    names = [f"{name} {version}" for name, version in packages.items()]
    sheet.add("Packages", ", ".join(names), packages=packages)


def add_build(
    sheet: FactSheet,
    library: str,
    build: str,
    amx_verdict: AmxTrial,
    processor_flags: frozenset[str],
    *,
    has_gpus: bool,
) -> None:
    """Add the libllama that is used, and the features of the processor that it does not use.

    Args:
        library: Where libllama is from.
        build: libllama's own description of its build.
        amx_verdict: The result of a trial of its AMX kernels.
        processor_flags: The processor's features, as the system names them; empty if they are
            not known.
        has_gpus: Whether libllama can compute on a GPU, here or of an RPC server.
    """
    sheet.add(
        "llama.cpp",
        f"{library}: {build}",
        library=library,
        build=build,
        amx_verdict=amx_verdict,
        processor_flags=processor_flags,
    )
    missing = []
    for name, flag in _FEATURES.items():
        if flag in processor_flags and f"{name} = 1" not in build:
            missing.append(name)
    if amx_verdict is not AmxTrial.ABSENT and "AMX_INT8" in missing:
        missing.remove("AMX_INT8")  # the build has AMX kernels, with a problem of their own
    if missing:
        remedy = "Compile libllama for this processor: localspec kernels"
        if has_gpus:  # what `localspec kernels` compiles does not compute on GPUs
            remedy = f"Build it here, with a C++ compiler: {_reinstallation()}"
        sheet.add_problem(
            Severity.SLOW_BUILD,
            f"the processor has {', '.join(missing)}, and this build of llama.cpp does not "
            "use it",
            remedy,
        )
    if amx_verdict is AmxTrial.UNTRIED:
        sheet.add_problem(
            Severity.SLOW_BUILD,
            "this build's AMX kernels could not be tried in another process, and are left out: "
            "quantised models could be twice as fast",
            "Use localspec in a Python that is neither frozen nor embedded; if it is, report "
            "this with the output of localspec doctor.",
        )
    if amx_verdict is AmxTrial.WRONG:
        sheet.add_problem(
            Severity.SLOW_BUILD,
            "this build's AMX kernels fail, as those that GCC 12 compiles do, and are left "
            "out: quantised models could be twice as fast",
            "Build it without the optimisation at fault: CXXFLAGS=-fno-dse "
            + _reinstallation(),
        )


def _reinstallation() -> str:
    """The command that compiles the installed llama-cpp-python here."""
    version = importlib.metadata.version("llama-cpp-python")
    return (
        "python -m pip install --force-reinstall --no-deps --no-cache-dir --no-binary "
        f"llama-cpp-python llama-cpp-python=={version}"
    )


def _processor_flags() -> frozenset[str]:
    """The processor's features by Linux's names (avx2, avx512f); empty on other systems."""
    if sys.platform.startswith("linux"):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, values = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return frozenset(values.split())
    return frozenset()


def add_stale_builds(sheet: FactSheet, stale_builds: dict[Path, str]) -> None:
    """Add each libllama that was compiled here and is not used.

    Args:
        stale_builds: The reason why it is not used, by its folder.
    """
    sheet.values["stale_builds"] = stale_builds
    for folder, reason in stale_builds.items():
        sheet.add_problem(
            Severity.SLOW_BUILD,
            f"the libllama in {folder} is not used: {reason}",
            "Remove it: localspec kernels --remove. Then compile it anew: localspec kernels",
        )


def _stale_builds() -> dict[Path, str]:
    """The folders of libllamas that were compiled here and are out of date, with reasons.

    Empty with LLAMA_CPP_LIB_PATH: the user wants another libllama.
    """
    if "LLAMA_CPP_LIB_PATH" in os.environ:
        return {}
    installed = installed_library().origin
    stale = {}
    for build in all_builds():
        reason = build.staleness(installed)
        if reason:
            stale[build.folder] = reason
    return stale


def add_heads(sheet: FactSheet) -> None:
    """Add the trained heads that libllama supports."""
    from localspec.llama.quirks.nextn import missing_functions  # loads libllama

    missing_for_every_head = missing_functions(reads_layers=False)
    missing_for_layer_readers = missing_functions(reads_layers=True)
    if missing_for_every_head:
        names = ", ".join(missing_for_every_head)
        words = f"off: this libllama lacks {names}; another version may have them"
    elif missing_for_layer_readers:
        names = ", ".join(missing_for_layer_readers)
        words = f"MTP; for EAGLE-3 and DFlash this libllama lacks {names}"
    else:
        words = "trained heads can draft here (MTP, EAGLE-3, DFlash)"
    sheet.add("Heads", words, missing_head_functions=missing_for_layer_readers)


def add_devices(sheet: FactSheet, devices: Sequence[Device], driver_fault: str) -> None:
    """Add the devices, those of RPC servers included.

    Args:
        driver_fault: A sentence about a driver or device that should be there and is not; empty
            if none is missing.
    """
    for device in devices:
        words = f"{device.name}: {device.description}, {device.kind}"
        if device.kind != "CPU":  # its memory has a line of its own
            words += f", {_free_of(device.free_bytes, device.total_bytes)}"
        sheet.add("Device", words)
    sheet.values |= {"devices": devices, "driver_fault": driver_fault}
    if driver_fault:
        sheet.add_problem(
            Severity.UNUSED_DEVICE,
            driver_fault,
            "Install the driver again, or name its file or the device right; the processor "
            "computes meanwhile.",
        )


def add_unused_gpu(sheet: FactSheet, reason: str, library: str) -> None:
    """Add the GPU that libllama cannot compute on, if there is one.

    Args:
        reason: Which GPU, and why libllama cannot use it; empty if there is no such GPU.
        library: Where libllama is from.
    """
    sheet.values["unused_gpu"] = reason
    if not reason:
        return
    variable = hiding_variable()
    remedy = f"Install a build of llama-cpp-python for it: {_BUILDS}"
    if variable:
        remedy = f"Unset {variable}."
    elif library.startswith(OWN_ORIGIN):
        remedy = f"If the installed libllama can: localspec kernels --remove. Else {remedy}"
    sheet.add_problem(Severity.UNUSED_DEVICE, reason, remedy)


def _ask_rpc_servers(
    addresses: tuple[str, ...],
) -> tuple[list[RpcServer], list[tuple[str, str]]]:
    """The RPC servers that answer, and the message and the hint of every fault.

    A server that answers can have a fault, too.
    """
    from localspec.llama.rpc_backend import server_fault  # loads libllama

    reachable = []
    faults = []
    for server_or_error in ask_servers(addresses):
        if isinstance(server_or_error, RpcError):
            fault: LocalspecError | None = server_or_error
        else:
            reachable.append(server_or_error)
            fault = server_fault(server_or_error)
        if fault is not None:
            faults.append((str(fault), fault.hint))
    return reachable, list(dict.fromkeys(faults))


def add_cores(sheet: FactSheet, cores: Cores) -> None:
    """Add the number of cores that a model uses, and why it does not use the others.

    It is a problem if this process may not use all cores.
    """
    unused = {
        "excluded core": cores.logical - cores.allowed,  # not open to this process
        "efficiency core": cores.efficiency,
        "hyperthread": cores.hyperthreads,
    }
    reasons = []
    for kind, number in unused.items():
        if number:
            reasons.append(counted(number, kind))
    if cores.is_bound_by_quota:
        reasons.append(f"the container's quota is {cores.quota:g}")
    words = f"{cores.usable} of {counted(cores.logical, 'core')}"
    if reasons:
        words += f"; not used: {', '.join(reasons)}"
    sheet.add("Cores", words, cores=cores)
    if cores.allowed < cores.logical or cores.is_bound_by_quota:
        num_allowed = cores.allowed
        if cores.is_bound_by_quota:
            num_allowed = cores.usable
        sheet.add_problem(
            Severity.LIMITED,
            f"this process may use {num_allowed} of {cores.logical} cores",
            "If you did not intend that, check taskset or the limits of the container.",
        )


def add_memory(sheet: FactSheet, memory: Memory, gpus: Sequence[Device]) -> None:
    """Add the memory of this machine. Little free memory, there or on a GPU, is a problem."""
    words = _free_of(memory.available_bytes, memory.total_bytes)
    sheet.add("Memory", words, memory=memory)
    if memory.available_bytes < _LITTLE_MEMORY_BYTES:
        sheet.add_problem(
            Severity.LIMITED,
            f"{memory.available_bytes / 1e9:.1f} GB of memory is free",
            "Close other programs.",
        )
    for gpu in gpus:
        if gpu.total_bytes > 0 and gpu.free_bytes <= MARGIN_BYTES:
            sheet.add_problem(
                Severity.LIMITED,
                f"only {gpu.free_bytes / 1e9:.1f} GB of memory is free on {gpu.name}; "
                f"localspec normally leaves {MARGIN_BYTES / 1e9:.1f} GB of each GPU free, so "
                "no layers go there by default",
                "Close the programs that use it, or set the number of layers: "
                "num_gpu_layers=N.",
            )


def _free_of(free_bytes: int, total_bytes: int) -> str:
    return f"{readable_bytes(free_bytes)} of {readable_bytes(total_bytes)} free"


def add_cache(sheet: FactSheet, cache: HubCacheState, *, is_offline: bool) -> None:
    """Add the hub's cache, what prevents downloads into it, and unfinished downloads."""
    size = readable_bytes(cache.size_bytes)
    free = readable_bytes(cache.free_bytes)
    words = f"{cache.path}: {size}, {free} of disk free"
    sheet.add(
        "Cache",
        words,
        cache=cache,
        is_offline=is_offline,
    )
    if not cache.is_writable:
        sheet.add_problem(
            Severity.BROKEN,
            f"the cache at {cache.path} cannot be written",
            "Change its owner, or choose another place: HF_HUB_CACHE=DIR.",
        )
    if is_offline:
        sheet.add_problem(
            Severity.BROKEN,
            "offline mode is on (HF_HUB_OFFLINE): nothing can be downloaded",
            "Unset it.",
        )
    if cache.free_bytes < _LITTLE_DISK_BYTES:
        sheet.add_problem(
            Severity.LIMITED,
            f"{cache.free_bytes / 1e9:.1f} GB of disk space is free at {cache.path}",
            "Free some space (localspec models remove PRESET), or choose another place: "
            "HF_HUB_CACHE=DIR.",
        )
    for path, size_bytes in cache.unfinished.items():
        sheet.add_problem(
            Severity.LIMITED,
            f"a download stopped after {size_bytes / 1e6:.1f} MB: {path}",
            "Repeat the download to continue it, or delete the file if no program is "
            "downloading it.",
        )


def cache_state(cache: HubCache) -> HubCacheState:
    """The size of the hub's cache, its free space and its unfinished downloads."""
    root = cache.root
    # The root itself if nothing of the path exists, as on a drive of Windows that is absent.
    existing_folders = (folder for folder in (root, *root.parents) if folder.exists())
    existing_folder = next(existing_folders, root)
    return HubCacheState(
        path=root,
        size_bytes=cache.num_bytes(),
        free_bytes=free_bytes(root),
        is_writable=os.access(existing_folder, os.W_OK),
        unfinished=cache.unfinished(),
    )


def add_profiles(sheet: FactSheet) -> None:
    """Add how many pairs were measured.

    --json also has how many models were tested for exact decodes.
    """
    folder = profiles_folder()
    num_tested = 0
    num_profiles = 0
    for _, identity, _ in kept_profiles():
        if is_of_exactness(identity):
            num_tested += 1
        else:
            num_profiles += 1
    sheet.add(
        "Profiles",
        f"{folder}: measured speeds of {counted(num_profiles, 'pair')}",
        profiles_folder=folder,
        num_profiles=num_profiles,
        num_exact=num_tested,
    )


def add_conversations(sheet: FactSheet) -> None:
    """Add the number and size of the caches of conversations that are on disk."""
    # Imported here, because it loads NumPy, which libllama has to come before.
    from localspec.engine.cache_store import kept_files, kept_folder, kept_sizes

    sizes = kept_sizes()
    count = counted(len(kept_files()), "conversation")
    size = readable_bytes(sum(sizes.values()))
    words = f"{kept_folder()}: caches of {count}, {size}"
    sheet.add("Conversations", words, kept_conversations=sizes)


def add_presets(sheet: FactSheet) -> None:
    """Add the file of the user's presets, and its fault if it is malformed."""
    file = user_presets_file()
    words = str(file)
    if not file.exists():
        words += " (none yet)"
    sheet.add(
        "Presets",
        words,
        presets_file=file,
        presets_fault=None,
    )
    try:
        user_presets()
    except PresetError as error:
        sheet.values["presets_fault"] = str(error), error.hint
        sheet.add_problem(Severity.BROKEN, str(error), error.hint)
