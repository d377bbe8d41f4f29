"""A conversation on disk: written whole or not at all, read back or refused.

One JSON file holds the messages and nothing of the models. Their pictures are PNG files in a
folder next to it, named by their content, so that each is written once.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs
from filelock import FileLock, Timeout

from localspec.chat.shown import Shown, shown_in, with_shown
from localspec.errors import DAMAGES, OptionError, SessionError, did_you_mean
from localspec.pictures.picture import MAX_PICTURE_PIXELS, Picture
from localspec.system.atomic_write import (
    make_private_folder,
    names_device,
    read_regular,
    write_whole,
)

if TYPE_CHECKING:
    from localspec.chat.chat import Chat
    from localspec.chat.template import Message

_FORMAT = "localspec-session"
_VERSION = 1
_DIGEST = re.compile("[0-9a-f]{64}")
_MOST_PICTURE_BYTES = 4 * MAX_PICTURE_PIXELS  # more than any picture takes as a PNG
# No character with a special meaning for a file system or a shell, and no blank at the ends.
_NAME = re.compile(r"\w([^/\\:*?\"<>|]{0,98}[^/\\:*?\"<>| ])?")
_MAX_NAME_BYTES = 236  # file systems take 255, our endings and marks included
_JOINERS = "\u200c\u200d"  # belong to words of Persian and of Indian languages


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation by name, as `Chat.replace` takes it."""

    name: str
    messages: list[dict[str, Any]]
    """The messages as JSON holds them, their pictures by SHA-256, with the names of their
    files."""

    num_asked: int
    """As `Chat.num_asked`."""

    num_forgotten: int
    """As `Chat.num_forgotten`."""

    @property
    def num_turns(self) -> int:
        """The number of turns, forgotten ones included."""
        return sum(message["role"] == "user" for message in self.messages)

    def as_json(self) -> bytes:
        """The session as it is kept in its file."""
        content = {
            "format": _FORMAT,
            "version": _VERSION,
            **asdict(self),
        }
        del content["name"]
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        # A message can hold half of a surrogate pair, which UTF-8 cannot encode. Python's
        # escape for it is JSON's, too.
        return text.encode(errors="backslashreplace")

    def resume(self, chat: Chat) -> None:
        """Continue the session in a chat.

        Raises SessionError if the messages are not turns, or a picture is missing.
        """
        path = session_file(self.name)
        messages = [_with_pictures(path, message) for message in self.messages]
        try:
            chat.replace(messages, num_asked=self.num_asked, num_forgotten=self.num_forgotten)
        except OptionError as error:
            raise _unreadable(path, str(error)) from error


def known_name(name: str) -> str:
    """The session's name as it is, or would be, kept. Raises OptionError for a bad name.

    Names that differ only in case or in the composition of letters are the same name, as on
    some file systems.
    """
    name = _checked(name)
    compared = _as_compared(name)
    same = [kept for kept in session_names() if _as_compared(kept) == compared]
    if name in same or not same:
        return name
    return same[0]


def session_file(name: str) -> Path:
    """The file that the session is kept in. Raises OptionError for a bad name."""
    path = _folder() / f"{_checked(name)}.json"
    if path.exists():
        return path
    return _kept_files().get(known_name(name), path)


def session_names() -> list[str]:
    """Names of the sessions that are there, sorted."""
    return sorted(_kept_files())


def check_exists(name: str) -> None:
    """Raise OptionError if there is no session of that name."""
    if not session_file(name).exists():
        guess = did_you_mean(name, session_names())
        raise OptionError(
            f"there is no session {name!r}",
            f"{guess}'localspec sessions' lists them, and so does /load in a chat.",
        )


def check_opens(name: str) -> None:
    """Raise what opening the session, or beginning one of that name, would raise.

    Raises OptionError for a bad name, SessionError if it is open elsewhere or cannot be read.
    """
    name = known_name(name)
    lock_session(name).release()
    read_session(name)


def session_bytes(name: str) -> int:
    """Bytes that the session's file and its pictures take on disk."""
    path = session_file(name)
    files = [path, *_pictures_folder(path).glob("*.png")]
    return sum(file.stat().st_size for file in files)


def is_open(name: str) -> bool:
    """Whether a process has the session's lock."""
    try:
        lock_session(name).release()
    except SessionError:
        return True
    return False


def remove_sessions(names: Sequence[str]) -> None:
    """Delete the sessions and their pictures.

    Raises SessionError if one of them is open, and then none is deleted; OSError, and
    OptionError for a bad name.
    """
    with contextlib.ExitStack() as locks:
        for name in names:
            locks.callback(lock_session(name).release)
        for name in names:
            path = session_file(name)
            pictures = _pictures_folder(path)
            if pictures.exists():
                shutil.rmtree(pictures)
            path.unlink(missing_ok=True)


def save_session(name: str, chat: Chat) -> Path:
    """Write the conversation, in place of an older one of that name; returns the path.

    At any moment the file holds either the old or the new conversation. Raises SessionError.
    """
    path = session_file(name)
    try:
        messages = [_as_json(path, message) for message in chat.transcript]
        session = Session(name, messages, chat.num_asked, chat.num_forgotten)
        make_private_folder(path.parent)
        write_whole(path, session.as_json(), durable=True)
    except OSError as error:
        raise _unwritable(path, error) from error
    _drop_other_pictures(path, messages)
    return path


def read_session(name: str) -> Session | None:
    """The session of that name; None if it does not exist.

    Raises SessionError for a file that is not a session, or of another version of the format.
    """
    path = session_file(name)
    try:
        content = json.loads(read_regular(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, str(error.strerror)) from error
    # Too deep nesting is a RecursionError.
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, f"it is not JSON ({error})") from error
    return _session(name, path, content)


def lock_session(name: str) -> FileLock:
    """Lock the session against other processes, until the lock is released.

    The end of the process releases it, too. Raises SessionError if another process has it.
    """
    path = session_file(name)
    lock = FileLock(path.with_name(f".{path.stem}.lock"))
    try:
        make_private_folder(path.parent)
        lock.acquire(timeout=0)
    except Timeout as error:
        raise SessionError(
            f"the session {name!r} is open in another localspec process",
            "Close it there first, or use another name.",
        ) from error
    except OSError as error:
        raise _unwritable(path, error) from error
    return lock


def _session(name: str, path: Path, content: Any) -> Session:
    """The session in a file's content. Raises SessionError if it is not one."""
    from localspec.chat.turns import is_count  # late: names of sessions are listed without it

    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise _unreadable(path, "it is not a localspec session")
    if content.get("version") != _VERSION:
        raise SessionError(
            f"{path} has version {content.get('version')!r} of the format; "
            f"this localspec reads version {_VERSION}",
            "Use the localspec that wrote it, or another name.",
        )
    try:
        messages = content["messages"]
        num_asked = content["num_asked"]
        num_forgotten = content["num_forgotten"]
        is_right = (
            isinstance(messages, list)
            and all(map(_is_message, messages))
            and is_count(num_asked)
            and is_count(num_forgotten)
        )
    except DAMAGES:
        is_right = False
    if not is_right:
        raise _unreadable(path, "its messages or counts are invalid")
    return Session(name, messages, num_asked, num_forgotten)


def _is_message(message: Any) -> bool:
    """Whether it is a message with valid pictures. Raises one of DAMAGES, or returns False."""
    content = message["content"]
    if not isinstance(message["role"], str) or not isinstance(content, str):
        return False
    for position in message.get("pictures", ()):
        is_valid = (
            _DIGEST.fullmatch(position["sha256"])  # becomes the name of a file
            and isinstance(position.get("name", ""), str)
            and type(position["at"]) is int
            and 0 <= position["at"] <= len(content)
        )
        if not is_valid:
            return False
    return True


def _pictures_folder(session: Path) -> Path:
    return session.with_suffix(".pictures")


def _as_json(session: Path, message: Message) -> dict[str, Any]:
    """Write a message's pictures; returns the message as JSON can hold it. Raises OSError."""
    positions = []
    for shown in shown_in(message):
        picture = Picture.read(shown.given)
        path = _pictures_folder(session) / f"{picture.digest.hex()}.png"
        if not path.exists():
            make_private_folder(path.parent)
            write_whole(path, picture.png(), durable=True)
        position = {"at": shown.at, "sha256": path.stem}
        if picture.name:
            position["name"] = picture.name
        positions.append(position)
    bare = with_shown(dict(message), ())
    if positions:
        return {**bare, "pictures": positions}
    return bare


def _with_pictures(session: Path, message: Message) -> Message:
    """The message with its pictures, read from disk. Raises SessionError."""
    shown = []
    for position in message.get("pictures", ()):
        picture = _read_picture(session, position)
        shown.append(Shown(position["at"], picture))
    return with_shown(dict(message), shown)


def picture_name(position: Mapping[str, Any]) -> str:
    """The name of a picture's file, or else the beginning of its SHA-256."""
    return str(position.get("name") or position["sha256"][:8])


def _read_picture(session: Path, position: Mapping[str, Any]) -> Picture:
    digest = position["sha256"]
    path = _pictures_folder(session) / f"{digest}.png"
    try:
        picture = Picture.read(path, most_bytes=_MOST_PICTURE_BYTES)
    except OptionError as error:
        raise SessionError(
            f"the picture {picture_name(position)} of the session cannot be read: {error}",
            "Put it back, or start another session.",
        ) from error
    if picture.digest.hex() != digest:
        raise SessionError(
            f"{path} is not the picture that was saved as {picture_name(position)}",
            "Put the saved file back, or start another session.",
        )
    return replace(picture, name=position.get("name", ""))  # not the digest


def _drop_other_pictures(session: Path, messages: Sequence[Mapping[str, Any]]) -> None:
    """Delete pictures that are in no message, as far as that is possible."""
    kept = set()
    for message in messages:
        for position in message.get("pictures", ()):
            kept.add(position["sha256"])
    with contextlib.suppress(OSError):
        for path in _pictures_folder(session).glob("*.png"):
            if path.stem not in kept:
                path.unlink()


def _checked(name: str) -> str:
    """The name with composed letters. Raises OptionError for a bad name."""
    blanks = [character for character in name if unicodedata.category(character) == "Zs"]
    for blank in blanks:
        name = name.replace(blank, " ")
    name = unicodedata.normalize("NFC", name.strip(" "))
    if not _is_name(name):
        raise OptionError(
            f"{name!r} cannot be the name of a session",
            'Use letters, digits, spaces and punctuation, but none of / \\ : * ? " < > |; '
            "begin with a letter or digit.",
        )
    return name


def _is_name(name: str) -> bool:
    bare = name.translate(dict.fromkeys(map(ord, _JOINERS)))
    return (
        _NAME.fullmatch(name) is not None
        and bare.isprintable()
        and len(name.encode()) <= _MAX_NAME_BYTES
        and not names_device(name)
    )


def _as_compared(name: str) -> str:
    """The name without case, with composed letters."""
    decomposed = unicodedata.normalize("NFD", name)
    return unicodedata.normalize("NFC", decomposed.casefold())


def _kept_files() -> dict[str, Path]:
    """Files of sessions by name. Some file systems decompose the letters of names."""
    paths = {}
    for path in _folder().glob("*.json"):
        name = unicodedata.normalize("NFC", path.stem)
        if _is_name(name):
            paths[name] = path
    return paths


def _folder() -> Path:
    return platformdirs.user_data_path("localspec", appauthor=False) / "sessions"


def _unwritable(path: Path, error: OSError) -> SessionError:
    return SessionError(
        f"the session cannot be written to {path}: {error.strerror}",
        "Free some disk space, or check the folder's permissions.",
    )


def _unreadable(path: Path, reason: str) -> SessionError:
    return SessionError(
        f"{path} cannot be read: {reason}",
        "Move it away, or use another name.",
    )
