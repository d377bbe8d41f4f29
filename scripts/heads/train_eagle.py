"""Trains an EAGLE-3 head for a model of your own, from answers that it writes itself.

    pip install -r scripts/demo_pair/requirements.txt
    python scripts/heads/train_eagle.py --target T.gguf --out head.gguf --prompts mine.txt

The target answers the prompts, greedily and at temperature 0.8 in turn, many at once; then the
head learns to say what the target would say, some tokens ahead, from what three of its layers
read. A tenth of the prompts are held out: by them it is examined, and what was best is written
to --out. It stops when nothing is gained any more.

All is kept in a folder beside --out: the same command goes on where it was interrupted, and
with larger numbers where it was finished. The head knows the tokens that the answers use most,
so the prompts should be of the kind that will be asked.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import gguf
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor
from torch.nn import functional

from learning import Learning, add_options, run, schedule_of
from target_file import copy_tokenizer, layers_of, read_number, read_tensor, require_layers
from trained_texts import Batch, Texts, target_rows, written_texts

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from demo_pair.export import add_head_header, write_tensors
from demo_pair.head import ROUND_DECAY, EagleHead, HeadShape, later
from demo_pair.model import Shape

_HEAD_SIZE = 64  # dimensions of an attention head
_NEAR = 1.5  # times the usual first weights: a place attends to itself most
_RIDGE = 1e-3  # of the mean square of an input
KINDS = {"f16": Kind.F16, "q8_0": Kind.Q8_0}


def new_head(target: Path, rounds: int) -> EagleHead:
    """A head for the target, with its own choice of heads and the target's width."""
    first, middle, last = layers_of(target)
    norm = torch.from_numpy(read_tensor(target, "output_norm.weight"))
    width = len(norm)
    shape = Shape(
        width=width,
        layers=1,
        heads=width // _HEAD_SIZE,
        hidden=2 * width,
        context=int(read_number(target, "context_length")),
        epsilon=read_number(target, "attention.layer_norm_rms_epsilon"),
    )
    head = EagleHead(shape, HeadShape((first, middle, last), shape.hidden, rounds))
    with torch.no_grad():
        head.output_norm.weight.copy_(norm)
    return head


@torch.no_grad()
def first_guess(head: EagleHead, texts: Texts) -> None:
    """Begin where least squares lead: a linear guess, from the rows and the token behind them.

    The former's part is `fc`; the latter's goes through the attention, in which a place first
    sees mostly itself. The guess is what the output's norm is to be given.
    """
    width = head.target.width
    block = head.blk[0]
    device = texts.scale.device
    products = torch.zeros(4 * width, 4 * width, device=device)
    answers = torch.zeros(4 * width, width, device=device)
    for batch in texts.one_by_one():
        inputs = torch.cat((batch.rows, block.attn_norm(batch.following)), -1)[batch.wanted]
        found = batch.outputs[batch.wanted] / head.output_norm.weight
        products += inputs.T @ inputs
        answers += inputs.T @ found
    products = products.cpu().double()
    products.diagonal().add_(_RIDGE * products.diagonal().mean())
    guess = torch.linalg.solve(products, answers.cpu().double()).T.float()
    head.fc.weight.copy_(guess[:, : 3 * width])
    block.attn_q.weight.mul_(_NEAR)
    block.attn_k.weight.copy_(block.attn_q.weight)
    block.attn_v.weight.copy_(torch.eye(width, 2 * width))
    block.attn_output.weight.copy_(guess[:, 3 * width :])
    block.ffn_down.weight.zero_()


def rounds_of(head: EagleHead, batch: Batch) -> list[Tensor]:
    """Normed states (texts, length, width) of each round."""
    length = batch.wanted.shape[1]
    mask = torch.full((1, 1, length, length), float("-inf"), device=batch.rows.device).triu(1)
    return list(head.rounds(batch.rows, batch.following, mask))


def loss_of(head: EagleHead, output: Tensor, batch: Batch) -> Tensor:
    """Mean cross-entropy in nats with the target's laws; later rounds weigh less.

    output: (tokens, width), the target's rows of the tokens that the head knows.
    """
    with torch.no_grad():
        laws = functional.linear(batch.outputs[batch.wanted], output).softmax(-1)
    places = torch.full(batch.wanted.shape, -1, device=laws.device)
    places[batch.wanted] = torch.arange(len(laws), device=laws.device)
    total = torch.zeros((), device=laws.device)
    weights = 0.0
    for r, states in enumerate(rounds_of(head, batch)):
        learned = batch.wanted.clone()
        learned[:, :r] = False  # there was nothing to draft from
        logits = functional.linear(states[learned], output)
        loss = functional.cross_entropy(logits, laws[places[learned]])
        total = total + ROUND_DECAY**r * loss
        weights = weights + ROUND_DECAY**r
    return total / weights


@torch.no_grad()
def examined(head: EagleHead, output: Tensor, tokens: Tensor, texts: Texts) -> list[float]:
    """The share of greedy tokens that are kept at each place, where all before it were."""
    kept = [0] * head.shape.rounds
    asked = [0] * head.shape.rounds
    for batch in texts.one_by_one():
        alive = batch.wanted
        for r, states in enumerate(rounds_of(head, batch)):
            best = tokens[functional.linear(states, output).argmax(-1)]
            alive = alive & batch.wanted
            alive[:, :r] = False
            asked[r] += int(alive.sum())
            alive = alive & (best == batch.behind)
            kept[r] += int(alive.sum())
            alive = later(alive[..., None].float(), 1)[..., 0] > 0
    return [num / max(of, 1) for num, of in zip(kept, asked, strict=True)]


def write_head(
    path: Path, target: Path, head: EagleHead, texts: Texts, output: Tensor, kind: Kind
) -> None:
    """Write the file as llama.cpp's converter does; it has no embedding."""
    writer = gguf.GGUFWriter(path, "eagle3")
    writer.add_description("EAGLE-3 head trained by localspec's scripts/heads/train_eagle.py")
    add_head_header(writer, head, path.stem, kind)
    copy_tokenizer(writer, target)
    writer.add_tensor("d2t", texts.known.cpu().numpy())
    tensors = {name: value.cpu() for name, value in head.state_dict().items()}
    tensors["fc.weight"] = tensors["fc.weight"] * texts.scale.cpu()
    write_tensors(writer, tensors | {"output.weight": output.cpu()}, kind)


def train(asked: argparse.Namespace) -> None:
    """Do what the command line asks for."""
    require_layers(asked.target)
    texts, examination = written_texts(asked)
    output = target_rows(asked.target, texts)
    head = new_head(asked.target, asked.rounds).to(asked.device)
    kept = asked.work / "eagle.pt"
    if not kept.exists():
        first_guess(head, texts)
    Learning(head, schedule_of(asked), kept).run(
        len(texts),
        lambda chosen: loss_of(head, output, texts.batch(chosen)),
        lambda: examined(head, output, texts.known, examination),
    )
    write_head(asked.out, asked.target, head, texts, output, KINDS[asked.type])
    print(f"{asked.out}: {asked.out.stat().st_size / 1e6:.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    add = parser.add_argument
    add("--rounds", type=int, default=4, help="tokens ahead that it learns to draft")
    add("--type", choices=KINDS, default="q8_0", help="of its matrices")
    run(parser, train)


if __name__ == "__main__":
    main()
