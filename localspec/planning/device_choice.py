"""The times of a model on the devices of this machine, as they were measured.

A trial times a miniature of the model (`planning.device_trials`). The time of a model whose
layers are on several devices follows from the share of its weights that each reads, and from
what a copy between them costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from localspec.llama.device_times import Times
from localspec.llama.devices import Device
from localspec.llama.placement import named_devices, place_layers
from localspec.planning.plan import Plan

_NOTHING = Times(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """The results of the trials of one model on one device."""

    whole: Times | None = None
    """The times with every layer on the GPU; None if that was not tried."""

    offload: Times | None = None
    """The times with every layer in main memory, and large batches on the GPU; None if that was
    not tried."""

    copies: Times | None = None
    """The extra times of copies to and from main memory, if only a part of the layers is on the
    GPU; None if that was not tried."""

    fault: str = ""
    """Why the device is not used, in words, or ""."""

    is_lasting: bool = True
    """Whether the result is kept on disk. A fault for lack of memory is not: memory may be free
    the next time."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The times of a model on all devices of this machine."""

    gpus: tuple[Device, ...]
    """The GPUs that may be chosen, in libllama's order."""

    cpu: Times | None = None
    """The times of the processor; None if the miniature cannot be timed there."""

    gpu_times: Mapping[str, DeviceTimes] = field(default_factory=dict)
    """The times of each GPU that was tried, by its name."""

    fault: str = ""
    """Why nothing could be measured, in words, or ""."""

    @property
    def is_complete(self) -> bool:
        """Whether the processor was measured, and every GPU was measured or failed."""
        if self.cpu is None:
            return False
        return all(gpu.name in self.gpu_times for gpu in self.gpus)

    def times(self, names: Sequence[str], share: float, num_copies: float) -> Times | None:
        """The times of a model of which a share is on GPUs; None if one is missing.

        Args:
            names: The names of the GPUs that compute; none for the processor alone. The first
                one also computes large batches of the layers in main memory.
            share: The share of the weights that a token reads which is on the GPUs, 0 to 1.
            num_copies: How often a decode changes from main memory to a GPU and back, if the
                layers are in both.
        """
        if not names:
            return self.cpu
        on_gpus = _NOTHING
        for name in names:
            gpu_times = self.gpu_times.get(name)
            if gpu_times is None or gpu_times.whole is None:
                return None
            # All GPUs have equal parts of the layers.
            part = gpu_times.whole.scaled(1 / len(names))
            on_gpus = on_gpus.plus(part)
        first = self.gpu_times[names[0]]
        copy = first.copies or _NOTHING
        in_main_memory = first.offload or self.cpu
        if share == 1:  # the only copies are from GPU to GPU
            return on_gpus.plus(copy.scaled(len(names) - 1))
        if in_main_memory is None or share == 0:
            return in_main_memory
        gpu_part = on_gpus.scaled(share)
        main_part = in_main_memory.scaled(1 - share)
        return gpu_part.plus(main_part).plus(copy.scaled(num_copies))

    def plan_times(self, plan: Plan) -> Times | None:
        """The times of a plan's target; None if a time is missing."""
        target = plan.models[0]
        options = target.options
        free_bytes = [gpu.free_bytes for gpu in plan.free.gpus]
        placement = place_layers(target.header, options, plan.free.gpus, free_bytes)
        names = []
        for gpu, num_layers in zip(plan.free.gpus, placement.gpu_layers(), strict=True):
            if num_layers:
                names.append(gpu.name)
        if not names and options.device is not None:
            names = [options.device]
        # One change, or one for each layer whose experts are in main memory.
        num_copies = max(1, placement.num_cpu_moe_layers)
        share = placement.read_share(target.header)
        return self.times(names, share, num_copies)

    def describe(self, used: Sequence[Device], helping: Sequence[Device]) -> str:
        """The chosen device and why: "CPU: Vulkan0 (Intel UHD) was measured at 0.62 of it …".

        If nothing was measured, the reason stands in place of the measurements.

        Args:
            used: The GPUs that have layers; none for the processor.
            helping: The GPU that computes large batches of layers in main memory, if any.
        """
        name = named_devices(used, helping)
        if self.fault:
            return f"{name}: no device was measured: {self.fault}"
        if self.cpu is None:
            return f"{name}: devices are measured when the model is loaded"
        best = self.cpu
        others = []
        if used:
            whole = self.gpu_times[used[0].name].whole
            assert whole is not None
            best = whole
            others.append(_compared("the CPU", self.cpu, best))
        for gpu in self.gpus:
            gpu_times = self.gpu_times.get(gpu.name)
            if gpu in used or gpu_times is None:
                continue
            described = f"{gpu.name} ({gpu.description})"
            if gpu_times.fault:
                others.append(f"{described} {gpu_times.fault} and is not used")
            elif gpu_times.whole is not None:
                others.append(_compared(described, gpu_times.whole, best))
        if others:
            return f"{name}: {'; '.join(others)}"
        return name


def _compared(device: str, times: Times, best: Times) -> str:
    """A device's speed as a multiple of the best one's, in words.

    Args:
        device: The device in words.
        times: Its times.
        best: The times of the device that was chosen.
    """
    writing = best.write_s / times.write_s
    reading = best.read_s / times.read_s
    return (
        f"{device} was measured at {writing:.2g} of it for writing, {reading:.2g} for reading"
    )
