"""The figures and transcripts of a finished pair, line by line as they are found."""

from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer

from . import evaluation, parity, topics
from .dataset import Dataset
from .export import export_exact
from .head import EagleHead, head_acceptance
from .model import Llama
from .visitors import CONVERSATIONS

_USUAL = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
_ROLES = ("target", "draft")


def head_lines(words: Tokenizer, target: Llama, head: EagleHead) -> Iterator[str]:
    """Acceptance of the head's rounds, as PyTorch computes them."""
    source = Dataset(words, held_out=True).batches(8, 512)
    batches = [next(source) for _ in range(6)]
    for temperature in (0.0, 0.8, 1.0):
        rates = head_acceptance(head, target, batches, temperature)
        listed = ", ".join(f"{rate:.3f}" for rate in rates)
        yield f"head, temperature {temperature}: {listed}"


def parity_lines(build: Path, words: Tokenizer, models: tuple[Llama, Llama]) -> Iterator[str]:
    """Ids and logits of float32 files against the tokenizer and PyTorch."""
    texts = parity.held_out_texts(300)
    for role, model in zip(_ROLES, models, strict=True):
        path = build / f"{role}-parity.gguf"
        export_exact(model, words, path)
        file = parity.open_gguf(path, exact=True)
        yield f"{role}: {parity.check_tokens(file, words, texts)} lines with equal ids"
        worst, same = parity.logit_difference(file, model, words, texts[:40])
        yield f"{role}: logits differ by at most {worst:.4f}, equal argmax {same:.4%}"


def loss_lines(out: Path, build: Path, words: Tokenizer) -> Iterator[str]:
    """Held-out losses before and after quantisation."""
    texts = parity.held_out_texts(300)
    for role in _ROLES:
        for path in (build / f"{role}-f32.gguf", out / f"{role}.gguf"):
            loss = evaluation.file_loss(parity.open_gguf(path), words, texts)
            yield f"{path.name}: held-out loss {loss:.4f}"


def acceptance_lines(out: Path, words: Tokenizer, count: int = 150) -> Iterator[str]:
    """Acceptance of the draft at three temperatures, without filters."""
    target, draft = (parity.open_gguf(out / f"{role}.gguf") for role in _ROLES)
    for temperature in (0.0, 0.8, 1.0):
        found = evaluation.acceptance(target, draft, words, temperature, count)
        yield f"temperature {temperature}: {found.rate:.3f} over {found.num_tokens} tokens"


def speed_lines(out: Path) -> Iterator[str]:
    """Time of a single-token decode with one and two threads."""
    for threads in (1, 2):
        target, draft = (evaluation.decode_ms(out / f"{role}.gguf", threads) for role in _ROLES)
        yield f"{threads} threads: target {target:.2f} ms, draft {draft:.2f} ms a token"


def topic_lines(out: Path) -> Iterator[str]:
    """Right answers topic by topic."""
    return topics.topic_lines(parity.open_gguf(out / "target.gguf"))


def transcript_lines(out: Path) -> Iterator[str]:
    """What strangers would type, and what the target answers."""
    target = parity.open_gguf(out / "target.gguf")
    for sampling in ({"temperature": 0.0}, _USUAL):
        yield f"\n== {sampling}"
        for system, questions in CONVERSATIONS:
            yield "\n" + evaluation.transcript(target, list(questions), sampling, system)
