"""What a model reads."""

from __future__ import annotations

from typing import NamedTuple

from localspec.streaming.thinking import Thoughts
from localspec.tools.calls import Calls


class Prompt(NamedTuple):
    """What a model reads. thoughts: what tells them from speech in the answer to it.

    By default, as for a text of the caller's own, all of the answer is speech. num_said: how
    many of the tokens are the answer's own already, which continues behind them. calls: which
    calls of tools the answer can have; None for none.
    """

    tokens: list[int]
    thoughts: Thoughts = Thoughts()
    num_said: int = 0
    calls: Calls | None = None
