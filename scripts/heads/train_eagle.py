"""Trains an EAGLE-3 head for a small target, from texts that it writes itself. An experiment.

    pip install -r scripts/demo_pair/requirements.txt
    python scripts/heads/train_eagle.py --target T.gguf --out head.gguf --minutes 10

A quarter of the time the target answers the prompts at temperature 0.8; then the head learns to
say what came, up to four tokens ahead, from what three of the target's layers read. Its
vocabulary is the tokens that the target wrote (d2t), so the prompts should be of the kind that
will be asked. The target must be of an architecture that gives its layers' inputs.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from own_texts import read_rows, write_texts
from target_file import EMBEDDING, OUTPUT, copy_tokenizer, read_number, read_tensor
from torch import Tensor, nn
from torch.nn import functional

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from demo_pair.export import add_head_header, write_tensors
from demo_pair.head import ROUND_DECAY, EagleHead, HeadShape
from demo_pair.model import Shape, conversation_mask

from localspec.checks.prompts import built_in_texts, read_prompts

_HEAD_SIZE = 64  # dimensions of an attention head
_ROUNDS = 4
_BATCH = 4  # texts that are learned from at once
_RATE = 1e-3  # of AdamW, falling
_WRITING = 0.25  # of the time


class Texts(NamedTuple):
    """One entry a text; tokens: ids (len,); rows: (len, 3 * width)."""

    tokens: list[Tensor]
    rows: list[Tensor]


def layers_of(target: Path) -> tuple[int, int, int]:
    """The layers whose inputs are read: as llama.cpp's converter chooses them."""
    count = int(read_number(target, "block_count"))
    return min(2, count - 1), count // 2, max(count - 3, 1)


def new_head(target: Path, width: int) -> EagleHead:
    """A head for the target, with its own choice of heads and the target's width."""
    shape = Shape(
        width=width,
        layers=1,
        heads=width // _HEAD_SIZE,
        hidden=2 * width,
        context=int(read_number(target, "context_length")),
        epsilon=read_number(target, "attention.layer_norm_rms_epsilon"),
    )
    head = EagleHead(shape, HeadShape(layers_of(target), shape.hidden, _ROUNDS))
    with torch.no_grad():
        head.output_norm.weight.copy_(
            torch.from_numpy(read_tensor(target, "output_norm.weight"))
        )
    return head


def batch_loss(head: EagleHead, output: nn.Linear, batch: tuple[Tensor, ...]) -> Tensor:
    """Mean loss in nats of the rounds, later ones weighing less.

    batch: rows (texts, length, 3 * width), embeddings of the tokens behind them (texts,
    length, width), numbers of those two behind them (texts, length), -1 where there are none.
    """
    rows, following, wanted = batch
    mask = conversation_mask(torch.ones(wanted.shape), torch.float32)
    total, weights = torch.zeros(()), 0.0
    for r, states in enumerate(head.rounds(rows, following, mask)):
        of_round = wanted.clone()
        of_round[:, :r] = -1  # where there was nothing to draft from
        loss = functional.cross_entropy(
            output(states).flatten(0, 1).float(), of_round.flatten(), ignore_index=-1
        )
        total, weights = total + ROUND_DECAY**r * loss, weights + ROUND_DECAY**r
    return total / weights


def batch_of(
    texts: Texts, chosen: list[int], embedding: Tensor, numbers: Tensor
) -> tuple[Tensor, ...]:
    """Some texts side by side: see `batch_loss`."""
    pad = nn.utils.rnn.pad_sequence
    rows = pad([texts.rows[n][:-2] for n in chosen], batch_first=True)
    following = pad([embedding[texts.tokens[n][1:-1]] for n in chosen], batch_first=True)
    wanted = pad(
        [numbers[texts.tokens[n][2:]] for n in chosen], batch_first=True, padding_value=-1
    )
    return rows, following, wanted


def train(
    head: EagleHead,
    output: nn.Linear,
    texts: Texts,
    embedding: Tensor,
    numbers: Tensor,
    seconds: float,
) -> None:
    """Learn until the seconds have passed."""
    weights = [*head.parameters(), *output.parameters()]
    optimiser = torch.optim.AdamW(weights, lr=_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    rng, losses, begin = np.random.default_rng(0), [], time.monotonic()
    while (spent := (time.monotonic() - begin) / seconds) < 1.0:
        chosen = rng.choice(len(texts.tokens), _BATCH).tolist()
        for group in optimiser.param_groups:
            group["lr"] = _RATE * max(0.02, 1.0 - spent)
        loss = batch_loss(head, output, batch_of(texts, chosen, embedding, numbers))
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    print(f"{len(losses)} steps; last loss {np.mean(losses[-50:]):.2f} nats")


def write_head(
    path: Path, target: Path, head: EagleHead, output: nn.Linear, tokens: Tensor
) -> None:
    """As llama.cpp's converter writes it, with the target's tokenizer; no embedding."""
    writer = gguf.GGUFWriter(path, "eagle3")
    writer.add_description("EAGLE-3 head trained by localspec's scripts/heads/train_eagle.py")
    add_head_header(writer, head, path.stem, Kind.F16)
    copy_tokenizer(writer, target)
    writer.add_tensor("d2t", tokens.numpy())
    tensors = head.state_dict() | {"output.weight": output.weight.detach()}
    write_tensors(writer, tensors, Kind.F16)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--prompts", type=Path, help="a file, one prompt a line")
    options = parser.parse_args()
    torch.manual_seed(0)
    prompts = read_prompts(options.prompts) if options.prompts else built_in_texts()
    seconds = options.minutes * 60
    written = write_texts(options.target, prompts, seconds * _WRITING)
    written = [text for text in written if len(text) > _ROUNDS + 2]
    rows = read_rows(options.target, written, layers_of(options.target))
    texts = Texts(list(map(torch.tensor, written)), list(map(torch.from_numpy, rows)))
    tokens = torch.unique(torch.cat(texts.tokens))
    print(
        f"{len(written)} texts, {sum(map(len, written))} tokens, {len(tokens)} different ones"
    )
    embedding = torch.from_numpy(read_tensor(options.target, *EMBEDDING))
    numbers = torch.full((len(embedding),), -1)
    numbers[tokens] = torch.arange(len(tokens))
    width = embedding.shape[1]
    head, output = new_head(options.target, width), nn.Linear(width, len(tokens), bias=False)
    with torch.no_grad():
        output.weight.copy_(torch.from_numpy(read_tensor(options.target, *OUTPUT))[tokens])
    train(head, output, texts, embedding, numbers, seconds * (1 - _WRITING))
    write_head(options.out, options.target, head, output, tokens)
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
