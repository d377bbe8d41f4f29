"""Options for structured output: a JSON schema, a regular expression, a grammar, choices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from localspec.cli.completion import complete_file
from localspec.cli.flags import read_option_file, with_all
from localspec.constraints.gbnf import is_gbnf
from localspec.errors import OptionError

_SUFFIXES = (".lark", ".gbnf")

_OPTIONS = [
    click.option(
        "--json-schema",
        type=Path,
        metavar="FILE",
        shell_complete=complete_file,
        help="The answer is JSON that matches the schema in this file.",
    ),
    click.option(
        "--strict",
        is_flag=True,
        help="With --json-schema: fail if a part of the schema cannot be enforced.",
    ),
    click.option(
        "--regex", metavar="REGEX", help="The whole answer matches this regular expression."
    ),
    click.option(
        "--grammar",
        type=Path,
        metavar="FILE",
        shell_complete=complete_file,
        help="The answer matches the grammar in this file, .lark or .gbnf.",
    ),
    click.option(
        "--choice",
        "choices",
        multiple=True,
        metavar="TEXT",
        help="The answer is one of the choices. Repeatable.",
    ),
]
_NAMES = ("json_schema", "strict", "regex", "grammar", "choices")


def constraint_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the options. It receives them as keywords of an answer."""

    @functools.wraps(command)
    def with_options(**values: Any) -> Any:
        return command(fits=_fits(**{name: values.pop(name) for name in _NAMES}), **values)

    return with_all(_OPTIONS, with_options)


def _fits(
    *,
    json_schema: Path | None,
    strict: bool,
    regex: str | None,
    grammar: Path | None,
    choices: tuple[str, ...],
) -> dict[str, Any]:
    """The options that were given. Raises OptionError for a file that cannot be read."""
    found: dict[str, Any] = {}
    if json_schema is not None:
        found["json_schema"] = read_option_file("--json-schema", json_schema)
        found["strict"] = strict
    elif strict:
        raise OptionError(
            "--strict needs --json-schema", "Add --json-schema FILE, or leave --strict out."
        )
    if regex is not None:
        found["regex"] = regex
    if grammar is not None:
        if grammar.suffix not in _SUFFIXES:
            raise OptionError(
                f"--grammar {grammar}: the kind of grammar is not clear from the name",
                f"Give a file that ends in {' or '.join(_SUFFIXES)}.",
            )
        found["grammar"] = read_option_file("--grammar", grammar)
        if is_gbnf(found["grammar"]) != (grammar.suffix == ".gbnf"):
            raise OptionError(
                f"--grammar {grammar}: the content is not {grammar.suffix[1:]}",
                "In GBNF a rule is name ::= …, in Lark name: …",
            )
    if choices:
        found["choices"] = choices
    return found
