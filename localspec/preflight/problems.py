"""Problems of an installation, each with its remedy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from localspec.hub.cache import PART_SUFFIX
from localspec.llama.placement import usable_gpus
from localspec.preflight.installation import Installation
from localspec.preflight.plan import MARGIN_BYTES
from localspec.presets.preset import hub_files
from localspec.presets.presets import load_presets

_LITTLE_DISK_BYTES = 2_000_000_000
_LITTLE_MEMORY_BYTES = 1_000_000_000
_BUILDS = "https://github.com/abetlen/llama-cpp-python#installation"
# libllama's name for a feature, and the processor's flag for it.
_FEATURES = {"AVX2": "avx2", "FMA": "fma", "AVX512": "avx512f", "DOTPROD": "asimddp"}


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem, and what to do about it."""

    what: str
    remedy: str


def find_problems(found: Installation) -> list[Problem]:
    """All problems, the most serious first."""
    return [*_faults(found), *_build(found), *_room(found), *_leftovers(found), *_drafts(found)]


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
    has_gpu = any("GPU" in device.kind for device in found.devices)
    if found.has_nvidia and not has_gpu:
        yield Problem(
            "there is an NVIDIA GPU, and this build of llama.cpp cannot use it",
            f"Install a build of llama-cpp-python with CUDA: {_BUILDS}",
        )
    missing = [
        name
        for name, flag in _FEATURES.items()
        if flag in found.processor_flags and f"{name} = 1" not in found.build
    ]
    if missing:
        yield Problem(
            f"the processor has {', '.join(missing)}, and this build of llama.cpp does not "
            "use it",
            f"Build it here: CMAKE_ARGS=-DGGML_NATIVE=ON {reinstall}",
        )
    if found.amx_is_left_out:
        yield Problem(
            "this build's AMX kernels fail, as those that GCC 12 compiles do, and are left "
            "out: quantised models could be twice as fast",
            f"Build it without the optimisation at fault: CXXFLAGS=-fno-dse {reinstall}",
        )


def _room(found: Installation) -> Iterator[Problem]:
    cores, memory = found.cores, found.memory
    if cores.allowed < cores.logical or cores.is_bound_by_quota:
        given = cores.usable if cores.is_bound_by_quota else cores.allowed
        yield Problem(
            f"this process may use {given} of {cores.logical} cores",
            "If you did not intend that, check taskset or the limits of the container.",
        )
    if memory.available_bytes < _LITTLE_MEMORY_BYTES:
        yield Problem(
            f"{memory.available_bytes / 1e9:.1f} GB of memory are free", "Close other programs."
        )
    for gpu in usable_gpus(found.devices):
        if gpu.total_bytes > 0 and gpu.free_bytes <= MARGIN_BYTES:
            yield Problem(
                f"{gpu.free_bytes / 1e9:.1f} GB of memory are free on {gpu.name}, of which "
                f"{MARGIN_BYTES / 1e9:.1f} GB stay free: no layers go there by default",
                "Close what uses it, or fix the number of layers: num_gpu_layers=N.",
            )
    if found.cache.free_bytes < _LITTLE_DISK_BYTES:
        yield Problem(
            f"{found.cache.free_bytes / 1e9:.1f} GB of disk are free at {found.cache.path}",
            "Make room (localspec models remove PRESET), or choose another place: "
            "HF_HUB_CACHE=DIR.",
        )


def _leftovers(found: Installation) -> Iterator[Problem]:
    """Unfinished downloads."""
    presets = _presets_by_hash()
    for path, size in found.cache.unfinished.items():
        what = f"a download stopped after {size / 1e6:.1f} MB: {path}"
        preset = presets.get(path.name.removesuffix(PART_SUFFIX))
        if preset is not None:
            yield Problem(what, f"Continue with: localspec download {preset}")
        elif path.name.endswith(PART_SUFFIX):
            yield Problem(what, "Repeat the download to continue it, or delete the file.")
        else:
            yield Problem(what, "Another tool left it; once that has ended, delete the file.")


def _drafts(found: Installation) -> Iterator[Problem]:
    """Presets without a draft, where there is one."""
    for name, draft in found.drafts.items():
        tokens = "" if draft.common is None else f" ({draft.common.with_expectation()})"
        yield Problem(
            f"the preset {name} has no draft, and {draft.path.name} could draft for it{tokens}",
            f"See whether it pays: localspec bench {name}, with {draft.path} as its draft.",
        )


def _presets_by_hash() -> dict[str, str]:
    """The first preset that has a file, by the file's sha256."""
    presets: dict[str, str] = {}
    for name, preset in load_presets().items():
        for file in hub_files(preset.models):
            if file.sha256 is not None:
                presets.setdefault(file.sha256, name)
    return presets
