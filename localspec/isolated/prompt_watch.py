"""Bounds for the making of prompts and grammars, from outside the process that makes them.

A chat template or a grammar can be a stranger's. One call of Jinja or llguidance may hold the
interpreter's lock, so the process cannot stop itself. On a busy machine even a simple prompt
may take long, so the processor's time counts.
"""

from __future__ import annotations

import time
from multiprocessing.process import BaseProcess

from localspec.isolated.process_messages import PromptSign
from localspec.system.machine import memory_of_process, processor_time_of_process

MOST_PROMPT_S = 10.0  # without progress, both by the clock and of the processor's time
MOST_PROMPT_BYTES = 2 << 30  # memory of the process in addition to that before the prompt


class PromptWatch:
    """Watches the time and the memory that a process takes to make a prompt.

    Args:
        process: the process that makes the prompts.
    """

    def __init__(self, process: BaseProcess) -> None:
        self._process = process

        self.is_at_work = False
        """Whether a prompt is being made."""

        self.number = 0
        """The number of the answer whose prompt is being made, or was made last."""

        self.excess = ""
        """Why the process was ended, in words; "" if it was not."""

        self._since_s = 0.0
        self._processor_s_before = 0.0
        self._bytes_before = 0

    def note(self, message: PromptSign) -> None:
        """Take a message about the making of a prompt."""
        is_new = not self.is_at_work
        self.is_at_work = not message.is_done
        self.number = message.number
        self._since_s = time.monotonic()
        self._processor_s_before = self._processor_s()
        if is_new and self.is_at_work:
            self._bytes_before = self._memory_bytes()

    def is_too_much(self) -> bool:
        """Whether making the prompt takes too long, or too much memory. Sets `excess`."""
        if not self.is_at_work:
            return False
        if self._is_late():
            self.excess = f"making a prompt or its grammar took over {MOST_PROMPT_S:.0f} s"
        elif self._memory_bytes() - self._bytes_before > MOST_PROMPT_BYTES:
            limit = f"{MOST_PROMPT_BYTES >> 30} GiB"
            self.excess = f"making a prompt or its grammar took over {limit} of memory"
        return bool(self.excess)

    def _is_late(self) -> bool:
        if time.monotonic() - self._since_s <= MOST_PROMPT_S:
            return False
        return self._processor_s() - self._processor_s_before > MOST_PROMPT_S

    def _processor_s(self) -> float:
        number = self._process.pid
        if number is None:
            return 0.0
        return processor_time_of_process(number)

    def _memory_bytes(self) -> int:
        number = self._process.pid
        if number is None:
            return 0
        return memory_of_process(number)
