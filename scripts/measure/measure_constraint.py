"""Measures the cost of a constraint, and the gain of its forced tokens without a draft model.

    python scripts/measure/measure_constraint.py --vocabulary qwen2.gguf --target 0.5B

masks    of a vocabulary (any GGUF file that has one): a row's mask; and what a constraint adds
         to a step of K drafted tokens: masks, checks and distributions against the plain
         chain's of the same rows
forced   a file of that shape is made, whose words spell JSON with fixed keys where the masks
         let them; answers with what is forced proposed take turns with plain ones of the same
         constraint. Each decode is done once more by itself right after its step: that is v(n)
         of the lengths of the forced runs, and what can be had at most

Prints medians (smallest … largest).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from side_by_side import shown

import localspec
from localspec.constraints.guidance import Guide
from localspec.constraints.spec import ConstraintSpec, schema_text
from localspec.constraints.spelling import Spelling
from localspec.engine.engine import Engine
from localspec.llama.library import llama_cpp
from localspec.llama.vocabulary import LlamaVocabulary
from localspec.sampling.chain import SamplerChain
from localspec.sampling.constraint import Constraint
from localspec.sampling.params import SamplingParams
from localspec.speculative.loop import Request
from localspec.speculative.metrics import Step
from localspec.speculative.model import Model
from localspec.speculative.policy_api import FixedDraftPolicy, ProposerKind
from localspec.speculative.randomness import Randomness
from localspec.speculative.rules import make_rule
from localspec.streaming.options import AnswerOptions
from localspec.streaming.prompt import Prompt
from shape_pair.blocks import fitting, head_kind
from shape_pair.model_file import Contents, Parts, write_model
from shape_pair.shapes import SHAPES
from shape_pair.vocabulary import WordList, invent
from shape_pair.weights import make_ends

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["friend", "colleague", "relative"]},
        "born": {"type": "string", "format": "date"},
        "notes": {"type": "array", "items": {"type": "string", "maxLength": 80}},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "number": {"type": "number"}},
            "required": ["street", "number"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "kind", "born", "notes", "address"],
    "additionalProperties": False,
}
SCHEMAS = {"a person": PERSON, "any object": {"type": "object"}}
NUM_KEYS, NUM_VALUES, WORDS_PER_KEY = 12, 4, 7
_BEST_LOGIT = 25.0


def micros(seconds: Sequence[float]) -> str:
    """Median, 95th percentile and largest, in µs."""
    ordered = sorted(seconds)
    middle, high = ordered[len(ordered) // 2], ordered[len(ordered) * 95 // 100]
    return f"{1e6 * middle:8.0f} {1e6 * high:8.0f} {1e6 * ordered[-1]:8.0f}"


def masks(path: Path, num_answers: int) -> None:
    """Print the cost of masks, and what a constraint adds to the cost of steps."""
    options = llama_cpp.llama_model_default_params()
    options.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
    pointer = llama_cpp.llama_model_get_vocab(model)
    vocabulary = LlamaVocabulary(pointer, lambda: None, threading.Lock())
    started = time.perf_counter()
    spelling = Spelling(vocabulary, vocabulary.size)
    guide = Guide(spelling)
    made_s = time.perf_counter() - started
    print(f"{vocabulary.size} tokens; read for constraints in {made_s:.2f} s")
    print(f"{'µs':<34}   median      95%  largest")
    for name, schema in SCHEMAS.items():
        asked = ConstraintSpec("json_schema", schema_text(schema))
        times = _mask_times(guide.constraint(asked), num_answers)
        print(f"{'a mask, ' + name:<34} {micros(times)}")
        for k in (0, 1, 4):
            plain, constrained = _step_times(guide, asked, k, num_answers)
            added = [ours - bare for ours, bare in zip(constrained, plain, strict=True)]
            print(f"{f'K {k}: the chain alone, {name}':<34} {micros(plain)}")
            print(f"{f'K {k}: with the constraint':<34} {micros(constrained)}")
            print(f"{f'K {k}: added':<34} {micros(added)}")


def _said(constraint: Constraint, random: np.random.Generator) -> int | None:
    """An allowed token, more often a short one; None after the end."""
    mask = constraint.mask()
    if mask is None or constraint.is_done:
        return None
    allowed = mask.nonzero()[0]
    return int(random.choice(allowed[: max(1, len(allowed) // 20)]))


def _mask_times(fresh: Constraint, num_answers: int) -> list[float]:
    random = np.random.default_rng(0)
    times = []
    for _ in range(num_answers):
        constraint = fresh.copy()
        for _ in range(60):
            started = time.perf_counter()
            constraint.mask()
            times.append(time.perf_counter() - started)
            token = _said(constraint, random)
            if token is None:
                break
            constraint.commit([token])
    return times


def _step_times(
    guide: Guide, asked: ConstraintSpec, k: int, num_answers: int
) -> tuple[list[float], list[float]]:
    """Of steps with K drafted tokens that fit: the plain chain's, and with the constraint."""
    random = np.random.default_rng(1)
    size = guide.spelling.num_logits
    rows = random.normal(0.0, 2.5, (k + 1, size)).astype(np.float32)
    plain, constrained = [], []
    for _ in range(num_answers):
        free = SamplerChain(SamplingParams(), num_prompt_tokens=1)
        chain = SamplerChain(
            SamplingParams(), num_prompt_tokens=1, constraint=guide.constraint(asked)
        )
        text = [0]
        for _ in range(60 // (k + 1)):
            assert chain.constraint is not None
            ahead, drafted = chain.constraint.copy(), []
            while len(drafted) <= k and (token := _said(ahead, random)) is not None:
                ahead.commit([token])
                drafted.append(token)
            if len(drafted) <= k:
                break
            started = time.perf_counter()
            free.distributions(rows, text, drafted[:k])
            between = time.perf_counter()
            chain.constraint.forced()
            chain.num_allowed(drafted[:k])
            chain.distributions(rows, text, drafted[:k])
            chain.commit(drafted)
            constrained.append(time.perf_counter() - between)
            plain.append(between - started)
            text += drafted
    return plain, constrained


class Written(NamedTuple):
    """A schema of fixed keys, and what follows each token of the JSON that fits it."""

    schema: dict[str, object]
    followers: dict[str, list[str]]


def fixed_keys(words: WordList) -> Written:
    """Keys of a syllable and words, each value one of a few syllables."""
    space = words.texts[words.words[0]][0]  # how a word's is written
    syllables = [text for text in words.texts[256:] if text[0] != space and len(text) == 2]
    firsts, values = syllables[:NUM_KEYS], syllables[NUM_KEYS : NUM_KEYS + NUM_VALUES]
    followers = {'"': [*firsts, *values, ":", ",", "}"], "{": ['"'], ":": [space]}
    followers |= {",": [space], space: ['"'], **{value: ['"'] for value in values}}
    keys = []
    for number, first in enumerate(firsts):
        begin = number * WORDS_PER_KEY
        chain = [words.texts[i] for i in words.words[begin : begin + WORDS_PER_KEY]]
        followers |= {a: [b] for a, b in zip([first, *chain], [*chain, '"'], strict=True)}
        keys.append("".join([first, *chain]).replace(space, " "))
    return Written(
        {
            "type": "object",
            "properties": {key: {"enum": values} for key in keys},
            "required": keys,
            "additionalProperties": False,
        },
        followers,
    )


def writer_of_json(name: str, folder: Path) -> tuple[Path, Written]:
    """The file of that shape, made if it is not there, and the schema that it writes."""
    shape = SHAPES[name]
    words = invent(shape.num_ordinary)
    written = fixed_keys(words)
    path = folder / f"{name}-Q4_0-json.gguf"
    if path.exists():
        return path, written
    folder.mkdir(parents=True, exist_ok=True)
    ids = {text: token for token, text in enumerate(words.texts)}
    size = max(map(len, written.followers.values()))
    table = (np.arange(shape.vocab_size)[:, None] + 1 + np.arange(size)) % shape.num_ordinary
    end = words.texts.index("}"), shape.num_ordinary + 2  # the end of the turn
    for text, next_texts in written.followers.items():
        first = [ids[each] for each in next_texts]
        others = [token for token in range(300, 300 + 2 * size) if token not in first]
        table[ids[text]] = (first + others)[:size]
    table[end[0], 0] = end[1]
    logits = np.full(size, _BEST_LOGIT) - 0.2 * np.arange(size)
    kind = fitting(head_kind("Q4_0"), shape.width)
    ends = make_ends(1, kind, shape.width, shape.vocab_size, logits, lambda ids: table[ids])
    write_model(path, Contents(shape, "Q4_0", Parts.TRUNK), words, ends, 1)
    return path, written


class Round(NamedTuple):
    """Seconds of an answer, of its target's decodes by themselves, and its steps."""

    own_s: float
    decodes_s: float
    steps: list[Step]


def answered(engine: Engine, options: AnswerOptions, kinds: Sequence[ProposerKind]) -> Round:
    """One greedy answer; each of its decodes is done once more, alone."""
    prompt = [1000, 1003, engine.tokenize("{")[0]]
    rule = make_rule(None, is_greedy=True, seed=None, randomness=Randomness(0))
    with engine.exclusively() as loop:
        loop.start(prompt)
        chain = SamplerChain(
            SamplingParams(temperature=0),
            num_prompt_tokens=len(prompt),
            constraint=engine._constraint(options, Prompt(prompt)),
        )
        request = Request(chain, rule, 400, engine.vocabulary.is_end, kinds)
        own_s, decodes_s, steps = 0.0, 0.0, []
        for step in loop.steps(request):
            if step.num_cached >= len(prompt):  # behind the prompt
                own_s += step.draft_time_s + step.target_time_s + step.sampler_time_s
                decodes_s += _alone_s(loop.target, loop.tokens, step)
                steps.append(step)
    return Round(own_s, decodes_s, steps)


def _alone_s(target: Model, tokens: list[int], step: Step) -> float:
    """The step's decode by itself; the cache is afterwards what it was."""
    kept, size = target.num_cached, step.num_target_tokens
    target.truncate(step.num_cached)
    batch = tokens[step.num_cached : step.num_cached + size]
    batch += batch[-1:] * (size - len(batch))
    started = time.perf_counter()
    target.decode(batch, size)
    seconds = time.perf_counter() - started
    target.truncate(kept)
    return seconds


def forced(path: Path, written: Written, num_rounds: int) -> None:
    """Print what forced tokens gain, and what they could at most."""
    options = AnswerOptions(json_schema=written.schema)
    with localspec.load(target=path, memory=False) as engine:
        reached, speedups, possible, shares = [], [], [], []
        for _ in range(num_rounds):
            engine._draft_policy = FixedDraftPolicy(16)
            ours = answered(engine, options, [ProposerKind.FORCED])
            engine._draft_policy = FixedDraftPolicy(0)
            plain = answered(engine, options, [])
            tokens = [token for step in ours.steps for token in step.tokens]
            assert tokens == [token for step in plain.steps for token in step.tokens]
            reached.append(ours.decodes_s / ours.own_s)
            speedups.append(plain.own_s / ours.own_s)
            shares.append(sum(step.target_time_s for step in ours.steps) / ours.own_s)
            possible.append(plain.decodes_s / ours.decodes_s)
        drafted = sum(step.num_draft_tokens for step in ours.steps)
        accepted = sum(step.num_accepted for step in ours.steps)
        print(
            f"{len(tokens)} tokens in {len(ours.steps)} steps; forced and kept {accepted} of "
            f"{drafted}; {1000 * statistics.mean(s.target_time_s for s in plain.steps):.1f} ms "
            "a plain step"
        )
        print(f"by v(n) and the runs, times as fast as plain: {shown(possible)}")
        print(f"measured, times as fast as plain:             {shown(speedups)}")
        print(f"of what the decodes alone allow:              {shown(reached)}")
        print(f"the target's share of the answer's time:      {shown(shares)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocabulary", type=Path, help="a GGUF file, whose masks are timed")
    parser.add_argument("--target", choices=SHAPES, help="a shape that is to write JSON")
    parser.add_argument("--out", type=Path, default=Path("pairs"), help="folder of its file")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    if asked.vocabulary is not None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        masks(asked.vocabulary, 4 * asked.rounds)
    if asked.target is not None:
        path, written = writer_of_json(asked.target, asked.out)
        print(json.dumps(written.schema)[:90], "…")
        forced(path, written, asked.rounds)


if __name__ == "__main__":
    main()
