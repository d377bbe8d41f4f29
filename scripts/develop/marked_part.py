"""The part of a page that a script writes, between two marks."""

from __future__ import annotations


def with_part(page: str, begin: str, end: str, part: str) -> str:
    """The page with another part. Raises ValueError if it lacks a mark."""
    start = page.index(begin) + len(begin)
    return page[:start] + part + page[page.index(end, start) :]
