"""A conversation on a terminal, until Ctrl-D."""

from __future__ import annotations

import contextlib
import logging
import shutil
import signal
import threading
from collections.abc import Iterator

import click

from localspec.chat.chat import Chat
from localspec.cli.conversation import Conversation
from localspec.cli.screen import cut_line, error_lines, not_kept_line, note, status_line
from localspec.cli.terminal.answer_view import AnswerView, MarkedView, RenderedView, show_answer
from localspec.cli.terminal.chat_commands import COMMANDS, Leave, run_command
from localspec.cli.terminal.dropped import refuse_dropped_media
from localspec.cli.terminal.line_editor import LineEditor
from localspec.cli.terminal.modes import modes_kept
from localspec.engine.base import BaseEngine
from localspec.errors import ContextError, LocalspecError
from localspec.streaming.answer import Answer
from localspec.streaming.reply import Reply

logger = logging.getLogger(__name__)

_RETRY_S = 0.01  # between two attempts to end idle work: it may not have begun yet


def converse(conversation: Conversation) -> None:
    """Answer messages and do commands. No failure of either ends the conversation."""
    editor = LineEditor({name: command.values for name, command in COMMANDS.items()})

    def prefill(was_emptied: bool) -> str:  # noqa: FBT001  its only argument
        return _begun(conversation, was_emptied=was_emptied)

    def meanwhile() -> contextlib.AbstractContextManager[None]:
        return idle_time(conversation.engine, conversation.chat)

    with _leave_in_order(editor), modes_kept():
        for text in editor.messages(prefill, meanwhile):
            try:
                if not run_command(conversation, text):
                    refuse_dropped_media(text)
                    conversation.ask(text)
            except Leave:
                return
            except ContextError as error:
                click.echo(error_lines(error), err=True)
                note("The conversation goes on as it was; ↑ brings back what you typed.")
            except LocalspecError as error:
                click.echo(error_lines(error), err=True)
            except KeyboardInterrupt:
                click.echo()
                note("(stopped)")


def _begun(conversation: Conversation, *, was_emptied: bool) -> str:
    """What the line holds at first, said why."""
    if was_emptied:
        if conversation.is_editing:
            note("The question stays as it was.")
        conversation.is_editing = False
        return ""
    if conversation.is_editing:
        note("Enter asks it anew, in place of the old one; Ctrl-C leaves it as it was.")
        return conversation.edited_text()
    if conversation.pending:
        note("This question was not answered yet; Enter asks it again.")
    return conversation.pending


def write_rendered(conversation: Conversation, answer: Answer) -> Reply:
    """Show an answer, and a line about it."""
    view: AnswerView = MarkedView()
    if not conversation.show_draft:
        view = RenderedView(conversation.think, conversation.begun)
    reply = show_answer(conversation.engine, answer, view)
    if reply.finish_reason == "cancelled":
        note("(stopped)")
    if cut := cut_line(reply, conversation.options.max_tokens, conversation.engine):
        note(cut)
    if passed_over := not_kept_line(reply):
        note(passed_over)
    if not conversation.is_quiet:
        columns = shutil.get_terminal_size().columns
        note(status_line(reply.stats, conversation.engine.context_length, columns))
    return reply


@contextlib.contextmanager
def _leave_in_order(editor: LineEditor) -> Iterator[None]:
    """While the block runs, being told to end is an exception, so that the terminal is
    left as it was found."""

    def leave(number: int, _frame: object) -> None:
        editor.end(SystemExit(128 + number))

    numbers = [signal.SIGTERM]
    if hasattr(signal, "SIGHUP"):
        numbers.append(signal.SIGHUP)
    previous = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def idle_time(engine: BaseEngine, chat: Chat) -> Iterator[None]:
    """Prepare the next answer while a person types.

    While the block runs, a thread prepares the chat; it has ended when the block is left.

    What fails there can wait: it fails again when it is needed, and is said then.
    """

    def prepare() -> None:
        try:
            chat.prepare()
        except Exception:
            logger.info("idle time was of no use", exc_info=True)

    worker = threading.Thread(target=prepare, name="localspec-idle", daemon=True)
    worker.start()
    try:
        yield
    finally:
        while worker.is_alive():
            engine.cancel()
            worker.join(_RETRY_S)
