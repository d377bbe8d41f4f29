"""Makes the demo's files: corpus, tokenizer, target, draft, EAGLE-3 head.

    python scripts/demo_pair/make.py --out localspec/demo [--minutes N]

Every stage leaves its result in the build folder and is skipped when that is there, so a run
that was stopped goes on where it was. `--minutes` shortens (or bounds) the training.
"""

import argparse
import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from demo_pair import dataset, tokenizer
from demo_pair.corpus.conversation import conversation_at
from demo_pair.export import export, export_head
from demo_pair.head import HEAD, EagleHead, head_loss
from demo_pair.model import DRAFT, TARGET, Llama
from demo_pair.training import (
    DRAFT_RECIPE,
    HEAD_RECIPE,
    TARGET_RECIPE,
    YOUNG_LAYERS,
    YOUNG_RECIPE,
    Loss,
    Recipe,
    Trainer,
    answer_loss,
    distillation_loss,
)

TOKENIZER_TEXTS = 40_000
DRAFT_SHARE = 0.15  # of the minutes
HEAD_SHARE = 0.15
YOUNG_SHARE = 0.3  # of the target's
MAX_BYTES = 15_000_000


def make_tokenizer(build: Path) -> Tokenizer:
    """Train the tokenizer on part of the corpus, or load it."""
    path = build / "tokenizer.json"
    if not path.exists():
        indices = (i for i in range(TOKENIZER_TEXTS) if i % dataset.HELD_OUT_EVERY)
        texts = (dataset.render(conversation_at(dataset.SEED, i)) for i in indices)
        tokenizer.train(texts).save(str(path))
    return tokenizer.load(path)


def learn(
    model: nn.Module,
    words: Tokenizer,
    recipe: Recipe,
    checkpoint: Path,
    minutes: float,
    loss: Loss = answer_loss,
) -> None:
    """Train a model on the corpus to the end of its schedule."""
    trainer = Trainer(model, words, recipe, checkpoint, minutes)
    trainer.resume()
    trainer.train(loss)


def make_target(build: Path, words: Tokenizer, minutes: float) -> Llama:
    """Train some of the target's layers, then all of them, to the end of the schedules."""
    young = Llama(replace(TARGET, layers=YOUNG_LAYERS))
    learn(young, words, YOUNG_RECIPE, build / "young.pt", minutes * YOUNG_SHARE)
    model = Llama(TARGET)
    model.grow(young)
    learn(model, words, TARGET_RECIPE, build / "target.pt", minutes * (1 - YOUNG_SHARE))
    model.bake_quantised()
    return model.eval()


def make_draft(build: Path, words: Tokenizer, target: Llama, minutes: float) -> Llama:
    """Distil the draft from the finished target."""
    model = Llama(DRAFT)
    model.begin_like(target)
    loss = distillation_loss(target)
    learn(model, words, DRAFT_RECIPE, build / "draft.pt", minutes, loss)
    model.bake_quantised()
    return model.eval()


def make_head(build: Path, words: Tokenizer, target: Llama, minutes: float) -> EagleHead:
    """Distil the EAGLE-3 head from the finished target."""
    head = EagleHead(target.shape, HEAD)
    loss = partial(head_loss, target=target)
    learn(head, words, HEAD_RECIPE, build / "head.pt", minutes, loss)
    return head.eval()


def write_pair(out: Path, words: Tokenizer, target: Llama, draft: Llama) -> None:
    """Both files."""
    out.mkdir(parents=True, exist_ok=True)
    for role, model in (("target", target), ("draft", draft)):
        export(model, words, out / f"{role}.gguf", name=f"localspec demo {role}")


def write_head(out: Path, words: Tokenizer, head: EagleHead) -> None:
    """The head's file; all together must be small enough for the wheel."""
    path = out / "head.gguf"
    export_head(head, words, path, name="localspec demo head")
    size = sum(path.stat().st_size for path in out.glob("*.gguf"))
    if size > MAX_BYTES:
        raise ValueError(f"the files take {size} bytes, more than {MAX_BYTES}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="folder for target.gguf, head.gguf and draft.gguf",
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="bound on the training time"
    )
    parser.add_argument(
        "--build", type=Path, default=Path("build/demo_pair"), help="folder for checkpoints"
    )
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    options.build.mkdir(parents=True, exist_ok=True)
    words = make_tokenizer(options.build)
    target = make_target(options.build, words, options.minutes * (1 - HEAD_SHARE - DRAFT_SHARE))
    draft = make_draft(options.build, words, target, options.minutes * DRAFT_SHARE)
    write_pair(options.out, words, target, draft)
    head = make_head(options.build, words, target, options.minutes * HEAD_SHARE)
    write_head(options.out, words, head)


if __name__ == "__main__":
    main()
