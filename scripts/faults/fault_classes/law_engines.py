"""Whole engines of tiny files as ways to make texts of three tokens, and their exact laws."""

from __future__ import annotations

import functools
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import inside
import localspec
from fault_classes.engine_kinds import REAL, kinds_here, load_kind, made, target_alone
from fault_classes.law_cells import LENGTH, RULES, Cell, Text, law_of
from localspec.sampling.params import SamplingParams
from localspec.streaming.options import AnswerOptions
from localspec.streaming.prompt import Prompt
from reference import target_probs

PROMPT = [5 + 37 * place % 900 for place in range(12)]
_SHARP = SamplingParams(temperature=1.0, top_k=3, top_p=1.0, min_p=0.0)
OPTIONS = {
    "three tokens": _SHARP,
    "penalties": replace(_SHARP, presence_penalty=-0.7, repetition_penalty=1.2),
}
CONSTRAINTS: dict[str, dict[str, str]] = {"": {}, ", constrained": {"regex": "[a-h ]{2,9}"}}


class _TargetRows:
    """The rows of a target by itself, each text decoded anew, for the readable twin."""

    def __init__(self, engine: localspec.Engine, constraint: dict[str, str]) -> None:
        self._engine = engine
        options = AnswerOptions.of(**constraint)  # type: ignore[arg-type]
        self._constraint = inside.constraint(engine, options, Prompt(list(PROMPT)))
        self.vocab_size = inside.target(engine).vocab_size
        self._rows = functools.cache(self._row)

    def row(self, history: Sequence[int]) -> np.ndarray:
        return self._rows(tuple(history)).copy()

    def _row(self, history: Text) -> np.ndarray:
        with self._engine.exclusively() as loop:
            row = loop.target.decode(list(history), 1)[0].copy()
        if self._constraint is not None:
            state = self._constraint.copy()
            state.commit(list(history[len(PROMPT) :]))
            mask = state.mask()
            if mask is not None:
                row[~mask[: len(row)]] = -np.inf
        return row


def engine_cells(seconds: float, seed: int) -> Iterator[Cell]:
    """Kinds of files and proposers, every rule, sampling option and constraint."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", folder)  # what is learned of these is nobody's
        for number, kind in enumerate(kinds_here(seconds, seed)):
            if kind == REAL or "pictures" in kind:
                continue
            own = Path(folder) / str(number)
            own.mkdir()
            yield from _cells_of(kind, made(kind, own), seed)


def _cells_of(kind: str, keywords: dict[str, object], seed: int) -> Iterator[Cell]:
    engine = load_kind(keywords, draft_tokens=2)
    with load_kind(target_alone(keywords)) as alone:
        ways = list(itertools.product(OPTIONS.items(), CONSTRAINTS.items()))
        laws = [_law(alone, params, constraint) for (_, params), (_, constraint) in ways]
    for ((option, params), (bound, constraint)), law in zip(ways, laws, strict=True):
        for rule in RULES:
            options = AnswerOptions.of(
                sampling=params,
                rule=rule,
                max_tokens=LENGTH + 1,
                stop=[],
                **constraint,  # type: ignore[arg-type]
            )
            draw = functools.partial(_draw, engine, options, seed << 32)
            yield Cell(f"the engine: {kind}", f"{rule}, {option}{bound}", law, draw)


def _law(
    engine: localspec.Engine, params: SamplingParams, constraint: dict[str, str]
) -> dict[Text, float]:
    rows = _TargetRows(engine, constraint)
    is_end = engine.vocabulary.is_end

    def dense(text: Text) -> np.ndarray:
        return target_probs(rows, [*PROMPT, *text], params)  # type: ignore[arg-type]

    return law_of(dense, is_end)


def _draw(engine: localspec.Engine, options: AnswerOptions, first: int, number: int) -> Text:
    answer = engine.generate_raw(PROMPT, replace(options, seed=first + number))
    return answer.reply().token_ids[:LENGTH]
