"""The check of `localspec verify`: whether drafting is lossless on this machine.

Greedy and seeded text must be the same with and without drafting, except at near ties. How wide
such ties are is measured. The distribution of sampled steps is the same on every machine, so
the tests check it.
"""

from __future__ import annotations

import localspec.llama.loaded  # noqa: F401  libllama before NumPy

# isort: split

import enum
import functools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from localspec.engine.engine import Engine
from localspec.errors import OptionError
from localspec.evaluation.identity import (
    ENOUGH_ACCEPTED,
    GREEDY,
    NUMS_DRAFT_TOKENS,
    Identity,
    IdentityCheck,
    Rounding,
)
from localspec.evaluation.prompts import check_lengths
from localspec.evaluation.time_left import Pace
from localspec.evaluation.time_limit import EndedBy, limited
from localspec.sampling.chain import Resolver, SamplerChain
from localspec.sampling.params import SamplingParams
from localspec.speculative.loop import SpeculativeDecoder
from localspec.streaming.answer_options import AnswerOptions
from localspec.streaming.answer_text import Prompt
from localspec.streaming.cancellation import Watch

_SPARE = 1.2  # the seconds to recommend ÷ the seconds that are probably needed


class Finding(enum.Enum):
    """The result of a check."""

    LOSSLESS = "lossless"
    NOT_LOSSLESS = "NOT lossless"
    NOT_ENOUGH = "not enough evidence"  # nothing is wrong, but too little was checked


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a check."""

    rounding: Rounding
    greedy: Identity
    seeded: Identity
    time_s: float
    seconds_needed: float | None
    """Seconds that are probably enough for a finding; None if unknown or hopeless."""

    is_hopeless: bool
    """Whether no time would be enough with these prompts, because too few draft tokens are
    proposed or accepted."""

    ended_by: EndedBy | None
    """The reason if the check ended early."""

    @property
    def bugs(self) -> list[str]:
        """Differences from the target's texts that rounding does not explain, one per line."""
        greedy = self._bug_lines("greedy", self.greedy)
        seeded = self._bug_lines("seeded", self.seeded)
        return [*greedy, *seeded]

    def _bug_lines(self, name: str, identity: Identity) -> Iterator[str]:
        """A line for each bug in the texts of a kind, whose name it gets."""
        bound = self.rounding.bound
        for bug in identity.bugs(bound):
            yield (
                f"{name} text of prompt {bug.prompt + 1} with {bug.num_draft_tokens} draft "
                f"tokens leaves the target's at token {bug.position + 1}: {bug.token} in place "
                f"of {bug.expected_token}, {bug.gap:.3g} logits apart (rounding: {bound:.3g})"
            )

    @property
    def partial(self) -> bool:
        """Whether the check ended before it was complete."""
        return self.ended_by is not None

    @property
    def smallest_fault(self) -> float:
        """The smallest share of wrong draft tokens that would show 9 times in 10.

        1 if no draft token was accepted.
        """
        num_accepted = self.greedy.num_accepted + self.seeded.num_accepted
        if not num_accepted:
            return 1.0
        # A share w of wrong tokens stays unseen with the probability (1 - w) ** num_accepted.
        share_of_right: float = 0.1 ** (1 / num_accepted)
        return 1.0 - share_of_right

    @property
    def finding(self) -> Finding:
        """The finding on greedy and seeded text."""
        if self.bugs:
            return Finding.NOT_LOSSLESS
        if self.greedy.is_enough and self.seeded.is_enough:
            return Finding.LOSSLESS
        return Finding.NOT_ENOUGH

    @property
    def identity(self) -> Finding:
        """The same as `finding`, for programs that read this key of `verify --json`."""
        return self.finding

    @property
    def identity_bugs(self) -> list[str]:
        """The same as `bugs`, for programs that read this key of `verify --json`."""
        return self.bugs


def check(
    engine: Engine,
    prompts: Sequence[list[int]],
    *,
    seconds: float,
    watch: Watch,
    options: AnswerOptions,
) -> Report:
    """Check an engine on prompts, until there is enough evidence.

    The engine's draft policy is restored afterwards.

    Raises ContextError for a prompt that leaves no context for an answer, OptionError if
    nothing drafts, ConstraintError for a constraint that cannot be enforced.

    Args:
        prompts: The token ids of each prompt.
        seconds: The time limit. It and the watch's cancellation end the check even within a
            decode; the results so far are returned.
        options: Only their constraint is used.
    """
    check_lengths(prompts, engine.context_length)

    def work(loop: SpeculativeDecoder) -> Report:
        if not loop.proposers:
            raise OptionError(
                "there is nothing to check: nothing drafts for this target",
                "Use a --draft with a target whose cache can be rolled back.",
            )
        checking = _Check(engine, loop, prompts, options, watch)
        with limited(engine, watch, seconds) as limit, limit.ended.obeyed(engine.cancel):
            checking.run()
        return checking.report(limit.by)

    return engine.exclusively(work)


class _Check:
    """A check, and its results so far."""

    def __init__(
        self,
        engine: Engine,
        loop: SpeculativeDecoder,
        prompts: Sequence[list[int]],
        options: AnswerOptions,
        watch: Watch,
    ) -> None:
        self._prompts = prompts
        self._watch = watch
        self._rounding = Rounding()
        sampled = engine.sampling
        if sampled.is_greedy:
            sampled = SamplingParams()
        resolver = Resolver(engine.vocabulary)

        def chain(
            params: SamplingParams,
            prompt: Sequence[int],
            answer_tokens: Sequence[int] = (),
        ) -> SamplerChain:
            """The samplers for a prompt and the tokens that the answer already has."""
            state = engine._constrainer.constraint(options, Prompt([*prompt]))
            if state is not None:
                state.commit(answer_tokens)
            return resolver.chain(params, len(prompt), state, len(answer_tokens))

        def identity_check(params: SamplingParams) -> IdentityCheck:
            make_chain = functools.partial(chain, params)
            return IdentityCheck(loop, engine.vocabulary.is_end, make_chain, self._rounding)

        self._greedy = identity_check(GREEDY)
        self._seeded = identity_check(sampled)
        self._pace = Pace()
        self._has_prompts = True  # False once all are used without a decision
        self._started_s = time.monotonic()

    def run(self) -> None:
        """Check until there is enough evidence, or no prompt is left. Raises Interrupted."""
        for number, prompt in enumerate(self._prompts):
            self._check_text("greedy", self._greedy, number, prompt, None)
            if self._is_decided:
                return
            self._check_text("seeded", self._seeded, number, prompt, number)
            if self._is_decided:
                return
        self._has_prompts = False

    def report(self, ending: EndedBy | None) -> Report:
        """The report on the results so far."""
        spent_s = time.monotonic() - self._started_s
        is_hopeless = not self._has_prompts
        left_s = None
        if not is_hopeless:
            left_s = self._seconds_left()
        seconds_needed = None
        if left_s is not None:
            seconds_needed = _SPARE * (spent_s + left_s)
        return Report(
            rounding=self._rounding,
            greedy=self._greedy.result,
            seeded=self._seeded.result,
            time_s=spent_s,
            seconds_needed=seconds_needed,
            is_hopeless=is_hopeless,
            ended_by=ending,
        )

    @property
    def _is_decided(self) -> bool:
        """Whether there is enough evidence, or at least one bug."""
        results = self._greedy.result, self._seeded.result
        bound = self._rounding.bound
        is_enough = all(result.is_enough for result in results)
        return is_enough or any(result.bugs(bound) for result in results)

    def _seconds_left(self) -> float | None:
        return self._pace.seconds_left([self._greedy.result, self._seeded.result])

    def _check_text(
        self,
        name: str,
        check: IdentityCheck,
        number: int,
        prompt: list[int],
        seed: int | None,
    ) -> None:
        """Let the target write a text, and compare drafted texts with it.

        Does nothing if enough texts of this kind were compared.

        Args:
            name: The kind of text, as it is shown.
            number: The number of the prompt, from 0.
            seed: None for greedy text.
        """
        if check.result.is_enough:
            return

        def show_progress() -> None:
            num_accepted = check.result.num_accepted
            self._watch.progress(
                f"Comparing {name} text {number + 1} of {len(self._prompts)}: "
                f"{num_accepted} of {ENOUGH_ACCEPTED} tokens",
                self._seconds_left(),
            )

        show_progress()
        with self._pace.timed("writing"):
            reference = check.reference(prompt, seed)
        self._pace.num_texts += 1
        self._pace.num_written += len(reference.plain)
        self._pace.is_comparing = True
        for num_draft_tokens in NUMS_DRAFT_TOKENS:
            show_progress()
            with self._pace.timed("comparing"):
                check.compare(number, reference, num_draft_tokens)
        self._pace.is_comparing = False
