"""`localspec sessions`: lists, exports and removes saved conversations."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from localspec.chat.session import (
    Session,
    check_exists,
    known_name,
    lock_session,
    picture_name,
    remove_sessions,
    session_bytes,
    session_names,
)
from localspec.cli.completers import complete_session
from localspec.cli.help import Group
from localspec.cli.json_output import json_option, write_json
from localspec.cli.screen import counted, printable, readable_bytes, say
from localspec.cli.session_summary import existing_session, session_json, session_lines
from localspec.cli.standard_streams import is_terminal
from localspec.errors import OptionError
from localspec.system.atomic_write import write_whole

if TYPE_CHECKING:
    from localspec.chat.template import Message

_SPEAKERS = {
    "system": "System message",
    "user": "You",
    "assistant": "Model",
}  # by role
_FENCE = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")

_FOREIGN_COMMANDS = {
    **dict.fromkeys(("show", "cat"), "localspec sessions export NAME"),
    **dict.fromkeys(("rm", "delete"), "localspec sessions remove NAME"),
    **dict.fromkeys(("open", "load", "resume"), "localspec chat --session NAME"),
}


@click.group(cls=Group, invoke_without_command=True, foreign_commands=_FOREIGN_COMMANDS)
@click.pass_context
def sessions(context: click.Context) -> None:
    """List, export and remove saved conversations.

    'localspec chat --session NAME' starts or continues a session, and /save NAME in a chat
    saves the conversation as one.

    \b
        localspec sessions
        localspec sessions export french
        localspec sessions export french french.md
        localspec sessions remove french
        localspec sessions wipe
    """
    if context.invoked_subcommand is None:
        context.invoke(list_sessions, as_json=False)


@sessions.command("list")
@json_option("array with everything known")
def list_sessions(*, as_json: bool) -> None:
    """List sessions with their turns, last use and size, and whether a chat has them open."""
    if as_json:
        write_json([session_json(name) for name in session_names()])
        return
    for line in session_lines():
        click.echo(line)


@sessions.command("export")
@click.argument("name", shell_complete=complete_session)
@click.argument("file", required=False, type=click.Path(path_type=Path))
@json_option("object, the format of saved sessions; a FILE that ends in .json gets it anyway")
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
def export_session(
    *,
    name: str,
    file: Path | None,
    as_json: bool,
    overwrite: bool,
) -> None:
    """Write a conversation to FILE, or to stdout."""
    session = existing_session(name)
    is_json_file = file is not None and file.suffix.lower() == ".json"
    if as_json or is_json_file:
        data = session.as_json()
    else:
        data = _as_markdown(session).encode(errors="replace")
    if file is None:
        _print_export(data)
        return
    if file.exists() and not file.is_file():
        raise OptionError(f"{file} exists already", "Give a file.")
    if file.exists() and not overwrite:
        hint = "Choose another name, or use --overwrite."
        raise OptionError(f"{file} exists already", hint)
    write_whole(file, data, durable=False)
    say(f"{name} exported to {file}")


def _print_export(data: bytes) -> None:
    """Print an exported conversation; a terminal gets it without control characters."""
    if is_terminal(sys.stdout):
        click.echo(printable(data.decode()), nl=False)
    else:
        click.echo(data, nl=False)


@sessions.command("remove")
@click.argument(
    "names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_session
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove_named(*, names: tuple[str, ...], yes: bool) -> None:
    """Delete sessions. If one of them is open in a chat, none is deleted.

    Caches that 'localspec chat --keep-caches' keeps are deleted by 'localspec sessions wipe'.
    """
    chosen = list(dict.fromkeys(map(known_name, names)))  # each once
    for name in chosen:
        check_exists(name)
        # Before the question: this raises if a chat has the session open.
        lock = lock_session(name)
        lock.release()
    for name in chosen:
        say(f"{name}: {readable_bytes(session_bytes(name))}")
    count = counted(len(chosen), "session")
    if not yes:
        _confirm(f"Remove {count}?")
    remove_sessions(chosen)
    say(f"{count} removed")


@sessions.command("wipe")
@click.option("--yes", is_flag=True, help="Do not ask.")
def wipe(*, yes: bool) -> None:
    """Delete the caches of conversations that serve, and chat --keep-caches, keep on disk.

    The next answer in each conversation reads it again. A running server is not stopped, and
    saves the caches of later requests.
    """
    from localspec.engine.cache_store import kept_files, wipe_kept

    count = counted(len(kept_files()), "conversation")
    if not yes:
        _confirm(f"Wipe the caches of {count}?")
    say(f"{readable_bytes(wipe_kept())} freed")


def _confirm(question: str) -> None:
    """Ask. Raises click.Abort after a no, click.UsageError without a terminal."""
    if not is_terminal(sys.stdin):
        raise click.UsageError(
            "There is no terminal to ask for confirmation. Use --yes to remove without asking."
        )
    click.confirm(question, abort=True, err=True)


def _as_markdown(session: Session) -> str:
    """A conversation as Markdown, with a heading for each message."""
    parts = [f"# {session.name}"]
    for message in session.messages:
        role = str(message["role"])  # a file that was edited can have any role
        text = _message_text(message).strip()
        parts += [f"## {_SPEAKERS.get(role, role)}", _with_closed_fence(text)]
    return "\n\n".join(parts) + "\n"


def _message_text(message: Message) -> str:
    """The text of a message, with a line before it for each picture."""
    pictures = message.get("pictures", ())
    notes = [f"[image {picture_name(picture)}]" for picture in pictures]
    return "\n".join([*notes, message["content"]])


def _with_closed_fence(text: str) -> str:
    """The text, with a closing fence if its last code is not closed: the answer was cut off."""
    open_fence = ""  # of the code that a line is in; "" outside of code
    for line in text.split("\n"):
        bare = line.strip()
        if open_fence:
            has_only_marks = set(bare) == {open_fence[0]}
            if has_only_marks and len(bare) >= len(open_fence):
                open_fence = ""
            continue
        start = _FENCE.match(line)
        if start is not None:
            open_fence = start[1]
    if open_fence:
        return f"{text}\n{open_fence}"
    return text
