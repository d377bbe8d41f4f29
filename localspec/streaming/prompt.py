"""The prompt of an answer."""

from __future__ import annotations

from typing import NamedTuple

from localspec.pictures.picture import Picture
from localspec.streaming.thinking import Thoughts
from localspec.tools.grammar import Calls


class Prompt(NamedTuple):
    """The text that a model reads.

    thoughts: how to tell them from speech in the answer; by default all of it is speech.
    num_said: the last tokens that belong to the answer, which continues behind them. calls: the
    calls of tools that the answer can have; None for none. pictures: whose cells are among the
    tokens, in order. client: whose it is; it begins with no cached text of another's. ""
    where all are one's.
    """

    tokens: list[int]
    thoughts: Thoughts = Thoughts()
    num_said: int = 0
    calls: Calls | None = None
    pictures: tuple[Picture, ...] = ()
    client: str = ""
