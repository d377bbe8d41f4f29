"""The plans of a model for each device that it may be on, the fastest first."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from localspec.llama.devices import Device
from localspec.llama.model_options import LlamaOptions
from localspec.llama.placement import default_gpus, named_devices, usable_gpus
from localspec.planning.free_memory import Planned
from localspec.planning.plan import Plan

if TYPE_CHECKING:
    from localspec.planning.device_choice import Measured

MakePlan = Callable[[Sequence[Planned]], Plan]


class _PlanAttempt(NamedTuple):
    """A plan that is to be tried."""

    plan: Plan
    may_shrink: bool
    """Whether plans with fewer layers on its GPUs are tried once it has failed."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """Plans, the best first."""

    plans: list[Plan]
    measured: Measured | None = None
    """The times that they were compared by; None where the user chose the device, or there is
    only one."""

    def attempts(self) -> Iterator[Plan]:
        """The plans to try, the best first. Take the next one if memory runs out with the last.

        Once a plan has failed, plans with fewer layers on its GPUs are tried, too.
        """
        waiting = [_PlanAttempt(plan, may_shrink=True) for plan in self.plans]
        while waiting:
            attempt = waiting.pop(0)
            yield attempt.plan
            # The caller wants another plan: this one has failed.
            if not attempt.may_shrink:
                continue
            for smaller in attempt.plan.fewer():
                waiting.append(_PlanAttempt(smaller, may_shrink=False))
            if self.measured is not None:
                waiting.sort(key=lambda other: _cost_s(self.measured, other.plan))


def ranked_plans(
    wanted: Sequence[Planned],
    make_plan: MakePlan,
    *,
    measure: bool,
    again: bool = False,
) -> Ranked:
    """Plan the models for each device, and compare the plans.

    Args:
        wanted: The models as asked for, the target first.
        make_plan: Makes a plan of models.
        measure: Whether to measure devices whose times are not known, which may take seconds.
        again: Whether to measure the other devices again.

    Raises:
        What `make_plan` raises.
    """
    gpus = gpus_to_choose_from(wanted[0].options)
    if not gpus:
        return Ranked([make_plan(wanted)])
    # late: not needed without a GPU
    from localspec.planning.device_trials import measured_devices

    measured = measured_devices(
        wanted[0].header,
        gpus,
        measure=measure,
        again=again,
    )
    if measured.cpu is None:
        return Ranked([make_plan(wanted)], measured)
    choices = _choices(wanted, gpus, measured)
    plans = [make_plan(choice) for choice in choices]
    plans.sort(key=lambda plan: _cost_s(measured, plan))
    fitting = [plan for plan in plans if not plan.free.shortages(plan.memory)]
    return Ranked(fitting or plans, measured)


def _choices(
    wanted: Sequence[Planned],
    gpus: Sequence[Device],
    measured: Measured,
) -> list[list[Planned]]:
    """The models on the processor, on each GPU that works, and on all of libllama's default."""
    choices = [_placed(wanted, num_gpu_layers=0)]
    usable = []
    for gpu in gpus:
        times = measured.found.get(gpu.name)
        if times is None or times.fault:
            continue
        usable.append(gpu)
        choices.append(_placed(wanted, device=gpu.name))
        choices.append(_placed(wanted, device=gpu.name, num_gpu_layers=0))
    of_default = [gpus[index] for index in default_gpus(gpus)]
    if len(of_default) > 1 and all(gpu in usable for gpu in of_default):
        choices.append(list(wanted))
    return choices


def gpus_to_choose_from(options: LlamaOptions) -> list[Device]:
    """The GPUs of this machine; none where options or the environment fix the device."""
    is_chosen = (
        os.environ.get("LOCALSPEC_MEASURE") == "0"
        or options.num_gpu_layers is not None
        or options.device is not None
        or options.main_gpu is not None
        or options.num_cpu_moe_layers is not None
        or any(options.tensor_split)
        or bool(options.rpc)
    )
    if is_chosen:
        return []
    from localspec.llama.library import devices  # loads libllama

    return list(usable_gpus(devices()))


def _placed(
    wanted: Sequence[Planned],
    *,
    device: str | None = None,
    num_gpu_layers: int | None = None,
) -> list[Planned]:
    """The models on a device, except those whose device the user chose."""
    placed = []
    for model in wanted:
        options = model.options
        is_open = options.num_gpu_layers is None and options.device is None
        if is_open and options.main_gpu is None and model.role != "mmproj":
            model = model.changed(device=device, num_gpu_layers=num_gpu_layers)
        placed.append(model)
    return placed


def _cost_s(measured: Measured | None, plan: Plan) -> float:
    """The measured cost of a plan's target, in seconds; infinite if it is not known."""
    if measured is None:
        return float("inf")
    times = measured.of_plan(plan)
    if times is None:
        return float("inf")
    return times.cost_s


def device_in_words(plan: Plan, measured: Measured | None) -> str:
    """Where the target of a plan computes, and why, in a sentence."""
    options = plan.models[0].options
    layers = plan.memory.models[0].gpu_layers
    used = []
    helping = []
    for gpu, num_layers in zip(plan.free.gpus, layers, strict=True):
        if num_layers:
            used.append(gpu)
        if gpu.name == options.device:
            helping.append(gpu)
    if used:
        helping = []
    if measured is not None:
        return measured.in_words(used, helping)
    return named_devices(used, helping)
