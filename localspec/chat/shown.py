"""Pictures in messages: reading them from what clients send, and their places in the text.

A message has its pictures under "pictures", as `Shown`, each with its position in the content.
For a model that sees, they become `ShownTokens`; for one that does not see, notes in the text.
"""

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

# Replaces a picture in a prompt for a model that does not see.
PICTURE_NOTE = "[An image was here, which this model cannot see.]"
_LOST_NOTE = "[An image was here, which cannot be read.]"
HOW_TO_SEE = (
    "Load it with one (mmproj=…), choose a model that sees images, or leave the image out."
)
MOST_PROMPT_PICTURES = 256
MOST_PROMPT_PIXELS = 4 * MAX_PICTURE_PIXELS  # of all pictures together: 600 MB
_DATA_URL = re.compile(r"data:(?P<kind>[\w.+/-]*)(?:;[\w.=+-]+)*?;base64,", re.IGNORECASE)
_WEB_URL = re.compile(r"https?://", re.IGNORECASE)
_FORMS = 'Give {"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}.'


# A picture as a client sends it: decoded, or the bytes of a file, which are decoded when the
# prompt is made.
PictureData = Picture | bytes


class Shown(NamedTuple):
    """A picture in a message."""

    at: int
    """Its position: the number of characters of the content before it."""

    given: PictureData
    """The picture, as the client has sent it."""

    is_result: bool = False
    """Whether it is in the result of a tool. If the model cannot see such a picture, a note
    replaces it; there is no error."""


class ShownTokens(NamedTuple):
    """A picture in a message for a model that sees."""

    at: int
    """As `Shown.at`."""

    tokens: Sequence[int]
    """Its tokens, negative numbers: see `Vision.cells`."""


def shown_in(message: Message) -> Sequence[Any]:
    """The pictures of a message, in order: each a `Shown`, or each a `ShownTokens`."""
    shown: Sequence[Any] = message.get("pictures", ())
    return shown


def with_shown(message: dict[str, Any], shown: Iterable[NamedTuple]) -> dict[str, Any]:
    """A copy of the message with these pictures instead of its own."""
    changed = dict(message)
    changed.pop("pictures", None)
    pictures = tuple(shown)
    if pictures:
        changed["pictures"] = pictures
    return changed


def attached_pictures(images: Iterable[PictureSource]) -> list[Shown]:
    """Read pictures that stand before a text. Raises OptionError for anything else."""
    if isinstance(images, str | bytes | os.PathLike) or not isinstance(images, Iterable):
        raise OptionError(f"images is {images!r:.80}", "Give a list of pictures.")
    sources = at_most(MOST_PROMPT_PICTURES, images, "pictures")
    return [Shown(0, Picture.read(source)) for source in sources]


def picture_in(part: Mapping[str, Any]) -> PictureData:
    """The picture in a part of a message's content. Raises OptionError if there is none.

    Args:
        part: OpenAI's image_url or input_image, Anthropic's image with a source, or a dict with
            an image: a `Picture`, a path of pathlib, the bytes of a file, a Pillow image or a
            data URL.
    """
    source = part.get("source")
    if isinstance(source, Mapping):  # Anthropic's
        if source.get("type") == "url":
            return _from_url(source.get("url"))
        return of_base64(source.get("data"))
    image = part.get("image")
    if isinstance(image, bytes | bytearray):
        return bytes(image)
    if image is not None and not isinstance(image, str):
        return Picture.read(image)
    url = part.get("image_url", image)
    if isinstance(url, Mapping):
        url = url.get("url")
    return _from_url(url)


def of_base64(text: object) -> bytes:
    """Decode a file in base64. Raises OptionError if it is too long, empty or not base64."""
    if not isinstance(text, str) or not text:
        raise OptionError("it has no data", _FORMS)
    if len(text) > MAX_PICTURE_BYTES * 3 // 2:  # 4/3 is base64; the rest is for line breaks
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


def _from_url(url: object) -> PictureData:
    """Decode the file in a data URL. Raises OptionError for anything else."""
    if not isinstance(url, str) or not url:
        raise OptionError("it has no data", _FORMS)
    if _WEB_URL.match(url):
        raise OptionError(
            f"it is at {url!r:.80}, and images are not downloaded",
            "Send the image's data instead.",
        )
    head = _DATA_URL.match(url)
    if head is None:
        raise OptionError(f"its address is {url!r:.60}, which is not supported", _FORMS)
    return of_base64(url[head.end() :])


def with_notes(
    message: Message,
    note: str = PICTURE_NOTE,
    kept: Container[int] = (),
) -> dict[str, Any]:
    """The message with a note in place of each picture that is not kept.

    Args:
        message: The message.
        note: The note, which gets a line of its own.
        kept: The indexes of the pictures that are kept.
    """
    first_piece, *other_pieces = pieces_of(message)
    text = first_piece
    kept_pictures = []
    pairs = zip(shown_in(message), other_pieces, strict=True)
    for index, (picture, piece_after) in enumerate(pairs):
        if index in kept:
            kept_pictures.append(picture._replace(at=len(text)))
        else:
            if text:
                text += "\n"
            text += note
            if piece_after:
                text += "\n"
        text += piece_after
    return with_shown({**message, "content": text}, kept_pictures)


def pieces_of(message: Message) -> list[str]:
    """The content of a message, cut at its pictures: one piece more than there are pictures."""
    content = message["content"]
    positions = [picture.at for picture in shown_in(message)]
    cuts = [0, *positions, len(content)]
    return [content[begin:end] for begin, end in pairwise(cuts)]


def _image_named(number: int, data: PictureData) -> str:
    """The beginning of an error about an image: its file's name, or its message's number."""
    if isinstance(data, Picture) and data.name:
        return f"{data.name} is an image"
    return f"message {number} has an image in it"


def for_the_blind(messages: Sequence[Message]) -> list[Message]:
    """The messages for a model that does not see: with notes in place of pictures.

    Raises OptionError if the last message has a picture that is not in the result of a tool.
    """
    noted_messages: list[Message] = []
    last = len(messages) - 1
    for number, message in enumerate(messages):
        pictures = shown_in(message)
        for picture in pictures:
            if number == last and not picture.is_result:
                raise OptionError(
                    f"{_image_named(last, picture.given)}, and the model has no projector to "
                    "see it",
                    HOW_TO_SEE,
                )
        if pictures:
            message = with_notes(message)
        noted_messages.append(message)
    return noted_messages


def for_the_seeing(
    messages: Sequence[Message],
    vision: Vision,
) -> tuple[list[Message], list[Picture]]:
    """The messages for a model that sees: with the tokens of their pictures.

    Returns these pictures, too, in order. A note replaces a picture that cannot be read. If
    there are more than MOST_PROMPT_PICTURES pictures or MOST_PROMPT_PIXELS pixels, notes
    replace the oldest pictures. Raises OptionError if the last message has a picture that had
    to be replaced and is not in the result of a tool.

    Args:
        messages: The messages, with pictures as `Shown`.
        vision: Makes the tokens.
    """
    last = len(messages) - 1
    pictures: list[Picture] = []  # of the messages read so far, the last picture first
    num_pixels = 0

    def decode(data: PictureData, num_in_message: int) -> Picture:
        """The decoded picture. Raises OptionError beyond a limit, or if it cannot be read.

        Args:
            data: The picture.
            num_in_message: The pictures of its message that were decoded before it.
        """
        nonlocal num_pixels
        if len(pictures) + num_in_message >= MOST_PROMPT_PICTURES:
            raise OptionError(
                f"with it there are more than {MOST_PROMPT_PICTURES} images",
                "Send fewer.",
            )
        if num_pixels <= MOST_PROMPT_PIXELS:  # beyond it no other picture is decoded
            picture = Picture.read(data)
            num_pixels += picture.width * picture.height
        if num_pixels > MOST_PROMPT_PIXELS:
            raise OptionError(
                f"with it the images have more than {MOST_PROMPT_PIXELS} pixels together",
                "Send fewer, or smaller ones.",
            )
        vision.cells(picture)  # raises OptionError for a picture that the model cannot take
        return picture

    def with_tokens(number: int, message: Message) -> Message:
        """The message with the tokens of its pictures, and notes in place of the others."""
        if not shown_in(message):
            return message
        decoded_pictures: dict[int, Picture] = {}  # by their index in the message
        for index, shown in enumerate(shown_in(message)):
            try:
                decoded_pictures[index] = decode(shown.given, len(decoded_pictures))
            except OptionError as error:
                if number == last and not shown.is_result:
                    raise OptionError(
                        f"{_image_named(number, shown.given)}: {error}",
                        error.hint,
                    ) from error
        pictures.extend(reversed(decoded_pictures.values()))
        noted_message = with_notes(message, _LOST_NOTE, decoded_pictures)
        positions = [shown.at for shown in shown_in(noted_message)]
        tokens = map(vision.cells, decoded_pictures.values())
        return with_shown(noted_message, map(ShownTokens, positions, tokens))

    # The last messages first, so that the oldest pictures are left out.
    seen = [with_tokens(number, messages[number]) for number in range(last, -1, -1)]
    return seen[::-1], pictures[::-1]


def joined_content(messages: Sequence[Message], separator: str) -> dict[str, Any]:
    """The keys "content" and "pictures" of one message with the contents of several.

    Args:
        messages: The messages, of which only content and pictures count.
        separator: The text between two contents.
    """
    pictures: list[Shown] = []
    text = ""
    for index, message in enumerate(messages):
        if index > 0:
            text += separator
        for picture in shown_in(message):
            position = len(text) + picture.at
            pictures.append(picture._replace(at=position))
        text += message["content"]
    return with_shown({"content": text}, pictures)


def in_front(messages: Sequence[Message]) -> list[Message]:
    """The messages with all pictures moved before the texts of their messages."""
    changed: list[Message] = []
    for message in messages:
        pictures = [picture._replace(at=0) for picture in shown_in(message)]
        changed.append(with_shown(dict(message), pictures))
    return changed
