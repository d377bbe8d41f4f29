"""The settings with which libllama opens a model, and the batch sizes that follow from them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from localspec.errors import OptionError, is_whole
from localspec.gguf_file.header import Header
from localspec.keywords import known_fields, note_keywords
from localspec.rpc_address import checked_addresses

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
FlashAttention = Literal["auto", "on", "off"]

BATCH_SIZE = 512  # the most tokens of a text that one call of libllama takes
# Without flash attention a graph stores the attention scores of each of its tokens with the
# whole context, for all attention heads. The most tokens of a graph: with more, the scores
# exceed the processor's cache. For contexts above 8192 tokens it is less, so that the scores
# take no more memory. Prompts are then read more slowly, but flash attention would make all
# other decodes slower.
_GRAPH_WITHOUT_FLASH = 128
_LEAST_WITHOUT_FLASH = 32  # tokens; a graph has a multiple of them
_SCORES_WITHOUT_FLASH = 8192 * _GRAPH_WITHOUT_FLASH  # of an attention head

# Tokens of a hybrid's last decode that can be rolled back; each needs a state of tens of MB.
DEFAULT_SNAPSHOTS = 8
# Hidden rows of the latest tokens that are kept for a head. A head that has not read for longer
# forgets its text, and begins at the first row that is kept.
NUM_KEPT_ROWS = 512
# Tokens that a head reads at once as rows of its target's layers; each takes a row of logits.
ROWS_BATCH_SIZE = 64

# Architectures whose models generate text unless a file says that they embed; and libllama's
# numbers of the ways of pooling that take a text's last row: last, and rank.
_GENERATING = frozenset({"llama", "qwen2", "qwen3"})
_LAST_ROW_POOLING = (3, 4)

CONTEXT_STEP = 256  # tokens; libllama rounds a context up to a multiple
ALL_LAYERS = 512  # stands for all layers of a model: `gguf_file.check` refuses more

# Bounds of `tensor_split`: its shares, and the value of each.
_MOST_SHARES = 16
_SHARE_LIMIT = 1e6

# The lowest and the highest value of each whole number, and the hint for any other value.
_RANGES = {
    "context_length": (1, 1 << 60, "Choose 1 token or more."),
    "num_threads": (1, 512, "Choose 1 to 512."),
    "num_batch_threads": (1, 512, "Choose 1 to 512."),
    "num_gpu_layers": (0, 10_000, "Choose 0 (CPU only) or more."),
    "num_cpu_moe_layers": (0, ALL_LAYERS, "Choose 0 (experts go with their layers) or more."),
    "num_snapshots": (0, 64, "Choose 0 (no drafts for a hybrid) to 64."),
    "num_sequences": (1, 16, "Choose 1 to 16."),
    "num_picture_cells": (0, 1 << 14, "Choose 0 (any number) to 16384."),
    "max_outputs": (1, BATCH_SIZE, f"Choose 1 to {BATCH_SIZE}."),
    "main_gpu": (0, 255, "Choose the number of a device, from 0."),
}


@known_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaOptions:
    """Settings of one model and its context. None: localspec chooses.

    The default is in parentheses; after "load:" that of `localspec.load`, if it differs.

    Raises OptionError for a value outside its range.
    """

    context_length: int | None = None
    """Tokens, at most as many as the model was trained for (that number, up to 8192)."""

    num_threads: int | None = None
    """Threads for steps."""

    num_batch_threads: int | None = None
    """Threads for prompts (num_threads)."""

    num_gpu_layers: int | None = None
    """Layers on GPUs, counted from the last; the output counts as one more (all; load: as
    many as fit)."""

    num_cpu_moe_layers: int | None = None
    """Number of first layers whose experts stay in main memory while the rest of the layer
    is on a GPU (0; load: as many as necessary)."""

    flash_attention: FlashAttention = "auto"
    """"on", "off", or "auto" (libllama chooses; load: off on a CPU unless it saves much
    memory)."""

    cache_type_k: CacheType | None = None
    """The type of the cached keys (f16)."""

    cache_type_v: CacheType | None = None
    """The type of the cached values (f16)."""

    use_mmap: bool | None = None
    """Map the file instead of reading it (as suits the devices; load: read small files)."""

    use_mlock: bool = False
    """Keep the model from being swapped out."""

    device: str | None = None
    """The only device to use, by llama.cpp's name, as "Vulkan0", or "cpu" (load: the fastest,
    as measured). With num_gpu_layers=0 the layers are in main memory, and the device computes
    only large batches."""

    main_gpu: int | None = None
    """The only GPU to use (all are used)."""

    tensor_split: tuple[float, ...] = ()
    """Shares of the GPUs in their order, RPC servers first (by free memory; load: as they
    fit)."""

    rpc: tuple[str, ...] = ()
    """Addresses of llama.cpp's RPC servers, each "host:port", whose devices hold layers, too
    (none)."""

    repack: bool | None = None
    """Reorder weights for the processor's kernels (yes, unless exact)."""

    exact: bool | None = None
    """Settings with which texts are the same to the bit with any draft, see docs/lossless.md
    (no)."""

    num_snapshots: int | None = None
    """Recurrent states of the last decode that a hybrid keeps; a step may draft as many
    tokens for it (0; load: as many as fit, up to 8)."""

    with_head: bool | None = None
    """Use the MTP head in the model's file (no; load: if there is one and it fits)."""

    num_sequences: int = 1
    """Texts that are cached side by side, each with the whole context (1)."""

    num_picture_cells: int = 0
    """Cells of a picture that may have to be read at once (0; load: as many as the projector
    needs)."""

    max_outputs: int = 1
    """Rows of logits that a decode may return for each text; compute buffers grow with it."""

    def __post_init__(self) -> None:
        for name, (lowest, highest, hint) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not is_whole(value, lowest, highest):
                words = name.replace("num_", "the number of ")
                words = words.replace("_", " ").replace("gpu", "GPU")
                raise OptionError(f"{words} is {value!r}", hint)
        # None is allowed, so it is checked as another value that is.
        for name, value, kind in (
            ("flash_attention", self.flash_attention, FlashAttention),
            ("cache_type_k", self.cache_type_k or "f16", CacheType),
            ("cache_type_v", self.cache_type_v or "f16", CacheType),
            ("repack", self.repack or False, Literal[True, False]),
            ("exact", self.exact or False, Literal[True, False]),
        ):
            allowed = get_args(kind)
            if value not in allowed:
                choices = ", ".join(map(str, allowed))
                raise OptionError(f"{name} is {value!r}", f"Choose one of: {choices}.")
        self._check_device()
        object.__setattr__(self, "rpc", checked_addresses(self.rpc))
        if self.rpc and self.exact:
            raise OptionError(
                "exact and rpc are both given, but the kernels of RPC servers are not tested "
                "for exactness",
                "Leave out exact or rpc.",
            )
        are_shares = all(0 <= share < _SHARE_LIMIT for share in self.tensor_split)
        if len(self.tensor_split) > _MOST_SHARES or not are_shares:
            raise OptionError(
                f"tensor_split is {self.tensor_split}",
                "Give a share from 0 for each device.",
            )
        for name, value in (("rpc", self.rpc), ("tensor_split", self.tensor_split)):
            if value and self.main_gpu is not None:
                raise OptionError(
                    f"main_gpu puts everything on one GPU, and {name} shares it among several",
                    f"Choose main_gpu=… or {name}=….",
                )

    def _check_device(self) -> None:
        """Check `device`, and turn "cpu" into num_gpu_layers=0, which is the same.

        Raises OptionError for a value that is no name, or contradicts other options.
        """
        if self.device is None:
            return
        if not (isinstance(self.device, str) and self.device):
            raise OptionError(
                f"device is {self.device!r}",
                'Give its name, as "Vulkan0", or "cpu".',
            )
        if self.main_gpu is not None:
            raise OptionError(
                f"device is {self.device!r} and main_gpu is {self.main_gpu}",
                "Choose one of them.",
            )
        if self.device.lower() != "cpu":
            return
        if self.num_gpu_layers:
            raise OptionError(
                f"device is {self.device!r}, and num_gpu_layers is {self.num_gpu_layers}",
                "Leave out num_gpu_layers, or name a GPU.",
            )
        object.__setattr__(self, "device", None)
        object.__setattr__(self, "num_gpu_layers", 0)

    @property
    def most_outputs(self) -> int:
        """The most rows of logits of a joint decode, in which all sequences may take part."""
        return min(self.max_outputs * self.num_sequences, BATCH_SIZE)

    @property
    def summary(self) -> str:
        """The settings that change the cost of a decode, in words."""
        facts = [
            f"GPU layers {self.num_gpu_layers}",
            f"flash attention {self.flash_attention}",
            f"cache {self.cache_type_k}/{self.cache_type_v}",
            f"main GPU {self.main_gpu}",
        ]
        if self.device:
            facts.append(f"on {self.device}")
        facts.append(f"split {self.tensor_split}")
        if self.rpc:
            facts.append(f"on {self.rpc}")
        if self.num_cpu_moe_layers:
            facts.append(f"experts of {self.num_cpu_moe_layers} layers in main memory")
        if self.with_head:
            facts.append("with its head")
        if self.repack is False:
            facts.append("not repacked")
        if self.exact:
            facts.append("exact")
        return ", ".join(facts)


note_keywords("target_options=LlamaOptions(", LlamaOptions.__dataclass_fields__)


def graph_batch_size(flash_attention: FlashAttention, context_length: int) -> int:
    """The most tokens that one graph of libllama computes; a longer batch has several graphs.

    Args:
        flash_attention: `LlamaOptions.flash_attention`.
        context_length: Tokens; 0 if not known.
    """
    if flash_attention != "off":
        return min(BATCH_SIZE, context_length)
    num_tokens = _SCORES_WITHOUT_FLASH // max(context_length, 1)
    num_tokens -= num_tokens % _LEAST_WITHOUT_FLASH
    num_tokens = max(num_tokens, _LEAST_WITHOUT_FLASH)
    return min(num_tokens, _GRAPH_WITHOUT_FLASH, context_length)


def embedding_batch_size(header: Header, context_length: int) -> int:
    """The most tokens that one decode of an embedding model takes.

    A model that attends to later tokens, or pools a mean, needs each text in one decode. Where
    only a text's last row counts, a long text is decoded in several batches: a model that could
    generate text computes logits for every token of a batch, which take memory.

    Args:
        header: The model's header.
        context_length: The most tokens of a text.
    """
    architecture = header.architecture
    pooling_type = header.number(f"{architecture}.pooling_type")
    is_causal = header.metadata.get(f"{architecture}.attention.causal") is not False
    needs_last_row_only = is_causal and pooling_type in _LAST_ROW_POOLING
    if architecture in _GENERATING and needs_last_row_only:
        return min(BATCH_SIZE, context_length)
    return context_length


def text_batch_size(options: LlamaOptions, context_length: int) -> int:
    """The most tokens of a text that one decode takes.

    It is `BATCH_SIZE`, unless the context's graphs were made larger for pictures. Then it is
    the size of a graph for texts alone, so that texts are computed in graphs of that size.
    """
    graph_size = graph_batch_size(options.flash_attention, context_length)
    if options.num_picture_cells > graph_size:
        return graph_size
    return BATCH_SIZE


def num_cells(context_length: int) -> int:
    """The cache entries of a sequence for that many tokens: rounded up as by libllama."""
    num_steps = math.ceil(context_length / CONTEXT_STEP)
    return num_steps * CONTEXT_STEP
