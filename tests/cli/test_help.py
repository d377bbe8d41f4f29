"""--help of every command: options in groups, nothing cut, nothing wider than a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from localspec.cli import main

HEADINGS = ["Options", "Model", "Drafting", "Prompt and answer", "Sampling", "Device", "Output"]


def all_commands(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    """The words of each command and group below this one."""
    for name, command in group.commands.items():
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from all_commands(command, *path, name)


def help_of(*words: str, columns: int = 80) -> str:
    done = CliRunner(env={"COLUMNS": str(columns)}).invoke(main, [*words, "--help"])
    assert done.exit_code == 0, done.output
    return done.stdout


def groups_of(text: str) -> dict[str, list[str]]:
    """The options below each heading, in their order."""
    groups: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            groups[line[:-1]] = []
        elif groups and line.startswith("  -"):
            groups[list(groups)[-1]].append(re.split("[ ,]", line.split("--")[1])[0])
    return groups


@pytest.mark.parametrize("words", list(all_commands(main)), ids=" ".join)
def test_options_stand_in_groups_in_one_order(words):
    groups = groups_of(help_of(*words))
    found = [heading for heading in groups if heading != "Commands"]
    assert found == [heading for heading in HEADINGS if heading in found]
    whole = groups_of(help_of("chat"))
    for heading in HEADINGS[1:]:
        known = whole.get(heading, [])
        shared = [option for option in groups.get(heading, []) if option in known]
        assert shared == [option for option in known if option in shared]


def test_no_option_is_missing_or_shown_twice():
    for words in all_commands(main):
        command: click.Command = main
        for word in words:
            assert isinstance(command, click.Group)
            command = command.commands[word]
        context = click.Context(command)
        shown = [name for group in groups_of(help_of(*words)).values() for name in group]
        visible = [
            next(opt for opt in param.opts if opt.startswith("--")).removeprefix("--")
            for param in command.get_params(context)
            if isinstance(param, click.Option) and not param.hidden
        ]
        assert sorted(shown) == sorted(visible)


@pytest.mark.parametrize("words", [(), *all_commands(main)], ids=" ".join)
def test_nothing_is_wider_than_a_terminal(words):
    assert max(map(len, help_of(*words).splitlines())) <= 80


@pytest.mark.parametrize("words", [(), *all_commands(main)], ids=" ".join)
def test_no_value_of_python_is_shown(words):
    """Such as [x<=None], the bound of a number that has none."""
    assert not re.search(r"None\b|Sentinel|object at|<class", help_of(*words))
