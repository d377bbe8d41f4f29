"""Pictures that the process of an `IsolatedEngine` has been sent, by their digests."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from localspec.pictures.picture import KEPT_PICTURE_BYTES, Picture


class KeptPictures:
    """Those that were shown last, so that a conversation need not send its own each time."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Picture] = {}  # the oldest first
        self._changing = threading.Lock()  # each pipe has a thread

    def keep(self, pictures: Sequence[Picture]) -> tuple[Picture, ...]:
        """Keep them, and let older ones go where all of them are too much.

        Returns them: where one was here, what was, so that no pixels are in memory twice.
        """
        with self._changing:
            found = tuple(self._kept.setdefault(each.digest, each) for each in pictures)
            for each in found:  # they are the youngest now
                self._kept[each.digest] = self._kept.pop(each.digest)
            num_bytes = sum(len(each.rgb) for each in self._kept.values())
            while num_bytes > KEPT_PICTURE_BYTES:
                num_bytes -= len(self._kept.pop(next(iter(self._kept))).rgb)
            return found

    def named(self, digests: Sequence[bytes]) -> tuple[Picture, ...] | None:
        """The pictures with these digests; None if one is not there any more."""
        with self._changing:
            found = [self._kept.get(digest) for digest in digests]
        pictures = tuple(each for each in found if each is not None)
        if len(pictures) < len(found):
            return None
        self.keep(pictures)
        return pictures
