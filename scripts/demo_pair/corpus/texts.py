"""Wordings of the topics, which lie in texts/ as data."""

import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def texts(name: str) -> dict[str, Any]:
    """The wordings of a topic by their names, with tuples for arrays."""
    path = Path(__file__).parent / "texts" / f"{name}.toml"
    return {key: _fixed(value) for key, value in tomllib.loads(path.read_text("utf-8")).items()}


def _fixed(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_fixed(each) for each in value)
    if isinstance(value, dict):
        return {key: _fixed(each) for key, each in value.items()}
    return value
