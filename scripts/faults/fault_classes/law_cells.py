"""Ways to make a text of three tokens, each with the law that it has to follow.

Of the rules by themselves, on made rows, and of the loop with every proposer, over tables of a
few tokens (tests/toy.py).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from test_constraint_law import no_two_in_a_row
from test_translated import AB, OTHER, translated

from localspec.policy.adaptive import AdaptiveDraftPolicy
from localspec.sampling.chain import SamplerChain
from localspec.sampling.distribution import Distribution
from localspec.sampling.params import SamplingParams
from localspec.speculative.blocks import Blocks
from localspec.speculative.forced import Forced
from localspec.speculative.heads import Head
from localspec.speculative.lookup import Lookup
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.medusa import Medusa
from localspec.speculative.memory import TextMemory
from localspec.speculative.policy_api import DraftPolicy, FixedDraftPolicy, ProposerKind
from localspec.speculative.proposers import DraftModel, Proposal, Proposer
from localspec.speculative.randomness import Randomness
from localspec.speculative.rule_name import RuleName
from localspec.speculative.rules import StepStart, make_rule
from localspec.speculative.thread_policy import FixedThreads
from reference import target_probs
from test_loop_distribution import BANNED, FILTERED, PENALISED, UNFILTERED
from toy import TableBlocks, TableHead, TableModel, TableRowHeads, all_shared
from toy_constraint import ToyConstraint

Text = tuple[int, ...]
Rows = Callable[[Text], Distribution]  # of the next token, behind a text

LENGTH = 3
PROMPT = [1, 0, 1, 1, 0]  # repeats, so that a lookup finds something
RULES: tuple[RuleName, ...] = ("token", "block", "coupled")
OPTIONS = {
    "no cuts": UNFILTERED,
    "cuts": FILTERED,
    "penalties": PENALISED,
    "a ban": BANNED,
    "a cold draw": replace(UNFILTERED, temperature=0.4),
    "typical, sigma, DRY": replace(
        UNFILTERED,
        typical_p=0.9,
        top_n_sigma=1.5,
        dry_multiplier=0.5,
        dry_allowed_length=1,
    ),
}
_BY_CHAIN = OPTIONS["typical, sigma, DRY"]  # which the readable twin of the chain leaves out
_DRAFTED = 2


class Cell(NamedTuple):
    """A way to make texts.

    row: of the table. law: texts → probabilities. draw: a number → a text.
    """

    row: str
    name: str
    law: Mapping[Text, float]
    draw: Callable[[int], Text]


def law_of(
    rows: Callable[[Text], np.ndarray], is_end: Callable[[int], bool] = lambda _: False
) -> dict[Text, float]:
    """Of the first tokens, behind each other. rows: dense, (vocab,)."""
    law: dict[Text, float] = {(): 1.0}
    for _ in range(LENGTH):
        longer: dict[Text, float] = {}
        for text, chance in law.items():
            if text and is_end(text[-1]):
                longer[text] = chance
                continue
            for token, prob in enumerate(rows(text)):
                if prob > 0.0:
                    longer[(*text, token)] = chance * float(prob)
        law = longer
    return law


# The rules by themselves.


def _made(seed: int, vocab: int, sharpness: float, holes: float) -> Rows:
    """Random rows, of which about `holes` of the entries are 0."""

    @functools.cache
    def rows(text: Text) -> Distribution:
        random = np.random.default_rng([seed, *(token + 1 for token in text)])
        weights = random.dirichlet(np.full(vocab, sharpness)) * (random.random(vocab) >= holes)
        weights[random.integers(vocab)] += 0.1
        ids = np.flatnonzero(weights)
        return Distribution(ids, weights[ids] / weights.sum())

    return rows


def _only_likeliest(rows: Rows) -> Rows:
    @functools.cache
    def likeliest(text: Text) -> Distribution:
        row = rows(text)
        return Distribution(row.ids[[row.probs.argmax()]], np.ones(1))

    return likeliest


def overconfident() -> tuple[Rows, Rows]:
    """Of a target, and of a draft that mostly proposes what the target hardly ever says."""
    target, draft = (
        Distribution(np.arange(2), np.array([first, 1.0 - first])) for first in (0.005, 0.9)
    )
    return (lambda _: target), (lambda _: draft)


def made_rows() -> dict[str, tuple[int, Rows, Rows]]:
    """Vocabularies, and rows of a target and of its draft."""
    target, draft = _made(1, 4, 1.0, 0.0), _made(2, 4, 1.0, 0.0)
    return {
        "any rows": (4, target, draft),
        "rows with holes": (5, _made(3, 5, 1.0, 0.4), _made(4, 5, 1.0, 0.4)),
        "a draft that is sure": (4, target, _only_likeliest(draft)),
        "an overconfident draft": (2, *overconfident()),
        "equal rows": (4, target, target),
    }


def judged_text(
    rule_name: RuleName, targets: Rows, drafts: Rows, seed: int, number: int
) -> Text:
    """Step after step: draft tokens are drawn and judged, until there are enough tokens."""
    rule = make_rule(rule_name, is_greedy=False, seed=None, randomness=Randomness(seed, number))
    text: Text = ()
    for step in itertools.count():
        start = StepStart(step, len(text))
        draw = rule.draw(start)
        proposal, known = Proposal([], [], []), [text]
        for index in range(_DRAFTED):
            proposal.distributions.append(drafts(known[-1]))
            proposal.draft_tokens.append(draw(index, proposal.distributions[-1]))
            known.append((*known[-1], proposal.draft_tokens[-1]))
        verdict = rule.verdict(start, [targets(each) for each in known], proposal)
        text = (*known[verdict.num_accepted], verdict.next_token)
        if len(text) >= LENGTH:
            break
    return text[:LENGTH]


def rule_cells(seed: int) -> Iterator[Cell]:
    """Every rule on all made rows."""
    for rule, (kind, (vocab, targets, drafts)) in itertools.product(RULES, made_rows().items()):
        draw = functools.partial(judged_text, rule, targets, drafts, seed)
        dense = functools.partial(_dense, targets, vocab)
        yield Cell(f"the rule {rule}, by itself", kind, law_of(dense), draw)


def _dense(rows: Rows, vocab: int, text: Text) -> np.ndarray:
    row = np.zeros(vocab)
    row[rows(text).ids] = rows(text).probs
    return row


# The loop with every proposer.


class _Toy(NamedTuple):
    """A target and who proposes for it."""

    target: TableModel
    proposer: Proposer | None
    policy: Callable[[], DraftPolicy] = functools.partial(FixedDraftPolicy, _DRAFTED)


def _draft(
    vocab: int, kind: type[TableModel] = TableModel, *, renamed: Sequence[int] = ()
) -> Any:
    def make(is_end: Callable[[int], bool]) -> _Toy:
        target = TableModel(3, seed=5, spread=1.0)
        draft = kind(vocab, seed=99, spread=1.0)
        return _Toy(target, DraftModel(draft, all_shared(target, draft, renamed), is_end))

    return make


def _beside(kind: Any, model: Any, **keywords: Any) -> Any:
    def make(is_end: Callable[[int], bool]) -> _Toy:
        target = TableModel(3, seed=5, spread=1.0)
        given = (3,) if model is TableRowHeads else ()
        return _Toy(target, kind(model(target, *given, **keywords), is_end))

    return make


def _alone(make_proposer: Any) -> Any:
    return lambda is_end: _Toy(
        TableModel(3, seed=5, spread=1.0), make_proposer and make_proposer(is_end)
    )


def _adaptive(is_end: Callable[[int], bool]) -> _Toy:
    made = _draft(3)(is_end)
    return made._replace(policy=lambda: AdaptiveDraftPolicy({ProposerKind.DRAFT: 0.1}, 1))


def _translated(is_end: Callable[[int], bool]) -> _Toy:
    target = TableModel(AB.size, seed=5, spread=1.0)
    return _Toy(
        target, translated(AB, OTHER, TableModel(OTHER.size, seed=99, spread=1.0), is_end)
    )


_HEAD = {"num_kept": 64, "max_draft_tokens": 3}
PROPOSERS: dict[str, Callable[[Callable[[int], bool]], _Toy]] = {
    "nobody": _alone(None),
    "a draft model": _draft(3),
    "a draft of fewer tokens": _draft(2),
    "a draft with a renamed token": _draft(3, renamed=(1,)),
    "a draft of another tokenizer": _translated,
    "a draft model, as much as pays": _adaptive,
    "a head that reads rows (MTP, EAGLE-3)": _beside(
        Head, TableHead, **_HEAD, seed=99, spread=1.0
    ),
    "Medusa heads": _beside(Medusa, TableRowHeads),
    "a head that drafts blocks (DFlash)": _beside(Blocks, TableBlocks, **_HEAD),
    "pairs of candidates (DFlash2)": _beside(Blocks, TableBlocks, **_HEAD, is_paired=True),
    "lookup, with a memory": _alone(lambda is_end: Lookup(is_end, TextMemory())),
    "what is forced": _alone(Forced),
}
CONSTRAINTS = {
    "": None,
    ", constrained": functools.partial(no_two_in_a_row, 3),
}


class _Masked:
    """A table whose rows leave out what a constraint forbids, for the readable twin."""

    def __init__(self, table: TableModel, allowed: Callable[[Text], set[int]] | None) -> None:
        self.vocab_size = table.vocab_size
        self._table, self._allowed = table, allowed

    def row(self, history: Sequence[int]) -> np.ndarray:
        row = self._table.row(history)
        if self._allowed is not None:
            left = self._allowed(tuple(history[len(PROMPT) :]))
            row[[token for token in range(len(row)) if token not in left]] = -np.inf
        return row


def loop_cells(seed: int) -> Iterator[Cell]:
    """The loop, with every rule, proposer, sampling option and constraint."""
    ways = itertools.product(PROPOSERS.items(), OPTIONS.items(), CONSTRAINTS.items(), RULES)
    for number, ((who, make), (option, params), (bound, allowed), rule) in enumerate(ways):
        if who == "what is forced" and allowed is None:
            continue
        end = 2 if number % 2 else None
        cell = _LoopCell(make, params, allowed, rule, end)
        draw = functools.partial(cell.draw, seed + number)
        yield Cell(f"the loop with {who}", f"{rule}, {option}{bound}", cell.law(), draw)


class _LoopCell:
    def __init__(
        self,
        make: Callable[[Callable[[int], bool]], _Toy],
        params: SamplingParams,
        allowed: Callable[[Text], set[int]] | None,
        rule: RuleName,
        end: int | None,
    ) -> None:
        self._end = end
        self._params, self._allowed, self._rule = params, allowed, rule
        self._target, proposer, policy = make(self._is_end)
        self._loop = SpeculativeDecoder(
            self._target,
            [] if proposer is None else [proposer],
            policy(),
            FixedThreads(1),
            None,
            functools.partial(next, itertools.count(1.0)),
        )

    def _is_end(self, token: int) -> bool:
        return token == self._end

    def _chain(self, said: Text = ()) -> SamplerChain:
        constraint = None
        if self._allowed is not None:
            constraint = ToyConstraint(
                self._target.vocab_size, self._allowed, self._end, history=said
            )
        return SamplerChain(
            self._params,
            num_prompt_tokens=len(PROMPT),
            num_said=len(said),
            constraint=constraint,
        )

    def law(self) -> dict[Text, float]:
        masked = _Masked(self._target, self._allowed)

        def rows(text: Text) -> np.ndarray:
            history = [*PROMPT, *text]
            if self._params is not _BY_CHAIN:
                return target_probs(masked, history, self._params)  # type: ignore[arg-type]
            row = np.zeros(masked.vocab_size)
            found = self._chain(text).distributions(
                self._target.row(history)[np.newaxis], history, []
            )[0]
            row[found.ids] = found.probs
            return row

        return law_of(rows, self._is_end)

    def draw(self, seed: int, number: int) -> Text:
        loop = self._loop
        loop.start(PROMPT)
        rule = make_rule(
            self._rule, is_greedy=False, seed=None, randomness=Randomness(seed, number)
        )
        text: Text = ()
        # One more, so that a step can draft two of the first three.
        for step in loop.steps(Request(self._chain(), rule, LENGTH + 1, self._is_end)):
            text = (*text, *step.tokens)
            if len(text) >= LENGTH:
                break
        return text[:LENGTH]
