"""Plans the layers on GPUs, and the texts side by side, and says whether the models fit.

A draft goes onto GPUs first and whole, if it can: it runs several times a step. The remaining
memory gets as many of the target's layers as fit, counted from the last one. RPC servers hold
layers as GPUs do, of the models that name them. The experts of a mixture of experts go last: a
token reads only a few of them, but all the other weights of a layer, so a GPU's memory is
better used for those. Numbers that a user sets do not change, but for snapshots: where
memory is short there are fewer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from localspec.errors import MemoryLimitError, OptionError, is_whole
from localspec.gguf_file.head_facts import head_facts
from localspec.gguf_file.header import Header
from localspec.gguf_file.shape import ModelShape, context_to_open
from localspec.hub.hub_file import HubModel
from localspec.llama.model_options import DEFAULT_SNAPSHOTS, LlamaOptions
from localspec.llama.placement import chosen_gpus, has_experts, is_in_main_memory, place_layers
from localspec.planning.free_memory import (
    MemoryRoom,
    PairMemory,
    Planned,
    free_memory,
    pair_memory,
)
from localspec.presets.presets import Preset, load_presets

MOST_PARALLEL = 16
_KEPT_PART = 8  # caches of texts that wait take up to 1/8 of a server's memory
# Memory of each GPU that a plan leaves free: for its library, for weights in main memory that
# are copied there to read a prompt, and for other programs. If that is not enough, a GPU's
# library may end the process. llama.cpp leaves as much (--fit-target).
MARGIN_BYTES = 1 << 30
# Shares of a plan's GPU memory for the next plans, if there was too little for the plan.
_SHARES = (0.75, 0.5, 0.0)
_CONTEXT_STEP = 256  # tokens
_OVER_FILES = 1.2  # a preset's memory over its files' size, as a rule of thumb
_FEWER_SNAPSHOTS = (4, 2, 1, 0)  # of a hybrid's states, if the wanted number does not fit


@dataclass(frozen=True, slots=True)
class Plan:
    """Models with all layers placed, the target first."""

    wanted: tuple[Planned, ...]
    """The models as asked for."""

    models: tuple[Planned, ...]
    context_length: int
    free: MemoryRoom

    reserved_bytes: int = 0
    """Memory for all texts side by side but the first."""

    @property
    def memory(self) -> PairMemory:
        """The memory that the models take."""
        return pair_memory(self.models, self.context_length, self.free)

    def fewer(self) -> Iterator[Plan]:
        """Plans with fewer and fewer layers on GPUs that fit into main memory.

        There are none if the user fixed the number of layers.
        """
        taken = self.memory.gpu_bytes
        last = self.models
        for share in _SHARES:
            gpus = []
            for gpu, size in zip(self.free.gpus, taken, strict=True):
                total = max(1, gpu.total_bytes)
                gpus.append(replace(gpu, free_bytes=int(share * size), total_bytes=total))
            limited = replace(self.free, gpus=tuple(gpus))
            models = _chosen(self.wanted, self.context_length, limited)
            smaller = replace(self, models=models)
            if models != last and not self.free.shortages(smaller.memory):
                last = models
                yield smaller


def plan_layers(models: Sequence[Planned], context_length: int, free: MemoryRoom) -> Plan:
    """Choose what the options leave open, so that the models fit if they can.

    Args:
        models: The models as asked for, the target first.
        context_length: Tokens.
        free: The free memory.
    """
    target = models[0]
    for options in _left_open(target):
        wanted = (target._replace(options=options), *models[1:])
        plan = _with_layers(wanted, context_length, free)
        if not free.shortages(plan.memory):
            break
    return plan


def _left_open(target: Planned) -> Iterator[LlamaOptions]:
    """The target's options to try in turn until the models fit, the best first.

    They differ in whether the head is used, if that is left open, and in how many snapshots
    of a hybrid are kept, at most as many as wanted.
    """
    options = target.options
    facts = head_facts(target.header)
    heads: list[bool | None] = [options.with_head]
    if options.with_head is None and facts is not None and not facts.why_not:
        heads = [True, False]
    for with_head in heads:
        chosen = replace(options, with_head=with_head)
        if not ModelShape(target.header).has_snapshots:
            yield chosen
            continue
        most = options.num_snapshots
        if most is None:
            most = DEFAULT_SNAPSHOTS
        fewer = [count for count in _FEWER_SNAPSHOTS if count < most]
        for count in (most, *fewer):
            if count or not with_head:  # a head needs snapshots
                yield replace(chosen, num_snapshots=count)


def _with_layers(wanted: tuple[Planned, ...], context_length: int, free: MemoryRoom) -> Plan:
    """Choose the layers that the options leave open, so that the models fit if they can."""
    # Without the margin, if main memory cannot take the other layers.
    for margin in (MARGIN_BYTES, 0):
        gpus = []
        for gpu in free.gpus:
            gpus.append(replace(gpu, free_bytes=max(0, gpu.free_bytes - margin)))
        limited = replace(free, gpus=tuple(gpus))
        chosen = _chosen(wanted, context_length, limited)
        plan = Plan(wanted, chosen, context_length, free)
        if chosen == wanted or not free.shortages(plan.memory):
            break
    return plan


def _chosen(
    wanted: tuple[Planned, ...],
    context_length: int,
    free: MemoryRoom,
) -> tuple[Planned, ...]:
    """The models with the most layers that the GPUs have memory for."""
    if not free.gpus:
        return wanted
    models = []
    for model in wanted:
        if model.options.num_gpu_layers is None:
            model = model.changed(num_gpu_layers=0)
        models.append(model)
    for index, model in reversed(list(enumerate(wanted))):
        is_open = model.role != "mmproj" and model.options.num_gpu_layers is None
        if is_open and chosen_gpus(free.gpus, model.options):
            models[index] = model
            models[index] = _Search(models, index, context_length, free).best()
    return tuple(models)


class _Search:
    """Finds the most layers of the model at `index` that fit together with the others."""

    def __init__(
        self,
        models: Sequence[Planned],
        index: int,
        context_length: int,
        free: MemoryRoom,
    ) -> None:
        model = models[index]
        self._model = model
        self._index = index
        self._models = list(models)
        self._context_length = context_length
        self._free = free
        self._num_layers = ModelShape(model.header).num_blocks + 1
        self._gpus = chosen_gpus(free.gpus, model.options)
        # Whether to choose the layers of each GPU. Otherwise their total number decides that.
        self._is_split_here = len(self._gpus) > 1 and not any(model.options.tensor_split)

    def best(self) -> Planned:
        """The model with the most layers on GPUs."""
        fixed = self._model.options.num_cpu_moe_layers
        options = self._most(fixed or 0)
        if fixed is None and has_experts(self._model.header) and not self._is_whole(options):
            num_blocks = self._num_layers - 1

            def fits_with_experts(count: int) -> bool:
                return self._is_whole(self._most(num_blocks - count))

            options = self._most(num_blocks - largest(num_blocks - 1, fits_with_experts))
            if options.num_gpu_layers == 0:  # all layers are in main memory anyway
                options = replace(options, num_cpu_moe_layers=None)
        return self._model._replace(options=options)

    def _is_whole(self, options: LlamaOptions) -> bool:
        return options.num_gpu_layers == self._num_layers

    def _most(self, num_cpu_moe_layers: int) -> LlamaOptions:
        """The options with the most layers on GPUs.

        Args:
            num_cpu_moe_layers: The number of layers whose experts are in main memory.
        """
        base = self._model.options
        if num_cpu_moe_layers:
            base = replace(base, num_cpu_moe_layers=num_cpu_moe_layers)
        if not self._is_split_here:
            count = largest(
                self._num_layers,
                lambda n: self._fits(replace(base, num_gpu_layers=n)),
            )
            return replace(base, num_gpu_layers=count)
        whole = self._split(base, self._by_free_memory(base))
        if self._fits(whole):
            return whole
        counts = [0] * len(self._gpus)
        for index in reversed(range(len(counts))):  # the last layers are the last GPU's

            def fits(count: int, index: int = index) -> bool:
                tried = list(counts)
                tried[index] = count
                return self._fits(self._split(base, tried))

            counts[index] = largest(self._num_layers - sum(counts), fits)
        return self._split(base, counts)

    def _by_free_memory(self, options: LlamaOptions) -> list[int]:
        """Layers of each GPU if libllama divides all layers by free memory."""
        gpus = self._free.gpus
        free_bytes = [gpu.free_bytes for gpu in gpus]
        others = list(self._models)
        del others[self._index]
        if others:
            memory = pair_memory(others, self._context_length, self._free)
            for gpu, taken in enumerate(memory.gpu_bytes):
                free_bytes[gpu] = max(0, free_bytes[gpu] - taken)
        placement = place_layers(self._model.header, options, gpus, free_bytes)
        layers = placement.gpu_layers()
        return [layers[gpu] for gpu in self._gpus]

    def _split(self, options: LlamaOptions, counts: Sequence[int]) -> LlamaOptions:
        """The options with this number of layers on each GPU."""
        shares: tuple[float, ...] = ()
        if any(counts):
            shares = tuple(map(float, counts))
        return replace(options, num_gpu_layers=sum(counts), tensor_split=shares)

    def _fits(self, options: LlamaOptions) -> bool:
        """Whether the pair fits on each GPU with these options of the model."""
        self._models[self._index] = self._model._replace(options=options)
        memory = pair_memory(self._models, self._context_length, self._free)
        return not any(shortage.gpu for shortage in self._free.shortages(memory))


def largest(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to the limit that fits, by bisection. 0 counts as fitting."""
    if fits(limit):
        return limit
    # The index of the first number that does not fit, which is the number before it.
    return bisect_left(range(1, limit), 1, key=lambda number: not fits(number))


def check_parallel(parallel: object) -> None:
    """Raise OptionError for a number of answers at once outside its range."""
    if not is_whole(parallel, 1, MOST_PARALLEL):
        raise OptionError(f"parallel is {parallel!r}", f"Choose 1 to {MOST_PARALLEL}.")


def served_kept_bytes(total_bytes: int, num_models: int = 1) -> int:
    """The share of the machine's memory for caches of each of a server's models."""
    return total_bytes // (_KEPT_PART * num_models)


@dataclass(frozen=True, slots=True)
class AtOnce:
    """How many answers run at once."""

    num: int
    num_asked: int
    """The number that the user asked for."""

    num_bytes: int
    """The memory that every answer but the first takes."""

    kept_bytes: int
    """The limit of the additional memory for the caches of waiting conversations."""


def plan_side_by_side(
    wanted: Sequence[Planned],
    context_length: int,
    free: MemoryRoom,
    parallel: int,
    kept_bytes: int,
) -> Plan:
    """The plan for up to `parallel` texts side by side; for one text with RPC servers.

    All texts but the first take at most half of kept_bytes, so that a copy of any text fits
    into the other half. They cost no layer on a GPU and no snapshot.
    """
    alone = plan_layers(wanted, context_length, free)
    if any(model.options.rpc for model in wanted):
        return alone
    for count in range(parallel, 1, -1):
        planned = [model.changed(num_sequences=count) for model in wanted]
        plan = plan_layers(planned, context_length, free)
        # Nothing but the sequences may differ from the plan for one text.
        models = [model.changed(num_sequences=1) for model in plan.models]
        is_like = models == list(alone.models)
        reserved = plan.memory.needed_bytes - alone.memory.needed_bytes
        is_small = reserved <= kept_bytes // 2
        if is_small and is_like and not free.shortages(plan.memory):
            return replace(plan, reserved_bytes=reserved)
    return alone


def target_context_length(header: Header, wanted: int | None) -> int:
    """The context that a target is opened with. Raises OptionError: see `context_to_open`."""
    return context_to_open(wanted, ModelShape(header).context_length, header.path.name)


def plan_here(models: Sequence[Planned], parallel: int = 1, kept_bytes: int = 0) -> Plan:
    """The plan for this machine now, and for the RPC servers that the options name.

    Raises OptionError for a context that is too long, and RpcError.

    Args:
        models: The target first, whose options have the context.
        parallel, kept_bytes: See `plan_side_by_side`.
    """
    target = models[0]
    context_length = target_context_length(target.header, target.options.context_length)
    rpc: dict[str, None] = {}  # a set that keeps the order
    for model in models:
        rpc |= dict.fromkeys(model.options.rpc)
    free = free_memory(tuple(rpc))
    return plan_side_by_side(models, context_length, free, parallel, kept_bytes)


def check_fit(plan: Plan) -> None:
    """Raise MemoryLimitError for models that do not fit, with a hint at what would fit."""
    needs = []
    for gpu, needed_bytes, free_bytes in plan.free.shortages(plan.memory):
        place = "of main memory"
        if gpu:
            place = f"on {gpu}"
        needs.append(f"{needed_bytes / 1e9:.1f} GB {place} ({free_bytes / 1e9:.1f} GB free)")
    if needs:
        names = " and ".join(model.header.path.name for model in plan.wanted)
        raise MemoryLimitError(
            f"{names} need {', '.join(needs)} at a context of {plan.context_length} tokens",
            _way_out(plan.wanted, plan.context_length, plan.free),
        )


def _way_out(models: Sequence[Planned], context_length: int, free: MemoryRoom) -> str:
    """The hint for models that do not fit: fewer layers, a shorter context, another preset."""
    ways = []
    if free.gpus and models[0].options.num_gpu_layers != 0:
        layers = most_gpu_layers(models, context_length, free)
        if layers is not None:
            ways.append(f"with {layers} layers on GPUs (num_gpu_layers=…)")
    context = largest_context(models, free)
    if context:
        ways.append(f"at a context of up to {context} tokens (context_length=…)")
    if ways:
        return f"It fits {', or '.join(ways)}; force=True loads it anyway."
    smaller = fitting_preset(free)
    if smaller:
        return f"The preset {smaller.name} fits; force=True loads this one anyway."
    return "Close other programs, or use the demo preset; force=True loads it anyway."


def largest_context(models: Sequence[Planned], free: MemoryRoom) -> int:
    """The longest context that fits, in tokens; 0 if none does."""

    def fits(steps: int) -> bool:
        plan = plan_layers(models, steps * _CONTEXT_STEP, free)
        return not free.shortages(plan.memory)

    most = ModelShape(models[0].header).context_length // _CONTEXT_STEP
    return largest(most, fits) * _CONTEXT_STEP


def most_gpu_layers(
    models: Sequence[Planned],
    context_length: int,
    free: MemoryRoom,
) -> int | None:
    """The most layers of the target on GPUs that fit, up to the number in its options.

    None if no number fits, or the options leave it open. A draft whose options have the same
    number gets the new number, too, as in `load`.
    """
    wanted = models[0].options.num_gpu_layers
    if wanted is None:
        return None
    num_layers = ModelShape(models[0].header).num_blocks + 1
    for count in range(min(wanted, num_layers), -1, -1):
        changed = []
        for model in models:
            if model.options.num_gpu_layers == wanted:
                model = model.changed(num_gpu_layers=count)
            changed.append(model)
        plan = plan_layers(changed, context_length, free)
        if not free.shortages(plan.memory):
            return count
    return None


def fitting_preset(free: MemoryRoom) -> Preset | None:
    """The largest preset of the newest year that fits, judged by the sizes of its files."""
    best: Preset | None = None
    best_rank = ("", 0)  # year, then bytes
    for preset in load_presets().values():
        size = _hub_bytes(preset)
        if not size or preset.embeds or not fits_by_size(size, free):
            continue
        year = preset.released[:4]
        if (year, size) >= best_rank:
            best = preset
            best_rank = (year, size)
    return best


def _hub_bytes(preset: Preset) -> int | None:
    """The bytes of a preset's files on the hub; None if the size of one is unknown."""
    total = 0
    for model in preset.models:
        if not isinstance(model, HubModel):
            continue
        if model.size_bytes is None:
            return None
        total += model.size_bytes
    return total


def fits_by_size(size_bytes: int, free: MemoryRoom) -> bool:
    """Whether models are likely to fit into the GPUs or the main memory alone.

    Args:
        size_bytes: The size of their files together.
        free: The free memory.
    """
    return fits_on_gpus(size_bytes, free) or size_bytes * _OVER_FILES <= free.main_bytes


def fits_on_gpus(size_bytes: int, free: MemoryRoom) -> bool:
    """Whether models are likely to fit into GPUs with memory of their own.

    Args:
        size_bytes: The size of their files together.
        free: The free memory.
    """
    own = sum(gpu.free_bytes for gpu in free.gpus if not is_in_main_memory(gpu))
    return size_bytes * _OVER_FILES <= own
