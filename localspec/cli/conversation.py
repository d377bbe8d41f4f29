"""A conversation on the command line: a chat with its options, files and session."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import click
from filelock import FileLock

from localspec.chat.attachment import Attachment, attached, pictures_in, without_files
from localspec.chat.chat import Chat
from localspec.chat.session import (
    check_exists,
    known_name,
    lock_session,
    read_session,
    save_session,
    session_file,
)
from localspec.chat.tool_loop import functions_of, steps_from
from localspec.chat.turns import longer_context
from localspec.cli.screen import error_lines, note
from localspec.cli.tool_calls import Toolbox
from localspec.engine.base import BaseEngine
from localspec.errors import ContextError, SessionError
from localspec.streaming.answer import Answer
from localspec.streaming.answer_options import AnswerOptions
from localspec.streaming.reply import Reply

LEAVE = ("/quit", "/exit", "/bye")
ThoughtView = Literal["show", "dim", "hide"]


@dataclass(slots=True)
class Conversation:
    """A chat with the options of its next answer, saved as a session if it has a name."""

    engine: BaseEngine
    chat: Chat
    options: AnswerOptions
    write: Callable[[Conversation, Answer], Reply]
    """Shows an answer, and returns its reply."""

    show_draft: bool
    think: ThoughtView = "dim"
    """How thoughts are shown."""

    is_quiet: bool = False
    """Whether the status line below answers is left out."""

    session: str | None = None
    is_editing: bool = False
    """Whether the next question replaces the previous one and its answer."""

    attachments: list[Attachment] = field(default_factory=list)
    """Files for the next question."""

    last_reply: Reply | None = None

    lock: FileLock | None = None
    """The session's lock, held while the session is in use."""

    text_so_far: str = ""
    """The text of the answer that is being continued; "" if none is."""

    is_saved: bool = False
    """Whether the session's file is up to date."""

    shown_error: str = ""
    """The text of the last saving error that was shown; "" if the last attempt succeeded."""

    toolbox: Toolbox | None = None
    """The tools of MCP servers."""

    @property
    def is_kept(self) -> bool:
        """Whether nothing is left to be saved: the session is saved, or there is no session."""
        return self.session is None or self.is_saved

    def ask(self, text: str) -> None:
        """Answer a question with the attached files; an edited one replaces the last question.

        The files stay attached until a question with them is part of the conversation.
        Raises ContextError if the question does not fit; the conversation is then unchanged.
        """
        question = attached(text, self.attachments)
        start_answer = self.chat.send
        images = pictures_in(self.attachments)
        if self.is_editing:
            files_text, _ = without_files(self.chat.last_question)
            question = files_text + question  # the old question's files stay
            start_answer = self.chat.edit
            self.is_editing = False
        try:
            self._answer(start_answer(question, self.options, images=images))
        finally:
            messages = self.chat.messages
            is_answered = len(messages) >= 2 and messages[-2]["content"] == question
            if is_answered:
                self.attachments.clear()
            elif self.attachments:
                names = self.file_names()
                note(f"{names}: kept for the next message; /file none removes them.")

    def edited_text(self) -> str:
        """The last question as it was typed. Raises OptionError if there was none."""
        _, typed = without_files(self.chat.last_question)
        return typed

    def attach(self, attachment: Attachment) -> None:
        """Attach a file to the next question.

        Raises ContextError if it does not fit, OptionError for a picture that the model cannot
        see.
        """
        files = [*self.attachments, attachment]
        try:
            # Made only for its errors.
            self.chat.prompt_tokens(attached("", files), pictures_in(files))
        except ContextError as error:
            raise ContextError(
                f"{attachment.name} does not fit into the next message: {error}",
                longer_context("Attach the part that matters", self.engine),
            ) from error
        self.attachments.append(attachment)

    def file_names(self) -> str:
        """The names of the attached files."""
        return ", ".join(attachment.name for attachment in self.attachments)

    def retry(self) -> None:
        """Answer the last question again."""
        self._answer(self.chat.retry(self.options))

    def continue_answer(self) -> None:
        """Generate more of the last answer, which was cut off or stopped."""
        answer = self.chat.continue_answer(self.options)
        self.text_so_far = self.chat.messages[-1]["content"]
        try:
            self._answer(answer)
        finally:
            self.text_so_far = ""

    def _answer(self, answer: Answer) -> None:
        """Show an answer, with the tool calls that it makes, and save the session."""
        num_forgotten = self.chat.num_forgotten
        try:
            if self.toolbox is None:
                self.last_reply = self.write(self, answer)
            else:
                self._answer_with_tools(answer, self.toolbox)
        finally:
            self.save()
        if num_forgotten == 0 and self.chat.num_forgotten:
            note("The context is full: from now on the oldest turns are dropped.")

    def _answer_with_tools(self, answer: Answer, toolbox: Toolbox) -> None:
        """Show the answer, make the calls that are allowed, show the next answer, and so on."""
        functions = functions_of(self.chat, self.options)
        steps = steps_from(self.chat, answer, self.options, functions)
        with contextlib.closing(steps):
            for step in steps:
                if isinstance(step, Answer):
                    self.last_reply = self.write(self, step)
                    self.text_so_far = ""  # later answers continue none
                elif toolbox.may_run(step):
                    toolbox.run(step)
                else:
                    step.refuse()

    def forget_allowed_calls(self) -> None:
        """Ask again before tool calls that the user allowed for this conversation."""
        if self.toolbox is not None:
            self.toolbox.forget_allowed()

    def save(self) -> None:
        """Write the session, if there is one. The same error twice in a row is shown once."""
        if self.session is None:
            return
        self.is_saved = False
        try:
            save_session(self.session, self.chat)
            self.is_saved = True
            self.shown_error = ""
        except SessionError as error:
            previous_error = self.shown_error
            self.shown_error = error_lines(error)
            if self.shown_error != previous_error:
                click.echo(self.shown_error, err=True)

    def save_at_end(self) -> None:
        """Save the session again if the last attempt failed. An error is shown in any case."""
        if not self.is_kept:
            self.shown_error = ""
            self.save()

    def keep_as(self, name: str, *, may_replace: Callable[[], bool]) -> bool:
        """Save as a session, now and after every answer.

        Returns False if another session of that name was not replaced. Raises OptionError for a
        bad name, SessionError if the session is in use or cannot be saved.

        Args:
            name: the session's name.
            may_replace: asks whether another session of that name may be replaced. It is called
                once that session is locked.
        """
        name = known_name(name)
        with self._locked(name) as lock:
            is_another = name != self.session and session_file(name).exists()
            if is_another and not may_replace():
                return False
            save_session(name, self.chat)
            self._hold(name, lock)
        return True

    def load(self, name: str, *, may_drop: Callable[[], bool]) -> bool:
        """Continue a saved session in place of the present conversation.

        Returns False if the present conversation was kept. Raises OptionError if there is no
        session of that name, SessionError if it cannot be read or is in use.

        Args:
            name: the session's name.
            may_drop: asks whether the present conversation, which is not saved, may be lost. It
                is called once the session was read.
        """
        check_exists(name)
        name = known_name(name)
        with self._locked(name) as lock:
            session = read_session(name)
            if session is None:
                raise SessionError(f"the session {name!r} was removed in the meantime")
            is_unsaved = bool(self.chat.transcript) and not self.is_saved
            if is_unsaved and not may_drop():
                return False
            session.resume(self.chat)
            self._hold(name, lock)
            self.forget_allowed_calls()
        return True

    def open_session(self, name: str) -> bool:
        """Save to a session from now on, and resume it if it exists. Returns whether it exists.

        Raises SessionError if it cannot be read or is in use, OptionError for a bad name.
        """
        name = known_name(name)
        with self._locked(name) as lock:
            session = read_session(name)
            if session is not None:
                session.resume(self.chat)
            self._hold(name, lock)
        return session is not None

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[FileLock]:
        """Lock a session while the body runs.

        The lock stays if it is the conversation's own, or has become that by `_hold`.
        """
        if self.lock is not None and name == self.session:
            lock = self.lock
        else:
            lock = lock_session(name)
        try:
            yield lock
        finally:
            if lock is not self.lock:
                lock.release()

    def _hold(self, name: str, lock: FileLock) -> None:
        """Make this the conversation's session and keep its lock; release the previous lock.

        The session counts as saved: it was just written or read, or is new and empty.
        """
        if self.lock is not None and lock is not self.lock:
            self.lock.release()
        self.session = name
        self.lock = lock
        self.is_saved = True
