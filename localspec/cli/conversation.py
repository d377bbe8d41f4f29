"""What a conversation on the command line is, beside the chat itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import click
from filelock import FileLock

from localspec.chat.attachment import Attachment, attached, without_files
from localspec.chat.chat import Chat
from localspec.chat.room import longer_context
from localspec.chat.session import (
    caches_file,
    check_exists,
    known_name,
    lock_session,
    read_session,
    save_session,
    session_file,
)
from localspec.cli.screen import error_lines, note
from localspec.engine.base import BaseEngine
from localspec.errors import CacheError, ContextError, SessionError
from localspec.streaming.answer import Answer
from localspec.streaming.options import AnswerOptions
from localspec.streaming.reply import Reply

ThoughtView = Literal["show", "dim", "hide"]


@dataclass(slots=True)
class Conversation:
    """A chat with the options of its next answer, kept as a session if it has a name.

    write: shows an answer, and returns its reply. think: how thoughts are shown.
    is_quiet: no status line stands below an answer.
    attachments: files that go with the next question. is_editing: the next question takes the
    place of the last one, and of its answer. pending: a question that a killed
    process left without an answer. last: the latest reply. lock: the session's, held as long as
    it is kept. keeps_caches: the session's caches are kept, too, when it is left. begun: what
    the answer that goes on has said. is_saved: the session's file holds what was said. told:
    what prevented it last, as it was shown.
    """

    engine: BaseEngine
    chat: Chat
    options: AnswerOptions
    write: Callable[[Conversation, Answer], Reply]
    show_draft: bool
    think: ThoughtView = "dim"
    is_quiet: bool = False
    session: str | None = None
    pending: str = ""
    is_editing: bool = False
    attachments: list[Attachment] = field(default_factory=list)
    last: Reply | None = None
    lock: FileLock | None = None
    keeps_caches: bool = False
    begun: str = ""
    is_saved: bool = False
    told: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether all is on disk that is to be."""
        return self.session is None or self.is_saved

    def ask(self, text: str) -> None:
        """Answer a question, with the files that were attached to it.

        They stay attached for as long as no question with them is part of the conversation.
        Raises ContextError if it does not fit; the conversation then is as it was.
        """
        question, ask = attached(text, self.attachments), self.chat.send
        if self.is_editing:
            files, _ = without_files(self.chat.last_question)
            question, ask = files + question, self.chat.edit
            self.is_editing = False
        try:
            self._answer(ask(question, self.options), text)
        except ContextError as error:
            if not self.attachments:
                raise
            raise ContextError(
                f"with {self.file_names()}, {error}",
                f"{error.hint} /file none drops the files.",
            ) from error
        finally:
            if [message["content"] for message in self.chat.messages[-2:-1]] == [question]:
                self.attachments.clear()
        if self.attachments:
            note(f"{self.file_names()}: still for the next message; /file none drops them.")

    def edited_text(self) -> str:
        """What was typed as the last question. Raises OptionError if there was none."""
        return without_files(self.chat.last_question)[1]

    def attach(self, attachment: Attachment) -> None:
        """Let a file go with the next question. Raises ContextError if there is no room."""
        try:
            self.chat.prompt_tokens(attached("", [*self.attachments, attachment]))
        except ContextError as error:
            raise ContextError(
                f"{attachment.name} cannot go with the next message: {error}",
                longer_context("Attach the part that matters", self.engine),
            ) from error
        self.attachments.append(attachment)

    def file_names(self) -> str:
        """Of the files that go with the next question."""
        return ", ".join(attachment.name for attachment in self.attachments)

    def retry(self) -> None:
        """Answer the last question again."""
        self._answer(self.chat.retry(self.options), "")

    def go_on(self) -> None:
        """Answer on where the last answer was cut."""
        answer = self.chat.continue_answer(self.options)
        self.begun = self.chat.messages[-1]["content"]
        try:
            self._answer(answer, "")
        finally:
            self.begun = ""

    def _answer(self, answer: Answer, question: str) -> None:
        num_forgotten, pending = self.chat.num_forgotten, self.pending
        if question:
            self.pending = ""  # what was asked now takes its place
        # Whatever happens while the answer comes, the question is not lost.
        self.save(pending=question)
        try:
            self.last = self.write(self, answer)
        except ContextError:
            self.pending = pending  # it was not asked
            raise
        finally:
            self.save()
        if num_forgotten == 0 and self.chat.num_forgotten:
            note("No more turns fit: from here on the oldest turns are forgotten.")

    def save(self, *, pending: str = "") -> None:
        """Write the session, if there is one. What prevents it is said once.

        pending: a question that is being answered.
        """
        if self.session is None:
            return
        self.is_saved = False
        try:
            save_session(self.session, self.chat, pending=pending or self.pending)
            self.is_saved, self.told = True, ""
        except SessionError as error:
            before, self.told = self.told, error_lines(error)
            if self.told != before:
                click.echo(self.told, err=True)

    def leave(self) -> None:
        """Write what could not be written before, and the caches, if that was asked for.

        What prevents it is said.
        """
        if not self.is_kept:
            self.told = ""
            self.save()
        if self.session is None or not self.keeps_caches:
            return
        try:
            self.engine.save_caches(self.chat, caches_file(self.session))
        except OSError as error:
            note(f"The caches cannot be kept: {error.strerror}.")
        except CacheError as error:
            note(f"The caches cannot be kept: {error}.")

    def keep_as(self, name: str, *, may_replace: Callable[[], bool]) -> bool:
        """Write the session, now and after every answer. False if it would have replaced one.

        may_replace: asked before another session of that name is lost. Raises SessionError,
        OptionError.
        """
        name = known_name(name)
        lock = self._lock(name)
        try:
            is_other = name != self.session
            if is_other and session_file(name).exists() and not may_replace():
                self._release(lock)
                return False
            save_session(name, self.chat, pending=self.pending)
            if is_other:
                # Those of what was replaced: of no use, and perhaps large.
                with contextlib.suppress(OSError):
                    caches_file(name).unlink(missing_ok=True)
        except BaseException:
            self._release(lock)
            raise
        self._adopt(name, lock)
        return True

    def resume(self, name: str, *, must_exist: bool) -> bool:
        """Go on with a session, which is kept from now on; whether it was there.

        Raises SessionError if it cannot be read or is in use, OptionError if it has to be
        there and is not.
        """
        if must_exist:
            check_exists(name)
        name = known_name(name)
        lock = self._lock(name)
        try:
            session = read_session(name)
            if session is not None:
                session.resume(self.chat)
                self.pending = session.pending
        except BaseException:
            self._release(lock)
            raise
        self._adopt(name, lock)
        if session is not None:
            try:
                self.engine.load_caches(self.chat, caches_file(name))
            except CacheError as error:
                note(f"The session is decoded again: {error}.")
        return session is not None

    def _lock(self, name: str) -> FileLock | None:
        """The session's lock; the one that is held already for the session in use."""
        return self.lock if name == self.session else lock_session(name)

    def _release(self, lock: FileLock | None) -> None:
        if lock is not None and lock is not self.lock:
            lock.release()

    def _adopt(self, name: str, lock: FileLock | None) -> None:
        if self.lock is not None and lock is not self.lock:
            self.lock.release()
        self.session, self.lock, self.is_saved = name, lock, True
