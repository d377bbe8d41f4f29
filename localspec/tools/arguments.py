"""Reads the arguments of calls while they are written, in any notation, and gives JSON.

A reader gets the text after a call's name. JSON that it has returned never changes.
"""

from __future__ import annotations

import abc
import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from localspec.tools.partial_text import ObjectEnd, num_unfinished
from localspec.tools.schemas import branches, choices, fits, properties_of, takes_text
from localspec.tools.tool import Tool, json_text, json_value

QUOTE = '<|"|>'  # around a text in Gemma's notation


class ArgumentReader(abc.ABC):
    """Reads the arguments of one call of a tool.

    Args:
        tool: The tool.
        is_enforced: Whether a grammar enforces the notation and the schema.
    """

    def __init__(self, tool: Tool, *, is_enforced: bool) -> None:
        self._schema = tool.parameters
        self._is_enforced = is_enforced
        self.rest = ""
        """Text that is not read yet; once `is_over`, the text after the arguments."""

        self.is_over = False
        """Whether all arguments were read."""

        self._at = 0  # the position in `rest` up to which it is read
        self._json_parts = self._parts()

    @abc.abstractmethod
    def _parts(self) -> Iterator[str | None]:
        """Read the arguments in `rest`.

        Yields parts of the JSON, and None where more text is needed, which `push` then appends
        to `rest`. Sets `is_over` before the last part. The methods below that return an
        iterator read parts of the notation in the same way.
        """

    def push(self, text: str) -> str:
        """Read more text. Returns the further JSON.

        Raises ValueError for a text that no grammar allows.
        """
        self.rest += text
        parts = []
        while not self.is_over:
            part = next(self._json_parts)
            if part is None:
                break
            parts.append(part)
        self.rest = self.rest[self._at :]
        self._at = 0
        return "".join(parts)

    def _object(self) -> Iterator[str | None]:
        """Read a JSON object, or a list. It is not changed."""
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
        """Read the text up to `end`. Returns it as JSON has it within a string."""
        text = self.rest[self._at : end]
        self._at = end
        return json_text(text)[1:-1]

    def _string(self, end: re.Pattern[str], marks: Sequence[str]) -> Iterator[str | None]:
        """Read a text up to and with its end. Yields it as a JSON string.

        Args:
            end: Matches the end.
            marks: Texts with which the end may begin. If the text so far ends with a part of
                one, that part is not yielded until more text shows whether it is the end.
        """
        yield '"'
        match = end.search(self.rest, self._at)
        while match is None:
            unread = self.rest[self._at :]
            certain_end = len(self.rest) - num_unfinished(marks, unread)
            yield self._quoted(certain_end) or None
            match = end.search(self.rest, self._at)
        text = self._quoted(match.start())
        self._at = match.end()
        yield f'{text}"'

    def _literal(self, quotes: Sequence[str]) -> Iterator[str | None]:
        """Read a value in JSON's, Python's or Gemma's notation.

        Keys may be written without quotes. Ends without a part if there is no value.

        Args:
            quotes: The quotes that may stand around a text.
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
            character = text[0]
            is_before_key = False
            if quote:
                self._at += len(quote)
                yield from self._text(quote, quotes)
            elif is_key and character != "}":  # a key may begin with any other character
                yield from self._bare(is_key=True)
            elif character in "[{":
                brackets += character
                self._at += 1
                is_before_key = True
                yield character
            elif character in "]},:)":
                if not brackets:  # there is no value
                    return
                if character in "]}":
                    brackets = brackets[:-1]
                self._at += 1
                is_before_key = character == ","
                yield _SPACED.get(character, character)
            else:
                yield from self._bare(is_key=False)
            if not brackets:
                return
            is_key = is_before_key and brackets[-1] == "{"

    def _text(self, quote: str, quotes: Sequence[str]) -> Iterator[str | None]:
        """Read a text after its opening quote, up to and with its closing quote."""
        if quote == QUOTE:
            return self._string(_QUOTE_END, quotes)
        return self._escaped(quote)

    def _bare(self, *, is_key: bool) -> Iterator[str | None]:
        """Read a key or a value without quotes."""
        pattern = _WORD
        if is_key:
            pattern = _BARE_KEY
        word = pattern.match(self.rest, self._at)
        while word is None:
            yield None
            word = pattern.match(self.rest, self._at)
        self._at = word.end()
        if is_key:
            yield json_text(word[0].strip())
        else:
            yield json_text(_value_of(word[0]))

    def _escaped(self, quote: str) -> Iterator[str | None]:
        """Read a text up to and with its closing quote, with escapes as in JSON or Python."""
        yield '"'
        while True:
            character = self.rest[self._at : self._at + 1]
            if character == quote:
                self._at += 1
                yield '"'
                return
            if character == "\\":
                escape = _ESCAPE.match(self.rest, self._at)
                if escape is None:
                    yield None
                    continue
                self._at = escape.end()
                yield _json_escape(escape[0])
                continue
            plain = _PLAIN[quote].match(self.rest, self._at)
            if plain is None:
                yield None
            else:
                yield self._quoted(plain.end())


class JsonArguments(ArgumentReader):
    """Arguments as a JSON object, or a list."""

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
    """A value as it is written between tags: a text unchanged, any other value as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


KEY = "KEY"  # the placeholder of an argument's name in `Tags.closing`
KIND = "KIND"  # the placeholder of a value's type in `Tags.naming_other`
# XML's marks around a text that has marks in it.
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
VALUE_KINDS = tuple(dict.fromkeys(_KINDS.values()))  # words that can replace KIND
_ANY_KIND = f"(?:{'|'.join(VALUE_KINDS)})"


class Tags(NamedTuple):
    """How arguments are written one by one, as <parameter=key> or in Python's notation."""

    opening: str
    """The text before an argument's name."""

    naming: str
    """The text between the name and a value that is a text."""

    naming_other: str
    """The text between the name and any other value, perhaps with KIND."""

    closing: str
    """The text after the value, with KEY where the name is repeated."""

    between: str
    """The text between two arguments, after `closing`."""

    end: str
    """The beginning of the text after the last argument, without blank space."""

    is_quoted: bool
    """Whether texts are quoted, so that every value is JSON or a literal of Python."""

    has_cdata: bool = False
    """Whether a text with "<", "&" or several lines is written as CDATA."""

    def render(self, arguments: Mapping[str, Any]) -> str:
        """The arguments in this notation."""
        texts = []
        for key, value in arguments.items():
            before = f"{self.opening}{key}{self.naming_of(value)}"
            closing = self.closing.replace(KEY, key)
            texts.append(f"{before}{self.value(value)}{closing}")
        return self.between.join(texts)

    def naming_of(self, value: object) -> str:
        """The text between a name and this value."""
        if isinstance(value, str):
            return self.naming
        return self.naming_other.replace(KIND, _KINDS[type(value)])

    def value(self, value: object) -> str:
        """The text of a value."""
        if self.is_quoted:
            return json_text(value)
        return in_tags(value)


_WORDS = ("true", "false", "null")
_PYTHON_WORDS = {
    "True": "true",
    "False": "false",
    "None": "null",
}


def _value_of(text: str) -> Any:
    """The value of a JSON text, or of Python's True, False or None."""
    return json_value(_PYTHON_WORDS.get(text, text))


class TagArguments(ArgumentReader):
    """Arguments one by one, each between `Tags`.

    Without a grammar, all of the arguments have to be pushed at once.
    """

    def __init__(self, tool: Tool, tags: Tags, *, is_enforced: bool) -> None:
        self._tags = tags
        super().__init__(tool, is_enforced=is_enforced)

    def _parts(self) -> Iterator[str | None]:
        tags = self._tags
        properties = properties_of(self._schema)
        separator = "{"
        opening = self._opening_pattern(properties)
        space = tags.naming[len(tags.naming.rstrip()) :]  # blank space before a value
        between = tags.between.strip()
        while True:
            self._skip_space()
            if separator != "{" and self.rest.startswith(between, self._at):
                self._at += len(between)
                self._skip_space()
            if self.rest.startswith(tags.end, self._at):
                self.is_over = True
                if separator == "{":
                    yield "{}"
                else:
                    yield "}"
                return
            match = opening.match(self.rest, self._at)
            has_space = match is not None and self.rest.startswith(space, match.end())
            may_be_incomplete = self._is_enforced and not has_space
            if match is None or may_be_incomplete:
                yield None
                continue
            self._at = match.end()
            if has_space:
                self._at += len(space)
            key = match[1]
            if key not in properties:
                key = key.strip()
            yield f"{separator}{json_text(key)}: "
            schema = properties.get(key)
            if tags.is_quoted:
                yield from self._literal(_QUOTES)
            else:
                is_text = takes_text(schema, self._schema)
                if tags.naming != tags.naming_other:
                    is_text = match[2] is not None
                yield from self._value(key, schema, is_text=is_text)
            separator = ", "

    def _opening_pattern(self, known_names: Iterable[str]) -> re.Pattern[str]:
        """Matches an argument up to its value.

        Group 1 is the name, group 2 the naming of a text, group 3 that of any other value.

        Args:
            known_names: The names in the schema.
        """
        tags = self._tags
        # Known names come first: they may contain characters that other names cannot.
        names = [re.escape(name) for name in sorted(known_names, key=len, reverse=True)]
        if tags.is_quoted:
            names.append(r"\w+")
        else:
            names.append(r"[^>\n]+?")
        any_name = "|".join(names)
        before = re.escape(tags.opening.strip())
        naming = flexible(tags.naming.rstrip())
        naming_other = flexible(tags.naming_other.rstrip())
        other = naming_other.replace(KIND, _ANY_KIND)
        return re.compile(f"{before}({any_name})(?:({naming})|({other}))")

    def _value(self, key: str, schema: object, *, is_text: bool | None) -> Iterator[str | None]:
        """Read the value of an argument, and its closing.

        Args:
            key: The argument's name.
            schema: The argument's schema.
            is_text: Whether the value is a text; None if it may be one.
        """
        closing = self._tags.closing.replace(KEY, key).rstrip()
        tag = closing.lstrip()
        marks = (closing, tag)
        space = re.escape(closing[: -len(tag)])  # before the tag; it may be missing
        pattern = f"(?:{space})?{re.escape(tag)}"
        if not self._is_enforced:
            # The tag may occur in a text: it counts before another argument and at the end.
            next_opening = re.escape(self._tags.opening.strip())
            pattern += rf"(?=\s*(?:{next_opening}|\Z))"
        end = re.compile(pattern)
        text = self.rest[self._at :].lstrip()
        if self._tags.has_cdata:
            while text != CDATA and CDATA.startswith(text):
                yield None
                text = self.rest[self._at : self._at + len(CDATA)]
            if text.startswith(CDATA):
                self._at = self.rest.index(CDATA, self._at) + len(CDATA)
                marks = (f"{CDATA_END}{closing}", f"{CDATA_END}{tag}")
                cdata_end = re.compile(re.escape(CDATA_END) + pattern)
                yield from self._string(cdata_end, marks)
                return
        while not is_text and (not text or _may_be_word(text)):
            yield None
            text = self.rest[self._at :].lstrip()
        may_be_json = text[:1] in '[{"-0123456789' or text.startswith(_WORDS)
        if is_text or (is_text is None and not may_be_json):
            yield from self._string(end, marks)
            return
        is_json = is_text is False
        if self._is_enforced and is_json and text[0] in "[{":  # a tag in a string ends nothing
            yield from self._object()
            match = end.match(self.rest, self._at)
            while match is None:
                yield None
                match = end.match(self.rest, self._at)
            self._at = match.end()
            return
        value_text = self._whole_value(end, is_json=is_json)
        while value_text is None:
            yield None
            value_text = self._whole_value(end, is_json=is_json)
        value = _typed_value(
            value_text,
            schema,
            self._schema,
            is_text=is_text,
        )
        yield json_text(value)

    def _whole_value(self, end: re.Pattern[str], *, is_json: bool) -> str | None:
        """Read a value up to and with its end. Returns it; None while the end is missing.

        Args:
            end: Matches the end.
            is_json: Whether the value is JSON, so that an end within a string does not count.
        """
        for match in end.finditer(self.rest, self._at):
            text = self.rest[self._at : match.start()]
            if not is_json or not _is_cut(text):
                self._at = match.end()
                return text
        return None


_SPACED = {",": ", ", ":": ": "}  # as json.dumps writes them
_QUOTES = "'\""
_BARE_KEY = re.compile("[^:]+(?=:)")
_WORD = re.compile(r"[^\s,:\[\]{}()'\"]+(?=[\s,:\[\]{}()'\"])")
_PLAIN = {quote: re.compile(rf"[^\\{quote}]+") for quote in _QUOTES}
_ESCAPE = re.compile(
    r"""\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[^ux]
    # without enough digits, as in the path C:\users
    |u(?=[0-9a-fA-F]{0,3}[^0-9a-fA-F])|x(?=[0-9a-fA-F]?[^0-9a-fA-F]))""",
    re.DOTALL | re.VERBOSE,
)


def _may_be_word(text: str) -> bool:
    """Whether a text is the beginning of true, false or null, or all of it."""
    return any(word.startswith(text) for word in _WORDS)


def _json_escape(escape: str) -> str:
    """Rewrite an escape of Python for a JSON string.

    An escape that JSON lacks, other than \\x and \\', becomes text with its backslash, and
    so do \\x and \\u without their digits.
    """
    if escape in (r"\x", r"\u"):
        return f"\\{escape}"
    if escape[1] == "x":
        return f"\\u00{escape[2:]}"
    if escape[1] == "'":
        return "'"
    if escape[1] in '"\\/bfnrtu':
        return escape
    return json_text(escape)[1:-1]


_MARK = re.compile(r"\[[A-Z_]+\]|<[|\uff5c/A-Za-z][^<>]*>")


def marks_in(text: str) -> list[str]:
    """The texts that look like marks of a notation, such as <tool_call>."""
    return _MARK.findall(text)


def to_first_mark(text: str) -> str:
    """The text up to and with its first mark; the whole text if it has none."""
    match = _MARK.search(text)
    if match is None:
        return text
    return text[: match.end()]


def flexible(text: str) -> str:
    """A regular expression of the text that matches any blank space where the text has some."""
    words = re.split(r"\s+", text)
    return r"\s*".join(map(re.escape, words))


def _is_cut(text: str) -> bool:
    """Whether a text is JSON cut inside a string, so that the tag after it is text, too."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except (ValueError, RecursionError):
        return False
    return False


def _python_value(text: str) -> Any:
    """The value of a Python literal, which some templates write; for other texts the text."""
    try:
        value = ast.literal_eval(text)
        return json.loads(json_text(value))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text


def _typed_value(
    text: str,
    schema: object,
    root: Mapping[str, Any],
    *,
    is_text: bool | None,
) -> Any:
    """The value of an argument that was written without quotes, by its schema.

    Args:
        text: The text between the tags.
        schema: The argument's schema.
        root: The schema that it is a part of.
        is_text: Whether the value is a text; None if it may be one.
    """
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
        return _python_value(text)
    if is_text is False:
        return value
    # A text has no quotes here, and may look like another value, as 1e5 does.
    has_exponent = isinstance(value, float) and "e" in text.lower()
    if isinstance(value, str) or has_exponent or not fits(value, schema, root):
        return text
    return value
