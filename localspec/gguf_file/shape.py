"""The numbers of a model's header that decide its sizes and what its cache can do."""

from __future__ import annotations

import re

from localspec.errors import OptionError
from localspec.gguf_file.architectures import HEADS_APART, HeadGraph, architecture
from localspec.gguf_file.header import Header, Value

DEFAULT_CONTEXT_LENGTH = 8192  # tokens: the limit unless the user chooses a length
_BLOCK = re.compile(r"blk\.(\d+)\.")


class ModelShape:
    """The numbers of a header that decide sizes, with libllama's defaults."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self.architecture = architecture(header.architecture)
        self.has_snapshots = self.architecture.has_snapshots
        # Whether the last tokens can be removed from the cache, as after a refused draft.
        self.can_roll_back = not self.architecture.has_state or self.has_snapshots
        self.context_length = self.most("context_length")
        # Tokens that some layers look back at; 0 if all layers see the whole text.
        self.sliding_window = self.most("attention.sliding_window")
        # The layers of the model, those of a head, and both.
        self.num_blocks = self.most("block_count")
        self.num_head_layers = self.most("nextn_predict_layers")
        if self.architecture.head_graph in HEADS_APART:
            self.num_head_layers = self.num_blocks
        self.num_layers = self.num_blocks - self.num_head_layers
        # Layers of its target that a head reads, in the order of their rows side by side.
        self.layers_read = whole_numbers(self.stated("target_layers"))
        self.width = self.most("embedding_length")
        # Numbers of a row that a head reads (llama_model_n_embd_out).
        self.row_width = self.most("embedding_length_out") or self.width
        if header.architecture in ("deepseek4", "qwen4exp"):
            self.row_width = self.width * self.most("hyper_connection.count")
        self.num_heads = self.most("attention.head_count")
        head_width = 0
        if self.num_heads:
            head_width = self.width // self.num_heads
        self.key_width = self.most("attention.key_length") or head_width
        self.value_width = self.most("attention.value_length") or head_width
        # Latent attention (DeepSeek's) keeps one compressed row for keys and values.
        self.is_latent = self.most("attention.key_length_mla") > 0
        self.num_experts_used = self.most("expert_used_count")
        self.hidden = max(
            self.most("feed_forward_length"),
            self.num_experts_used * self.most("expert_feed_forward_length"),
        )
        # Numbers of the longest row that a matrix is multiplied with.
        self.widest = max(self.width, self.hidden)

    def kv_heads(self) -> list[int]:
        """Heads of keys and values for each layer: (num_layers,); 0 if it has no cache."""
        if self.architecture.is_recurrent:
            return [0] * self.num_layers
        heads = self.stated_kv_heads()[: self.num_layers]
        interval = self.most("full_attention_interval")
        if interval:  # only every n-th layer has a cache
            for index in range(len(heads)):
                if (index + 1) % interval:
                    heads[index] = 0
        shared = self.most("attention.shared_kv_layers")
        return heads[: len(heads) - shared]

    def head_kv_heads(self) -> list[int]:
        """KV heads of each layer of a trained head, all of which attend: (num_head_layers,)."""
        if self.architecture.head_graph is HeadGraph.SHARED:
            return [0] * self.num_head_layers
        return self.stated_kv_heads()[self.num_layers :]

    def stated_kv_heads(self) -> list[int]:
        """The header's numbers for all blocks, with a cache or without: (num_blocks,)."""
        stated = self.stated("attention.head_count_kv")
        if isinstance(stated, tuple):  # of another length, libllama refuses it
            padded = [*whole_numbers(stated), *[0] * self.num_blocks]
            return padded[: self.num_blocks]
        if isinstance(stated, int):
            return [stated] * self.num_blocks
        return [self.num_heads] * self.num_blocks

    def is_head_tensor(self, name: str) -> bool:
        """Whether the tensor belongs to an MTP layer, and is loaded only with the head."""
        block = block_of(name)
        if block is None or block < self.num_layers:
            return False
        return not name.split(".", 2)[2].startswith(self.architecture.loaded_anyway)

    def stated(self, name: str) -> Value:
        """The header's value under a name of the architecture."""
        return self._header.metadata.get(f"{self._header.architecture}.{name}")

    def state_width(self) -> int:
        """Numbers in the state of a recurrent layer (llama_hparams::n_embd_r, n_embd_s)."""
        head = self.most("wkv.head_size")
        if head:
            return self.width * (self.most("token_shift_count") + head)
        taps = self.most("shortconv.l_cache")
        if taps:
            return self.width * (taps - 1)
        inner = self.most("ssm.inner_size")
        state = self.most("ssm.state_size")
        groups = self.most("ssm.group_count")
        num_kept = max(0, self.most("ssm.conv_kernel") - 1)
        convolution = num_kept * (inner + 2 * groups * state)
        return convolution + state * inner

    def most(self, name: str) -> int:
        """The whole number of that name, the largest of several; 0 if there is none."""
        return max((0, *whole_numbers(self.stated(name))))


def block_of(tensor: str) -> int | None:
    """The layer that a tensor of that name belongs to, if any."""
    found = _BLOCK.match(tensor)
    if found is None:
        return None
    return int(found[1])


def whole_numbers(value: Value) -> tuple[int, ...]:
    """The whole numbers of a value or an array; libllama refuses a file with others there."""
    values: tuple[Value, ...] = (value,)
    if isinstance(value, tuple):
        values = value
    return tuple(number for number in values if isinstance(number, int))


def context_to_open(wanted: int | None, trained: int, name: str) -> int:
    """The number of tokens to open a model's context for.

    Args:
        wanted: The tokens that the user asks for; None for the default.
        trained: Tokens that the model was trained for.
        name: The model's name, for the error.

    Raises:
        OptionError: If more are wanted.
    """
    if wanted is not None and wanted > trained:
        raise OptionError(
            f"a context of {wanted} tokens was requested; {name} was trained for {trained}",
            f"Choose context_length={trained} or less.",
        )
    return wanted or min(trained, DEFAULT_CONTEXT_LENGTH)
