"""The loop: propose, score, verify, truncate, emit. Plain decoding is the same with K = 0.

Speculative decoding after Leviathan et al. (arXiv 2211.17192) and Chen et al. (2302.01318).
The loop sees token ids, models and numbers; never a string, a path or a clock of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from localspec.draft_length import DraftLength, DraftOff
from localspec.metrics import Provenance, Step
from localspec.model import Model
from localspec.proposers import Proposal, Proposer
from localspec.rules import Place, Rule
from localspec.sampling import SamplingParams
from localspec.transforms import Transforms
from localspec.verify import Verdict


@dataclass(frozen=True, slots=True)
class Request:
    """What one answer asks of the loop. is_end: the target's end-of-generation test."""

    transforms: Transforms
    rule: Rule
    max_tokens: int
    is_end: Callable[[int], bool]

    @property
    def params(self) -> SamplingParams:
        return self.transforms.params


class Speculation:
    """One text, and a target and a proposer whose caches each hold a prefix of it.

    That invariant holds whenever control is outside: after every yielded step, after a
    generator was closed, after an exception.

    proposer: None for plain decoding, then draft_off says why. clock: seconds, monotonic.
    """

    def __init__(
        self,
        target: Model,
        proposer: Proposer | None,
        draft_length: DraftLength,
        draft_off: DraftOff | None,
        clock: Callable[[], float],
    ) -> None:
        self.tokens: list[int] = []
        self.target = target
        self.proposer = proposer
        self.draft_length = draft_length
        self._draft_off = draft_off
        self._clock = clock

    def start(self, prompt_tokens: list[int]) -> int:
        """Make the prompt the text; the caches keep their longest common prefix with it.

        Returns how many prompt tokens the target has cached: at least one is left to
        decode, because the first answer token is drawn from its row.
        """
        pairs = zip(self.tokens, prompt_tokens, strict=False)
        shorter = min(len(self.tokens), len(prompt_tokens))
        common = next((i for i, (old, new) in enumerate(pairs) if old != new), shorter)
        self._truncate_caches(min(common, len(prompt_tokens) - 1))
        self.tokens = list(prompt_tokens)
        return self.target.num_cached

    def truncate(self, num_tokens: int) -> None:
        """Cut the text, and with it both caches, to its first num_tokens."""
        self._truncate_caches(num_tokens)
        del self.tokens[num_tokens:]

    def steps(self, request: Request) -> Iterator[Step]:
        """Steps until max_tokens tokens are out or an end token is, which is emitted too.

        The text must be started and have room: its length plus max_tokens within the
        target's context.
        """
        remaining = request.max_tokens
        number = 0
        while remaining > 0:
            try:
                step = self._step(request, Place(number, request.max_tokens - remaining))
            except BaseException:
                # One token stays pending, so that steps can go on from here.
                self._truncate_caches(len(self.tokens) - 1)
                raise
            yield step
            if request.is_end(step.tokens[-1]):
                return
            remaining -= len(step.tokens)
            number += 1

    def _step(self, request: Request, place: Place) -> Step:
        started = self._clock()
        length = len(self.tokens)
        # The pending token, emitted but not decoded; at first whatever the cache lacks of
        # the prompt. The first token comes from the prompt's own row, never from a draft:
        # so the steps, and with them a seed's text, do not depend on what was cached.
        missing = self.tokens[self.target.num_cached :]
        num_wanted, draft_off = 0, None
        if place.step > 0:
            num_wanted, draft_off = self._num_wanted(request.max_tokens - place.num_emitted)

        # 1. Propose.
        proposal = Proposal([], [])
        if self.proposer is not None and num_wanted > 0:
            draw = request.rule.draw(place)
            proposal = self.proposer.propose(self.tokens, num_wanted, request.transforms, draw)
        draft_tokens = proposal.draft_tokens
        proposed = self._clock()

        # 2. Score pending and draft tokens in one decode.
        logits = self.target.decode([*missing, *draft_tokens], len(draft_tokens) + 1)
        scored = self._clock()

        # 3. Verify.
        targets = request.transforms.laws(logits, self.tokens, draft_tokens)
        verdict = request.rule.verdict(place, targets, proposal)
        num_accepted = verdict.num_accepted

        # 4. Truncate both caches to what was accepted.
        self._truncate_caches(length + num_accepted)

        # 5. Emit. Nothing follows an end token, so it can only be the draft's last one.
        tokens = draft_tokens[:num_accepted]
        provenance = [Provenance.ACCEPTED] * num_accepted
        if not (tokens and request.is_end(tokens[-1])):
            tokens.append(verdict.next_token)
            provenance.append(_provenance(verdict, len(draft_tokens)))
        self.tokens += tokens
        return Step(
            tokens=tokens,
            provenance=provenance,
            logits=logits,
            laws=targets,
            num_draft_tokens=len(draft_tokens),
            num_accepted=num_accepted,
            draft_off=draft_off or proposal.draft_off,
            draft_time_s=proposed - started,
            target_time_s=scored - proposed,
            sampler_time_s=self._clock() - scored,
        )

    def _num_wanted(self, remaining: int) -> tuple[int, DraftOff | None]:
        """How many tokens to propose, and the reason if the answer is none."""
        if self.proposer is None:
            return 0, self._draft_off
        chosen = self.draft_length.choose()
        if chosen == 0:
            return 0, DraftOff.SET_TO_ZERO
        room = self.proposer.context_length - len(self.tokens)
        if room <= 0:
            return 0, DraftOff.DRAFT_CONTEXT_FULL
        # A step emits one token more than it accepts, and must not emit more than remain.
        return min(chosen, room, remaining - 1, self.target.max_outputs - 1), None

    def _truncate_caches(self, num_tokens: int) -> None:
        if self.proposer is not None:
            self.proposer.truncate(num_tokens)
        num_cached = min(self.target.num_cached, num_tokens)
        if num_cached < self.target.num_cached and not self.target.can_truncate:
            num_cached = 0
        self.target.truncate(num_cached)


def _provenance(verdict: Verdict, num_draft_tokens: int) -> Provenance:
    if num_draft_tokens == 0:
        return Provenance.PLAIN
    if verdict.num_accepted < num_draft_tokens:
        return Provenance.RECOVERED
    return Provenance.BONUS
