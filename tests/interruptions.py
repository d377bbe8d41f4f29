"""Ends work in its midst: by a wish, or by what a signal handler may raise, at any line."""

from __future__ import annotations

import dis
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import inside
import localspec
from localspec.streaming.cancellation import Cancellation

PACKAGE = Path(localspec.__file__).parent

Place = tuple[CodeType, int]  # and a line, or the offset of an instruction


class Struck(BaseException):
    """As KeyboardInterrupt: nobody in the package knows it."""


@contextmanager
def wish_at_decode(number: int, cancellation: Cancellation) -> Iterator[Iterator[int]]:
    """In the block a wish to end comes when the number-th decode is asked for.

    What it gets counts the decodes that are done: its next number is how many those are.
    """
    asked, done = itertools.count(1), itertools.count()

    def counted(real: Callable[..., None]) -> Callable[..., None]:
        def decode(*arguments: Any) -> None:
            if next(asked) == number:
                cancellation.request()
            real(*arguments)
            next(done)

        return decode

    with pytest.MonkeyPatch.context() as patch:
        inside.replace_decode_batch(counted, patch)
        yield done


@contextmanager
def _traced(
    files: Sequence[str],
    event: str,
    visit: Callable[[Place], None],
    only: CodeType | None = None,
) -> Iterator[None]:
    """While the block runs, `visit` gets each place in these files before it is executed.

    only: the one piece of code whose places are asked for.
    """
    names = {str(PACKAGE / file) for file in files}

    def local(frame: FrameType, kind: str, _argument: object) -> Any:
        if kind == event:
            at = frame.f_lineno if kind == "line" else frame.f_lasti
            visit((frame.f_code, at))
        return local

    def begin(frame: FrameType, _kind: str, _argument: object) -> Any:
        is_asked_for = only is None or frame.f_code is only
        if not is_asked_for or frame.f_code.co_filename not in names:
            return None
        frame.f_trace_opcodes = event == "opcode"
        frame.f_trace_lines = event == "line"
        return local

    before = sys.gettrace()
    sys.settrace(begin)
    try:
        yield
    finally:
        sys.settrace(before)


def _is_struck(code: CodeType, offset: int) -> bool:
    """Whether an exception of a handler can come in front of an instruction.

    It cannot in front of the exit of a `with` block, which is why locks are safe in one.
    """
    steps = list(dis.get_instructions(code))
    for at, step in enumerate(steps):
        before = [f"{one.opname} {one.argval}" for one in steps[max(at - 4, 0) : at]]
        is_exit = step.opname == "CALL" and before.count("LOAD_CONST None") == 3
        if is_exit and steps[at - len(before)].offset <= offset <= step.offset:
            return False
    return True


def places(act: Callable[[], object], files: Sequence[str], event: str) -> list[Place]:
    """Where a call comes by in these files of the package, each place once.

    event: "line" or "opcode".
    """
    found: dict[Place, None] = {}
    with _traced(files, event, lambda place: found.setdefault(place)):
        act()
    if event == "line":
        return list(found)
    return [place for place in found if _is_struck(*place)]


def struck(
    act: Callable[[], object], files: Sequence[str], event: str, place: Place
) -> Struck | None:
    """The exception that came out of a call which was struck at a place; None if none was.

    With its traceback, which keeps all that its frames have.
    """

    def strike(at: Place) -> None:
        if at == place:
            raise Struck(name_of(place))  # after which nothing is traced any more

    try:
        with _traced(files, event, strike, only=place[0]):
            act()
    except Struck as error:
        return error
    return None


def name_of(place: Place) -> str:
    """File, function and line or offset, for messages."""
    code, at = place
    return f"{Path(code.co_filename).name} {code.co_name} {at}"
