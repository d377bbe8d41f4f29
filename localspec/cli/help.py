"""Commands whose --help shows options in groups, the same everywhere and in one order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from localspec.cli.device_options import DEVICE_NAMES
from localspec.cli.sampling_options import SAMPLING_NAMES
from localspec.errors import perhaps

# Options by topic. An option that is not listed here belongs to one command, and comes first.
HEADINGS = {
    "Model": ("model", "preset", "target", "draft", "head", "context_length", "force"),
    "Drafting": ("proposer", "draft_tokens", "no_draft", "rule"),
    "Prompt and answer": ("system", "template_name", "max_tokens", "seed"),
    "Sampling": SAMPLING_NAMES,
    "Device": DEVICE_NAMES,
    "Output": ("as_json", "logprobs", "details", "plot", "stats", "show_draft"),
}
_WHOLE = 1000  # characters of a command's summary: it is wrapped, never cut


class Command(click.Command):
    """A command with its options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups that the command has options in."""
        _write_options(self, ctx, formatter)


class Group(click.Group):
    """Several commands, each with its whole summary.

    elsewhere: names of commands in other programs, and the command here.
    """

    command_class = Command

    def __init__(
        self, *arguments: Any, elsewhere: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(*arguments, **more)
        self._elsewhere = elsewhere or {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of that name. Raises click.UsageError that names a similar command."""
        name = args[0]
        is_unknown = self.get_command(ctx, name) is None and not name.startswith("-")
        if is_unknown and not ctx.resilient_parsing:  # as in completion
            here = self._elsewhere.get(name)
            hint = f"Use: {here}." if here else perhaps(name, self.list_commands(ctx))
            ctx.fail(f"No such command {name!r}. {hint}".strip())
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in groups, then the commands."""
        _write_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one or more lines for each command."""
        names = self.list_commands(ctx)
        commands = {name: self.get_command(ctx, name) for name in names}
        rows = [
            (name, command.get_short_help_str(limit=_WHOLE))
            for name, command in commands.items()
            if command is not None and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _write_options(
    command: click.Command, ctx: click.Context, formatter: click.HelpFormatter
) -> None:
    records = {}
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is not None:  # neither an argument nor hidden
            records[param.name] = record
    grouped = {
        heading: [records.pop(name) for name in names if name in records]
        for heading, names in HEADINGS.items()
    }
    for heading, rows in {"Options": list(records.values()), **grouped}.items():
        if rows:
            with formatter.section(heading):
                formatter.write_dl(rows)
