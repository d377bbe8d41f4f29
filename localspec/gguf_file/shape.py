"""The numbers of a model's header that decide its sizes and what its cache can do."""

from __future__ import annotations

from localspec.gguf_file.header import Header

# libllama's names of architectures with a recurrent state: all of it, or in some layers.
_RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
_HYBRID = frozenset(
    {
        "bailingmoe3", "deepseek4", "falcon-h1", "glm5-next", "granitehybrid", "jamba",
        "kimi-k3", "kimi-linear", "lfm2", "lfm2moe", "minimax-01", "nemotron_h",
        "nemotron_h_moe", "plamo2", "qwen35", "qwen35moe", "qwen3next", "qwen4exp",
    }
)  # fmt: skip
# Of those the ones whose last states libllama can keep, see llm_arch_supports_rs_rollback.
_SNAPSHOTS = frozenset(
    {
        "bailingmoe3", "deepseek4", "glm5-next", "kimi-k3", "lfm2", "lfm2moe", "nemotron_h",
        "nemotron_h_moe", "qwen35", "qwen35moe", "qwen4exp",
    }
)  # fmt: skip


class ModelShape:
    """The numbers of a header that decide sizes, with libllama's defaults."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self.is_recurrent = header.architecture in _RECURRENT
        self.has_state = self.is_recurrent or header.architecture in _HYBRID
        self.has_snapshots = header.architecture in _SNAPSHOTS
        # Whether the cache can lose its last tokens, which a target that is drafted for needs.
        self.can_roll_back = not self.has_state or self.has_snapshots
        self.context_length = self._most("context_length")
        # Tokens that some layers look back at; 0 if all of them see everything.
        self.sliding_window = self._most("attention.sliding_window")
        # The layers of the model, and with those that predict further tokens.
        self.num_blocks = self._most("block_count")
        self.num_layers = self.num_blocks - self._most("nextn_predict_layers")
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
        if self.is_recurrent:
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
