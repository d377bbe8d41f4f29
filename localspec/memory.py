"""How much memory a model takes at a context, computed from its header.

What libllama allocates is followed: the weights, the caches, and the buffer of the largest
moment of its graph, which is a feed-forward layer of a whole batch as a rule. `measure_memory`
in scripts/ compares the sums with what a process really takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from localspec.header import Header, Tensor
from localspec.tensor_types import type_name

# libllama's names of architectures with a state that cannot lose its last tokens.
_RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
_HYBRID = frozenset(
    {
        "bailingmoe3", "deepseek4", "falcon-h1", "glm5-next", "granitehybrid", "jamba",
        "kimi-k3", "kimi-linear", "lfm2", "lfm2moe", "minimax-01", "nemotron_h",
        "nemotron_h_moe", "plamo2", "qwen35", "qwen35moe", "qwen3next", "qwen4exp",
    }
)  # fmt: skip

_BATCH_SIZE = 512  # tokens, of llama.LlamaModel
_CONTEXT_STEP = 256  # tokens; libllama rounds a context up
_FLOAT, _HALF = 4, 2  # bytes
_Q8 = 34 / 32  # bytes of an activation that ggml quantises for a product
_BYTES_PER_TOKEN = 310  # of libllama's vocabulary, its merges and texts: measured
_PROCESS_BYTES = 8 << 20  # code that is paged in, small buffers: measured


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """What one model takes, in bytes.

    repacked_bytes: weights that are there a second time, in the order the processor likes.
    cache_bytes: keys and values, or the state of a recurrent model. compute_bytes:
    intermediate results and logits.
    """

    weights_bytes: int
    repacked_bytes: int
    cache_bytes: int
    compute_bytes: int
    vocabulary_bytes: int

    @property
    def needed_bytes(self) -> int:
        """What has to be there: the file's copy of repacked weights may go."""
        return (
            self.weights_bytes + self.cache_bytes + self.compute_bytes + self.vocabulary_bytes
        )

    @property
    def peak_bytes(self) -> int:
        """What the process shows at most, the mapped file included."""
        return self.needed_bytes + self.repacked_bytes


def estimate_memory(
    header: Header, context_length: int, max_outputs: int, repacked: frozenset[str]
) -> MemoryEstimate:
    """What the model takes when it is opened as `LlamaOptions` says.

    repacked: names of the types that are stored twice, see `tensor_types`; none where a GPU
    holds the weights.
    """
    cells = -(-context_length // _CONTEXT_STEP) * _CONTEXT_STEP
    batch = min(_BATCH_SIZE, context_length)
    rows = max_outputs * len(header.tokens) * _FLOAT  # of logits, copied out of the graph
    work = int(batch * _Shape(header).widest * _Q8)  # what a product needs beside it
    return MemoryEstimate(
        weights_bytes=sum(tensor.size_bytes for tensor in header.tensors),
        repacked_bytes=sum(t.size_bytes for t in _products(header) if _is_in(t, repacked)),
        cache_bytes=cache_bytes(header, cells),
        compute_bytes=graph_bytes(header, batch, cells, max_outputs) + rows + work,
        vocabulary_bytes=len(header.tokens) * _BYTES_PER_TOKEN,
    )


def total_needed_bytes(estimates: Sequence[MemoryEstimate]) -> int:
    """What a process with these models has to have."""
    return _PROCESS_BYTES + sum(estimate.needed_bytes for estimate in estimates)


def total_peak_bytes(estimates: Sequence[MemoryEstimate]) -> int:
    """What a process with these models shows at most, above the interpreter's own."""
    return _PROCESS_BYTES + sum(estimate.peak_bytes for estimate in estimates)


def can_roll_back(header: Header) -> bool:
    """Whether the model's cache can lose its last tokens, which drafting needs."""
    return header.architecture not in _RECURRENT | _HYBRID


def sliding_window(header: Header) -> int:
    """Tokens that some layers look back; 0 if all of them see everything."""
    return header.number(f"{header.architecture}.attention.sliding_window")


def cache_bytes(header: Header, cells: int) -> int:
    """Keys and values of `cells` tokens in half precision, and recurrent states.

    A sliding window saves nothing: libllama keeps everything by default, and localspec
    needs it so to take tokens back.
    """
    shape = _Shape(header)
    attending = [heads for heads in shape.kv_heads() if heads > 0]
    widths = shape.key_width if shape.is_latent else shape.key_width + shape.value_width
    num_recurrent = shape.num_layers - len(attending)
    return (
        sum(attending) * widths * cells * _HALF + num_recurrent * shape.state_width() * _FLOAT
    )


def graph_bytes(header: Header, batch: int, cells: int, max_outputs: int) -> int:
    """The buffer of libllama's graph for `batch` tokens behind `cells` cached ones.

    Exact for layers as Llama's and Qwen's; near enough for the others, as it is a small part.
    """
    shape = _Shape(header)
    # At once: gate, up and their product; the layer's input, norm, residual and result,
    # which in a model of fewer layers are fewer: its last one has max_outputs rows only.
    streams = min(4, shape.num_layers) * shape.width
    feed_forward = 3 * shape.hidden + shape.num_experts_used * shape.width + streams
    attention = 2 * shape.num_heads * shape.key_width + streams
    logits = max_outputs * len(header.tokens)
    masks = 1 + (sliding_window(header) > 0)
    if header.architecture in _RECURRENT:
        masks = 0
    return (
        max(max(feed_forward, attention) * batch, logits) * _FLOAT
        + masks * batch * cells * _HALF
    )


def _products(header: Header) -> list[Tensor]:
    """The weights that ggml may repack: matrices, but for the table of the tokens.

    Where that is the head as well, libllama makes a second tensor of it.
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


def _is_in(tensor: Tensor, types: frozenset[str]) -> bool:
    return type_name(tensor.kind) in types


class _Shape:
    """The numbers of a header that decide sizes, with libllama's defaults."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self.num_layers = self._most("block_count") - self._most("nextn_predict_layers")
        self.width = self._most("embedding_length")
        self.num_heads = self._most("attention.head_count")
        head_width = self.width // self.num_heads if self.num_heads else 0
        self.key_width = self._most("attention.key_length") or head_width
        self.value_width = self._most("attention.value_length") or head_width
        # Latent attention (DeepSeek's) keeps one compressed row for keys and values.
        self.is_latent = self._most("attention.key_length_mla") > 0
        self.num_experts_used = self._most("expert_used_count")
        self.hidden = max(
            self._most("feed_forward_length"),
            self.num_experts_used * self._most("expert_feed_forward_length"),
        )

    @property
    def widest(self) -> int:
        """Numbers of the longest row that a matrix is multiplied with."""
        return max(self.width, self.hidden)

    def kv_heads(self) -> list[int]:
        """Heads of keys and values for each layer: (num_layers,); 0 where it has no cache."""
        if self._header.architecture in _RECURRENT:
            return [0] * self.num_layers
        stated = self._header.metadata.get(self._key("attention.head_count_kv"))
        if isinstance(stated, tuple):
            heads = [int(number) for number in stated[: self.num_layers]]
        else:
            one = stated if isinstance(stated, int) else self.num_heads
            heads = [one] * self.num_layers
        if interval := self._most("full_attention_interval"):
            heads = [n if (i + 1) % interval == 0 else 0 for i, n in enumerate(heads)]
        shared = self._most("attention.shared_kv_layers")
        return heads[: len(heads) - shared]

    def state_width(self) -> int:
        """Numbers that a recurrent layer carries on (llama_hparams::n_embd_r, n_embd_s)."""
        if head := self._most("wkv.head_size"):
            return self.width * (self._most("token_shift_count") + head)
        if taps := self._most("shortconv.l_cache"):
            return self.width * (taps - 1)
        inner, state = self._most("ssm.inner_size"), self._most("ssm.state_size")
        taps, groups = self._most("ssm.conv_kernel"), self._most("ssm.group_count")
        return max(0, taps - 1) * (inner + 2 * groups * state) + state * inner

    def _key(self, name: str) -> str:
        return f"{self._header.architecture}.{name}"

    def _most(self, name: str) -> int:
        """The number of that name, of several the largest; 0 if it is not there."""
        value = self._header.metadata.get(self._key(name))
        if isinstance(value, tuple):
            return max((int(number) for number in value), default=0)
        return value if isinstance(value, int) else 0
