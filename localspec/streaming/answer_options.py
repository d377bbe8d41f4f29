"""The options of one answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeGuard

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

# Every trigger is searched for in every token of the vocabulary.
_MAX_TRIGGERS = 64
_MAX_PREDICTION_TOKENS = 1 << 20  # more than any context holds


class AnswerKeywords(SamplingKeywords, total=False):
    """The keywords of every method that asks for an answer.

    They are the fields of `AnswerOptions` and the fields of `SamplingParams`. The latter change
    single values of `sampling`: temperature=0.2 keeps all other values.
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
    """The names of all keywords of a method that asks for an answer."""
    return tuple(AnswerKeywords.__annotations__)


note_keywords("engine.generate(", answer_keywords())


@known_fields
@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """The options of one answer; None means the default.

    An answer can be constrained in one of four ways: json_schema, regex, grammar, choices. The
    constraint applies after its thoughts, if it has any.

    Raises OptionError for an option of the wrong type or outside its range, and for two
    constraints; ConstraintError for a constraint that cannot be used.
    """

    sampling: SamplingParams | None = None
    """The sampling settings; by default the preset's."""

    seed: int | None = None
    """0 … 2**63 - 1."""

    rule: RuleName | None = None
    """The rule by which draft tokens are judged (see `rules.make_rule`). With greedy and
    coupled, a seed gives the same text whatever the draft does; with token and block, only
    while the number of draft tokens is the same."""

    max_tokens: int | None = None
    """The most tokens of the answer; by default as many as the context has room for."""

    stop: str | Sequence[str] | None = ()
    """A text, or several, that ends the answer and is left out of it."""

    logprobs: int | None = None
    """How many of the best tokens to list next to every token's log-probability; 0 gives only
    the token's own. By default there are no log-probabilities."""

    on_prompt: Callable[[int, int], None] | None = None
    """Called with the number of the prompt's decoded tokens and the number of all its tokens,
    after each batch of a prompt of several batches, in the thread that reads the answer. An
    exception in it ends the answer."""

    draft_tokens: int | None = None
    """Tokens proposed per step; 0 is plain decoding. By default as the engine was loaded."""

    proposer: ProposerName | None = None
    """Which of the engine's proposers may propose; by default as the engine was loaded."""

    prediction: str | Sequence[int] | None = None
    """A text, or token ids, that most of the answer is expected to repeat, as the text to edit.
    The lookup proposes from it where the answer follows it. It never changes what is said."""

    adapter_scales: Sequence[float] | Mapping[int, float] | None = field(
        default=None,
        hash=False,
    )
    """The scales of the target's LoRA adapters: one for each in their order, or by their
    numbers from 0, where an adapter without one gets 0. By default the engine's."""

    tools: Sequence[AnyTool] | None = field(default=None, hash=False)
    """The tools that the model may call, if the prompt is made from messages: Python functions,
    dicts with a name, a description and parameters (the JSON schema of an object), or OpenAI's
    form. A function's schema is made from its annotations, its description from its docstring.
    In a chat, by default the tools of the last answer."""

    tool_choice: ToolChoice | None = field(default=None, hash=False)
    """"auto", "none", "required", or the name of the tool that has to be called."""

    parallel_tool_calls: bool | None = None
    """Whether the model may call several tools at once. By default only where it may choose: a
    model that has to call might never stop calling. No tool is run here: see `Reply.tool_calls`
    and `run_tools`."""

    json_schema: Mapping[str, object] | str | type | None = field(default=None, hash=False)
    """A dict, its JSON, a Pydantic model class or a dataclass; kept as JSON."""

    strict: bool = False
    """Whether a keyword of the schema that cannot be enforced is an error. Otherwise it is
    ignored, and listed in `Reply.not_kept`."""

    regex: str | None = None
    """A regular expression for the whole answer."""

    grammar: str | None = None
    """Lark or GBNF."""

    choices: Sequence[str] | None = None
    """The texts of which the answer is one."""

    trigger: str | Sequence[str] | None = None
    """A text, or several, after which the constraint applies. Before it, and in an answer
    without it, the model may say anything."""

    queue: bool = False
    """Whether to wait in line, first come, first served, while the engine produces another
    answer; otherwise that raises BusyError. The answer's `cancel` ends the wait, too."""

    changes: Mapping[str, object] = field(default_factory=dict, hash=False)
    """Values that replace some fields of the sampling settings, by name."""

    @property
    def drafting(self) -> Drafting | None:
        """The settings for drafting; None leaves them to the engine."""
        if self.draft_tokens is None and self.proposer is None:
            return None
        return Drafting(self.draft_tokens, self.proposer or "auto")

    def tool_use(self, known: tuple[Tool, ...]) -> ToolUse:
        """The tools that may be called, and which of them have to be called.

        Args:
            known: The tools to use if the option `tools` is None.

        Raises:
            OptionError: If `tool_choice` does not fit them, and for a wrong
                `parallel_tool_calls`.
        """
        tools: Sequence[AnyTool] = known
        if self.tools is not None:
            tools = self.tools
        return tool_use(tools, self.tool_choice, is_parallel=self.parallel_tool_calls)

    @property
    def triggers(self) -> tuple[str, ...]:
        """The texts after which the constraint applies; empty if it applies from the start."""
        return checked_texts(self.trigger, "a trigger", "triggers")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The texts that end the answer, without empty ones, which would end it at once."""
        texts = checked_texts(self.stop, "a stop string", "stop strings")
        return tuple(text for text in texts if text)

    @classmethod
    def of(cls, options: Self | None = None, /, **keywords: Unpack[AnswerKeywords]) -> Self:
        """The options of a method call.

        Args:
            options: The options that the keywords change; None for the defaults.
            keywords: Single fields, also those of the sampling settings.

        Raises:
            OptionError: As the class, and for an unknown keyword.
        """
        all_names = answer_keywords()
        for name in keywords:
            if name not in all_names:
                check_has_distribution(name)  # a better error for samplers of other programs
        check_keywords(keywords, all_names)
        if not isinstance(options, cls | None):
            raise OptionError(
                f"the options are {options!r:.80}",
                "Give an AnswerOptions, or each option by its name: temperature=0.2.",
            )
        if options is not None and not keywords:
            return options
        own_fields: dict[str, Any] = {}
        sampling_changes: dict[str, object] = {}
        for name, value in keywords.items():
            if name in SamplingKeywords.__annotations__:
                sampling_changes[name] = value
            else:
                own_fields[name] = value
        if options is None:
            return cls(**own_fields, changes=sampling_changes)
        if "sampling" not in own_fields:  # new settings drop the earlier changes
            sampling_changes = {**options.changes, **sampling_changes}
        return replace(options, **own_fields, changes=sampling_changes)

    def sampling_from(self, default: SamplingParams) -> SamplingParams:
        """The sampling settings of the answer: `sampling` with the `changes`.

        Args:
            default: The engine's settings, for an answer without `sampling`.
        """
        sampling = self.sampling or default
        return sampling.changed(self.changes)

    def __post_init__(self) -> None:
        if not isinstance(self.sampling, SamplingParams | None):
            raise OptionError(f"sampling is {self.sampling!r}", "Give a SamplingParams.")
        # These two raise OptionError for wrong values.
        self.sampling_from(SamplingParams())
        _ = self.drafting
        self._freeze_values()
        self._check_constraint()
        if self.on_prompt is not None and not callable(self.on_prompt):
            raise OptionError(
                f"on_prompt is {self.on_prompt!r}",
                "Give a function of two numbers.",
            )
        if not isinstance(self.queue, bool):
            raise OptionError(f"queue is {self.queue!r}", "Choose True or False.")
        for name, lowest in (("max_tokens", 1), ("logprobs", 0)):
            value = getattr(self, name)
            if value is not None and not is_whole(value, lowest):
                raise OptionError(f"{name} is {value!r}", f"Choose {lowest} or more.")

    def _freeze_values(self) -> None:
        """Replace values that can be read only once, or that a caller could change, by copies.

        The copies are checked. Only a prediction that is a list is not copied.
        """
        if isinstance(self.prediction, Iterator):
            tokens = at_most(
                _MAX_PREDICTION_TOKENS,
                self.prediction,
                "tokens in the prediction",
            )
            object.__setattr__(self, "prediction", tuple(tokens))
        if not isinstance(self.stop, str):
            object.__setattr__(self, "stop", self.stop_strings)
        if not isinstance(self.trigger, str | None):
            object.__setattr__(self, "trigger", self.triggers)
        if self.adapter_scales is not None:
            object.__setattr__(self, "adapter_scales", scales_of(self.adapter_scales))
        if self.tools is not None:
            object.__setattr__(self, "tools", checked_tools(self.tools))

    def _check_constraint(self) -> None:
        """Check the constraint and its triggers, and replace the schema by its JSON text."""
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
    """The scales of adapters by the adapters' numbers, from a sequence or a mapping.

    Raises OptionError for anything else.
    """
    by_number = scales
    if isinstance(scales, Sequence) and not isinstance(scales, str | bytes):
        by_number = dict(enumerate(scales))
    if not _has_whole_keys(by_number):
        raise OptionError(
            f"the scales of the adapters are {scales!r:.80}",
            "Give a scale for each adapter, or scales by the adapters' numbers: {0: 0.5}.",
        )
    return {number: checked_scale(scale) for number, scale in by_number.items()}


def _has_whole_keys(scales: object) -> TypeGuard[Mapping[int, object]]:
    """Whether `scales` is a mapping whose keys are whole numbers."""
    return isinstance(scales, Mapping) and all(type(number) is int for number in scales)


def spec_of(options: AnswerOptions) -> ConstraintSpec | None:
    """The constraint of an answer; None without one."""
    return constraint_spec(
        options.json_schema,
        options.regex,
        options.grammar,
        options.choices,
        is_strict=options.strict,
    )
