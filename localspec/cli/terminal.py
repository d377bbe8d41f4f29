"""A conversation on a terminal, until Ctrl-D."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import click

from localspec.cli.answer_view import AnswerView, MarkedView, RenderedView, show_answer
from localspec.cli.chat_commands import COMMANDS, run_command
from localspec.cli.conversation import Conversation
from localspec.cli.idle_time import idle_time
from localspec.cli.line_editor import LineEditor
from localspec.cli.modes import modes_kept
from localspec.cli.screen import error_lines, note, status_line
from localspec.errors import ContextError, LocalspecError
from localspec.stream import Reply, Stream


def converse(conversation: Conversation) -> None:
    """Answer messages and do commands. No failure of either ends the conversation."""
    editor = LineEditor({name: command.values for name, command in COMMANDS.items()})

    def prefill() -> str:
        if conversation.pending:
            note("This question was not answered yet; Enter asks it again.")
        return conversation.pending

    def meanwhile() -> contextlib.AbstractContextManager[None]:
        return idle_time(conversation.engine, conversation.chat)

    with _leave_in_order(editor), modes_kept():
        for text in editor.messages(prefill, meanwhile):
            try:
                if not run_command(conversation, text):
                    conversation.ask(text)
            except ContextError as error:
                click.echo(error_lines(error), err=True)
                note("The conversation goes on as it was; ↑ brings back what you typed.")
            except LocalspecError as error:
                click.echo(error_lines(error), err=True)
            except KeyboardInterrupt:
                click.echo()
                note("(stopped)")


def write_rendered(conversation: Conversation, stream: Stream) -> Reply:
    """Show an answer, and a line about it."""
    view: AnswerView = MarkedView()
    if not conversation.show_draft:
        view = RenderedView(conversation.think)
    reply = show_answer(conversation.engine, stream, view)
    if reply.finish_reason == "cancelled":
        note("(stopped)")
    note(status_line(reply.stats, conversation.engine.context_length))
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
