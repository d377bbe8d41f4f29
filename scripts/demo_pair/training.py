"""Training of the target and distillation of the draft, resumable after every checkpoint."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from .dataset import LONG, SEED, Batch, Dataset
from .model import Llama, conversation_mask

SAVE_EVERY_S = 150.0
Loss = Callable[[Any, Batch], Tensor]  # of the model that learns


@dataclass(frozen=True)
class Recipe:
    """How long and how fast to learn; fractions are of the whole run."""

    steps: int
    rows: int = 8
    length: int = 512
    matrix_rate: float = 2e-3  # Muon, scaled to the size of an AdamW update
    other_rate: float = 2e-3  # AdamW, for the embedding and the norms
    decay: float = 0.01
    warm_up: float = 0.01
    cool_down: float = 0.55  # the rate falls to 2 % over this last part
    quantise_from: float = 0.82
    long_from: float = 0.3  # some batches hold rows of 2048 from here on
    long_share: float = 0.06
    long_share_at_end: float = 0.3  # in the last tenth


# The target begins as a third of its layers, which learn three times as fast, and grows once.
YOUNG_LAYERS = 8
YOUNG_RECIPE = Recipe(steps=1000, cool_down=0.2, quantise_from=2.0, long_from=2.0)
TARGET_RECIPE = Recipe(steps=1150, warm_up=0.02, cool_down=0.7)
DRAFT_RECIPE = Recipe(steps=1400, quantise_from=0.7, long_from=0.1)
HEAD_RECIPE = Recipe(steps=500, warm_up=0.02, quantise_from=2.0)


def seen_part(batch: Batch, states: Tensor) -> tuple[Tensor, Tensor]:
    """States (n, width) and targets (n,) of the positions to learn from."""
    learned = torch.from_numpy(batch.learned)
    return states[learned], torch.from_numpy(batch.targets)[learned]


def run(model: Llama, batch: Batch) -> Tensor:
    """States (rows, length, width) of a batch, in bfloat16 where that is faster."""
    mask = conversation_mask(torch.from_numpy(batch.segments), torch.bfloat16)
    return model.states(torch.from_numpy(batch.tokens), mask)


def token_losses(model: Llama, batch: Batch) -> Tensor:
    """Cross-entropy of each answer token in nats; (n,)."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states, targets = seen_part(batch, run(model, batch))
        logits = model.head(states)
    return functional.cross_entropy(logits.float(), targets, reduction="none")


def answer_loss(model: Llama, batch: Batch) -> Tensor:
    """Mean loss of the answers' tokens, weighed by their importance."""
    weights = torch.from_numpy(batch.weights)[torch.from_numpy(batch.learned)]
    return (token_losses(model, batch) * weights).sum() / weights.sum()


def held_out_loss(model: nn.Module, loss_of: Loss, batches: list[Batch]) -> float:
    """Mean loss in the held-out batches, each weighed by its number of answer tokens."""
    with torch.no_grad():
        sums = [
            (loss_of(model, batch).item() * batch.learned.sum(), batch.learned.sum())
            for batch in batches
        ]
    return sum(loss for loss, _ in sums) / sum(count for _, count in sums)


class Trainer:
    """A training run: its optimisers, progress, log and checkpoint."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        recipe: Recipe,
        checkpoint: Path,
        minutes: float,
    ) -> None:
        self.model = model
        self.recipe = recipe
        self.checkpoint = checkpoint
        self.minutes = minutes
        self.tokenizer = tokenizer
        self.step = 0
        self.tokens = 0
        self.elapsed_s = 0.0
        self.progress = 0.0
        matrices = [
            w for name, w in model.named_parameters() if w.ndim == 2 and "embd" not in name
        ]
        others = [w for name, w in model.named_parameters() if w.ndim == 1 or "embd" in name]
        self.optimisers = (
            torch.optim.Muon(
                matrices,
                lr=recipe.matrix_rate,
                weight_decay=recipe.decay,
                momentum=0.95,
                adjust_lr_fn="match_rms_adamw",
            ),
            torch.optim.AdamW(
                others, lr=recipe.other_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True
            ),
        )
        self.held_out = self._held_out()

    def _held_out(self) -> list[Batch]:
        source = Dataset(self.tokenizer, held_out=True).batches(16, 256)
        return [next(source) for _ in range(4)]

    def _rate(self) -> float:
        """The share of the full rate at this point of the run."""
        warm = min(1.0, (self.progress + 1e-4) / self.recipe.warm_up)
        left = min(1.0, (1 - self.progress) / self.recipe.cool_down)
        return warm * max(0.02, left)

    def _long_share(self) -> float:
        if self.progress < self.recipe.long_from:
            return 0.0
        if self.progress > 0.9:
            return self.recipe.long_share_at_end
        return self.recipe.long_share

    def _batches(self) -> Iterator[Batch]:
        recipe = self.recipe
        # A resumed run continues on conversations it has not seen.
        seed = SEED + 1000 * self.step
        short = Dataset(self.tokenizer, seed=seed).batches(recipe.rows, recipe.length)
        rows = max(1, recipe.rows * recipe.length // 2048)
        long = Dataset(self.tokenizer, turns=LONG, seed=seed + 1).batches(rows, 2048)
        rng = np.random.default_rng(seed)
        while True:
            yield next(long if rng.random() < self._long_share() else short)

    def _advance(self, batch: Batch, loss_of: Loss) -> float:
        scale = self._rate()
        for optimiser, rate in zip(
            self.optimisers, (self.recipe.matrix_rate, self.recipe.other_rate), strict=True
        ):
            for group in optimiser.param_groups:
                group["lr"] = rate * scale
        loss = loss_of(self.model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad()
        return loss.item()

    def train(self, loss_of: Loss) -> None:
        """Run to the end of the schedule, with a log line and a checkpoint now and then."""
        batches = self._batches()
        losses: list[float] = []
        quantised = False
        saved_s = self.elapsed_s
        while self.progress < 1.0:
            start = time.perf_counter()
            if not quantised and self.progress >= self.recipe.quantise_from:
                self.model.pretend_quantised(on=True)
                quantised = True
            batch = next(batches)
            losses.append(self._advance(batch, loss_of))
            if not math.isfinite(losses[-1]):
                raise ValueError(
                    f"the loss is {losses[-1]} at step {self.step}: lower the rate"
                )
            self.step += 1
            self.tokens += int((batch.segments > 0).sum())
            self.elapsed_s += time.perf_counter() - start
            self.progress = max(
                self.step / self.recipe.steps, self.elapsed_s / 60 / self.minutes
            )
            if self.step % 20 == 0:
                self._log(f"loss {np.mean(losses[-20:]):.4f}")
            if self.elapsed_s - saved_s > SAVE_EVERY_S or self.progress >= 1.0:
                saved_s = self.elapsed_s
                loss = held_out_loss(self.model, loss_of, self.held_out)
                self._log(f"held-out loss {loss:.4f}")
                self.save()

    def _log(self, what: str) -> None:
        done = f"{self.progress:.1%}, {self.tokens} tokens, {self.elapsed_s:.0f} s"
        print(f"step {self.step} ({done}): {what}", flush=True)

    def save(self) -> None:
        """Write the checkpoint; a broken run leaves the one before."""
        part = self.checkpoint.with_suffix(".part")
        state = {
            "model": self.model.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "step": self.step,
            "tokens": self.tokens,
            "elapsed_s": self.elapsed_s,
            "progress": self.progress,
        }
        torch.save(state, part)
        part.replace(self.checkpoint)

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one."""
        if not self.checkpoint.exists():
            return
        state = torch.load(self.checkpoint)
        self.model.load_state_dict(state["model"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self.step = state["step"]
        self.tokens = state["tokens"]
        self.elapsed_s = state["elapsed_s"]
        self.progress = state["progress"]


def distillation_loss(target: Llama) -> Loss:
    """Loss of a draft: the divergence from the target's probabilities over the answers."""

    def loss(model: Llama, batch: Batch) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with torch.no_grad():
                wanted = target.head(seen_part(batch, run(target, batch))[0])
            logits = model.head(seen_part(batch, run(model, batch))[0])
        wanted_log = wanted.float().log_softmax(-1)
        log = logits.float().log_softmax(-1)
        return functional.kl_div(log, wanted_log, reduction="batchmean", log_target=True)

    return loss
