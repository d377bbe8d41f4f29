"""The texts in nested lists and dicts, one by one, and others in their places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def texts_in(value: Any) -> Iterator[str]:
    """All of them in order, with the keys of dicts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield str(key)
            yield from texts_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from texts_in(each)


def with_texts(value: Any, texts: Iterator[str]) -> Any:
    """The value with other texts, as many as `texts_in` finds in it."""
    if isinstance(value, str):
        return next(texts)
    if isinstance(value, Mapping):
        return {next(texts): with_texts(each, texts) for each in value.values()}
    if isinstance(value, list | tuple):
        return [with_texts(each, texts) for each in value]
    return value
