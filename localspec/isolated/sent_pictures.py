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

# Returns a `KnownPicture` for a picture, or the picture for that.
Change = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class KnownPicture:
    """The digest of a picture that the other process has, in place of the picture."""

    digest: bytes
    """See `Picture`."""


def with_pictures(source: PromptSource, change: Change) -> PromptSource:
    """The source, with `change` applied to all of its pictures."""
    if isinstance(source, BeginningSource):
        chat = with_pictures(source.chat, change)
        assert isinstance(chat, ChatSource)
        return replace(source, chat=chat)
    if isinstance(source, ChatSource):
        turns = [_changed(turn, change) for turn in source.turns]
        return replace(source, turns=turns, turn_start=_changed(source.turn_start, change))
    if isinstance(source, MessagesSource):
        return replace(source, messages=_changed(source.messages, change))
    if isinstance(source, ReadySource):
        prompt = source.prompt
        pictures = tuple(map(change, prompt.pictures))
        return replace(source, prompt=prompt._replace(pictures=pictures))
    return source


def pictures_of(source: PromptSource) -> dict[bytes, Picture]:
    """The pictures of a source by their digests, without pictures that are a file's bytes."""
    pictures: dict[bytes, Picture] = {}

    def note(given: Any) -> Any:
        if isinstance(given, Picture):
            pictures[given.digest] = given
        return given

    with_pictures(source, note)
    return pictures


def _changed(messages: Sequence[Message], change: Change) -> tuple[Message, ...]:
    return tuple(_with_changed(message, change) for message in messages)


def _with_changed(message: Message, change: Change) -> Message:
    shown = shown_in(message)
    if not shown:
        return message
    changed = [part._replace(given=change(part.given)) for part in shown]
    return with_shown(dict(message), changed)


class KeptPictures:
    """The pictures that were received last, the oldest first."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Picture] = {}

    def received(self, source: PromptSource) -> PromptSource | None:
        """The source with its pictures, which are kept; None if a picture is missing."""
        is_whole = True

        def kept_picture(given: Any) -> Any:
            nonlocal is_whole
            if not isinstance(given, KnownPicture):
                return given
            picture = self._kept.get(given.digest)
            if picture is None:
                is_whole = False
            return picture

        whole = with_pictures(source, kept_picture)
        if not is_whole:
            return None
        self._keep(pictures_of(whole))
        return whole

    def _keep(self, pictures: dict[bytes, Picture]) -> None:
        for digest, picture in pictures.items():
            self._kept.pop(digest, None)
            self._kept[digest] = picture
        num_bytes = sum(len(picture.rgb) for picture in self._kept.values())
        while num_bytes > KEPT_PICTURE_BYTES:
            oldest = next(iter(self._kept))
            num_bytes -= len(self._kept.pop(oldest).rgb)
