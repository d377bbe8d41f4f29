"""Do the models of a pair fit into the memory that is free here, each part in its place?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from localspec.errors import MemoryLimitError
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.header import Header
from localspec.gguf_file.shape import ModelShape
from localspec.gguf_file.tensor_types import repacked_types
from localspec.llama.devices import Device
from localspec.llama.options import LlamaOptions, context_to_open
from localspec.llama.placement import is_in_main_memory, place_layers, usable_gpus
from localspec.machine import memory_here
from localspec.models.preset import HubModel, Preset
from localspec.models.presets import load_presets
from localspec.preflight.memory import (
    MemoryEstimate,
    estimate_memory,
    total_needed_bytes,
    total_peak_bytes,
)
from localspec.preflight.settings import with_suited_attention, with_suited_mapping
from localspec.speculative.policy_api import MAX_DRAFT_TOKENS, REPLAY_TOKENS

_CONTEXT_STEP = 256  # tokens
_OVER_FILES = 1.2  # a preset's memory over its files' size, as a rule of thumb


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Free memory for models: the main one, and that of each GPU that libllama takes.

    repacked: the tensor types that the processor repacks, see `tensor_types`.
    """

    main_bytes: int
    gpus: tuple[Device, ...]
    repacked: Mapping[str, float]

    def shortages(self, memory: PairMemory) -> list[Shortage]:
        """Every place that has less than is needed there; none if all fits."""
        main_bytes, found = memory.main_bytes, []
        for gpu, needed in zip(self.gpus, memory.gpu_bytes, strict=True):
            if is_in_main_memory(gpu):
                main_bytes += needed
            if needed > gpu.free_bytes and gpu.total_bytes > 0:  # else it does not say
                found.append(Shortage(gpu.name, needed, gpu.free_bytes))
        if main_bytes > self.main_bytes:
            found.insert(0, Shortage("", main_bytes, self.main_bytes))
        return found


class Shortage(NamedTuple):
    """A place that has too little free memory. gpu: its name, or "" for the main memory."""

    gpu: str
    needed_bytes: int
    free_bytes: int


class Planned(NamedTuple):
    """A model, and how it is to be opened but for the context."""

    header: Header
    options: LlamaOptions = LlamaOptions()


@dataclass(frozen=True, slots=True)
class PairMemory:
    """What target and draft take at a context; the target comes first."""

    context_length: int
    models: tuple[MemoryEstimate, ...]

    @property
    def needed_bytes(self) -> int:
        """What has to be there, in all places together."""
        return total_needed_bytes(self.models)

    @property
    def gpu_bytes(self) -> tuple[int, ...]:
        """What has to be there on each GPU."""
        return tuple(map(sum, zip(*(model.gpu_bytes for model in self.models), strict=True)))

    @property
    def main_bytes(self) -> int:
        """What has to be there in the main memory."""
        return self.needed_bytes - sum(self.gpu_bytes)

    @property
    def peak_bytes(self) -> int:
        """What the process shows at most, above the interpreter's own."""
        return total_peak_bytes(self.models)


def room_here() -> Room:
    """The room on this machine now."""
    from localspec.llama.model import devices, system_info  # loads libllama

    return Room(
        main_bytes=memory_here().available_bytes,
        gpus=usable_gpus(devices()),
        repacked=repacked_types(system_info()),
    )


def uses_gpu(num_gpu_layers: int | None) -> bool:
    """Whether libllama will compute on a GPU. num_gpu_layers: None is all of them."""
    from localspec.llama.model import devices  # loads libllama

    return num_gpu_layers != 0 and bool(usable_gpus(devices()))


def repacked_here(num_gpu_layers: int | None) -> Mapping[str, float]:
    """The tensor types that are repacked: none where a GPU computes."""
    from localspec.llama.model import system_info  # loads libllama

    return {} if uses_gpu(num_gpu_layers) else repacked_types(system_info())


def pair_memory(models: Sequence[Planned], context_length: int, room: Room) -> PairMemory:
    """What the models take, opened in this order: the target, and the draft if there is one."""
    estimates: list[MemoryEstimate] = []
    free_bytes = [gpu.free_bytes for gpu in room.gpus]
    for index, (header, options) in enumerate(models):
        context = min(context_length, ModelShape(header).context_length)
        outputs = REPLAY_TOKENS if index else MAX_DRAFT_TOKENS + 1
        options = replace(options, context_length=context, max_outputs=outputs)
        on_gpu = bool(room.gpus) and options.num_gpu_layers != 0
        repacked = {} if on_gpu else room.repacked
        options = with_suited_attention(options, header, context, uses_gpu=on_gpu)
        options = with_suited_mapping(options, header, repacked)
        placement = place_layers(header, options, room.gpus, free_bytes)
        estimates.append(estimate_memory(header, options, repacked, placement))
        free_bytes = [
            max(0, free - taken)
            for free, taken in zip(free_bytes, estimates[-1].gpu_bytes, strict=True)
        ]
    return PairMemory(context_length, tuple(estimates))


def largest_context(models: Sequence[Planned], room: Room) -> int:
    """The longest context that fits, in tokens; 0 if none does."""
    low, high = 0, ModelShape(models[0].header).context_length // _CONTEXT_STEP
    while low < high:
        middle = (low + high + 1) // 2
        memory = pair_memory(models, middle * _CONTEXT_STEP, room)
        low, high = (low, middle - 1) if room.shortages(memory) else (middle, high)
    return low * _CONTEXT_STEP


def most_gpu_layers(models: Sequence[Planned], context_length: int, room: Room) -> int | None:
    """The most layers of the target on GPUs with which all fits; None if no number does.

    A draft that was given the same number gets this one, too, as --gpu-layers does it.
    """
    wanted = models[0].options.num_gpu_layers
    num_layers = ModelShape(models[0].header).num_blocks + 1
    most = num_layers if wanted is None else min(wanted, num_layers)
    for count in range(most, -1, -1):
        planned = [
            model._replace(options=replace(model.options, num_gpu_layers=count))
            if model.options.num_gpu_layers == wanted
            else model
            for model in models
        ]
        if not room.shortages(pair_memory(planned, context_length, room)):
            return count
    return None


def fitting_preset(room: Room) -> Preset | None:
    """The largest preset of the hub that fits as `load` opens it, by its files' sizes."""
    own = [gpu.free_bytes for gpu in room.gpus if not is_in_main_memory(gpu)]
    free_bytes = sum(own) if own else room.main_bytes
    sizes: dict[int, Preset] = {}
    for preset in load_presets().values():
        models = [model for model in preset.models if isinstance(model, HubModel)]
        if models and all(model.size_bytes is not None for model in models):
            sizes[sum(model.size_bytes or 0 for model in models)] = preset
    fitting = [size for size in sizes if size * _OVER_FILES <= free_bytes]
    return sizes[max(fitting)] if fitting else None


def target_context_length(header: Header, wanted: int | None) -> int:
    """The context that a target is opened with. Raises OptionError: see `context_to_open`."""
    return context_to_open(wanted, ModelShape(header).context_length, header.path.name)


def check_room(paths: Sequence[Path], options: Sequence[LlamaOptions]) -> None:
    """Refuse models that cannot fit, before anything is allocated.

    paths: the target's file, and the draft's if there is one; the first one's options have
    the context. Raises MemoryLimitError, with what would fit instead, or ModelFileError.
    """
    models = [
        Planned(check_model_file(path), one) for path, one in zip(paths, options, strict=True)
    ]
    room = room_here()
    context_length = target_context_length(models[0].header, models[0].options.context_length)
    shortages = room.shortages(pair_memory(models, context_length, room))
    if shortages:
        names = " and ".join(path.name for path in paths)
        raise MemoryLimitError(
            f"{names} need {_lacking(shortages, context_length)}",
            _way_out(models, context_length, room),
        )


def _lacking(shortages: Sequence[Shortage], context_length: int) -> str:
    sums = " and ".join(
        f"{_gb(needed)} on {gpu}" if gpu else _gb(needed) for gpu, needed, _ in shortages
    )
    free = ", ".join(
        f"{_gb(free)} on {gpu}" if gpu else f"{_gb(free)} of main memory"
        for gpu, _, free in shortages
    )
    return f"{sums} at a context of {context_length} tokens; free are {free}"


def _way_out(models: Sequence[Planned], context_length: int, room: Room) -> str:
    ways = []
    on_gpus = bool(room.gpus) and models[0].options.num_gpu_layers != 0
    if on_gpus and (layers := most_gpu_layers(models, context_length, room)) is not None:
        ways.append(f"with {layers} layers on GPUs (--gpu-layers)")
    if context := largest_context(models, room):
        ways.append(f"at a context of up to {context} tokens (--ctx)")
    if ways:
        return f"It fits {', or '.join(ways)}; --force loads it anyway."
    if smaller := fitting_preset(room):
        return f"The preset {smaller.name} fits; --force loads this one anyway."
    return "Close other programs, or take the demo preset; --force loads it anyway."


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
