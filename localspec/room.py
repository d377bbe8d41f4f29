"""Do the models of a pair fit into the memory that is free here?"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from localspec.attention import with_suited_attention
from localspec.draft_length import LOOK_BACK_TOKENS, MAX_DRAFT_TOKENS
from localspec.errors import MemoryLimitError
from localspec.header import Header
from localspec.llama_options import LlamaOptions
from localspec.llama_params import DEFAULT_CONTEXT_LENGTH
from localspec.machine import memory_here
from localspec.mapping import with_suited_mapping
from localspec.memory import (
    MemoryEstimate,
    estimate_memory,
    total_needed_bytes,
    total_peak_bytes,
)
from localspec.model_file import check_model_file
from localspec.model_shape import ModelShape
from localspec.preset import HubModel, Preset
from localspec.presets import load_presets
from localspec.tensor_types import repacked_types

_CONTEXT_STEP = 256  # tokens
_OVER_FILES = 1.2  # a preset's memory over its files' size, as a rule of thumb


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Memory for models: free main memory, and free memory of GPUs that have their own.

    repacked: the tensor types that are stored anew here, see `tensor_types`. uses_gpu: whether
    any GPU computes.
    """

    main_bytes: int
    gpu_bytes: int
    repacked: Mapping[str, float]
    uses_gpu: bool

    @property
    def total_bytes(self) -> int:
        return self.main_bytes + self.gpu_bytes


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
        """What has to be there."""
        return total_needed_bytes(self.models)

    @property
    def peak_bytes(self) -> int:
        """What the process shows at most, above the interpreter's own."""
        return total_peak_bytes(self.models)


def room_here(num_gpu_layers: int | None = None) -> Room:
    """The room on this machine now. num_gpu_layers: 0 leaves GPUs out."""
    from localspec.llama import devices  # loads libllama

    gpu_bytes = 0
    # Apple's GPUs call themselves so, but live in the main memory.
    if num_gpu_layers != 0 and sys.platform != "darwin":
        gpu_bytes = sum(device.free_bytes for device in devices() if device.kind == "GPU")
    return Room(
        main_bytes=memory_here().available_bytes,
        gpu_bytes=gpu_bytes,
        repacked=repacked_here(num_gpu_layers),
        uses_gpu=uses_gpu(num_gpu_layers),
    )


def uses_gpu(num_gpu_layers: int | None) -> bool:
    """Whether libllama will compute on a GPU. num_gpu_layers: None is all that fit."""
    from localspec.llama import devices  # loads libllama

    return num_gpu_layers != 0 and any("GPU" in device.kind for device in devices())


def repacked_here(num_gpu_layers: int | None) -> Mapping[str, float]:
    """The tensor types that are stored anew: none where a GPU computes."""
    from localspec.llama import system_info  # loads libllama

    return {} if uses_gpu(num_gpu_layers) else repacked_types(system_info())


def pair_memory(models: Sequence[Planned], context_length: int, room: Room) -> PairMemory:
    """What the models take: the target, and the draft if there is one."""
    estimates = []
    for index, (header, options) in enumerate(models):
        context = min(context_length, ModelShape(header).context_length)
        outputs = LOOK_BACK_TOKENS if index else MAX_DRAFT_TOKENS + 1
        options = replace(options, context_length=context, max_outputs=outputs)
        options = with_suited_attention(options, header, context, uses_gpu=room.uses_gpu)
        options = with_suited_mapping(options, header, room.repacked)
        estimates.append(estimate_memory(header, options, room.repacked))
    return PairMemory(context_length, tuple(estimates))


def largest_context(models: Sequence[Planned], room: Room) -> int:
    """The longest context that fits, in tokens; 0 if none does."""
    low, high = 0, ModelShape(models[0].header).context_length // _CONTEXT_STEP
    while low < high:
        middle = (low + high + 1) // 2
        needed = pair_memory(models, middle * _CONTEXT_STEP, room).needed_bytes
        low, high = (middle, high) if needed <= room.total_bytes else (low, middle - 1)
    return low * _CONTEXT_STEP


def fitting_preset(room: Room) -> Preset | None:
    """The largest preset of the hub that fits, by the sizes of its files."""
    sizes: dict[int, Preset] = {}
    for preset in load_presets().values():
        models = [model for model in preset.models if isinstance(model, HubModel)]
        if models and all(model.size_bytes is not None for model in models):
            sizes[sum(model.size_bytes or 0 for model in models)] = preset
    fitting = [size for size in sizes if size * _OVER_FILES <= room.total_bytes]
    return sizes[max(fitting)] if fitting else None


def context_to_open(header: Header, wanted: int | None) -> int:
    """The context that a target is opened with."""
    return wanted or min(ModelShape(header).context_length, DEFAULT_CONTEXT_LENGTH)


def check_room(paths: Sequence[Path], options: Sequence[LlamaOptions]) -> None:
    """Refuse models that cannot fit, before anything is allocated.

    paths: the target's file, and the draft's if there is one; the first one's options have
    the context and the GPU layers. Raises MemoryLimitError, with what would fit instead, or
    ModelFileError.
    """
    models = [
        Planned(check_model_file(path), one) for path, one in zip(paths, options, strict=True)
    ]
    first = models[0]
    room = room_here(first.options.num_gpu_layers)
    context_length = context_to_open(first.header, first.options.context_length)
    memory = pair_memory(models, context_length, room)
    if memory.needed_bytes > room.total_bytes:
        raise MemoryLimitError(_refusal(paths, memory, room), _way_out(models, room))


def _refusal(paths: Sequence[Path], memory: PairMemory, room: Room) -> str:
    names = " and ".join(path.name for path in paths)
    on_gpus = f" and {_gb(room.gpu_bytes)} on GPUs" if room.gpu_bytes else ""
    return (
        f"{names} need {_gb(memory.needed_bytes)} at a context of {memory.context_length} "
        f"tokens; {_gb(room.main_bytes)} of memory{on_gpus} are free"
    )


def _way_out(models: Sequence[Planned], room: Room) -> str:
    if context := largest_context(models, room):
        return f"A context of up to {context} tokens fits (--ctx); --force loads it anyway."
    if smaller := fitting_preset(room):
        return f"The preset {smaller.name} fits; --force loads this one anyway."
    return "Close other programs, or take the demo preset; --force loads it anyway."


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
