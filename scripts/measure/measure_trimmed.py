"""Measures what a trimmed draft or head saves, and what it costs in acceptance.

    python scripts/measure/measure_trimmed.py draft T.gguf D.gguf D-trimmed.gguf --prompts SETS
    python scripts/measure/measure_trimmed.py head T.gguf

draft   the time of a decode of one token, trimmed ÷ whole, taking turns; with --prompts, a
        folder that has humaneval.jsonl as it is published, also acceptance over greedy answers
        of the target: the share of tokens that each draft has as its likeliest, and at
        temperature 1 the chance that a drafted token is kept (the sum of the smaller
        probabilities), of a third one, too: the whole one with the trimmed one's tokens and
        those of the text before. No load of the machine changes them.
head    the time of a drafted token at K 3 with the head's trimmed output layer ÷ with the whole
        one, choosing it included; `localspec models trim T.gguf` makes the file. The target is
        loaded twice, and steps take turns.

Prints medians of the rounds (smallest … largest).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import localspec
from localspec.engine.engine import Engine
from localspec.errors import LocalspecError
from localspec.gguf_file.check import check_model_file
from localspec.gguf_file.trimmed import num_proposed, proposed_ids
from localspec.llama.model import LlamaModel
from localspec.llama.options import LlamaOptions
from localspec.llama.trimmed import TrimmedModel
from localspec.sampling.params import SamplingParams
from side_by_side import shown

GREEDY = SamplingParams(temperature=0)
NUM_PROMPT_TOKENS = 32
DECODES = 16  # of a round
NUM_DRAFT_TOKENS = 3
ROWS = 8  # of a decode
WITH_TEXT = "trimmed, with the tokens of the text"

Probabilities = NDArray[np.float64]


def opened(path: Path, threads: int | None) -> LlamaModel:
    """The model in a file, trimmed or not."""
    header = check_model_file(path)
    options = LlamaOptions(context_length=1024, max_outputs=ROWS, num_threads=threads)
    if num_proposed(header) is None:
        return LlamaModel.open(path, options)
    return TrimmedModel.open_trimmed(header, options)


def decode_s(model: LlamaModel) -> float:
    """Seconds of a decode of one token, with its logits."""
    model.truncate(0)
    model.decode(list(range(100, 100 + NUM_PROMPT_TOKENS)), 1)
    started = time.perf_counter()
    for token in range(200, 200 + DECODES):
        model.decode([token], 1)
    return (time.perf_counter() - started) / DECODES


def probabilities(model: LlamaModel, tokens: Sequence[int], first: int) -> Probabilities:
    """At temperature 1 of each token from a place on: (n, vocabulary)."""
    model.truncate(0)
    if first > 1:
        model.decode(tokens[: first - 1], 0)
    rows = []
    for begin in range(first - 1, len(tokens) - 1, ROWS):
        part = tokens[begin : min(begin + ROWS, len(tokens) - 1)]
        rows.append(model.decode(part, len(part)).astype(np.float64))
    logits = np.concatenate(rows)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    made: Probabilities = powers / powers.sum(axis=1, keepdims=True)
    return made


def of_text(q: Probabilities, tokens: Sequence[int], ids: Sequence[int]) -> Probabilities:
    """The laws of a draft that proposes these ids, and the tokens of the text before.

    q: its own laws of the last tokens of a text, (n, vocabulary).
    """
    allowed = np.zeros(q.shape[1], dtype=bool)
    allowed[list(ids)] = True
    made, first = np.empty_like(q), len(tokens) - len(q)
    allowed[list(tokens[:first])] = True
    for place, row in enumerate(q):
        made[place] = np.where(allowed, row, 0.0)
        allowed[tokens[first + place]] = True
    made /= made.sum(axis=1, keepdims=True)
    return made


def acceptance(asked: argparse.Namespace, drafts: dict[str, LlamaModel]) -> None:
    """Print the acceptance of each draft over greedy answers of the target."""
    lines = (asked.prompts / "humaneval.jsonl").read_text("utf-8").splitlines()
    kept = {name: [0, 0.0] for name in (*drafts, WITH_TEXT)}
    ids = proposed_ids(check_model_file(asked.trimmed))
    count = 0
    target = opened(asked.target, asked.threads)
    for line in lines[:: max(1, len(lines) // asked.questions)][: asked.questions]:
        prompt = target.vocabulary.tokenize(json.loads(line)["prompt"], parse_special=False)
        target.truncate(0)
        row = target.decode(prompt, 1)[0]
        answer: list[int] = []
        while len(answer) < asked.tokens and not target.vocabulary.is_end(int(row.argmax())):
            answer.append(int(row.argmax()))
            row = target.decode(answer[-1:], 1)[0]
        if not answer:
            continue
        tokens = prompt + answer
        p = probabilities(target, tokens, len(prompt))
        count += len(answer)
        laws = {
            name: probabilities(draft, tokens, len(prompt)) for name, draft in drafts.items()
        }
        laws[WITH_TEXT] = of_text(laws["whole"], tokens, ids)
        for name, q in laws.items():
            width = min(p.shape[1], q.shape[1])
            kept[name][0] += int((q.argmax(axis=1) == answer).sum())
            kept[name][1] += float(np.minimum(p[:, :width], q[:, :width]).sum())
    print(f"\n{count} tokens of {asked.questions} answers:")
    for name, (greedy, drawn) in kept.items():
        print(f"{name}: likeliest {greedy / count:.3f}, at temperature 1 {drawn / count:.3f}")
    (whole, whole_drawn), (some, some_drawn), _ = kept.values()
    print(
        f"trimmed ÷ whole: {some / whole:.3f}, at temperature 1 {some_drawn / whole_drawn:.3f}"
    )
    target.close()


def draft(asked: argparse.Namespace) -> None:
    """Compare a draft with its trimmed file."""
    drafts = {"whole": opened(asked.whole, asked.threads)}
    drafts["trimmed"] = opened(asked.trimmed, asked.threads)
    whole, trimmed = drafts.values()
    ratios = []
    for number in range(asked.rounds):
        pair = (whole, trimmed) if number % 2 else (trimmed, whole)
        spent = {model.name: decode_s(model) for model in pair}
        ratios.append(spent[trimmed.name] / spent[whole.name])
    print(f"a token of {trimmed.name} ÷ of {whole.name}: {shown(ratios)}", flush=True)
    if asked.prompts is not None:
        acceptance(asked, drafts)


def drafted_token_s(engine: Engine, number: int) -> float:
    """Seconds of a drafted token, over an answer with K draft tokens in each step."""
    prompt = [1000 + 3 * index + number for index in range(NUM_PROMPT_TOKENS)]
    stream = engine.generate_raw(prompt, sampling=GREEDY, max_tokens=4 * DECODES)
    stats = stream.reply().stats
    return stats.draft_time_s / stats.num_draft_tokens


def head(asked: argparse.Namespace) -> None:
    """Compare a target's head with its trimmed output layer."""
    (said,) = localspec.explain(target=asked.target).trimmed or [""]
    if " is used: " not in said:
        raise SystemExit(said or f"Make the file first: localspec models trim {asked.target}")
    load = {
        "proposer": "head", "draft_tokens": NUM_DRAFT_TOKENS, "context_length": 512,
        "num_threads": asked.threads, "memory": False,
    }  # fmt: skip
    with (
        localspec.load(target=asked.target, trimmed=False, **load) as whole,
        localspec.load(target=asked.target, **load) as trimmed,
    ):
        ratios = []
        for number in range(asked.rounds):
            pair = (whole, trimmed) if number % 2 else (trimmed, whole)
            spent = {id(engine): drafted_token_s(engine, number) for engine in pair}
            ratios.append(spent[id(trimmed)] / spent[id(whole)])
    print(f"a drafted token, trimmed ÷ whole, K {NUM_DRAFT_TOKENS}: {shown(ratios)}")


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(required=True)
    for part in (draft, head):
        added = parts.add_parser(part.__name__, help=part.__doc__)
        added.set_defaults(part=part)
        added.add_argument("target", type=Path)
        added.add_argument("--rounds", type=int, default=8, help="even")
        added.add_argument("--threads", type=int, help="(default: as many as there are cores)")
        if part is draft:
            added.add_argument("whole", type=Path)
            added.add_argument("trimmed", type=Path)
            added.add_argument("--prompts", type=Path, metavar="SETS")
            added.add_argument("--questions", type=int, default=20)
            added.add_argument("--tokens", type=int, default=64, help="of each answer, at most")
    asked = parser.parse_args()
    try:
        asked.part(asked)
    except LocalspecError as error:
        parser.exit(1, f"Error: {error}\nHint: {error.hint}\n")


if __name__ == "__main__":
    main()
