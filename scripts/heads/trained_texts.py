"""Texts of a target and their rows as tensors, some at a time."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from learning import Progress
from localspec.evaluation.prompts import built_in_texts
from own_texts import (
    Text,
    Writing,
    held_out,
    num_answered,
    prompts_of,
    read_questions,
    read_rows,
    write_texts,
)
from target_file import EMBEDDING, OUTPUT, layers_of, read_tensor


class Batch(NamedTuple):
    """Tensors of some texts, (texts, length, …), padded with 0 at their ends.

    rows: what the layers read, side by side and scaled. following: the embedding of the token
    behind. outputs: the input of the output layer there. wanted: whether it is known, that
    is in an answer. behind: the token that followed that one.
    """

    rows: Tensor
    following: Tensor
    outputs: Tensor
    wanted: Tensor
    behind: Tensor


class Texts:
    """Texts to learn from. known: ids of the tokens that the head knows, rising.

    scale: (width of the rows,) one by the root mean square of each, by which they are scaled.
    """

    def __init__(
        self, folder: Path, texts: Sequence[Text], embedding: Tensor, most: int, device: str
    ) -> None:
        self._folder = folder
        self._texts = texts
        self._device = device
        self._embedding = embedding.to(device)
        kept = folder / "known.npz"
        if not any(folder.glob("*.pt")):  # what has been learned needs those that it had
            np.savez(kept, known=_frequent(texts, most), scale=_scale(folder, texts))
        with np.load(kept) as chosen:
            self.known = torch.from_numpy(chosen["known"]).to(device)
            self.scale = torch.from_numpy(chosen["scale"]).to(device)

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def num_answered(self) -> int:
        """Tokens of the answers."""
        return sum(map(num_answered, self._texts))

    def others(self, texts: Sequence[Text]) -> Texts:
        """Other texts of the same target, for the same head."""
        same = copy(self)
        same._texts = texts
        return same

    def share_known(self) -> float:
        """How many of the answers' tokens a head knows."""
        tokens = np.concatenate([text.tokens[text.answer_at :] for text in self._texts])
        return float(np.isin(tokens, self.known.cpu().numpy()).mean())

    def one_by_one(self) -> Iterator[Batch]:
        """Each text as a batch."""
        return (self.batch([number]) for number in range(len(self._texts)))

    def batch(self, chosen: Sequence[int]) -> Batch:
        """The texts of these numbers side by side."""
        sides = zip(*(self._sides(self._texts[number]) for number in chosen), strict=True)
        padded = [nn.utils.rnn.pad_sequence(side, batch_first=True) for side in sides]
        rows, tokens, outputs, wanted, behind = (side.to(self._device) for side in padded)
        following = self._embedding[tokens]
        return Batch(rows * self.scale, following, outputs, wanted, behind)

    def _sides(self, text: Text) -> tuple[Tensor, ...]:
        kept = torch.from_numpy(np.asarray(read_rows(self._folder, text), np.float32))
        tokens = torch.tensor(text.tokens)
        wanted = torch.arange(1, len(kept)) >= text.answer_at
        return kept[:-1, :-1].flatten(1), tokens[1:-1], kept[1:, -1], wanted, tokens[2:]


def _frequent(texts: Sequence[Text], most: int) -> NDArray[np.int64]:
    """The ids of the tokens that the answers have most often, rising."""
    counts = np.bincount(np.concatenate([text.tokens[text.answer_at :] for text in texts]))
    order = np.argsort(-counts, kind="stable")[:most]
    return np.sort(order[counts[order] > 0])


def _scale(folder: Path, texts: Sequence[Text]) -> NDArray[np.float32]:
    """See `Texts`; the first token's rows, which are like no others, do not count."""
    squares = np.zeros(1)
    count = 0
    for text in texts:
        rows = np.asarray(read_rows(folder, text)[1:, :-1], np.float64)
        squares = squares + (rows.reshape(len(rows), -1) ** 2).sum(0)
        count += len(rows)
    return (1.0 / np.sqrt(squares / count + 1e-6)).astype(np.float32)


def written_texts(asked: argparse.Namespace) -> tuple[Texts, Texts]:
    """The target's texts to learn from, and those held out; missing ones are written first."""
    questions = read_questions(asked.prompts) if asked.prompts else built_in_texts()
    prompts = prompts_of(asked.target, questions)
    layers = layers_of(asked.target)
    writing = Writing(asked.target, prompts, asked.answer_tokens, layers, asked.threads)
    bar = Progress("writing ")
    written = write_texts(
        writing,
        asked.work,
        asked.tokens,
        lambda count: bar.show(count / asked.tokens, f"{count} tokens"),
    )
    learned, apart = held_out(written, len(prompts))
    embedding = torch.from_numpy(read_tensor(asked.target, *EMBEDDING))
    texts = Texts(asked.work, learned, embedding, asked.vocabulary, asked.device)
    examination = texts.others(apart)
    print(
        f"{len(texts)} texts, {texts.num_answered} tokens to learn from; a head knows "
        f"{len(texts.known)} tokens, {examination.share_known():.1%} of those held out"
    )
    return texts, examination


def target_rows(target: Path, texts: Texts) -> Tensor:
    """(tokens, width), the rows of the target's output layer that a head of the texts has."""
    rows = torch.from_numpy(read_tensor(target, *OUTPUT))
    return rows[texts.known.cpu()].to(texts.known.device)
