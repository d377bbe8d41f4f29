"""Summaries of saved conversations: lines of a list, JSON, and a note when one is continued."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from localspec.chat.attachment import without_files
from localspec.chat.session import (
    Session,
    check_exists,
    is_open,
    read_session,
    session_bytes,
    session_file,
    session_names,
)
from localspec.cli.screen import counted, excerpt, note, readable_bytes
from localspec.errors import SessionError

if TYPE_CHECKING:
    from localspec.cli.conversation import Conversation

_EXCERPT = 240  # characters of the last question and answer that are shown


def session_lines() -> list[str]:
    """A line for every session: last use, turns, size, name, and whether a chat has it open.

    If there are no sessions, the only line says how to start one.
    """
    lines = []
    for name in session_names():
        facts = session_json(name)
        last_used = datetime.fromisoformat(facts["last_used"])
        turns = "unreadable"
        if facts["num_turns"] is not None:
            turns = counted(facts["num_turns"], "turn")
        size = readable_bytes(facts["size_bytes"])
        line = f"{last_used:%Y-%m-%d %H:%M}  {turns:>10}  {size:>9}  {name}"
        if facts["is_open"]:
            line += ", open"
        lines.append(line)
    return lines or ["There are no sessions yet; 'localspec chat --session NAME' starts one."]


def note_resumed(conversation: Conversation) -> None:
    """Note which session is continued, with its last question and the end of the answer."""
    messages = conversation.chat.transcript
    num_turns = sum(message["role"] == "user" for message in messages)
    title = f"Continuing {conversation.session}: {counted(num_turns, 'turn')}."
    if num_turns == 0:
        note(title)
        return
    _, question = without_files(messages[-2]["content"])
    words = messages[-1]["content"].split()
    answer = " ".join(words)
    if len(answer) > _EXCERPT:
        # The end, since the next question follows it.
        answer = f"…{answer[-_EXCERPT:]}"
    note(f"{title} The last one:\n> {excerpt(question, _EXCERPT)}\n{answer}")


def existing_session(name: str) -> Session:
    """The session of this name.

    Raises OptionError for an unknown name, SessionError if its file cannot be read.
    """
    check_exists(name)
    session = read_session(name)
    if session is None:
        raise SessionError(f"the session {name!r} was removed in the meantime")
    return session


def session_json(name: str) -> dict[str, Any]:
    """Everything known about a session; num_turns is null if it cannot be read."""
    try:
        num_turns = existing_session(name).num_turns
    except SessionError:
        num_turns = None
    path = session_file(name)
    last_used = datetime.fromtimestamp(path.stat().st_mtime).astimezone()
    return {
        "name": name,
        "num_turns": num_turns,
        "last_used": last_used.isoformat(timespec="seconds"),
        "size_bytes": session_bytes(name),
        "is_open": is_open(name),
        "path": str(path),
    }
