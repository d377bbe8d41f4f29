"""Arguments of calls, read while they are written: each notation to JSON, piece by piece.

A reader gets the text behind a call's name. Text that was returned is final.
"""

from __future__ import annotations

import abc
import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

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
        self._schema = tool.parameters
        self._is_kept = is_kept
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
        self.rest = self.rest[self._at :]
        self._at = 0
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
        text = self.rest[self._at : end]
        self._at = end
        return json_text(text)[1:-1]

    def _string(self, end: re.Pattern[str], marks: Sequence[str]) -> Iterator[str | None]:
        """A text up to its end, which is one of the marks."""
        yield '"'
        while (found := end.search(self.rest, self._at)) is None:
            size = num_unfinished(marks, self.rest[self._at :])
            yield self._quoted(len(self.rest) - size) or None
        text = self._quoted(found.start())
        self._at = found.end()
        yield f'{text}"'

    def _literal(self, quotes: Sequence[str]) -> Iterator[str | None]:
        """A value of JSON's, Python's or Gemma's notation, with those quotes around texts.

        Keys may stand there without quotes.
        """
        brackets = ""
        is_key = False
        while True:
            self._skip_space()
            text = self.rest[self._at : self._at + len(QUOTE)]
            if num_unfinished(quotes, text) == len(text):
                yield None
                continue
            quote = next(filter(text.startswith, quotes), "")
            begun = text[0]
            is_before_key = False
            if quote == QUOTE:
                self._at += len(quote)
                yield from self._string(_QUOTE_END, quotes)
            elif quote:
                self._at += len(quote)
                yield from self._escaped(quote)
            elif is_key and begun != "}":  # the name may begin with any other sign
                yield from self._bare(is_key=True)
            elif begun in "[{":
                brackets += begun
                self._at += 1
                is_before_key = True
                yield begun
            elif begun in "]},:)":
                if not brackets:  # there is no value
                    return
                if begun in "]}":
                    brackets = brackets[:-1]
                self._at += 1
                is_before_key = begun == ","
                yield f"{begun} " if begun in ",:" else begun
            else:
                yield from self._bare(is_key=False)
            if not brackets:
                return
            is_key = is_before_key and brackets[-1] == "{"

    def _bare(self, *, is_key: bool) -> Iterator[str | None]:
        """A key or a value without quotes."""
        pattern = _BARE_KEY if is_key else _WORD
        while (word := pattern.match(self.rest, self._at)) is None:
            yield None
        self._at = word.end()
        yield json_text(word[0].strip() if is_key else _value_of(word[0]))

    def _escaped(self, quote: str) -> Iterator[str | None]:
        """A text up to its quote, with escapes of JSON's or Python's."""
        yield '"'
        while True:
            begun = self.rest[self._at : self._at + 1]
            if begun == quote:
                self._at += 1
                yield '"'
                return
            if begun == "\\":
                escape = _ESCAPE.match(self.rest, self._at)
                if escape is None:
                    yield None
                    continue
                self._at = escape.end()
                yield _in_json(escape[0])
                continue
            plain = _PLAIN[quote].match(self.rest, self._at)
            yield None if plain is None else self._quoted(plain.end())


class JsonArguments(ArgumentReader):
    """An object, or a list, as it stands."""

    def _parts(self) -> Iterator[str | None]:
        yield from self._object()
        self.is_over = True
        yield ""


_QUOTE_END = re.compile(re.escape(QUOTE))


class GemmaArguments(ArgumentReader):
    """Gemma 4's {key:value,…}, whose strings stand between <|"|>."""

    def _parts(self) -> Iterator[str | None]:
        yield from self._literal((QUOTE, '"'))
        self.is_over = True
        yield ""


def in_tags(value: object) -> str:
    """A value as it stands between tags: a text as it is, anything else as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


KEY = "KEY"  # stands for an argument's name in `Tags.closing`
KIND = "KIND"  # stands for the type of a value in `Tags.naming_other`
# XML's marks around a text that has marks in it
CDATA = "<![CDATA["
CDATA_END = "]]>"
_KINDS = {
    bool: "boolean",
    int: "number",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}
VALUE_KINDS = tuple(dict.fromkeys(_KINDS.values()))  # words that KIND stands for
_ANY_KIND = f"(?:{'|'.join(VALUE_KINDS)})"


class Tags(NamedTuple):
    """How arguments are written one by one, as <parameter=key> or in Python's notation."""

    opening: str
    """What stands before an argument's name."""

    naming: str
    """What stands between the name and a value that is a text."""

    naming_other: str
    """What stands between the name and any other value, perhaps with KIND."""

    closing: str
    """What stands after the value, with KEY where the name is repeated."""

    between: str
    """What stands between two arguments, besides that."""

    end: str
    """How the text after the last argument begins, without blank space."""

    is_quoted: bool
    """Whether texts are quoted, so that every value is JSON or a literal of Python's."""

    has_cdata: bool = False
    """Whether a text with "<", "&" or several lines stands in CDATA."""

    def render(self, arguments: Mapping[str, Any]) -> str:
        """The arguments in this notation."""
        return self.between.join(
            f"{self.opening}{key}{self.naming_of(value)}{self.value(value)}"
            f"{self.closing.replace(KEY, key)}"
            for key, value in arguments.items()
        )

    def naming_of(self, value: object) -> str:
        """What stands before that value."""
        if isinstance(value, str):
            return self.naming
        return self.naming_other.replace(KIND, _KINDS[type(value)])

    def value(self, value: object) -> str:
        """The text of a value."""
        if self.is_quoted:
            return json_text(value)
        return in_tags(value)


_WORDS = ("true", "false", "null")
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


def _value_of(text: str) -> Any:
    """The value of JSON, or of one of Python's words, as templates write them for others."""
    return json_value(_PYTHON_WORDS.get(text, text))


class TagArguments(ArgumentReader):
    """Arguments one by one, each between `Tags`.

    Where no grammar keeps them, all of the arguments come at once.
    """

    def __init__(self, tool: Tool, tags: Tags, *, is_kept: bool) -> None:
        self._tags = tags
        super().__init__(tool, is_kept=is_kept)

    def _parts(self) -> Iterator[str | None]:
        tags = self._tags
        named = properties_of(self._schema)
        separator = "{"
        # Known names are looked for first: they may hold what no other name can.
        known = sorted(named, key=len, reverse=True)
        any_name = r"\w+" if tags.is_quoted else r"[^>\n]+?"
        names = "|".join([*map(re.escape, known), any_name])
        naming = flexible(tags.naming.rstrip())
        other = flexible(tags.naming_other.rstrip()).replace(KIND, _ANY_KIND)
        opening = re.compile(
            f"{re.escape(tags.opening.strip())}({names})(?:({naming})|({other}))"
        )
        space = tags.naming[len(tags.naming.rstrip()) :]
        while True:
            self._skip_space()
            if separator != "{" and self.rest.startswith(tags.between.strip(), self._at):
                self._at += len(tags.between.strip())
                self._skip_space()
            if self.rest.startswith(tags.end, self._at):
                self.is_over = True
                yield "{}" if separator == "{" else "}"
            found = opening.match(self.rest, self._at)
            has_space = found is not None and self.rest.startswith(space, found.end())
            if found is None or (self._is_kept and not has_space):  # the tag may go on
                yield None
                continue
            self._at = found.end() + len(space) * has_space
            key = found[1] if found[1] in named else found[1].strip()
            yield f"{separator}{json_text(key)}: "
            if tags.is_quoted:
                yield from self._literal(_QUOTES)
            else:
                is_text = takes_text(named.get(key), self._schema)
                if tags.naming != tags.naming_other:
                    is_text = found[2] is not None
                yield from self._value(key, named.get(key), is_text=is_text)
            separator = ", "

    def _value(self, key: str, schema: object, *, is_text: bool | None) -> Iterator[str | None]:
        closing = self._tags.closing.replace(KEY, key).rstrip()
        bare = closing.lstrip()
        ends = (closing, bare)
        pattern = f"(?:{re.escape(closing[: -len(bare)])})?{re.escape(bare)}"
        if not self._is_kept:  # a text can hold the tag
            following = re.escape(self._tags.opening.strip())
            pattern += rf"(?=\s*(?:{following}|\Z))"
        end = re.compile(pattern)
        begun = self.rest[self._at :].lstrip()
        if self._tags.has_cdata:
            while begun != CDATA and CDATA.startswith(begun):
                yield None
                begun = self.rest[self._at : self._at + len(CDATA)]
            if begun.startswith(CDATA):
                self._at += len(CDATA)
                ends = (f"{CDATA_END}{closing}", f"{CDATA_END}{bare}")
                yield from self._string(re.compile(re.escape(CDATA_END) + pattern), ends)
                return
        while not is_text and (not begun or any(each.startswith(begun) for each in _WORDS)):
            yield None
            begun = self.rest[self._at :].lstrip()
        may_be_json = begun[:1] in '[{"-0123456789' or begun.startswith(_WORDS)
        if is_text or (is_text is None and not may_be_json):
            yield from self._string(end, ends)
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


_QUOTES = "'\""
_BARE_KEY = re.compile("[^:]+(?=:)")
_WORD = re.compile(r"[^\s,:\[\]{}()'\"]+(?=[\s,:\[\]{}()'\"])")
_PLAIN = {quote: re.compile(rf"[^\\{quote}]+") for quote in _QUOTES}
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[^ux])", re.DOTALL)


def _in_json(escape: str) -> str:
    """An escape of Python's as one of JSON's."""
    if escape[1] == "x":
        return f"\\u00{escape[2:]}"
    if escape[1] == "'":
        return "'"
    if escape[1] in '"\\/bfnrtu':
        return escape
    return f"\\{escape}"


_MARK = re.compile(r"\[[A-Z_]+\]|<[|\uff5c/A-Za-z][^<>]*>")


def marks_in(text: str) -> list[str]:
    """The texts that look like marks of a notation, such as <tool_call>."""
    return _MARK.findall(text)


def to_first_mark(text: str) -> str:
    """The text up to and with its first mark; all of it without one."""
    found = _MARK.search(text)
    if found is None:
        return text
    return text[: found.end()]


def flexible(text: str) -> str:
    """A regular expression of the text, with any blank space where it has some."""
    return r"\s*".join(map(re.escape, re.split(r"\s+", text)))


def _is_cut(text: str) -> bool:
    """Whether a text is JSON cut inside a string, so that the tag behind it is text, too."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except (ValueError, RecursionError):
        return False
    return False


def _of_python(text: str) -> Any:
    """The value of a literal of Python's, as some templates write them; else the text."""
    try:
        return json.loads(json_text(ast.literal_eval(text)))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text


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
        if is_text is None:
            return text
        return _of_python(text)
    if is_text is False:
        return value
    # A text stands there without quotes, and may look like another value, as 1e5 does.
    is_odd = isinstance(value, str) or (isinstance(value, float) and "e" in text.lower())
    if is_odd or not fits(value, schema, root):
        return text
    return value
