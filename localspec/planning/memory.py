"""How much memory a model takes at a context, computed from its header.

The sums follow libllama's allocations: the weights, the caches, and the largest buffer of its
graph, which is for a feed-forward layer of a whole batch, or without flash attention for the
scores of all heads. tests/planning/test_memory.py compares the sums with a process's size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from localspec.gguf_file.architectures import HeadGraph
from localspec.gguf_file.head_facts import HeadFacts, head_facts
from localspec.gguf_file.header import Header, Tensor
from localspec.gguf_file.shape import ModelShape
from localspec.gguf_file.tensor_types import bytes_per_value, type_name
from localspec.llama.model_options import (
    BATCH_SIZE,
    NUM_KEPT_ROWS,
    ROWS_BATCH_SIZE,
    FlashAttention,
    LlamaOptions,
    embedding_batch_size,
    graph_batch_size,
    num_cells,
)
from localspec.llama.placement import MAIN_MEMORY, Placement
from localspec.pictures.picture import KEPT_PICTURE_BYTES, KEPT_ROW_BYTES
from localspec.speculative.policy_api import REPLAY_TOKENS

DEFAULT_KEPT_BYTES = 2**30  # limit for the caches of waiting conversations

_FLOAT = 4  # bytes
_HALF = 2  # bytes
SMALL_BYTES = 2 << 20  # a model's buffers that are too small to be listed: measured
_ACTIVATION = "q8_0"  # the type of ggml's copies of activations for products
# Of a projector that encodes a picture:
_STREAMS = 8  # buffers of a layer's width
_MOST_SCORES = 4096  # columns of scores at once
_REPACKED_ROWS = 8  # ggml repacks matrices whose number of rows is a multiple of it
_BYTES_PER_TOKEN = 310  # of libllama's vocabulary, its merges and texts: measured


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """The memory of one model."""

    with_head: bool = False
    """Whether a head is included."""

    weights_bytes: int
    """All weights, repacked for the processor."""

    adapter_bytes: int = 0
    """The part of weights_bytes that LoRA adapters take."""

    repacked_bytes: int = 0
    """Weights that are in memory a second time: the pages of a mapped file that hold weights
    which were repacked."""

    cache_bytes: int = 0
    """Keys, values and recurrent states."""

    num_snapshots: int = 0
    """The number of tokens whose recurrent states are kept."""

    snapshot_bytes: int = 0
    """The part of cache_bytes for these states."""

    compute_bytes: int
    """Intermediate results and logits."""

    vocabulary_bytes: int = 0
    gpu_bytes: tuple[int, ...]
    """The part of needed_bytes on each GPU."""

    num_layers: int = 0
    """The model's layers; the output counts as one."""

    gpu_layers: tuple[int, ...]
    """The model's layers on each GPU; the output counts as one."""

    num_cpu_moe_layers: int = 0
    """The number of first layers whose experts are in main memory."""

    picture_bytes: int = 0
    """The limit for pictures that are kept."""

    @property
    def needed_bytes(self) -> int:
        """Memory that must be free, on all devices together."""
        return (
            self.weights_bytes
            + self.cache_bytes
            + self.compute_bytes
            + self.vocabulary_bytes
            + self.picture_bytes
        )

    @property
    def main_bytes(self) -> int:
        """Main memory that must be free."""
        return self.needed_bytes - sum(self.gpu_bytes)

    @property
    def peak_bytes(self) -> int:
        """The largest size of the process in main memory, with the mapped file."""
        return self.main_bytes + self.repacked_bytes


def estimate_memory(
    header: Header,
    options: LlamaOptions,
    repacked: Mapping[str, float],
    placement: Placement,
    adapters: Sequence[Header] = (),
) -> MemoryEstimate:
    """The memory of a model with these options, at their context length.

    A GPU's library takes more memory, which is not included.

    Args:
        header: The header of the model's file.
        options: The options, with a context length.
        repacked: The types that are repacked, and how much they grow, see `tensor_types`; none
            where a GPU computes.
        placement: Where each layer is.
        adapters: The model's LoRA adapters. Each of their matrices is in the same memory as the
            weight that it changes.
    """
    facts = head_facts(header)
    if facts is not None and facts.graph is HeadGraph.MEDUSA:
        # Medusa heads, which libllama does not know, are in main memory.
        rows_bytes = _rows_bytes(header, facts, options.num_sequences)
        return MemoryEstimate(
            with_head=True,
            weights_bytes=facts.num_bytes,
            compute_bytes=rows_bytes + len(header.tokens) * _FLOAT,
            gpu_bytes=(0,) * placement.num_gpus,
            num_layers=len(placement.layers),
            gpu_layers=(0,) * placement.num_gpus,
        )
    model_context, head_context = _context_options(header, options)
    with_head = head_context is not None
    # All lists from here on have the bytes on each GPU and, last, in main memory.
    weights = placement.weights_bytes(header, with_head=with_head)
    for tensor in _repackable_weights(header):  # repacked weights may be larger
        growth = repacked.get(type_name(tensor.kind), 1.0) - 1
        weights[MAIN_MEMORY] += int(tensor.size_bytes * growth)
    adapter_weights = placement.zeros()
    for adapter in adapters:
        sizes = placement.weights_bytes(adapter, with_head=True)
        adapter_weights = _element_sums(adapter_weights, sizes)
    weights = _element_sums(weights, adapter_weights)
    caches = placement.zeros()
    for layer, size in enumerate(_layer_cache_bytes(header, options)):
        caches[placement.layers[layer]] += size
    compute = placement.zeros()
    for context in (model_context, head_context):
        if context is not None:
            compute = _element_sums(compute, _compute_by_place(header, context, placement))
    if facts is not None and with_head:
        compute[MAIN_MEMORY] += _rows_bytes(header, facts, options.num_sequences)
    num_snapshots = 0
    if ModelShape(header).has_snapshots:
        num_snapshots = options.num_snapshots or 0
    without_snapshots = cache_bytes(header, replace(options, num_snapshots=0))
    totals = _element_sums(weights, caches, compute)
    twice_bytes = 0
    if options.use_mmap is not False:
        twice_bytes = repacked_bytes(header, repacked)
    return MemoryEstimate(
        with_head=with_head,
        weights_bytes=sum(weights),
        adapter_bytes=sum(adapter_weights),
        repacked_bytes=twice_bytes,
        cache_bytes=sum(caches),
        num_snapshots=num_snapshots,
        snapshot_bytes=sum(caches) - without_snapshots,
        compute_bytes=sum(compute),
        vocabulary_bytes=len(header.tokens) * _BYTES_PER_TOKEN,
        gpu_bytes=tuple(totals[:MAIN_MEMORY]),
        num_layers=len(placement.layers),
        gpu_layers=placement.gpu_layers(),
        num_cpu_moe_layers=placement.num_cpu_moe_layers,
    )


def projector_memory(header: Header, num_gpus: int, place: int = MAIN_MEMORY) -> MemoryEstimate:
    """The memory of a projector: weights, encoding of a picture, and kept pictures.

    Encoding takes the most for a picture of the projector's own size, without tiles: the scores
    of attention of one layer, and its buffers.

    Args:
        header: The projector's header.
        num_gpus: The number of GPUs.
        place: The number of the projector's GPU, or main memory.
    """
    size = header.number("clip.vision.image_size")
    patch = header.number("clip.vision.patch_size")
    width = header.number("clip.vision.embedding_length")
    hidden = header.number("clip.vision.feed_forward_length")
    heads = header.number("clip.vision.attention.head_count")
    num_patches = (size // max(patch, 1)) ** 2
    num_scores = min(num_patches, _MOST_SCORES) * heads
    values_per_patch = _STREAMS * width + 2 * hidden + num_scores
    encoding_bytes = num_patches * values_per_patch * _FLOAT
    sizes = [0] * (num_gpus + 1)  # on each GPU, and in main memory
    sizes[place] = header.weights_bytes + encoding_bytes
    return MemoryEstimate(
        weights_bytes=header.weights_bytes,
        compute_bytes=encoding_bytes,
        gpu_bytes=tuple(sizes[:MAIN_MEMORY]),
        gpu_layers=(0,) * num_gpus,
        picture_bytes=KEPT_PICTURE_BYTES + KEPT_ROW_BYTES,
    )


def _rows_bytes(header: Header, facts: HeadFacts, num_sequences: int) -> int:
    """Bytes of the rows that a head reads: of a decode, and of the last tokens of each text."""
    shape = ModelShape(header)
    width = shape.row_width
    if facts.layers_read:
        width = header.number("eagle3.target_hidden_size") or shape.width  # of the target
        width *= len(facts.layers_read)
    num_rows = BATCH_SIZE + NUM_KEPT_ROWS * num_sequences
    return num_rows * width * _FLOAT


def _context_options(
    header: Header,
    options: LlamaOptions,
) -> tuple[LlamaOptions | None, LlamaOptions | None]:
    """The options of two contexts: that of a file's model, and that of its head.

    None for a context that is not made: the file has no model, or no head that is used. A head
    decodes one text at a time.
    """
    facts = head_facts(header)
    if facts is None:
        return options, None
    is_head_alone = bool(facts.layers_read) or facts.is_apart  # the file has no model
    if not (is_head_alone or options.with_head):
        return options, None
    max_outputs = REPLAY_TOKENS
    if facts.layers_read:
        max_outputs = ROWS_BATCH_SIZE
    elif facts.is_apart:
        max_outputs = options.max_outputs
    head_options = replace(options, max_outputs=max_outputs, num_sequences=1)
    if is_head_alone:
        return None, head_options
    return options, head_options


def _element_sums(*lists: list[int]) -> list[int]:
    """The sums of several lists of the same length, element by element."""
    return [sum(elements) for elements in zip(*lists, strict=True)]


def _compute_by_place(header: Header, options: LlamaOptions, placement: Placement) -> list[int]:
    """The bytes of intermediate results on each GPU and, last, in main memory."""
    context_length = options.context_length or 0
    max_outputs = options.most_outputs
    attention = options.flash_attention
    graph = graph_bytes(header, context_length, max_outputs, attention)
    shape = ModelShape(header)
    # The inputs of the graph: embeddings of the tokens, and attention masks.
    inputs = graph_batch_size(attention, context_length) * shape.width * _FLOAT
    inputs += _mask_bytes(shape, context_length, attention)
    logits = max_outputs * len(header.tokens) * _FLOAT
    sizes = placement.zeros()
    sizes[placement.layers[-1]] = logits  # more below if it has other layers, too
    for gpu in range(placement.num_gpus):
        if placement.computes_on(gpu):
            sizes[gpu] = graph + (placement.num_input_copies - 1) * inputs
    sizes[MAIN_MEMORY] = placement.num_input_copies * inputs
    if placement.computes_on(MAIN_MEMORY):
        sizes[MAIN_MEMORY] = compute_bytes(header, context_length, max_outputs, attention)
    sizes[MAIN_MEMORY] += logits  # they are copied out of the graph
    return sizes


def repacked_bytes(header: Header, repacked: Mapping[str, float]) -> int:
    """The size in the file of the weights that ggml's CPU backend repacks."""
    size_bytes = 0
    for tensor in _repackable_weights(header):
        if type_name(tensor.kind) in repacked:
            size_bytes += tensor.size_bytes
    return size_bytes


def cache_bytes(header: Header, options: LlamaOptions) -> int:
    """Keys and values of the whole context in their types, and recurrent states.

    A sliding window saves nothing: libllama keeps everything by default, and localspec needs
    all of it to take tokens back.
    """
    return sum(_layer_cache_bytes(header, options))


def _layer_cache_bytes(header: Header, options: LlamaOptions) -> list[int]:
    """`cache_bytes` of each layer. If the head is used, its layers come last."""
    shape = ModelShape(header)
    width = shape.key_width * bytes_per_value(options.cache_type_k or "f16")
    if not shape.is_latent:
        width += shape.value_width * bytes_per_value(options.cache_type_v or "f16")
    cells = num_cells(options.context_length or 0) * options.num_sequences
    states_per_text = 1
    if shape.has_snapshots:
        states_per_text += options.num_snapshots or 0
    num_states = states_per_text * options.num_sequences
    state_bytes = shape.state_width() * _FLOAT * num_states
    model_context, head_context = _context_options(header, options)
    kv_heads = shape.kv_heads()
    num_sharing = shape.num_layers - len(kv_heads)  # layers that use another's cache
    kv_heads += [0] * num_sharing
    sizes = []
    for num_heads in kv_heads:
        if model_context is None:
            sizes.append(0)
        elif num_heads > 0:
            sizes.append(int(num_heads * width * cells))
        else:
            sizes.append(state_bytes)  # 0 in a model without recurrent states
    facts = head_facts(header)
    has_cache = facts is not None and facts.graph is not HeadGraph.ASSISTANT
    if head_context is not None and has_cache:
        for num_heads in shape.head_kv_heads():
            sizes.append(int(num_heads * width * cells))
    return sizes


def compute_bytes(
    header: Header,
    context_length: int,
    max_outputs: int,
    flash_attention: FlashAttention,
) -> int:
    """Memory of intermediate results: the graph's buffer, and ggml's buffer for copies.

    Before a product of matrices, ggml copies one of them in the type that it multiplies. All
    products use one buffer for that, which has the size of the largest copy.
    """
    shape = ModelShape(header)
    batch = graph_batch_size(flash_attention, context_length)
    # Activations, to be multiplied with weights.
    copy_bytes = batch * shape.widest * bytes_per_value(_ACTIVATION)
    if flash_attention == "off":
        # Scores of attention, in half precision, to be multiplied with the cached values.
        num_scores = batch * shape.num_heads * num_cells(context_length)
        copy_bytes = max(copy_bytes, num_scores * _HALF)
    graph = graph_bytes(header, context_length, max_outputs, flash_attention)
    return graph + int(copy_bytes)


def graph_bytes(
    header: Header,
    context_length: int,
    max_outputs: int,
    flash_attention: FlashAttention,
) -> int:
    """The buffer of libllama's graph for one batch.

    Exact for the layers of Llama and Qwen 2, within 5 % for those of Qwen 3, its experts, and
    Gemma 3; for others it is a small part of the whole. Without flash attention, gaps between
    buffers take a few MB more if the context is short.
    """
    shape = ModelShape(header)
    batch = graph_batch_size(flash_attention, context_length)
    cells = num_cells(context_length)
    # In memory at once: gate, up and their product; the tokens' embeddings, which llama.cpp
    # keeps since October 2026; the layer's input, norm, residual and result. A model of one or
    # two layers has fewer of them, since its last layer has max_outputs rows only.
    streams = min(5, 2 * shape.num_layers - 1) * shape.width
    expert_results = shape.num_experts_used * shape.width
    feed_forward = 3 * shape.hidden + expert_results + streams
    queries = shape.num_heads * shape.key_width
    attention = 2 * queries + streams
    if flash_attention == "off":
        keys = max(shape.kv_heads(), default=0) * shape.key_width
        scores = shape.num_heads * cells
        attention = scores + 2 * (queries + keys) + 4 * shape.width
    logits = max_outputs * len(header.tokens)
    num_values = max(feed_forward * batch, attention * batch, logits)
    return num_values * _FLOAT + _mask_bytes(shape, context_length, flash_attention)


def _mask_bytes(shape: ModelShape, context_length: int, attention: FlashAttention) -> int:
    """Bytes of the masks of attention: one, and another one for a sliding window."""
    if shape.architecture.is_recurrent:
        return 0
    num_masks = 1
    if shape.sliding_window > 0:
        num_masks = 2
    value_bytes = _HALF
    if attention == "off":
        value_bytes = _FLOAT
    batch = graph_batch_size(attention, context_length)
    cells = num_cells(context_length)
    return num_masks * batch * cells * value_bytes


def _repackable_weights(header: Header) -> list[Tensor]:
    """The weights that ggml may repack: matrices whose number of rows suits it.

    The token embeddings are among them only if they are the output layer, too: then libllama
    makes a second tensor of them.
    """
    has_output = any(tensor.name == "output.weight" for tensor in header.tensors)
    weights = []
    for tensor in header.tensors:
        if has_output and tensor.name == "token_embd.weight":
            continue
        is_weight = tensor.name.endswith(".weight")
        is_matrix = len(tensor.shape) > 1
        if is_weight and is_matrix and tensor.shape[1] % _REPACKED_ROWS == 0:
            weights.append(tensor)
    return weights


def embedder_bytes(header: Header, context_length: int) -> int:
    """The bytes of memory of a model for vectors; at most a fifth more than it takes.

    Args:
        header: The header of the model's file.
        context_length: The length of the longest text, in tokens.
    """
    shape = ModelShape(header)
    batch = embedding_batch_size(header, context_length)
    streams = 4 * shape.width
    queries = 2 * shape.num_heads * shape.key_width
    logits = 0
    caches = 0
    if "bert" not in header.architecture:  # BERT has neither logits nor a cache
        logits = len(header.tokens)
        caches = cache_bytes(header, LlamaOptions(context_length=context_length))
    feed_forward = 3 * shape.hidden + streams
    attention = queries + streams
    # The logits count twice: libllama computes them, and hands out a copy.
    row = max(feed_forward, attention, logits) + logits
    mask_row = context_length
    compute = batch * (row + mask_row) * _FLOAT
    vocabulary = len(header.tokens) * _BYTES_PER_TOKEN
    return header.weights_bytes + caches + compute + vocabulary + SMALL_BYTES
