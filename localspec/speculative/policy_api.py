"""The interface of draft policies: how many tokens the next step drafts, with which proposer.

Before each step a policy gets the state of all proposers (`PolicyContext`). It answers with a
`Decision`, or asks for a `Replay`, learns from its scores, and is asked again. During a
proposal it is asked before each token is drawn (`Extent`). Afterwards it learns from the step.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, get_args

from localspec.errors import OptionError, is_whole

MAX_DRAFT_TOKENS = 16
CERTAIN_CONFIDENCE = 1.0  # the confidence in forced tokens
# The most tokens that a draft model judges at once; each takes a row of logits.
REPLAY_TOKENS = 8
# After this number of steps without a draft, `FixedDraftPolicy` stops padding them. It pads the
# first ones to save two changes of the decode's size.
_MOST_IDLE = 2


class DraftOff(str, enum.Enum):
    """Why a step proposed nothing. The words for people are in `metrics`."""

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


class MatchSource(enum.IntEnum):
    """The text in which a lookup found its tokens. Acceptance is learned for each source."""

    PROMPT = 0
    """The prompt, with the earlier turns of the conversation; a reference."""

    ANSWER = 1
    """The answer itself."""

    OTHER = 2
    """Another conversation."""


class ProposerState(NamedTuple):
    """The state of a proposer for the present text."""

    max_tokens: int
    """How many tokens it can propose; if 0, draft_off says why."""

    num_missing: int = 0
    """How many tokens it has to read first."""

    num_skipped: int = 0
    """How many of the text's first tokens it could have read, but skips."""

    num_unjudged: int = 0
    """How many of the text's last tokens a replay would judge."""

    confidence: float | None = None
    """The confidence in its next token, 0 … 1, if it is known before the draft."""

    draft_off: DraftOff | None = None
    """Why it can propose nothing; None if it can, or if it may not propose."""

    is_block: bool = False
    """Whether one decode gives all tokens of a draft, so that all lengths cost the same."""

    source: MatchSource = MatchSource.PROMPT
    """The source of its tokens."""


class PolicyContext(NamedTuple):
    """The facts by which a policy decides before a step."""

    num_cached: int
    """Tokens in the target's cache."""

    room: int
    """The most draft tokens the step may propose."""

    num_remaining: int
    """Tokens that the answer may still have."""

    states: tuple[ProposerState, ...]
    """One per proposer."""


class Extent(Protocol):
    """Decides how long one proposal becomes."""

    @property
    def limit(self) -> int:
        """The most tokens."""

    def num_worth(self, num_drafted: int, confidence: float) -> int:
        """How many more tokens are worth proposing, the next one included.

        0 or less ends the proposal before the next token, 1 after it. The result may depend
        only on rows and on tokens already drawn: that keeps every rule exact.

        Args:
            num_drafted: Tokens drawn so far.
            confidence: The proposer's confidence in the next token. Its row is known, but it is
                not drawn yet.
        """


class Decision(NamedTuple):
    """A policy's answer: which proposer drafts in this step and how much, or why none does."""

    proposer: int | None
    """The proposer's index; None for no draft, for which draft_off has the reason, if any."""

    extent: Extent | None = None
    """How much it proposes."""

    reads_from: int | None = None
    """Position in the text from which the proposer reads again; None if it keeps its cache."""

    draft_off: DraftOff | None = None


class Replay(NamedTuple):
    """A policy's answer that asks for more information before it decides.

    The proposer says what it would have proposed for tokens that are already in the text
    (`ReplayScores`). `DraftPolicy.replay` gets the scores, and then `choose` is called again.
    """

    proposer: int
    """The proposer's index, as in `Decision`."""

    reads_from: int | None = None
    """Position in the text from which the proposer reads again, as in `Decision`."""


class ReplayScores(NamedTuple):
    """The results of a `Replay`: what would have become of proposals for tokens of the text."""

    chances: list[tuple[float, float]]
    """For each judged token, in order: the proposer's confidence, and the probability that its
    proposal would have been accepted, both 0 … 1."""

    num_read: int
    """How many tokens it read for the replay."""

    sources: Sequence[MatchSource] = ()
    """The sources of the proposals, in the same order; empty if nothing depends on them."""


# Not frozen, since that would take 2 µs of each plain token.
@dataclass(slots=True)
class StepRecord:
    """The result of a step, for policies. Times in seconds."""

    proposer: int | None
    """Index of the chosen proposer, if any."""

    confidences: Sequence[float]
    """The confidences in the draft tokens."""

    num_accepted: int
    """How many draft tokens were accepted."""

    num_emitted: int

    num_read: int
    """Tokens that the proposer read before its first row."""

    num_target_tokens: int
    """Tokens in the target's decode, padding included."""

    num_cached: int
    """Tokens in the target's cache before that decode."""

    draft_time_s: float
    """Seconds of decision and proposal."""

    target_time_s: float
    """Seconds of the target's decode."""

    sampler_time_s: float
    """Seconds of samplers and verification."""

    replay_s: float = 0.0
    """Seconds of replays before the proposal."""

    num_threads: int = 1
    """The threads of the target's decode."""

    @property
    def num_draft_tokens(self) -> int:
        """How many tokens were proposed."""
        return len(self.confidences)


@dataclass(frozen=True, slots=True)
class PolicyEstimate:
    """A policy's estimate of the next step. Times in seconds."""

    proposer: ProposerKind
    acceptance: float
    """Probability that the next draft token is accepted, 0 … 1."""

    break_even: float | None
    """The lowest acceptance at which drafting would pay; None if it never does."""

    plain_step_s: float
    """The time of a target-only step."""

    draft_token_s: float
    """The seconds of a draft token, or of a whole block."""

    step_ratios: Mapping[int, float]
    """n → v(n), the cost of decoding n tokens at once in target-only steps, for the sizes
    measured here."""


class DraftPolicy:
    """Chooses the number of draft tokens. By default it learns nothing."""

    @property
    def keeps_sizes(self) -> bool | None:
        """Whether each decode of a model should have the size of its last one.

        True where a change of the size takes much time; None if that is not measured yet.
        """
        return None

    def reset(self) -> None:
        """Reset the state that belongs to one answer, since another begins."""

    def pause_left(self, proposer: int) -> int:
        """For how many more tokens a proposer is paused; 0 if it is not.

        A paused proposer is not asked for its state.
        """
        return 0

    def choose(self, context: PolicyContext) -> Decision | Replay:
        """Decide which proposer drafts in the next step and how much, or ask for a replay."""
        raise NotImplementedError

    def replay(self, proposer: int, replay_scores: ReplayScores, seconds: float) -> None:
        """Learn from a replay that `choose` asked for, and from its time in seconds."""

    def padded(self, num_tokens: int, limit: int) -> int:
        """The size, from num_tokens to limit, to which the target's decode should be padded.

        Called before each step but the first, also for a step without a draft.
        """
        return num_tokens

    def learn(self, record: StepRecord) -> None:
        """Learn from a finished step."""

    def estimate(self) -> PolicyEstimate | None:
        """Its estimate of the next step; None if it has none."""
        return None


class UpTo(NamedTuple):
    """An `Extent` of a fixed number of tokens, whatever the proposer's confidence is."""

    limit: int

    def num_worth(self, num_drafted: int, confidence: float) -> int:
        return self.limit - num_drafted


@dataclass(slots=True)
class FixedDraftPolicy(DraftPolicy):
    """Drafts the same number of tokens in every step, from the first proposer that has any.

    Raises OptionError for a number outside 0 … MAX_DRAFT_TOKENS.
    """

    draft_tokens: int

    keeps_sizes: bool | None = field(default=None, compare=False)
    """Set once the cost of a change of sizes is measured."""

    _size: int = field(
        default=1,
        init=False,
        compare=False,
    )  # tokens of the target's decodes
    _num_idle: int = field(
        default=0,
        init=False,
        compare=False,
    )  # steps without a draft

    def __post_init__(self) -> None:
        count = self.draft_tokens
        if not is_whole(count, 0, MAX_DRAFT_TOKENS):
            raise OptionError(
                f"the number of draft tokens is {count!r}",
                f"Choose 0 (plain decoding) to {MAX_DRAFT_TOKENS}.",
            )

    def choose(self, context: PolicyContext) -> Decision:
        if self.draft_tokens == 0:
            return Decision(None, draft_off=DraftOff.SET_TO_ZERO)
        for index, state in enumerate(context.states):
            num_tokens = min(self.draft_tokens, state.max_tokens)
            limit = min(num_tokens, context.room)
            if limit > 0:
                self._size = num_tokens + 1
                return Decision(index, UpTo(limit))
        return Decision(None, draft_off=reason_for_none(context))

    def padded(self, num_tokens: int, limit: int) -> int:
        if num_tokens > 1:
            self._num_idle = 0
        else:
            self._num_idle += 1
        is_padded = self.keeps_sizes and self._num_idle <= _MOST_IDLE and self._size <= limit
        if is_padded:
            return max(self._size, num_tokens)
        return num_tokens


def reason_for_none(context: PolicyContext) -> DraftOff | None:
    """Why no proposer can draft: the first reason of a proposer that has one, else None."""
    for state in context.states:
        if state.draft_off:
            return state.draft_off
    return None


@dataclass(frozen=True, slots=True)
class Drafting:
    """A user's settings for drafting: which proposer, and how many tokens.

    Raises OptionError for a value outside its range.
    """

    draft_tokens: int | None = None
    """Draft tokens per step; None is the automatic policy."""

    proposer: ProposerName = "auto"
    """"draft", the draft model; "head" or "mtp", a trained head; "lookup", the text itself;
    "auto", the one that pays; "none" is plain decoding."""

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
        """Whether nothing is ever proposed."""
        return self.draft_tokens == 0 or self.proposer == "none"

    def may_use(self, kind: ProposerKind) -> bool:
        """Whether proposers of this kind may propose. Forced tokens need "auto"."""
        return not self.is_off and self.proposer in ("auto", kind.value)


RuleName = Literal["greedy", "token", "block", "coupled"]


@dataclass(frozen=True, slots=True)
class ThreadUse:
    """How many threads decode, and why they are not more."""

    num_threads: int
    """How many threads now make the target's decodes."""

    num_usable: int
    """The most threads that it could use."""

    is_busy: bool
    """Whether it uses fewer because other programs run on the machine, and not because more
    threads are no faster."""

    slowdown: float | None = None
    """The time of the answer's decodes ÷ that of the fastest such decodes that were measured
    here, in this process or before; None without a measurement, for a short answer, and on
    GPUs."""


class ThreadPolicy:
    """Chooses the number of threads. By default it is always the one that is given here."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads  # the present number

    def reset(self) -> None:
        """Reset the state that belongs to one answer, since another begins."""

    def choose(self) -> int:
        """Choose the number of threads for the next step, and set the models to it."""
        return self._num_threads

    def learn(self, record: StepRecord) -> None:
        """Learn from a finished step."""

    def thread_use(self) -> ThreadUse:
        """The present choice."""
        return ThreadUse(self._num_threads, self._num_threads, is_busy=False)

    def as_dict(self) -> dict[str, Any]:
        """The content to save for the next process, in JSON's types."""
        return {}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Continue from `as_dict`."""
