"""Shell completion of names: presets, models, sessions and chat templates.

A person has just pressed Tab: nothing here may be slow, use the network, or fail.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem

from localspec.chat.session import session_names
from localspec.chat.template import BUILT_IN
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
    """Presets that begin with `incomplete`, those on this machine first."""
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
    """Files and presets. In this order bash shows files only if no preset matches."""
    files = CompletionItem(incomplete, type="file")  # the shell lists the files
    return [files, *complete_preset(context, param, incomplete)]


def complete_session(
    _context: click.Context,
    _param: click.Parameter,
    incomplete: str,
) -> list[CompletionItem]:
    """Names of sessions that begin with `incomplete`.

    They are quoted for bash; zsh and fish quote them themselves.
    """
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
    """Files, and built-in chat templates that begin with `incomplete`."""
    names = [CompletionItem(name) for name in BUILT_IN if name.startswith(incomplete)]
    return [CompletionItem(incomplete, type="file"), *names]
