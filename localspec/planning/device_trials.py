"""Measures devices with a miniature of a model, in another process, and keeps the results.

A device whose driver crashes there, or takes too long, is not used. That result is kept like a
measurement, until the driver, libllama or the model's shape changes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from localspec.errors import DAMAGES
from localspec.gguf_file.header import Header
from localspec.gguf_file.miniature import Miniature, write_miniature
from localspec.llama.device_times import MUCH_SLOWER, TRIAL_TOKENS, Times
from localspec.llama.devices import Device
from localspec.llama.drivers import driver_version
from localspec.llama.model_options import LlamaOptions
from localspec.planning.device_choice import DeviceTimes, Measured
from localspec.planning.free_memory import suited
from localspec.policy.profile import Profile, kept_profiles, trials_folder
from localspec.system.machine import last_cache_bytes, num_usable_cores

logger = logging.getLogger(__name__)

TRIAL_S = 30.0  # limit for the trials of one device
_MOST_BYTES = 300_000_000  # of a miniature's layers
_CPU = "CPU"
_NEVER_SLOW_S = 1e9
_VERSION = "1"  # of the trial; times of different versions are not compared
_CONTEXT_LENGTH = 1024  # tokens, for the choice of settings


def measured_devices(
    header: Header,
    gpus: Sequence[Device],
    *,
    measure: bool,
    again: bool = False,
) -> Measured:
    """The times of a model on the devices of this machine, as far as they are known.

    Args:
        header: The header of the model's file.
        gpus: The GPUs of this machine that may be chosen.
        measure: Whether to measure devices without kept times, which may take seconds.
        again: Whether to measure the other devices again.
    """
    profiles = {_CPU: _profile(header, None)}
    for gpu in gpus:
        profiles[gpu.name] = _profile(header, gpu)
    kept: dict[str, DeviceTimes | None] = dict.fromkeys(profiles)
    if not again:
        for name, profile in profiles.items():
            kept[name] = _saved(profile)
    if measure and None in kept.values():
        logger.info("measuring which device suits %s", header.path.name)
        fault = _measure(header, gpus, kept)
        if fault:
            return Measured(tuple(gpus), fault=fault)
        for name, found in kept.items():
            if found is not None and found.is_lasting:
                profiles[name].save(asdict(found))
    of_cpu = kept.pop(_CPU)
    of_gpus = {name: found for name, found in kept.items() if found is not None}
    if of_cpu is None:
        return Measured(tuple(gpus), found=of_gpus)
    fault = ""
    if of_cpu.fault:
        fault = f"the processor {of_cpu.fault}"
    return Measured(tuple(gpus), of_cpu.whole, of_gpus, fault)


def _profile(header: Header, gpu: Device | None) -> Profile:
    """The file that keeps the times of a model's shape on a device.

    Args:
        header: The header of the model's file.
        gpu: None for the processor.
    """
    from localspec.llama.library import kernels  # loads libllama

    shapes = [f"{tensor.name} {tensor.kind} {tensor.shape}" for tensor in header.tensors]
    text = "\n".join(shapes)
    shape = hashlib.sha256(text.encode()).hexdigest()[:16]
    device = f"{_CPU} · {num_usable_cores()} cores"
    if gpu is not None:
        device = f"{gpu.name} · {gpu.description} · {driver_version(gpu)}"
    what = f"{header.architecture} {header.size_label} {shape}"
    return Profile([what, device, kernels(), _VERSION], trials_folder())


def _saved(profile: Profile) -> DeviceTimes | None:
    """The times that were kept; None if there are none, or the file is damaged."""
    kept = profile.load()
    if kept is None:
        return None
    return _parse_times(kept)


def _parse_times(kept: dict[str, Any]) -> DeviceTimes | None:
    """The times in a file's content; None if it is of another version or damaged."""
    try:
        return DeviceTimes(
            whole=_times_of(kept["whole"]),
            offload=_times_of(kept["offload"]),
            copies=_times_of(kept["copies"]),
            fault=str(kept["fault"]),
        )
    except DAMAGES:
        return None


def _times_of(seconds: Any) -> Times | None:
    """The times that a file has as a list of two numbers, or as null."""
    if seconds is None:
        return None
    read_s, write_s = seconds
    return Times(float(read_s), float(write_s))


def trials_in_words() -> Iterator[str]:
    """A sentence for each measurement that is kept, the latest first."""
    for _, identity, learned in kept_profiles(trials_folder()):
        found = _parse_times(learned)
        if found is None:
            continue
        model = " ".join(identity[0].split()[:-1])  # without the hash of its shape
        device = " · ".join(identity[1].split(" · ")[:2])  # without the driver's version
        if found.whole is None:
            yield f"{device}, {model}: {found.fault}"
        else:
            reading = TRIAL_TOKENS / found.whole.read_s
            writing = 1 / found.whole.write_s
            yield f"{device}, {model}: reads {reading:.3g}, writes {writing:.3g} tokens/s"


def _measure(
    header: Header,
    gpus: Sequence[Device],
    kept: dict[str, DeviceTimes | None],
) -> str:
    """Measure the devices without kept times, the processor first.

    Args:
        header: The header of the model's file.
        gpus: The GPUs that may be chosen.
        kept: The times by device, None where there are none. New times are added to it.

    Returns:
        Why nothing can be measured, in words, or "".
    """
    if not _can_start_python():
        return "this application has no Python of its own to measure in"
    size = min(2 * last_cache_bytes(), _MOST_BYTES)
    try:
        with tempfile.TemporaryDirectory(prefix="localspec-") as folder:
            made = write_miniature(header, Path(folder, "miniature.gguf"), size)
            cpu = kept[_CPU]
            if cpu is None:
                whole = suited(LlamaOptions(num_gpu_layers=0), header, _CONTEXT_LENGTH)
                cpu = _times_of_model(
                    run_trials(made, {"whole": whole}, slow_s=_NEVER_SLOW_S),
                    made,
                )
                kept[_CPU] = cpu
            if cpu.whole is None:  # then nothing can be compared with it
                return ""
            slow_s = MUCH_SLOWER * cpu.whole.cost_s / made.scale
            for gpu in gpus:
                if kept[gpu.name] is None:
                    kept[gpu.name] = _gpu_times(header, gpu, made, slow_s)
    except OSError as error:
        return f"no file can be made for it: {error}"
    return ""


def _gpu_times(
    header: Header,
    gpu: Device,
    made: Miniature,
    slow_s: float,
) -> DeviceTimes:
    """Measure a GPU.

    Args:
        header: The header of the model's file.
        gpu: The GPU.
        made: The model's miniature.
        slow_s: As in `run_trials`.
    """
    num_layers = made.num_layers + 1  # the output counts as one
    half = num_layers // 2
    options = {}
    for name, on_gpu in (("whole", num_layers), ("offload", 0), ("half", half)):
        on_device = LlamaOptions(device=gpu.name, num_gpu_layers=on_gpu)
        options[name] = suited(on_device, header, _CONTEXT_LENGTH)
    tried = run_trials(made, options, slow_s)
    found = _times_of_model(tried, made, half / num_layers)
    if found.fault:
        logger.info("%s (%s) %s", gpu.name, gpu.description, found.fault)
    return found


def _times_of_model(tried: Tried, made: Miniature, half: float = 0.5) -> DeviceTimes:
    """The times of the whole model, from those of its miniature.

    Args:
        tried: The miniature's times.
        made: The miniature.
        half: The share of the layers that were on the GPU in the trial "half".
    """
    if tried.fault:
        return DeviceTimes(fault=tried.fault, is_lasting=not tried.lacks_memory)
    whole = tried.times["whole"]
    offload = tried.times.get("offload")
    if offload is None or "half" not in tried.times:
        return DeviceTimes(whole.scaled(made.scale))
    without = whole.scaled(half).plus(offload.scaled(1 - half))
    copies = tried.times["half"].beyond(without)
    return DeviceTimes(whole.scaled(made.scale), offload.scaled(made.scale), copies)


class Tried(NamedTuple):
    """The results of a process of trials."""

    times: dict[str, Times]
    """The miniature's times, by the name of the options; fewer for a device that is much
    slower."""

    fault: str = ""
    """Why it did not end well, in words, or ""."""

    lacks_memory: bool = False
    """Whether the fault was a lack of memory."""


def run_trials(made: Miniature, options: dict[str, LlamaOptions], slow_s: float) -> Tried:
    """Time the miniature in another process.

    Args:
        made: The miniature.
        options: The options that it is opened with, by a name for each trial, in this order.
        slow_s: A device that takes longer in its first trial gets no other: see `device_trial`.
    """
    trials = []
    for name, of_trial in options.items():
        trials.append({"name": name, "options": asdict(of_trial)})
    asked = {
        "path": str(made.path),
        "num_tokens": made.num_tokens,
        "trials": trials,
        "slow_s": slow_s,
        "seconds": 2 * TRIAL_S,
    }
    command = trial_command(json.dumps(asked))
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    ) as process:
        try:
            said, _ = process.communicate(timeout=TRIAL_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return Tried({}, f"was not done with its trial in {TRIAL_S:.0f} s")
    times: dict[str, Times] = {}
    is_slow = False
    for line in said.decode(errors="replace").splitlines():
        if not line.startswith("{"):
            continue
        result = json.loads(line)
        if "error" in result:
            fault = f"failed in its trial ({result['error']})"
            return Tried({}, fault, lacks_memory=result["lacks_memory"])
        times[result["name"]] = Times(result["read_s"], result["write_s"])
        is_slow = is_slow or result["is_slow"]
    if len(times) < len(options) and not is_slow:
        return Tried({}, f"crashed in its trial ({_ending(process.returncode)})")
    return Tried(times)


def trial_command(asked: str) -> list[str]:
    """The command line that runs trials.

    Args:
        asked: The trials in JSON, as `device_trial` reads them.
    """
    return [sys.executable, "-m", "localspec.llama.device_trial", asked]


def _ending(code: int) -> str:
    """How a process ended, in words."""
    if code < 0:
        return f"signal {-code}"
    return f"exit status {code}"


def _can_start_python() -> bool:
    """Whether this is Python: a frozen application would start itself again."""
    name = Path(sys.executable or "").name.lower()
    return not hasattr(sys, "frozen") and name.startswith("python")
