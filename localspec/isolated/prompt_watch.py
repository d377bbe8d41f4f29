"""Limits for the making of prompts and grammars, from outside the process that makes them.

A chat template or a grammar can come from a stranger. One call of Jinja or llguidance may hold
the interpreter's lock, so the process cannot stop itself. On a busy machine even a simple
prompt may take long, so the processor time of the process counts as well.
"""

from __future__ import annotations

import time
from multiprocessing.process import BaseProcess

from localspec.isolated.process_messages import PromptReport
from localspec.system.machine import memory_of_process, processor_time_of_process

MOST_PROMPT_S = 10.0  # without progress; both by the clock and of processor time
MOST_PROMPT_BYTES = 2 << 30  # of memory, in addition to what the process had before the prompt


class PromptWatch:
    """Watches the time and the memory that a process takes to make a prompt.

    Args:
        process: The process that makes the prompts.
    """

    def __init__(self, process: BaseProcess) -> None:
        self._process = process

        self.is_at_work = False
        """Whether a prompt is being made."""

        self.number = 0
        """The number of the answer whose prompt is being made, or was made last."""

        self.excess = ""
        """Which limit was exceeded, in words; empty if none was."""

        # At the last report:
        self._clock_s_before = 0.0
        self._processor_s_before = 0.0

        self._bytes_before = 0  # the process's memory when the prompt was begun

    def note(self, report: PromptReport) -> None:
        """Note a report: the making of a prompt begins, makes progress, or has ended."""
        is_begun = not self.is_at_work and not report.is_done
        self.is_at_work = not report.is_done
        self.number = report.number
        self._clock_s_before = time.monotonic()
        self._processor_s_before = self._processor_s()
        if is_begun:
            self._bytes_before = self._memory_bytes()

    def exceeds_limit(self) -> bool:
        """Whether making the prompt takes too long, or too much memory. Sets `excess`."""
        if not self.is_at_work:
            return False
        if self._takes_too_long():
            self.excess = f"making a prompt or its grammar took over {MOST_PROMPT_S:.0f} s"
        elif self._memory_bytes() - self._bytes_before > MOST_PROMPT_BYTES:
            limit = f"{MOST_PROMPT_BYTES >> 30} GiB"
            self.excess = f"making a prompt or its grammar took over {limit} of memory"
        return bool(self.excess)

    def _takes_too_long(self) -> bool:
        """Whether the time since the last report is too long, by both measures."""
        if time.monotonic() - self._clock_s_before <= MOST_PROMPT_S:
            return False
        return self._processor_s() - self._processor_s_before > MOST_PROMPT_S

    def _processor_s(self) -> float:
        """Seconds of processor time that the process has taken; 0 if it was not started."""
        process_id = self._process.pid
        if process_id is None:
            return 0.0
        return processor_time_of_process(process_id)

    def _memory_bytes(self) -> int:
        """Bytes of memory that the process takes; 0 if it was not started."""
        process_id = self._process.pid
        if process_id is None:
            return 0
        return memory_of_process(process_id)
