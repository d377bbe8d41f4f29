"""What an engine's lookups search besides their texts: references, and a memory of texts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from localspec.errors import OptionError
from localspec.speculative.lookup import LONGEST_MATCH, Lookup, TextMemory
from localspec.speculative.proposers import Proposer
from localspec.streaming.options import AnswerOptions
from localspec.streaming.prompt import Prompt

if TYPE_CHECKING:
    from localspec.engine.base import BaseEngine


class Remembering:
    """The memory of the lookups among an engine's proposers, if there are any."""

    def __init__(self, proposers: Sequence[Proposer], *, has_memory: bool) -> None:
        self._lookups = [each for each in proposers if isinstance(each, Lookup)]
        self._memory = TextMemory() if self._lookups and has_memory else None
        self._use(self._memory)

    def _use(self, memory: TextMemory | None) -> None:
        for lookup in self._lookups:
            lookup.memory = memory

    def add(self, tokens: Sequence[int]) -> None:
        """Remember a text. Raises OptionError where there is no memory."""
        if self._memory is None:
            raise OptionError(
                "this engine has no memory",
                "Load it with memory=True, and with the proposer 'auto' or 'lookup'.",
            )
        self._memory.add(tokens)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """In the block nothing is remembered, and nothing that was is proposed."""
        self._use(None)
        try:
            yield
        finally:
            self._use(self._memory)


def reference_to(engine: BaseEngine, prompt: Prompt, options: AnswerOptions) -> list[int]:
    """The tokens of the prediction, for the lookup to propose from; none without one."""
    if options.prediction is None:
        return []
    if isinstance(options.prediction, str):
        prediction = engine.tokenize(options.prediction)
    else:
        prediction = engine._known_ids(options.prediction)
    # After the end of the prompt, so that the lookup finds its beginning.
    return [*prompt.tokens[-LONGEST_MATCH:], *prediction] if prediction else []
