"""The sizes of models people run: Qwen2.5's, and a tiny one for tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """What decides the work of a decode. All counts; num_kv_heads divides num_heads."""

    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    hidden: int  # of the feed-forward part
    vocab_size: int
    num_ordinary: int  # tokens that the tokenizer makes of text; control and padding follow
    context_length: int = 32_768

    @property
    def kv_width(self) -> int:
        return self.width // self.num_heads * self.num_kv_heads

    def matrices(self) -> dict[str, tuple[int, int]]:
        """(rows, columns) of each matrix of a layer, by its name in the file."""
        width, hidden = self.width, self.hidden
        return {
            "attn_q": (width, width),
            "attn_k": (self.kv_width, width),
            "attn_v": (self.kv_width, width),
            "attn_output": (width, width),
            "ffn_gate": (hidden, width),
            "ffn_up": (hidden, width),
            "ffn_down": (width, hidden),
        }


SHAPES = {
    "0.5B": Shape(24, 896, 14, 2, 4_864, 151_936, 151_643),
    "1.5B": Shape(28, 1_536, 12, 2, 8_960, 151_936, 151_643),
    "7B": Shape(28, 3_584, 28, 4, 18_944, 152_064, 151_643),
    "tiny": Shape(2, 512, 8, 2, 1_024, 4_096, 4_000, context_length=2_048),
}
