"""Saved conversations in a line, in JSON, and in the note when one is continued."""

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

_SHOWN = 240  # characters of a text of the last turn


def session_lines() -> list[str]:
    """A line for every session: last use, turns, size, name, and whether it is open."""
    lines = []
    for name in session_names():
        facts = session_json(name)
        used = datetime.fromisoformat(facts["last_used"])
        turns = "unreadable"
        if facts["num_turns"] is not None:
            turns = counted(facts["num_turns"], "turn")
        size = readable_bytes(facts["size_bytes"])
        line = f"{used:%Y-%m-%d %H:%M}  {turns:>10}  {size:>9}  {name}"
        if facts["is_open"]:
            line += ", open"
        lines.append(line)
    return lines or ["There are no sessions yet; 'localspec chat --session NAME' starts one."]


def note_resumed(conversation: Conversation) -> None:
    """Note which session is continued, and the beginning or end of its last turn."""
    messages = conversation.chat.transcript
    num_turns = sum(message["role"] == "user" for message in messages)
    head = f"Continuing {conversation.session}: {counted(num_turns, 'turn')}."
    if num_turns == 0:
        note(head)
        return
    _, question = without_files(messages[-2]["content"])
    words = messages[-1]["content"].split()
    answer = " ".join(words)
    if len(answer) > _SHOWN:  # its end leads to the next question
        answer = f"…{answer[-_SHOWN:]}"
    note(f"{head} The last one:\n> {excerpt(question, _SHOWN)}\n{answer}")


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
