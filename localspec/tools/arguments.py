"""Arguments of calls, read while they are written: each notation to JSON, piece by piece.

A reader gets the text behind a call's name. Text that was returned is final.
"""

from __future__ import annotations

import abc
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from localspec.tools.partial_text import ObjectEnd, num_unfinished
from localspec.tools.schemas import branches, choices, fits, properties_of, takes_text
from localspec.tools.tool import Tool, json_text, json_value

QUOTE = '<|"|>'  # around a text in Gemma's notation


class ArgumentReader(abc.ABC):
    """Reads the arguments of one call of a tool.

    is_kept: a grammar keeps the arguments to notation and schema. rest: text that waits, and
    once is_over the text behind the arguments.
    """

    def __init__(self, tool: Tool, *, is_kept: bool) -> None:
        self._schema, self._is_kept = tool.parameters, is_kept
        self.rest = ""
        self.is_over = False

    @abc.abstractmethod
    def push(self, text: str) -> str:
        """More of the JSON. Raises ValueError for what no grammar allows."""


class JsonArguments(ArgumentReader):
    """An object, or a list, as it stands."""

    def __init__(self, tool: Tool, *, is_kept: bool) -> None:
        super().__init__(tool, is_kept=is_kept)
        self._end = ObjectEnd()

    def push(self, text: str) -> str:
        size = self._end.push(text)
        self.is_over, self.rest = self._end.is_over, text[size:]
        return text[:size]


class _Stepwise(ArgumentReader):
    """Takes the text in steps. Each gives more of the JSON, or None to wait for more text."""

    _step: Callable[[], str | None]  # the next one
    _at = 0  # the position in the rest at which it begins

    def push(self, text: str) -> str:
        self.rest += text
        found = []
        while not self.is_over and (more := self._step()) is not None:
            found.append(more)
        self.rest, self._at = self.rest[self._at :], 0
        return "".join(found)

    def _skip_space(self) -> None:
        while self._at < len(self.rest) and self.rest[self._at].isspace():
            self._at += 1

    def _quoted(self, end: int) -> str:
        """The text up to there, as it stands in a string."""
        text, self._at = self.rest[self._at : end], end
        return json_text(text)[1:-1]

    def _safe_end(self, marks: tuple[str, ...]) -> int:
        """The end of the text that belongs to no unfinished mark."""
        return len(self.rest) - num_unfinished(marks, self.rest[self._at :])


_KEY_END, _VALUE_END = re.compile(":"), re.compile(r"[,:\[\]{}]")  # without quotes


class GemmaArguments(_Stepwise):
    """Gemma 4's {key:value,…}, whose strings stand between <|"|>.

    Text in a wrong position gives no JSON.
    """

    def __init__(self, tool: Tool, *, is_kept: bool) -> None:
        super().__init__(tool, is_kept=is_kept)
        self._open = ""  # the brackets
        self._separator = ""  # before the next item
        self._is_key = False  # what comes next
        self._step = self._item

    def _item(self) -> str | None:
        self._skip_space()
        begun = self.rest[self._at : self._at + len(QUOTE)]
        if not begun or (begun != QUOTE and QUOTE.startswith(begun)):
            return None
        mark, separator = begun[0], self._separator
        if begun == QUOTE:
            found, size, self._step, self._is_key = '"', len(QUOTE), self._string, False
        elif mark == "}" or (mark == "]" and not self._is_key):
            found, size, separator, self._is_key = mark, 1, "", False
            self._open = self._open[:-1]
            self.is_over = not self._open
        elif self._is_key or mark not in "{[:,":
            end = (_KEY_END if self._is_key else _VALUE_END).search(self.rest, self._at)
            if end is None:
                return None
            text, size = self.rest[self._at : end.start()].strip(), end.start() - self._at
            found = json_text(text if self._is_key else json_value(text))
            self._is_key = False
        else:
            found, size = {":": ": ", ",": ""}.get(mark, mark), 1
            self._open += mark if mark in "{[" else ""
            self._is_key = mark != ":" and self._open[-1:] == "{"
        self._at += size
        self._separator = ", " if mark == "," and not found else ""
        return separator + found

    def _string(self) -> str | None:
        end = self.rest.find(QUOTE, self._at)
        if end < 0:
            return self._quoted(self._safe_end((QUOTE,))) or None
        text, self._step = self._quoted(end), self._item
        self._at += len(QUOTE)
        return f'{text}"'


def in_tags(value: object) -> str:
    """A value as it stands between Qwen3-Coder's tags."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_FUNCTION_END = "</function>"
_ENDS = ("\n</parameter>", "</parameter>")
_END = re.compile(r"\n?</parameter>")
# Where no grammar forbids it, a text can hold the tag.
_LAST_END = re.compile(r"\n?</parameter>(?=\s*(?:<parameter=|\Z))")
_WORDS = ("true", "false", "null")


class TagArguments(_Stepwise):
    """Qwen3-Coder's <parameter=key> for each argument, up to </function>.

    Where no grammar keeps them, all of the parameters come at once.
    """

    def __init__(self, tool: Tool, *, is_kept: bool) -> None:
        super().__init__(tool, is_kept=is_kept)
        # Known names are looked for first: they may hold what no other name can.
        known = sorted(properties_of(self._schema), key=len, reverse=True)
        names = "|".join([*map(re.escape, known), r"[^>\n]+"])
        self._opening = re.compile(f"<parameter=({names})>")
        self._step = self._tag
        self._separator = "{"  # before the next argument
        self._value_schema: object = None
        self._is_text: bool | None = None
        self._end = _END if is_kept else _LAST_END
        self._object = ObjectEnd()  # of a value that is JSON

    def _tag(self) -> str | None:
        self._skip_space()
        if self.rest.startswith(_FUNCTION_END, self._at):
            self._at, self.is_over = self._at + len(_FUNCTION_END), True
            return "{}" if self._separator == "{" else "}"
        found = self._opening.match(self.rest, self._at)
        if found is None:
            return None
        has_line_end = self.rest.startswith("\n", found.end())
        if self._is_kept and not has_line_end:  # the tag may go on
            return None
        self._at = found.end() + has_line_end
        key = found[1] if found[1] in properties_of(self._schema) else found[1].strip()
        self._value_schema = properties_of(self._schema).get(key)
        self._is_text = takes_text(self._value_schema, self._schema)
        separator, self._separator, self._step = self._separator, ", ", self._value
        return f"{separator}{json_text(key)}: "

    def _value(self) -> str | None:
        begun = self.rest[self._at :].lstrip()
        if not self._is_text and (not begun or any(each.startswith(begun) for each in _WORDS)):
            return None
        may_be_json = begun[:1] in '[{"-0123456789' or begun.startswith(_WORDS)
        if self._is_text or (self._is_text is None and not may_be_json):
            self._step = self._text
            return '"'
        if self._is_kept and self._is_text is False and begun[0] in "[{":
            self._object = ObjectEnd()
            self._step = self._flow
        else:
            self._step = self._whole
        return ""

    def _text(self) -> str | None:
        end = self._end.search(self.rest, self._at)
        if end is None:
            return self._quoted(self._safe_end(_ENDS)) or None
        text = self._quoted(end.start())
        self._at, self._step = end.end(), self._tag
        return f'{text}"'

    def _flow(self) -> str | None:
        """More of an object or a list, which no tag in it ends."""
        if self._object.is_over:
            end = self._end.match(self.rest, self._at)
            if end is not None:
                self._at, self._step = end.end(), self._tag
            return None if end is None else ""
        text = self.rest[self._at :]
        size = self._object.push(text)
        self._at += size
        return text[:size] or None

    def _whole(self) -> str | None:
        for end in self._end.finditer(self.rest, self._at):
            written = self.rest[self._at : end.start()]
            if self._is_text is not False or not _is_cut(written):
                self._at, self._step = end.end(), self._tag
                value = _typed(written, self._value_schema, self._schema, is_text=self._is_text)
                return json_text(value)
        return None


def _is_cut(text: str) -> bool:
    """Whether a text is JSON cut inside a string, so that the tag behind it is text, too."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except (ValueError, RecursionError):
        return False
    return False


def _typed(text: str, schema: object, root: Mapping[str, Any], *, is_text: bool | None) -> Any:
    for branch in branches(schema, root):
        for choice in choices(branch) or ():
            if in_tags(choice) == text:
                return choice
    if is_text:
        return text
    try:
        value = json_value(text)
    except ValueError:
        return text
    if is_text is False:
        return value
    # A text stands there without quotes, and may look like another value, as 1e5 does.
    is_odd = isinstance(value, str) or (isinstance(value, float) and "e" in text.lower())
    return text if is_odd or not fits(value, schema, root) else value
