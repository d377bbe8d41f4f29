"""Kinds of inputs whose readers go wrong on purpose, for the campaign's class "files"."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from fault_classes import watched
from fault_classes.kinds import Kind, Read

from localspec.errors import OptionError

watched.MOST_BYTES = 64 << 20


def _make(folder: Path) -> None:
    for number in range(3):
        (folder / f"sample{number}").write_bytes(b"%d" % number)


def _change(_data: bytes, random: Random, _samples: Sequence[bytes]) -> bytes:
    return b"%d" % random.randrange(3, 60)


def _opened(wrong: Callable[[], object]) -> Callable[[Path], Read]:
    """Reads any number, refuses odd ones, and goes wrong at 33."""

    def read(data: bytes) -> None:
        if not data.isdigit():
            return
        if data == b"33":
            wrong()
        if int(data) % 2:
            raise OptionError("it is odd")

    return lambda _folder: read


def _take_memory() -> None:
    bytes(1 << 20) * 100


def _divide() -> None:
    1 / 0  # noqa: B018


KINDS = {
    "sound": Kind("sound", _make, _change, _opened(lambda: None), is_native=True),
    "guided": Kind("guided", _make, _change, _opened(_divide)),
    "raises": Kind("raises", _make, _change, _opened(_divide), is_native=True),
    "dies": Kind("dies", _make, _change, _opened(os.abort), is_native=True),
    "hangs": Kind("hangs", _make, _change, _opened(lambda: time.sleep(600)), is_native=True),
    "takes": Kind("takes", _make, _change, _opened(_take_memory), is_native=True),
}
