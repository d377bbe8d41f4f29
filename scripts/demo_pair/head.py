"""An EAGLE-3 head for the target in plain PyTorch, as libllama computes it.

Li et al. 2025, "EAGLE-3": one layer reads the embedding of a token beside a mix of what three
of the target's layers read at the token before, and says what comes behind. Further tokens it
drafts from its own states, which it learns by being run several rounds ("training-time
test"). Embedding and output layer are the target's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from .dataset import Batch
from .model import Linear, Llama, Shape, conversation_mask, rotate, turns

ROUND_DECAY = 0.8  # weight of a round's loss, of that of the round before; as in the paper


@dataclass(frozen=True)
class HeadShape:
    """The sizes that are the head's own; the others are its target's."""

    layers: tuple[int, int, int]  # of the target, whose inputs are read
    hidden: int
    rounds: int  # tokens ahead that it learns to draft


HEAD = HeadShape(layers=(8, 16, 23), hidden=512, rounds=4)


def later(x: Tensor, places: int) -> Tensor:
    """`x` (..., length, size) moved by some places along its length, zeros before it."""
    return functional.pad(x, (0, 0, places, 0))[..., : x.shape[-2], :]


class HeadBlock(nn.Module):
    """Attention over pairs of an embedding and a state, and a gated feed-forward."""

    def __init__(self, shape: Shape, hidden: int) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.attn_norm = nn.RMSNorm(width, eps=shape.epsilon)
        self.attn_norm_2 = nn.RMSNorm(width, eps=shape.epsilon)
        self.attn_q = Linear(2 * width, width)
        self.attn_k = Linear(2 * width, width)
        self.attn_v = Linear(2 * width, width)
        self.attn_output = Linear(width, width)
        self.ffn_norm = nn.RMSNorm(width, eps=shape.epsilon)
        self.ffn_gate = Linear(width, hidden)
        self.ffn_up = Linear(width, hidden)
        self.ffn_down = Linear(hidden, width)

    def projected(
        self, embeddings: Tensor, states: Tensor, turn: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (rows, heads, length, size) each."""
        rows, length, width = states.shape
        pair = torch.cat((self.attn_norm(embeddings), self.attn_norm_2(states)), -1)
        q, k, v = (
            matrix(pair).view(rows, length, self.heads, width // self.heads).transpose(1, 2)
            for matrix in (self.attn_q, self.attn_k, self.attn_v)
        )
        return rotate(q, turn), rotate(k, turn), v

    def finish(self, states: Tensor, attended: Tensor) -> Tensor:
        """States (rows, length, width) after the attention's (rows, heads, length, size)."""
        x = states + self.attn_output(attended.transpose(1, 2).flatten(2))
        h = self.ffn_norm(x)
        return x + self.ffn_down(functional.silu(self.ffn_gate(h)) * self.ffn_up(h))


class EagleHead(nn.Module):
    """Turns the inputs of three of a target's layers into states for its output layer."""

    def __init__(self, target: Shape, shape: HeadShape) -> None:
        super().__init__()
        self.target = target
        self.shape = shape
        self.fc = Linear(3 * target.width, target.width)
        self.blk = nn.ModuleList([HeadBlock(target, shape.hidden)])
        self.output_norm = nn.RMSNorm(target.width, eps=target.epsilon)
        turn = turns(target, target.width // target.heads)
        self.register_buffer("turn", turn, persistent=False)

    def rounds(self, features: Tensor, following: Tensor, mask: Tensor) -> Iterator[Tensor]:
        """Normed states (rows, length, width) of each round.

        features: (rows, length, 3 * width), the layers' inputs side by side. following: the
        embedding of the token after each. mask: (rows, 1, length, length), additive.
        In round r a place has the target's features up to r places before it; from there on
        it has what the rounds before have made of them, as when it drafts.
        """
        block = self.blk[0]
        length = features.shape[1]
        states = self.fc(features)
        scale = (self.target.width // self.target.heads) ** -0.5
        made: list[tuple[Tensor, Tensor]] = []
        places = torch.arange(length, device=mask.device)
        for r in range(self.shape.rounds):
            q, k, v = block.projected(following, states, self.turn[:length])
            made.append((k, v))
            # The entry of round j that a place of round r follows lies r - j places back.
            own = [(later(k, r - j), later(v, r - j)) for j, (k, v) in enumerate(made) if j]
            seen = later(mask, r).index_fill(2, places[:r], float("-inf"))
            scores = [q @ made[0][0].transpose(-1, -2) * scale + seen]
            scores += [(q * key).sum(-1, keepdim=True) * scale for key, _ in own]
            shares = torch.cat(scores, -1).softmax(-1)
            attended = shares[..., :length].to(v.dtype) @ made[0][1]
            for at, (_, value) in enumerate(own, length):
                attended = attended + shares[..., at : at + 1] * value
            states = block.finish(states, attended.to(states.dtype))
            yield self.output_norm(states)
            states = later(states, 1)


def drafted(head: EagleHead, target: Llama, batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits (n, vocab) of the target and of each round, at the answers' tokens."""
    tokens = torch.from_numpy(batch.tokens)
    following = torch.from_numpy(batch.targets)
    # A place drafts what comes two places behind it.
    learned = torch.from_numpy(batch.learned)[:, 1:]
    mask = conversation_mask(torch.from_numpy(batch.segments), torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            inputs = target.layer_inputs(tokens, mask)
            wanted = target.head(target.output_norm(inputs[-1])[:, 1:][learned]).float()
            features = torch.cat([inputs[layer] for layer in head.shape.layers], -1)
            embeddings = target.token_embd(following)
        for states in head.rounds(features, embeddings, mask):
            yield wanted, target.head(states[:, :-1][learned]).float()


def head_loss(head: EagleHead, batch: Batch, target: Llama) -> Tensor:
    """Mean divergence from the target's probabilities, later rounds weighing less."""
    total = torch.zeros(())
    weights = 0.0
    for r, (wanted, logits) in enumerate(drafted(head, target, batch)):
        divergence = functional.kl_div(
            logits.log_softmax(-1),
            wanted.log_softmax(-1),
            reduction="batchmean",
            log_target=True,
        )
        total = total + ROUND_DECAY**r * divergence
        weights += ROUND_DECAY**r
    return total / weights
