"""What comes between: exceptions, signals, threads, forks, files, and engines that end."""

from __future__ import annotations

import contextlib
import copy
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import inside
from fault_classes.engine_model import ModelChat, Opened, hold
from fault_classes.engine_options import long_text, text_of
from fault_classes.engine_world import World
from localspec.chat.session import read_session, save_session
from localspec.errors import (
    BusyError,
    CacheError,
    ClosedError,
    ContextError,
    DecodeError,
    EngineError,
    ForkedError,
    OptionError,
)

_THREADS = 3
_HANGS_S = 60.0


class Struck(KeyboardInterrupt):
    """What a signal handler raises."""


class Boom(Exception):
    """What a callback raises."""


class Troubles(World):
    """Whatever happens, the next answer is a fresh engine's."""

    # Files.

    def _save(self, first: int, second: int) -> None:
        model, number = self._chat(first), second % 3
        save_session(f"s{number}", model.chat)
        path = self._folder / f"{number}.caches"
        path.unlink(missing_ok=True)
        self._saved[number] = copy.copy(model)
        self._saved[number].turns = copy.deepcopy(model.turns)
        with self._refused_if_busy(), contextlib.suppress(CacheError):  # it exceeds kept_bytes
            self.engine.save_caches(model.chat, path)

    def _resume(self, first: int, second: int) -> None:
        number = first % 3
        saved = self._saved.get(number)
        if saved is None:
            return
        session = read_session(f"s{number}")
        assert session is not None
        model = ModelChat(
            self._new(saved.template),
            saved.system,
            copy.deepcopy(saved.turns),
            saved.num_asked,
            saved.num_forgotten,
            template=saved.template,
        )
        session.resume(model.chat)
        model.calls = self._calls_of(model)
        path = self._folder / f"{number}.caches"
        if path.exists():
            with self._refused_if_busy(), contextlib.suppress(CacheError):
                self.engine.load_caches(model.chat, path)
        self._put_chat(model, second)

    @contextlib.contextmanager
    def _refused_if_busy(self) -> Iterator[None]:
        """What works alone is refused beside answers that have begun."""
        if self._running():
            with pytest.raises(BusyError):
                yield
        else:
            yield

    def _remember(self, first: int, second: int) -> None:
        if "lookup" in self._proposers:
            with self._refused_if_busy():
                self.engine.remember(text_of(first))

    def _free_kept(self, first: int, second: int) -> None:
        with self._refused_if_busy():
            self.engine.free_kept()

    def _exclusively(self, first: int, second: int) -> None:
        with self._refused_if_busy(), self.engine.exclusively() as loop:
            loop.start([5, 6, 7])
            loop.target.decode([5, 6, 7], 1)

    # What is refused.

    def _too_long(self, first: int, second: int) -> None:
        with pytest.raises(ContextError):
            self._answer(long_text(first, 2 * self.engine.context_length)).reply()

    def _wrong(self, first: int, second: int) -> None:
        wrong = ({"temperature": -1.0}, {"draft_tokens": 10**6}, {"rule": "none"}, {"seed": -1})
        with pytest.raises(OptionError):
            self._answer("a", **wrong[first % len(wrong)]).reply()

    # What is raised in the midst of an answer.

    def _raise_in_answer(self, first: int, second: int) -> None:
        opened = self._asked_for(first, second)
        if second % 2:
            opened.answer.close()
            self._forget(opened)
            self._raise_in_callback(first, second)
            return
        try:
            with opened.answer:
                self._read_some(opened, 1 + first % 4)
                raise Boom
        except Boom:
            opened.may_end_early = True
        if opened.has_begun and not opened.is_over:
            self._settle(opened)
        elif not opened.is_over:
            self._forget(opened)

    def _raise_in_callback(self, first: int, second: int) -> None:
        """In a prompt that is read in several batches, where it is."""

        def on_prompt(num_decoded: int, num_tokens: int) -> None:
            if num_decoded > first % 150:
                raise Boom

        keywords = {**self._keywords_of(second), "on_prompt": on_prompt}
        prompt = [5 + place * (1 + first % 7) % (self._num_ids - 5) for place in range(180)]
        self._open("raw", self.engine.generate_raw(prompt, **keywords), keywords)
        self._troubled(self._opened[-1], contextlib.nullcontext(), Boom)

    def _fail_decode(self, first: int, second: int) -> None:
        left = [first % 7]

        def failing(decode: Callable[..., None]) -> Callable[..., None]:
            def fails(*arguments: Any) -> None:
                left[0] -= 1
                if left[0] == 0:
                    raise DecodeError("a failure that was asked for")
                decode(*arguments)

            return fails

        with pytest.MonkeyPatch.context() as patch:
            trouble = contextlib.nullcontext()
            opened = self._asked_for(first, second)
            inside.replace_decode_batch(failing, patch)
            error = self._read_in(opened, trouble, DecodeError)
        self._after_trouble(opened, error)

    def _strike(self, first: int, second: int) -> None:
        for other in [each for each in self._opened if each.owner is self._chat(first)]:
            self._close_it(other)
        opened = self._asked_for(first, second)
        opened.is_torn = True
        owner = opened.owner
        before = None if owner is None else (copy.deepcopy(owner.turns), owner.num_forgotten)
        self._troubled(opened, struck_within((first % 6000 + 20) * 1e-6), Struck)
        if owner is not None and before is not None:
            self._known_again(owner, *before)

    def _asked_for(self, first: int, second: int) -> Opened:
        """An answer that nobody has read."""
        keywords = self._keywords_of(second)
        model = self._chat(first)
        if first % 3 == 0 or model.calls:
            prompt = [5 + second % 200, *range(20, 20 + first % 60)]
            self._open("raw", self.engine.generate_raw(prompt, **keywords), keywords)
        else:
            text = text_of(second)
            self._open(
                "send",
                model.chat.send(text, **keywords),
                keywords,
                model,
                [("user", text)],
                len(model.turns),
            )
        return self._opened[-1]

    def _troubled(
        self, opened: Opened, trouble: contextlib.AbstractContextManager[Any], kind: type
    ) -> None:
        self._after_trouble(opened, self._read_in(opened, trouble, kind))

    def _read_in(
        self,
        opened: Opened,
        trouble: contextlib.AbstractContextManager[Any],
        kind: type[BaseException],
    ) -> BaseException | None:
        """Read an answer to its end in a context that may raise an exception of that kind."""
        expected = self._refusal(opened)
        try:
            with trouble:
                for piece in opened.answer:
                    opened.pieces.append(piece)
        except kind as error:
            return error
        except (EngineError, ContextError, OptionError) as error:
            is_expected = expected is not None and isinstance(error, expected)
            hold(is_expected or opened.may_refuse(error), "refused", error, opened.way)
        return None

    def _after_trouble(self, opened: Opened, error: BaseException | None) -> None:
        state = inside.answer_state(opened.answer)
        opened.answer.close()
        if error is not None:
            error.__traceback__ = None
            opened.may_end_early = True
        if state.run is None or (error is None and state.result is None):
            self._forget(opened)  # it was refused, or ended before it began
            return
        self._begun(opened)
        if state.result is None:
            self._forget(opened)
        else:
            self._settle(opened)

    def _known_again(self, owner: ModelChat, turns: list[Any], num_forgotten: int) -> None:
        """A signal came at any line: the answer is in the conversation, or nothing of it is."""
        chat = owner.chat
        found = [each for each in chat.transcript if each["role"] != "system"]
        is_old = [(each["role"], each["content"]) for each in found] == [
            each for turn in turns for each in turn
        ]
        if is_old:
            owner.turns = turns
        owner.num_forgotten = chat.num_forgotten
        hold(owner.num_forgotten >= num_forgotten, "forgotten", owner.num_forgotten)
        owner.num_asked = chat.num_asked
        owner.revision += 1
        owner.calls = self._calls_of(owner)
        if chat.can_continue:
            assert chat._unfinished is not None
            owner.unfinished = (owner.revision, chat._unfinished.turn)

    # Threads and processes.

    def _threads(self, first: int, second: int) -> None:
        if len(self._running()) >= self.engine.parallel:
            return
        errors: list[BaseException] = []

        def read(opened: Opened) -> None:
            try:
                opened.answer.reply()
            except BaseException as error:
                errors.append(error)

        asked = []
        for number in range(_THREADS):
            keywords = {**self._keywords_of(first + number), "queue": True}
            prompt = [5 + (second + 7 * number) % 200, *range(20, 30 + 5 * number)]
            self._open("raw", self.engine.generate_raw(prompt, **keywords), keywords)
            asked.append(self._opened[-1])
            asked[-1].is_torn = True
        threads = [threading.Thread(target=read, args=[opened]) for opened in asked]
        for thread in threads:
            thread.start()
        if second % 4 == 0:
            asked[0].answer.cancel()
            asked[0].may_end_early = True
        for thread in threads:
            thread.join(_HANGS_S)
            hold(not thread.is_alive(), "a thread hangs")
        hold(not errors, "in a thread", *errors)
        for opened in asked:
            self._settle(opened)

    def _fork(self, first: int, second: int) -> None:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                self.engine.generate_raw([5, 6]).reply()
            except ForkedError:
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        hold(status == 0, "a fork did not refuse", status)

    def _reload(self, first: int, second: int) -> None:
        """The engine ends, with whatever is open, and conversations go on in another."""
        for opened in self._opened:
            opened.may_end_early = True
        self.engine.close()
        for opened in list(self._opened):
            if opened.has_begun:
                self._settle(opened)
            else:
                with contextlib.suppress(ClosedError):
                    hold(next(opened.answer, None) is None, "an answer of a closed engine")
                self._forget(opened)
        self._seed += 1
        self._load()
        for model in self._chats:
            model.chat, transcript = self._new(model.template), model.chat.transcript
            model.chat.replace(
                transcript, num_asked=model.num_asked, num_forgotten=model.num_forgotten
            )
            model.unfinished, model.has_tools = None, False


@contextlib.contextmanager
def struck_within(seconds: float) -> Iterator[None]:
    """A signal handler raises in so many seconds, unless the block is over."""
    is_armed = [True]

    def strike(*_: object) -> None:
        if is_armed[0]:
            is_armed[0] = False
            raise Struck

    before = signal.signal(signal.SIGALRM, strike)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        is_armed[0] = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
