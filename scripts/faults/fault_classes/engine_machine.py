"""Operations on an engine, in any order, each followed by what must hold.

An operation is a name and two numbers, which mean something in every state: so a sequence can
be drawn beforehand, and repeated without some of its operations.
"""

from __future__ import annotations

import random

import pytest
from call_families import FAMILIES
from vision_maker import random_picture

from fault_classes.engine_model import ModelChat, hold
from fault_classes.engine_options import text_of, tools_of
from fault_classes.engine_troubles import Troubles
from fault_classes.engine_world import Operation
from localspec.errors import OptionError

WITH_TOOLS = FAMILIES["Qwen"].template
# Operations, and how often each is drawn.
WEIGHTS = {
    "send": 30, "raw": 8, "messages": 4, "retry": 6, "edit": 6, "go_on": 8, "results": 3,
    "read": 14, "finish": 8, "close": 4, "cancel": 4, "drop": 4, "undo": 4, "clear": 1,
    "new_chat": 4, "system": 2, "save": 3, "resume": 3, "prepare": 4, "remember": 2,
    "free_kept": 1, "cancel_all": 2, "raise_in_answer": 3, "fail_decode": 3, "strike": 3,
    "threads": 2, "fork": 0.3, "too_long": 1, "wrong": 1, "exclusively": 1, "reload": 0.2,
}  # fmt: skip


def drawn_operations(seed: str, count: int) -> list[Operation]:
    """The first operations of a seed."""
    drawn, names, weights = random.Random(seed), list(WEIGHTS), list(WEIGHTS.values())
    return [
        Operation(
            drawn.choices(names, weights)[0], drawn.randrange(1 << 20), drawn.randrange(1 << 20)
        )
        for _ in range(count)
    ]


class Machine(Troubles):
    """What people and programs do with an engine."""

    # Conversations.

    def _new_chat(self, first: int, second: int) -> None:
        system = text_of(second) or None if second % 3 == 0 else None
        template = WITH_TOOLS if second % 4 == 1 else None
        chat = self._new(template, system=system)
        model = ModelChat(chat, system, template=template)
        self._put_chat(model, first)

    def _undo(self, first: int, second: int) -> None:
        model = self._chat(first)
        if not model.seen:
            with pytest.raises(OptionError):
                model.chat.undo()
            return
        question = model.turns.pop()[0][1]
        hold(model.chat.undo() == question, "the question taken back", question)
        self._changed(model)

    def _clear(self, first: int, second: int) -> None:
        model = self._chat(first)
        model.chat.clear()
        model.turns, model.num_forgotten = [], 0
        self._changed(model)

    def _changed(self, model: ModelChat) -> None:
        model.revision += 1
        model.calls = self._calls_of(model)

    def _system(self, first: int, second: int) -> None:
        model = self._chat(first)
        model.chat.system = text = text_of(second) or None
        model.system = text
        model.revision += 1

    def _prepare(self, first: int, second: int) -> None:
        self._chat(first).chat.prepare()

    # Asking.

    def _send(self, first: int, second: int) -> None:
        model, text = self._chat(first), text_of(second)
        keywords = self._keywords_of(first ^ second)
        more = tools_of(second) if model.template == WITH_TOOLS else {}
        images = [random_picture(second % 3)] if self.engine.vision and second % 4 == 0 else []
        if model.calls:
            with pytest.raises(OptionError):
                model.chat.send(text)
            return
        model.has_tools = model.has_tools or bool(more)
        self._open(
            "send",
            model.chat.send(text, images=images, **keywords | more),
            keywords | more,
            model,
            [("user", text)],
            len(model.turns),
        )
        self._use(self._opened[-1], second)

    def _retry(self, first: int, second: int) -> None:
        model, keywords = self._chat(first), self._keywords_of(second)
        if not model.seen:
            with pytest.raises(OptionError):
                model.chat.retry()
            return
        asked = [("user", model.turns[-1][0][1])]
        self._open(
            "retry", model.chat.retry(**keywords), keywords, model, asked, len(model.turns) - 1
        )
        self._use(self._opened[-1], first)

    def _edit(self, first: int, second: int) -> None:
        model, text, keywords = self._chat(first), text_of(first), self._keywords_of(second)
        kept = len(model.turns) - bool(model.seen)
        self._open(
            "edit", model.chat.edit(text, **keywords), keywords, model, [("user", text)], kept
        )
        self._use(self._opened[-1], first)

    def _go_on(self, first: int, second: int) -> None:
        model, keywords = self._chat(first), self._keywords_of(second)
        if not model.can_continue:
            with pytest.raises(OptionError):
                model.chat.continue_answer()
            return
        assert model.unfinished is not None
        asked, kept = model.turns[-1][:-1], len(model.turns) - 1
        self._open(
            "go on", model.chat.continue_answer(**keywords), keywords, model, asked, kept
        )
        self._opened[-1].turn = model.unfinished[1]
        self._use(self._opened[-1], second)

    def _results(self, first: int, second: int) -> None:
        for model in [each for each in self._chats if each.calls]:
            results, kept = dict.fromkeys(model.calls, "it is red"), len(model.turns) - 1
            asked = [*model.turns[-1], *[("tool", "it is red")] * len(results)]
            keywords = {"max_tokens": 5, "temperature": 0.0}
            self._open(
                "results",
                model.chat.send_tool_results(results, **keywords),  # type: ignore[arg-type]
                keywords,
                model,
                asked,
                kept,
            )
            self._use(self._opened[-1], second)

    def _raw(self, first: int, second: int) -> None:
        drawn, keywords = random.Random(first), self._keywords_of(second)
        few = [drawn.randrange(5, self._num_ids) for _ in range(drawn.randint(1, 12))]
        prompt = few * drawn.randint(1, 4)
        self._open("raw", self.engine.generate_raw(prompt, **keywords), keywords)
        self._use(self._opened[-1], first)

    def _messages(self, first: int, second: int) -> None:
        keywords = self._keywords_of(second)
        asked = [{"role": "user", "content": text_of(first) or "a"}]
        if first % 3 == 0:  # an answer that is continued
            asked.append({"role": "assistant", "content": text_of(second) or "a"})
        self._open("messages", self._answer(asked, **keywords), keywords)
        self._use(self._opened[-1], second)

    # Reading.

    def _read(self, first: int, second: int) -> None:
        opened = self._some_opened(first)
        if opened is not None:
            self._read_some(opened, 1 + second % 5)

    def _finish(self, first: int, second: int) -> None:
        opened = self._some_opened(first)
        if opened is not None:
            self._finish_it(opened)

    def _close(self, first: int, second: int) -> None:
        opened = self._some_opened(first)
        if opened is not None:
            self._close_it(opened)

    def _cancel(self, first: int, second: int) -> None:
        opened = self._some_opened(first)
        if opened is not None:
            opened.answer.cancel()
            opened.may_end_early = True

    def _drop(self, first: int, second: int) -> None:
        opened = self._some_opened(first)
        if opened is not None:
            self._drop_it(opened)

    def _cancel_all(self, first: int, second: int) -> None:
        self.engine.cancel()
        for each in self._running():
            each.may_end_early = True
