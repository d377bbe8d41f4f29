"""Pictures of saved conversations: PNG files beside a session's own, named by their content.

A session is written after every answer, its pictures once.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.atomic_write import write_whole
from localspec.chat.shown import Shown, shown_in, with_shown
from localspec.errors import OptionError, SessionError
from localspec.pictures.picture import MAX_PICTURE_PIXELS, Picture

if TYPE_CHECKING:
    from localspec.chat.template import Message

_DIGEST = re.compile("[0-9a-f]{64}")
_MOST_BYTES = 4 * MAX_PICTURE_PIXELS  # more than any picture takes as a PNG


def folder_beside(session: Path) -> Path:
    """The folder of the pictures of the session in this file."""
    return session.with_suffix(".pictures")


def keep_pictures(session: Path, messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as JSON can hold them, once their pictures are on disk.

    Raises OSError, and OptionError for a picture that cannot be read.
    """
    kept = []
    for message in messages:
        places = []
        for each in shown_in(message):
            digest = keep_picture(session, Picture.read(each.given))
            places.append({"at": each.at, "sha256": digest})
        bare = with_shown(dict(message), ())
        kept.append({**bare, "pictures": places} if places else bare)
    return kept


def keep_picture(session: Path, picture: Picture) -> str:
    """The picture's SHA-256, once it is on disk. Raises OSError."""
    digest = picture.digest.hex()
    path = folder_beside(session) / f"{digest}.png"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, picture.png(), durable=True)
    return digest


def with_kept_pictures(session: Path, messages: Sequence[Message]) -> list[Message]:
    """The messages with their pictures. Raises SessionError if one is missing or damaged."""
    return [
        with_shown(
            dict(message),
            (
                Shown(place["at"], read_picture(session, place["sha256"]))
                for place in message.get("pictures", ())
            ),
        )
        for message in messages
    ]


def drop_other_pictures(
    session: Path, kept: Sequence[Mapping[str, Any]], pending: Sequence[str]
) -> None:
    """Delete those that no message has any more; what cannot be deleted stays.

    pending: SHA-256 of those that stay, too.
    """
    names = {place["sha256"] for message in kept for place in message.get("pictures", ())}
    names.update(pending)
    folder = folder_beside(session)
    with contextlib.suppress(OSError):
        for path in folder.glob("*.png") if folder.exists() else ():
            if path.stem not in names:
                path.unlink()


def remove_pictures(session: Path) -> None:
    """Delete all of them. Raises OSError."""
    if folder_beside(session).exists():
        shutil.rmtree(folder_beside(session))


def num_picture_bytes(session: Path) -> int:
    """Bytes that they take on disk."""
    return sum(path.stat().st_size for path in folder_beside(session).glob("*.png"))


def are_places(value: object, content: str) -> bool:
    """Whether it can be the pictures of a message in a session's file."""
    return isinstance(value, list) and all(
        isinstance(each, dict)
        and each.keys() == {"at", "sha256"}
        and type(each["at"]) is int
        and 0 <= each["at"] <= len(content)
        and are_digests([each["sha256"]])
        for each in value
    )


def are_digests(value: object) -> bool:
    """Whether it can be a list of SHA-256 in a session's file."""
    return isinstance(value, list) and all(
        isinstance(each, str) and _DIGEST.fullmatch(each) for each in value
    )


def read_picture(session: Path, digest: str) -> Picture:
    """A picture of the session. Raises SessionError if it is missing or damaged."""
    path = folder_beside(session) / f"{digest}.png"
    try:
        picture = Picture.read(path, most_bytes=_MOST_BYTES)
    except OptionError as error:
        raise SessionError(
            f"a picture of the session is missing: {error}",
            "Put it back, or start another session.",
        ) from error
    if picture.digest.hex() != digest:
        raise SessionError(f"{path} is another picture", "Put the right one back.")
    return picture
