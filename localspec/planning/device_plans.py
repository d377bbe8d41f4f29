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
    """A plan to try, by loading its models."""

    plan: Plan
    may_shrink: bool
    """Whether plans with fewer layers on its GPUs are tried once it has failed."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """Plans, the best first."""

    plans: list[Plan]
    measured: Measured | None = None
    """The times by which they were compared; None where the user chose the device, or there is
    only one."""

    def attempts(self) -> Iterator[Plan]:
        """The plans to try, the best first. Asking for the next one says that the last failed.

        After a plan that failed, for example for lack of memory, plans with fewer layers on its
        GPUs are added, in the order of their measured costs.
        """
        waiting = [_PlanAttempt(plan, may_shrink=True) for plan in self.plans]
        while waiting:
            attempt = waiting.pop(0)
            yield attempt.plan
            # The caller asks for another plan: this one has failed.
            if not attempt.may_shrink:
                continue
            for smaller in attempt.plan.smaller_plans():
                waiting.append(_PlanAttempt(smaller, may_shrink=False))
            if self.measured is not None:
                waiting.sort(key=lambda attempt: _cost_s(self.measured, attempt.plan))


def ranked_plans(
    wanted: Sequence[Planned],
    make_plan: MakePlan,
    *,
    measure: bool,
    again: bool = False,
) -> Ranked:
    """Plan the models for each device, and compare the plans.

    Args:
        wanted: The models with the options that the user set, the target first.
        make_plan: Makes a plan of models.
        measure: Whether to measure devices whose times are not known, which may take seconds.
        again: Whether to repeat the measurement of devices whose times are known.

    Returns:
        The plans that fit into memory, or all of them if none fits. Without a GPU to choose, or
        without times of the processor, it is the one plan of the models as they are.

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
    """The models with their device set to each possible one.

    These are the processor; each GPU that works, once for all layers and once for large batches
    only; and the GPUs that libllama takes by default, together.
    """
    choices = [_with_device(wanted, num_gpu_layers=0)]
    usable = []
    for gpu in gpus:
        times = measured.gpu_times.get(gpu.name)
        if times is None or times.fault:
            continue
        usable.append(gpu)
        choices.append(_with_device(wanted, device=gpu.name))
        choices.append(_with_device(wanted, device=gpu.name, num_gpu_layers=0))
    defaults = [gpus[index] for index in default_gpus(gpus)]
    if len(defaults) > 1 and all(gpu in usable for gpu in defaults):
        choices.append(list(wanted))
    return choices


def gpus_to_choose_from(options: LlamaOptions) -> list[Device]:
    """The GPUs of this machine; none if options set the device, or LOCALSPEC_MEASURE is 0."""
    if os.environ.get("LOCALSPEC_MEASURE") == "0":
        return []
    settings = (
        options.num_gpu_layers,
        options.device,
        options.main_gpu,
        options.num_cpu_moe_layers,
    )
    is_set = any(setting is not None for setting in settings)
    if is_set or any(options.tensor_split) or options.rpc:
        return []
    from localspec.llama.library import devices  # loads libllama

    return list(usable_gpus(devices()))


def _with_device(
    wanted: Sequence[Planned],
    *,
    device: str | None = None,
    num_gpu_layers: int | None = None,
) -> list[Planned]:
    """The models with these options, except projectors and models whose device the user set."""
    models = []
    for model in wanted:
        options = model.options
        is_open = options.num_gpu_layers is None and options.device is None
        if is_open and options.main_gpu is None and model.role != "mmproj":
            model = model.changed(device=device, num_gpu_layers=num_gpu_layers)
        models.append(model)
    return models


def _cost_s(measured: Measured | None, plan: Plan) -> float:
    """The measured cost of a plan's target, in seconds; infinite if it is not known."""
    if measured is None:
        return float("inf")
    times = measured.plan_times(plan)
    if times is None:
        return float("inf")
    return times.cost_s


def device_in_words(plan: Plan, measured: Measured | None) -> str:
    """Where the target of a plan computes, in words, and why, if devices were compared."""
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
        return measured.describe(used, helping)
    return named_devices(used, helping)
