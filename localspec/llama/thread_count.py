"""How many threads libllama computes with: in the steps of an answer, and in prompts.

The functions take the llama_cpp module: `llama/library.py` is the one place that imports it.
"""

from __future__ import annotations

from typing import Any

from localspec.llama.handle import Handle
from localspec.llama.options import LlamaOptions

_LONGEST_STEP = 32  # tokens; a batch of more is a part of a prompt


class ThreadCount:
    """The threads of one context. Prompts keep the number that it was opened with.

    libllama tells a decode of one token from one of several. A step has either, and what they
    cost is held against each other: so they have the same number.
    """

    def __init__(self, lib: Any, handle: Handle) -> None:
        self._lib = lib
        self._handle = handle
        self.of_steps: int = lib.llama_n_threads(handle.context)
        self._of_prompts: int = lib.llama_n_threads_batch(handle.context)
        # As libllama has it; None while that is not known.
        self._set: tuple[int, int] | None = (self.of_steps, self._of_prompts)

    def use(self, count: int) -> None:
        """For steps from now on. Raises OptionError for a number outside its range."""
        LlamaOptions(num_threads=count)  # libllama ends the process where this raises
        self.of_steps = count

    def get_ready(self, num_tokens: int) -> None:
        """Set the threads of a decode of num_tokens; what an application has set stays."""
        if self._handle.owner is not None:
            return
        of_several = self.of_steps if num_tokens <= _LONGEST_STEP else self._of_prompts
        wanted = self.of_steps, of_several
        if self._set != wanted:
            self._set = None
            self._lib.llama_set_n_threads(self._handle.context, *wanted)
            self._set = wanted
