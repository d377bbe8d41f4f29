"""Measures devices with a miniature of a model, in another process, and keeps what was found.

A driver that crashes there, or is not done in time, is not used; that is kept like a
measurement, until the driver, libllama, or the model's shape is another.
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

TRIAL_S = 30.0  # that the trials of a device may take
_MOST_BYTES = 300_000_000  # of a miniature's layers
_CPU = "CPU"
_NEVER_SLOW_S = 1e9
_VERSION = "1"  # of the trial: another one is not compared with this one's times
_CONTEXT_LENGTH = 1024  # tokens, for the choice of settings


def measured_devices(
    header: Header, gpus: Sequence[Device], *, measure: bool, again: bool = False
) -> Measured:
    """What is known of a model's devices here.

    Args:
        header: of the model's file.
        gpus: of this machine, those that may be chosen.
        measure: whether to measure what is not known, which may take seconds.
        again: whether to measure the rest, too.
    """
    profiles = {_CPU: _profile(header, None)}
    profiles |= {gpu.name: _profile(header, gpu) for gpu in gpus}
    kept = {name: None if again else _saved(profile) for name, profile in profiles.items()}
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
    fault = f"the processor {of_cpu.fault}" if of_cpu.fault else ""
    return Measured(tuple(gpus), of_cpu.whole, of_gpus, fault)


def _profile(header: Header, gpu: Device | None) -> Profile:
    """Where the times of a model's shape on a device are kept. gpu: None for the processor."""
    from localspec.llama.library import kernels  # loads libllama

    shapes = [f"{tensor.name} {tensor.kind} {tensor.shape}" for tensor in header.tensors]
    shape = hashlib.sha256("\n".join(shapes).encode()).hexdigest()[:16]
    device = f"{_CPU} · {num_usable_cores()} cores"
    if gpu is not None:
        device = f"{gpu.name} · {gpu.description} · {driver_version(gpu)}"
    what = f"{header.architecture} {header.size_label} {shape}"
    return Profile([what, device, kernels(), _VERSION], trials_folder())


def _saved(profile: Profile) -> DeviceTimes | None:
    """What was kept; None if there is nothing usable."""
    kept = profile.load()
    if kept is None:
        return None
    return _parse_times(kept)


def _parse_times(kept: dict[str, Any]) -> DeviceTimes | None:
    """What a file has; None if that is of another version or damaged."""
    try:
        whole, offload, copies = (
            None if kept[name] is None else Times(*map(float, kept[name]))
            for name in ("whole", "offload", "copies")
        )
        return DeviceTimes(whole, offload, copies, str(kept["fault"]))
    except DAMAGES:
        return None


def trials_in_words() -> Iterator[str]:
    """A sentence for each measurement that is kept, the latest first."""
    for _, identity, learned in kept_profiles(trials_folder()):
        found = _parse_times(learned)
        if found is None:
            continue
        what, device = identity[:2]
        begin = f"{' · '.join(device.split(' · ')[:2])}, {' '.join(what.split()[:-1])}"
        if found.whole is None:
            yield f"{begin}: {found.fault}"
        else:
            reading = TRIAL_TOKENS / found.whole.read_s
            writing = 1 / found.whole.write_s
            yield f"{begin}: reads {reading:.3g}, writes {writing:.3g} tokens/s"


def _measure(
    header: Header, gpus: Sequence[Device], kept: dict[str, DeviceTimes | None]
) -> str:
    """Measure what is not kept, the processor first. Why nothing can be measured, or "".

    Args:
        header: of the model's file.
        gpus: that may be chosen.
        kept: what is known by device, None for what is not; gets the rest.
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
                    run_trials(made, {"whole": whole}, slow_s=_NEVER_SLOW_S), made
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


def _gpu_times(header: Header, gpu: Device, made: Miniature, slow_s: float) -> DeviceTimes:
    """Measure a GPU. slow_s: see `device_trial`, of the miniature."""
    num_layers = made.num_layers + 1  # the output counts as one
    half = num_layers // 2
    options = {
        "whole": LlamaOptions(device=gpu.name, num_gpu_layers=num_layers),
        "offload": LlamaOptions(device=gpu.name, num_gpu_layers=0),
        "half": LlamaOptions(device=gpu.name, num_gpu_layers=half),
    }
    suiting = {name: suited(each, header, _CONTEXT_LENGTH) for name, each in options.items()}
    found = _times_of_model(run_trials(made, suiting, slow_s), made, half / num_layers)
    if found.fault:
        logger.info("%s (%s) %s", gpu.name, gpu.description, found.fault)
    return found


def _times_of_model(tried: Tried, made: Miniature, half: float = 0.5) -> DeviceTimes:
    """The whole model's times. half: the share of the layers that were on the GPU as "half"."""
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
    """What a process of trials said."""

    times: dict[str, Times]
    """The miniature's times, by the name of the options; fewer for a device that is much
    slower."""

    fault: str = ""
    """Why it did not end well, in words, or ""."""

    lacks_memory: bool = False
    """Whether that is why."""


def run_trials(made: Miniature, options: dict[str, LlamaOptions], slow_s: float) -> Tried:
    """Time the miniature in another process.

    Args:
        made: the miniature.
        options: with which it is opened, by name, in this order.
        slow_s: a device that takes longer in its first trial gets no other: see `device_trial`.
    """
    trials = [{"name": name, "options": asdict(each)} for name, each in options.items()]
    asked = {"path": str(made.path), "num_tokens": made.num_tokens, "trials": trials}
    command = trial_command(json.dumps({**asked, "slow_s": slow_s, "seconds": 2 * TRIAL_S}))
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
    lines = said.decode(errors="replace").splitlines()
    found = [json.loads(line) for line in lines if line.startswith("{")]
    for each in found:
        if "error" in each:
            fault = f"failed in its trial ({each['error']})"
            return Tried({}, fault, lacks_memory=each["lacks_memory"])
    is_slow = any(each["is_slow"] for each in found)
    if len(found) < len(options) and not is_slow:
        return Tried({}, f"crashed in its trial ({_ending(process.returncode)})")
    return Tried({each["name"]: Times(each["read_s"], each["write_s"]) for each in found})


def trial_command(asked: str) -> list[str]:
    """The command line that runs trials. asked: JSON, for `device_trial`."""
    return [sys.executable, "-m", "localspec.llama.device_trial", asked]


def _ending(code: int) -> str:
    if code < 0:
        return f"signal {-code}"
    return f"exit status {code}"


def _can_start_python() -> bool:
    """Whether this is Python: a frozen application would start itself again."""
    name = Path(sys.executable or "").name.lower()
    return not hasattr(sys, "frozen") and name.startswith("python")
