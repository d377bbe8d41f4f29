"""Pictures between the processes: each is megabytes, and is sent once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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

# Gives what stands for a picture, or the picture for what stands for it.
Change = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class KnownPicture:
    """Stands for a picture that the other process has."""

    digest: bytes
    """See `Picture`."""


def with_pictures(source: PromptSource, change: Change) -> PromptSource:
    """The source with other pictures: what `change` gives for each."""
    if isinstance(source, BeginningSource):
        chat = with_pictures(source.chat, change)
        assert isinstance(chat, ChatSource)
        return replace(source, chat=chat)
    if isinstance(source, ChatSource):
        turns = [_changed(turn, change) for turn in source.turns]
        return replace(source, turns=turns, asked=_changed(source.asked, change))
    if isinstance(source, MessagesSource):
        return replace(source, messages=_changed(source.messages, change))
    if isinstance(source, ReadySource):
        pictures = tuple(change(each) for each in source.prompt.pictures)
        return replace(source, prompt=source.prompt._replace(pictures=pictures))
    return source


def pictures_of(source: PromptSource) -> dict[bytes, Picture]:
    """The pictures of a source by their digests, but for those that are files' bytes."""
    found: dict[bytes, Picture] = {}

    def note(given: Any) -> Any:
        if isinstance(given, Picture):
            found[given.digest] = given
        return given

    with_pictures(source, note)
    return found


def _changed(messages: Sequence[Message], change: Change) -> tuple[Message, ...]:
    return tuple(_with_changed(message, change) for message in messages)


def _with_changed(message: Message, change: Change) -> Message:
    shown = shown_in(message)
    if not shown:
        return message
    return with_shown(
        dict(message), (each._replace(given=change(each.given)) for each in shown)
    )


class KeptPictures:
    """The pictures that were received last, the oldest first."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Picture] = {}

    def received(self, source: PromptSource) -> PromptSource | None:
        """The source with its pictures, which are kept; None if one is not here any more."""
        is_whole = True

        def kept_picture(given: Any) -> Any:
            nonlocal is_whole
            if isinstance(given, KnownPicture):
                picture = self._kept.get(given.digest)
                is_whole = is_whole and picture is not None
                return picture
            return given

        whole = with_pictures(source, kept_picture)
        if not is_whole:
            return None
        self._keep(pictures_of(whole))
        return whole

    def _keep(self, pictures: dict[bytes, Picture]) -> None:
        for digest, picture in pictures.items():
            self._kept.pop(digest, None)
            self._kept[digest] = picture
        num_bytes = sum(self._sizes())
        while num_bytes > KEPT_PICTURE_BYTES:
            oldest = self._kept.pop(next(iter(self._kept)))
            num_bytes -= len(oldest.rgb)

    def _sizes(self) -> Iterator[int]:
        for picture in self._kept.values():
            yield len(picture.rgb)
