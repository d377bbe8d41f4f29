"""Tools that run in another program, so that their results are foreign text."""

from __future__ import annotations

import abc
from typing import NamedTuple


class ForeignResult(NamedTuple):
    """The result of a tool of another program."""

    text: str
    """The whole result as text."""

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
        """The result of a call. Raises LocalspecError if there is none."""

    def allow_always(self) -> None:
        """Allow its calls, also in later conversations."""
        self.is_allowed = True
