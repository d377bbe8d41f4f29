"""The loop: propose, score, verify, truncate, emit. Plain decoding is the same with K = 0.

Speculative decoding after Leviathan et al. (arXiv 2211.17192) and Chen et al. (2302.01318).
The loop sees token ids, models and numbers; never a string, a path or a clock of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from localspec.pictures.cells import has_cells
from localspec.sampling.chain import SamplerChain
from localspec.speculative.metrics import Provenance, Step
from localspec.speculative.model_api import Decode, Decoding, Model, result_of
from localspec.speculative.policy_api import (
    MAX_DRAFT_TOKENS,
    REPLAY_TOKENS,
    Decision,
    DraftOff,
    DraftPolicy,
    PolicyContext,
    ProposerKind,
    ProposerState,
    Replay,
    ReplayScores,
    ThreadPolicy,
)
from localspec.speculative.prefix import common_length
from localspec.speculative.proposers import Proposal, Proposer
from localspec.speculative.rules import Rule, StepStart
from localspec.speculative.verify import Verdict


@dataclass(frozen=True, slots=True)
class Request:
    """The settings of one answer."""

    chain: SamplerChain
    rule: Rule
    max_tokens: int
    is_end: Callable[[int], bool]
    """The target's end-of-generation test."""

    kinds: Collection[ProposerKind] | None = None
    """The kinds of proposers that may propose; None allows all."""


class SpeculativeDecoder:
    """A text, a target whose cache holds a prefix of it, and proposers that know a part.

    That invariant holds whenever control is outside: after every yielded step, after a
    generator was closed, after an exception.

    Args:
        target: The target.
        proposers: The proposers that may draft, the preferred first.
        draft_policy: Decides how much is drafted.
        thread_policy: Decides the number of threads.
        draft_off: Why there are no proposers; None if there are some.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        target: Model,
        proposers: Sequence[Proposer],
        draft_policy: DraftPolicy,
        thread_policy: ThreadPolicy,
        draft_off: DraftOff | None,
        clock: Callable[[], float],
    ) -> None:
        self.tokens: list[int] = []
        self._probs: list[float] = []  # the target's probability of each token of the answer
        self._chain: SamplerChain | None = None  # the answer's
        self._emitted: list[int] = []  # tokens that the last step emitted
        self.target = target
        self.proposers = tuple(proposers)
        self.draft_policy = draft_policy
        self.thread_policy = thread_policy
        self._draft_off = draft_off
        self.clock = clock

    @property
    def num_answered(self) -> int:
        """Tokens at the end of the text that are an answer of this loop."""
        return len(self._probs)

    def start(self, prompt_tokens: list[int]) -> int:
        """Make the prompt the text; the caches keep their longest common prefix with it.

        Returns how many prompt tokens the target has cached: at least one is left to
        decode, because the first answer token is drawn from its row.
        """
        common = common_length(self.tokens, prompt_tokens)
        self._truncate_caches(min(common, len(prompt_tokens) - 1))
        self.tokens = list(prompt_tokens)
        self._probs.clear()
        return self.target.num_cached

    def truncate(self, num_tokens: int) -> None:
        """Cut the text, and with it both caches, to its first num_tokens."""
        self._truncate_caches(num_tokens)
        num_leaving = max(len(self.tokens) - num_tokens, 0)
        del self._probs[max(len(self._probs) - num_leaving, 0) :]
        del self.tokens[num_tokens:]

    def replay_scores(self, proposer: Proposer, num_tokens: int) -> Iterator[ReplayScores]:
        """How proposals would have fared at the last num_tokens positions of the answer.

        The scores come in order, each of a few positions, since a draft model judges no more at
        once. The proposer reads the tokens that it has not read yet, and judges only these.

        Args:
            proposer: The proposer.
            num_tokens: The number of positions, at most `num_answered`.
        """
        end = len(self.tokens)
        # Tokens of the text that follow the positions of each replay: 16, 8, 0, for example.
        following = reversed(range(0, num_tokens, REPLAY_TOKENS))
        for num_following in following:
            tokens = self.tokens[: end - num_following]
            probs = self._probs[: len(self._probs) - num_following]
            assert self._chain is not None
            replay = proposer.replay(tokens, probs, self._chain)
            yield result_of(replay)

    def steps(self, request: Request) -> Iterator[Step]:
        """Steps until max_tokens tokens are out or an end token is, which is emitted too.

        The text must be started and have room: its length plus max_tokens within the
        target's context.
        """
        for step in self.each_step(request):
            yield result_of(step)

    def each_step(self, request: Request) -> Iterator[Decoding[Step]]:
        """`steps`, each of which has to be driven to its end before the next."""
        remaining = request.max_tokens
        number = 0
        self._chain = request.chain
        self.draft_policy.reset()
        self.thread_policy.reset()
        for proposer in self.proposers:
            proposer.reset(request.chain)
        while remaining > 0:
            yield self._whole_step(request, StepStart(number, request.max_tokens - remaining))
            if request.is_end(self._emitted[-1]):
                return
            remaining -= len(self._emitted)
            number += 1

    def _whole_step(self, request: Request, start: StepStart) -> Decoding[Step]:
        """A step, from which the policies learn."""
        num_threads = self.thread_policy.choose()
        sees = has_cells(self.tokens[self.target.num_cached :])
        try:
            step = yield from self._step(request, start, num_threads)
        except BaseException:
            # One token stays pending, so that further steps can follow.
            self._truncate_caches(len(self.tokens) - 1)
            self._probs.clear()  # they may lack some of the last tokens
            raise
        if start.step == 0:
            # An answer that is cut back or generated again continues after its prompt.
            self.target.checkpoint()
        if not sees:  # the time of reading a picture is not a step's
            self.draft_policy.learn(step)
            self.thread_policy.learn(step)
        self._emitted = step.tokens
        return step

    def _step(self, request: Request, start: StepStart, num_threads: int) -> Decoding[Step]:
        started = self.clock()
        length = len(self.tokens)
        num_cached = self.target.num_cached
        # The pending token, emitted but not decoded; in the first step the part of the prompt
        # that the cache lacks. The first token comes from the prompt's own row, never from a
        # draft: so the steps, and with them a seed's text, do not depend on the cache.
        missing = self.tokens[num_cached:]
        room = 0
        if start.step > 0:
            room = self._room(request.max_tokens - start.num_emitted)

        # 1. Propose.
        decision, replay_s = yield from self._choice(request, start, room)
        proposal = yield from self._proposal(decision, request, start)
        draft_tokens = proposal.draft_tokens
        proposed = self.clock()

        # 2. Score pending and draft tokens in one decode.
        batch = missing
        if start.step > 0:
            batch = self._batch(missing, draft_tokens)
        logits = yield Decode(self.target, batch, len(batch) - len(missing) + 1)
        scored = self.clock()

        # 3. Verify.
        targets = request.chain.distributions(
            logits[: len(draft_tokens) + 1],
            self.tokens,
            draft_tokens,
        )
        # After a row without numbers any rows will do: the tokens before it are emitted, and
        # the next step fails at that row as plain decoding does.
        padding = targets[-1:] * (len(draft_tokens) + 1 - len(targets))
        verdict = request.rule.verdict(start, [*targets, *padding], proposal)
        if verdict.num_accepted >= len(targets):
            verdict = Verdict(len(targets) - 1, draft_tokens[len(targets) - 1])

        # 4. Truncate all caches to what was accepted.
        self._truncate_caches(length + verdict.num_accepted)

        # 5. Emit.
        proposer = decision.proposer
        tokens, provenance = self._emit(verdict, proposal, request)
        for row, token in zip(targets, tokens, strict=False):
            self._probs.append(row.prob(token))
        return Step(
            tokens=tokens,
            provenance=provenance,
            logits=logits,
            distributions=targets,
            kind=None if proposer is None else self.proposers[proposer].kind,
            draft_off=decision.draft_off,
            proposer=proposer,
            confidences=proposal.confidences,
            num_accepted=verdict.num_accepted,
            num_emitted=len(tokens),
            num_read=proposal.num_read,
            num_target_tokens=len(batch),
            num_cached=num_cached,
            draft_time_s=proposed - started - replay_s,
            target_time_s=scored - proposed,
            sampler_time_s=self.clock() - scored,
            replay_s=replay_s,
            num_threads=num_threads,
        )

    def _emit(
        self,
        verdict: Verdict,
        proposal: Proposal,
        request: Request,
    ) -> tuple[list[int], list[Provenance]]:
        """Add the tokens of a verdict to the text. Returns them and their provenance."""
        tokens = proposal.draft_tokens[: verdict.num_accepted]
        provenance = [Provenance.ACCEPTED] * len(tokens)
        # Nothing follows an end token, so it can only be the draft's last one.
        if not (tokens and request.is_end(tokens[-1])):
            tokens.append(verdict.next_token)
            provenance.append(_provenance(verdict, len(proposal.draft_tokens)))
        request.chain.commit(tokens)
        self.tokens += tokens
        return tokens, provenance

    def _batch(self, missing: list[int], draft_tokens: list[int]) -> list[int]:
        """The tokens that the target decodes, padded where that is cheaper.

        The padding may be any token, and may exceed the length of the answer: its rows are
        never read.
        """
        batch = [*missing, *draft_tokens]
        most = len(missing) + min(self.target.max_outputs - 1, self.target.max_rollback)
        limit = min(most, self.target.context_length - self.target.num_cached)
        size = self.draft_policy.padded(len(batch), limit)
        padding = batch[-1:] * (size - len(batch))
        return batch + padding

    def _room(self, num_remaining: int) -> int:
        """The most draft tokens that the next step may hold."""
        # A step emits one token more than it accepts, and must not exceed the answer's limit.
        target = self.target
        most = min(num_remaining, target.max_outputs) - 1
        return min(most, target.max_rollback, MAX_DRAFT_TOKENS)

    def _choice(
        self,
        request: Request,
        start: StepStart,
        room: int,
    ) -> Decoding[tuple[Decision, float]]:
        """Decide which proposer drafts in this step. Also returns the seconds of replays."""
        if start.step == 0:
            return Decision(None), 0.0
        if not self.proposers:
            return Decision(None, draft_off=self._draft_off), 0.0
        if room == 0:
            return Decision(None), 0.0
        num_remaining = request.max_tokens - start.num_emitted
        replay_s = 0.0
        # A replay leaves its proposer nothing to replay, so this ends.
        while True:
            states = [self._state(index, request.kinds) for index in range(len(self.proposers))]
            context = PolicyContext(self.target.num_cached, room, num_remaining, tuple(states))
            decision = self.draft_policy.choose(context)
            if isinstance(decision, Decision):
                return decision, replay_s
            replay_s += yield from self._replay(decision, request)

    def _state(self, index: int, kinds: Collection[ProposerKind] | None) -> ProposerState:
        """The state of a proposer; one that is paused or may not propose is not asked."""
        policy = self.draft_policy
        proposer = self.proposers[index]
        if kinds is not None and proposer.kind not in kinds:
            return ProposerState(0)
        num_tokens = policy.pause_left(index)
        if num_tokens == 0:
            return proposer.state(self.tokens)
        if policy.keeps_sizes:
            proposer.pause(num_tokens)
        return ProposerState(0, draft_off=DraftOff.DOES_NOT_PAY)

    def _replay(self, replay: Replay, request: Request) -> Decoding[float]:
        """Let the proposer replay, and the policy learn from that. Returns the seconds."""
        started = self.clock()
        proposer = self.proposers[replay.proposer]
        if replay.reads_from is not None:
            proposer.read_from(replay.reads_from)
        replay_scores = yield from proposer.replay(self.tokens, self._probs, request.chain)
        seconds = self.clock() - started
        self.draft_policy.replay(replay.proposer, replay_scores, seconds)
        return seconds

    def _proposal(
        self,
        decision: Decision,
        request: Request,
        start: StepStart,
    ) -> Decoding[Proposal]:
        if decision.proposer is None or decision.extent is None:
            return Proposal([], [], [])
        proposer = self.proposers[decision.proposer]
        if decision.reads_from is not None:
            proposer.read_from(decision.reads_from)
        proposer.keeps_sizes = bool(self.draft_policy.keeps_sizes)
        draw = request.rule.draw(start)
        chain = request.chain
        return (yield from proposer.propose(self.tokens, decision.extent, chain, draw))

    def _truncate_caches(self, num_tokens: int) -> None:
        # The target comes first: what remains in its cache decides what a head can read.
        self.target.truncate(min(self.target.num_cached, num_tokens))
        for proposer in self.proposers:
            proposer.truncate(num_tokens)


def _provenance(verdict: Verdict, num_draft_tokens: int) -> Provenance:
    if num_draft_tokens == 0:
        return Provenance.PLAIN
    if verdict.num_accepted < num_draft_tokens:
        return Provenance.RECOVERED
    return Provenance.BONUS
