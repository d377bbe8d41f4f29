"""Tools that run in another program: what they return is a stranger's text."""

from __future__ import annotations

import abc
from typing import NamedTuple


class ForeignResult(NamedTuple):
    """What a tool of another program has returned."""

    text: str
    """All of it in words."""

    pictures: tuple[str, ...] = ()
    """Data URLs of images, in their order."""

    is_error: bool = False
    """Whether the tool says that it has failed."""


class ForeignFunction(abc.ABC):
    """Calls a tool of another program, with the arguments by name."""

    server: str
    """The program's name, as the user's configuration has it."""

    tool: str
    """The tool's name there."""

    is_destructive: bool
    """Whether the program says that a call may destroy something."""

    is_allowed: bool
    """Whether the user has allowed its calls beforehand."""

    @abc.abstractmethod
    def __call__(self, /, **arguments: object) -> ForeignResult:
        """The result of a call. Raises LocalspecError where there is none."""

    def allow_always(self) -> None:
        """Keep that its calls are allowed, also in later conversations."""
        self.is_allowed = True
