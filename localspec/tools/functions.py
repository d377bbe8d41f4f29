"""A Python function as a tool: its declaration, and calls with arguments of a model."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Awaitable, Callable, Collection, Generator
from typing import Any

from localspec.errors import OptionError
from localspec.tools.python_types import FunctionArguments, json_of

# Headings in a docstring of Google's style.
_HEADING = re.compile(r"(Args|Arguments|Parameters|Returns|Yields|Raises):\s*")
_OF_ARGUMENTS = ("Args", "Arguments", "Parameters")
_ARGUMENT = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:\s*(.*)")


def described(function: Callable[..., Any]) -> tuple[dict[str, Any], Callable[..., Any]]:
    """Describe a function as a tool, and wrap it for calls with a model's arguments.

    Returns:
        A declaration with name, description and parameters, from the function's signature,
        annotations and docstring; and the wrapped function, which takes arguments by name,
        raises ValueError if they do not fit, and returns the result as JSON can hold it.

    Raises:
        OptionError: If the function cannot be described.
    """
    if function.__name__ == "<lambda>":
        raise OptionError(
            "a lambda is not a tool, since it has no name",
            "Write it as a function: def …",
        )
    arguments = FunctionArguments(function)
    parameters = arguments.schema
    docstring = inspect.getdoc(function) or ""
    description, notes = read_docstring(docstring, arguments.names)
    for name, note in notes.items():
        parameters["properties"][name].setdefault("description", note)
    declared = {
        "name": function.__name__,
        "description": description,
        "parameters": parameters,
    }
    if inspect.iscoroutinefunction(function):

        async def call_async(**values: Any) -> Any:
            result = await function(**arguments.checked(values))
            return json_of(result)

        return declared, call_async

    def call(**values: Any) -> Any:
        result = function(**arguments.checked(values))
        if inspect.isawaitable(result):  # a decorator hides that the function is async
            return _AwaitedJson(result)
        return json_of(result)

    return declared, call


class _AwaitedJson:
    """Awaits what a function returned, for a result as JSON can hold it.

    Args:
        awaitable: What the function returned.
    """

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self.awaitable = awaitable

    def __await__(self) -> Generator[Any, None, Any]:
        result = yield from self.awaitable.__await__()
        return json_of(result)


def close_awaitable(awaitable: object) -> None:
    """Give up what an async function returned: Python warns of a coroutine that never runs."""
    if isinstance(awaitable, _AwaitedJson):
        awaitable = awaitable.awaitable
    if inspect.iscoroutine(awaitable):
        awaitable.close()


def read_docstring(text: str, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """The descriptions of a function and, in Google's style, of its arguments in a docstring.

    Args:
        text: The docstring, without the indentation of the code.
        names: The names of the arguments.

    Returns:
        The text without sections about arguments, results and errors; and the note on each
        argument that is listed.
    """
    description: list[str] = []
    argument_lines: list[str] = []
    section = None  # the heading of the present section; None outside of these sections
    for line in text.splitlines():
        heading = _HEADING.fullmatch(line)
        if heading is not None:
            section = heading[1]
            continue
        if line and not line[0].isspace():
            section = None  # the line is not indented, so it is text again
        if section is None:
            description.append(line)
        elif section in _OF_ARGUMENTS:
            argument_lines.append(line)
    joined = re.sub(r"\n{3,}", "\n\n", "\n".join(description))
    return joined.strip(), _notes_in(argument_lines, names)


def _notes_in(lines: list[str], names: Collection[str]) -> dict[str, str]:
    """The note on each argument in a section. A note may have several lines."""
    notes: dict[str, list[str]] = {}
    name = None
    for line in textwrap.dedent("\n".join(lines)).splitlines():
        match = _ARGUMENT.fullmatch(line)
        if match and match[1] in names:
            name = match[1]
            notes[name] = [match[2]]
        elif match and line.startswith("*"):  # **keywords are often no arguments of the tool
            name = None
        elif name is not None:
            notes[name].append(line.strip())
    joined = {}
    for name, note in notes.items():
        joined[name] = " ".join(filter(None, note))
    return joined
