"""Messages that are calls, as gpt-oss writes them."""

from __future__ import annotations

import re

from localspec.streaming.call_reader import AnswerCalls
from localspec.streaming.marked_calls import MarkedCalls


class MessageCalls(MarkedCalls):
    """Reads a message that is a call: its head names the tool, its body is the arguments.

    It reads the tool's name, a newline, and the body. There is no closing mark, but the message
    ends:

        NAME      -> ARGUMENTS  at once, if a grammar enforces the form of calls
        ARGUMENTS -> NAME       when the arguments are whole
        any state -> over       when the message ends; in CLOSING it is a call if it is whole

    Args:
        calls: The answer's calls.
        match: The match of the tool's name in the head: see `match_tool`.
    """

    def __init__(self, calls: AnswerCalls, match: re.Match[str]) -> None:
        front = "to="
        if calls.has_text:
            front = "\n\nto="
        # The grammar begins at the space before a name: without it, nothing is constrained.
        super().__init__(calls, front, is_enforced=bool(match["space"]))


def match_tool(head: str, calls: AnswerCalls) -> re.Match[str] | None:
    """The match of a tool's name in the head of a message; None if it calls no tool."""
    if not calls.form.recipient:
        return None
    match = re.search(calls.form.recipient, head)
    if match is None or match["name"] not in calls.tools:
        return None
    return match
