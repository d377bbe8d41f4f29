"""Plans the layers on GPUs, and the texts side by side, and says whether the models fit.

A draft goes onto GPUs first, as a whole if it fits: it runs several times a step. The remaining
memory gets as many of the target's layers as fit, counted from the last one. RPC servers hold
layers as GPUs do, for the models whose options name them. The experts of a mixture of experts
go last: a token reads only a few of them, but all the other weights of a layer, so a GPU's
memory is better used for those. Numbers that a user sets do not change, except that there are
fewer snapshots where memory is short.
"""

from __future__ import annotations

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
# If a plan failed: the shares of its GPU memory that the next plans take.
_SHARES = (0.75, 0.5, 0.0)
_CONTEXT_STEP = 256  # tokens
_OVER_FILES = 1.2  # a preset's memory ÷ its files' size, as a rule of thumb
_FEWER_SNAPSHOTS = (4, 2, 1, 0)  # of a hybrid's states, if the wanted number does not fit


@dataclass(frozen=True, slots=True)
class Plan:
    """Models with all layers placed, the target first."""

    wanted: tuple[Planned, ...]
    """The models before their layers were placed."""

    models: tuple[Planned, ...]
    context_length: int
    free: MemoryRoom

    reserved_bytes: int = 0
    """Memory for all texts side by side but the first."""

    @property
    def memory(self) -> PairMemory:
        """The memory that the models take."""
        return pair_memory(self.models, self.context_length, self.free)

    def smaller_plans(self) -> Iterator[Plan]:
        """Plans with fewer and fewer layers on GPUs, if the other layers fit into main memory.

        There are none if the user fixed the number of layers.
        """
        gpu_bytes = self.memory.gpu_bytes
        last_models = self.models
        for share in _SHARES:
            gpus = []
            for gpu, size in zip(self.free.gpus, gpu_bytes, strict=True):
                total = max(1, gpu.total_bytes)  # 0 would say that it is unknown
                gpus.append(replace(gpu, free_bytes=int(share * size), total_bytes=total))
            limited = replace(self.free, gpus=tuple(gpus))
            models = _placed_on_gpus(self.wanted, self.context_length, limited)
            smaller = replace(self, models=models)
            if models != last_models and not self.free.shortages(smaller.memory):
                last_models = models
                yield smaller


def plan_layers(models: Sequence[Planned], context_length: int, free: MemoryRoom) -> Plan:
    """The best plan with which the models fit; if there is none, the last that was tried.

    It sets what the options leave open: the head, snapshots, and layers on GPUs.

    Args:
        models: The models with the options that the user set, the target first.
        context_length: Tokens.
        free: The free memory.
    """
    target = models[0]
    for options in _options_to_try(target):
        wanted = (target._replace(options=options), *models[1:])
        plan = _plan_with_margin(wanted, context_length, free)
        if not free.shortages(plan.memory):
            break
    return plan


def _options_to_try(target: Planned) -> Iterator[LlamaOptions]:
    """The target's options to try in turn until the models fit, the best first.

    They differ in whether the head is used, if that is left open, and in how many snapshots
    of a hybrid are kept, at most as many as wanted.
    """
    options = target.options
    facts = head_facts(target.header)
    has_usable_head = facts is not None and not facts.why_not
    head_choices: list[bool | None] = [options.with_head]
    if options.with_head is None and has_usable_head:
        head_choices = [True, False]
    most = options.num_snapshots
    if most is None:
        most = DEFAULT_SNAPSHOTS
    fewer = [count for count in _FEWER_SNAPSHOTS if count < most]
    for with_head in head_choices:
        chosen = replace(options, with_head=with_head)
        if not ModelShape(target.header).has_snapshots:
            yield chosen
            continue
        for count in (most, *fewer):
            if count or not with_head:  # a head needs snapshots
                yield replace(chosen, num_snapshots=count)


def _plan_with_margin(
    wanted: tuple[Planned, ...],
    context_length: int,
    free: MemoryRoom,
) -> Plan:
    """The plan with the most layers on GPUs that leaves MARGIN_BYTES of each GPU free.

    If main memory cannot take the other layers, no margin is left.
    """
    for margin in (MARGIN_BYTES, 0):
        gpus = []
        for gpu in free.gpus:
            gpus.append(replace(gpu, free_bytes=max(0, gpu.free_bytes - margin)))
        limited = replace(free, gpus=tuple(gpus))
        models = _placed_on_gpus(wanted, context_length, limited)
        plan = Plan(wanted, models, context_length, free)
        if models == wanted or not free.shortages(plan.memory):
            break
    return plan


def _placed_on_gpus(
    wanted: tuple[Planned, ...],
    context_length: int,
    free: MemoryRoom,
) -> tuple[Planned, ...]:
    """The models with as many layers on GPUs as fit there. The draft comes first.

    Numbers of layers that the options set do not change.
    """
    if not free.gpus:
        return wanted
    # At first, models whose number of layers is open have none on GPUs.
    models = []
    for model in wanted:
        if model.options.num_gpu_layers is None:
            model = model.changed(num_gpu_layers=0)
        models.append(model)
    for index in reversed(range(len(wanted))):
        model = wanted[index]
        is_open = model.role != "mmproj" and model.options.num_gpu_layers is None
        if is_open and chosen_gpus(free.gpus, model.options):
            models[index] = model
            models[index] = _LayerSearch(models, index, context_length, free).best()
    return tuple(models)


class _LayerSearch:
    """Finds the most layers on GPUs of one model that fit together with the other models.

    Args:
        models: All models, the target first.
        index: The position of the model in `models`.
        context_length: Tokens.
        free: The free memory.
    """

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
        # Whether to choose the layers of each GPU. Otherwise libllama divides their total.
        self._chooses_split = len(self._gpus) > 1 and not any(model.options.tensor_split)

    def best(self) -> Planned:
        """The model with the most layers on GPUs.

        If not all fit, the experts of as few layers as possible stay in main memory.
        """
        set_by_user = self._model.options.num_cpu_moe_layers
        options = self._most_layers(set_by_user or 0)
        is_open = set_by_user is None and has_experts(self._model.header)
        if is_open and not self._is_whole(options):
            options = self._most_experts()
            if options.num_gpu_layers == 0:  # all layers are in main memory anyway
                options = replace(options, num_cpu_moe_layers=None)
        return self._model._replace(options=options)

    def _is_whole(self, options: LlamaOptions) -> bool:
        """Whether all layers are on GPUs."""
        return options.num_gpu_layers == self._num_layers

    def _most_experts(self) -> LlamaOptions:
        """The options with the most layers whose experts are on GPUs, too."""
        num_blocks = self._num_layers - 1

        def fits_with_experts(count: int) -> bool:
            return self._is_whole(self._most_layers(num_blocks - count))

        num_with_experts = largest_fitting(num_blocks - 1, fits_with_experts)
        return self._most_layers(num_blocks - num_with_experts)

    def _most_layers(self, num_cpu_moe_layers: int) -> LlamaOptions:
        """The options with the most layers on GPUs.

        Args:
            num_cpu_moe_layers: The number of layers whose experts are in main memory.
        """
        base = self._model.options
        if num_cpu_moe_layers:
            base = replace(base, num_cpu_moe_layers=num_cpu_moe_layers)
        if not self._chooses_split:
            count = largest_fitting(
                self._num_layers,
                lambda count: self._fits(replace(base, num_gpu_layers=count)),
            )
            return replace(base, num_gpu_layers=count)
        whole = _with_split(base, self._counts_by_free_memory(base))
        if self._fits(whole):
            return whole
        counts = [0] * len(self._gpus)
        for index in reversed(range(len(counts))):  # the last GPU has the last layers

            def fits(count: int, index: int = index) -> bool:
                tried = list(counts)
                tried[index] = count
                return self._fits(_with_split(base, tried))

            num_left = self._num_layers - sum(counts)
            counts[index] = largest_fitting(num_left, fits)
        return _with_split(base, counts)

    def _counts_by_free_memory(self, options: LlamaOptions) -> list[int]:
        """Layers of each chosen GPU if libllama divides all layers by free memory."""
        gpus = self._free.gpus
        free_bytes = [gpu.free_bytes for gpu in gpus]
        others = list(self._models)
        del others[self._index]
        if others:
            memory = pair_memory(others, self._context_length, self._free)
            for gpu, needed in enumerate(memory.gpu_bytes):
                free_bytes[gpu] = max(0, free_bytes[gpu] - needed)
        placement = place_layers(self._model.header, options, gpus, free_bytes)
        layers = placement.gpu_layers()
        return [layers[gpu] for gpu in self._gpus]

    def _fits(self, options: LlamaOptions) -> bool:
        """Whether the pair fits on each GPU with these options of the model."""
        self._models[self._index] = self._model._replace(options=options)
        memory = pair_memory(self._models, self._context_length, self._free)
        return not any(shortage.gpu for shortage in self._free.shortages(memory))


def _with_split(options: LlamaOptions, counts: Sequence[int]) -> LlamaOptions:
    """The options with a number of layers on each GPU."""
    shares: tuple[float, ...] = ()
    if any(counts):
        shares = tuple(map(float, counts))
    return replace(options, num_gpu_layers=sum(counts), tensor_split=shares)


def largest_fitting(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to the limit that fits, by bisection. 0 counts as fitting."""
    if fits(limit):
        return limit
    largest = 0
    too_large = limit
    while too_large - largest > 1:
        middle = (largest + too_large) // 2
        if fits(middle):
            largest = middle
        else:
            too_large = middle
    return largest


def check_parallel(parallel: object) -> None:
    """Raise OptionError for a number of answers at once outside its range."""
    if not is_whole(parallel, 1, MOST_PARALLEL):
        raise OptionError(f"parallel is {parallel!r}", f"Choose 1 to {MOST_PARALLEL}.")


def served_kept_bytes(total_bytes: int, num_models: int = 1) -> int:
    """The limit of the memory for waiting conversations' caches, for each model of a server.

    Args:
        total_bytes: The memory of the machine.
        num_models: The number of models that share it.
    """
    return total_bytes // (_KEPT_PART * num_models)


@dataclass(frozen=True, slots=True)
class AtOnce:
    """How many answers run at once."""

    num: int
    num_asked: int
    """The number that the user asked for."""

    num_bytes: int
    """The memory of all these answers but the first, together."""

    kept_bytes: int
    """The limit of the additional memory for the caches of waiting conversations."""


def plan_side_by_side(
    wanted: Sequence[Planned],
    context_length: int,
    free: MemoryRoom,
    parallel: int,
    kept_bytes: int,
) -> Plan:
    """The plan for as many texts side by side as fit, at most `parallel`.

    Together, all texts but the first take at most half of kept_bytes. All texts are equally
    large, so a copy of any of them fits into the other half. They cost no layer on a GPU and no
    snapshot. With RPC servers, the plan is for one text.

    Args:
        wanted: The models with the options that the user set, the target first.
        context_length: Tokens.
        free: The free memory.
        parallel: The most texts.
        kept_bytes: The memory for all texts but the first one: for those beside it in the
            contexts, and for copies of those that wait.
    """
    alone = plan_layers(wanted, context_length, free)
    if any(model.options.rpc for model in wanted):
        return alone
    for count in range(parallel, 1, -1):
        models = [model.changed(num_sequences=count) for model in wanted]
        plan = plan_layers(models, context_length, free)
        # Nothing but the sequences may differ from the plan for one text.
        of_one_text = [model.changed(num_sequences=1) for model in plan.models]
        is_otherwise_equal = of_one_text == list(alone.models)
        reserved = plan.memory.needed_bytes - alone.memory.needed_bytes
        is_small = reserved <= kept_bytes // 2
        if is_small and is_otherwise_equal and not free.shortages(plan.memory):
            return replace(plan, reserved_bytes=reserved)
    return alone


def target_context_length(header: Header, wanted: int | None) -> int:
    """The context length with which a target is opened. Raises as `context_to_open`."""
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
    addresses: dict[str, None] = {}  # a set that keeps the order
    for model in models:
        addresses |= dict.fromkeys(model.options.rpc)
    free = free_memory(tuple(addresses))
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
            _hint_of_what_fits(plan.wanted, plan.context_length, plan.free),
        )


def _hint_of_what_fits(models: Sequence[Planned], context_length: int, free: MemoryRoom) -> str:
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
    return largest_fitting(most, fits) * _CONTEXT_STEP


def most_gpu_layers(
    models: Sequence[Planned],
    context_length: int,
    free: MemoryRoom,
) -> int | None:
    """The most layers of the target on GPUs that fit, up to the number in its options.

    None if no number fits, or the options leave it open. A draft whose options have the same
    number gets the new number, too, as in `load`.
    """
    num_wanted = models[0].options.num_gpu_layers
    if num_wanted is None:
        return None
    num_layers = ModelShape(models[0].header).num_blocks + 1
    for count in range(min(num_wanted, num_layers), -1, -1):
        changed = []
        for model in models:
            if model.options.num_gpu_layers == num_wanted:
                model = model.changed(num_gpu_layers=count)
            changed.append(model)
        plan = plan_layers(changed, context_length, free)
        if not free.shortages(plan.memory):
            return count
    return None


def fitting_preset(free: MemoryRoom) -> Preset | None:
    """Of the presets that fit, by the sizes of their files, the largest of the newest year.

    None if no preset fits.
    """
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
    separate = [gpu for gpu in free.gpus if not is_in_main_memory(gpu)]
    gpu_bytes = sum(gpu.free_bytes for gpu in separate)
    return size_bytes * _OVER_FILES <= gpu_bytes
