"""Calls without marks: JSON alone or in fences, in any family's answers."""

from __future__ import annotations

import enum
import re

from localspec.streaming.call_reader import AnswerCalls, CallReader
from localspec.streaming.thinking import Part
from localspec.tools.call_form import calls_in, read_fitting
from localspec.tools.partial_text import ObjectEnd
from localspec.tools.tool import ToolCall

STARTS = ("```", "<tools>")  # calls without marks may begin with one of these after a text
_FENCES = ("```json", "<tools>", "</tools>")
_CLOSINGS = ("```", "</tools>")
_WHOLE_FENCES = re.compile(r"\A(?:```json|```(?!j)|</?tools>)*")
_NO_JSON = "`<"  # fences begin with these, and an object has them only in its strings
# How objects that name a tool begin, without blank space.
_BEGINS = (
    '{"name":"NAME"',
    '{"type":"function","name":"NAME"',
    '{"function":{"name":"NAME"',
    '{"type":"function","function":{"name":"NAME"',
    '{"arguments":{',
    '{"parameters":{',
)


class _BareState(enum.Enum):
    """States of `BareCalls`, which draws them."""

    FENCE = enum.auto()
    NAME = enum.auto()
    OBJECT = enum.auto()
    OVER = enum.auto()


class BareCalls(CallReader):
    """Reads text that may be calls without marks.

    Such calls are objects with the name of a tool and arguments that fit, or lists of such
    objects, perhaps each in a fence. An object may begin with two braces, as in Qwen2.5-Coder's
    template. After a fence any text may follow, as an explanation; after a bare object only
    further objects. So the whole text is held:

        FENCE  -> NAME    when an object or a list begins, and the fences before it are whole
        NAME   -> OBJECT  when it has named a tool, or its arguments begin
        OBJECT -> FENCE   when it ends, and is a call

        FENCE  -> OVER    when anything but fences and blank space comes
        NAME   -> OVER    when it can no longer name a tool
        OBJECT -> OVER    when it ends and is no call, or a fence comes before its end
        any    -> OVER    when calls with an opening begin, or no more text follows

    In OVER the calls in closed fences count. If the answer ends with calls and has no other
    text, all of them count.
    """

    def __init__(self, calls: AnswerCalls) -> None:
        super().__init__(calls)
        begins = []
        for name in calls.tools:
            for begin in _BEGINS:
                named = begin.replace("NAME", name)
                begins += [named, "[" + named, "{" + named]
        self._begins = tuple(begins)
        self._state = _BareState.FENCE
        self._found: list[ToolCall] = []  # all calls so far
        self._certain: list[ToolCall] = []  # the calls in closed fences
        self._held = ""  # the text after these
        self._fences = ""  # the fences before the next object, without blank space
        self._is_fenced = False  # whether fences came before the first object
        self._written = ""  # the object so far
        self._end = ObjectEnd()  # finds the end of the object
        self._second_brace = ""  # "}" that may follow an object that began with two braces

    def push(self, text: str) -> list[Part]:
        for number, character in enumerate(text, 1):
            self._held += character
            self._read_character(character)
            is_opening = self._held.endswith(self._calls.openings)
            if is_opening or self._state is _BareState.OVER:
                self.rest = self._held + text[number:]
                return self._calls.call(self._certain)
        return []

    def finish(self, *, is_cut: bool) -> list[Part]:
        is_whole = self._state is _BareState.FENCE and not self._unfinished_fence()
        if is_cut and self._state is _BareState.OBJECT:
            self._held = ""
        elif is_whole and self._found and not is_cut:
            self._make_certain()
        parts = self._calls.call(self._certain)
        parts += self._calls.say_last(self._held, is_cut=is_cut)
        return parts

    def _make_certain(self) -> None:
        """Make all calls so far certain: they count whatever text follows."""
        self._certain = [*self._found]
        self._held = ""

    def _unfinished_fence(self) -> str:
        """The part of the fences that is not a whole fence."""
        return _WHOLE_FENCES.sub("", self._fences)

    def _read_character(self, character: str) -> None:
        if self._state is _BareState.OBJECT:
            self._read_object(character)
        elif self._state is _BareState.NAME:
            self._read_name(character)
        elif character == self._second_brace and not self._fences:
            self._second_brace = ""
        elif character in "{[":
            self._state = _BareState.NAME
            if self._unfinished_fence():
                self._state = _BareState.OVER
            self._written = character
        else:
            self._read_fence(character)

    def _read_fence(self, character: str) -> None:
        self._fences += character.strip().lower()
        if not self._found:
            self._is_fenced = self._fences.startswith(STARTS)
        elif self._is_fenced and self._fences in _CLOSINGS:
            self._make_certain()
        unfinished = self._unfinished_fence()
        if not any(fence.startswith(unfinished) for fence in _FENCES):
            self._state = _BareState.OVER

    def _read_name(self, character: str) -> None:
        self._written += character
        begin = "".join(self._written.split())
        is_bare = not self._found and self._calls.is_bare_call(self._held)
        if begin.startswith(self._begins):
            self._state = _BareState.OBJECT
            self._second_brace = ""
            if begin.startswith("{{"):
                self._second_brace = "}"
            self._written = self._written[len(self._second_brace) :]
            self._end = ObjectEnd()
            self._end.push(self._written)
        elif is_bare or not any(named.startswith(begin) for named in self._begins):
            self._state = _BareState.OVER

    def _read_object(self, character: str) -> None:
        self._written += character
        self._end.push(character)
        if self._end.is_over:
            calls = calls_in(self._written, self._calls.tools, read_fitting)
            self._state = _BareState.OVER
            if calls:
                self._state = _BareState.FENCE
                self._found += calls
            self._fences = ""
        elif character in _NO_JSON and not self._end.is_string:
            self._state = _BareState.OVER
