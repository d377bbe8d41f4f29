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
from localspec.planning.free_memory import suited_options_here
from localspec.policy.profile import Profile, kept_profiles, trials_folder
from localspec.system.machine import last_cache_bytes, num_usable_cores

logger = logging.getLogger(__name__)

TRIAL_S = 30.0  # limit for the trials of one device
_MOST_BYTES = 300_000_000  # of a miniature's layers
_CPU = "CPU"
_NEVER_SLOW_S = 1e9  # no device takes that long
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

    New times are kept on disk.

    Args:
        header: The header of the model's file.
        gpus: The GPUs of this machine that may be chosen.
        measure: Whether to measure devices whose times are not kept, which may take seconds.
        again: Whether to repeat the measurement of devices whose times are kept.
    """
    profiles = {_CPU: _profile(header, None)}
    for gpu in gpus:
        profiles[gpu.name] = _profile(header, gpu)
    device_times: dict[str, DeviceTimes | None] = dict.fromkeys(profiles)
    if not again:
        for name, profile in profiles.items():
            device_times[name] = _load_times(profile)
    if measure and None in device_times.values():
        logger.info("measuring which device suits %s", header.path.name)
        fault = _measure(header, gpus, device_times)
        if fault:
            return Measured(tuple(gpus), fault=fault)
        for name, times in device_times.items():
            if times is not None and times.is_lasting:
                profiles[name].save(asdict(times))
    cpu_times = device_times.pop(_CPU)
    gpu_times = {name: times for name, times in device_times.items() if times is not None}
    if cpu_times is None:
        return Measured(tuple(gpus), gpu_times=gpu_times)
    fault = ""
    if cpu_times.fault:
        fault = f"the processor {cpu_times.fault}"
    return Measured(tuple(gpus), cpu_times.whole, gpu_times, fault)


def _profile(header: Header, gpu: Device | None) -> Profile:
    """The file that keeps the times of a model's shape on a device.

    Args:
        header: The header of the model's file.
        gpu: None for the processor.
    """
    from localspec.llama.library import kernels  # loads libllama

    shapes = [f"{tensor.name} {tensor.kind} {tensor.shape}" for tensor in header.tensors]
    text = "\n".join(shapes)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    device = f"{_CPU} · {num_usable_cores()} cores"
    if gpu is not None:
        device = f"{gpu.name} · {gpu.description} · {driver_version(gpu)}"
    model = f"{header.architecture} {header.size_label} {digest}"
    identity = [model, device, kernels(), _VERSION]
    return Profile(identity, trials_folder())


def _load_times(profile: Profile) -> DeviceTimes | None:
    """The times that were kept; None if there are none, or the file is damaged."""
    content = profile.load()
    if content is None:
        return None
    return _parse_times(content)


def _parse_times(content: dict[str, Any]) -> DeviceTimes | None:
    """The times in a file's content; None if it is of another version or damaged."""
    try:
        return DeviceTimes(
            whole=_parse_pair(content["whole"]),
            offload=_parse_pair(content["offload"]),
            copies=_parse_pair(content["copies"]),
            fault=str(content["fault"]),
        )
    except DAMAGES:
        return None


def _parse_pair(seconds: Any) -> Times | None:
    """The times in a file: two numbers, or null, which gives None. Raises one of DAMAGES."""
    if seconds is None:
        return None
    read_s, write_s = seconds
    return Times(float(read_s), float(write_s))


def trials_in_words() -> Iterator[str]:
    """A sentence for each measurement that is kept, the latest first."""
    for _, identity, learned in kept_profiles(trials_folder()):
        times = _parse_times(learned)
        if times is None:
            continue
        model_parts = identity[0].split()
        device_parts = identity[1].split(" · ")
        model = " ".join(model_parts[:-1])  # without the hash of its shape
        device = " · ".join(device_parts[:2])  # without the driver's version
        if times.whole is None:
            yield f"{device}, {model}: {times.fault}"
        else:
            reading = TRIAL_TOKENS / times.whole.read_s
            writing = 1 / times.whole.write_s
            yield f"{device}, {model}: reads {reading:.3g}, writes {writing:.3g} tokens/s"


def _measure(
    header: Header,
    gpus: Sequence[Device],
    device_times: dict[str, DeviceTimes | None],
) -> str:
    """Measure the devices whose times are not known, the processor first.

    Args:
        header: The header of the model's file.
        gpus: The GPUs that may be chosen.
        device_times: The times by device, None if they are not known. New times are
            added here.

    Returns:
        Why nothing can be measured, in words, or "". The fault of a device is with its times.
    """
    if not _can_start_python():
        return "this application has no Python of its own to measure in"
    size = min(2 * last_cache_bytes(), _MOST_BYTES)
    try:
        with tempfile.TemporaryDirectory(prefix="localspec-") as folder:
            miniature = write_miniature(header, Path(folder, "miniature.gguf"), size)
            cpu_times = device_times[_CPU]
            if cpu_times is None:
                cpu_times = _measure_cpu(header, miniature)
                device_times[_CPU] = cpu_times
            if cpu_times.whole is None:  # then no GPU can be compared with the processor
                return ""
            cpu_cost_s = cpu_times.whole.cost_s / miniature.scale  # of the miniature
            slow_s = MUCH_SLOWER * cpu_cost_s
            for gpu in gpus:
                if device_times[gpu.name] is None:
                    device_times[gpu.name] = _measure_gpu(header, gpu, miniature, slow_s)
    except OSError as error:
        return f"no file can be made for a trial: {error}"
    return ""


def _measure_cpu(header: Header, miniature: Miniature) -> DeviceTimes:
    """Measure the processor. The header is that of the model's file."""
    on_cpu = LlamaOptions(num_gpu_layers=0)
    options = {"whole": suited_options_here(on_cpu, header, _CONTEXT_LENGTH)}
    results = run_trials(miniature, options, slow_s=_NEVER_SLOW_S)
    return _whole_model_times(results, miniature)


def _measure_gpu(
    header: Header,
    gpu: Device,
    miniature: Miniature,
    slow_s: float,
) -> DeviceTimes:
    """Measure a GPU.

    Args:
        header: The header of the model's file.
        gpu: The GPU.
        miniature: The model's miniature.
        slow_s: As in `run_trials`.
    """
    num_layers = miniature.num_layers + 1  # the output counts as one
    num_half = num_layers // 2
    options = {}
    for name, num_gpu_layers in (("whole", num_layers), ("offload", 0), ("half", num_half)):
        on_device = LlamaOptions(device=gpu.name, num_gpu_layers=num_gpu_layers)
        options[name] = suited_options_here(on_device, header, _CONTEXT_LENGTH)
    results = run_trials(miniature, options, slow_s)
    times = _whole_model_times(results, miniature, num_half / num_layers)
    if times.fault:
        logger.info("%s (%s) %s", gpu.name, gpu.description, times.fault)
    return times


def _whole_model_times(
    results: TrialResults,
    miniature: Miniature,
    half_share: float = 0.5,
) -> DeviceTimes:
    """The times of the whole model, from those of its miniature, or the fault of the trials.

    Args:
        results: The miniature's times.
        miniature: The miniature.
        half_share: The share of the layers that were on the GPU in the trial "half".
    """
    if results.fault:
        return DeviceTimes(fault=results.fault, is_lasting=not results.lacks_memory)
    times = results.times
    whole = times["whole"]
    scale = miniature.scale
    offload = times.get("offload")
    if offload is None or "half" not in times:
        return DeviceTimes(whole.scaled(scale))
    gpu_part = whole.scaled(half_share)
    main_part = offload.scaled(1 - half_share)
    # What the trial "half" took beyond the times of its parts is the time of copies. It is not
    # scaled, since it does not grow with the number of layers.
    copies = times["half"].excess_over(gpu_part.plus(main_part))
    return DeviceTimes(whole.scaled(scale), offload.scaled(scale), copies)


class TrialResults(NamedTuple):
    """The results of a process of trials."""

    times: dict[str, Times]
    """The miniature's times, by the name of the options; fewer for a device that is much
    slower."""

    fault: str = ""
    """Why it did not end well, in words, or ""."""

    lacks_memory: bool = False
    """Whether the fault was a lack of memory."""


def run_trials(
    miniature: Miniature, options: dict[str, LlamaOptions], slow_s: float
) -> TrialResults:
    """Time the miniature in another process. After a failure, the results have a `fault`.

    Args:
        miniature: The miniature.
        options: The options with which each trial opens it, by the trial's name, in this order.
        slow_s: A device that costs more seconds in its first trial gets no other: see
            `device_trial`.
    """
    trials = []
    for name, trial_options in options.items():
        trials.append({"name": name, "options": asdict(trial_options)})
    request = {
        "path": str(miniature.path),
        "num_tokens": miniature.num_tokens,
        "trials": trials,
        "slow_s": slow_s,
        "seconds": 2 * TRIAL_S,  # after them it ends, even if this process is gone
    }
    command = trial_command(json.dumps(request))
    paths = os.pathsep.join(filter(None, sys.path))  # without "", the present folder
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": paths},
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
    ) as process:
        try:
            output, _ = process.communicate(timeout=TRIAL_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return TrialResults({}, f"was not done with its trial in {TRIAL_S:.0f} s")
    times: dict[str, Times] = {}
    is_slow = False
    for line in output.decode(errors="replace").splitlines():
        if not line.startswith("{"):
            continue
        result = json.loads(line)
        if "error" in result:
            fault = f"failed in its trial ({result['error']})"
            return TrialResults({}, fault, lacks_memory=result["lacks_memory"])
        times[result["name"]] = Times(result["read_s"], result["write_s"])
        is_slow = is_slow or result["is_slow"]
    if len(times) < len(options) and not is_slow:
        return TrialResults({}, f"crashed in its trial ({_exit_in_words(process.returncode)})")
    return TrialResults(times)


def trial_command(request: str) -> list[str]:
    """The command line that runs trials.

    Args:
        request: The trials in JSON, as `device_trial` reads them.
    """
    return [sys.executable, "-m", "localspec.llama.device_trial", request]


def _exit_in_words(code: int) -> str:
    """How a process ended, in words."""
    if code < 0:
        return f"signal {-code}"
    return f"exit status {code}"


def _can_start_python() -> bool:
    """Whether this is Python: a frozen application would start itself again."""
    name = Path(sys.executable or "").name.lower()
    return not hasattr(sys, "frozen") and name.startswith("python")
