"""A llama in plain PyTorch, with llama.cpp's rotary convention for arch `llama`.

Neighbouring dimensions (0, 1), (2, 3), … are turned together, as llama.cpp does, so the
exported matrices need no permutation. Input and output embeddings are one matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from .quantisation import fake_iq4_nl, iq4_nl


@dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    width: int
    layers: int
    heads: int
    hidden: int
    vocab: int = 4096
    context: int = 2048
    rope_base: float = 10000.0
    epsilon: float = 1e-5


# Many thin layers: on two cores a decode of four tokens costs little more than two of one
# (docs/demo-pair.md, "Why it is deep").
TARGET = Shape(width=256, layers=24, heads=4, hidden=768)
# As wide as the target, whose embedding it begins with. Two layers, as one cannot look up what
# followed a word before.
DRAFT = Shape(width=256, layers=2, heads=4, hidden=512)


class Linear(nn.Linear):
    """A matrix without bias that can pretend to be quantised."""

    quantised = False

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        weight = fake_iq4_nl(self.weight) if self.quantised else self.weight
        return functional.linear(x, weight)


def turns(shape: Shape, size: int) -> Tensor:
    """Cosine and sine of each position and pair of dimensions, (context, size / 2, 2)."""
    rates = shape.rope_base ** (-torch.arange(0, size, 2) / size)
    angles = torch.arange(shape.context)[:, None] * rates
    return torch.stack((angles.cos(), angles.sin()), -1)


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """`x` (rows, heads, length, size) with each pair of dimensions turned by its position.

    `turn` is (length, size / 2, 2): cosine and sine.
    """
    even = x[..., 0::2]
    odd = x[..., 1::2]
    cos = turn[..., 0]
    sin = turn[..., 1]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


class Block(nn.Module):
    """Attention and a gated feed-forward, each after its norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.attn_norm = nn.RMSNorm(shape.width, eps=shape.epsilon)
        self.attn_q = Linear(shape.width, shape.width)
        self.attn_k = Linear(shape.width, shape.width)
        self.attn_v = Linear(shape.width, shape.width)
        self.attn_output = Linear(shape.width, shape.width)
        self.ffn_norm = nn.RMSNorm(shape.width, eps=shape.epsilon)
        self.ffn_gate = Linear(shape.width, shape.hidden)
        self.ffn_up = Linear(shape.width, shape.hidden)
        self.ffn_down = Linear(shape.hidden, shape.width)

    def forward(self, x: Tensor, turn: Tensor, mask: Tensor | None) -> Tensor:
        rows, length, width = x.shape
        split = (rows, length, self.heads, width // self.heads)
        h = self.attn_norm(x)
        q = rotate(self.attn_q(h).view(split).transpose(1, 2), turn)
        k = rotate(self.attn_k(h).view(split).transpose(1, 2), turn)
        v = self.attn_v(h).view(split).transpose(1, 2)
        h = functional.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
        x = x + self.attn_output(h.transpose(1, 2).reshape(rows, length, width))
        h = self.ffn_norm(x)
        return x + self.ffn_down(functional.silu(self.ffn_gate(h)) * self.ffn_up(h))


class Llama(nn.Module):
    """Token ids (rows, length) to hidden states or logits."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.quantised = False
        self.token_embd = nn.Embedding(shape.vocab, shape.width)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = nn.RMSNorm(shape.width, eps=shape.epsilon)
        size = shape.width // shape.heads
        self.register_buffer("turn", turns(shape, size), persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                # What is added to the stream starts smaller, so that its sum keeps its size.
                deep = name.endswith(("attn_output.weight", "ffn_down.weight"))
                nn.init.normal_(
                    weight, std=0.02 / ((2 * self.shape.layers) ** 0.5 if deep else 1)
                )

    def grow(self, young: Llama) -> None:
        """Start as a stack of copies of `young`, which has a divisor of this one's layers.

        Depthwise stacking: Du et al. 2024, "Stacking Your Transformers", G_stack.
        """
        self.token_embd.load_state_dict(young.token_embd.state_dict())
        self.output_norm.load_state_dict(young.output_norm.state_dict())
        for number, block in enumerate(self.blk):
            block.load_state_dict(young.blk[number % young.shape.layers].state_dict())

    @torch.no_grad()
    def begin_like(self, target: Llama) -> None:
        """Start from the target's embedding, and of its first and last layers what has room."""
        self.token_embd.load_state_dict(target.token_embd.state_dict())
        self.output_norm.load_state_dict(target.output_norm.state_dict())
        for block, source in zip(self.blk, (target.blk[0], target.blk[-1]), strict=True):
            for own, other in zip(block.parameters(), source.parameters(), strict=True):
                own.copy_(other[tuple(map(slice, own.shape))])

    def pretend_quantised(self, *, on: bool) -> None:
        """Let every matrix act as its IQ4_NL copy, or as itself again."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.quantised = on
        self.quantised = on

    @property
    def embedding(self) -> Tensor:
        """The embedding, (vocab, width), as the file has it where that is pretended."""
        weight = self.token_embd.weight
        if self.quantised:
            return fake_iq4_nl(weight)
        return weight

    @torch.no_grad()
    def bake_quantised(self) -> None:
        """Replace every matrix by its IQ4_NL copy, for good."""
        for module in self.modules():
            if isinstance(module, Linear | nn.Embedding):
                module.weight.copy_(iq4_nl(module.weight))
        self.pretend_quantised(on=False)

    def layer_inputs(self, tokens: Tensor, mask: Tensor | None = None) -> list[Tensor]:
        """The input of each layer, and the output of the last: (rows, length, width) each.

        `mask` (rows, 1, length, length) is additive.
        """
        inputs = [functional.embedding(tokens, self.embedding)]
        turn = self.turn[: tokens.shape[1]]
        for block in self.blk:
            inputs.append(block(inputs[-1], turn, mask))
        return inputs

    def states(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Normed states (rows, length, width)."""
        return self.output_norm(self.layer_inputs(tokens, mask)[-1])

    def head(self, states: Tensor) -> Tensor:
        """Logits of states."""
        return functional.linear(states, self.embedding)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.states(tokens))


def conversation_mask(segments: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a position may look back within its own conversation, -inf elsewhere.

    `segments` is (rows, length); the result is (rows, 1, length, length).
    """
    length = segments.shape[1]
    same = segments[:, None, :, None] == segments[:, None, None, :]
    seen = same & torch.ones(length, length, dtype=torch.bool).tril()
    return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, float("-inf"))
