"""What decodes cost side by side, and whether a prompt or the texts that write are next."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from localspec.llama.joint_costs import ChunkTimes, RowTimes

if TYPE_CHECKING:
    from localspec.llama.handle import Handle

# For the first seconds of a prompt, other texts have one step between two of its pieces. After
# that they get as much time as the pieces. So a short prompt does not wait for long answers.
_HURRY_S = 5.0


class ContextTimes:
    """Times of one context's decodes."""

    def __init__(self) -> None:
        self.rows = RowTimes()
        self.chunks = ChunkTimes()
        self.step_s = 0.0
        """Seconds of the last step."""


class DecodeTimes:
    """Times of each context's decodes, and what prompts owe to the texts that write."""

    def __init__(self) -> None:
        self._times: weakref.WeakKeyDictionary[Handle, ContextTimes] = (
            weakref.WeakKeyDictionary()
        )
        self._owed_s = 0.0  # seconds of steps owed to texts that write, for the last piece
        self._read_in: Handle | None = None  # the context in which that piece was read
        self._is_short = True  # whether the prompt is: then one step in that context is enough

    def of(self, handle: Handle) -> ContextTimes:
        """The times of a context."""
        return self._times.setdefault(handle, ContextTimes())

    @property
    def may_read(self) -> bool:
        """Whether a piece of a prompt may be read while texts want to write."""
        return self._owed_s <= 0.0

    def read(self, handle: Handle, seconds: float, prompt_s: float) -> None:
        """Note a piece of a prompt. prompt_s: seconds that this prompt took so far."""
        self._owed_s = seconds
        self._read_in = handle
        self._is_short = prompt_s <= _HURRY_S

    def wrote(self, handle: Handle, seconds: float) -> None:
        """Note a step of the texts that write."""
        if self._is_short and handle is self._read_in:
            self._owed_s = 0.0
        else:
            self._owed_s = max(self._owed_s - seconds, 0.0)
