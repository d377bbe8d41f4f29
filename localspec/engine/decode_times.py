"""How long decodes take, and whether a prompt is read next or answers are written."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from localspec.llama.joint_costs import ChunkTimes, RowTimes

if TYPE_CHECKING:
    from localspec.llama.handle import Handle

# During the first seconds of reading a prompt, answers in other lanes have one step between two
# chunks of it. After that they get as much time as the chunks take. So a short prompt is read
# soon, and a long one does not halt the answers.
_SHORT_PROMPT_S = 5.0


class ContextTimes:
    """How long the decodes of one context take."""

    def __init__(self) -> None:
        self.rows = RowTimes()
        """Of steps, by their number of rows."""

        self.chunks = ChunkTimes()
        """Of chunks of prompts, by their number of tokens."""

        self.step_s = 0.0
        """Seconds of the last step."""


class DecodeTimes:
    """Times of each context's decodes, and the time that prompts owe to running answers."""

    def __init__(self) -> None:
        self._times: weakref.WeakKeyDictionary[Handle, ContextTimes] = (
            weakref.WeakKeyDictionary()
        )
        # What the last chunk of a prompt owes to answers in other lanes: seconds of steps.
        self._owed_s = 0.0
        self._chunk_handle: Handle | None = None  # the context in which the chunk was read
        self._is_short_prompt = True  # then one step in that context pays the debt

    def of(self, handle: Handle) -> ContextTimes:
        """The times of a context."""
        return self._times.setdefault(handle, ContextTimes())

    @property
    def may_prefill(self) -> bool:
        """Whether a chunk of a prompt may be read now, although answers want a step."""
        return self._owed_s <= 0.0

    def note_chunk(self, handle: Handle, seconds: float, prompt_s: float) -> None:
        """Note that a chunk of a prompt was read: answers are now owed steps of that time.

        Args:
            handle: The context in which it was read.
            seconds: How long it took.
            prompt_s: Seconds that this prompt took so far.
        """
        self._owed_s = seconds
        self._chunk_handle = handle
        self._is_short_prompt = prompt_s <= _SHORT_PROMPT_S

    def note_step(self, handle: Handle, seconds: float) -> None:
        """Note a step of answers in a context: it pays its seconds of what answers are owed.

        In the context of a short prompt's chunk it pays all.
        """
        if self._is_short_prompt and handle is self._chunk_handle:
            self._owed_s = 0.0
        else:
            self._owed_s = max(self._owed_s - seconds, 0.0)
