"""Trains Medusa heads for a model of your own, from answers that it writes itself.

    pip install -r scripts/demo_pair/requirements.txt
    python scripts/heads/train_medusa.py --target T.gguf --out heads.gguf --prompts mine.txt

As train_eagle.py, whose folder of texts (--work) it can share, for a model of any architecture:
heads that read what its output layer reads learn to say what it would say two, three … places
behind (Medusa-1: the target stays as it is). Each has an output layer of its own, which begins
as the target's.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from learning import Learning, add_options, run, schedule_of
from medusa_file import Array, HeadWeights, write_medusa
from torch import Tensor, nn
from torch.nn import functional
from trained_texts import Batch, Texts, target_rows, written_texts

_DECAY = 0.8  # weight of a head's loss, of that of the head before; as in the paper


class MedusaHeads(nn.Module):
    """Heads of one residual block each: see `localspec/gguf_file/medusa.py`."""

    def __init__(self, rows: Tensor, count: int) -> None:
        super().__init__()
        num_tokens, width = rows.shape
        self.residuals = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.outputs = nn.ModuleList(
            nn.Linear(width, num_tokens, bias=False) for _ in range(count)
        )
        with torch.no_grad():
            for residual, output in zip(self.residuals, self.outputs, strict=True):
                residual.weight.zero_()
                residual.bias.zero_()
                output.weight.copy_(rows)

    def forward(self, place: int, states: Tensor) -> Tensor:
        """Logits (n, tokens) of the head for a place; states: (n, width)."""
        inner = functional.silu(self.residuals[place](states))
        logits: Tensor = self.outputs[place](states + inner)
        return logits


def read_by(place: int, batch: Batch) -> tuple[Tensor, Tensor]:
    """Where (texts, length) the head for a place can read, and where what it is to say is."""
    ahead = place + 1
    length = batch.wanted.shape[1]
    read = torch.zeros_like(batch.wanted)
    read[:, : length - ahead] = batch.wanted[:, :-ahead] & batch.wanted[:, ahead:]
    said = torch.zeros_like(read)
    said[:, ahead:] = read[:, : length - ahead]
    return read, said


def loss_of(heads: MedusaHeads, rows: Tensor, batch: Batch) -> Tensor:
    """Mean cross-entropy in nats with the target's laws; later heads weigh less."""
    total, weights = torch.zeros((), device=rows.device), 0.0
    for place in range(len(heads.outputs)):
        read, said = read_by(place, batch)
        with torch.no_grad():
            laws = functional.linear(batch.outputs[said], rows).softmax(-1)
        loss = functional.cross_entropy(heads(place, batch.outputs[read]), laws)
        total, weights = total + _DECAY**place * loss, weights + _DECAY**place
    return total / weights


@torch.no_grad()
def examined(heads: MedusaHeads, tokens: Tensor, texts: Texts) -> list[float]:
    """The share of greedy tokens that are kept at each place, where all before it were."""
    count = len(heads.outputs)
    kept, asked = [0] * count, [0] * count
    for batch in texts.one_by_one():
        alive = torch.ones_like(batch.wanted)
        for place in range(count):
            read, said = read_by(place, batch)
            alive &= read
            asked[place] += int(alive.sum())
            best = tokens[heads(place, batch.outputs[read]).argmax(-1)]
            is_best = torch.zeros_like(read)
            is_best[read] = best == batch.behind[said]
            alive &= is_best
            kept[place] += int(alive.sum())
    return [num / max(of, 1) for num, of in zip(kept, asked, strict=True)]


def weights_of(heads: MedusaHeads) -> list[HeadWeights]:
    """As the file has them."""

    def array(values: Tensor) -> Array:
        return values.detach().cpu().numpy().astype(np.float32)

    return [
        HeadWeights([(array(residual.weight), array(residual.bias))], array(output.weight))
        for residual, output in zip(heads.residuals, heads.outputs, strict=True)
    ]


def train(asked: argparse.Namespace) -> None:
    """Do what the command line asks for."""
    texts, examination = written_texts(asked)
    rows = target_rows(asked.target, texts)
    heads = MedusaHeads(rows, asked.heads).to(asked.device)
    Learning(heads, schedule_of(asked), asked.work / "medusa.pt").run(
        len(texts),
        lambda chosen: loss_of(heads, rows, texts.batch(chosen)),
        lambda: examined(heads, texts.known, examination),
    )
    write_medusa(asked.out, asked.target, weights_of(heads), tokens=texts.known.cpu().numpy())
    print(f"{asked.out}: {asked.out.stat().st_size / 1e6:.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    parser.add_argument("--heads", type=int, default=3)
    run(parser, train)


if __name__ == "__main__":
    main()
