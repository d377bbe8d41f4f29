"""The options of one answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from localspec.constraints.spec import (
    ConstraintSpec,
    constraint_spec,
    schema_text,
)
from localspec.errors import OptionError, at_most, is_whole, require_unicode
from localspec.gguf_file.adapter import checked_scale
from localspec.keywords import check_keywords, known_fields, note_keywords
from localspec.sampling.params import (
    SamplingKeywords,
    SamplingParams,
    check_has_distribution,
)
from localspec.speculative.policy_api import Drafting, ProposerName, RuleName
from localspec.streaming.answer_text import checked_texts
from localspec.tools.tool import (
    AnyTool,
    Tool,
    ToolChoice,
    ToolUse,
    checked_tools,
    tool_use,
)

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack  # in typing from Python 3.11 on

# Each is looked for in every token of the vocabulary.
_MAX_TRIGGERS = 64
_MOST_PREDICTED = 1 << 20  # tokens, beyond any context


class AnswerKeywords(SamplingKeywords, total=False):
    """The keywords of every method that asks for an answer.

    The fields of `AnswerOptions`, and those of `SamplingParams` one by one, which count
    beside `sampling`: temperature=0.2 leaves the others as they are.
    """

    sampling: SamplingParams | None
    seed: int | None
    rule: RuleName | None
    max_tokens: int | None
    stop: str | Sequence[str] | None
    logprobs: int | None
    on_prompt: Callable[[int, int], None] | None
    draft_tokens: int | None
    proposer: ProposerName | None
    prediction: str | Sequence[int] | None
    adapter_scales: Sequence[float] | Mapping[int, float] | None
    tools: Sequence[AnyTool] | None
    tool_choice: ToolChoice | None
    parallel_tool_calls: bool | None
    json_schema: Mapping[str, object] | str | type | None
    strict: bool
    regex: str | None
    grammar: str | None
    choices: Sequence[str] | None
    trigger: str | Sequence[str] | None
    queue: bool


def answer_keywords() -> tuple[str, ...]:
    """The names of all keywords that a method takes which asks for an answer."""
    return tuple(AnswerKeywords.__annotations__)


note_keywords("engine.generate(", answer_keywords())


@known_fields
@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """The options of one answer; None means the default.

    Where there are messages, tools: what the model may call, each a Python function, or a dict
    with a name, a description and parameters (the JSON schema of an object), or as OpenAI has
    them; in a chat by default those of the answer before. A function's schema is made of its
    annotations, its description of its docstring.

    What the answer is to fit, in one of four ways, behind its thoughts if it has any.

    Raises OptionError for an option of the wrong type or outside its range, and for two
    constraints; ConstraintError for one that cannot be used.
    """

    sampling: SamplingParams | None = None
    """The sampling settings, by default the preset's."""

    seed: int | None = None
    """0 … 2**63 - 1."""

    rule: RuleName | None = None
    """The one by which draft tokens are judged (see `rules.make_rule`): with greedy and
    coupled a seed means the same text whatever the draft does; with token and block only
    while the number of draft tokens is the same."""

    max_tokens: int | None = None
    """The most tokens to answer with, by default what the context has room for."""

    stop: str | Sequence[str] | None = ()
    """Text that ends the answer and is left out of it, or several."""

    logprobs: int | None = None
    """How many of the best tokens to list with every token's log-probability, 0 for its own
    alone; by default none of it."""

    on_prompt: Callable[[int, int], None] | None = None
    """Called in the thread that reads the answer with how many tokens of the prompt are
    decoded, and how many there are, after each batch of a prompt of several; raising in it
    ends the answer."""

    draft_tokens: int | None = None
    """Proposed per step in this answer, 0 is plain decoding."""

    proposer: ProposerName | None = None
    """Who proposes in it, among those that the engine was loaded with; by default both are
    the engine's."""

    prediction: str | Sequence[int] | None = None
    """What the answer is expected to be for the most part, as an edited text: it is proposed
    where the answer follows it, by the lookup, and changes nothing that is said."""

    adapter_scales: Sequence[float] | Mapping[int, float] | None = field(
        default=None, hash=False
    )
    """The scales of the target's LoRA adapters in this answer, one for each in their order,
    or by their numbers from 0, the others then being 0; by default the engine's."""

    tools: Sequence[AnyTool] | None = field(default=None, hash=False)
    tool_choice: ToolChoice | None = field(default=None, hash=False)
    """"auto", "none", "required", or the name of the tool that has to be called."""

    parallel_tool_calls: bool | None = None
    """Whether several may be called at once; by default only where the model chooses, as one
    that has to call may go on calling without end. No tool is run: see `Reply.tool_calls`,
    and `run_tools`."""

    json_schema: Mapping[str, object] | str | type | None = field(default=None, hash=False)
    """A dict, its JSON, a Pydantic model class or a dataclass; kept as JSON."""

    strict: bool = False
    """Whether a keyword of it that no answer can be kept to is an error; else it is passed
    over, and named in `Reply.not_kept`."""

    regex: str | None = None
    """A regular expression for the whole answer."""

    grammar: str | None = None
    """Lark or GBNF."""

    choices: Sequence[str] | None = None
    """Texts of which it is one."""

    trigger: str | Sequence[str] | None = None
    """A text, or several, behind which that begins: up to there, and in an answer that has
    none of them, anything may be said."""

    queue: bool = False
    """Whether to wait in line where the engine is producing another answer, first come,
    first served, instead of BusyError; the answer's `cancel` ends the wait, too."""

    changes: Mapping[str, object] = field(default_factory=dict, hash=False)
    """Other values of some of its fields, by name."""

    @property
    def drafting(self) -> Drafting | None:
        """The settings for drafting; None leaves them to the engine."""
        if self.draft_tokens is None and self.proposer is None:
            return None
        return Drafting(self.draft_tokens, self.proposer or "auto")

    def tool_use(self, known: tuple[Tool, ...]) -> ToolUse:
        """The tools that may be called; by default the ones that are known already.

        Raises OptionError for another choice.
        """
        tools = known if self.tools is None else self.tools
        return tool_use(tools, self.tool_choice, is_parallel=self.parallel_tool_calls)

    @property
    def triggers(self) -> tuple[str, ...]:
        """The texts behind which that begins; none if it is at once."""
        return checked_texts(self.trigger, "a trigger", "triggers")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The texts that end the answer; an empty one, which would end any, is none."""
        texts = checked_texts(self.stop, "a stop string", "stop strings")
        return tuple(text for text in texts if text)

    @classmethod
    def of(cls, options: Self | None = None, /, **keywords: Unpack[AnswerKeywords]) -> Self:
        """The options of a method: the keywords, and for the rest `options`.

        Raises OptionError as the class does.
        """
        known = answer_keywords()
        for name in keywords:
            if name not in known:
                check_has_distribution(name)
        check_keywords(keywords, known)
        if not isinstance(options, cls | None):
            raise OptionError(
                f"the options are {options!r:.80}",
                "Give an AnswerOptions, or each option by its name: temperature=0.2.",
            )
        if options is not None and not keywords:
            return options
        rest: dict[str, Any] = {**keywords}
        names = SamplingKeywords.__annotations__.keys() & rest.keys()
        changes = {name: rest.pop(name) for name in names}
        if options is None:
            return cls(**rest, changes=changes)
        before = {} if "sampling" in rest else options.changes
        return replace(options, **rest, changes={**before, **changes})

    def sampling_from(self, default: SamplingParams) -> SamplingParams:
        """How to sample where `default` is what the engine does by itself."""
        return (self.sampling or default).changed(self.changes)

    def __post_init__(self) -> None:
        if not isinstance(self.sampling, SamplingParams | None):
            raise OptionError(f"sampling is {self.sampling!r}", "Give a SamplingParams.")
        self.sampling_from(SamplingParams())
        _ = self.drafting
        # As tuples, since an iterator gives what it has once.
        if isinstance(self.prediction, Iterator):
            tokens = at_most(_MOST_PREDICTED, self.prediction, "tokens in the prediction")
            object.__setattr__(self, "prediction", tuple(tokens))
        self._keep_given()
        self._check_constraint()
        if self.on_prompt is not None and not callable(self.on_prompt):
            raise OptionError(
                f"on_prompt is {self.on_prompt!r}", "Give a function of two numbers."
            )
        if not isinstance(self.queue, bool):
            raise OptionError(f"queue is {self.queue!r}", "Choose True or False.")
        for name, lowest in (("max_tokens", 1), ("logprobs", 0)):
            value = getattr(self, name)
            if value is not None and not is_whole(value, lowest):
                raise OptionError(f"{name} is {value!r}", f"Choose {lowest} or more.")

    def _keep_given(self) -> None:
        """Keep what was given in forms of our own."""
        if not isinstance(self.stop, str):
            object.__setattr__(self, "stop", self.stop_strings)
        if not isinstance(self.trigger, str | None):
            object.__setattr__(self, "trigger", self.triggers)
        if self.adapter_scales is not None:
            object.__setattr__(self, "adapter_scales", scales_of(self.adapter_scales))
        if self.tools is not None:
            object.__setattr__(self, "tools", checked_tools(self.tools))

    def _check_constraint(self) -> None:
        if self.json_schema is not None:
            object.__setattr__(self, "json_schema", schema_text(self.json_schema))
        if len(self.triggers) > _MAX_TRIGGERS:
            raise OptionError(
                f"{len(self.triggers)} triggers are given; the limit is {_MAX_TRIGGERS}",
                "Give the beginnings that they share.",
            )
        for text in self.triggers:
            if not text:
                raise OptionError("a trigger is ''", "Give a text that is not empty.")
            require_unicode("a trigger", text)
        if not isinstance(self.strict, bool):
            raise OptionError(f"strict is {self.strict!r:.80}", "Give True or False.")
        if spec_of(self) is None and self.triggers:
            raise OptionError(
                f"the trigger {self.trigger!r:.80} is given without the constraint that it "
                "begins",
                "Give a json_schema, regex, grammar or choices with it.",
            )


def scales_of(scales: object) -> dict[int, float]:
    """Scales of adapters by their numbers. Raises OptionError for anything else."""
    given = scales
    if isinstance(scales, Sequence) and not isinstance(scales, str | bytes):
        given = dict(enumerate(scales))
    numbers = list(given) if isinstance(given, Mapping) else [None]
    if not isinstance(given, Mapping) or not all(type(number) is int for number in numbers):
        raise OptionError(
            f"the scales of the adapters are {scales!r:.80}",
            "Give a number for each adapter, or numbers by those of the adapters: {0: 0.5}.",
        )
    return {number: checked_scale(scale) for number, scale in given.items()}


def spec_of(options: AnswerOptions) -> ConstraintSpec | None:
    """The constraint of an answer, if it has one."""
    return constraint_spec(
        options.json_schema,
        options.regex,
        options.grammar,
        options.choices,
        is_strict=options.strict,
    )
