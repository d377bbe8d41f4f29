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

from localspec.cli.screen import printable
from localspec.cli.terminal.narrowed import NarrowedWindow

# The texts that can stand after a command; None for paths.
Values = Callable[[], Iterable[str]] | None

PROMPT = "> "


def can_edit() -> bool:
    """Whether this terminal can show a text to be changed."""
    return not is_dumb_terminal()


class LineEditor:
    """Messages typed on the terminal; on a dumb one, as its own line editing brings them.

    commands: what can stand after each of them.
    """

    def __init__(self, commands: Mapping[str, Values]) -> None:
        self._session = _session(commands) if can_edit() else None
        self._is_reading = False
        self._ending: BaseException | None = None

    def messages(
        self,
        prefill: Callable[[bool], str],
        meanwhile: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> Iterator[str]:
        """What is typed, until Ctrl-D. Ctrl-C empties the line.

        prefill: asked before every message for what the line holds at first, and told whether
        the person has just emptied it. A dumb terminal shows it above the line, and Enter alone
        means it. meanwhile: entered whenever the person's turn begins, and left when it ends.
        """
        was_emptied = False
        while True:
            click.echo()
            begun = prefill(was_emptied)
            try:
                with meanwhile():
                    text = self._read(begun)
            except EOFError:
                return
            except KeyboardInterrupt:
                was_emptied = True
                continue
            # Bytes that are no UTF-8 come as halves of surrogate pairs.
            text = text.encode(errors="replace").decode()
            was_emptied = not text.strip()
            if not was_emptied:
                yield text

    def _read(self, prefill: str) -> str:
        if self._session is None:
            if prefill:
                click.echo(printable(prefill))
            return input(PROMPT) or prefill
        self._is_reading = True
        try:
            return self._session.prompt(PROMPT, default=prefill, pre_run=self._leave)
        finally:
            self._is_reading = False
            if self._ending is not None:
                raise self._ending

    def end(self, ending: BaseException) -> None:
        """Raise it, from a signal handler: at once, or as soon as the prompt has been left.

        In the prompt's event loop it could strike anywhere, and be shown as a failure of that.
        """
        if self._session is None or not self._is_reading:
            raise ending
        self._ending = ending
        if self._session.app.loop is not None:
            self._session.app.loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        """Leave the prompt if it has to end."""
        if self._session is not None and self._ending is not None:
            app = self._session.app
            if app.is_running and not app.is_done:
                app.exit(result="")


def _session(commands: Mapping[str, Values]) -> PromptSession[str]:
    output = create_output(sys.stdout)
    if isinstance(output, Vt100_Output):
        # Nothing here needs to know the cursor's row, and not every terminal tells it.
        output.enable_cpr = False
    session: PromptSession[str] = PromptSession(
        history=_history(),
        multiline=True,
        prompt_continuation="  ",
        key_bindings=_key_bindings(),
        completer=_CommandCompleter(commands),
        complete_while_typing=False,
        # Below the line, as a shell does it: a menu would need free rows.
        complete_style=CompleteStyle.READLINE_LIKE,
        enable_suspend=True,
        output=output,
    )
    NarrowedWindow(session.app)
    return session


class _CommandCompleter(Completer):
    """Completes a command at the line's begin, and what may stand behind it."""

    def __init__(self, commands: Mapping[str, Values]) -> None:
        self._commands = commands
        self._paths = PathCompleter(expanduser=True)

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterator[Completion]:
        command, space, begun = document.text_before_cursor.partition(" ")
        values = self._commands.get(command, tuple)
        if not space:
            begun, values = command, self._commands.keys
        if values is None:
            yield from self._paths.get_completions(Document(begun), complete_event)
            return
        for value in values():
            if command.startswith("/") and value.startswith(begun):
                yield Completion(value, start_position=-len(begun))


class _PrivateHistory(FileHistory):
    """Lines that were typed, on disk. A disk that is full does not end the conversation."""

    def store_string(self, string: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().store_string(string)


def _history() -> History:
    """The user's history, or one for this process where there can be no file."""
    path = platformdirs.user_state_path("localspec", appauthor=False) / "chat_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # What was typed is nobody else's business.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError:
        return InMemoryHistory()
    return _PrivateHistory(str(path))


def _key_bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def send(event: KeyPressEvent) -> None:
        """Send the message; after a backslash, begin a line instead."""
        buffer = event.current_buffer
        if buffer.document.char_before_cursor == "\\":
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def begin_line(event: KeyPressEvent) -> None:
        """Alt-Enter."""
        event.current_buffer.insert_text("\n")

    return bindings
