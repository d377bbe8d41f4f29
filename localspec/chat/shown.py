"""Pictures in messages: as the field writes them, and where they stand in the text."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from localspec.errors import OptionError, at_most
from localspec.pictures.picture import MAX_PICTURE_BYTES, MAX_PICTURE_PIXELS, Picture

if TYPE_CHECKING:  # sessions are listed without the library of templates
    from localspec.chat.template import Message
    from localspec.pictures.picture import PictureSource, Vision

# Replaces a picture that a model cannot see, so that a conversation can continue with it.
PICTURE_NOTE = "[An image was here, which this model cannot see.]"
_LOST_NOTE = "[An image was here, which cannot be read.]"
HOW_TO_SEE = (
    "Load it with one (mmproj=…), choose a model that sees images, or leave the image out."
)
MOST_PROMPT_PICTURES = 256
MOST_PROMPT_PIXELS = 4 * MAX_PICTURE_PIXELS  # of all together: 600 MB
_DATA_URL = re.compile(r"data:(?P<kind>[\w.+/-]*)(?:;[\w.=+-]+)*?;base64,", re.IGNORECASE)
_WEB_URL = re.compile(r"https?://", re.IGNORECASE)
_FORMS = 'Give {"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}.'


# A picture as the caller gives it: the bytes of a file are decoded when the prompt is made.
Given = Picture | bytes


class Shown(NamedTuple):
    """A picture in a message."""

    at: int
    """Characters of the content before it."""

    given: Given
    is_result: bool = False
    """Whether it is in the result of a tool. Then it is never an error, but a note, if the
    model cannot see it."""


class ShownTokens(NamedTuple):
    """A picture as a model that sees it reads it."""

    at: int
    tokens: Sequence[int]
    """Its tokens, see `Vision.cells`."""


def shown_in(message: Message) -> Sequence[Any]:
    """The pictures of a message, in order: `Shown`, or `ShownTokens`."""
    shown: Sequence[Any] = message.get("pictures", ())
    return shown


def with_shown(message: dict[str, Any], shown: Iterable[NamedTuple]) -> dict[str, Any]:
    """The message with these pictures and no others."""
    changed = dict(message)
    changed.pop("pictures", None)
    pictures = tuple(shown)
    if pictures:
        changed["pictures"] = pictures
    return changed


def attached_pictures(images: Iterable[PictureSource]) -> list[Shown]:
    """Pictures that stand before a text. Raises OptionError for anything else."""
    if isinstance(images, str | bytes | os.PathLike) or not isinstance(images, Iterable):
        raise OptionError(f"images is {images!r:.80}", "Give a list of pictures.")
    sources = at_most(MOST_PROMPT_PICTURES, images, "pictures")
    return [Shown(0, Picture.read(source)) for source in sources]


def given_in(part: Mapping[str, Any]) -> Given:
    """The picture in a part of a message. Raises OptionError if there is none.

    The part: OpenAI's image_url or input_image, Anthropic's image with a source, or an image
    with a `Picture`, a path of pathlib, the bytes of a file or an image of Pillow.
    """
    source = part.get("source")
    if isinstance(source, Mapping):  # Anthropic's
        if source.get("type") == "url":
            return _of_url(source.get("url"))
        return of_base64(source.get("data"))
    image = part.get("image")
    if image is not None and not isinstance(image, str):
        if isinstance(image, bytes | bytearray):
            return bytes(image)
        return Picture.read(image)
    url = part.get("image_url", image)
    if isinstance(url, Mapping):
        url = url.get("url")
    return _of_url(url)


def of_base64(text: object) -> bytes:
    """The bytes of a file in base64. Raises OptionError."""
    if not isinstance(text, str) or not text:
        raise OptionError("it has no data", _FORMS)
    if len(text) > MAX_PICTURE_BYTES * 3 // 2:
        raise OptionError(
            f"it has {len(text)} characters; the limit is {MAX_PICTURE_BYTES} bytes",
            "Send a smaller one.",
        )
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise OptionError(f"its data are not base64: {error}", _FORMS) from error
    if not data:
        raise OptionError("it has no data", _FORMS)
    return data


def _of_url(url: object) -> Given:
    """The bytes of a file in a data URL. Raises OptionError."""
    if not isinstance(url, str) or not url:
        raise OptionError("it has no data", _FORMS)
    if _WEB_URL.match(url):
        raise OptionError(
            f"it is at {url!r:.80}, and images are not downloaded",
            "Send the image's data instead.",
        )
    begin = _DATA_URL.match(url)
    if begin is None:
        raise OptionError(f"its address is {url!r:.60}, which is not supported", _FORMS)
    return of_base64(url[begin.end() :])


def noted(
    message: Message,
    note: str = PICTURE_NOTE,
    kept: Container[int] = (),
) -> dict[str, Any]:
    """The message with a note, in a line of its own, in place of pictures that are not kept.

    Args:
        message: The message.
        note: The note.
        kept: The numbers of the pictures that are kept.
    """
    first, *pieces = pieces_of(message)
    text = first
    shown = []
    pairs = zip(shown_in(message), pieces, strict=True)
    for number, (picture, following) in enumerate(pairs):
        if number in kept:
            shown.append(picture._replace(at=len(text)))
        else:
            if text:
                text += "\n"
            text += note
            if following:
                text += "\n"
        text += following
    return with_shown({**message, "content": text}, shown)


def pieces_of(message: Message) -> list[str]:
    """The texts around the pictures of a message: one more than there are pictures."""
    content = message["content"]
    positions = [picture.at for picture in shown_in(message)]
    cuts = [0, *positions, len(content)]
    return [content[begin:end] for begin, end in pairwise(cuts)]


def _which(number: int, given: Given) -> str:
    """The beginning of an error: names the image by its file, or else the message with it."""
    if isinstance(given, Picture) and given.name:
        return f"{given.name} is an image"
    return f"message {number} has an image in it"


def for_the_blind(messages: Sequence[Message]) -> list[Message]:
    """The messages with notes in place of pictures.

    Raises OptionError if the last message has a picture, unless a tool gave it.
    """
    noted_messages: list[Message] = []
    last = len(messages) - 1
    for number, message in enumerate(messages):
        pictures = shown_in(message)
        for picture in pictures:
            if number == last and not picture.is_result:
                raise OptionError(
                    f"{_which(last, picture.given)}, and the model has no projector to see it",
                    HOW_TO_SEE,
                )
        if pictures:
            message = noted(message)
        noted_messages.append(message)
    return noted_messages


def for_the_seeing(
    messages: Sequence[Message],
    vision: Vision,
) -> tuple[list[Message], list[Picture]]:
    """The messages with the tokens of their pictures, and these pictures in order.

    A note replaces each picture that cannot be read, and the oldest ones where there are more
    than MOST_PROMPT_PICTURES, or MOST_PROMPT_PIXELS. Raises OptionError where such a picture is
    in the last message, unless a tool gave it.
    """
    last = len(messages) - 1
    pictures: list[Picture] = []  # the last one first
    num_pixels = 0

    def decoded(given: Given, num_before: int) -> Picture:
        """A picture, up to a limit: small files may hold many pixels."""
        nonlocal num_pixels
        if len(pictures) + num_before >= MOST_PROMPT_PICTURES:
            raise OptionError(
                f"with it there are more than {MOST_PROMPT_PICTURES} images",
                "Send fewer.",
            )
        if num_pixels <= MOST_PROMPT_PIXELS:
            picture = Picture.read(given)
            num_pixels += picture.width * picture.height
        if num_pixels > MOST_PROMPT_PIXELS:
            raise OptionError(
                f"with it the images have more than {MOST_PROMPT_PIXELS} pixels together",
                "Send fewer, or smaller ones.",
            )
        vision.cells(picture)  # raises OptionError for a picture that is refused
        return picture

    def read(number: int, message: Message) -> Message:
        """The message with the tokens of the pictures that the model can take."""
        found: dict[int, Picture] = {}  # by number
        for index, shown in enumerate(shown_in(message)):
            try:
                found[index] = decoded(shown.given, len(found))
            except OptionError as error:
                if number == last and not shown.is_result:
                    raise OptionError(
                        f"{_which(number, shown.given)}: {error}",
                        error.hint,
                    ) from error
        if not shown_in(message):
            return message
        pictures.extend(reversed(found.values()))
        kept = noted(message, _LOST_NOTE, found)
        positions = [shown.at for shown in shown_in(kept)]
        tokens = map(vision.cells, found.values())
        return with_shown(kept, map(ShownTokens, positions, tokens))

    # The last messages first: the oldest pictures are left out.
    seen = [read(number, messages[number]) for number in range(last, -1, -1)]
    return seen[::-1], pictures[::-1]


def joined(messages: Sequence[Message], between: str) -> dict[str, Any]:
    """The content of several messages as one, with the pictures at their places in it."""
    shown: list[Shown] = []
    text = ""
    for number, message in enumerate(messages):
        if number > 0:
            text += between
        for picture in shown_in(message):
            shown.append(picture._replace(at=picture.at + len(text)))
        text += message["content"]
    return with_shown({"content": text}, shown)


def in_front(messages: Sequence[Message]) -> list[Message]:
    """The messages with all pictures before their texts."""
    changed: list[Message] = []
    for message in messages:
        pictures = [picture._replace(at=0) for picture in shown_in(message)]
        changed.append(with_shown(dict(message), pictures))
    return changed
