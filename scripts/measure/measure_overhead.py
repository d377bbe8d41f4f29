"""Measures the cost of a step in Python, with models that cost nothing.

    python scripts/measure/measure_overhead.py

The loop, the policy, the rules and the chain are the real ones; decodes return at once.
Prints microseconds per step, median of many, for fixed numbers of draft tokens and for the
automatic policy, greedy and sampled; the second vocabulary is that of Qwen2.5 7B. The rows of
libllama's own decodes are not copied either, so nothing of an answer is left out but the decode
itself, the text and the terminal.

    python scripts/measure/measure_overhead.py --tokenizers T.gguf D.gguf TEXT

prints instead what aligning and renaming take for each token of a draft with another tokenizer,
which drafts for a text: the mean of all steps, of which each was repeated, and the quickest
counts. Of the files the vocabularies alone are read. Behind a decode the processor's caches are
empty, so the second row reads 64 MiB in each decode, which does not count.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from localspec.gguf_file.check import check_model_file
from localspec.llama.library import llama_cpp
from localspec.llama.vocabulary import LlamaVocabulary
from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.sampling.chain import SamplerChain
from localspec.sampling.distribution import Logits
from localspec.sampling.params import SamplingParams
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.own_text import OwnText
from localspec.speculative.policy_api import DraftPolicy, FixedDraftPolicy, ProposerKind
from localspec.speculative.proposers import DraftModel
from localspec.speculative.randomness import Randomness
from localspec.speculative.rules import make_rule
from localspec.speculative.shared_vocabulary import SharedVocabulary
from localspec.speculative.thread_policy import FixedThreads
from localspec.speculative.token_maps import TokenMaps
from localspec.speculative.translated import TranslatedDraft, TranslatedModel

_EMPTIED_BYTES = 64 << 20
VOCABULARIES = (4096, 152_064)
SETTINGS = {
    "greedy": SamplingParams(temperature=0),
    "default chain": SamplingParams(),
}


class InstantModel:
    """The same few rows again and again; its own time is taken off the clock."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        self.vocab_size = vocab_size
        self.context_length = 1 << 30
        self.max_outputs = 17
        self.max_rollback = 10**6
        self.num_cached = 0
        random = np.random.default_rng(seed)
        self._rows = (3.0 * random.standard_normal((17, vocab_size))).astype(np.float32)

    def decode(self, tokens: Sequence[int], num_logits: int) -> Logits:
        self.num_cached += len(tokens)
        return self._rows[:num_logits]

    def truncate(self, num_cached: int) -> None:
        self.num_cached = num_cached

    def checkpoint(self) -> None:
        """Nothing to do: it comes back to anywhere."""


def step_s(policy: DraftPolicy, params: SamplingParams, vocab_size: int, steps: int) -> float:
    """Median seconds of a step. Target and draft agree, so every token is accepted."""
    target, draft = InstantModel(vocab_size, 1), InstantModel(vocab_size, 1)
    shared = SharedVocabulary(vocab_size, vocab_size, vocab_size, ())
    proposer = DraftModel(draft, shared, lambda token: False)
    loop = SpeculativeDecoder(
        target, [proposer], policy, FixedThreads(1), None, time.perf_counter
    )
    loop.start([1, 2, 3])
    rule = make_rule(None, is_greedy=params.is_greedy, seed=None, randomness=Randomness(0))
    chain = SamplerChain(params, num_prompt_tokens=3)
    times = []
    started = time.perf_counter()
    for _ in loop.steps(Request(chain, rule, 20 * steps, lambda token: False)):
        now = time.perf_counter()
        times.append(now - started)
        started = now
        if len(times) == steps:
            break
    return statistics.median(times[steps // 10 :])


class EmptyingModel(InstantModel):
    """An instant model, but that its decodes may empty the processor's caches.

    seconds: how long they took, all together.
    """

    def __init__(self, vocab_size: int, *, empties: bool) -> None:
        super().__init__(vocab_size, 1)
        self.seconds = 0.0
        self._read = np.zeros(_EMPTIED_BYTES if empties else 0, dtype=np.uint8)

    def decode(self, tokens: Sequence[int], num_logits: int) -> Logits:
        started = time.perf_counter()
        self._read.sum()
        rows = super().decode(tokens, num_logits)
        self.seconds += time.perf_counter() - started
        return rows


def vocabulary_in(path: Path) -> LlamaVocabulary:
    """The vocabulary of a file, which stays open."""
    options = llama_cpp.llama_model_default_params()
    options.vocab_only = True
    header = check_model_file(path)
    model = llama_cpp.llama_model_load_from_file(str(header.path).encode(), options)
    pointer = llama_cpp.llama_model_get_vocab(model)
    return LlamaVocabulary(pointer, lambda: None, threading.Lock())


def translating_s(
    maps: TokenMaps, own: LlamaVocabulary, tokens: list[int], num_drafted: int, *, empties: bool
) -> list[float]:
    """Seconds of each step: a text is drafted once, with num_drafted tokens a step."""
    model = EmptyingModel(own.size, empties=empties)
    draft = TranslatedDraft(
        TranslatedModel(model, OwnText(maps, own), maps), lambda _token: False
    )
    others = maps.target_ids
    seconds, place = [], 1
    while place + num_drafted < len(tokens):
        text, kept = tokens[:place], 0
        meant = tokens[place : place + num_drafted]
        # What it cannot say it says otherwise, and is refused.
        said = [t if maps.to_own[t] >= 0 else int(others[t % len(others)]) for t in meant]
        while kept < num_drafted and said[kept] == meant[kept]:
            kept += 1
        model.seconds, started = 0.0, time.perf_counter()
        draft.state(text)
        draft.rows(text, 1)
        draft.model.checkpoint()
        for token in said[:-1]:
            draft.model.decode([token], 1)
        draft.truncate(place + kept)
        seconds.append(time.perf_counter() - started - model.seconds)
        place += kept + 1
    return seconds


def show_translating(target: Path, draft: Path, text: Path, repeats: int) -> None:
    """Print the table of a pair whose tokenizers differ."""
    theirs, own = vocabulary_in(target), vocabulary_in(draft)
    maps = TokenMaps(theirs, own)
    tokens = theirs.tokenize(text.read_text(encoding="utf-8")[:4000], parse_special=False)
    print(f"{maps.common}; {len(tokens)} tokens of text")
    print("| a drafted token | K = 1 | K = 4 | K = 8 |\n|---|---|---|---|")
    for name, empties in (("caches warm", False), ("caches emptied", True)):
        cells = []
        for k in (1, 4, 8):
            runs = [
                translating_s(maps, own, tokens, k, empties=empties) for _ in range(repeats)
            ]
            cells.append(
                f"{1e6 * statistics.mean(map(min, zip(*runs, strict=True))) / k:.0f} µs"
            )
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument(
        "--tokenizers", nargs=3, type=Path, metavar=("T.gguf", "D.gguf", "TEXT")
    )
    parser.add_argument("--repeats", type=int, default=9)
    asked = parser.parse_args()
    if asked.tokenizers:
        show_translating(*asked.tokenizers, asked.repeats)
        return
    policies = {
        "plain (K = 0)": lambda: FixedDraftPolicy(0),
        "K = 1": lambda: FixedDraftPolicy(1),
        "K = 4": lambda: FixedDraftPolicy(4),
        "automatic": lambda: AdaptiveDraftPolicy({ProposerKind.DRAFT: 0.1}, 1),
    }
    print("| vocabulary | sampling | " + " | ".join(policies) + " |")
    print("|---" * (2 + len(policies)) + "|")
    for vocab_size in VOCABULARIES:
        for name, params in SETTINGS.items():
            cells = [
                f"{1e6 * step_s(make(), params, vocab_size, asked.steps):.0f} µs"
                for make in policies.values()
            ]
            print(f"| {vocab_size} | {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
