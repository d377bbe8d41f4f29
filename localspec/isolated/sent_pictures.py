"""Pictures between the processes: a picture has megabytes, and is sent once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localspec.chat.prompt_source import (
    BeginningSource,
    ChatSource,
    MessagesSource,
    ReadySource,
)
from localspec.chat.shown import shown_in, with_shown
from localspec.chat.template import Message
from localspec.pictures.picture import KEPT_PICTURE_BYTES, Picture
from localspec.streaming.record import PromptSource

# Returns what to put in place of its argument: for a picture a `KnownPicture`, or the reverse.
Change = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class KnownPicture:
    """Stands for a picture that the other process has."""

    digest: bytes
    """The picture's: see `Picture`."""


def with_pictures(source: PromptSource, change: Change) -> PromptSource:
    """A copy of a prompt's source, with the result of `change` for each of its pictures."""
    if isinstance(source, BeginningSource):
        chat = with_pictures(source.chat, change)
        assert isinstance(chat, ChatSource)
        return replace(source, chat=chat)
    if isinstance(source, ChatSource):
        turns = [_changed_messages(turn, change) for turn in source.turns]
        turn_start = _changed_messages(source.turn_start, change)
        return replace(source, turns=turns, turn_start=turn_start)
    if isinstance(source, MessagesSource):
        return replace(source, messages=_changed_messages(source.messages, change))
    if isinstance(source, ReadySource):
        prompt = source.prompt
        pictures = tuple(map(change, prompt.pictures))
        return replace(source, prompt=prompt._replace(pictures=pictures))
    return source


def pictures_of(source: PromptSource) -> dict[bytes, Picture]:
    """The decoded pictures of a source, by their digests.

    Pictures that are the bytes of a file are left out.
    """
    pictures: dict[bytes, Picture] = {}

    def note_picture(picture: Any) -> Any:
        if isinstance(picture, Picture):
            pictures[picture.digest] = picture
        return picture

    with_pictures(source, note_picture)  # for its calls; the copy is not used
    return pictures


def _changed_messages(messages: Sequence[Message], change: Change) -> tuple[Message, ...]:
    """Copies of messages, with the result of `change` for each picture."""
    return tuple(_changed_message(message, change) for message in messages)


def _changed_message(message: Message, change: Change) -> Message:
    """A copy of a message, with the result of `change` for each picture."""
    shown = shown_in(message)
    if not shown:
        return message
    changed = []
    for part in shown:
        changed.append(part._replace(given=change(part.given)))
    return with_shown(dict(message), changed)


class KeptPictures:
    """The pictures that this process has received, as far as memory for them goes."""

    def __init__(self) -> None:
        self._pictures: dict[bytes, Picture] = {}  # by digest; the last used is at the end

    def restored(self, source: PromptSource) -> PromptSource | None:
        """A copy of a source, with kept pictures in place of each `KnownPicture`.

        None if one of these is not kept any more. Otherwise all pictures of the source are kept
        from now on.
        """
        is_missing = False

        def restored_picture(picture: Any) -> Any:
            nonlocal is_missing
            if not isinstance(picture, KnownPicture):
                return picture
            kept = self._pictures.get(picture.digest)
            if kept is None:
                is_missing = True
            return kept

        restored = with_pictures(source, restored_picture)
        if is_missing:
            return None
        self._keep(pictures_of(restored))
        return restored

    def _keep(self, pictures: dict[bytes, Picture]) -> None:
        """Keep these pictures as the last used, and drop the oldest beyond the limit."""
        for digest, picture in pictures.items():
            self._pictures.pop(digest, None)  # so that it moves to the end
            self._pictures[digest] = picture
        num_bytes = sum(len(picture.rgb) for picture in self._pictures.values())
        while num_bytes > KEPT_PICTURE_BYTES:
            oldest_digest = next(iter(self._pictures))
            oldest = self._pictures.pop(oldest_digest)
            num_bytes -= len(oldest.rgb)
