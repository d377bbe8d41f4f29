"""A Python function as a tool: what it declares, and a call of it with what a model gives."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Collection
from typing import Any

from localspec.errors import OptionError
from localspec.tools.python_types import FunctionArguments, json_of

# Headings in a docstring of Google's style.
_HEADING = re.compile(r"(Args|Arguments|Parameters|Returns|Yields|Raises):\s*")
_OF_ARGUMENTS = ("Args", "Arguments", "Parameters")
_ARGUMENT = re.compile(r"\*{0,2}(\w+)\s*(?:\(.*?\))?\s*:\s*(.*)")


def described(function: Callable[..., Any]) -> tuple[dict[str, Any], Callable[..., Any]]:
    """A function as a tool.

    Returns:
        What it declares, from its signature, annotations and docstring: name, description and
        parameters. And a function that takes the arguments that a model gives, by name: it
        raises ValueError where they do not fit, and returns the result as JSON can hold it.

    Raises:
        OptionError: the function cannot be described.
    """
    if function.__name__ == "<lambda>":
        raise OptionError(
            "a lambda is not a tool, since it has no name", "Write it as a function: def …"
        )
    arguments = FunctionArguments(function)
    parameters = arguments.schema
    description, notes = read_docstring(inspect.getdoc(function) or "", arguments.names)
    for name, note in notes.items():
        parameters["properties"][name].setdefault("description", note)
    declared = {
        "name": function.__name__,
        "description": description,
        "parameters": parameters,
    }
    if inspect.iscoroutinefunction(function):

        async def call_soon(**given: Any) -> Any:
            return json_of(await function(**arguments.checked(given)))

        return declared, call_soon

    def call(**given: Any) -> Any:
        return json_of(function(**arguments.checked(given)))

    return declared, call


def read_docstring(text: str, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """What a docstring says of a function and, in Google's style, of its arguments.

    Args:
        text: the docstring, without the indentation of the code.
        names: the arguments.

    Returns:
        The text without sections about arguments, results and errors; and what is said of each
        argument that is listed.
    """
    said: list[str] = []
    listed: list[str] = []
    section = None
    for line in text.splitlines():
        if heading := _HEADING.fullmatch(line):
            section = heading[1]
            continue
        if line and not line[0].isspace():
            section = None  # the line is not indented, so it is text again
        if section is None:
            said.append(line)
        elif section in _OF_ARGUMENTS:
            listed.append(line)
    description = re.sub(r"\n{3,}", "\n\n", "\n".join(said)).strip()
    return description, _notes_in(listed, names)


def _notes_in(lines: list[str], names: Collection[str]) -> dict[str, str]:
    """What a section says of each argument. A note may go on in further lines."""
    notes: dict[str, list[str]] = {}
    name = None
    for line in textwrap.dedent("\n".join(lines)).splitlines():
        found = _ARGUMENT.fullmatch(line)
        if found and found[1] in names:
            name = found[1]
            notes[name] = [found[2]]
        elif name is not None:
            notes[name].append(line.strip())
    return {name: " ".join(filter(None, note)) for name, note in notes.items()}
