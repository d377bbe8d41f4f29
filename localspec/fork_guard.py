"""What belongs to the process that made it, and is no use to one forked from that."""

from __future__ import annotations

import os

from localspec.errors import ForkedError


class OwnProcess:
    """Remembers the process it is made in."""

    def __init__(self) -> None:
        self._number = os.getpid()

    def is_this(self) -> bool:
        return os.getpid() == self._number

    def require(self, name: str) -> None:
        """Raise ForkedError in a forked process: it has the memory, but none of the threads."""
        if not self.is_this():
            raise ForkedError(
                f"{name} was loaded by process {self._number} and cannot be used in its "
                f"fork {os.getpid()}",
                "Load it in the new process, and start that by spawn.",
            )
