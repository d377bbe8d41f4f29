"""The training loop of heads: when to stop, what is kept, what is shown."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from localspec.errors import LocalspecError
from localspec.system.machine import num_usable_cores

_BAR = 24  # signs
_WARM_UP = 20  # steps
_LAST_RATE = 0.02  # share of the first
_LEAST_GAIN = 0.002  # accepted tokens a draft


class Schedule(NamedTuple):
    """How long to learn.

    minutes: of learning, with those before an interruption; None without a limit. between:
    steps from one examination to the next. patience: examinations without a gain.
    """

    steps: int
    minutes: float | None
    between: int
    patience: int
    batch: int  # texts a step
    rate: float  # of AdamW, falling

    def spent(self, step: int, seconds: float) -> float:
        """The share of the time that is over, 0 … 1."""
        by_time = seconds / (60 * self.minutes) if self.minutes else 0.0
        return min(max(step / self.steps, by_time), 1.0)


class Progress:
    """A bar on a terminal; elsewhere a line every half minute."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._shown = 0.0
        self._on_screen = sys.stderr.isatty()

    def show(self, share: float, words: str) -> None:
        """share: of the work that is done, 0 … 1."""
        now = time.monotonic()
        if share < 1.0 and now - self._shown < (0.2 if self._on_screen else 30.0):
            return
        self._shown = now
        full = round(_BAR * min(share, 1.0))
        line = f"{self._title} {'█' * full}{'·' * (_BAR - full)} {share:4.0%} {words}"
        end = "\n" if share >= 1.0 or not self._on_screen else ""
        sys.stderr.write((f"\r\x1b[K{line}" if self._on_screen else line) + end)
        sys.stderr.flush()


def tokens_a_draft(kept: Sequence[float]) -> float:
    """How many drafted tokens are accepted, from the share kept at each position."""
    return sum(accumulate(kept, mul))


class Learning:
    """Learns step by step, from where it was interrupted, and keeps the best that it was.

    path: of what is kept of an unfinished run, and of a finished one.
    """

    def __init__(self, module: nn.Module, schedule: Schedule, path: Path) -> None:
        self._module = module
        self._schedule = schedule
        self._path = path
        self._optimiser = torch.optim.AdamW(
            module.parameters(), lr=schedule.rate, betas=(0.9, 0.98), weight_decay=0.0
        )
        self._step = 0
        self._seconds = 0.0
        self._waited = 0
        self._best, self._best_weights = -math.inf, module.state_dict()
        if path.exists():
            self._load(torch.load(path, map_location="cpu", weights_only=True))

    def run(
        self,
        num_texts: int,
        loss_of: Callable[[list[int]], Tensor],
        examine: Callable[[], Sequence[float]],
    ) -> None:
        """Learn until the time is over or nothing is gained; the module is the best then.

        loss_of: of texts by number. examine: gives the share of tokens kept at each position.
        An interrupted run goes on from its last examination.
        """
        progress = Progress("learning")
        schedule = self._schedule
        if self._step == 0:
            self._examined(examine())
        while not self._is_over():
            began = time.monotonic()
            chosen = np.random.default_rng(self._step).choice(num_texts, schedule.batch)
            loss = self._learn(loss_of(chosen.tolist()))
            self._seconds += time.monotonic() - began
            spent = schedule.spent(self._step, self._seconds)
            progress.show(spent, f"step {self._step}, loss {loss:.3f}")
            if self._step % schedule.between == 0 or spent >= 1.0:
                self._examined(examine())
        self._module.load_state_dict(self._best_weights)

    def _is_over(self) -> bool:
        if self._waited >= self._schedule.patience:
            print(f"no gain in {self._waited} examinations: it has learned what it can")
            return True
        return self._schedule.spent(self._step, self._seconds) >= 1.0

    def _learn(self, loss: Tensor) -> float:
        spent = self._schedule.spent(self._step, self._seconds)
        share = min(1.0, (self._step + 1) / _WARM_UP) * max(_LAST_RATE, 1.0 - spent)
        for group in self._optimiser.param_groups:
            group["lr"] = self._schedule.rate * share
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._module.parameters(), 1.0)
        self._optimiser.step()
        self._optimiser.zero_grad()
        self._step += 1
        return loss.item()

    def _examined(self, kept: Sequence[float]) -> None:
        """Take note of an examination, and keep all on the disk."""
        gained = tokens_a_draft(kept)
        shares = " ".join(f"{share:.3f}" for share in kept)
        print(f"\nstep {self._step}: kept {shares}; {gained:.2f} tokens a draft", flush=True)
        self._waited += 1
        if gained > self._best + _LEAST_GAIN:
            self._best = gained
            self._waited = 0
            weights = self._module.state_dict()
            self._best_weights = {name: value.clone() for name, value in weights.items()}
        self._save()

    def _save(self) -> None:
        kept: dict[str, Any] = {
            "module": self._module.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "numbers": (self._step, self._seconds, self._waited, self._best),
            "best": self._best_weights,
        }
        unfinished = self._path.with_suffix(".part")
        torch.save(kept, unfinished)
        os.replace(unfinished, self._path)

    def _load(self, kept: dict[str, Any]) -> None:
        self._module.load_state_dict(kept["module"])
        self._optimiser.load_state_dict(kept["optimiser"])
        self._step, self._seconds, self._waited, self._best = kept["numbers"]
        self._best_weights = kept["best"]
        print(f"going on at step {self._step} of {self._path}")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command line's options."""
    add = parser.add_argument
    add("--target", type=Path, required=True, help="the model's GGUF file")
    add("--out", type=Path, required=True, help="the head's GGUF file")
    add("--prompts", type=Path, nargs="+", help="text files, a prompt a line, or .jsonl")
    add("--work", type=Path, help="folder of what is kept (OUT with .work)")
    add("--tokens", type=int, default=200_000, help="of answers that it learns from")
    add("--answer-tokens", type=int, default=256, help="of an answer at most")
    add("--vocabulary", type=int, default=16384, help="tokens that it knows at most")
    add("--steps", type=int, default=5000)
    add("--minutes", type=float, help="of learning at most, in all runs together")
    add("--between", type=int, default=100, help="steps from one examination to the next")
    add("--patience", type=int, default=4, help="examinations without a gain that end it")
    add("--batch", type=int, default=8, help="texts a step")
    add("--rate", type=float, default=5e-4, help="of learning")
    add("--threads", type=int, default=num_usable_cores())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    add("--device", default=device, help=f"of PyTorch ({device})")


def schedule_of(asked: argparse.Namespace) -> Schedule:
    """The schedule that the command line asks for."""
    return Schedule(
        asked.steps, asked.minutes, asked.between, asked.patience, asked.batch, asked.rate
    )


def run(parser: argparse.ArgumentParser, train: Callable[[argparse.Namespace], None]) -> None:
    """Do what the command line asks for; errors and an interruption end it with a line."""
    asked = parser.parse_args()
    asked.work = asked.work or asked.out.with_suffix(".work")
    asked.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.set_num_threads(asked.threads)
    torch.set_float32_matmul_precision("high")
    try:
        train(asked)
    except LocalspecError as error:
        parser.exit(1, f"Error: {error}\nHint: {error.hint}\n")
    except KeyboardInterrupt:
        parser.exit(130, "\nStopped. The same command goes on from what is kept.\n")
