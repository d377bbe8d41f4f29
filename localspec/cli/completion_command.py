"""Shell completion of names, and `localspec completion`.

A person has just pressed Tab: nothing here may be slow, use the network, or fail.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem, get_completion_class

from localspec.chat.session import session_names
from localspec.chat.template import BUILT_IN
from localspec.cli.help import Command
from localspec.errors import LocalspecError
from localspec.presets.located import preset_state
from localspec.presets.presets import load_presets

# After an error nothing is completed: a traceback would end up in the command line.
_quietly = contextlib.suppress(LocalspecError, OSError)
_STATES = {
    "ready": "on this machine",
    "partial": "partly on this machine",
    "absent": "",
}


def complete_preset(
    _context: click.Context,
    _param: click.Parameter,
    incomplete: str,
) -> list[CompletionItem]:
    """Presets, those on this machine first."""
    by_state: dict[str, list[str]] = {state: [] for state in _STATES}
    with _quietly:
        for name, preset in load_presets().items():
            if name.startswith(incomplete):
                by_state[preset_state(preset).state].append(name)
    items = []
    for state, names in by_state.items():
        for name in names:
            items.append(CompletionItem(name, help=_STATES[state]))
    return items


def complete_model(
    context: click.Context,
    param: click.Parameter,
    incomplete: str,
) -> list[CompletionItem]:
    """Presets and files. In this order bash shows files only if no preset matches."""
    file = CompletionItem(incomplete, type="file")
    return [file, *complete_preset(context, param, incomplete)]


def complete_session(
    _context: click.Context,
    _param: click.Parameter,
    incomplete: str,
) -> list[CompletionItem]:
    """Names of sessions. zsh and fish quote names themselves; for bash it is done here."""
    names: Iterable[str] = ()
    with _quietly:
        names = session_names()
    names = [name for name in names if name.startswith(incomplete)]
    if os.environ.get("_LOCALSPEC_COMPLETE") == "bash_complete":
        names = map(shlex.quote, names)
    return [CompletionItem(name) for name in names]


def complete_template(
    _context: click.Context,
    _param: click.Parameter,
    incomplete: str,
) -> list[CompletionItem]:
    """Built-in chat templates, and files."""
    names = [CompletionItem(name) for name in BUILT_IN if name.startswith(incomplete)]
    return [CompletionItem(incomplete, type="file"), *names]


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, *, shell: str) -> None:
    """Print the completion script for a shell.

    Tab then completes commands, options and their values, presets (those on this machine
    first), sessions and files. To turn it on for new shells:

    \b
        localspec completion fish > ~/.config/fish/completions/localspec.fish
        echo 'eval "$(localspec completion bash)"' >> ~/.bashrc
        echo 'eval "$(localspec completion zsh)"' >> ~/.zshrc
    """
    script_of = get_completion_class(shell)
    assert script_of is not None
    root = context.find_root().command
    click.echo(script_of(root, {}, "localspec", "_LOCALSPEC_COMPLETE").source())
