"""Reads a request's JSON field by field. A wrong field raises `RequestError`."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NoReturn, TypeVar

from localspec.server.refusal import RequestError
from localspec.tools.tool import json_value

_Kind = TypeVar("_Kind")
logger = logging.getLogger(__name__)

MOST_TEXTS = 64  # in a list; the answer is searched for stop texts at every step
MOST_TOKENIZED = 256  # texts in a request that are tokenised one by one, by calls of the child
_MOST_SHOWN = 60  # characters of a value in an error
_MOST_LOGGED = 1000  # names of fields: those that a client makes up take memory, too
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")  # anything else may be a text
MOST_VALUES = 4_000_000  # in a body: each takes up to 200 bytes of memory
# The value of a field follows its name; any other value follows one of these.
_VALUES = (b",", b"[", b"{")
# A name takes as long to read as eight numbers, and nothing else runs in the process meanwhile.
MOST_NAMES = 500_000  # in a body, of all its objects
_STRING = re.compile(rb'"[^"]*"?')  # without escaped quotes


class Fields:
    """An object in a request. A field that is null counts as missing.

    Args:
        values: The fields as the request has them.
        path: Where they are in the request, as "stream_options.".
    """

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self.values = values
        self._path = path
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self.any(name) is not None

    def any(self, name: str) -> Any:
        """The field, of any type."""
        self._read.add(name)
        return self.values.get(name)

    def text(self, name: str) -> str | None:
        """A string."""
        return self._checked(name, str, _is_text, "Give a string.")

    def flag(self, name: str) -> bool | None:
        """A bool."""
        return self._checked(name, bool, _is_flag, "Give true or false.")

    def number(self, name: str) -> float | None:
        """A finite number."""
        return self._checked(name, float, _is_number, "Give a number.")

    def whole(self, name: str) -> int | None:
        """A whole number; 3.0 is one."""
        return self._checked(name, int, _is_whole, "Give a whole number.")

    def whole_from(self, name: str, least: int, most: int) -> int | None:
        """A whole number in that range."""
        value = self.whole(name)
        if value is not None and not least <= value <= most:
            self.refuse(name, f"Choose {least} to {most}.")
        return value

    def texts(self, name: str, most: int = MOST_TEXTS) -> list[str] | None:
        """A list of up to `most` strings; a single string is a list of one."""
        given = self.any(name)
        if given is None:
            return None
        if isinstance(given, str):
            return [given]
        if not _is_list(given, str) or len(given) > most:
            self.refuse(name, f"Give a string, or up to {most} of them.")
        return list(given)

    def prompts(
        self,
        name: str,
        most: int,
        *,
        may_be_mixed: bool = False,
    ) -> list[str | list[int | str]]:
        """Prompts, at least 1 and at most `most`, each a string or token ids.

        Args:
            name: the field's name.
            most: the largest number of prompts.
            may_be_mixed: whether one list may have both strings and token ids.

        Raises:
            RequestError: for anything else.
        """
        value = self.any(name)

        def is_prompt(given: object) -> bool:
            if isinstance(given, str) or _is_ids(given):
                return True
            return may_be_mixed and _is_mixed(given)

        given = value
        if is_prompt(value):
            given = [value]
        is_list = isinstance(given, list) and 0 < len(given) <= most
        if not is_list or not all(map(is_prompt, given)):
            mixed = ", or a list of both" if may_be_mixed else ""
            several = "" if most == 1 else f", or up to {most} of these"
            self.refuse(name, f"Give a string or a list of token ids{mixed}{several}.")
        if sum(map(_num_strings, given)) > MOST_TOKENIZED:
            self.refuse(name, f"Give up to {MOST_TOKENIZED} strings among token ids.")
        return list(given)

    def object(self, name: str) -> Fields:
        """An object; one without fields if it is missing."""
        value = self._checked(name, dict, _is_object, "Give an object.")
        return Fields(value or {}, f"{self._path}{name}.")

    def objects(self, name: str) -> list[Fields]:
        """A list of objects, empty if it is missing."""
        values = self._checked(name, list, _is_list_of_objects, "Give a list of objects.") or []
        path = f"{self._path}{name}"
        return [Fields(value, f"{path}[{index}].") for index, value in enumerate(values)]

    def _checked(
        self,
        name: str,
        kind: Callable[[Any], _Kind],
        is_right: Callable[[Any], bool],
        hint: str,
    ) -> _Kind | None:
        """The field as `kind` makes it; None if it is missing.

        Raises:
            RequestError: it is not right.
        """
        value = self.any(name)
        if value is None:
            return None
        if not is_right(value):
            self.refuse(name, hint)
        return kind(value)

    def refuse(self, name: str, hint: str) -> NoReturn:
        """Raise RequestError for the value of a field."""
        shown = "missing"
        if name in self.values:
            shown = _json_excerpt(self.values[name])
        path = f"{self._path}{name}"
        raise RequestError(f"{path} is {shown}", hint, param=path)

    def log_unread(self, route: str, logged: set[str]) -> None:
        """Log the fields that were not read, each of them once.

        A name that may be a text is not shown.

        Args:
            route: the path of the request.
            logged: the lines so far. A log has at most a thousand of them.
        """
        unread = (name for name in self.values if name not in self._read)
        for name in islice(unread, _MOST_LOGGED):
            shown = "(its name is not shown)"
            if _NAME.fullmatch(name):
                shown = repr(name)
            line = f"{route} ignores the field {shown}"
            if line not in logged and len(logged) < _MOST_LOGGED:
                logged.add(line)
                logger.info("%s", line)


def _json_excerpt(value: Any) -> str:
    """The beginning of a value, as the client wrote it in JSON."""
    parts = json.JSONEncoder(ensure_ascii=False).iterencode(value)
    text = "".join(islice(parts, _MOST_SHOWN))  # a value can be as long as the body
    if len(text) <= _MOST_SHOWN:
        return text
    return f"{text[:_MOST_SHOWN]} …"


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _is_list(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(part, kind) for part in value)


def _is_list_of_objects(value: object) -> bool:
    return _is_list(value, dict)


def _is_ids(value: Any) -> bool:
    """Whether a value is a list of token ids, at least one."""
    return bool(value) and _is_list(value, int) and bool not in map(type, value)


def _is_mixed(value: Any) -> bool:
    """Whether a value is a list of both token ids and texts."""
    return isinstance(value, list) and set(map(type, value)) == {int, str}


def _num_strings(prompt: str | list[int | str]) -> int:
    """The number of strings among the token ids of a prompt."""
    if isinstance(prompt, str):
        return 0
    return sum(isinstance(part, str) for part in prompt)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False


def _is_whole(value: Any) -> bool:
    return _is_number(value) and value == int(value)


def read_fields(body: bytes, list_name: str | None = None) -> Fields:
    """The fields of a request, from its body. Raises RequestError.

    Args:
        body: the body, without compression.
        list_name: the field that a list as the body stands for; None if the body has to be an
            object.
    """
    _check_number(body, _VALUES, MOST_VALUES, "values")
    _check_number(body, (b":",), MOST_NAMES, "names in its objects")
    try:
        value = json_value(body.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8: {error.reason}", "Send UTF-8.") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error!s:.200}", "Send JSON.") from error
    if list_name is not None and isinstance(value, list):
        return Fields({list_name: value})
    if not isinstance(value, dict):
        raise RequestError(f"the body is {_json_excerpt(value)}", "Send an object.")
    return Fields(value)


def _check_number(
    body: bytes,
    signs: Sequence[bytes],
    most: int,
    what: str,
) -> None:
    """Raise RequestError if a body has too many of the signs, not counting those in its texts.

    Args:
        body: the body.
        signs: the signs, of one byte each.
        most: the largest number of them.
        what: what they stand for, for the error.
    """
    if sum(map(body.count, signs)) <= most:
        return
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    bare = _STRING.sub(b"", unescaped)
    if sum(map(bare.count, signs)) > most:
        raise RequestError(
            f"the body has more than {most} {what}",
            "Send less.",
            code="request_too_large",
        )
