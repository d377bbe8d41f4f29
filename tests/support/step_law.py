"""The exact law of what a step emits at positions of real texts, without drawing.

At a position the loop takes a step with drafts again and again, along every way that its
numbers allow (`enumeration`), on the models' own rows. For the rules token and block (Leviathan
et al., arXiv 2211.17192, theorem A.1; Sun et al., arXiv 2403.10444, theorem 1) the tokens then
have to follow the target's rows: whatever the step has emitted, the next token that it emits
has the distribution that a plain step has there. Loop, rules, chain and proposer are those of
answers; only rows are remembered, and each is decoded once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from enumeration import Enumeration
from localspec.sampling.chain import SamplerChain
from localspec.sampling.distribution import Distribution, Logits
from localspec.sampling.params import SamplingParams
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.model_api import Decoding, Model, result_of
from localspec.speculative.policy_api import (
    CERTAIN_CONFIDENCE,
    MAX_DRAFT_TOKENS,
    Extent,
    FixedDraftPolicy,
    ProposerState,
    RuleName,
    ThreadPolicy,
    UpTo,
)
from localspec.speculative.prefix import common_length
from localspec.speculative.proposers import Draw, Proposal, Proposer
from localspec.speculative.rules import make_rule

RULES: tuple[RuleName, ...] = ("token", "block")
BOUND = 1e-11  # of a probability; sums of float64 stay below 1e-13
_WIDEST = 6  # tokens of a row that are enumerated; rules treat any cut alike
_EVERY_DEEP = 12  # positions from one deep enumeration to the next
_DEEP_TOKENS = 3
# Both of a row's tokens keep a share, so that steps go many ways.
_DEEP = SamplingParams(temperature=1.0, top_k=2, top_p=1.0, min_p=0.0)
_MOST_BUGS = 5  # bugs that are reported

# Makes the chain of an answer: samplers, tokens of the prompt, and tokens that are said.
MakeChain = Callable[[SamplingParams, Sequence[int], Sequence[int]], SamplerChain]
_Law = dict[tuple[int, ...], float]  # what a step emits → its probability


@dataclass(slots=True)
class StepLaw:
    """The result of enumerating steps."""

    num_places: int = 0
    """Texts behind which steps were enumerated."""

    num_rows: int = 0
    """Rows of the target that laws were compared with."""

    num_outcomes: int = 0
    """Ways that steps took."""

    largest_difference: float = 0.0
    """The largest difference of a probability."""

    bugs: list[str] = field(default_factory=list)
    """The first few bugs, in words."""


@dataclass(slots=True)
class StepLawCheck:
    """Enumerates steps at positions of texts that the target has read."""

    loop: SpeculativeDecoder
    is_end: Callable[[int], bool]
    make_chain: MakeChain
    sampling: SamplingParams
    result: StepLaw = field(default_factory=StepLaw)

    def run(self, prompt: list[int], answer: list[int], rows: Logits) -> Iterator[None]:
        """Look at the positions of an answer from its end on: no row is decoded twice.

        The caches of all proposers are filled and cut. Yields after every position.

        Args:
            rows: The target's rows before each token of the answer. Its cache holds the text or
                a part.
        """
        left = self.loop.target.context_length - len(prompt) - _DEEP_TOKENS - 1
        top_k = min(self.sampling.top_k or _WIDEST, _WIDEST)
        wide = replace(self.sampling, top_k=top_k)
        for index in range(min(len(answer) - 1, left), 0, -1):
            # The known rows are those behind nothing, and behind the text's own next token.
            known: dict[tuple[int, ...], Logits] = {(): rows[index]}
            if index + 1 < len(answer):
                known[answer[index],] = rows[index + 1]
            said = answer[:index]
            target = _RowsBehind(self.loop.target, [*prompt, *said], known)
            is_drafted = self._enumerate(prompt, said, target, 1, wide)
            if is_drafted and self.result.num_places % _EVERY_DEEP == 0:
                self._enumerate(prompt, said, target, _DEEP_TOKENS, _DEEP)
            self.result.num_places += is_drafted
            yield

    def _enumerate(
        self,
        prompt: list[int],
        said: list[int],
        target: _RowsBehind,
        num_draft_tokens: int,
        params: SamplingParams,
    ) -> bool:
        """Compare the laws of all rules. False if nobody proposes anything here."""
        tokens = [*prompt, *said]
        for proposer in self.loop.proposers:
            proposer.truncate(len(tokens) - 1)
        for proposer in self.loop.proposers:
            proposer.reset(self.make_chain(params, prompt, said))
            state = proposer.state(tokens)
            if state.max_tokens > 0:
                break
        else:
            return False
        policy = FixedDraftPolicy(num_draft_tokens)
        remembered = _Remembered(proposer, state, self.is_end)
        loop = SpeculativeDecoder(
            target, [remembered], policy, ThreadPolicy(1), None, lambda: 0.0
        )

        def step(numbers: Enumeration) -> tuple[int, ...]:
            loop.start(tokens[:-1])
            chain = self.make_chain(params, prompt, said[:-1])
            made = make_rule(rule, numbers)
            steps = loop.steps(Request(chain, made, num_draft_tokens + 2, self.is_end))
            # An answer's first step never drafts; it gives the text's last token.
            return tuple(token for second in islice(steps, 1, 2) for token in second.tokens)

        def own(emitted: tuple[int, ...]) -> dict[int, float]:
            """Token → probability of a plain step behind that; there is none behind an end."""
            if emitted and self.is_end(emitted[-1]):
                return {}
            chain = self.make_chain(params, prompt, said)
            chain.commit(emitted)
            [row] = chain.distributions(target.behind(emitted)[None], [*tokens, *emitted], [])
            return dict(zip(row.ids.tolist(), row.probs.tolist(), strict=True))

        for rule in RULES:
            law: _Law = defaultdict(float)
            for emitted, prob, _ in Enumeration().outcomes(step):
                law[emitted] += prob
                self.result.num_outcomes += 1
            self._compare(law, own, f"the rule {rule} with {num_draft_tokens}", len(tokens))
        return True

    def _compare(
        self,
        law: _Law,
        own: Callable[[tuple[int, ...]], dict[int, float]],
        what: str,
        num_tokens: int,
    ) -> None:
        """Compare the next token's law behind all that a step emits with a plain step's."""
        behind: dict[tuple[int, ...], dict[int, float]] = {(): defaultdict(float)}
        for emitted, prob in law.items():
            for length, token in enumerate(emitted):
                weights = behind.setdefault(emitted[:length], defaultdict(float))
                weights[token] += prob
        result = self.result
        for emitted, weights in behind.items():
            total = 1.0 if emitted == () else sum(weights.values())
            plain = own(emitted)
            difference = max(
                abs(weights.get(token, 0.0) - total * plain.get(token, 0.0))
                for token in {*weights, *plain}
            )
            result.num_rows += 1
            result.largest_difference = max(result.largest_difference, difference)
            if not difference <= BOUND and len(result.bugs) < _MOST_BUGS:
                result.bugs.append(
                    f"steps of {what} draft tokens give a token with a probability that is "
                    f"{difference:.2g} off, after {num_tokens} tokens and {list(emitted)}"
                )


class _RowsBehind:
    """The target behind a text: its rows, of which each is decoded once.

    Args:
        known: Tokens behind the text → row, of those that are known.
    """

    max_rollback = MAX_DRAFT_TOKENS

    def __init__(
        self, target: Model, text: list[int], known: dict[tuple[int, ...], Logits]
    ) -> None:
        self._target = target
        self._text = text
        self._rows = known
        self._read: list[int] = []  # by the loop
        self._decoded: tuple[int, ...] = ()  # behind the text, by the real target
        self.vocab_size = target.vocab_size
        self.context_length = target.context_length
        self.max_outputs = target.max_outputs
        # Leaves nothing but the text's last token, which the answer's first step has to give.
        self._given = np.full(target.vocab_size, -np.inf, dtype=np.float32)
        self._given[text[-1]] = 0.0
        target.checkpoint()

    @property
    def num_cached(self) -> int:
        return len(self._read)

    def decode(self, tokens: Sequence[int], num_logits: int) -> Logits:
        self._read += tokens
        if len(self._read) < len(self._text):
            return self._given[None]
        emitted = tuple(self._read[len(self._text) :])
        lengths = range(len(emitted) + 1 - num_logits, len(emitted) + 1)
        return np.stack([self.behind(emitted[:length]) for length in lengths])

    def behind(self, tokens: tuple[int, ...]) -> Logits:
        """(vocab,) the row behind these tokens, which follow the text."""
        if tokens not in self._rows:
            target = self._target
            num_kept = min(common_length(self._decoded, tokens), len(tokens) - 1)
            end = len(self._text) + num_kept
            target.truncate(min(end, target.num_cached))
            if missing := [*self._text, *tokens][target.num_cached : end]:
                target.decode(missing, 0)  # what could not be cut there
            new = target.decode(tokens[num_kept:], len(tokens) - num_kept)
            for length, row in enumerate(new, num_kept + 1):
                self._rows.setdefault(tokens[:length], row.copy())
            self._decoded = tokens
        return self._rows[tokens]

    def truncate(self, num_cached: int) -> None:
        del self._read[num_cached:]

    def checkpoint(self) -> None:
        """Every row is remembered."""


class _Remembered(Proposer):
    """A proposer behind a text, which is asked for each of its distributions once."""

    def __init__(
        self, proposer: Proposer, state: ProposerState, is_end: Callable[[int], bool]
    ) -> None:
        self.kind = proposer.kind
        self._proposer = proposer
        self._state = state
        self._is_end = is_end
        self._rows: dict[tuple[int, ...], tuple[Distribution, float]] = {}

    def reset(self, chain: SamplerChain) -> None:
        self._proposer.reset(chain)

    def state(self, tokens: Sequence[int]) -> ProposerState:
        return self._state

    def propose(
        self, tokens: Sequence[int], extent: Extent, chain: SamplerChain, draw: Draw
    ) -> Decoding[Proposal]:
        yield from ()

        def next_row(drafted: list[int]) -> tuple[Distribution, float] | None:
            """The distribution behind drafted tokens, which the proposer is made to draw."""

            def follow(index: int, distribution: Distribution) -> int:
                self._rows[tuple(drafted[:index])] = distribution, CERTAIN_CONFIDENCE
                if index < len(drafted):
                    return drafted[index]
                return int(distribution.ids[0])

            if tuple(drafted) not in self._rows:
                self._proposer.truncate(len(tokens) - 1)
                self._proposer.state(tokens)
                result_of(self._proposer.propose(tokens, UpTo(len(drafted) + 1), chain, follow))
            return self._rows.get(tuple(drafted))

        return Proposal([], [], []).extend(next_row, extent, draw, self._is_end)
