"""The free memory of this machine, and the memory and settings of the models of a pair.

Attention on a CPU is fused, or done product by product. ggml's fused kernel ("flash attention")
takes the queries one at a time unless there are 64 or more of them, so the cost of decoding a
few tokens grows quickly with the text. After 3000 cached tokens, a 0.5B model takes 552 ms for
5 tokens with the fused kernel and 133 ms without; for one token it takes 162 and 86 ms. The
decodes of an answer have such sizes, with and without a draft. The fused kernel reads prompts
of whole batches faster, by up to a fifth (see `model_options.graph_batch_size`), and in less
memory.

A model's file is mapped into memory, or read. ggml's CPU backend repacks many types of weights
(see `repacked_types`). The weights of a mapped file are then in memory twice: as the file's
pages, which the system may drop where memory is short, and as the copy. A file that is read is
in memory once, but loads several times more slowly if it is large and the system has it cached
(a 7B: 15 s instead of 5). So small files are read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from localspec.gguf_file.header import Header
from localspec.gguf_file.shape import ModelShape
from localspec.gguf_file.tensor_types import repacked_types, type_name, unevenly_repacked
from localspec.llama.devices import Device
from localspec.llama.model_options import FlashAttention, LlamaOptions
from localspec.llama.placement import chosen_gpus, is_in_main_memory, place_layers, usable_gpus
from localspec.planning.memory import (
    SMALL_BYTES,
    MemoryEstimate,
    compute_bytes,
    estimate_memory,
    projector_memory,
    repacked_bytes,
)
from localspec.presets.presets import Role
from localspec.speculative.policy_api import MAX_DRAFT_TOKENS, REPLAY_TOKENS
from localspec.system.machine import memory_here

_PROCESS_BYTES = 14 << 20  # code that is paged in, modules that are imported: measured
# Limit of the extra memory for attention without the fused kernel: 32 heads stay below it in
# contexts of up to 32768 tokens.
_MOST_BYTES = 128 << 20
_PLAIN_TYPES = (None, "f32", "f16", "bf16")  # types of values that need no fused kernel
_MOST_READ_BYTES = 1 << 30  # size of a file that is read, not mapped


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRoom:
    """Free memory for models: main memory, and that of each device that libllama uses."""

    main_bytes: int
    gpus: tuple[Device, ...]
    """Devices of RPC servers first, then this machine's GPUs."""

    repacked: Mapping[str, float]
    """The tensor types that the processor repacks, with the factor by which each grows."""

    uneven: Collection[str] = ()
    """The repacked types whose kernels make rows differ, see `tensor_types`."""

    def shortages(self, memory: PairMemory) -> list[Shortage]:
        """The devices with less free memory than is needed there, main memory first.

        A GPU in main memory takes part of that. One whose memory is unknown is never short.
        """
        main_bytes = memory.main_bytes
        shortages = []
        for gpu, needed in zip(self.gpus, memory.gpu_bytes, strict=True):
            if is_in_main_memory(gpu):
                main_bytes += needed
            is_known = gpu.total_bytes > 0
            if is_known and needed > gpu.free_bytes:
                shortages.append(Shortage(gpu.name, needed, gpu.free_bytes))
        if main_bytes > self.main_bytes:
            shortages.insert(0, Shortage("", main_bytes, self.main_bytes))
        return shortages


def free_memory(rpc: Sequence[str] = ()) -> MemoryRoom:
    """The free memory of this machine now, and of RPC servers at these addresses.

    It also says how this processor repacks weights, which changes the memory that they take.

    Raises RpcError for a server that cannot be used.
    """
    from localspec.llama.library import devices, system_info  # loads libllama
    from localspec.llama.rpc_backend import usable_servers

    remote: list[Device] = []
    for server in usable_servers(rpc):
        remote += server.devices
    return MemoryRoom(
        main_bytes=memory_here().available_bytes,
        gpus=(*remote, *usable_gpus(devices())),
        repacked=repacked_types(system_info()),
        uneven=unevenly_repacked(system_info()),
    )


class Shortage(NamedTuple):
    """A device with too little free memory."""

    gpu: str
    """The device's name, or "" for main memory."""

    needed_bytes: int
    free_bytes: int


class Planned(NamedTuple):
    """A model to open, and its options. The plan chooses its context length."""

    header: Header
    options: LlamaOptions = LlamaOptions()
    role: Role = "target"

    adapters: tuple[Header, ...] = ()
    """The model's LoRA adapters."""

    def changed(self, **changes: Any) -> Planned:
        """The model with other values for some of its options."""
        return self._replace(options=replace(self.options, **changes))


@dataclass(frozen=True, slots=True)
class PairMemory:
    """The memory of a pair at a context, the target first."""

    context_length: int
    models: tuple[MemoryEstimate, ...]
    roles: tuple[Role, ...]
    """The roles of `models`."""

    @property
    def needed_bytes(self) -> int:
        """Memory that must be free, on all devices together."""
        models_bytes = sum(model.needed_bytes for model in self.models)
        return _PROCESS_BYTES + SMALL_BYTES * len(self.models) + models_bytes

    @property
    def gpu_bytes(self) -> tuple[int, ...]:
        """Memory that must be free on each GPU."""
        by_model = [model.gpu_bytes for model in self.models]
        by_gpu = zip(*by_model, strict=True)
        return tuple(map(sum, by_gpu))

    @property
    def main_bytes(self) -> int:
        """Main memory that must be free."""
        return self.needed_bytes - sum(self.gpu_bytes)

    @property
    def gpu_layers_in_words(self) -> str:
        """How many layers of each model are on GPUs."""
        phrases = []
        for role, model in zip(self.roles, self.models, strict=True):
            if role != "mmproj":  # a projector is on one device as a whole
                count = sum(model.gpu_layers)
                phrases.append(f"{count} of {model.num_layers} of the {role}")
        return ", ".join(phrases)

    @property
    def peak_bytes(self) -> int:
        """The largest size of the process in main memory, without Python itself."""
        models_bytes = sum(model.peak_bytes for model in self.models)
        return _PROCESS_BYTES + SMALL_BYTES * len(self.models) + models_bytes


def pair_memory(models: Sequence[Planned], context_length: int, free: MemoryRoom) -> PairMemory:
    """The memory that the models take if they are opened in this order.

    Args:
        models: The models, the target first.
        context_length: Tokens.
        free: The free memory, which decides where layers are placed.
    """
    estimates: list[MemoryEstimate] = []
    free_bytes = [gpu.free_bytes for gpu in free.gpus]
    for model in models:
        if model.role == "mmproj":
            target_options = models[0].options
            estimate = _projector_estimate(model.header, target_options, free, free_bytes)
            estimates.append(estimate)
            continue
        estimate = _model_estimate(model, context_length, free, free_bytes)
        estimates.append(estimate)
        for index, used_bytes in enumerate(estimate.gpu_bytes):
            free_bytes[index] = max(0, free_bytes[index] - used_bytes)
    return PairMemory(context_length, tuple(estimates), tuple(model.role for model in models))


def _model_estimate(
    model: Planned,
    context_length: int,
    free: MemoryRoom,
    free_bytes: Sequence[int],
) -> MemoryEstimate:
    """The memory of a target, a draft or a head.

    Args:
        model: The model.
        context_length: The target's, in tokens.
        free: The memory before any model is loaded.
        free_bytes: The free bytes of each GPU, once the models before this one are loaded.
    """
    header = model.header
    changes = {
        "context_length": context_length,
        "max_outputs": MAX_DRAFT_TOKENS + 1,
    }
    if model.role != "target":
        changes["max_outputs"] = REPLAY_TOKENS
        changes["num_snapshots"] = 0
    if model.role == "draft":
        changes["context_length"] = min(context_length, ModelShape(header).context_length)
    options = model.changed(**changes).options
    is_on_gpu = bool(chosen_gpus(free.gpus, options))
    options, repacked = suited_options(
        options,
        header,
        free,
        uses_gpu=is_on_gpu,
    )
    placement = place_layers(header, options, free.gpus, free_bytes)
    return estimate_memory(header, options, repacked, placement, model.adapters)


def _projector_estimate(
    header: Header,
    target_options: LlamaOptions,
    free: MemoryRoom,
    free_bytes: Sequence[int],
) -> MemoryEstimate:
    """The memory of a projector.

    libmtmd takes the first GPU of this machine, if the target may use GPUs and the projector
    fits there.

    Args:
        header: The projector's header.
        target_options: The options of its target.
        free: The memory before any model is loaded.
        free_bytes: The free bytes of each GPU, once the models are loaded.
    """
    num_gpus = len(free.gpus)
    local_gpus = [index for index, gpu in enumerate(free.gpus) if not gpu.server]
    if target_options.num_gpu_layers != 0 and local_gpus:
        first = local_gpus[0]
        on_gpu = projector_memory(header, num_gpus, first)
        is_known = free.gpus[first].total_bytes > 0
        if not is_known or free_bytes[first] > sum(on_gpu.gpu_bytes):
            return on_gpu
    return projector_memory(header, num_gpus)


def suited_options(
    options: LlamaOptions,
    header: Header,
    free: MemoryRoom,
    *,
    uses_gpu: bool,
) -> tuple[LlamaOptions, Mapping[str, float]]:
    """The options, with settings that suit the file in place of those that are left open.

    Args:
        options: The options, with a context length.
        header: The header of the model's file.
        free: This machine's memory, and the types that its processor repacks.
        uses_gpu: Whether a GPU computes.

    Returns:
        The options, and the types of weights that are repacked: none where a GPU computes.
    """
    length = options.context_length or 0
    options = with_exact_settings(
        options,
        header,
        free.uneven,
        uses_gpu=uses_gpu,
    )
    repacked = free.repacked
    if uses_gpu or options.repack is False:
        repacked = {}
    options = with_suited_attention(
        options,
        header,
        length,
        uses_gpu=uses_gpu,
    )
    return with_suited_mapping(options, header, repacked), repacked


def with_suited_attention(
    options: LlamaOptions,
    header: Header,
    context_length: int,
    *,
    uses_gpu: bool,
) -> LlamaOptions:
    """The options, with flash attention off if they leave it open and it is slower.

    It stays "auto", libllama's choice, if a GPU computes, if values are quantised, for models
    with recurrent states or latent attention, and if it saves more than _MOST_BYTES.
    """
    shape = ModelShape(header)
    is_open = options.flash_attention == "auto" and options.cache_type_v in _PLAIN_TYPES
    if not is_open or uses_gpu or shape.architecture.has_state or shape.is_latent:
        return options
    flash_bytes = compute_bytes(header, context_length, options.max_outputs, "auto")
    plain_bytes = compute_bytes(header, context_length, options.max_outputs, "off")
    if plain_bytes - flash_bytes <= _MOST_BYTES:
        return replace(options, flash_attention="off")
    return options


def with_exact_settings(
    options: LlamaOptions,
    header: Header,
    uneven: Collection[str],
    *,
    uses_gpu: bool,
) -> LlamaOptions:
    """The options, with the settings that exact decodes need, if they ask for exactness.

    On a processor, flash attention has one kernel for decodes of any size if keys and values
    have different types. With the same type, ggml-cpu splits the row of one token among
    threads, and the rows of many tokens into tiles. Keys in bf16 cost less time than values in
    bf16, and both lose little precision. On a GPU, the kernels of flash attention change with
    every size, and those without it stay the same for a few tokens. Weights are not repacked if
    some are of an uneven type.

    Args:
        uneven: Types whose repacked kernels make rows differ, see `tensor_types`.
    """
    if not options.exact:
        return options
    if options.flash_attention == "auto":
        attention: FlashAttention = "on"
        if uses_gpu and options.cache_type_v in _PLAIN_TYPES:
            attention = "off"
        options = replace(options, flash_attention=attention)
    if uses_gpu:
        return options
    key = options.cache_type_k
    value = options.cache_type_v
    if key is None and value in (None, "f16"):
        options = replace(options, cache_type_k="bf16", cache_type_v="f16")
    elif value is None and key == "f16":
        options = replace(options, cache_type_v="bf16")
    elif value is None:
        options = replace(options, cache_type_v="f16")
    if any(type_name(tensor.kind) in uneven for tensor in header.tensors):
        options = replace(options, repack=False)
    return options


def with_suited_mapping(
    options: LlamaOptions,
    header: Header,
    repacked: Mapping[str, float],
) -> LlamaOptions:
    """The options, with mapping off for a small file of which more than a quarter is repacked.

    Args:
        repacked: The types that are repacked, see `tensor_types`.
    """
    if options.use_mmap is not None:
        return options
    is_small = header.weights_bytes <= _MOST_READ_BYTES
    least_bytes = header.weights_bytes / 4
    if is_small and repacked_bytes(header, repacked) > least_bytes:
        return replace(options, use_mmap=False)
    return options


def uses_gpu(options: LlamaOptions) -> bool:
    """Whether libllama will compute on a GPU or an RPC server with these options."""
    from localspec.llama.library import devices  # loads libllama

    return options.num_gpu_layers != 0 and bool(options.rpc or usable_gpus(devices()))


def suited_options_here(
    options: LlamaOptions, header: Header, context_length: int
) -> LlamaOptions:
    """As `suited_options`, for this machine now and a context of `context_length` tokens.

    The context in the options stays as it is.
    """
    with_context = replace(options, context_length=context_length)
    suited, _ = suited_options(
        with_context,
        header,
        free_memory(),
        uses_gpu=uses_gpu(options),
    )
    return replace(suited, context_length=options.context_length)
