"""The numbers of a model's header that decide its sizes and what its cache can do."""

from __future__ import annotations

import re

from localspec.errors import OptionError
from localspec.gguf_file.architectures import HeadGraph, State, architecture
from localspec.gguf_file.header import Header, Value

DEFAULT_CONTEXT_LENGTH = 8192  # tokens, at most, if nobody chooses
_BLOCK = re.compile(r"blk\.(\d+)\.")


class ModelShape:
    """The numbers of a header that decide sizes, with libllama's defaults."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self.architecture = architecture(header.architecture)
        self.is_recurrent = self.architecture.state is State.ALL
        self.has_state = self.architecture.state is not State.NONE
        self.has_snapshots = self.architecture.has_snapshots
        # Whether the cache can lose its last tokens, which a target that is drafted for needs.
        self.can_roll_back = not self.has_state or self.has_snapshots
        self.context_length = self._most("context_length")
        # Tokens that some layers look back at; 0 if all of them see everything.
        self.sliding_window = self._most("attention.sliding_window")
        # The layers of the model, those of a head, and both.
        self.num_blocks = self._most("block_count")
        self.num_head_layers = self._most("nextn_predict_layers")
        if self.architecture.head_graph in (HeadGraph.LAYERS, HeadGraph.OUTPUT):
            self.num_head_layers = self.num_blocks
        self.num_layers = self.num_blocks - self.num_head_layers
        self.width = self._most("embedding_length")
        # Numbers of a row that a head reads (llama_model_n_embd_out).
        self.row_width = self._most("embedding_length_out") or self.width
        if header.architecture in ("deepseek4", "qwen4exp"):
            self.row_width = self.width * self._most("hyper_connection.count")
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
        """Heads of keys and values for each layer: (num_layers,); 0 if it has no cache."""
        if self.is_recurrent:
            return [0] * self.num_layers
        heads = self.stated_kv_heads()[: self.num_layers]
        if interval := self._most("full_attention_interval"):
            heads = [n if (i + 1) % interval == 0 else 0 for i, n in enumerate(heads)]
        shared = self._most("attention.shared_kv_layers")
        return heads[: len(heads) - shared]

    def head_kv_heads(self) -> list[int]:
        """As `kv_heads` for each layer of a head, all of which attend: (num_head_layers,)."""
        if self.architecture.head_graph is HeadGraph.SHARED:
            return [0] * self.num_head_layers
        return self.stated_kv_heads()[self.num_layers :]

    def stated_kv_heads(self) -> list[int]:
        """The header's numbers for all blocks, whether they have a cache or not."""
        stated = self.stated("attention.head_count_kv")
        if isinstance(stated, tuple):
            return [int(number) for number in stated[: self.num_blocks]]
        return [stated if isinstance(stated, int) else self.num_heads] * self.num_blocks

    def is_head_tensor(self, name: str) -> bool:
        """Whether it is of an MTP layer, and loaded only with the head."""
        block = self.block_of(name)
        if block is None or block < self.num_layers:
            return False
        return not name.split(".", 2)[2].startswith(self.architecture.loaded_anyway)

    def block_of(self, name: str) -> int | None:
        """The layer that a tensor of that name belongs to."""
        found = _BLOCK.match(name)
        return None if found is None else int(found[1])

    def stated(self, name: str) -> Value:
        """What the header has under a name of the architecture."""
        return self._header.metadata.get(f"{self._header.architecture}.{name}")

    def state_width(self) -> int:
        """Numbers that a recurrent layer carries on (llama_hparams::n_embd_r, n_embd_s)."""
        if head := self._most("wkv.head_size"):
            return self.width * (self._most("token_shift_count") + head)
        if taps := self._most("shortconv.l_cache"):
            return self.width * (taps - 1)
        inner, state = self._most("ssm.inner_size"), self._most("ssm.state_size")
        taps, groups = self._most("ssm.conv_kernel"), self._most("ssm.group_count")
        return max(0, taps - 1) * (inner + 2 * groups * state) + state * inner

    def _most(self, name: str) -> int:
        """The number of that name, of several the largest; 0 if it is not there."""
        value = self.stated(name)
        if isinstance(value, tuple):
            return max((int(number) for number in value), default=0)
        return value if isinstance(value, int) else 0


def context_to_open(wanted: int | None, trained: int, name: str) -> int:
    """The tokens to open a model's context for; wanted None leaves the choice to us.

    trained: tokens that the model was trained for. Raises OptionError beyond them.
    """
    if wanted is not None and wanted > trained:
        raise OptionError(
            f"a context of {wanted} tokens is asked for; {name} was trained for {trained}",
            f"Choose context_length={trained} or less.",
        )
    return wanted or min(trained, DEFAULT_CONTEXT_LENGTH)
