"""The sizes of a model and the abilities of its cache, from the model's header."""

from __future__ import annotations

import re

from localspec.errors import OptionError
from localspec.gguf_file.architectures import HEADS_WITHOUT_MODEL, HeadGraph, architecture
from localspec.gguf_file.header import Header, Value

DEFAULT_CONTEXT_LENGTH = 8192  # tokens: the limit unless the user chooses a length
_BLOCK = re.compile(r"blk\.(\d+)\.")  # begins a tensor's name; the digits number the layer


class ModelShape:
    """The sizes that a header states for a model, with libllama's defaults.

    A size that the header does not state, and for which libllama has no default, is 0.
    """

    def __init__(self, header: Header) -> None:
        self._header = header
        self.architecture = architecture(header.architecture)
        self.has_snapshots = self.architecture.has_snapshots
        # Whether the last tokens can be removed from the cache, as after a refused draft.
        self.can_roll_back = not self.architecture.has_state or self.has_snapshots
        self.context_length = self.number("context_length")
        # Tokens that some layers look back at; 0 if all layers see the whole text.
        self.sliding_window = self.number("attention.sliding_window")
        # Blocks are the layers of the model, followed by those of a head.
        self.num_blocks = self.number("block_count")
        self.num_head_layers = self.number("nextn_predict_layers")
        if self.architecture.head_graph in HEADS_WITHOUT_MODEL:
            self.num_head_layers = self.num_blocks
        self.num_layers = self.num_blocks - self.num_head_layers
        # Layers of its target that a head reads, in the order of their rows side by side.
        self.layers_read = whole_numbers(self.value("target_layers"))
        self.width = self.number("embedding_length")
        # Numbers in a row of the target that a head reads (llama_model_n_embd_out).
        self.row_width = self.number("embedding_length_out") or self.width
        if header.architecture in ("deepseek4", "qwen4exp"):
            self.row_width = self.width * self.number("hyper_connection.count")
        # Attention heads, and the numbers in a key and a value of one head.
        self.num_heads = self.number("attention.head_count")
        head_width = 0
        if self.num_heads:
            head_width = self.width // self.num_heads
        self.key_width = self.number("attention.key_length") or head_width
        self.value_width = self.number("attention.value_length") or head_width
        # Latent attention (DeepSeek's) keeps one compressed row for keys and values.
        self.is_latent = self.number("attention.key_length_mla") > 0
        self.num_experts_used = self.number("expert_used_count")
        # The width inside a feed-forward layer, or inside all experts of a token together.
        dense_width = self.number("feed_forward_length")
        experts_width = self.num_experts_used * self.number("expert_feed_forward_length")
        self.hidden = max(dense_width, experts_width)
        # Numbers in the longest row that a matrix is multiplied with.
        self.widest = max(self.width, self.hidden)

    def kv_heads(self) -> list[int]:
        """The number of KV heads of each layer, 0 for a layer without a KV cache.

        Ends before the last layers if these share the caches of earlier layers.
        """
        if self.architecture.is_recurrent:
            return [0] * self.num_layers
        all_blocks = self._kv_heads_of_blocks()
        heads = all_blocks[: self.num_layers]
        interval = self.number("full_attention_interval")
        if interval:  # only every n-th layer has a KV cache
            for layer_number in range(1, len(heads) + 1):
                if layer_number % interval != 0:
                    heads[layer_number - 1] = 0
        num_sharing = self.number("attention.shared_kv_layers")
        return heads[: len(heads) - num_sharing]

    def head_kv_heads(self) -> list[int]:
        """The number of KV heads of each layer of a trained head: (num_head_layers,).

        All 0 for an assistant, which reads the target's cache.
        """
        if self.architecture.head_graph is HeadGraph.ASSISTANT:
            return [0] * self.num_head_layers
        all_blocks = self._kv_heads_of_blocks()
        return all_blocks[self.num_layers :]

    def _kv_heads_of_blocks(self) -> list[int]:
        """The number of KV heads of each block: (num_blocks,).

        If the header states none, it is the number of attention heads.
        """
        stated = self.value("attention.head_count_kv")
        if isinstance(stated, tuple):
            heads = list(whole_numbers(stated))
            # libllama refuses an array of another length; here it only has to do no harm.
            num_missing = max(0, self.num_blocks - len(heads))
            heads += [0] * num_missing
            return heads[: self.num_blocks]
        if isinstance(stated, int):
            return [stated] * self.num_blocks
        return [self.num_heads] * self.num_blocks

    def is_head_tensor(self, name: str) -> bool:
        """Whether libllama loads the tensor of that name only together with the MTP head."""
        block = block_of(name)
        if block is None or block < self.num_layers:
            return False
        _, _, name_in_block = name.split(".", 2)
        return not name_in_block.startswith(self.architecture.loaded_without_head)

    def value(self, name: str) -> Value:
        """The header's value of ARCHITECTURE.name; None if there is none."""
        return self._header.metadata.get(f"{self._header.architecture}.{name}")

    def number(self, name: str) -> int:
        """The whole number of ARCHITECTURE.name, the largest of an array; 0 without one."""
        numbers = whole_numbers(self.value(name))
        return max((0, *numbers))

    def state_width(self) -> int:
        """How many numbers the recurrent state of a layer has.

        As llama_hparams::n_embd_r and n_embd_s have them, added up: for RWKV, for short
        convolutions (LFM2), else for Mamba.
        """
        wkv_head_size = self.number("wkv.head_size")
        if wkv_head_size:
            return self.width * (self.number("token_shift_count") + wkv_head_size)
        short_kernel = self.number("shortconv.l_cache")
        if short_kernel:
            return self.width * (short_kernel - 1)
        inner_size = self.number("ssm.inner_size")
        state_size = self.number("ssm.state_size")
        num_groups = self.number("ssm.group_count")
        kernel = self.number("ssm.conv_kernel")
        num_kept = max(0, kernel - 1)  # inputs of the convolution
        convolution_width = num_kept * (inner_size + 2 * num_groups * state_size)
        return convolution_width + state_size * inner_size


def block_of(tensor: str) -> int | None:
    """The number of the layer that a tensor of that name belongs to; None if to none."""
    match = _BLOCK.match(tensor)
    if match is None:
        return None
    return int(match[1])


def whole_numbers(value: Value) -> tuple[int, ...]:
    """The whole numbers among a header's value or array.

    What is no whole number is left out: libllama refuses a file that has it there.
    """
    values: tuple[Value, ...] = (value,)
    if isinstance(value, tuple):
        values = value
    return tuple(number for number in values if isinstance(number, int))


def context_to_open(wanted: int | None, trained: int, name: str) -> int:
    """The number of tokens to open a model's context for.

    Args:
        wanted: The number of tokens that the user asks for. None or 0: what the model was
            trained for, up to DEFAULT_CONTEXT_LENGTH.
        trained: The number of tokens that the model was trained for.
        name: The model's name, for the error.

    Raises:
        OptionError: If `wanted` is more than `trained`.
    """
    if not wanted:
        return min(trained, DEFAULT_CONTEXT_LENGTH)
    if wanted > trained:
        raise OptionError(
            f"a context of {wanted} tokens was requested; {name} was trained for {trained}",
            f"Choose context_length={trained} or less.",
        )
    return wanted
