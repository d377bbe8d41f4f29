"""How many texts are the same, token by token, as plain decoding's.

    python scripts/measure/count_identical.py T.gguf --draft D.gguf --exact humaneval.jsonl

Files of prompts are JSON lines as they are published: HumanEval (prompt), MT-bench (turns; the
first counts), GSM8K (question). Each prompt is answered by the target alone with one thread,
and by the pair with two, greedily and with a seed at temperature 0.8, with 1, 2, 4, 8 draft
tokens and an automatic number. Before that the pair starts the answer and leaves it: every
other time after 50 ms, while a longer prompt is read, else after its first token. So prompts
are read whole, in part, and not at all.

With --memory TEXT… an engine without a memory, and without a draft, answers instead, and then
one that remembers these files, all earlier answers and every other time this very one.
"""

from __future__ import annotations

import argparse
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import localspec

NUMS_DRAFT_TOKENS = (1, 2, 4, 8, None)
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 0.8, "seed": 7},
}


def read_prompts(path: Path, count: int) -> list[str]:
    """The first prompts of a file."""
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()[:count]]
    return [line.get("prompt") or line.get("question") or line["turns"][0] for line in lines]


def start_and_leave(
    engine: localspec.Engine, prompt: str, *, cancels: bool, **options: Any
) -> None:
    """Start an answer; leave it after 50 ms, or after its first token."""
    with engine.generate(prompt, **options) as answer:
        timer = threading.Timer(0.05, answer.cancel)
        if cancels:
            timer.start()
        next(answer, None)
        timer.cancel()


def count_remembering(
    common: dict[str, Any], prompts: list[str], texts: list[Path], max_tokens: int
) -> None:
    """Print how many texts are the same with an empty and with a full memory."""
    same: Counter[str] = Counter()
    num_accepted = 0
    with (
        localspec.load(**common, memory=False) as empty,
        localspec.load(**common) as full,
    ):
        for path in texts:
            full.remember(path.read_text("utf-8"))
        for number, prompt in enumerate(prompts):
            for name, sampling in ASKED.items():
                options = {"max_tokens": max_tokens, **sampling}
                expected = empty.generate(prompt, **options).reply().token_ids
                if number % 2:
                    full.remember(expected)
                reply = full.generate(prompt, **options).reply()
                same[name] += reply.token_ids == expected
                num_accepted += sum(reply.stats.accepted_per_position)
        print(f"exact: {full.exactness}; {num_accepted} tokens were drafted and kept")
    for name, number in same.items():
        print(f"{name}, an empty and a full memory: {number} of {len(prompts)}")


def main() -> None:
    """Count for the models that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target")
    parser.add_argument("prompts", nargs="+", type=Path)
    parser.add_argument("--draft")
    parser.add_argument("--memory", nargs="+", type=Path, metavar="TEXT")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--prompts-per-file", type=int, default=10)
    parser.add_argument("--max-tokens", type=int, default=48)
    asked = parser.parse_args()
    prompts = [p for path in asked.prompts for p in read_prompts(path, asked.prompts_per_file)]
    common = {"target": asked.target, "exact": asked.exact, "context_length": 2048}
    if asked.memory:
        count_remembering(common, prompts, asked.memory, asked.max_tokens)
        return
    same: Counter[tuple[str, int | None]] = Counter()
    with (
        localspec.load(**common, draft_tokens=0, num_threads=1) as plain,
        localspec.load(**common, draft=asked.draft, num_threads=2) as pair,
    ):
        for number, prompt in enumerate(prompts):
            for name, sampling in ASKED.items():
                options = {"max_tokens": asked.max_tokens, **sampling}
                expected = plain.generate(prompt, **options).reply().token_ids
                start_and_leave(pair, prompt, cancels=bool(number % 2), **options)
                for count in NUMS_DRAFT_TOKENS:
                    reply = pair.generate(prompt, draft_tokens=count, **options).reply()
                    same[name, count] += reply.token_ids == expected
        print(f"exact: {pair.exactness}; {len(prompts)} prompts")
    for (name, count), number in same.items():
        print(f"{name}, {count or 'automatic'} draft tokens: {number} of {len(prompts)}")


if __name__ == "__main__":
    main()
