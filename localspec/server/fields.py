"""Reads a request's JSON field by field. A field with a wrong value raises `RequestError`."""

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

_Value = TypeVar("_Value")
logger = logging.getLogger(__name__)

MOST_TEXTS = 64  # strings in a list: the answer is searched for stop texts at every step
# Strings in a request that are tokenized: each is a call of the process with the models.
MOST_TOKENIZED = 256
_MOST_SHOWN = 60  # characters of a value in an error message
_MOST_LOGGED = 1000  # lines about unread fields: clients may make up any number of names
# The names of fields that are logged. A longer or stranger name may be a user's text.
_LOGGED_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
MOST_VALUES = 4_000_000  # in a body: each takes up to 200 bytes of memory
# One of these stands before every value in a list, and before the name of every other value.
_VALUE_SIGNS = (b",", b"[", b"{")
_NAME_SIGNS = (b":",)  # it stands after every field's name
# A name takes as long to parse as eight numbers; no other thread runs while json parses.
MOST_NAMES = 500_000  # in all objects of a body
# A string in JSON that has no escaped quotes; the last one may lack its closing quote.
_STRING = re.compile(rb'"[^"]*"?')


class Fields:
    """A JSON object in a request. A field that is null counts as missing.

    Each method that reads a field takes its name, and raises RequestError if its value has the
    wrong type. Unless it says otherwise, it returns None if the field is missing.

    Args:
        values: the object: the fields' values by name.
        path: the object's place in the request, for errors: "stream_options." for example, and
            "" for the request itself.
    """

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        self.values = values
        self._path = path
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return self.value(name) is not None

    def value(self, name: str) -> Any:
        """The value of a field, of whatever type."""
        self._read.add(name)
        return self.values.get(name)

    def text(self, name: str) -> str | None:
        """The string in a field."""
        return self._checked(name, str, _is_text, "Give a string.")

    def flag(self, name: str) -> bool | None:
        """The boolean in a field."""
        return self._checked(name, bool, _is_flag, "Give true or false.")

    def number(self, name: str) -> float | None:
        """The finite number in a field."""
        return self._checked(name, float, _is_number, "Give a number.")

    def integer(self, name: str) -> int | None:
        """The whole number in a field; 3.0 counts as 3."""
        return self._checked(name, int, _is_integer, "Give a whole number.")

    def integer_between(self, name: str, least: int, most: int) -> int | None:
        """The whole number in a field, which has to be from `least` to `most`, inclusive."""
        value = self.integer(name)
        if value is not None and not least <= value <= most:
            self.refuse(name, f"Choose {least} to {most}.")
        return value

    def texts(self, name: str, most: int = MOST_TEXTS) -> list[str] | None:
        """The strings in a field: a list of up to `most`, or a single string."""
        value = self.value(name)
        if value is None:
            return None
        if isinstance(value, str):
            return [value]
        if not _is_list(value, str) or len(value) > most:
            self.refuse(name, f"Give a string, or up to {most} of them.")
        return list(value)

    def prompts(
        self,
        name: str,
        most: int,
        *,
        may_be_mixed: bool = False,
    ) -> list[str | list[int | str]]:
        """The prompts in a field: one, or a list of 1 to `most`.

        A prompt is a string or a list of token ids.

        Args:
            name: the field's name.
            most: the largest number of prompts.
            may_be_mixed: whether a prompt may also be a list of both strings and token ids.

        Raises:
            RequestError: the field is missing, has something else, or has too many strings.
        """

        def is_prompt(value: object) -> bool:
            if isinstance(value, str) or _is_token_ids(value):
                return True
            return may_be_mixed and _is_mixed(value)

        prompts = self.value(name)
        if is_prompt(prompts):
            prompts = [prompts]
        has_right_length = isinstance(prompts, list) and 0 < len(prompts) <= most
        if not has_right_length or not all(map(is_prompt, prompts)):
            mixed = ", or a list of both" if may_be_mixed else ""
            several = "" if most == 1 else f", or up to {most} of these"
            self.refuse(name, f"Give a string or a list of token ids{mixed}{several}.")
        if sum(map(_num_strings, prompts)) > MOST_TOKENIZED:
            self.refuse(name, f"Give up to {MOST_TOKENIZED} strings among token ids.")
        return list(prompts)

    def object(self, name: str) -> Fields:
        """The JSON object in a field; an object without fields if it is missing."""
        values = self._checked(name, dict, _is_object, "Give an object.")
        return Fields(values or {}, f"{self._path}{name}.")

    def objects(self, name: str) -> list[Fields]:
        """The list of JSON objects in a field; an empty list if it is missing."""
        objects = self._checked(name, list, _is_list_of_objects, "Give a list of objects.")
        path = f"{self._path}{name}"
        return [Fields(values, f"{path}[{i}].") for i, values in enumerate(objects or ())]

    def _checked(
        self,
        name: str,
        convert: Callable[[Any], _Value],
        is_right: Callable[[Any], bool],
        hint: str,
    ) -> _Value | None:
        """The value of a field, converted; None if the field is missing.

        Args:
            name: the field's name.
            convert: makes what is returned of the value in the request.
            is_right: whether the value in the request has the right type.
            hint: the hint of the error if it has not.

        Raises:
            RequestError: `is_right` returns False.
        """
        value = self.value(name)
        if value is None:
            return None
        if not is_right(value):
            self.refuse(name, hint)
        return convert(value)

    def refuse(self, name: str, hint: str) -> NoReturn:
        """Raise RequestError: the value of a field is wrong.

        Args:
            name: the field's name.
            hint: what a client can send instead.
        """
        shown = "missing"
        if name in self.values:
            shown = _json_excerpt(self.values[name])
        path = f"{self._path}{name}"
        raise RequestError(f"{path} is {shown}", hint, param=path)

    def log_unread(self, route: str, logged: set[str]) -> None:
        """Log the names of the fields that no method has read.

        A name that may be a user's text is not shown.

        Args:
            route: the path of the request.
            logged: the lines that earlier requests have logged; new ones are added. No line is
                logged twice, and only the first thousand are logged.
        """
        unread = (name for name in self.values if name not in self._read)
        for name in islice(unread, _MOST_LOGGED):
            shown = "(its name is not shown)"
            if _LOGGED_NAME.fullmatch(name):
                shown = repr(name)
            line = f"{route} ignores the field {shown}"
            if line not in logged and len(logged) < _MOST_LOGGED:
                logged.add(line)
                logger.info("%s", line)


def _json_excerpt(value: Any) -> str:
    """The first characters of a value as JSON, for an error message."""
    parts = json.JSONEncoder(ensure_ascii=False).iterencode(value)
    # Each part has at least one character, so this many suffice. Joined whole, they could be as
    # long as the body.
    text = "".join(islice(parts, _MOST_SHOWN + 1))
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
    """Whether a value is a list, perhaps an empty one, of values of one type."""
    return isinstance(value, list) and all(isinstance(part, kind) for part in value)


def _is_list_of_objects(value: object) -> bool:
    return _is_list(value, dict)


def _is_token_ids(value: Any) -> bool:
    """Whether a value is a list of token ids, at least one."""
    if not value or not _is_list(value, int):
        return False
    return bool not in map(type, value)  # a bool is an int for isinstance


def _is_mixed(value: Any) -> bool:
    """Whether a value is a list of both token ids and strings."""
    return isinstance(value, list) and set(map(type, value)) == {int, str}


def _num_strings(prompt: str | list[int | str]) -> int:
    """The number of strings in a prompt that is a list; 0 for a prompt that is a string."""
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


def _is_integer(value: Any) -> bool:
    return _is_number(value) and value == int(value)


def read_fields(body: bytes, list_name: str | None = None) -> Fields:
    """The fields of a request, from its body.

    Args:
        body: the body, without compression.
        list_name: the name of the only field of a request whose body is a list, which becomes
            the value of that field; None if the body has to be an object.

    Raises:
        RequestError: the body is not UTF-8, not JSON, of the wrong type or too large.
    """
    _check_count(body, _VALUE_SIGNS, MOST_VALUES, "values")
    _check_count(body, _NAME_SIGNS, MOST_NAMES, "names in its objects")
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


def _check_count(
    body: bytes,
    signs: Sequence[bytes],
    most: int,
    counted: str,
) -> None:
    """Raise RequestError if a body has too many signs outside of its JSON strings.

    Args:
        body: the body, before it is parsed.
        signs: the bytes to count, one byte each.
        most: the largest number of all these signs together.
        counted: the things that the signs stand for, in the words of the error.
    """
    if sum(map(body.count, signs)) <= most:
        return  # the strings need not be removed: few bodies have more signs than that
    without_escapes = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    without_strings = _STRING.sub(b"", without_escapes)
    if sum(map(without_strings.count, signs)) > most:
        raise RequestError(
            f"the body has more than {most} {counted}",
            "Send less.",
            code="request_too_large",
        )
