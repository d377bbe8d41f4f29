"""A picture as a model gets it: upright pixels; and the interface of a model that sees.

Files may come from strangers. So before a file is decoded its bytes, the size that it declares
and its format are checked. Pillow decodes it; Pillow is imported with the first picture.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from localspec.errors import OptionError

if TYPE_CHECKING:
    from PIL.Image import Image

    Bytes = bytes | bytearray | memoryview
    PictureSource: TypeAlias = "str | os.PathLike[str] | Bytes | Image | Picture"

MAX_PICTURE_BYTES = 32_000_000  # of a file
MAX_PICTURE_PIXELS = 50_000_000  # 150 MB of red, green and blue
MAX_PICTURE_SIDE = 32_767  # pixels; some encoders have only 16 bits for a side
# Bytes kept in memory for the next question: pixels, of one of the largest pictures or of many
# usual ones (those of the last question stay in any case); and rows that a model has read.
KEPT_PICTURE_BYTES = 3 * MAX_PICTURE_PIXELS
KEPT_ROW_BYTES = 1 << 26
_MOST_KNOWN = 256  # pictures whose cells are remembered; each has a few hundred
_BAND_PIXELS = 1 << 20  # pixels that are converted at a time
_UPRIGHT = 1  # EXIF's number of that orientation
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")  # in Pillow's words
_SUPPORTED = "PNG, JPEG, WebP and GIF are supported."
# Held while a picture is decoded: that takes up to a gigabyte, so only one is at a time.
_decoding = threading.Lock()


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture's pixels and their digest.

    Raises OptionError for a size that is out of range, or does not fit the bytes.
    """

    width: int
    """The width in pixels."""

    height: int
    """The height in pixels."""

    rgb: bytes = field(repr=False, compare=False)
    """Height · width · 3 bytes, row by row from the top."""

    name: str = field(default="", compare=False)
    """The name of the file that it was read from; empty without one."""

    digest: bytes = field(init=False)
    """SHA-256 of size and pixels. Pictures with the same digest are the same."""

    def __post_init__(self) -> None:
        _check_size("the picture", (self.width, self.height))
        num_bytes = self.width * self.height * 3
        has_pixels = isinstance(self.rgb, bytes) and len(self.rgb) == num_bytes
        if not has_pixels:
            given = "no bytes"
            if isinstance(self.rgb, bytes):
                given = f"{len(self.rgb)} bytes"
            raise OptionError(
                f"a picture of {self.width} by {self.height} pixels has {given}",
                f"Give {num_bytes}: red, green and blue of each pixel.",
            )
        hashed = hashlib.sha256(f"{self.width}x{self.height}:".encode())
        hashed.update(self.rgb)
        object.__setattr__(self, "digest", hashed.digest())

    @classmethod
    def read(cls, source: PictureSource, *, most_bytes: int = MAX_PICTURE_BYTES) -> Picture:
        """The picture in a file, in a file's bytes, or in an image of Pillow.

        A PNG, JPEG, WebP, or the first frame of a GIF. It is turned upright as EXIF says, and
        put on white if it is transparent. A `Picture` is returned unchanged.

        Args:
            source: The path of a file, its bytes, an image of Pillow, or a `Picture`.
            most_bytes: The most bytes that a file may have.

        Raises:
            OptionError: For other sources, for a file that is missing, damaged or too large,
                and for more pixels than MAX_PICTURE_PIXELS.
        """
        if isinstance(source, Picture):
            return source
        if isinstance(source, str | os.PathLike):
            path = Path(os.path.expanduser(source))
            return cls._decode(path.name, read_bytes(path, most_bytes), most_bytes)
        if isinstance(source, bytes | bytearray | memoryview):
            return cls._decode("", bytes(source), most_bytes)
        from PIL import Image

        if not isinstance(source, Image.Image):
            raise OptionError(
                f"the picture is {source!r:.80}",
                "Give a path, the bytes of a file, or an image of Pillow.",
            )
        _check_size("the picture", source.size)
        size, bands = _upright_bands("the picture", source)
        return cls(*size, b"".join(bands))

    @classmethod
    def _decode(cls, name: str, data: bytes, most_bytes: int) -> Picture:
        """The picture in a file's bytes. Raises OptionError as `read` does.

        Args:
            name: The name of the file; "" if the bytes do not come from one.
            data: The bytes.
            most_bytes: The most bytes that are allowed.
        """
        title = name or "the picture"  # in errors
        if len(data) > most_bytes:
            raise OptionError(
                f"{title} has {len(data)} bytes; the limit is {most_bytes}",
                "Save it smaller, or as JPEG.",
            )
        with _decoding:
            size, bands = _decoded_bands(title, data)
            return cls(*size, b"".join(bands), name)

    def png(self) -> bytes:
        """The bytes of a PNG file with exactly these pixels."""
        from PIL import Image

        buffer = BytesIO()
        image = Image.frombytes("RGB", (self.width, self.height), self.rgb)
        image.save(buffer, "PNG", compress_level=1)
        return buffer.getvalue()


def read_bytes(path: Path, most_bytes: int) -> bytes:
    """The bytes of a file, but at most most_bytes + 1: one too many shows that it is too large.

    Raises OptionError if the file cannot be read.
    """
    if not os.path.isfile(path):  # opening a pipe would wait for its other end
        raise OptionError(
            f"{path} does not exist, or is not a file",
            "Give the path of a file.",
        )
    try:
        with path.open("rb") as file:
            return file.read(most_bytes + 1)
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}", "Check it.") from error


def _check_size(name: str, size: tuple[int, int]) -> None:
    """Raise OptionError for a picture without pixels, or with too many.

    Args:
        name: What the error calls the picture.
        size: Width and height in pixels.
    """
    width, height = size
    are_whole = type(width) is int and type(height) is int
    if not are_whole or min(width, height) < 1:
        raise OptionError(f"{name} has {width!r} by {height!r} pixels", "Give one with pixels.")
    num_pixels = width * height
    if num_pixels > MAX_PICTURE_PIXELS or max(width, height) > MAX_PICTURE_SIDE:
        raise OptionError(
            f"{name} has {width} by {height} pixels; the limit is {MAX_PICTURE_PIXELS} "
            f"pixels, and {MAX_PICTURE_SIDE} on a side",
            "Make it smaller.",
        )


def _decoded_bands(name: str, data: bytes) -> tuple[tuple[int, int], list[bytes]]:
    """`_upright_bands` of the picture in a file's bytes.

    A function of its own, so that Pillow's image and its decoder are freed at its end. Raises
    OptionError for other formats, a damaged file, and too many pixels.

    Args:
        name: What errors call the picture.
        data: The bytes.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(BytesIO(data), formats=_FORMATS)
    except UnidentifiedImageError as error:
        raise OptionError(f"{name} is not a picture that can be read", _SUPPORTED) from error
    except Exception as error:  # Pillow raises many kinds for damaged files
        raise _damage_error(name, error) from error
    _check_size(name, image.size)
    return _upright_bands(name, image)


def _upright_bands(name: str, image: Image) -> tuple[tuple[int, int], list[bytes]]:
    """Turn an image upright, and convert it to red, green and blue.

    A large image takes hundreds of megabytes, and so does each copy. So it is converted in
    bands of some rows of pixels.

    Args:
        name: What errors call the picture.
        image: The image, whose size was checked.

    Returns:
        Its width and height, upright, and the bytes of each band, from the top.

    Raises:
        OptionError: If the image is damaged.
    """
    from PIL import ExifTags, ImageOps

    try:
        image.load()
        with contextlib.suppress(Exception):  # of damaged EXIF data
            if image.getexif().get(ExifTags.Base.Orientation, _UPRIGHT) != _UPRIGHT:
                image = ImageOps.exif_transpose(image)
        width, height = image.size
        num_rows = max(1, _BAND_PIXELS // width)
        bands = []
        for top in range(0, height, num_rows):
            bottom = min(top + num_rows, height)
            band = image.crop((0, top, width, bottom))
            bands.append(_on_white(band).tobytes())
    except Exception as error:
        raise _damage_error(name, error) from error
    return (width, height), bands


def _on_white(image: Image) -> Image:
    """The image in red, green and blue, on white where it is transparent."""
    from PIL import Image as Pillow

    if image.mode.startswith("I;16"):  # 16 bits of grey, of which Pillow would keep the lower 8
        image = image.convert("I").point(lambda value: value / 256).convert("L")
    if image.has_transparency_data:
        white = Pillow.new("RGBA", image.size, "white")
        white.alpha_composite(image.convert("RGBA"))
        image = white
    return image.convert("RGB")


def _damage_error(name: str, error: Exception) -> OptionError:
    """The error for a picture that Pillow cannot decode. error: Pillow's own."""
    reason = str(error) or type(error).__name__
    return OptionError(
        f"{name} cannot be read: {reason:.200}",
        "Save it again, as PNG or JPEG.",
    )


class Vision(Protocol):
    """A model's projector, in this process or another."""

    def cells(self, picture: Picture) -> list[int]:
        """The picture's tokens in a prompt, in order.

        Ids of the vocabulary for the text around and within it, and a negative number for each
        cell of the cache that the picture itself takes. The same picture gets the same numbers.
        """


class KnownCells:
    """A `Vision` that remembers the cells of the latest pictures.

    Each prompt of a conversation contains all its pictures again, and the conversation's own
    `Vision` may be in another process.

    Args:
        vision: Gives the cells of pictures that are not known.
    """

    def __init__(self, vision: Vision) -> None:
        self._vision = vision
        # By the digests of pictures, the least recently used first.
        self._known: dict[bytes, list[int]] = {}

    def cells(self, picture: Picture) -> list[int]:
        """The picture's tokens in a prompt, as `Vision.cells`."""
        cells = self._known.pop(picture.digest, None)
        if cells is None:
            cells = self._vision.cells(picture)
        self._known[picture.digest] = cells
        while len(self._known) > _MOST_KNOWN:
            oldest = next(iter(self._known))
            self._known.pop(oldest, None)
        return cells
