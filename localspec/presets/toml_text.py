"""Reads TOML, and writes TOML strings."""

from __future__ import annotations

import json
import sys
from typing import Any

from localspec.errors import OptionError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of the text. Raises ValueError, or RecursionError if nested too deeply."""
    return tomllib.loads(text)


def quoted(text: str) -> str:
    """A TOML string; JSON has the same escapes, except for DEL.

    Raises OptionError for text that is not valid Unicode, as a file's name may be.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise OptionError(
            f"{text!r} is not valid Unicode, which a file of presets has to be",
            "Give the file or its folder a name of ordinary characters.",
        ) from None
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
