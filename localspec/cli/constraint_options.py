"""The options of a command whose answers are to fit something."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from localspec.chat.text_file import read_text_file
from localspec.cli.completion import complete_file
from localspec.constraints.gbnf import is_gbnf
from localspec.errors import OptionError

_SUFFIXES = (".lark", ".gbnf")

_OPTIONS = [
    click.option(
        "--json-schema",
        type=Path,
        metavar="FILE",
        shell_complete=complete_file,
        help="The answer is JSON that fits the schema in this file.",
    ),
    click.option(
        "--strict",
        is_flag=True,
        help="With --json-schema: an error if no answer can be kept to all of it.",
    ),
    click.option("--regex", metavar="REGEX", help="The whole answer matches this."),
    click.option(
        "--grammar",
        type=Path,
        metavar="FILE",
        shell_complete=complete_file,
        help="The answer is a text of this grammar: a .lark or .gbnf file.",
    ),
    click.option(
        "--choice",
        "choices",
        multiple=True,
        metavar="TEXT",
        help="The answer is this text, or another choice. Repeatable.",
    ),
]
_NAMES = ("json_schema", "strict", "regex", "grammar", "choices")


def constraint_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the options; it receives keywords of an answer as `fits`."""

    @functools.wraps(command)
    def with_options(**values: Any) -> Any:
        return command(fits=_fits(**{name: values.pop(name) for name in _NAMES}), **values)

    for option in reversed(_OPTIONS):
        with_options = option(with_options)
    return with_options


def _fits(
    *,
    json_schema: Path | None,
    strict: bool,
    regex: str | None,
    grammar: Path | None,
    choices: tuple[str, ...],
) -> dict[str, Any]:
    """Those that were given. Raises OptionError for a file that is no such text."""
    found: dict[str, Any] = {}
    if json_schema is not None:
        found["json_schema"] = read_constraint("--json-schema", json_schema)
        found["strict"] = strict
    elif strict:
        raise OptionError("--strict has no place without --json-schema", "Leave it out.")
    if regex is not None:
        found["regex"] = regex
    if grammar is not None:
        if grammar.suffix not in _SUFFIXES:
            raise OptionError(
                f"--grammar {grammar}: the name says of no grammar what it is written in",
                f"Name a file that ends in {' or '.join(_SUFFIXES)}.",
            )
        found["grammar"] = read_constraint("--grammar", grammar)
        if is_gbnf(found["grammar"]) != (grammar.suffix == ".gbnf"):
            raise OptionError(
                f"--grammar {grammar}: its rules are not written as its name says",
                "A rule of GBNF is name ::= …, one of Lark name: …",
            )
    if choices:
        found["choices"] = choices
    return found


def read_constraint(flag: str, path: Path) -> str:
    """The text in a file. Raises OptionError if there is none."""
    try:
        return read_text_file(path)
    except (OSError, ValueError) as error:
        raise OptionError(f"{flag} {path}: {error}", "Name a file of text.") from error
