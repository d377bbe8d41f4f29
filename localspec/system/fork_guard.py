"""Keeps a fork of a process from using objects that work in the original process only."""

from __future__ import annotations

import os

from localspec.errors import ForkedError


class OwnProcess:
    """Remembers the process in which it was made."""

    def __init__(self) -> None:
        self._number = os.getpid()

    def is_this(self) -> bool:
        """Whether the running process is the remembered one, and not a fork of it."""
        return os.getpid() == self._number

    def require(self, name: str) -> None:
        """Raise ForkedError in a fork, which has the memory but none of the threads.

        Args:
            name: What the error says was loaded by the other process.
        """
        if not self.is_this():
            raise ForkedError(
                f"{name} was loaded by process {self._number} and cannot be used in its "
                f"fork {os.getpid()}",
                "Load it in the new process, and start that process with spawn.",
            )
