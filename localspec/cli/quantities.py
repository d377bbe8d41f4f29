"""Sizes, times and counts as people read them."""

from __future__ import annotations

import re

from localspec.cli.flags import Parsed

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt]?)b?", re.IGNORECASE)


def counted(number: int, noun: str) -> str:
    """1 round, 2 rounds."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def readable_bytes(num_bytes: int | None) -> str:
    """A size in decimal units: 4.7 GB."""
    if num_bytes is None:
        return "unknown"
    size, units = float(num_bytes), ["B", "kB", "MB", "GB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        units.pop(0)
    return f"{size:.1f} {units[0]}" if units[0] != "B" else f"{num_bytes} B"


def pays_from(acceptance: float) -> str:
    """From which acceptance drafting pays, 0 to 1, as the end of a sentence."""
    if acceptance < 0.005:
        return "pays whatever is accepted"
    return f"pays if at least {acceptance:.0%} of its tokens are accepted"


def _num_bytes(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(text)
    return int(float(found[1]) * 1000 ** " kmgt".index(found[2].lower() or " "))


SIZE = Parsed(_num_bytes, "is no size; give one like 8GB, 500MB or 0")


def clock_time(seconds: float) -> str:
    """Minutes and seconds, with hours if there are any: 0:07, 12:30, 1:00:05."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def duration(seconds: float) -> str:
    """For sentences: 40 s, 12 minutes, 3.5 hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
