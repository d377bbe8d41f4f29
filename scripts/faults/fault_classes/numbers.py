"""Numbers.

Sampling settings at and beyond their bounds, rows of logits that no sound model gives, and
answers of models of one token or a few, by every rule and proposer.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from fault_classes.tried import Tried
from fault_classes.watched import lost_by
from localspec.errors import ConstraintError, ContextError, DecodeError, LocalspecError
from localspec.sampling.chain import SamplerChain
from localspec.sampling.logprobs import token_logprobs, top_of_row
from localspec.sampling.params import SamplingParams
from localspec.speculative.blocks import Blocks
from localspec.speculative.heads import Head
from localspec.speculative.lookup import Lookup
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.medusa import Medusa
from localspec.speculative.policy_api import FixedDraftPolicy
from localspec.speculative.proposers import DraftModel, Proposer
from localspec.speculative.randomness import Randomness
from localspec.speculative.rule_name import RuleName
from localspec.speculative.rules import make_rule
from localspec.speculative.thread_policy import FixedThreads
from toy import TableBlocks, TableHead, TableModel, TableRowHeads, all_shared
from toy_constraint import ToyConstraint

Row = NDArray[np.float32]
_HUGE = float(np.finfo(np.float32).max)
_ODD: tuple[Any, ...] = (
    None, True, "1", "nan", [], {}, b"1", 10**400, -(10**400), 2**63, 2**31, -1, 0, 1,
    math.nan, math.inf, -math.inf, 5e-324, 1e-308, 1e-45, 1e308, -1e308, 1.0000001, 0.9999999,
    np.float32(0.5), np.int64(3), np.nan, complex(1, 1), -0.0,
)  # fmt: skip
_SETTINGS: dict[str, tuple[Any, ...]] = {
    "temperature": (0.0, 5e-324, 1e-308, 1e-45, 1e-6, 0.3, 1.0, 100.0),
    "top_k": (0, 1, 2, 3, 40, 2**31 - 1),
    "top_p": (5e-324, 1e-308, 1e-7, 0.5, 0.9999999, 1.0),
    "min_p": (0.0, 5e-324, 1e-308, 1e-7, 0.5, 1.0),
    "typical_p": (5e-324, 1e-9, 0.5, 0.9999999, 1.0, 1.0, 1.0),
    "top_n_sigma": (-1.0, -1.0, 5e-324, 0.5, 1000.0),
    "repetition_penalty": (1.0, 1.0, 0.01, 100.0, 1.1),
    "presence_penalty": (0.0, 0.0, -100.0, 100.0, 5e-324),
    "frequency_penalty": (0.0, 0.0, -100.0, 100.0, 5e-324),
    "penalty_last_n": (0, 1, 64, 2**31 - 1),
    "dry_multiplier": (0.0, 0.0, 5e-324, 1.0, 100.0),
    "dry_base": (1.0, 1.0000001, 1.75, 100.0),
    "dry_allowed_length": (1, 2, 2**31 - 1),
    "dry_penalty_last_n": (0, 1, 64, 2**31 - 1),
    "min_tokens": (0, 0, 1, 5, 2**31 - 1),
    "ignore_eos": (False, False, True),
}


def tries(seconds: float, seed: int) -> Iterator[Tried]:
    """A third of the time for each of the three."""
    for what, holds, attempt in (
        ("settings of sampling", "taken, or refused in words", _try_settings),
        (
            "rows with NaN, ±inf, ties, 1 to 5000 tokens; settings at bounds",
            "a distribution within the cuts, or refused in words",
            _try_row,
        ),
        (
            "answers: every rule and proposer, 1 to 40 tokens, contexts from 2",
            "tokens within the cuts; greedy and coupled as without drafting; or refused",
            _try_answer,
        ),
    ):
        count, losses = 0, []
        until = time.monotonic() + seconds / 3
        while time.monotonic() < until:
            if lost := tried(attempt, seed, count):
                name = attempt.__name__
                losses.append(f"numbers: {lost} ({name}, seed {seed}, number {count})")
            count += 1
        yield Tried(what, holds, count, losses)


def tried(attempt: Callable[[Random], str], seed: int, number: int) -> str:
    """What was lost at a number, in a line; "" for nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return attempt(Random(f"{attempt.__name__} {seed} {number}"))
        except Exception as error:
            return lost_by(error)


def _try_settings(random: Random) -> str:
    names = [field.name for field in dataclasses.fields(SamplingParams)]
    given = {random.choice(names): random.choice(_ODD) for _ in range(random.choice((1, 1, 3)))}
    if random.random() < 0.3:
        given["logit_bias"] = {random.choice(_hashable()): random.choice(_ODD)}
    if random.random() < 0.2:
        given["dry_sequence_breakers"] = (random.choice(_ODD), "\ud800", "x" * 50)[
            : random.randrange(4)
        ]
    try:
        params = SamplingParams().changed(given)
    except LocalspecError:
        return ""
    numbers = [getattr(params, name) for name in _SETTINGS]
    numbers += [each for each in params.logit_bias.values() if each != -math.inf]
    if not all(math.isfinite(number) for number in numbers):
        return f"{given} were taken"
    return ""


def _hashable() -> list[Any]:
    return [each for each in _ODD if not isinstance(each, list | dict)]


def _settings(random: Random, num_tokens: int) -> SamplingParams:
    chosen = {
        name: random.choice(values)
        for name, values in _SETTINGS.items()
        if random.random() < 0.35
    }
    bans = random.choice((0, 0, 0, 1, num_tokens // 2, num_tokens))
    bias = dict.fromkeys(random.sample(range(num_tokens), bans), -math.inf)
    if random.random() < 0.1:
        bias[random.randrange(num_tokens)] = random.choice((1e9, -1e9, 5e-324, 1e-45))
    return SamplingParams(logit_bias=bias, **chosen)


def _odd_row(row: Row, random: Random) -> Row:
    """The row, as it is or as no sound model gives it."""
    size = len(row)
    places = random.sample(range(size), random.choice((1, max(size // 2, 1), size)))
    match random.randrange(12):
        case 0:
            row[:] = random.choice((0.0, 1.0, -_HUGE, _HUGE, 1e-45))
        case 1:
            row[places] = random.choice((math.nan, math.inf))
        case 2 | 3:
            row[places] = -math.inf
        case 4:
            row[places] = random.choice((_HUGE, -_HUGE, 1e30, -1e30))
            row[random.randrange(size)] = random.choice((_HUGE, -_HUGE))
        case 5:
            row = row.round()
        case 6:
            row *= random.choice((1e-45, 1e-30, 1e30, 0.0, -1.0))
        case _:
            pass
    return row


def _try_row(random: Random) -> str:
    size = random.choice((1, 2, 3, 8, 40, 300, 1025, 5000))
    noise = np.random.default_rng(random.getrandbits(32)).standard_normal(size)
    row = _odd_row((3 * noise).astype(np.float32), random)
    params = _settings(random, size)
    text = [random.randrange(size + 2) for _ in range(random.choice((1, 2, 20)))]
    text += text[: random.randrange(len(text))]  # a repeat
    breakers = {text[0]: [(), (1,)]} if random.random() < 0.3 else {}
    chain = SamplerChain(
        params, num_prompt_tokens=len(text) - 1, ends=[0, size + 1], breakers=breakers
    )
    before = row.copy()
    try:
        distribution = chain.distribution(row, text)
    except DecodeError:
        biased = row.astype(np.float64)
        biased[[token for token in params.logit_bias if token < size]] = -math.inf
        is_sound = np.isfinite(biased).any() and not (
            np.isnan(row).any() or row.max() == math.inf
        )
        is_plain = not (params.ignore_eos or params.min_tokens) and abs(row).max() < 1e30
        return "a sound row is refused" if is_sound and is_plain else ""
    if not np.array_equal(row, before, equal_nan=True):
        return "the model's own row is changed"
    ids, probs = distribution
    if not (len(ids) == len(probs) > 0 and (np.diff(ids) > 0).all() and ids[-1] < size):
        return f"ids {ids[:5]} of {size}"
    if not (np.isfinite(probs).all() and (probs >= 0).all() and abs(probs.sum() - 1) < 1e-9):
        return f"probabilities {probs[:5]}, whose sum is {probs.sum()}"
    candidates = ids if len(ids) < size else ids[probs > 0]  # without a cut all are listed
    if out := [int(i) for i in candidates if params.logit_bias.get(int(i)) == -math.inf]:
        return f"banned tokens {out[:5]} are left"
    for uniform in (0.0, 0.5, math.nextafter(1.0, 0.0)):
        if distribution.prob(distribution.draw(uniform)) <= 0.0:
            return f"a token without probability is drawn at {uniform}"
    token = Randomness(1).gumbel_max(0, distribution)
    if distribution.prob(token) <= 0.0:
        return f"a token without probability wins: {token}"
    try:
        top_of_row(row, random.choice((1, 20)))
        found = token_logprobs(token, row, distribution, 3, b"%d".__mod__)
    except DecodeError:
        return "" if not math.isfinite(row.max()) else "a sound row has no log-probabilities"
    return "" if math.isfinite(found.after) else f"log-probability {found.after}"


class OddTable(TableModel):
    """A table with some rows that no sound model gives."""

    def __init__(self, vocab_size: int, oddity: int, **keywords: Any) -> None:
        super().__init__(vocab_size, order=2, **keywords)
        self._oddity = oddity

    def row(self, history: Sequence[int]) -> Row:
        row = super().row(history)
        key = f"{self._oddity} {history[-2:]}"
        if self._oddity and Random(key).random() < 0.3:
            return _odd_row(row, Random(key))
        return row


@dataclasses.dataclass
class _Asked:
    """An answer. end: token that ends it, -1 for none."""

    target: OddTable
    params: SamplingParams
    prompt: list[int]
    rule: RuleName | None
    seed: int
    num_drafted: int
    max_tokens: int
    end: int
    forbidden: frozenset[int] | None

    def is_end(self, token: int) -> bool:
        return token == self.end

    def chain(self) -> SamplerChain:
        constraint = None
        if self.forbidden is not None:
            size, allowed = self.target.vocab_size, set(range(self.target.vocab_size))
            allowed -= self.forbidden
            constraint = ToyConstraint(size, lambda _history: allowed, self.end)
        return SamplerChain(
            self.params,
            num_prompt_tokens=len(self.prompt),
            ends=[self.end] if self.end >= 0 else [],
            constraint=constraint,
        )

    def answer(self, proposers: Sequence[Proposer]) -> tuple[list[int], str]:
        """The tokens, and the name of the error that ended it."""
        self.target.truncate(0)
        clock = functools.partial(next, itertools.count(1.0))
        policy = FixedDraftPolicy(self.num_drafted)
        loop = SpeculativeDecoder(self.target, proposers, policy, FixedThreads(1), None, clock)
        rule = make_rule(
            self.rule,
            is_greedy=self.params.is_greedy,
            seed=self.seed,
            randomness=Randomness(self.seed),
        )
        tokens: list[int] = []
        try:
            loop.start(self.prompt)
            request = Request(self.chain(), rule, self.max_tokens, self.is_end)
            for step in loop.steps(request):
                tokens += step.tokens
        except (DecodeError, ConstraintError, ContextError) as error:
            return tokens, type(error).__name__
        return tokens, ""


def _try_answer(random: Random) -> str:
    size = random.choice((1, 1, 2, 3, 5, 40))
    context = random.choice((2, 3, 4, 8, 64))
    target = OddTable(
        size, random.choice((0, 0, random.getrandbits(20))), seed=random.randrange(99),
        context_length=context,
    )  # fmt: skip
    prompt = [random.randrange(size) for _ in range(random.randint(1, min(context - 1, 5)))]
    params = _settings(random, size)
    rules = [*get_args(RuleName), None]
    if not params.is_greedy:
        rules.remove("greedy")
    asked = _Asked(
        target,
        params,
        prompt,
        random.choice(rules),
        random.getrandbits(31),
        random.choice((1, 2, 5, 16)),
        min(random.choice((1, 2, 7, 30)), context - len(prompt)),
        random.choice((-1, 0, size - 1)),
        random.choice((None, None, frozenset(random.sample(range(size), size // 2)))),
    )
    proposer = _proposer(asked, random)
    tokens, error = asked.answer([proposer])
    if fault := _outside(asked, tokens):
        return fault
    plain, plain_error = asked.answer([])
    # With a seed and no rule it is coupled.
    are_same = (tokens, error) == (plain, plain_error)
    if are_same or not (params.is_greedy or asked.rule in ("coupled", None)):
        return ""
    return f"{tokens} {error} drafted, {plain} {plain_error} plain"


def _proposer(asked: _Asked, random: Random) -> Proposer:
    target, is_end = asked.target, asked.is_end
    match random.randrange(5):
        case 0:
            size = max(1, target.vocab_size + random.choice((0, 0, -1, 3)))
            draft = OddTable(
                size, random.choice((0, random.getrandbits(20))), seed=random.randrange(99),
                context_length=target.context_length,
            )  # fmt: skip
            return DraftModel(draft, all_shared(target, draft), is_end)
        case 1:
            head = TableHead(target, seed=random.randrange(99), order=2)
            head.context_length = target.context_length
            return Head(head, is_end)
        case 2:
            return Blocks(TableBlocks(target, is_paired=random.random() < 0.5), is_end)
        case 3:
            return Medusa(TableRowHeads(target, random.choice((1, 4))), is_end)
        case _:
            return Lookup(is_end)


def _outside(asked: _Asked, tokens: Sequence[int]) -> str:
    """Why the tokens are none of the law's: by a chain of their own, token by token."""
    room = asked.target.context_length - len(asked.prompt) + 1
    if len(tokens) > min(asked.max_tokens, room):
        return f"{len(tokens)} tokens of {asked.max_tokens}, with room for {room}"
    if asked.end in tokens[:-1]:
        return f"{tokens} go on behind their end"
    chain = asked.chain()
    for place, token in enumerate(tokens):
        text = [*asked.prompt, *tokens[:place]]
        row = asked.target.row(text)
        if not math.isfinite(row[token]):
            return f"token {token} after a row where it is {row[token]}"
        if asked.params.logit_bias.get(token) == -math.inf:
            return f"token {token} is banned"
        if asked.forbidden is not None and token in asked.forbidden:
            return f"token {token} is forbidden"
        if chain.distributions(row[None], text, [])[0].prob(token) <= 0.0:
            return f"token {token} has no probability after {text}"
        chain.commit([token])
    return ""
