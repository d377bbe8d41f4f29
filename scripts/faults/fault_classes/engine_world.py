"""An engine with conversations and open answers, and a model of what must hold of them."""

from __future__ import annotations

import gc
import random
from pathlib import Path
from typing import Any, NamedTuple

import inside
import localspec
from fault_classes.engine_kinds import Keywords, load_kind
from fault_classes.engine_model import (
    Fresh,
    ModelChat,
    Opened,
    check_invariants,
    check_reply,
    hold,
)
from fault_classes.engine_options import options_of
from localspec.errors import BusyError, ContextError, EngineError, OptionError

PARALLEL = 2
MOST_CHATS = 4


class Operation(NamedTuple):
    """A name of engine_machine.WEIGHTS, and numbers that choose what it is done to, and how."""

    name: str
    first: int
    second: int


class World:
    """An engine, and the conversations and answers that are open. fresh: beside it."""

    def __init__(self, keywords: Keywords, folder: Path, seed: int, fresh: Fresh) -> None:
        self._keywords, self._folder, self._seed = keywords, folder, seed
        self._fresh = fresh
        self._chats: list[ModelChat] = []
        self._opened: list[Opened] = []
        self._saved: dict[int, ModelChat] = {}
        self._load()

    def _load(self) -> None:
        drawn = random.Random(self._seed)
        more: dict[str, Any] = {"parallel": drawn.choice((1, PARALLEL, PARALLEL))}
        more["kept_bytes"] = drawn.choice((2**30, 2**30, 300_000, 0))
        if more["kept_bytes"] < 2**20:
            more["parallel"] = 1
        if drawn.random() < 0.3:
            more["cache_disk"] = 2**26
        self.engine = load_kind(self._keywords, **more)
        self._num_ids = min(self.engine.vocabulary.size, 400)
        loop = inside.loop(self.engine)
        self._proposers = [
            proposer.kind.value
            for proposer in loop.proposers
            if proposer.kind.value in ("draft", "head", "lookup")
        ]

    def close(self) -> None:
        """Free it."""
        self.engine.close()

    def do(self, operation: Operation) -> None:
        """Do it, and raise Lost where something does not hold."""
        getattr(self, f"_{operation.name}")(operation.first, operation.second)
        check_invariants(self.engine)
        for model in self._chats:
            model.check()

    # What there is.

    def _chat(self, number: int) -> ModelChat:
        if not self._chats:
            self._chats.append(ModelChat(self._new()))
        return self._chats[number % len(self._chats)]

    def _running(self) -> list[Opened]:
        return [each for each in self._opened if each.has_begun and not each.is_over]

    def _some_opened(self, number: int) -> Opened | None:
        return self._opened[number % len(self._opened)] if self._opened else None

    def _is_busy(self, model: ModelChat) -> bool:
        return any(each.owner is model for each in self._running())

    def _put_chat(self, model: ModelChat, number: int) -> None:
        """Beside the others, or in the place of one, which is dropped."""
        if len(self._chats) < MOST_CHATS:
            self._chats.append(model)
        else:
            self._chats[number % MOST_CHATS] = model

    @staticmethod
    def _calls_of(model: ModelChat) -> tuple[str, ...]:
        """Calls that wait are the last message's: the model takes them from there."""
        last = model.chat.messages[-1:] if model.seen else ()
        return tuple(call["id"] for each in last for call in each.get("tool_calls", ()))

    @property
    def _usual_template(self) -> str | None:
        return None if self.engine.chat_template else "chatml"

    def _answer(self, question: Any, **keywords: Any) -> localspec.Answer:
        return self.engine.generate(question, template=self._usual_template, **keywords)

    def _new(self, template: str | None = None, **more: Any) -> localspec.Chat:
        return self.engine.chat(template=template or self._usual_template, **more)

    # Asking and reading.

    def _keywords_of(self, number: int) -> dict[str, Any]:
        keywords = options_of(number, self._proposers)
        if keywords.get("prediction") is not None and "lookup" not in self._proposers:
            del keywords["prediction"]
        return keywords

    def _open(
        self,
        way: str,
        answer: localspec.Answer,
        keywords: dict[str, Any],
        owner: ModelChat | None = None,
        asked: list[tuple[str, str]] | None = None,
        num_kept: int = 0,
    ) -> None:
        opened = Opened(answer, keywords, way, owner, asked or [], num_kept)
        if owner is not None:
            opened.turn, opened.revision = owner.num_asked, owner.revision
        self._opened.append(opened)

    def _use(self, opened: Opened, number: int) -> None:
        """In one of the ways in which people read answers."""
        way, count = number % 10, number // 10 % 6
        if way < 4:
            self._finish_it(opened)
        elif way < 7:
            self._read_some(opened, count)
            if opened.is_over:
                return
            if way == 5:
                self._close_it(opened)
            elif way == 6:
                opened.answer.cancel()
                opened.may_end_early = True
                self._finish_it(opened)
        elif way == 7:
            self._read_some(opened, count)
            if not opened.is_over:
                self._drop_it(opened)
        elif way == 8:
            opened.answer.cancel()
            opened.may_end_early = True
            self._finish_it(opened)

    def _read_some(self, opened: Opened, count: int) -> None:
        for _ in range(count):
            if opened.is_over or not self._read_one(opened):
                return

    def _finish_it(self, opened: Opened) -> None:
        while not opened.is_over and self._read_one(opened):
            pass

    def _read_one(self, opened: Opened) -> bool:
        """Whether there was a piece. What is refused has to be refused, and changes nothing."""
        expected = None if opened.has_begun else self._refusal(opened)
        try:
            piece = next(opened.answer, None)
        except (EngineError, ContextError, OptionError) as error:
            self._forget(opened)
            if opened.may_refuse(error):
                return False
            hold(
                expected is not None and isinstance(error, expected),
                "refused",
                error,
                opened.way,
            )
            return False
        wanted = getattr(expected, "__name__", None)
        is_abandoned = piece is None and inside.answer_state(opened.answer).run is None
        hold(expected is None or is_abandoned, "not refused", wanted, opened.way)
        if not opened.has_begun and not is_abandoned:
            self._begun(opened)
        if piece is not None:
            opened.pieces.append(piece)
            return True
        self._settle(opened)
        return False

    def _refusal(self, opened: Opened) -> type[Exception] | None:
        """What has to refuse an answer that begins now."""
        if len(self._running()) >= self.engine.parallel:
            return BusyError
        owner = opened.owner
        if owner is not None and self._is_busy(owner):
            return BusyError
        if owner is not None and owner.revision != opened.revision:
            return EngineError
        return None

    def _begun(self, opened: Opened) -> None:
        opened.has_begun, owner = True, opened.owner
        if owner is None:
            return
        owner.revision += 1
        opened.revision = owner.revision
        owner.num_asked = max(owner.num_asked, opened.turn + 1)
        forgotten = owner.chat.num_forgotten
        # Only what is behind it leaves: all that is said of it, its prompt fits.
        hold(owner.num_forgotten <= forgotten <= opened.num_kept, "forgotten", forgotten)
        owner.num_forgotten = forgotten

    def _close_it(self, opened: Opened) -> None:
        opened.answer.close()
        hold(next(opened.answer, None) is None, "a piece behind the end")
        opened.may_end_early = True
        self._settle(opened)

    def _drop_it(self, opened: Opened) -> None:
        state = inside.answer_state(opened.answer)
        del opened.answer
        gc.collect(0)
        if opened.has_begun:
            self._settle(opened, state)
        else:
            self._forget(opened)

    def _forget(self, opened: Opened) -> None:
        opened.is_over = True
        self._opened.remove(opened)

    def _settle(self, opened: Opened, state: Any = None) -> None:
        """An answer has ended: it is what a fresh engine says, and its conversation has it."""
        self._forget(opened)
        state = state or inside.answer_state(opened.answer)
        hold(state.result is not None, "no reply of a", opened.way)
        reply, own_said = state.result
        if state.run is None:
            hold(not opened.pieces and reply.token_ids == (), "an abandoned answer", reply)
            return
        early = reply.finish_reason == "cancelled"
        hold(
            opened.may_end_early or not early or not hasattr(opened, "answer"), "it ended early"
        )
        said = check_reply(opened, state.run.prompt, reply, self._fresh)
        if said is not None:
            hold(said == own_said, "what was said", said, own_said)
        self._remembered(opened, reply, own_said, state.run.prompt)

    def _remembered(self, opened: Opened, reply: Any, said: Any, prompt: Any) -> None:
        owner = opened.owner
        if owner is None or owner.revision != opened.revision:
            return
        is_kept = prompt.num_said or said.text or reply.tool_calls
        if not is_kept and reply.finish_reason == "cancelled":
            return
        turn = [*opened.asked, ("assistant", said.text)]
        owner.turns[opened.num_kept :] = [turn]
        owner.revision += 1
        owner.calls = tuple(call.id for call in said.tool_calls)
        if reply.finish_reason != "stop":
            owner.unfinished = (owner.revision, opened.turn)
