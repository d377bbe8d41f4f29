"""Files that are dropped on a terminal: it types their paths."""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from localspec.chat.media import HEAD_BYTES, refuse_media


def refuse_dropped_media(text: str) -> None:
    """Raise OptionError for a message that is nothing but paths of files, if one is an image,
    audio, a video or a PDF."""
    for path in _dropped_files(text):
        with contextlib.suppress(OSError), path.open("rb") as file:
            refuse_media(path, file.read(HEAD_BYTES))


def _dropped_files(text: str) -> list[Path]:
    """The files whose paths are all of the text: in quotes, escaped, as they are, or URLs."""
    if "\n" in text:
        return []
    ways = [[text.strip()]]
    with contextlib.suppress(ValueError):  # an apostrophe of prose
        ways.append(shlex.split(text))
    for words in ways:
        paths = [_path(word) for word in words]
        if all(map(os.path.isfile, paths)):
            return list(map(Path, paths))
    return []


def _path(word: str) -> str:
    if word.startswith("file://"):
        return url2pathname(urlsplit(word).path)
    return os.path.expanduser(word)
