"""Commands that group their options in --help, and whose errors say what to type."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NoReturn

import click

from localspec.cli.flags import usual_flag
from localspec.errors import LocalspecError, did_you_mean
from localspec.keywords import flags_for
from localspec.presets.model_names import resolve
from localspec.presets.presets import LocalModel

# In the order of --help. An option of a single command has no heading: it is in "Options".
HEADINGS = (
    "Options",
    "Model",
    "Drafting",
    "Prompt and answer",
    "Sampling",
    "Device",
    "Output",
)
# Hints by command, for extra words none of which is a model's name.
_NO_MODEL = {
    "generate": "Put a prompt of several words in quotes.",
    "chat": "To ask one question: localspec generate -m MODEL PROMPT.",
}
_MAX_SUMMARY = 1000  # characters; no summary is as long
_NEAR = 0.75  # from 0 to 1: the least likeness of an option that may be meant


class _Grouped(click.Command):
    """A command that shows its options in groups, and its whole summary in a list."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups that the command has options in."""
        rows: dict[str, list[tuple[str, str]]] = {heading: [] for heading in HEADINGS}
        for param in self.get_params(ctx):
            if not isinstance(param, click.Option):
                continue
            record = param.get_help_record(ctx)
            if record is not None:  # a hidden option has none
                heading = getattr(param, "heading", HEADINGS[0])
                rows[heading].append(record)
        for heading, records in rows.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)

    def get_short_help_str(self, limit: int = _MAX_SUMMARY) -> str:
        """The summary, wrapped and never cut."""
        return super().get_short_help_str(_MAX_SUMMARY)


class Command(_Grouped):
    """A command whose errors name the option or command that was meant."""

    allow_extra_args = True  # `parse_args` refuses them, with a hint

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. Raises click.UsageError."""
        is_completing = ctx.resilient_parsing
        own = list(args)
        if "--" in args:
            own = args[: args.index("--")]
        try:
            # click would read them as -m d, -h -f and -f a.
            theirs = {"-md", "-hf", "-fa"}.intersection(own)
            if theirs and not is_completing:
                raise click.NoSuchOption(theirs.pop())
            extra = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            self._refuse_option(ctx, error, own)
        if extra and not is_completing:
            several = "s" if len(extra) > 1 else ""
            message = f"Got unexpected extra argument{several} ({' '.join(extra)})."
            hint = self._place_of(extra, ctx.params.get("prompt"))
            ctx.fail(f"{message} {hint}".strip())
        return extra

    def _refuse_option(
        self,
        ctx: click.Context,
        error: click.NoSuchOption,
        own: list[str],
    ) -> NoReturn:
        """Raise click.UsageError with the option or command that may be meant.

        Args:
            ctx: click's context.
            error: click's error. If -ngl was typed, it names -n.
            own: the words that are for the command.
        """
        for typed in own:
            if typed.startswith(error.option_name):
                instead = self._instead_of(typed.partition("=")[0])
                if instead:
                    ctx.fail(f"No such option '{typed}'. Use: {instead}.")
                break
        meant = get_close_matches(error.option_name, error.possibilities or (), cutoff=_NEAR)
        raise click.NoSuchOption(
            error.option_name,
            possibilities=meant,
            ctx=error.ctx,
        ) from None

    def _instead_of(self, theirs: str) -> str:
        """The option or command here for another program's option; "" if there is none."""
        names: set[str] = set()
        for param in self.params:
            names.update(param.opts, param.secondary_opts)
        for ours in flags_for(theirs, usual_flag):
            if ours not in names and " " not in ours:
                continue
            if ours.isalpha():  # an argument
                return f"localspec {self.name} {ours.removesuffix('s').upper()}"
            return ours
        return ""

    def _place_of(self, extra: list[str], prompt: str | None) -> str:
        """The hint on extra arguments: the option or command that takes them, if any."""
        words = [*extra, prompt or ""]
        model = next(filter(_is_model, words), None)
        if model is None:
            return _NO_MODEL.get(self.name or "", "")
        if prompt is not None:
            return f"The model is given by -m {model}."
        if any(param.name == "draft" for param in self.params):
            return f"The draft model is given by --draft {model}."
        return f"To look at a model: localspec explain {model}."


class Group(_Grouped, click.Group):
    """Several commands, each with its whole summary.

    Args:
        elsewhere: for each command of other programs, the command here. The key MODEL stands
            for the name of any model.
    """

    command_class = Command

    def __init__(self, *arguments: Any, elsewhere: Mapping[str, str], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._elsewhere = elsewhere

    def resolve_command(
        self,
        ctx: click.Context,
        args: list[str],
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that args begin with. Raises click.UsageError with a hint if unknown."""
        name = args[0]
        is_unknown = self.get_command(ctx, name) is None and not name.startswith("-")
        is_completing = ctx.resilient_parsing
        if is_unknown and not is_completing:
            here = self._elsewhere.get(name)
            if here is None and _is_model(name):
                here = self._elsewhere.get("MODEL", "").replace("MODEL", name)
            hint = did_you_mean(name, self.list_commands(ctx))
            if here:
                hint = f"Use: {here}."
            ctx.fail(f"No such command {name!r}. {hint}".strip())
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in groups, then the commands."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def _is_model(word: str) -> bool:
    """Whether a word can only be the name of a model."""
    with contextlib.suppress(LocalspecError, OSError):
        model = resolve(word).model
        return not isinstance(model, LocalModel) or model.path.suffix.lower() == ".gguf"
    return False
