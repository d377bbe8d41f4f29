"""The sizes of models people run, and tiny ones for tests.

The architectures are libllama's: qwen2 has no head of its own; hy_v3 and qwen35 may have one
layer that predicts a further token (MTP). Of those that libllama computes such layers for,
hy_v3 alone may be dense in all layers, the head's among them: so it stands for an attention
model with a head, in the sizes of Qwen2.5 7B. qwen35 is a hybrid, in the sizes of Qwen3.5 4B
but for the vocabulary, which is the others', so that their drafts go with it. llama has none,
but libllama gives what goes into its layers, so that an EAGLE-3 head can be made for it; its
sizes are those of Llama 3 8B, and of Llama 3.2 1B for less memory.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Recurrence:
    """Sizes of gated delta nets, which stand in three layers of four. All counts."""

    num_key_heads: int
    num_value_heads: int
    head_width: int
    taps: int = 4
    interval: int = 4  # one layer of so many attends

    @property
    def inner(self) -> int:
        return self.num_value_heads * self.head_width

    @property
    def mixed(self) -> int:
        """Channels of queries, keys and values together."""
        return 2 * self.num_key_heads * self.head_width + self.inner


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers that decide the work of a decode; num_kv_heads divides num_heads."""

    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    hidden: int  # of the feed-forward part
    vocab_size: int
    num_ordinary: int  # tokens that the tokenizer makes of text; control and padding follow
    context_length: int = 32_768
    architecture: str = "qwen2"
    recurrence: Recurrence | None = None
    wide_heads: int | None = None  # numbers of an attention head, if not width ÷ num_heads

    @property
    def head_width(self) -> int:
        return self.wide_heads or self.width // self.num_heads

    @property
    def has_head(self) -> bool:
        """Whether a layer that predicts a further token can go with it."""
        return self.architecture != "qwen2"

    @property
    def has_eagle(self) -> bool:
        """Whether that is an EAGLE-3 head, always in a file of its own."""
        return self.architecture == "llama"


_QWEN = {"vocab_size": 151_936, "num_ordinary": 151_643}
_TINY = {"vocab_size": 4_096, "num_ordinary": 4_000, "context_length": 2_048}
SHAPES = {
    "0.5B": Shape(24, 896, 14, 2, 4_864, **_QWEN),
    "1.5B": Shape(28, 1_536, 12, 2, 8_960, **_QWEN),
    "7B": Shape(28, 3_584, 28, 4, 18_944, 152_064, 151_643),
    "tiny": Shape(2, 512, 8, 2, 1_024, **_TINY),
    "7B-hy_v3": Shape(28, 3_584, 28, 4, 18_944, 152_064, 151_643, architecture="hy_v3"),
    "tiny-hy_v3": Shape(2, 1_024, 8, 2, 1_024, **_TINY, architecture="hy_v3"),
    "4B-qwen35": Shape(
        *(32, 2_560, 16, 4, 9_216),
        **_QWEN,
        architecture="qwen35",
        recurrence=Recurrence(num_key_heads=16, num_value_heads=32, head_width=128),
        wide_heads=256,
    ),
    "8B-llama": Shape(32, 4_096, 32, 8, 14_336, 128_256, 128_000, architecture="llama"),
    "1B-llama": Shape(16, 2_048, 32, 8, 8_192, 128_256, 128_000, architecture="llama"),
    "tiny-llama": Shape(4, 1_024, 8, 4, 1_024, **_TINY, architecture="llama"),
    "tiny-qwen35": Shape(
        *(4, 1_024, 4, 1, 1_024),
        **_TINY,
        architecture="qwen35",
        recurrence=Recurrence(num_key_heads=2, num_value_heads=4, head_width=64),
        wide_heads=256,
    ),
}
