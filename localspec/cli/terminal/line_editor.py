"""Reads messages from a person: editing, history, several lines, completion of commands."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping

import click
import platformdirs
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.utils import is_dumb_terminal

from localspec.cli.quoted_text import is_unclosed
from localspec.cli.screen import printable
from localspec.system.atomic_write import make_private_folder, open_regular

# Gives the completions of a command's argument; None stands for paths.
Values = Callable[[], Iterable[str]] | None

PROMPT = "> "
_CONTINUED = "  "  # what the terminal shows before the later lines of a message


def can_edit() -> bool:
    """Whether this terminal can show a line that is edited: whether it can move its cursor."""
    return not is_dumb_terminal()


class LineEditor:
    """Reads messages from the terminal. A dumb terminal is read with `input`.

    Args:
        commands: the names of commands, each with the completions of its argument.
    """

    def __init__(self, commands: Mapping[str, Values]) -> None:
        self._session: PromptSession[str] | None = None
        if can_edit():
            self._session = _session(commands)
        self._ending: BaseException | None = None

    def messages(
        self,
        prefill: Callable[[bool], str],
        meanwhile: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> Iterator[str]:
        """The messages that are typed, until Ctrl-D. Ctrl-C clears the line.

        Args:
            prefill: called before every message; returns the text that the line starts with.
                Its argument says whether the user has just cleared the line. A dumb terminal
                shows the text above the line, and an empty line sends it.
            meanwhile: makes a context manager, which is open while a message is typed.
        """
        was_emptied = False
        while True:
            click.echo()
            default = prefill(was_emptied)
            try:
                with meanwhile():
                    text = self._prompt(default)
            except EOFError:
                return
            except KeyboardInterrupt:
                was_emptied = True
                continue
            # Bytes that are not UTF-8 arrive as lone surrogates, which become "?".
            text = text.encode(errors="replace").decode()
            was_emptied = not text.strip()
            if not was_emptied:
                yield text

    def _prompt(self, prefill: str) -> str:
        """Read one message. Raises the exception of `end`, if there is one."""
        if self._session is None:
            if prefill:
                click.echo(printable(prefill))
            text = input(PROMPT)
            while is_unclosed(text):
                text += "\n" + input(_CONTINUED)
            return text or prefill
        try:
            return self._session.prompt(PROMPT, default=prefill)
        finally:
            if self._ending is not None:
                raise self._ending

    def end(self, ending: BaseException) -> None:
        """End the reading of messages with an exception; for signal handlers.

        While prompt_toolkit shows the prompt, the prompt is ended first, and `messages` raises
        the exception: raised inside the prompt's event loop, it could leave the terminal in raw
        mode. Otherwise it is raised at once.
        """
        loop = None
        if self._session is not None:
            loop = self._session.app.loop
        if loop is None:
            raise ending
        self._ending = ending
        loop.call_soon_threadsafe(self._end_prompt)

    def _end_prompt(self) -> None:
        if self._session is not None and not self._session.app.is_done:
            self._session.app.exit(result="")


def _session(commands: Mapping[str, Values]) -> PromptSession[str]:
    """prompt_toolkit's session, with our history, keys and completions."""
    output = create_output(sys.stdout)
    if isinstance(output, Vt100_Output):
        # The cursor's row is not needed, and not every terminal reports it.
        output.enable_cpr = False
    return PromptSession(
        history=_history(),
        multiline=True,
        prompt_continuation=_CONTINUED,
        key_bindings=_key_bindings(),
        completer=_CommandCompleter(commands),
        complete_while_typing=False,
        # Below the line, as shells do; a menu would need free rows.
        complete_style=CompleteStyle.READLINE_LIKE,
        enable_suspend=True,
        output=output,
    )


class _CommandCompleter(Completer):
    """Completes a command at the start of the line, and its argument."""

    def __init__(self, commands: Mapping[str, Values]) -> None:
        self._commands = commands
        self._paths = PathCompleter(expanduser=True)

    def get_completions(
        self,
        document: Document,
        complete_event: CompleteEvent,
    ) -> Iterator[Completion]:
        """The completions of what is typed before the cursor."""
        command, space, argument = document.text_before_cursor.partition(" ")
        if not command.startswith("/"):
            return
        typed = argument
        values = self._commands.get(command, tuple)  # none for an unknown command
        if not space:
            typed = command
            values = self._commands.keys
        if values is None:
            yield from self._paths.get_completions(Document(typed), complete_event)
            return
        for value in values():
            if value.startswith(typed):
                yield Completion(value, start_position=-len(typed))


class _PrivateHistory(FileHistory):
    """The history of typed lines on disk. An error of writing is ignored."""

    def store_string(self, string: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().store_string(string)


def _history() -> History:
    """The user's history, or one in memory if the file cannot be written."""
    path = platformdirs.user_state_path("localspec", appauthor=False) / "chat_history"
    try:
        make_private_folder(path.parent)
        # Created so that only the user can read it.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        open_regular(path).close()  # raises for a pipe: opening one for reading could block
    except OSError:
        return InMemoryHistory()
    return _PrivateHistory(str(path))


def _key_bindings() -> KeyBindings:
    """What Enter and Alt-Enter do."""
    bindings = KeyBindings()

    @bindings.add("enter")
    def send(event: KeyPressEvent) -> None:
        """Send the message, or start a new line if the message is not complete.

        A message is not complete while its three quotes are open, and after a backslash, which
        is removed.
        """
        buffer = event.current_buffer
        if is_unclosed(buffer.text):
            buffer.insert_text("\n")
        elif buffer.document.char_before_cursor == "\\":
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def begin_line(event: KeyPressEvent) -> None:
        """Start a new line. Terminals send Alt-Enter as these two keys."""
        event.current_buffer.insert_text("\n")

    return bindings
