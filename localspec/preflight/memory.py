"""How much memory a model takes at a context, computed from its header.

What libllama allocates is followed: the weights, the caches, and the buffer of the largest
moment of its graph: a feed-forward layer of a whole batch, or without flash attention the
scores of all heads. `measure_memory`
in scripts/ compares the sums with what a process really takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from localspec.gguf_file.architectures import HeadGraph
from localspec.gguf_file.head import HeadFacts, head_facts
from localspec.gguf_file.header import Header, Tensor
from localspec.gguf_file.shape import ModelShape
from localspec.gguf_file.tensor_types import bytes_per_value, type_name
from localspec.llama.options import (
    BATCH_SIZE,
    EAGLE_BATCH_SIZE,
    NUM_KEPT_ROWS,
    FlashAttention,
    LlamaOptions,
    graph_batch_size,
)
from localspec.llama.placement import MAIN_MEMORY, Placement
from localspec.speculative.policy_api import REPLAY_TOKENS

DEFAULT_KEPT_BYTES = 2**30  # for the caches of conversations that wait, at most

_CONTEXT_STEP = 256  # tokens; libllama rounds a context up
_FLOAT, _HALF = 4, 2  # bytes
_ACTIVATION = "q8_0"  # as what ggml copies one for a product
_BYTES_PER_TOKEN = 310  # of libllama's vocabulary, its merges and texts: measured
_PROCESS_BYTES = 8 << 20  # code that is paged in: measured
_SMALL_BYTES = 2 << 20  # a model's buffers that are too small to be listed: measured


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """What one model takes, in bytes.

    weights_bytes: all weights, in the order the processor likes. repacked_bytes: those that
    are there a second time, as pages of the file that were repacked; none of a file that is
    read and not mapped.
    cache_bytes: keys and values, and recurrent states; snapshot_bytes: those of num_snapshots
    tokens of the last decode. compute_bytes: intermediate results and logits. gpu_bytes: how
    much of all that is on each GPU. with_head: whether that of a head is in it.
    num_layers, gpu_layers: of the model, and on each GPU; the output counts as one.
    num_cpu_moe_layers: first layers whose experts are in the main memory.
    """

    with_head: bool
    weights_bytes: int
    repacked_bytes: int
    cache_bytes: int
    num_snapshots: int
    snapshot_bytes: int
    compute_bytes: int
    vocabulary_bytes: int
    gpu_bytes: tuple[int, ...]
    num_layers: int
    gpu_layers: tuple[int, ...]
    num_cpu_moe_layers: int

    @property
    def needed_bytes(self) -> int:
        """Memory that must be there, anywhere: the file's copy of repacked weights may go."""
        return (
            self.weights_bytes + self.cache_bytes + self.compute_bytes + self.vocabulary_bytes
        )

    @property
    def main_bytes(self) -> int:
        """The part of that which must be in main memory."""
        return self.needed_bytes - sum(self.gpu_bytes)

    @property
    def peak_bytes(self) -> int:
        """What the process shows at most, the mapped file included."""
        return self.main_bytes + self.repacked_bytes


def estimate_memory(
    header: Header, options: LlamaOptions, repacked: Mapping[str, float], placement: Placement
) -> MemoryEstimate:
    """What the model takes when it is opened so, at the context length that `options` have.

    repacked: the types that are repacked and what becomes of a byte, see `tensor_types`;
    none where a GPU computes. What a GPU's library takes for itself is not known here.
    """
    facts = head_facts(header)
    if facts is not None and facts.graph is HeadGraph.OUTPUT:
        return _medusa_memory(header, facts, placement)
    contexts = _contexts(header, options)
    with_head = contexts.head is not None
    weights = placement.weights_bytes(header, with_head=with_head)
    weights[MAIN_MEMORY] += growth_bytes(header, repacked)
    caches = placement.nowhere()
    for layer, size in enumerate(_layer_cache_bytes(header, options)):
        caches[placement.layers[layer]] += size
    compute = placement.nowhere()
    for context in contexts:
        if context is not None:
            compute = _sums(compute, _compute_by_place(header, context, placement))
    if facts is not None and with_head:
        compute[MAIN_MEMORY] += _rows_bytes(header, facts)
    num_snapshots = (options.num_snapshots or 0) * ModelShape(header).has_snapshots
    one_state = cache_bytes(header, replace(options, num_snapshots=0))
    places = _sums(weights, caches, compute)
    return MemoryEstimate(
        with_head=with_head,
        weights_bytes=sum(weights),
        repacked_bytes=0 if options.use_mmap is False else repacked_bytes(header, repacked),
        cache_bytes=sum(caches),
        num_snapshots=num_snapshots,
        snapshot_bytes=sum(caches) - one_state,
        compute_bytes=sum(compute),
        vocabulary_bytes=len(header.tokens) * _BYTES_PER_TOKEN,
        gpu_bytes=tuple(places[:MAIN_MEMORY]),
        num_layers=len(placement.layers),
        gpu_layers=placement.gpu_layers(),
        num_cpu_moe_layers=placement.num_cpu_moe_layers,
    )


def _medusa_memory(header: Header, facts: HeadFacts, placement: Placement) -> MemoryEstimate:
    """Main memory of heads that libllama does not know: weights and a row of logits."""
    return MemoryEstimate(
        with_head=True,
        weights_bytes=facts.num_bytes,
        repacked_bytes=0,
        cache_bytes=0,
        num_snapshots=0,
        snapshot_bytes=0,
        compute_bytes=_rows_bytes(header, facts) + len(header.tokens) * _FLOAT,
        vocabulary_bytes=0,
        gpu_bytes=tuple(0 for _ in range(placement.num_gpus)),
        num_layers=len(placement.layers),
        gpu_layers=tuple(0 for _ in range(placement.num_gpus)),
        num_cpu_moe_layers=0,
    )


def _rows_bytes(header: Header, facts: HeadFacts) -> int:
    """What a head reads of its target: rows of a decode, and those of the latest tokens."""
    shape = ModelShape(header)
    width = shape.row_width
    if facts.graph is HeadGraph.LAYERS:
        width = len(facts.layers_read) * header.number("eagle3.target_hidden_size")
    return (BATCH_SIZE + NUM_KEPT_ROWS) * width * _FLOAT


class _Contexts(NamedTuple):
    """How the contexts of a file are opened, None without that one."""

    model: LlamaOptions | None
    head: LlamaOptions | None


def _contexts(header: Header, options: LlamaOptions) -> _Contexts:
    """The contexts of a model and of its head, if that is used, or those of a head alone."""
    facts = head_facts(header)
    if facts is not None and facts.layers_read:
        return _Contexts(None, replace(options, max_outputs=EAGLE_BATCH_SIZE))
    if facts is not None and facts.is_apart:
        return _Contexts(None, options)
    if facts is None or not options.with_head:
        return _Contexts(options, None)
    return _Contexts(options, replace(options, max_outputs=REPLAY_TOKENS))


def _sums(*places: list[int]) -> list[int]:
    """Place by place."""
    return [sum(sizes) for sizes in zip(*places, strict=True)]


def _compute_by_place(header: Header, options: LlamaOptions, placement: Placement) -> list[int]:
    """Intermediate results in each place."""
    context_length, max_outputs = options.context_length or 0, options.max_outputs
    attention = options.flash_attention
    graph = graph_bytes(header, context_length, max_outputs, attention)
    inputs = _input_bytes(ModelShape(header), context_length, attention)
    logits = max_outputs * len(header.tokens) * _FLOAT
    sizes = placement.nowhere()
    sizes[placement.layers[-1]] = logits
    for gpu in range(placement.num_gpus):
        if placement.computes_on(gpu):
            sizes[gpu] = graph + (placement.num_input_copies - 1) * inputs
    sizes[MAIN_MEMORY] = placement.num_input_copies * inputs
    if placement.computes_on(MAIN_MEMORY):
        sizes[MAIN_MEMORY] = compute_bytes(header, context_length, max_outputs, attention)
    sizes[MAIN_MEMORY] += logits  # which are copied out of the graph
    return sizes


def repacked_bytes(header: Header, repacked: Mapping[str, float]) -> int:
    """What the file has of weights that ggml's CPU backend stores in an order of its own."""
    return sum(
        tensor.size_bytes for tensor in _products(header) if type_name(tensor.kind) in repacked
    )


def growth_bytes(header: Header, repacked: Mapping[str, float]) -> int:
    """How much larger those weights become."""
    return sum(
        int(tensor.size_bytes * (repacked.get(type_name(tensor.kind), 1.0) - 1))
        for tensor in _products(header)
    )


def total_needed_bytes(estimates: Sequence[MemoryEstimate]) -> int:
    """What a process with these models has to have."""
    return _PROCESS_BYTES + sum(_SMALL_BYTES + estimate.needed_bytes for estimate in estimates)


def total_peak_bytes(estimates: Sequence[MemoryEstimate]) -> int:
    """What a process with these models shows at most, above the interpreter's own."""
    return _PROCESS_BYTES + sum(_SMALL_BYTES + estimate.peak_bytes for estimate in estimates)


def cache_bytes(header: Header, options: LlamaOptions) -> int:
    """Keys and values of the whole context in their types, and recurrent states.

    A sliding window saves nothing: libllama keeps everything by default, and localspec
    needs it so to take tokens back.
    """
    return sum(_layer_cache_bytes(header, options))


def _layer_cache_bytes(header: Header, options: LlamaOptions) -> list[int]:
    """The part of `cache_bytes` of each layer, those of a head in use last."""
    shape = ModelShape(header)
    width = shape.key_width * bytes_per_value(options.cache_type_k or "f16")
    if not shape.is_latent:
        width += shape.value_width * bytes_per_value(options.cache_type_v or "f16")
    cells = num_cells(options.context_length or 0)
    num_states = 1 + (options.num_snapshots or 0) * shape.has_snapshots
    state = shape.state_width() * _FLOAT * num_states
    contexts = _contexts(header, options)
    heads = shape.kv_heads()
    heads += [0] * (shape.num_layers - len(heads))  # those that share the caches of others
    sizes = [int(each * width * cells) if each > 0 else state for each in heads]
    if contexts.model is None:
        sizes = [0] * len(sizes)
    facts = head_facts(header)
    if contexts.head is not None and facts is not None and not facts.shares_cache:
        sizes += [int(each * width * cells) for each in shape.head_kv_heads()]
    return sizes


def num_cells(context_length: int) -> int:
    """Tokens that the caches of a context of that length have room for."""
    return -(-context_length // _CONTEXT_STEP) * _CONTEXT_STEP


def compute_bytes(
    header: Header, context_length: int, max_outputs: int, flash_attention: FlashAttention
) -> int:
    """Intermediate results: the graph's, and the copies that ggml's products make beside it."""
    shape = ModelShape(header)
    batch = graph_batch_size(flash_attention, context_length)
    copied = batch * shape.widest * bytes_per_value(_ACTIVATION)
    if flash_attention == "off":
        # The scores again, in half precision, to be multiplied with the values.
        copied = max(copied, batch * shape.num_heads * num_cells(context_length) * _HALF)
    return graph_bytes(header, context_length, max_outputs, flash_attention) + int(copied)


def graph_bytes(
    header: Header, context_length: int, max_outputs: int, flash_attention: FlashAttention
) -> int:
    """The buffer of libllama's graph for as many tokens as it computes at once.

    Exact for the layers of Llama and Qwen 2, within 5 % for those of Qwen 3, its experts, and
    Gemma 3; of others it is a small part of the whole. Without flash attention gaps come
    to a few MB if the context is short.
    """
    shape = ModelShape(header)
    batch, cells = graph_batch_size(flash_attention, context_length), num_cells(context_length)
    # At once: gate, up and their product; the layer's input, norm, residual and result,
    # which in a model of fewer layers are fewer: its last one has max_outputs rows only.
    streams = min(4, shape.num_layers) * shape.width
    feed_forward = 3 * shape.hidden + shape.num_experts_used * shape.width + streams
    queries = shape.num_heads * shape.key_width
    attention = 2 * queries + streams
    if flash_attention == "off":
        keys = max(shape.kv_heads(), default=0) * shape.key_width
        scores = shape.num_heads * cells
        attention = scores + 2 * (queries + keys) + 3 * shape.width
    logits = max_outputs * len(header.tokens)
    return max(max(feed_forward, attention) * batch, logits) * _FLOAT + _mask_bytes(
        shape, context_length, flash_attention
    )


def _input_bytes(shape: ModelShape, context_length: int, attention: FlashAttention) -> int:
    """What goes into a graph: rows of the table of the tokens, and what attention may see."""
    rows = graph_batch_size(attention, context_length) * shape.width * _FLOAT
    return rows + _mask_bytes(shape, context_length, attention)


def _mask_bytes(shape: ModelShape, context_length: int, attention: FlashAttention) -> int:
    batch, cells = graph_batch_size(attention, context_length), num_cells(context_length)
    masks = 0 if shape.is_recurrent else 1 + (shape.sliding_window > 0)
    return masks * batch * cells * (_FLOAT if attention == "off" else _HALF)


def _products(header: Header) -> list[Tensor]:
    """The weights that ggml may repack: matrices, but for the table of the tokens.

    If that is the output layer as well, libllama makes a second tensor of it.
    """
    names = {tensor.name for tensor in header.tensors}
    shared_head = "output.weight" not in names
    return [
        tensor
        for tensor in header.tensors
        if tensor.name.endswith(".weight")
        and len(tensor.shape) > 1
        and tensor.shape[1] % 8 == 0
        and (shared_head or tensor.name != "token_embd.weight")
    ]
