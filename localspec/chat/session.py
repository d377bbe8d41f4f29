"""Sessions: conversations on disk, each by a name.

A JSON file holds the messages, and nothing of the models. It is written as a whole or not at
all. Pictures are PNG files in a folder next to it, named by the SHA-256 of their content, so
that each picture is written once.
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
# The name of a session: 1 to 100 characters without a special meaning for a file system or a
# shell, and no blank at the ends.
_NAME = re.compile(r"\w([^/\\:*?\"<>|]{0,98}[^/\\:*?\"<>| ])?")
_MAX_NAME_BYTES = 236  # file systems take 255, with the endings of our files
_JOINERS = "\u200c\u200d"  # invisible characters in words of Persian and of Indian languages


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation as its file holds it."""

    name: str
    messages: list[dict[str, Any]]
    """All messages, forgotten ones included. A message's pictures are under "pictures", as
    dicts with sha256, at (their position in the text), and name (of the user's file)."""

    num_asked: int
    """As `Chat.num_asked`."""

    num_forgotten: int
    """As `Chat.num_forgotten`."""

    @property
    def num_turns(self) -> int:
        """The number of turns, forgotten ones included."""
        return sum(message["role"] == "user" for message in self.messages)

    def as_json(self) -> bytes:
        """The content of the session's file."""
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
        """Replace a chat's conversation by the session's.

        Raises SessionError if the messages are not whole turns, or a picture cannot be read.
        """
        path = session_file(self.name)
        messages = [_with_pictures(path, message) for message in self.messages]
        try:
            chat.replace(messages, num_asked=self.num_asked, num_forgotten=self.num_forgotten)
        except OptionError as error:
            raise _unreadable(path, str(error)) from error


def known_name(name: str) -> str:
    """The name of the session that this name means, existing or new.

    It is the name of an existing session if the two differ only in case or in the composition
    of letters, which some file systems ignore. Raises OptionError for a bad name.
    """
    name = _checked_name(name)
    comparison_key = _comparison_key(name)
    same_names = []
    for existing in session_names():
        if _comparison_key(existing) == comparison_key:
            same_names.append(existing)
    if name in same_names or not same_names:
        return name
    return same_names[0]


def session_file(name: str) -> Path:
    """The path of a session's file, which need not exist. Raises OptionError for a bad name."""
    path = _sessions_folder() / f"{_checked_name(name)}.json"
    if path.exists():
        return path
    return _existing_files().get(known_name(name), path)


def session_names() -> list[str]:
    """The names of the existing sessions, sorted."""
    return sorted(_existing_files())


def check_exists(name: str) -> None:
    """Raise OptionError if there is no session of that name."""
    if not session_file(name).exists():
        guess = did_you_mean(name, session_names())
        raise OptionError(
            f"there is no session {name!r}",
            f"{guess}'localspec sessions' lists them, and so does /load in a chat.",
        )


def check_opens(name: str) -> None:
    """Raise early what locking and reading the session, or a new one of that name, would raise.

    Raises OptionError for a bad name, SessionError for a session that is open in another
    process, cannot be read or cannot be locked. Faults of its turns and pictures are found
    only by `Session.resume`.
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
    """Whether a process has locked the session; also True if its lock cannot be taken."""
    try:
        lock_session(name).release()
    except SessionError:
        return True
    return False


def remove_sessions(names: Sequence[str]) -> None:
    """Delete sessions and their pictures. Names without a session are ignored.

    Raises:
        SessionError: One of them is open. Then none is deleted.
        OptionError: A name is bad. Then none is deleted.
        OSError: A file cannot be deleted.
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
    """Write a chat's conversation to the session of that name. Returns the path of its file.

    An older conversation is replaced; at any moment the file holds the old or the new one as a
    whole. Raises SessionError if it cannot be written.
    """
    path = session_file(name)
    try:
        messages = [_with_saved_pictures(path, message) for message in chat.transcript]
        session = Session(name, messages, chat.num_asked, chat.num_forgotten)
        make_private_folder(path.parent)
        write_whole(path, session.as_json(), durable=True)
    except OSError as error:
        raise _unwritable(path, error) from error
    _delete_other_pictures(path, messages)
    return path


def read_session(name: str) -> Session | None:
    """The session of that name; None if it does not exist.

    Raises SessionError if its file cannot be read, is not a session, or has another version of
    the format.
    """
    path = session_file(name)
    try:
        content = json.loads(read_regular(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, str(error.strerror)) from error
    except (ValueError, RecursionError) as error:  # the second for nesting that is too deep
        raise _unreadable(path, f"it is not JSON ({error})") from error
    return _checked_session(name, path, content)


def lock_session(name: str) -> FileLock:
    """Lock the session against other processes. Returns the lock, to be released.

    The end of this process releases it, too. Raises SessionError if another process has the
    lock, or the lock's file cannot be written.
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


def _checked_session(name: str, path: Path, content: Any) -> Session:
    """Check the content of a session's file. Raises SessionError if it is not a session.

    Args:
        name: The session's name.
        path: Its file, for errors.
        content: The value of the file's JSON.
    """
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
        has_messages = isinstance(messages, list) and all(map(_is_message, messages))
        is_valid = has_messages and is_count(num_asked) and is_count(num_forgotten)
    except DAMAGES:
        is_valid = False
    if not is_valid:
        raise _unreadable(path, "its messages or counts are invalid")
    return Session(name, messages, num_asked, num_forgotten)


def _is_message(message: Any) -> bool:
    """Whether a value from JSON is a message with valid pictures.

    May raise one of DAMAGES instead of returning False.
    """
    content = message["content"]
    if not isinstance(message["role"], str) or not isinstance(content, str):
        return False
    for saved_picture in message.get("pictures", ()):
        if not _is_saved_picture(saved_picture, len(content)):
            return False
    return True


def _is_saved_picture(saved_picture: Any, content_length: int) -> bool:
    """As `_is_message`, for a picture of a message, as in `Session.messages`."""
    if not _DIGEST.fullmatch(saved_picture["sha256"]):  # becomes the name of a file
        return False
    if not isinstance(saved_picture.get("name", ""), str):
        return False
    position = saved_picture["at"]
    return type(position) is int and 0 <= position <= content_length


def _pictures_folder(session_path: Path) -> Path:
    return session_path.with_suffix(".pictures")


def _with_saved_pictures(session_path: Path, message: Message) -> dict[str, Any]:
    """Write the pictures of a message to disk. Returns the message as `Session` has it.

    Raises OSError.
    """
    saved_pictures = []
    for shown in shown_in(message):
        picture = Picture.read(shown.given)
        digest = picture.digest.hex()
        path = _pictures_folder(session_path) / f"{digest}.png"
        if not path.exists():
            make_private_folder(path.parent)
            write_whole(path, picture.png(), durable=True)
        saved_picture = {"at": shown.at, "sha256": digest}
        if picture.name:
            saved_picture["name"] = picture.name
        saved_pictures.append(saved_picture)
    without_pictures = with_shown(dict(message), ())
    if saved_pictures:
        return {**without_pictures, "pictures": saved_pictures}
    return without_pictures


def _with_pictures(session_path: Path, message: Message) -> Message:
    """A message of a `Session`, with its pictures read from disk. Raises SessionError."""
    shown = []
    for saved_picture in message.get("pictures", ()):
        picture = _read_picture(session_path, saved_picture)
        shown.append(Shown(saved_picture["at"], picture))
    return with_shown(dict(message), shown)


def picture_name(saved_picture: Mapping[str, Any]) -> str:
    """The name of the user's file of a saved picture, or else 8 digits of its SHA-256."""
    return str(saved_picture.get("name") or saved_picture["sha256"][:8])


def _read_picture(session_path: Path, saved_picture: Mapping[str, Any]) -> Picture:
    """Read a picture of a `Session` from disk.

    Raises SessionError if it cannot be read, or is not the picture that was saved.
    """
    digest = saved_picture["sha256"]
    path = _pictures_folder(session_path) / f"{digest}.png"
    try:
        picture = Picture.read(path, most_bytes=_MOST_PICTURE_BYTES)
    except OptionError as error:
        raise SessionError(
            f"the picture {picture_name(saved_picture)} of the session cannot be read: {error}",
            "Put it back, or start another session.",
        ) from error
    if picture.digest.hex() != digest:
        raise SessionError(
            f"{path} is not the picture that was saved as {picture_name(saved_picture)}",
            "Put the saved file back, or start another session.",
        )
    # The name of the user's file, not that of the file on disk.
    return replace(picture, name=saved_picture.get("name", ""))


def _delete_other_pictures(session_path: Path, messages: Sequence[Mapping[str, Any]]) -> None:
    """Delete the session's pictures that are in none of the messages.

    Stops without an error where a file cannot be deleted.
    """
    used_digests = set()
    for message in messages:
        for saved_picture in message.get("pictures", ()):
            used_digests.add(saved_picture["sha256"])
    with contextlib.suppress(OSError):
        for path in _pictures_folder(session_path).glob("*.png"):
            if path.stem not in used_digests:
                path.unlink()


def _checked_name(name: str) -> str:
    """The name with composed letters and plain spaces. Raises OptionError for a bad name."""
    spaces = [character for character in name if unicodedata.category(character) == "Zs"]
    for space in spaces:
        name = name.replace(space, " ")
    name = unicodedata.normalize("NFC", name.strip(" "))
    if not _is_name(name):
        raise OptionError(
            f"{name!r} cannot be the name of a session",
            'Use letters, digits, spaces and punctuation, but none of / \\ : * ? " < > |; '
            "begin with a letter or digit.",
        )
    return name


def _is_name(name: str) -> bool:
    """Whether a session can have this name, on every file system."""
    without_joiners = name
    for joiner in _JOINERS:
        without_joiners = without_joiners.replace(joiner, "")
    if _NAME.fullmatch(name) is None or not without_joiners.isprintable():
        return False
    return len(name.encode()) <= _MAX_NAME_BYTES and not names_device(name)


def _comparison_key(name: str) -> str:
    """A key that is the same for names that differ only in case or composition of letters."""
    decomposed = unicodedata.normalize("NFD", name)
    return unicodedata.normalize("NFC", decomposed.casefold())


def _existing_files() -> dict[str, Path]:
    """The files of the existing sessions by name."""
    paths = {}
    for path in _sessions_folder().glob("*.json"):
        # Some file systems decompose the letters of names.
        name = unicodedata.normalize("NFC", path.stem)
        if _is_name(name):
            paths[name] = path
    return paths


def _sessions_folder() -> Path:
    return platformdirs.user_data_path("localspec", appauthor=False) / "sessions"


def _unwritable(path: Path, error: OSError) -> SessionError:
    """The error for a session's file that cannot be written."""
    return SessionError(
        f"the session cannot be written to {path}: {error.strerror}",
        "Free some disk space, or check the folder's permissions.",
    )


def _unreadable(path: Path, reason: str) -> SessionError:
    """The error for a session's file that cannot be read."""
    return SessionError(
        f"{path} cannot be read: {reason}",
        "Move it away, or use another name.",
    )
