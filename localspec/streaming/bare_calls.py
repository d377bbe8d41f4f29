"""Calls without marks: JSON alone or in fences, in any family's answers."""

from __future__ import annotations

import enum
import re

from localspec.streaming.call_reader import AnswerCalls, CallReader
from localspec.streaming.thinking import Part
from localspec.tools.call_form import calls_in, read_fitting
from localspec.tools.partial_text import ObjectEnd
from localspec.tools.tool import ToolCall

FENCES = ("```", "<tools>")  # after a text, calls without marks may begin at one of these
_WHOLE_FENCES = ("```json", "<tools>", "</tools>")
_CLOSINGS = ("```", "</tools>")
_FENCES_PATTERN = re.compile(r"\A(?:```json|```(?!j)|</?tools>)*")
_FENCE_CHARACTERS = "`<"  # fences begin with these; objects have them only in strings
# How objects that name a tool begin, without blank space.
_OBJECT_BEGINS = (
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
    template. After a closed fence any text may follow, for example an explanation; after an
    object without a fence only further objects. All text waits inside until OVER:

        FENCE  -> NAME    when an object or a list begins, and the fences before it are whole
        NAME   -> OBJECT  when the object has named a tool, or its arguments begin
        OBJECT -> FENCE   when the object ends, and is a call

        FENCE  -> OVER    when anything but fences and blank space comes
        NAME   -> OVER    when the object can no longer name a tool
        OBJECT -> OVER    when the object ends and is no call, or a fence comes before its end
        any    -> OVER    when calls with an opening begin, or no more text follows

    In OVER the calls in closed fences count. If the answer ends with calls and has no other
    text, all its calls count.
    """

    def __init__(self, calls: AnswerCalls) -> None:
        super().__init__(calls)
        object_begins = []
        for name in calls.tools:
            for pattern in _OBJECT_BEGINS:
                begin = pattern.replace("NAME", name)
                object_begins += [begin, "[" + begin, "{" + begin]
        self._object_begins = tuple(object_begins)
        self._state = _BareState.FENCE
        self._read_calls: list[ToolCall] = []  # all calls so far
        self._certain_calls: list[ToolCall] = []  # the calls in closed fences
        self._held = ""  # the text after the certain calls
        self._fences = ""  # the fences before the next object, without blank space
        self._is_fenced = False  # whether fences came before the first object
        self._object = ""  # the object or list so far
        self._object_end = ObjectEnd()  # finds its end
        self._second_brace = ""  # "}" that may follow an object that began with two braces

    def push(self, text: str) -> list[Part]:
        for number, character in enumerate(text, 1):
            self._held += character
            self._read_character(character)
            is_opening = self._held.endswith(self._calls.openings)
            if is_opening or self._state is _BareState.OVER:
                self.text_after = self._held + text[number:]
                return self._calls.add_calls(self._certain_calls)
        return []

    def finish(self, *, is_cut: bool) -> list[Part]:
        # Whether the text is whole calls and fences, without an incomplete one at its end.
        is_whole = self._state is _BareState.FENCE and not self._unfinished_fence()
        if is_cut and self._state is _BareState.OBJECT:
            # The text ends within a call. It is left out with the calls before it that are not
            # certain.
            self._held = ""
        elif is_whole and self._read_calls and not is_cut:
            self._make_certain()
        parts = self._calls.add_calls(self._certain_calls)
        parts += self._calls.add_last_text(self._held, is_cut=is_cut)
        return parts

    def _make_certain(self) -> None:
        """Make all calls so far certain: they count whatever text follows."""
        self._certain_calls = [*self._read_calls]
        self._held = ""

    def _unfinished_fence(self) -> str:
        """The end of `_fences` after all whole fences."""
        return _FENCES_PATTERN.sub("", self._fences)

    def _read_character(self, character: str) -> None:
        """Advance by a character, as `BareCalls` draws it."""
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
            self._object = character
        else:
            self._read_fence(character)

    def _read_fence(self, character: str) -> None:
        """Advance from FENCE by a character that begins no object."""
        self._fences += character.strip().lower()
        if not self._read_calls:
            self._is_fenced = self._fences.startswith(FENCES)
        elif self._is_fenced and self._fences in _CLOSINGS:
            self._make_certain()
        unfinished = self._unfinished_fence()
        if not any(fence.startswith(unfinished) for fence in _WHOLE_FENCES):
            self._state = _BareState.OVER

    def _read_name(self, character: str) -> None:
        """Advance from NAME: find out from the object's beginning whether it may be a call."""
        self._object += character
        begin = "".join(self._object.split())
        is_bare = not self._read_calls and self._calls.is_bare_call(self._held)
        if begin.startswith(self._object_begins):
            self._state = _BareState.OBJECT
            self._second_brace = ""
            if begin.startswith("{{"):
                self._second_brace = "}"
            self._object = self._object[len(self._second_brace) :]  # without the first of two
            self._object_end = ObjectEnd()
            self._object_end.push(self._object)
        elif is_bare or not any(whole.startswith(begin) for whole in self._object_begins):
            self._state = _BareState.OVER  # a call for `MarkedCalls`, or none

    def _read_object(self, character: str) -> None:
        """Advance from OBJECT. At the object's end, add its calls to `_read_calls`."""
        self._object += character
        self._object_end.push(character)
        if self._object_end.is_over:
            calls = calls_in(self._object, self._calls.tools, read_fitting)
            self._state = _BareState.OVER
            if calls:
                self._state = _BareState.FENCE
                self._read_calls += calls
            self._fences = ""
        elif character in _FENCE_CHARACTERS and not self._object_end.is_string:
            self._state = _BareState.OVER
