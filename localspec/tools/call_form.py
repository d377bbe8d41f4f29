"""A form of calls: how a model writes calls of tools, and how they are read back.

A call is before + start + arguments + end + after; another call follows after `between`. That
is how the template renders it, and what the grammar lets a model write (`grammar`). A model
that writes without a grammar may use other blank space, which `CallForm.read` accepts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localspec.tools.arguments import (
    ArgumentReader,
    JsonArguments,
    TagArguments,
    Tags,
    flexible,
)
from localspec.tools.schemas import fits
from localspec.tools.tool import Tool, ToolCall, json_text, json_value

Tools = Mapping[str, Tool]  # by name

NAME = "NAME"  # stands for the tool's name in `CallForm.start`
CALL_ID = "CALLID"  # stands for the call's id there, or its number
_NAME_PATTERN = "(?P<name>[A-Za-z0-9_.:/-]+)"
_ID_PATTERN = "(?P<id>[A-Za-z0-9_-]+)"
# An id behind a mark of its own, which not every model of a family writes.
MARKED_ID = re.compile(rf"(?<={NAME})(\[[A-Z_]+\]|<[^<>\s]+>){CALL_ID}(?=.)")


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a model writes calls."""

    before: str
    """What stands before the first call."""

    start: str
    """A call up to its arguments, with NAME and perhaps CALL_ID."""

    after: str = ""
    """What stands after the last call."""

    end: str = ""
    """What stands after a call's arguments."""

    between: str = ""
    """What stands between a call and the next, besides `end`."""

    openings: tuple[str, ...] = ()
    """Texts with which calls begin. `before` begins with the first, unless the form is bare."""

    closing: str = ""
    """With which calls end; without one they extend to the end of the answer."""

    notation: type[ArgumentReader] = JsonArguments
    """The kind of reader of the arguments."""

    tags: Tags | None = None
    """How arguments are written one by one, for `TagArguments`."""

    marks: tuple[str, ...] = ()
    """Texts in all of these that may be entries of the vocabulary."""

    is_bare: bool = False
    """Whether an answer may begin with a call without an opening."""

    recipient: str = ""
    """Matches the header of a message that is a call: the name, and the space before it."""

    forgets: str = ""
    """A text with NAME before which models leave out the opening."""

    is_single: bool = False
    """Whether the template takes one call in a message."""

    has_ids: bool = False
    """Whether the template only takes ids of nine letters and digits."""

    is_shown: bool = True
    """Whether the template shows the calls of earlier answers. Else they are its text."""

    @property
    def literals(self) -> str:
        """All texts in which there may be entries of the vocabulary."""
        tags = self.tags or ()
        texts = [self.before, self.start, self.end, self.between, self.after, *map(str, tags)]
        return "\n".join(texts)

    @property
    def sign(self) -> str:
        """The text of `start` before the name, without blank space."""
        return "".join(self.start.partition(NAME)[0].split())

    @property
    def has_objects(self) -> bool:
        """Whether a call is a JSON object that has the tool's name in it."""
        return self.start.lstrip().startswith("{")

    def reader(self, tool: Tool, *, is_kept: bool) -> ArgumentReader:
        """A reader of the arguments of one call."""
        if self.tags is not None:
            return TagArguments(tool, self.tags, is_kept=is_kept)
        return self.notation(tool, is_kept=is_kept)

    def may_begin(self, opening: str, text: str) -> bool:
        """Whether the text behind an opening may be the beginning of a call."""
        before = self.start.partition(NAME)[0]
        if opening:
            before = (self.before + before).removeprefix(opening)
        sign = "".join(before.partition('"')[0].split())
        begun = "".join(text.split())
        return begun.startswith(sign) or sign.startswith(begun)

    def first_pattern(self, opening: str) -> re.Pattern[str]:
        """Matches the first call up to its arguments, as a grammar has it behind an opening."""
        start = self.start
        if opening:
            start = (self.before + self.start).removeprefix(opening)
        return re.compile(_start_regex("", start, re.escape))

    def further_pattern(self) -> re.Pattern[str]:
        """Matches another call up to its arguments, as a grammar has it."""
        return re.compile(_start_regex(re.escape(self.between), self.start, re.escape))

    def read(self, text: str, tools: Tools) -> list[ToolCall]:
        """The calls between an opening and a closing, with the model's own ids or "".

        Raises ValueError for a text that is not a call of these tools.
        """
        if self.recipient:
            name, _, arguments = text.partition("\n")
            return [_call(name, arguments, tools)]
        if self.has_objects:
            return read_objects(text, tools)
        return self._read_spelled(text, tools)

    def _read_spelled(self, text: str, tools: Tools) -> list[ToolCall]:
        """Calls whose names stand outside of JSON."""
        opening = self.openings[0]
        before = (self.before + self.start).removeprefix(opening)
        first = re.compile(_start_regex(r"\s*", before, flexible))
        between = flexible(self.between.strip())
        if self.sign:
            between = f"(?:{between})?"
        behind = rf"\s*(?:{flexible(self.end.strip())})?\s*{between}\s*"
        further = re.compile(_start_regex(behind, self.start, flexible))
        is_raw = self.tags is not None and not self.tags.is_quoted
        calls: list[ToolCall] = []
        found = first.match(text) or further.match(text)
        end = 0
        while found is not None:
            tool = tools.get(found["name"].strip())
            if tool is None:
                raise ValueError("no call of these tools")
            reader = self.reader(tool, is_kept=False)
            if is_raw:
                # A text without quotes ends where nothing but another call can follow.
                following = further.search(text, found.end())
                limit = len(text) if following is None else following.start()
                arguments, rest = self._read_raw(reader, text[found.end() : limit])
                end = limit - len(rest)
            else:
                arguments = reader.push(text[found.end() :])
                end = len(text) - len(reader.rest)
                following = further.match(text, end)
            own_id = found.groupdict().get("id") or ""
            calls.append(replace(_call(tool.name, arguments, tools), id=own_id))
            found = following
        rest = "".join(text[end:].split())
        whole = "".join((self.end + self.after).split())
        if not calls or not (
            whole.endswith(rest) or whole.removesuffix(self.closing).endswith(rest)
        ):
            raise ValueError("more than calls")
        return calls

    def _read_raw(self, reader: ArgumentReader, text: str) -> tuple[str, str]:
        """The arguments that a text ends with, and what stands behind them."""
        assert self.tags is not None
        body, end, rest = text.rpartition(self.tags.end)
        if not end:
            body = text
            rest = ""
        arguments = reader.push(body) + reader.push(self.tags.end)
        if reader.rest.removeprefix(self.tags.end).strip():
            raise ValueError("more than arguments")
        return arguments, rest

    def render(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """The text of calls, each a name and its arguments."""
        each = [
            f"{self.start.replace(NAME, name)}{self._notated(arguments)}{self.end}"
            for name, arguments in calls
        ]
        return f"{self.before}{self.between.join(each)}{self.after}"

    def _notated(self, arguments: Mapping[str, Any]) -> str:
        if self.tags is None:
            return json_text(arguments)
        return self.tags.render(arguments)


def _start_regex(before: str, start: str, spelled: Callable[[str], str]) -> str:
    """A regular expression of the beginning of a call behind that one."""
    optional = MARKED_ID.search(start)
    texts = [start]
    if optional is not None:
        texts = [start[: optional.start()], start[optional.end() :]]
    parts = [_of_parts(text, spelled) for text in texts]
    if optional is not None:
        parts.insert(1, f"(?:{_of_parts(optional[0], spelled)})?")
    return before + "".join(parts)


def _of_parts(text: str, spelled: Callable[[str], str]) -> str:
    for_placeholder = {NAME: _NAME_PATTERN, CALL_ID: _ID_PATTERN}
    parts = re.split(f"({NAME}|{CALL_ID})", text)
    regex = "".join(for_placeholder.get(part) or spelled(part) for part in parts)
    if text.endswith(NAME):
        regex += "(?=[^A-Za-z0-9_.:/-])"  # the name has ended
    return regex


def calls_in(
    text: str, tools: Tools, read: Callable[[str, Tools], list[ToolCall]]
) -> list[ToolCall] | None:
    """The calls that a text is, by that reader; None if it is anything else."""
    try:
        return read(text, tools) or None
    except ValueError:
        return None


def read_objects(text: str, tools: Tools) -> list[ToolCall]:
    """Objects with a name and arguments (or parameters), in a row or in a list."""
    rest = text.strip()
    calls: list[ToolCall] = []
    while rest or not calls:
        value, rest = _first_value(rest)
        found = value if isinstance(value, list) else [value]
        calls += [_of_object(each, tools) for each in found]
    return calls


def _of_object(value: object, tools: Tools) -> ToolCall:
    if not isinstance(value, dict):
        raise ValueError("no object")
    function = value.get("function")
    given = function if isinstance(function, dict) else value
    if len(given) == 1 and set(given) <= set(tools):
        [(name, arguments)] = given.items()
    else:
        name = given.get("name", given.get("tool_name"))
        arguments = given.get("arguments") or given.get("parameters")
    return _call(name, arguments or {}, tools)  # some write null


def read_fitting(text: str, tools: Tools) -> list[ToolCall]:
    """As `read_objects` one value, where the arguments fit the tools' schemas."""
    json_value(text)
    calls = read_objects(text, tools)
    for call in calls:
        schema = tools[call.name].parameters
        if not fits(call.arguments, schema, schema):
            raise ValueError("arguments that do not fit")
    return calls


def _call(name: object, arguments: object, tools: Tools) -> ToolCall:
    if isinstance(arguments, str):
        arguments = json_value(arguments)  # some write the object as a text
    if not isinstance(arguments, dict) or not isinstance(name, str) or name not in tools:
        raise ValueError("no such call")
    return ToolCall("", name, json_text(arguments))


def _first_value(text: str) -> tuple[Any, str]:
    """The JSON value at the beginning of a text, and the text behind it."""
    try:
        _, end = _DECODER.raw_decode(text)
    except RecursionError as error:
        raise ValueError("too deep") from error
    return json_value(text[:end]), text[end:].lstrip()


_DECODER = json.JSONDecoder()
