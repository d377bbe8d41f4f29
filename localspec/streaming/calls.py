"""Calls of tools, told apart from what a model says."""

from __future__ import annotations

import re
from collections.abc import Sequence

from localspec.streaming.thinking import Part
from localspec.tools.arguments import ArgumentReader
from localspec.tools.forms import calls_in, read_unmarked
from localspec.tools.grammar import Calls
from localspec.tools.partial_text import ObjectEnd, first_of, num_unfinished
from localspec.tools.tool import CallPiece, Tool, ToolCall

_STARTS = ("```", "<tools>")  # with which calls may begin behind a text
_FENCES = ("```json", "<tools>", "</tools>")
_CLOSINGS = ("```", "</tools>")
_WHOLE_FENCES = re.compile(r"\A(?:```json|```(?!j)|</?tools>)*")
# How objects begin that name a tool, without blank space.
_BEGINS = (
    '{"name":"NAME"',
    '{"type":"function","name":"NAME"',
    '{"function":{"name":"NAME"',
    '{"type":"function","function":{"name":"NAME"',
    '{"arguments":{',
    '{"parameters":{',
)


class CallStream:
    """Splits an answer's parts into text and calls while it comes.

    Where a grammar keeps the answer to the form, a call is known by its head, and its
    arguments come as they are written; else it is known when it is whole, and anything
    else stays text. Neither the form's marks nor the blank space around calls
    are text. Thoughts hold no calls, unless they never end. Where the model chooses, objects
    with a tool's name and arguments are calls, too, in a fence or at the end of an answer, and
    are held as long as they may be.
    """

    def __init__(self, calls: Calls) -> None:
        self._form, self._use, self._id_of = calls.form, calls.use, calls.id_of
        self._is_kept = self._is_certain = calls.grammar is not None  # all calls; this call
        self._tools = {tool.name: tool for tool in calls.use.callable}
        forgets = (self._form.forgets.replace("NAME", name) for name in self._tools)
        self._openings = (*self._form.openings, *filter(None, forgets))
        self._head = calls.form.start_pattern()
        self._held = ""
        self._is_free = not calls.use.must and calls.use.answer_schema is None
        self._unmarked = _UnmarkedCalls(calls.use.callable) if self._is_free else None
        self._start = 0  # in the held text, of what may be calls without marks
        self._opening: str | None = None  # of the calls that are being written
        self._blank = ""  # before that
        self._thought = ""  # that is a call if the thoughts never end
        self._tried = 0  # characters of them in which no closing has to be looked for again
        self._has_spoken = False
        self._is_behind_call = False
        self._number = 0  # of the next call
        self._open: CallPiece | None = None  # the call whose arguments come now
        self._arguments: ArgumentReader | None = None  # of that one

    @property
    def is_calling(self) -> bool:
        """Whether what comes next belongs to a call, as far as is known."""
        return self._opening is not None

    @property
    def has_ended(self) -> bool:
        """Whether there was the only call that there may be, which no grammar sees to."""
        is_one = self._form.is_single or not self._use.is_parallel
        return is_one and self._number > 0 and not self._is_certain

    def takes(self, head: str) -> bool:
        """Whether the message with that head is a call of one of the tools."""
        return self._called_by(head) is not None

    def _called_by(self, head: str) -> re.Match[str] | None:
        if not self._form.recipient:
            return None
        found = re.search(self._form.recipient, head)
        return found if found is not None and found["name"] in self._tools else None

    def push(self, part: Part) -> list[Part]:
        """The parts that are certain now, in order."""
        if self.has_ended:
            return []
        if self._form.recipient:
            return self._push_message(part)
        if part.text and part.is_thought:
            before = self._spoken() if self._opening is None else []
            return [*before, *self._think(part.text)]
        before = self._thoughts()
        if part.text:
            return [*before, *self._say(part.text)]
        return [*before, *self._spoken()] if self._opening is None else before

    def finish(self, *, is_cut: bool) -> list[Part]:
        """The parts that waited; no more text follows.

        is_cut: the answer was cut off, so that an incomplete call is not a call.
        """
        if self.has_ended:
            return []
        if self._thought and not is_cut:
            return self._calls_in_thoughts()
        opening, parts = self._opening, self._thoughts()
        if opening is None:
            if is_cut:
                parts += self._fenced()
                if num_waiting := self._num_waiting():
                    self._held = self._held[:-num_waiting].rstrip()
                self._unmarked = None
            parts += self._spoken()
        elif not self._is_certain:
            written = (
                None if is_cut else calls_in(self._held, self._use.callable, self._form.read)
            )
            if written is not None:
                parts += self._whole(written)
            elif not is_cut or not self._form.may_begin(opening, self._held):
                parts += self._no_call(opening)
        self._opening, self._held = None, ""
        return parts

    def _think(self, text: str) -> list[Part]:
        """Thoughts in front of what may be a call."""
        self._thought += text
        opening = first_of(self._openings, self._thought)
        end = len(self._thought) - num_unfinished(self._openings, self._thought)
        size = end if opening is None else self._thought.find(opening)
        text, self._thought = self._thought[:size], self._thought[size:]
        return [Part(text, is_thought=True)] if text else []

    def _thoughts(self) -> list[Part]:
        """Thoughts that waited, and are no call."""
        text, self._thought = self._thought, ""
        return [Part(text, is_thought=True)] if text else []

    def _calls_in_thoughts(self) -> list[Part]:
        """The calls at the end of thoughts that never ended, which no grammar kept."""
        text, self._thought = self._thought, ""
        self._is_kept = self._is_certain = False
        parts = [*self._say(text), *self.finish(is_cut=False)]
        return [each if each.call else each._replace(is_thought=True) for each in parts]

    def _push_message(self, part: Part) -> list[Part]:
        """Where messages are calls: one that is goes on to the next mark."""
        if part.text:
            if self._opening is None:
                return [part] if part.is_thought else self._say(part.text)
            self._held += part.text
            return self._read()
        parts = self.finish(is_cut=False)
        found = self._called_by(part.head)
        if found is not None:
            self._opening, self._held = "", f"{found['name']}\n"
            self._is_certain = self._is_kept and bool(found["space"])
            parts += self._read()
        return parts

    def _say(self, text: str) -> list[Part]:
        self._held += text
        if self._unmarked is not None:
            self._unmarked.push(text)
        return self._read()

    def _read(self) -> list[Part]:
        parts: list[Part] = []
        while True:
            if self._opening is None:
                found = self._begin()
            elif self._is_certain:
                found = self._flow()
            else:
                found = self._section()
            if found is not None:
                parts += found
            if found is None or self.has_ended:
                return parts

    def _begin(self) -> list[Part] | None:
        """The text in front of the next call; None to wait for more."""
        begin, sign = "".join(self._held.split()), self._form.sign
        if self._may_be_bare and begin.startswith(sign):
            self._opening, self._unmarked, self._is_free = "", None, False
            return []
        opening, unmarked = first_of(self._openings, self._held), self._unmarked
        if opening is not None:
            is_within = unmarked is not None and unmarked.is_within
            if not is_within and (fenced := self._fenced()):
                return fenced
            said, _, self._held = self._held.partition(opening)
            if opening not in self._form.openings:
                opening, self._held, self._is_certain = "", opening + self._held, False
            else:
                self._is_certain = self._is_kept
            self._opening, self._unmarked, self._is_free = opening, None, False
            self._tried = 0
            self._blank = said[len(said.rstrip()) :]
            return self._text(said.rstrip())
        if self._may_be_bare and sign.startswith(begin):
            return None
        if self._unmarked is not None and self._unmarked.is_possible:
            return None
        if fenced := self._fenced():
            return fenced
        size, starts, self._unmarked = len(self._held), _STARTS if self._is_free else (), None
        start = first_of(starts, self._held[self._start :])
        if start is not None:
            size = self._held.find(start, self._start)
        else:
            size -= num_unfinished((*self._openings, *starts), self._held)
        said = self._held[:size].rstrip()  # blank space before a call belongs to it
        self._held, self._start = self._held[len(said) :], 0
        if start is not None:
            self._start = size - len(said) + 1
            self._unmarked = _UnmarkedCalls(self._use.callable)
            self._unmarked.push(self._held)
            return self._text(said)
        return self._text(said) or None

    @property
    def _may_be_bare(self) -> bool:
        """Whether a call without an opening may begin."""
        return self._form.is_bare and not self._has_spoken and not self._number

    def _num_waiting(self) -> int:
        """Characters at the end of the text with which a call may begin."""
        begin = "".join(self._held.split())
        is_bare = self._may_be_bare and self._form.sign.startswith(begin)
        if is_bare or (self._unmarked is not None and self._unmarked.is_within):
            return len(self._held)
        return num_unfinished(self._openings, self._held)

    def _section(self) -> list[Part] | None:
        """The calls that are written, if they are whole."""
        closing = self._form.closing
        while closing and (at := self._held.find(closing, self._tried)) >= 0:
            written = calls_in(self._held[:at], self._use.callable, self._form.read)
            if written is not None:
                self._held, self._opening = self._held[at + len(closing) :], None
                return self._whole(written)
            self._tried = at + 1
        self._tried = max(self._tried, len(self._held) - len(closing))
        return None

    def _whole(self, written: list[ToolCall]) -> list[Part]:
        if self._form.is_single or not self._use.is_parallel:
            written = written[:1]
        parts = []
        for each in written:
            call_id = each.id or self._id_of(self._number)
            call = CallPiece(self._number, call_id, each.name, each.json, is_last=True)
            parts.append(Part("", is_thought=False, call=call))
            self._number += 1
        self._is_behind_call = True
        return parts

    def _flow(self) -> list[Part] | None:
        """More of a call that is certain to be one."""
        if self._open is None or self._arguments is None:
            found = self._head.search(self._held)
            if found is None:
                return None
            if found["name"] not in self._tools:  # no grammar kept it
                self._is_certain = False
                return []
            self._held = self._held[found.end() :]
            call_id = self._id_of(self._number)
            self._open = CallPiece(self._number, call_id, found["name"], "", is_last=False)
            self._arguments = self._form.arguments(self._tools[found["name"]], is_kept=True)
            self._number += 1
            return [Part("", is_thought=False, call=self._open)]
        if not self._held:
            return None
        json, is_over = self._arguments.push(self._held), self._arguments.is_over
        self._held = self._arguments.rest if is_over else ""
        piece = self._open._replace(json=json, is_last=is_over)
        if is_over:
            self._open = None
        return [Part("", is_thought=False, call=piece)] if json else []

    def _no_call(self, opening: str) -> list[Part]:
        """Text that was held as a call and turned out to be something else."""
        if self._form.recipient:
            between = "\n\n" if self._has_spoken else ""
            return self._text(f"{between}to={self._held}")
        self._held = self._blank + opening + self._held
        return self._spoken()

    def _spoken(self) -> list[Part]:
        """The text that waited for a call; or the calls that it is, if it has no marks."""
        calls = self._fenced(is_last=True)
        text, self._held = self._held, ""
        if text.strip():  # with more behind it, it is text already
            self._unmarked = None
        return calls + self._text(text.rstrip() if self._number else text)

    def _fenced(self, *, is_last: bool = False) -> list[Part]:
        """The calls without marks with which the text that waited begins."""
        found = None if self._unmarked is None else self._unmarked.read(is_last=is_last)
        if found is None:
            return []
        (written, self._held), self._unmarked = found, None
        self._is_certain, self._is_free = False, self._use.is_parallel
        return self._whole(written)

    def _text(self, text: str) -> list[Part]:
        if self._is_behind_call:
            text = text.lstrip()
        if not text:
            return []
        self._is_behind_call = False
        self._has_spoken = self._has_spoken or not text.isspace()
        return [Part(text, is_thought=False)]


class _UnmarkedCalls:
    """Watches whether an answer begins with calls written as JSON alone, without marks.

    They are objects with the name of a tool and arguments that fit, or lists of such, perhaps
    in a fence each; an object may begin with two braces. Behind a fence anything may follow,
    as an explanation; behind an object alone only others.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = tools
        self._begins = [
            opening + begin.replace("NAME", tool.name)
            for tool in tools
            for begin in _BEGINS
            for opening in ("", "[", "{")
        ]
        self._text = ""
        self._begin = ""  # of the next value, with its fence, without blank space
        self._end: ObjectEnd | None = None  # of the value that is written
        self._closing = ""  # of the first of two braces
        self._has_value = False  # in a fence
        self._num_closed = 0  # characters up to the end of the last fence with calls
        self.is_possible = True

    @property
    def is_within(self) -> bool:
        """Whether an object that names a tool is being written."""
        return self.is_possible and self._end is not None

    def push(self, text: str) -> None:
        """More of the answer. Sets `is_possible` to whether it may still be calls."""
        self._text += text
        at = 0
        while self.is_possible and at < len(text):
            before = len(self._text) - len(text)
            if self._end is None:
                self._read_start(text[at])
                at += 1
                if self._has_value and self._begin.lower() in _CLOSINGS:
                    self._num_closed = before + at
                continue
            at += self._end.push(text[at:])
            if self._end.is_over:
                self._begin, self._end = "", None
                so_far = self._text[: before + at]
                self.is_possible = calls_in(so_far, self._tools, read_unmarked) is not None
                self._has_value = so_far.lstrip().startswith(_STARTS)

    def _read_start(self, character: str) -> None:
        """Look at the next character in front of a value, or of its beginning."""
        if character == self._closing and not self._begin:
            self._closing = ""
            return
        self._begin += character.strip()
        fence = re.split(r"[{[]", self._begin, maxsplit=1)[0]
        value, unfinished = self._begin[len(fence) :], _WHOLE_FENCES.sub("", fence.lower())
        if not value:
            self.is_possible = any(each.startswith(unfinished) for each in _FENCES)
            return
        if any(value.startswith(each) for each in self._begins):
            self._end, self._closing = ObjectEnd(), "}" * value.startswith("{{")
            self._end.push(value[len(self._closing) :])
        is_begin = any(each.startswith(value) for each in self._begins)
        self.is_possible = not unfinished and (is_begin or self._end is not None)

    def read(self, *, is_last: bool) -> tuple[list[ToolCall], str] | None:
        """The calls so far and the text behind them; None if the text begins otherwise.

        is_last: nothing follows, so that an object needs no fence.
        """
        for size in (len(self._text) if is_last else 0, self._num_closed):
            calls = calls_in(self._text[:size], self._tools, read_unmarked)
            if calls is not None:
                return calls, "" if self.is_within and not is_last else self._text[size:]
        return None
