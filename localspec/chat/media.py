"""Files that are not text: images, audio, videos and PDFs, known by their first bytes."""

from __future__ import annotations

import codecs
import contextlib
import mimetypes
import re
from pathlib import Path

from localspec.chat.text_file import MARKS, text_of
from localspec.errors import OptionError

HEAD_BYTES = 4096  # of a file: enough to know it by

_KINDS = {
    "image": ("an image", "Describe it, or give the text that stands in it."),
    "audio": ("an audio file", "Give what is said in it as text."),
    "video": ("a video", "Give what is said in it as text."),
    "application/pdf": ("a PDF", "Convert it to text first, with pdftotext, say."),
}
# Kind, format, and the beginning of such a file. The first match counts.
_SIGNATURES = [
    ("image", "PNG", rb"\x89PNG\r\n\x1a\n"),
    ("image", "JPEG", rb"\xff\xd8\xff"),
    ("image", "GIF", rb"GIF8[79]a"),
    ("image", "WebP", rb"RIFF....WEBP"),
    ("image", "BMP", rb"BM....\0\0\0\0"),
    ("image", "TIFF", rb"II\*\0|MM\0\*"),
    ("image", "ICO", rb"\0\0\x01\0"),
    ("image", "HEIC", rb"....ftyp(?:hei|hev|mif1|msf1)"),
    ("image", "AVIF", rb"....ftypavi[fs]"),
    ("audio", "WAV", rb"RIFF....WAVE"),
    ("audio", "AIFF", rb"FORM....AIF[FC]"),
    ("audio", "FLAC", rb"fLaC"),
    ("audio", "Ogg", rb"OggS"),
    ("audio", "MIDI", rb"MThd"),
    ("audio", "M4A", rb"....ftypM4[AB]"),
    ("audio", "AAC", rb"\xff[\xf0\xf1\xf8\xf9]"),
    ("audio", "MP3", rb"ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb]"),
    ("video", "AVI", rb"RIFF....AVI "),
    ("video", "MOV", rb"....(?:ftypqt|moov|mdat|wide)"),
    ("video", "MP4", rb"....ftyp"),
    ("video", "Matroska or WebM", rb"\x1aE\xdf\xa3"),
    ("video", "WMV", rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11"),
    ("video", "FLV", rb"FLV\x01"),
    ("video", "MPEG", rb"\0\0\x01[\xb3\xba]"),
]
_READABLE = ("PNG", "JPEG", "GIF", "WebP")
# Some are written in characters of text alone, so this is looked for in text, too.
_PDF = re.compile(rb"%PDF-\d")


def is_readable_picture(data: bytes) -> bool:
    """Whether a file that begins like this is a picture that `Picture.read` may read."""
    return any(
        kind == "image" and name in _READABLE and re.match(begin, data, re.DOTALL)
        for kind, name, begin in _SIGNATURES
    )


def refuse_media(path: Path, data: bytes) -> None:
    """Raise OptionError for a file that is an image, audio, a video or a PDF.

    data: its first HEAD_BYTES bytes, or more. A binary file with none of the known signatures
    is known by the ending of its name.
    """
    found = _kind(path, data[:HEAD_BYTES])
    if found is not None:
        kind, name = found
        what, hint = _KINDS[kind]
        shown = f"{what} ({name})" if name else what
        raise OptionError(f"{path.name} is {shown}; this model reads text", hint)


def _kind(path: Path, head: bytes) -> tuple[str, str] | None:
    """The kind of file and the name of its format, if it is one of those."""
    if _PDF.match(head):
        return "application/pdf", ""
    if head.startswith(MARKS) or _is_utf8(head):
        return None
    for kind, name, begin in _SIGNATURES:
        if re.match(begin, head, re.DOTALL):
            return kind, name
    with contextlib.suppress(ValueError):  # a video's ending may be a text's, too
        text_of(head)
        return None
    guessed = mimetypes.guess_type(path.name)[0] or ""
    for kind in (guessed, guessed.partition("/")[0]):
        if kind in _KINDS:
            return kind, "" if kind == guessed else path.suffix[1:].upper()
    return None


def _is_utf8(head: bytes) -> bool:
    """Whether it is UTF-8, of which the last character may be cut off."""
    try:
        return "\0" not in codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
