"""A conversation on a terminal, until Ctrl-D."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import click

from localspec.chat.attachment import read_attachment
from localspec.chat.chat import Chat
from localspec.cli.answer_output import PlainView, note_limits
from localspec.cli.conversation import Conversation
from localspec.cli.progress_line import waiting
from localspec.cli.quoted_text import unquoted
from localspec.cli.screen import error_lines, note, status_line
from localspec.cli.signal_handlers import cancel_on_interrupt, leave_on_termination
from localspec.cli.standard_streams import echo_off
from localspec.cli.terminal.line_editor import LineEditor, can_edit
from localspec.cli.terminal.markdown import RenderedView
from localspec.cli.terminal.slash_commands import COMMANDS, Leave, attach, run_command
from localspec.engine.base import BaseEngine
from localspec.errors import ContextError, LocalspecError
from localspec.speculative.metrics import Provenance
from localspec.streaming.answer import Answer
from localspec.streaming.reply import Piece, Reply
from localspec.system.call_thread import CallThread

_RETRY_S = 0.01  # between two attempts to cancel a preparation, which may not have started


def converse(conversation: Conversation) -> None:
    """Answer messages and run commands, until Ctrl-D or /quit.

    An error of a message or command is shown, and the conversation continues.
    """
    editor = LineEditor({name: command.values for name, command in COMMANDS.items()})
    prefill = functools.partial(_prefilled, conversation)
    meanwhile = functools.partial(preparing_next_answer, conversation.engine, conversation.chat)

    def leave(number: int) -> None:
        # An exception, so that the terminal is restored.
        editor.end(SystemExit(128 + number))

    with leave_on_termination(leave):
        for text in editor.messages(prefill, meanwhile):
            try:
                _handle_message(conversation, text)
            except Leave:
                return
            except ContextError as error:
                click.echo(error_lines(error), err=True)
                note("The conversation is unchanged; ↑ brings back what you typed.")
            except LocalspecError as error:
                click.echo(error_lines(error), err=True)
            except KeyboardInterrupt:
                click.echo()
                note("(stopped)")


def _handle_message(conversation: Conversation, text: str) -> None:
    """Do what a typed text means: run a command, attach dropped files, or answer a message."""
    quoted = unquoted(text)
    if quoted is not None:
        if quoted.strip():
            conversation.ask(quoted)
        return
    is_done = run_command(conversation, text) or _attach_dropped(conversation, text)
    if not is_done:
        conversation.ask(text)


def _prefilled(conversation: Conversation, was_emptied: bool) -> str:  # noqa: FBT001
    """The text that the input line starts with: the last question if it is edited, else "".

    A note names the keys. If the user has just cleared the line, editing ends.
    """
    if not conversation.is_editing:
        return ""
    if was_emptied:
        note("The question is unchanged.")
        conversation.is_editing = False
        return ""
    note("Enter asks the edited question in place of the old one; Ctrl-C keeps the old one.")
    return conversation.edited_text()


def show_answer(conversation: Conversation, answer: Answer) -> Reply:
    """Show an answer as it comes, with notes and the status line below it. Returns its reply.

    A continued answer is shown from its beginning if it is rendered as Markdown; otherwise only
    the new part is shown. Ctrl-C stops the answer at once; its text so far is kept.
    """
    view: PlainView | RenderedView = PlainView(show_draft=conversation.show_draft)
    if not conversation.show_draft and can_edit():
        view = RenderedView(conversation.think)
        view.push(Piece(conversation.text_so_far, (), Provenance.PLAIN))
    pieces = iter(answer)
    progress = "Reading {} of {} tokens …"
    with cancel_on_interrupt(answer.cancel), echo_off(), answer:
        with waiting(lambda: progress.format(*conversation.engine._reading_progress)):
            first = next(pieces, None)
        if first is not None:
            view.push(first)
        for piece in pieces:
            view.push(piece)
    view.finish()
    reply = answer.reply()
    if reply.finish_reason == "cancelled":
        note("(stopped)")
    note_limits(reply, conversation.options.max_tokens, conversation.engine)
    if not conversation.is_quiet:
        columns = shutil.get_terminal_size().columns
        note(status_line(reply.stats, conversation.engine.context_length, columns))
    return reply


@contextlib.contextmanager
def preparing_next_answer(engine: BaseEngine, chat: Chat) -> Iterator[None]:
    """Prepare the chat's next answer in another thread while the body runs.

    The preparation is cancelled when the body ends. Its error is not shown: the next answer
    raises it again.
    """
    thread = CallThread(chat.prepare, daemon=True)
    thread.start()
    try:
        yield
    finally:
        while thread.is_alive():  # a cancel before the preparation has started does nothing
            engine.cancel()
            thread.join(_RETRY_S)


def _attach_dropped(conversation: Conversation, text: str) -> bool:
    """Attach files that were dropped on the terminal, which types their paths.

    Returns whether the text is only paths of files, at least one of a picture. Any other text
    is a message, and nothing is attached. Raises what `read_attachment` and `attach` raise.
    """
    files = [read_attachment(path) for path in _dropped_files(text)]
    pictures = [file for file in files if file.picture is not None]
    if not pictures:
        return False
    for picture in pictures:  # before the texts, since a picture may be refused
        attach(conversation, picture)
    for file in files:
        if file.picture is None:
            attach(conversation, file)
    return True


def _dropped_files(text: str) -> list[Path]:
    """The files whose paths or URLs a text consists of; [] for any other text.

    A path may be quoted, or its blanks escaped.
    """
    if "\n" in text:
        return []
    readings = [[text.strip()]]  # as one path, and as several
    with contextlib.suppress(ValueError):  # an apostrophe of prose is no quote
        readings.append(shlex.split(text))
    for words in readings:
        with contextlib.suppress(ValueError, OSError):  # file://[host]/share is no URL
            paths = [_path_of(word) for word in words]
            if all(map(os.path.isfile, paths)):
                return [Path(path) for path in paths]
    return []


def _path_of(word: str) -> str:
    """The path that a word means: that of a file URL, or the word with ~ expanded.

    Raises ValueError for a malformed URL, or OSError for one that names no local file.
    """
    if word.startswith("file://"):
        return url2pathname(urlsplit(word).path)
    return os.path.expanduser(word)
