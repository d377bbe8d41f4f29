"""How many tokens to propose in the next step, by whom, or why none: the policies' interface.

A policy is told what could be proposed (`ProposerState`) and answers with a `Decision`, or with
a `Replay` and is asked again. It is asked before each further token is drawn (`Extent`), and
learns from the step that came of it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args

from localspec.errors import OptionError

MAX_DRAFT_TOKENS = 16
CERTAIN_CONFIDENCE = 1.0  # of who knows what has to come
REPLAY_TOKENS = 8  # that a draft model judges at once: each takes a row of logits


class DraftOff(str, enum.Enum):
    """Why a step proposed nothing. The words for people are in `reasons`."""

    NO_DRAFT = "no_draft"
    SET_TO_ZERO = "set_to_zero"
    TARGET_CANNOT_ROLL_BACK = "target_cannot_roll_back"
    DRAFT_CONTEXT_FULL = "draft_context_full"
    TOKEN_UNKNOWN_TO_DRAFT = "token_unknown_to_draft"
    NO_HEAD = "no_head"
    HEAD_LACKS_ROWS = "head_lacks_rows"
    NOTHING_REPEATS = "nothing_repeats"
    MEASURING = "measuring"
    DOES_NOT_PAY = "does_not_pay"
    OVER_BUDGET = "over_budget"


class ProposerKind(str, enum.Enum):
    """Where draft tokens come from."""

    DRAFT = "draft"
    HEAD = "head"
    LOOKUP = "lookup"
    FORCED = "forced"


ProposerName = Literal["auto", "draft", "head", "lookup", "none"]  # what a user can ask for
_OTHER_NAMES: dict[str, ProposerName] = {"mtp": "head"}


class ProposerState(NamedTuple):
    """What a proposer could do for the text as it stands.

    max_tokens: how many tokens it can propose; if 0, draft_off says why. num_missing: tokens
    it has to read first. num_skipped: tokens at the front of the text that it does not see.
    num_unjudged: tokens at the end of the text on which a replay would shed light.
    confidence: in its next token, 0 … 1, if it knows that before it starts.
    """

    max_tokens: int
    num_missing: int = 0
    num_skipped: int = 0
    num_unjudged: int = 0
    confidence: float | None = None
    draft_off: DraftOff | None = None


class PolicyContext(NamedTuple):
    """What a policy decides on, in front of a step.

    num_cached: tokens in the target's cache. room: the most draft tokens the step may
    propose. num_remaining: tokens that the answer may still have. states: one of each proposer.
    """

    num_cached: int
    room: int
    num_remaining: int
    states: tuple[ProposerState, ...]


class Extent(Protocol):
    """How far one proposal goes."""

    def num_worth(self, num_drafted: int, confidence: float) -> int:
        """How many more tokens are worth proposing after the first num_drafted.

        confidence: the proposer's, in the next of them, whose row is known and which is not
        drawn yet. 0 ends the proposal without it; 1 draws it and ends there. It must depend
        on rows and on tokens already drawn alone: that keeps every rule exact.
        """


class Decision(NamedTuple):
    """A policy's answer: who proposes how much, or nobody and why.

    proposer: index of the proposer. extent: how far it proposes. reads_from: position in the
    text at which the proposer shall begin to read again (None: it goes on with what it has).
    """

    proposer: int | None
    extent: Extent | None = None
    reads_from: int | None = None
    draft_off: DraftOff | None = None


class Replay(NamedTuple):
    """A policy's wish to know first what a proposer would have proposed for tokens that are
    there already; then it is asked again.

    proposer, reads_from: as in `Decision`.
    """

    proposer: int
    reads_from: int | None = None


class ReplayScores(NamedTuple):
    """What a proposer would have proposed for tokens that are in the text.

    chances: of each token that it was asked about, in order, its confidence at that place
    and the chance, 0 … 1, that a proposal would have been accepted there. num_read: tokens it
    read for that.
    """

    chances: list[tuple[float, float]]
    num_read: int


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What a step did, as far as a policy learns from it. Times in seconds.

    proposer: index of the proposer that was taken, if any. confidences: of the draft tokens.
    num_accepted: of these. num_read: tokens the proposer read before its first row.
    num_target_tokens: tokens in the target's decode, padding included; num_cached: before it.
    draft_time_s: choosing and proposing; replay_s: a replay before that.
    sampler_time_s: chain and verification. num_threads: of the target's decode.
    """

    proposer: int | None
    confidences: Sequence[float]
    num_accepted: int
    num_emitted: int
    num_read: int
    num_target_tokens: int
    num_cached: int
    draft_time_s: float
    target_time_s: float
    sampler_time_s: float
    replay_s: float = 0.0
    num_threads: int = 1

    @property
    def num_draft_tokens(self) -> int:
        """How many tokens were proposed."""
        return len(self.confidences)


@dataclass(frozen=True, slots=True)
class PolicyEstimate:
    """What a policy expects of the next step. Times in seconds.

    acceptance: of the next draft token, 0 … 1. break_even: the lowest acceptance at which
    drafting would pay; None if it never does. A target-only step costs plain_step_s.
    """

    proposer: ProposerKind
    acceptance: float
    break_even: float | None
    plain_step_s: float
    draft_token_s: float


class DraftPolicy:
    """A policy of the number of draft tokens.

    Here stands what one does that learns nothing.
    """

    def begin(self) -> None:
        """Another answer begins."""

    def use_threads(self, num_threads: int) -> None:
        """The next step's decodes have so many threads; what they cost belongs to that."""

    def choose(self, context: PolicyContext) -> Decision | Replay:
        """Who proposes in the next step, and how far; or whose replay would tell."""
        raise NotImplementedError

    def replay(self, proposer: int, replay_scores: ReplayScores, seconds: float) -> None:
        """Take into account what came of a choice that asked for it, and how long it took."""

    def padded(self, num_tokens: int, limit: int) -> int:
        """The number of tokens, num_tokens … limit, that the target had better decode."""
        return num_tokens

    def learn(self, record: StepRecord) -> None:
        """Take a finished step into account."""

    def estimate(self) -> PolicyEstimate | None:
        """What it expects, if it expects anything."""
        return None


class UpTo(NamedTuple):
    """A number of tokens, whatever the proposer's confidence."""

    num_tokens: int

    def num_worth(self, num_drafted: int, confidence: float) -> int:
        return self.num_tokens - num_drafted


@dataclass(frozen=True, slots=True)
class FixedDraftPolicy(DraftPolicy):
    """The same number in every step, by the first proposer that can.

    Raises OptionError outside 0 … MAX_DRAFT_TOKENS.
    """

    draft_tokens: int

    def __post_init__(self) -> None:
        count = self.draft_tokens
        if not (isinstance(count, int) and 0 <= count <= MAX_DRAFT_TOKENS):
            raise OptionError(
                f"the number of draft tokens is {count!r}",
                f"Choose 0 (plain decoding) to {MAX_DRAFT_TOKENS}.",
            )

    def choose(self, context: PolicyContext) -> Decision:
        if self.draft_tokens == 0:
            return Decision(None, draft_off=DraftOff.SET_TO_ZERO)
        for index, state in enumerate(context.states):
            num_tokens = min(self.draft_tokens, context.room, state.max_tokens)
            if num_tokens > 0:
                return Decision(index, UpTo(num_tokens))
        return Decision(None, draft_off=reason_for_none(context))


def reason_for_none(context: PolicyContext) -> DraftOff | None:
    """Why nobody can propose: the first proposer's reason; None at the end of an answer."""
    return next((state.draft_off for state in context.states if state.draft_off), None)


@dataclass(frozen=True, slots=True)
class Drafting:
    """What a user asks of drafting: who proposes, and how much.

    draft_tokens: per step; None is the automatic policy.

    proposer: "draft", the draft model; "head" or "mtp", a trained head; "lookup", the text
    itself; "auto", whichever pays; "none" is plain decoding. Raises OptionError for a value
    outside its range.
    """

    draft_tokens: int | None = None
    proposer: ProposerName = "auto"

    def __post_init__(self) -> None:
        if self.draft_tokens is not None:
            FixedDraftPolicy(self.draft_tokens)
        object.__setattr__(self, "proposer", _OTHER_NAMES.get(self.proposer, self.proposer))
        if self.proposer not in get_args(ProposerName):
            raise OptionError(
                f"there is no proposer {self.proposer!r}",
                f"Choose one of: {', '.join(get_args(ProposerName))}.",
            )

    @property
    def is_off(self) -> bool:
        """Whether nothing is ever to be proposed."""
        return self.draft_tokens == 0 or self.proposer == "none"

    @property
    def needs_draft_model(self) -> bool:
        """Whether a draft model would be used."""
        return not self.is_off and self.proposer in ("auto", "draft")

    @property
    def needs_head(self) -> bool:
        """Whether a head would be used."""
        return not self.is_off and self.proposer in ("auto", "head")

    @property
    def needs_lookup(self) -> bool:
        """Whether the text itself would propose."""
        return not self.is_off and self.proposer in ("auto", "lookup")

    @property
    def needs_forced(self) -> bool:
        """Whether what a constraint forces would be proposed."""
        return not self.is_off and self.proposer == "auto"
