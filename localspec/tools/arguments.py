"""Arguments of calls, read while they are written: each notation to JSON, piece by piece.

A reader gets the text behind a call's name. Text that was returned is final.
"""

from __future__ import annotations

import abc
import json
import re
from collections.abc import Iterator, Mapping
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
        self._at = 0  # the position in the rest at which the next step begins
        self._steps = self._parts()

    @abc.abstractmethod
    def _parts(self) -> Iterator[str | None]:
        """Parts of the JSON, and None wherever more text has to come first."""

    def push(self, text: str) -> str:
        """More of the JSON. Raises ValueError for what no grammar allows."""
        self.rest += text
        found = []
        while not self.is_over and (more := next(self._steps)) is not None:
            found.append(more)
        self.rest, self._at = self.rest[self._at :], 0
        return "".join(found)

    def _object(self) -> Iterator[str | None]:
        """An object, or a list, as it stands."""
        end = ObjectEnd()
        while not end.is_over:
            text = self.rest[self._at :]
            size = end.push(text)
            self._at += size
            yield text[:size] or None

    def _skip_space(self) -> None:
        while self._at < len(self.rest) and self.rest[self._at].isspace():
            self._at += 1

    def _quoted(self, end: int) -> str:
        """The text up to there, as it stands in a string."""
        text, self._at = self.rest[self._at : end], end
        return json_text(text)[1:-1]

    def _string(self, end: re.Pattern[str], marks: tuple[str, ...]) -> Iterator[str | None]:
        """A text up to its end, which is one of the marks."""
        yield '"'
        while (found := end.search(self.rest, self._at)) is None:
            size = num_unfinished(marks, self.rest[self._at :])
            yield self._quoted(len(self.rest) - size) or None
        text, self._at = self._quoted(found.start()), found.end()
        yield f'{text}"'


class JsonArguments(ArgumentReader):
    """An object, or a list, as it stands."""

    def _parts(self) -> Iterator[str | None]:
        yield from self._object()
        self.is_over = True
        yield ""


_KEY_END, _VALUE_END = re.compile(":"), re.compile(r"[,:\[\]{}]")  # without quotes
_QUOTE_END = re.compile(re.escape(QUOTE))


class GemmaArguments(ArgumentReader):
    """Gemma 4's {key:value,…}, whose strings stand between <|"|>.

    Text in a wrong position gives no JSON.
    """

    def _parts(self) -> Iterator[str | None]:
        brackets, separator, is_key = "", "", False  # before the next item; whether it is a key
        while not self.is_over:
            self._skip_space()
            begun = self.rest[self._at : self._at + len(QUOTE)]
            if not begun or (begun != QUOTE and QUOTE.startswith(begun)):
                yield None
                continue
            if begun == QUOTE:
                self._at += len(QUOTE)
                yield separator
                yield from self._string(_QUOTE_END, (QUOTE,))
                separator, is_key = "", False
                continue
            mark, size = begun[0], 1
            if mark == "}" or (mark == "]" and not is_key):
                found, separator, is_key, brackets = mark, "", False, brackets[:-1]
                self.is_over = not brackets
            elif is_key or mark not in "{[:,":
                end = (_KEY_END if is_key else _VALUE_END).search(self.rest, self._at)
                if end is None:
                    yield None
                    continue
                text, size = self.rest[self._at : end.start()].strip(), end.start() - self._at
                found, is_key = json_text(text if is_key else json_value(text)), False
            else:
                found = {":": ": ", ",": ""}.get(mark, mark)
                brackets += mark if mark in "{[" else ""
                is_key = mark != ":" and brackets[-1:] == "{"
            self._at += size
            yield separator + found
            separator = ", " if mark == "," and not found else ""


def in_tags(value: object) -> str:
    """A value as it stands between Qwen3-Coder's tags."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_FUNCTION_END = "</function>"
_ENDS = ("\n</parameter>", "</parameter>")
_END = re.compile(r"\n?</parameter>")
# Where no grammar forbids it, a text can hold the tag.
_LAST_END = re.compile(r"\n?</parameter>(?=\s*(?:<parameter=|\Z))")
_WORDS = ("true", "false", "null")


class TagArguments(ArgumentReader):
    """Qwen3-Coder's <parameter=key> for each argument, up to </function>.

    Where no grammar keeps them, all of the parameters come at once.
    """

    def _parts(self) -> Iterator[str | None]:
        named, separator = properties_of(self._schema), "{"
        # Known names are looked for first: they may hold what no other name can.
        known = sorted(named, key=len, reverse=True)
        names = "|".join([*map(re.escape, known), r"[^>\n]+"])
        opening = re.compile(f"<parameter=({names})>")
        while True:
            self._skip_space()
            if self.rest.startswith(_FUNCTION_END, self._at):
                self._at, self.is_over = self._at + len(_FUNCTION_END), True
                yield "{}" if separator == "{" else "}"
            found = opening.match(self.rest, self._at)
            has_line_end = found is not None and self.rest.startswith("\n", found.end())
            if found is None or (self._is_kept and not has_line_end):  # the tag may go on
                yield None
                continue
            self._at = found.end() + has_line_end
            key = found[1] if found[1] in named else found[1].strip()
            yield f"{separator}{json_text(key)}: "
            yield from self._value(named.get(key))
            separator = ", "

    def _value(self, schema: object) -> Iterator[str | None]:
        is_text = takes_text(schema, self._schema)
        end, begun = _END if self._is_kept else _LAST_END, self.rest[self._at :].lstrip()
        while not is_text and (not begun or any(each.startswith(begun) for each in _WORDS)):
            yield None
            begun = self.rest[self._at :].lstrip()
        may_be_json = begun[:1] in '[{"-0123456789' or begun.startswith(_WORDS)
        if is_text or (is_text is None and not may_be_json):
            yield from self._string(end, _ENDS)
            return
        if self._is_kept and is_text is False and begun[0] in "[{":  # which no tag in it ends
            yield from self._object()
            while (found := end.match(self.rest, self._at)) is None:
                yield None
            self._at = found.end()
            return
        while (written := self._whole(end, is_json=is_text is False)) is None:
            yield None
        yield json_text(_typed(written, schema, self._schema, is_text=is_text))

    def _whole(self, end: re.Pattern[str], *, is_json: bool) -> str | None:
        """The text up to its end, once that is here."""
        for found in end.finditer(self.rest, self._at):
            written = self.rest[self._at : found.start()]
            if not is_json or not _is_cut(written):
                self._at = found.end()
                return written
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
