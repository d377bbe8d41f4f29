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
_MIN_LIKENESS = 0.75  # from 0 to 1, of an option that is suggested in place of an unknown one


class _Grouped(click.Command):
    """A command that shows its options in groups; lists of commands show its whole summary."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options below their headings; a heading without options is left out."""
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
        """The whole summary: click would cut it off at `limit`."""
        return super().get_short_help_str(_MAX_SUMMARY)


class Command(_Grouped):
    """A command whose errors name the option or command that was meant."""

    allow_extra_args = True  # `parse_args` refuses them, with a hint

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. Raises click.UsageError, with a hint, if they are wrong.

        Returns the arguments that are left over: none, except while a shell completes a command
        line, which gets no error for them or for unknown options.
        """
        is_completing = ctx.resilient_parsing
        words = list(args)  # a copy: click empties `args`
        if "--" in args:
            words = args[: args.index("--")]
        try:
            # Options of llama.cpp, which click would read as -m d, -h -f and -f a.
            foreign_flags = {"-md", "-hf", "-fa"}.intersection(words)
            if foreign_flags and not is_completing:
                raise click.NoSuchOption(foreign_flags.pop())
            extra = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            self._refuse_option(ctx, error, words)
        if extra and not is_completing:
            noun = "argument"
            if len(extra) > 1:
                noun = "arguments"
            message = f"Got unexpected extra {noun} ({' '.join(extra)})."
            hint = self._hint_for_extra(extra, ctx.params.get("prompt"))
            ctx.fail(f"{message} {hint}".strip())
        return extra

    def _refuse_option(
        self,
        ctx: click.Context,
        error: click.NoSuchOption,
        words: list[str],
    ) -> NoReturn:
        """Raise click.UsageError, with the option or command that the user may have meant.

        Args:
            ctx: click's context.
            error: click's error. If -ngl was typed, it names -n.
            words: the arguments as they were typed, up to "--".
        """
        for typed in words:
            if typed.startswith(error.option_name):
                foreign_flag, _, _ = typed.partition("=")
                replacement = self._our_name_for(foreign_flag)
                if replacement:
                    ctx.fail(f"No such option '{typed}'. Use: {replacement}.")
                break
        options = error.possibilities or ()
        similar = get_close_matches(error.option_name, options, cutoff=_MIN_LIKENESS)
        raise click.NoSuchOption(
            error.option_name,
            possibilities=similar,
            ctx=error.ctx,
        ) from None

    def _our_name_for(self, foreign_flag: str) -> str:
        """The option or command that does what another program's option does; "" if none."""
        names: set[str] = set()
        for param in self.params:
            names.update(param.opts, param.secondary_opts)
        for ours in flags_for(foreign_flag, usual_flag):
            is_command_line = " " in ours
            if ours not in names and not is_command_line:
                continue  # an option of other commands
            if ours.isalpha():  # the name of an argument, not a flag
                return f"localspec {self.name} {ours.removesuffix('s').upper()}"
            return ours
        return ""

    def _hint_for_extra(self, extra: list[str], prompt: str | None) -> str:
        """The option or command for a model's name among the arguments, in a sentence.

        Without a model's name it is the command's sentence in `_NO_MODEL`, or "".

        Args:
            extra: the arguments that the command does not take.
            prompt: the argument PROMPT, if the command has one and it was given.
        """
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
        foreign_commands: what to type here in place of a command of another program. The key
            MODEL stands for the name of any model.
    """

    command_class = Command

    def __init__(
        self,
        *arguments: Any,
        foreign_commands: Mapping[str, str],
        **more: Any,
    ) -> None:
        super().__init__(*arguments, **more)
        self._foreign_commands = foreign_commands

    def resolve_command(
        self,
        ctx: click.Context,
        args: list[str],
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The name of the command that `args` begin with, the command, and the other arguments.

        Raises click.UsageError with a hint for an unknown command.
        """
        name = args[0]
        is_unknown = self.get_command(ctx, name) is None and not name.startswith("-")
        is_completing = ctx.resilient_parsing
        if is_unknown and not is_completing:
            replacement = self._foreign_commands.get(name)
            if replacement is None and _is_model(name):
                replacement = self._foreign_commands.get("MODEL", "").replace("MODEL", name)
            hint = did_you_mean(name, self.list_commands(ctx))
            if replacement:
                hint = f"Use: {replacement}."
            ctx.fail(f"No such command {name!r}. {hint}".strip())
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in groups, then the commands."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def _is_model(word: str) -> bool:
    """Whether a word is certainly a model's name: a preset, a model on the hub, a GGUF file."""
    with contextlib.suppress(LocalspecError, OSError):
        model = resolve(word).model
        return not isinstance(model, LocalModel) or model.path.suffix.lower() == ".gguf"
    return False
