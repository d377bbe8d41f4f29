"""Messages that are calls, as gpt-oss writes them."""

from __future__ import annotations

import re

from localspec.streaming.call_reader import AnswerCalls
from localspec.streaming.marked_calls import MarkedCalls


class MessageCalls(MarkedCalls):
    """Reads a message that is a call: its head names the tool, its body is the arguments.

    It reads the tool's name, a line's end, and the body. No closing comes, but an end:

        NAME      -> ARGUMENTS  at once, where a grammar keeps the calls
        ARGUMENTS -> NAME       when the arguments are whole
        any state -> over       when the message ends; in CLOSING it is a call if it is whole

    Args:
        calls: of the answer.
        named: how the head names the tool.
    """

    def __init__(self, calls: AnswerCalls, named: re.Match[str]) -> None:
        front = "\n\nto=" if calls.has_spoken else "to="
        # No grammar sees to a name without its space.
        super().__init__(calls, front, is_kept=bool(named["space"]))


def named_by(head: str, calls: AnswerCalls) -> re.Match[str] | None:
    """How the head of a message names the tool that it calls; None if it calls none."""
    found = re.search(calls.form.recipient, head)
    if not calls.form.recipient or found is None or found["name"] not in calls.tools:
        return None
    return found
