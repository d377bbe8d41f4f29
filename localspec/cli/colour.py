"""Whether what is printed has colours."""

from __future__ import annotations

import os


def use_colour() -> bool | None:
    """False with NO_COLOR or on a dumb terminal, else None.

    None leaves it to click: colour on a terminal, no colour elsewhere.
    """
    has_none = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return False if has_none else None
