"""Records traces: answers without drafting, and what each proposer would have proposed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from localspec.checks.limit import limited
from localspec.checks.prompts import Task
from localspec.checks.step_bench import measure_steps
from localspec.checks.trace import Recording, Series, Trace
from localspec.engine.engine import Engine
from localspec.errors import Interrupted
from localspec.isolated.watch import Watch
from localspec.sampling.distribution import Distribution
from localspec.sampling.params import SamplingParams
from localspec.speculative.lookup import Lookup
from localspec.speculative.loop import SpeculativeDecoder
from localspec.speculative.metrics import Step
from localspec.speculative.policy_api import (
    MAX_DRAFT_TOKENS,
    Decision,
    DraftOff,
    DraftPolicy,
    PolicyContext,
    ProposerKind,
    ProposerState,
    StepRecord,
)
from localspec.speculative.prefix import common_length
from localspec.speculative.proposers import Proposer, chance


def record_traces(  # noqa: PLR0913  each is an option of the command
    engine: Engine,
    tasks: Sequence[Task],
    *,
    asking: Mapping[str, Any],
    samplings: Sequence[SamplingParams],
    max_tokens: int,
    num_cost_rounds: int,
    seconds: float | None,
    watch: Watch,
) -> Recording:
    """A trace of the answer to each task, with each sampling.

    asking: system and template, as for `Task.ask`. num_cost_rounds: how often the decodes are
    timed before; 0 for never. seconds: the time limit. It and the watch's cancellation end the
    recording, and whole answers so far are returned. The engine's policy is restored
    afterwards. Raises what `Task.ask` raises.
    """
    policy, traces, costs = engine._draft_policy, list[Trace](), None
    work = [(task, sampling) for task in tasks for sampling in samplings]
    with limited(watch.cancellation, seconds) as ended:
        try:
            with engine.exclusively() as loop, ended.obeyed(engine.cancel):
                recorder = _Recorder(loop)
                if num_cost_rounds > 0:
                    watch.progress("Timing decodes", None)
                    costs = measure_steps(loop, num_cost_rounds)
            for number, (task, sampling) in enumerate(work):
                watch.progress(f"Recording answer {number + 1} of {len(work)}", None)
                # Emptied, so that every answer reads its whole prompt.
                with engine.exclusively():
                    engine._draft_policy = recorder
                answer = task.ask(engine, **asking, sampling=sampling, max_tokens=max_tokens)
                with ended.obeyed(answer.cancel):
                    reply = answer.reply()
                if reply.finish_reason == "cancelled":
                    break
                num_prompt_tokens = reply.stats.prompt_tokens
                traces.append(
                    recorder.trace(task.kind, num_prompt_tokens, is_greedy=sampling.is_greedy)
                )
        except Interrupted:
            pass
        finally:
            engine._draft_policy = policy
    return Recording(engine.description, engine._weight_shares, traces, costs)


class _Proposed(NamedTuple):
    """What a proposer would have proposed in a step. row: its first token's distribution."""

    limit: int
    confidence: float
    row: Distribution
    tokens: list[int]
    match: int


class _Recorder(DraftPolicy):
    """A policy that drafts nothing, and asks every proposer what it would have proposed."""

    def __init__(self, loop: SpeculativeDecoder) -> None:
        self._loop = loop
        self.begin()

    def begin(self) -> None:
        self._tokens: list[int] = []  # of the answer
        # Of each proposer, by place in the answer: the proposal, and its first token's chance.
        self._places: dict[ProposerKind, dict[int, tuple[_Proposed, float]]] = {
            proposer.kind: {} for proposer in self._loop.proposers
        }
        self._now: dict[ProposerKind, _Proposed] = {}

    def choose(self, context: PolicyContext) -> Decision:
        for proposer, state in zip(self._loop.proposers, context.states, strict=True):
            place = self._place(proposer, state) if state.max_tokens > 0 else None
            if place is not None:
                self._now[proposer.kind] = place
        return Decision(None, draft_off=DraftOff.SET_TO_ZERO)

    def _place(self, proposer: Proposer, state: ProposerState) -> _Proposed | None:
        limit = min(state.max_tokens, MAX_DRAFT_TOKENS)
        # A draft's next tokens are known from the next places, as long as it is right.
        most = 1 if proposer.kind is ProposerKind.DRAFT else limit
        proposal = self._loop.likeliest_proposal(proposer, most)
        if not proposal.draft_tokens:
            return None
        return _Proposed(
            limit,
            proposal.confidences[0],
            proposal.distributions[0],
            proposal.draft_tokens,
            proposer.match_length if isinstance(proposer, Lookup) else 0,
        )

    def learn(self, record: StepRecord) -> None:
        assert isinstance(record, Step)
        token, row = record.tokens[0], record.distributions[0]
        for kind, place in self._now.items():
            judged = chance(place.row, token, row.prob(token))
            self._places[kind][len(self._tokens)] = place, judged
        self._now.clear()
        self._tokens += record.tokens

    def trace(self, kind: str, num_prompt_tokens: int, *, is_greedy: bool) -> Trace:
        """The trace of the answer that has just ended."""
        return Trace(
            kind,
            is_greedy,
            num_prompt_tokens,
            len(self._tokens),
            {
                proposer: self._series(proposer, places, is_greedy=is_greedy)
                for proposer, places in self._places.items()
                if places
            },
        )

    def _series(
        self,
        kind: ProposerKind,
        places: dict[int, tuple[_Proposed, float]],
        *,
        is_greedy: bool,
    ) -> Series:
        limits, matches, accepted = ([0] * len(self._tokens) for _ in range(3))
        confidences, chances = ([0.0] * len(self._tokens) for _ in range(2))
        for index, (place, judged) in places.items():
            limits[index], confidences[index] = place.limit, place.confidence
            chances[index], matches[index] = judged, place.match
            accepted[index] = common_length(place.tokens, self._tokens[index:])
        # A head's drawn tokens would be others, and a draft's follow from the chances.
        is_certain = kind in (ProposerKind.LOOKUP, ProposerKind.FORCED)
        has_accepted = is_certain or (is_greedy and kind is ProposerKind.HEAD)
        return Series(
            tuple(limits),
            tuple(confidences),
            tuple(chances),
            tuple(accepted) if has_accepted else (),
            tuple(matches) if kind is ProposerKind.LOOKUP else (),
        )
