"""Whether the models of a pair fit into the memory that is free here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from localspec.errors import MemoryLimitError
from localspec.exactness import Exactness
from localspec.gguf_file.content import FileContent
from localspec.gguf_file.header import Header
from localspec.gguf_file.shape import DEFAULT_CONTEXT_LENGTH, ModelShape, context_to_open
from localspec.hub.hub_file import HubModel
from localspec.llama.options import LlamaOptions
from localspec.llama.placement import is_in_main_memory, usable_gpus
from localspec.llama.quirks.tiled_kernels import are_tiled
from localspec.policy.profile import is_of_exactness, kept_profiles
from localspec.preflight.free_memory import (
    MemoryRoom,
    Planned,
    Shortage,
    free_memory,
    suited_options,
)
from localspec.preflight.plan import Plan, largest, plan_layers
from localspec.presets.preset import Preset
from localspec.presets.presets import load_presets

_CONTEXT_STEP = 256  # tokens
_OVER_FILES = 1.2  # a preset's memory over its files' size, as a rule of thumb


def uses_gpu(options: LlamaOptions) -> bool:
    """Whether libllama will compute on a GPU or an RPC server with these options."""
    from localspec.llama.library import devices  # loads libllama

    return options.num_gpu_layers != 0 and bool(options.rpc or usable_gpus(devices()))


def suited(options: LlamaOptions, header: Header, context_length: int) -> LlamaOptions:
    """The options, with open choices made to suit the file on this machine."""
    asked = replace(options, context_length=context_length)
    chosen, _ = suited_options(asked, header, free_memory(), uses_gpu=uses_gpu(options))
    return replace(chosen, context_length=options.context_length)


def exact_settings(header: Header) -> tuple[str, ...]:
    """The settings, in words, with which a file is opened for exact decodes."""
    chosen = suited(LlamaOptions(exact=True), header, DEFAULT_CONTEXT_LENGTH)
    return (
        "flash attention",
        *([f"{chosen.cache_type_k} keys"] if chosen.cache_type_k else []),
        *(["weights that are not repacked"] if chosen.repack is False else []),
        *(["no tiled kernels"] if chosen.cache_type_k and are_tiled(header) else []),
    )


def found_exactness(header: Header) -> Exactness | None:
    """The probe's result for a file with exact settings here; None if it is not known to be
    exact.
    """
    from localspec.llama.library import kernels  # loads libllama

    kept = [one for _, one, _ in kept_profiles() if is_of_exactness(one)]
    content = FileContent(header).digest() if kept else ""
    for model, _setting in kept:
        if model.startswith(f"{content} ·") and model.endswith(f" · {kernels()}"):
            return Exactness(all_sizes=True, reason="")
    return None


def largest_context(models: Sequence[Planned], free: MemoryRoom) -> int:
    """The longest context that fits, in tokens; 0 if none does."""

    def fits(steps: int) -> bool:
        plan = plan_layers(models, steps * _CONTEXT_STEP, free)
        return not free.shortages(plan.memory)

    most = ModelShape(models[0].header).context_length // _CONTEXT_STEP
    return largest(most, fits) * _CONTEXT_STEP


def most_gpu_layers(
    models: Sequence[Planned], context_length: int, free: MemoryRoom
) -> int | None:
    """The most layers of the target on GPUs that fit, up to the number in its options.

    None if no number fits, or the options leave it open. A draft with the same number gets
    this one, too, as in `load`.
    """
    wanted = models[0].options.num_gpu_layers
    if wanted is None:
        return None
    num_layers = ModelShape(models[0].header).num_blocks + 1
    for count in range(min(wanted, num_layers), -1, -1):
        changed = [
            model._replace(options=replace(model.options, num_gpu_layers=count))
            if model.options.num_gpu_layers == wanted
            else model
            for model in models
        ]
        if not free.shortages(plan_layers(changed, context_length, free).memory):
            return count
    return None


def fitting_preset(free: MemoryRoom) -> Preset | None:
    """The largest preset of the hub that fits, judged by the sizes of its files."""
    sizes: dict[int, Preset] = {}
    for preset in load_presets().values():
        models = [model for model in preset.models if isinstance(model, HubModel)]
        is_known = models and all(model.size_bytes is not None for model in models)
        if is_known and not preset.embeds:
            sizes[sum(model.size_bytes or 0 for model in models)] = preset
    fitting = [size for size in sizes if fits_by_size(size, free)]
    return sizes[max(fitting)] if fitting else None


def fits_by_size(size_bytes: int, free: MemoryRoom) -> bool:
    """Whether models are likely to fit into the GPUs or the main memory alone.

    size_bytes: of their files.
    """
    own = sum(gpu.free_bytes for gpu in free.gpus if not is_in_main_memory(gpu))
    return size_bytes * _OVER_FILES <= max(own, free.main_bytes)


def target_context_length(header: Header, wanted: int | None) -> int:
    """The context that a target is opened with. Raises OptionError: see `context_to_open`."""
    return context_to_open(wanted, ModelShape(header).context_length, header.path.name)


def plan_here(models: Sequence[Planned]) -> Plan:
    """The plan for this machine now, and for the RPC servers that the options name.

    models: the target first, whose options have the context. Raises OptionError for a context
    that is too long, and RpcError.
    """
    target = models[0]
    context_length = target_context_length(target.header, target.options.context_length)
    rpc = dict.fromkeys(address for model in models for address in model.options.rpc)
    return plan_layers(models, context_length, free_memory(tuple(rpc)))


def check_fit(plan: Plan) -> None:
    """Raise MemoryLimitError for models that do not fit, with hints at what would."""
    if shortages := plan.free.shortages(plan.memory):
        names = " and ".join(model.header.path.name for model in plan.wanted)
        raise MemoryLimitError(
            f"{names} need {_lacking(shortages, plan.context_length)}",
            _way_out(plan.wanted, plan.context_length, plan.free),
        )


def _lacking(shortages: Sequence[Shortage], context_length: int) -> str:
    sums = " and ".join(
        f"{_gb(needed)} on {gpu}" if gpu else _gb(needed) for gpu, needed, _ in shortages
    )
    left = ", ".join(
        f"{_gb(num_bytes)} on {gpu}" if gpu else f"{_gb(num_bytes)} of main memory"
        for gpu, _, num_bytes in shortages
    )
    return f"{sums} at a context of {context_length} tokens; free are {left}"


def _way_out(models: Sequence[Planned], context_length: int, free: MemoryRoom) -> str:
    ways = []
    on_gpus = bool(free.gpus) and models[0].options.num_gpu_layers != 0
    if on_gpus and (layers := most_gpu_layers(models, context_length, free)) is not None:
        ways.append(f"with {layers} layers on GPUs (num_gpu_layers=…)")
    if context := largest_context(models, free):
        ways.append(f"at a context of up to {context} tokens (context_length=…)")
    if ways:
        return f"It fits {', or '.join(ways)}; force=True loads it anyway."
    if smaller := fitting_preset(free):
        return f"The preset {smaller.name} fits; force=True loads this one anyway."
    return "Close other programs, or use the demo preset; force=True loads it anyway."


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
