"""Tools as other libraries declare them, their calls, and the choice whether to call one."""

from __future__ import annotations

import inspect
import json
import re
import secrets
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from localspec.errors import ConstraintError, OptionError, did_you_mean, require_unicode
from localspec.tools.functions import described
from localspec.tools.schemas import resolved

_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
MOST_TOOLS = 1024  # each becomes a part of the grammar and of the prompt
_ID_LENGTH = 9  # as Mistral's templates require; others take any length
# Keywords that may stand beside a reference from the root of a tool's schema.
_BESIDE_REFERENCE = {
    "$defs", "definitions", "$schema", "$id", "type", "title", "description"
}  # fmt: skip
_EXAMPLE = (
    'Give a function, {"name": …, "description": …, "parameters": {a JSON schema}}, or '
    "OpenAI's form."
)

ToolChoice = str | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call."""

    name: str
    description: str

    parameters: Mapping[str, Any]
    """The JSON schema of its arguments."""

    is_strict: bool = False
    """Whether a call must fit the schema."""

    function: Callable[..., Any] | None = field(default=None, compare=False)
    """The function that `run_tools` calls, with the arguments by name. It stays in this
    process."""

    def __reduce__(self) -> tuple[type[Tool], tuple[Any, ...]]:
        return Tool, (self.name, self.description, self.parameters, self.is_strict)

    def declared(self) -> dict[str, Any]:
        """The tool as chat templates expect it."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}


AnyTool = Callable[..., Any] | Mapping[str, object] | Tool  # as a caller declares a tool


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model makes. `run_tools` runs it, or the application."""

    id: str
    """Identifies the call when its result is given."""

    name: str
    json: str
    """The arguments, as a JSON object."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name."""
        arguments: dict[str, Any] = json_value(self.json)
        return arguments


class CallPiece(NamedTuple):
    """A piece of a call."""

    number: int
    """The number of the call in its answer, from 0."""

    id: str
    """The call's id, in each of its pieces."""

    name: str
    """The tool's name, in each of the call's pieces."""

    json: str
    """The next part of its arguments' text."""

    is_last: bool
    """Whether the call is complete with this piece."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that an answer may call."""

    tools: tuple[Tool, ...] = ()
    """All tools that the model is given."""

    must: bool = False
    """Whether the answer must call a tool."""

    only: tuple[str, ...] | None = None
    """The names of the tools that it may call; None for all."""

    are_off: bool = False
    """Whether it may call no tool."""

    is_parallel: bool = True
    """Whether it may have several calls."""

    answer_schema: Mapping[str, Any] | None = None
    """The JSON schema of an answer that is not a call."""

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools that the answer may call."""
        if self.are_off:
            return ()
        if self.only is None:
            return self.tools
        return tuple(tool for tool in self.tools if tool.name in self.only)


def tool_use(tools: object, choice: object, *, is_parallel: object) -> ToolUse:
    """The tools of an answer, as a caller declares them.

    Raises OptionError.

    Args:
        tools: A sequence of functions (see `described`), and of mappings: a name, a description
            and the schema of the parameters, flat or under "function" as OpenAI has them. The
            schema may be named input_schema, too.
        choice: "auto", "none", "required", a tool's name, or OpenAI's object with a name, or
            with the tools that are allowed.
        is_parallel: Whether there may be several calls. None: only if no call is required.
    """
    checked = checked_tools(tools)
    if not isinstance(is_parallel, bool | None):
        raise OptionError(f"parallel_tool_calls is {is_parallel!r:.80}", "Give True or False.")
    mode, only = _mode_and_names(choice)
    if mode == "none":
        return ToolUse(checked, are_off=True)
    if only is not None and len(only) > MOST_TOOLS:
        raise OptionError(
            f"the tool choice names {len(only)} tools",
            f"Name up to {MOST_TOOLS} of them.",
        )
    names = [tool.name for tool in checked]
    unknown = [str(name) for name in only or () if name not in names]
    has_nothing_to_call = mode == "required" and not checked
    if unknown or mode not in ("auto", "required") or has_nothing_to_call:
        hint = "Choose auto, none, required, or a tool's name."
        if unknown:
            hint = did_you_mean(unknown[0], names) + hint
        raise OptionError(
            f"the tool choice is {choice!r:.200}; the tools are "
            f"{', '.join(names) or 'none':.2000}",
            hint,
        )
    must = mode == "required"
    if is_parallel is None:
        is_parallel = not must
    return ToolUse(
        checked,
        must=must,
        only=only,
        is_parallel=is_parallel,
    )


def checked_tools(tools: object) -> tuple[Tool, ...]:
    """The tools that a caller declares: see `tool_use`.

    Raises OptionError for anything else, for more than `MOST_TOOLS`, and for two of one name.
    """
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise OptionError(f"the tools are {tools!r:.80}", "Give a list of them.")
    if len(tools) > MOST_TOOLS:
        raise OptionError(
            f"there are {len(tools)} tools",
            f"Give up to {MOST_TOOLS}: those that may be needed.",
        )
    checked = tuple(_checked(number, tool) for number, tool in enumerate(tools))
    names: set[str] = set()
    for tool in checked:
        if tool.name in names:
            raise OptionError(f"two tools have the name {tool.name!r}", "Give each its own.")
        names.add(tool.name)
    return checked


def json_value(text: str) -> Any:
    """The value of a JSON text. All its numbers are finite, and all its texts can be encoded.

    1e400 becomes the largest float, since no grammar of JSON bounds exponents. Raises
    ValueError for a text that is not JSON.
    """
    try:
        value = json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("too deep") from error
    if "\\u" not in text:  # else a text may have half of a surrogate pair
        return value
    return json.loads(json_text(value))


def json_text(value: object) -> str:
    """JSON on one line, with U+FFFD for halves of surrogate pairs, which no encoding has."""
    text = json.dumps(value, ensure_ascii=False)
    return _SURROGATE.sub("\ufffd", text)


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    largest = sys.float_info.max
    return min(max(float(text), -largest), largest)


def new_call_id() -> str:
    """An id for a call, letters and digits."""
    return secrets.token_hex(_ID_LENGTH)[:_ID_LENGTH]


def _checked(number: int, tool: object) -> Tool:
    """Check a tool of `checked_tools`. Raises OptionError.

    Args:
        number: The tool's number among the others, from 0, for the error.
        tool: The tool, as a caller declares it.
    """
    function = None
    if inspect.isroutine(tool):
        tool, function = described(tool)
    elif isinstance(tool, Tool):
        function = tool.function
        tool = {**tool.declared()["function"], "strict": tool.is_strict}
    declared = None
    if isinstance(tool, Mapping):
        declared = tool.get("function", tool)
    if not isinstance(declared, Mapping):
        raise OptionError(f"tool {number} is {tool!r:.80}", _EXAMPLE)
    name = declared.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise OptionError(
            f"the name of tool {number} is {name!r:.80}",
            "Give 1 to 128 letters, digits, and characters of _.:/-",
        )
    description = declared.get("description")
    if not isinstance(description, str | None):
        raise OptionError(
            f"the description of the tool {name} is {description!r:.80}",
            _EXAMPLE,
        )
    parameters = _parameters_in(declared)
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise OptionError(
            f"the parameters of the tool {name} are {parameters!r:.200}",
            'Give the JSON schema of an object: {"type": "object", "properties": {…}}.',
        )
    schema = {"type": "object", "properties": {}, **parameters}
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(
            f"the parameters of the tool {name} are not JSON: {error}",
            "Use only values that JSON can hold.",
        ) from error
    require_unicode(f"the description of the tool {name}", description or "")
    require_unicode(f"the JSON of the parameters of the tool {name}", text)
    return Tool(name, description or "", schema, declared.get("strict") is True, function)


def _parameters_in(declared: Mapping[str, Any]) -> Any:
    """The parameters in a tool's declaration; an empty schema if it has none."""
    for keyword in ("parameters", "input_schema"):
        if isinstance(declared.get(keyword), Mapping):
            return _with_content(declared[keyword])
        if declared.get(keyword) is not None:
            return declared[keyword]
    return {}


def _with_content(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema with the content to which its root refers, so that it has properties.

    Pydantic writes such a root for a model that refers to itself, and zod-to-json-schema for
    one with a name. A root with further keywords that constrain a value stays as it is.
    """
    if schema.keys() - _BESIDE_REFERENCE not in ({"$ref"}, {"allOf"}):
        return schema
    try:
        content = resolved(schema, schema)
    except ConstraintError:
        return schema  # the error is raised where the schema is to be enforced
    if content is schema or not isinstance(content, Mapping):
        return schema
    beside = {key: value for key, value in schema.items() if key in _BESIDE_REFERENCE}
    return {**beside, **content}


def _mode_and_names(choice: object) -> tuple[object, tuple[Any, ...] | None]:
    """The mode of a choice (auto, none or required), and the names of the tools it allows.

    The names are None if all tools are allowed. The names and a mode of OpenAI's object are
    not checked.
    """
    if choice is None:
        return "auto", None
    if choice in ("auto", "none", "required"):
        return choice, None
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        if isinstance(allowed, Mapping) and isinstance(allowed.get("tools"), list):
            names = tuple(map(_name_in, allowed["tools"]))
            return allowed.get("mode"), names
    return "required", (_name_in(choice),)


def choice_once_called(choice: ToolChoice | None) -> ToolChoice:
    """The choice for the answer after the calls' results: no call is required any more."""
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        return {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": allowed["tools"],
        }
    if choice == "none":
        return "none"
    return "auto"


def _name_in(choice: object) -> object:
    """The name of a tool in a choice; None if there is none."""
    if isinstance(choice, Mapping):
        function = choice.get("function", choice)
        if isinstance(function, Mapping):
            return function.get("name")
        return None
    return choice


def whole_calls(pieces: Iterable[CallPiece | None]) -> tuple[ToolCall, ...]:
    """The calls that the pieces complete, in the order of their last pieces."""
    texts: dict[int, str] = {}
    calls = []
    for piece in pieces:
        if piece is None:
            continue
        texts[piece.number] = texts.get(piece.number, "") + piece.json
        if piece.is_last:
            calls.append(ToolCall(piece.id, piece.name, texts[piece.number]))
    return tuple(calls)
