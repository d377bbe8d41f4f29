"""What must hold of conversations and answers: a model of them, beside a fresh engine."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import inside
import localspec
from localspec.chat.chat import Chat
from localspec.errors import ConstraintError, ContextError, OptionError
from localspec.streaming.answer import Answer
from localspec.streaming.answer_text import Said
from localspec.streaming.cancellation import CancelCheck
from localspec.streaming.exchange import Exchange
from localspec.streaming.options import AnswerOptions, spec_of
from localspec.streaming.prompt import Prompt
from localspec.streaming.reply import Piece, Reply

_ROUNDING = 1e-6  # of a logarithm that is computed from equal rows in another way


class Lost(Exception):
    """Something that has to hold does not."""


def hold(is_right: object, words: str, *values: object) -> None:
    """Raise Lost unless it is right."""
    if not is_right:
        raise Lost(f"{words}: {', '.join(f'{value!r:.300}' for value in values)}")


Turn = list[tuple[str, str]]  # roles and contents


@dataclass(eq=False)
class ModelChat:
    """A conversation as it should be."""

    chat: Chat
    system: str | None = None
    turns: list[Turn] = field(default_factory=list)  # all of them
    num_asked: int = 0
    num_forgotten: int = 0
    revision: int = 0
    unfinished: tuple[int, int] | None = None  # revision and turn of the last answer, if cut
    calls: tuple[str, ...] = ()  # of the last answer, which wait for results
    template: str | None = None
    has_tools: bool = False

    @property
    def seen(self) -> list[Turn]:
        return self.turns[self.num_forgotten :]

    @property
    def can_continue(self) -> bool:
        return self.unfinished is not None and self.unfinished[0] == self.revision

    def messages(self) -> list[dict[str, str]]:
        """The transcript."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        rest = [{"role": role, "content": text} for turn in self.turns for role, text in turn]
        return first + rest

    def check(self) -> None:
        chat = self.chat
        found = [(each["role"], each["content"]) for each in chat.transcript]
        expected = [(each["role"], each["content"]) for each in self.messages()]
        hold(found == expected, "a transcript", found[-4:], expected[-4:])
        counts = (chat.num_asked, chat.num_forgotten, chat.can_continue)
        wanted = (self.num_asked, self.num_forgotten, self.can_continue)
        hold(counts == wanted, "asked, forgotten, can go on", counts, wanted)
        count = len(chat.messages) - bool(chat.system)
        hold(count == sum(map(len, self.seen)), "messages seen", count)


@dataclass(eq=False)
class Opened:
    """An answer that was asked for. way: of asking. num_kept: turns that it leaves there."""

    answer: Answer
    options: dict[str, Any]
    way: str
    owner: ModelChat | None = None
    asked: Turn = field(default_factory=list)
    num_kept: int = 0
    turn: int = 0
    revision: int = -1  # of the conversation when it was asked for
    pieces: list[Piece] = field(default_factory=list)
    has_begun: bool = False
    is_over: bool = False
    may_end_early: bool = False
    is_torn: bool = False  # its pieces were not all seen

    def may_refuse(self, error: Exception) -> bool:
        """Whether an answer may end in that: no turn can make room, or nothing fits."""
        has_tools = self.owner is not None and self.owner.has_tools
        if isinstance(error, ContextError):
            return has_tools or self.way in ("go on", "results")
        is_constrained = spec_of(self.options_given) is not None
        if isinstance(error, ConstraintError):
            return is_constrained and self.way in ("go on", "messages")
        # Calls may have to come, and then nothing else may be asked of how it ends.
        is_bound = is_constrained or self.options.keys() & {"min_tokens", "ignore_eos"}
        return isinstance(error, OptionError) and bool(is_bound) and has_tools

    @property
    def options_given(self) -> AnswerOptions:
        return AnswerOptions.of(**self.options)


class _Mirror(Exchange):
    """The same prompt and random numbers for another engine."""

    def __init__(self, options: AnswerOptions, prompt: Prompt, turn: int) -> None:
        super().__init__(options)
        self._prompt, self.turn = prompt, turn
        self.said: Said | None = None

    def prompt(self, is_cancelled: CancelCheck) -> Prompt:
        return self._prompt

    def remember(self, reply: Reply, said: Said | None) -> None:
        self.said = said


class Fresh:
    """An engine of the target alone, which has read nothing when it is asked."""

    def __init__(self, engine: localspec.Engine) -> None:
        self.engine = engine

    def answered(
        self, options: AnswerOptions, prompt: Prompt, turn: int
    ) -> tuple[Reply, Said | None]:
        plain = replace(
            options,
            draft_tokens=0,
            proposer=None,
            prediction=None,
            on_prompt=None,
            queue=False,
        )
        with self.engine.exclusively():
            pass  # it has nothing any more
        exchange = _Mirror(plain, prompt, turn)
        return inside.answer(self.engine, exchange).reply(), exchange.said

    def check_rows(self, prompt: Prompt, reply: Reply) -> None:
        """The tokens' log-probabilities are those of its own rows."""
        assert reply.logprobs is not None
        with self.engine.exclusively() as loop:
            row = loop.target.decode(prompt.tokens, 1)[0]
            for token, found in zip(reply.token_ids, reply.logprobs, strict=True):
                top = float(row.max())
                total = top + math.log(float(np.exp(row.astype(np.float64) - top).sum()))
                before = float(row[token]) - total
                hold(abs(before - found.before) < _ROUNDING, "a row", before, found.before)
                if loop.target.num_cached < self.engine.context_length:
                    row = loop.target.decode([token], 1)[0]


def check_reply(opened: Opened, prompt: Prompt, reply: Reply, fresh: Fresh) -> Said | None:
    """An answer is what a fresh engine says to its prompt, as far as it went.

    Returns what that says, where the text follows from the rows alone.
    """
    told = [token for piece in opened.pieces for token in piece.token_ids]
    if not opened.is_torn:
        hold(tuple(told) == reply.token_ids, "tokens of pieces", told, reply.token_ids)
    options = opened.options_given
    if not reply.token_ids:
        return None
    if reply.rule not in ("greedy", "coupled"):
        if not prompt.pictures:
            fresh.check_rows(prompt, reply)
        return None
    if reply.finish_reason == "cancelled":
        options = replace(options, max_tokens=len(reply.token_ids))
    expected, said = fresh.answered(options, prompt, opened.turn)
    for name in ("token_ids", "text", "logprobs", "tool_calls", "thoughts", "not_kept"):
        found, wanted = getattr(reply, name), getattr(expected, name)
        hold(found == wanted, f"{name} of a {opened.way}", found, wanted)
    if reply.finish_reason != "cancelled":
        for name in ("finish_reason", "stopped_by", "num_thought_tokens"):
            found, wanted = getattr(reply, name), getattr(expected, name)
            hold(found == wanted, f"{name} of a {opened.way}", found, wanted)
    return said


def check_invariants(engine: localspec.Engine) -> None:
    """1 and 2 of ARCHITECTURE.md, as far as numbers show them."""
    for lane in inside.lanes(engine):
        loop = lane.decoder
        length = len(loop.tokens)
        hold(loop.target.num_cached <= length, "target", loop.target.num_cached, length)
        for proposer in loop.proposers:
            model = getattr(proposer, "model", None)
            if model is not None and getattr(model, "num_cached", 0) > 0:
                end = getattr(proposer, "begins_at", 0) + model.num_cached
                hold(end <= length, "a draft's text", end, length)
            translated = getattr(proposer, "translated", None)
            if translated is not None:
                text, begin = translated.read_so_far().tokens, proposer.begins_at
                same = loop.tokens[begin : begin + len(text)]
                hold(text[: len(same)] == same, "a translated text", text[-9:], same[-9:])
