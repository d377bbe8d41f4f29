"""A form of calls: how a model writes calls of tools, and how they are read back.

A call is before + start + arguments + end + after; another call follows after `between`. The
template renders calls in this form, and the grammar (`grammar`) enforces it. A model that
writes without a grammar may use other blank space, which `CallForm.read` accepts.
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

NAME = "NAME"  # the placeholder of the tool's name in `CallForm.start`
CALL_ID = "CALLID"  # the placeholder of the call's id there, or of its number
_NAME_PATTERN = "(?P<name>[A-Za-z0-9_.:/-]+)"
_ID_PATTERN = "(?P<id>[A-Za-z0-9_-]+)"
# An id after a mark of its own, which not every model of a family writes.
MARKED_ID = re.compile(rf"(?<={NAME})(\[[A-Z_]+\]|<[^<>\s]+>){CALL_ID}(?=.)")


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a model writes calls."""

    before: str
    """The text before the first call."""

    start: str
    """A call up to its arguments, with NAME and perhaps CALL_ID."""

    after: str = ""
    """The text after the last call."""

    end: str = ""
    """The text after a call's arguments."""

    between: str = ""
    """The text between a call and the next, after `end`."""

    openings: tuple[str, ...] = ()
    """Texts with which calls begin. `before` begins with the first, unless the form is bare."""

    closing: str = ""
    """The text with which calls end; without one they extend to the end of the answer."""

    notation: type[ArgumentReader] = JsonArguments
    """The kind of reader of the arguments."""

    tags: Tags | None = None
    """How arguments are written one by one, for `TagArguments`."""

    marks: tuple[str, ...] = ()
    """Texts in the fields above that may be entries of the vocabulary."""

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
    """Whether the template shows the calls of earlier answers. If not, they become text."""

    @property
    def literals(self) -> str:
        """All texts in which there may be entries of the vocabulary."""
        texts = [self.before, self.start, self.end, self.between, self.after]
        texts += map(str, self.tags or ())
        return "\n".join(texts)

    @property
    def sign(self) -> str:
        """The text of `start` before the name, without blank space."""
        before, _, _ = self.start.partition(NAME)
        return _without_space(before)

    @property
    def has_objects(self) -> bool:
        """Whether a call is a JSON object that has the tool's name in it."""
        return self.start.lstrip().startswith("{")

    def reader(self, tool: Tool, *, is_enforced: bool) -> ArgumentReader:
        """A reader of the arguments of one call."""
        if self.tags is not None:
            return TagArguments(tool, self.tags, is_enforced=is_enforced)
        return self.notation(tool, is_enforced=is_enforced)

    def may_begin(self, opening: str, text: str) -> bool:
        """Whether the text after an opening may be the beginning of a call."""
        expected, _, _ = self.start.partition(NAME)
        if opening:
            expected = (self.before + expected).removeprefix(opening)
        # Only up to a quote: models may write the keys of an object in another order.
        unquoted, _, _ = expected.partition('"')
        sign = _without_space(unquoted)
        begun = _without_space(text)
        return begun.startswith(sign) or sign.startswith(begun)

    def first_pattern(self, opening: str) -> re.Pattern[str]:
        """Matches the first call up to its arguments, as a grammar has it after an opening."""
        start = self.start
        if opening:
            start = (self.before + self.start).removeprefix(opening)
        return re.compile(_start_regex("", start, re.escape))

    def further_pattern(self) -> re.Pattern[str]:
        """Matches a call after another one, up to its arguments, as a grammar has it."""
        between = re.escape(self.between)
        return re.compile(_start_regex(between, self.start, re.escape))

    def read(self, text: str, tools: Tools) -> list[ToolCall]:
        """The calls between an opening and a closing. Their id is the model's, or "".

        Raises ValueError for a text that has anything but calls of these tools.
        """
        if self.recipient:
            name, _, arguments = text.partition("\n")
            return [_call(name, arguments, tools)]
        if self.has_objects:
            return read_objects(text, tools)
        return self._read_named(text, tools)

    def _read_named(self, text: str, tools: Tools) -> list[ToolCall]:
        """`read` for a form whose calls have the name outside of the arguments' JSON."""
        first, further = self._flexible_patterns()
        is_raw = self.tags is not None and not self.tags.is_quoted
        calls: list[ToolCall] = []
        match = first.match(text) or further.match(text)
        end = 0  # of the last call
        while match is not None:
            tool = tools.get(match["name"].strip())
            if tool is None:
                raise ValueError("no call of these tools")
            reader = self.reader(tool, is_enforced=False)
            if is_raw:
                # A value without quotes ends at the latest where another call begins.
                next_match = further.search(text, match.end())
                limit = len(text)
                if next_match is not None:
                    limit = next_match.start()
                arguments, text_after = self._read_raw(reader, text[match.end() : limit])
                end = limit - len(text_after)
            else:
                arguments = reader.push(text[match.end() :])
                end = len(text) - len(reader.rest)
                next_match = further.match(text, end)
            call_id = match.groupdict().get("id") or ""
            calls.append(replace(_call(tool.name, arguments, tools), id=call_id))
            match = next_match
        if not calls or not self._may_end_with(text[end:]):
            raise ValueError("more than calls")
        return calls

    def _flexible_patterns(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        """Match the first call and a further one, up to the arguments, with any blank space."""
        start = (self.before + self.start).removeprefix(self.openings[0])
        first = re.compile(_start_regex(r"\s*", start, flexible))
        end = flexible(self.end.strip())
        between = flexible(self.between.strip())
        if self.sign:  # it tells that a call begins, also where `between` is missing
            between = f"(?:{between})?"
        before = rf"\s*(?:{end})?\s*{between}\s*"
        further = re.compile(_start_regex(before, self.start, flexible))
        return first, further

    def _may_end_with(self, text: str) -> bool:
        """Whether a text may stand between the last call's arguments and `closing`."""
        text = _without_space(text)
        whole = _without_space(self.end + self.after)
        return whole.endswith(text) or whole.removesuffix(self.closing).endswith(text)

    def _read_raw(self, reader: ArgumentReader, text: str) -> tuple[str, str]:
        """Read arguments without quotes up to the last `Tags.end` in a text.

        Returns:
            Their JSON, and the text after `Tags.end`.

        Raises:
            ValueError: If there is other text before `Tags.end`.
        """
        assert self.tags is not None
        body, end, text_after = text.rpartition(self.tags.end)
        if not end:
            body = text
            text_after = ""
        arguments = reader.push(body) + reader.push(self.tags.end)
        if reader.rest.removeprefix(self.tags.end).strip():
            raise ValueError("more than arguments")
        return arguments, text_after

    def render(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """The text of calls. An id is the call's number, counted from 0.

        Args:
            calls: The name and the arguments of each call.
        """
        texts = []
        for number, (name, arguments) in enumerate(calls):
            start = self.start.replace(CALL_ID, str(number)).replace(NAME, name)
            texts.append(f"{start}{self._render_arguments(arguments)}{self.end}")
        return f"{self.before}{self.between.join(texts)}{self.after}"

    def _render_arguments(self, arguments: Mapping[str, Any]) -> str:
        """The text of a call's arguments."""
        if self.tags is None:
            return json_text(arguments)
        return self.tags.render(arguments)


def _without_space(text: str) -> str:
    return "".join(text.split())


def _start_regex(before: str, start: str, spelled: Callable[[str], str]) -> str:
    """A regular expression of the beginning of a call.

    Args:
        before: A regular expression of the text before it.
        start: The beginning, with NAME and perhaps CALL_ID.
        spelled: Makes a regular expression of other text.
    """
    optional = MARKED_ID.search(start)
    if optional is None:
        return before + _of_parts(start, spelled)
    id_begin, id_end = optional.span()
    to_id = _of_parts(start[:id_begin], spelled)
    marked_id = _of_parts(optional[0], spelled)
    after_id = _of_parts(start[id_end:], spelled)
    return f"{before}{to_id}(?:{marked_id})?{after_id}"


def _of_parts(text: str, spelled: Callable[[str], str]) -> str:
    """A regular expression of a text with placeholders."""
    regex = ""
    for part in re.split(f"({NAME}|{CALL_ID})", text):
        if part == NAME:
            regex += _NAME_PATTERN
        elif part == CALL_ID:
            regex += _ID_PATTERN
        else:
            regex += spelled(part)
    if text.endswith(NAME):
        regex += "(?=[^A-Za-z0-9_.:/-])"  # the name has ended
    return regex


def calls_in(
    text: str,
    tools: Tools,
    read: Callable[[str, Tools], list[ToolCall]],
) -> list[ToolCall] | None:
    """The calls in a text that has only calls; None for any other text.

    Args:
        text: The text.
        tools: The tools that may be called.
        read: Reads calls, as `read_objects`.
    """
    try:
        return read(text, tools) or None
    except ValueError:
        return None


def read_objects(text: str, tools: Tools) -> list[ToolCall]:
    """The calls in JSON objects, which stand one after another or in a list.

    Each object has a name and arguments (or parameters). Raises ValueError for any other text.
    """
    unread = text.strip()
    calls: list[ToolCall] = []
    while unread or not calls:
        value, unread = _first_value(unread)
        if not isinstance(value, list):
            value = [value]
        calls += [_call_of_object(item, tools) for item in value]
    return calls


def _call_of_object(value: object, tools: Tools) -> ToolCall:
    """The call in a JSON value. Raises ValueError if there is none."""
    if not isinstance(value, dict):
        raise ValueError("no object")
    call = value
    if isinstance(value.get("function"), dict):
        call = value["function"]
    is_named_by_key = len(call) == 1 and set(call) <= set(tools)  # {"the tool": {arguments}}
    if is_named_by_key:
        [(name, arguments)] = call.items()
    else:
        name = call.get("name", call.get("tool_name"))
        arguments = call.get("arguments") or call.get("parameters")
    return _call(name, arguments or {}, tools)  # some models write null


def read_fitting(text: str, tools: Tools) -> list[ToolCall]:
    """The calls in a text that is one JSON value, with arguments that fit the tools' schemas.

    Raises ValueError for any other text.
    """
    json_value(text)  # raises for several values, which `read_objects` would read
    calls = read_objects(text, tools)
    for call in calls:
        schema = tools[call.name].parameters
        if not fits(call.arguments, schema, schema):
            raise ValueError("arguments that do not fit")
    return calls


def _call(name: object, arguments: object, tools: Tools) -> ToolCall:
    """The call of a tool. Raises ValueError for an unknown tool, or other arguments."""
    if isinstance(arguments, str):
        arguments = json_value(arguments)  # some models write the object as a text
    if not isinstance(arguments, dict) or not isinstance(name, str) or name not in tools:
        raise ValueError("no such call")
    return ToolCall("", name, json_text(arguments))


def _first_value(text: str) -> tuple[Any, str]:
    """The JSON value at the beginning of a text, and the text after it. Raises ValueError."""
    try:
        _, end = _DECODER.raw_decode(text)
    except RecursionError as error:
        raise ValueError("too deep") from error
    return json_value(text[:end]), text[end:].lstrip()


_DECODER = json.JSONDecoder()
