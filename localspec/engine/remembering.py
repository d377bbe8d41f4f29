"""What an engine's lookups search besides their texts: references, and a memory of texts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from localspec.engine.memory_file import MemoryFile
from localspec.engine.remembered_files import RememberedFiles
from localspec.errors import OptionError
from localspec.speculative.lookup import LONGEST_MATCH, Lookup
from localspec.speculative.memory import TextMemory
from localspec.speculative.proposers import Proposer
from localspec.streaming.options import AnswerOptions
from localspec.streaming.prompt import Prompt
from localspec.vocabulary import TokenTable

if TYPE_CHECKING:
    from localspec.engine.base import BaseEngine

_UNSAVED_TOKENS = 2000  # that are left for a later answer to save


class Remembering:
    """The memory of the lookups among an engine's proposers, if there are any.

    memory: whether there is one; a name keeps it on disk. Raises OptionError for a bad name,
    CacheError for a damaged file.
    """

    def __init__(
        self, proposers: Sequence[Proposer], vocabulary: TokenTable, *, memory: bool | str
    ) -> None:
        self._lookups = [each for each in proposers if isinstance(each, Lookup)]
        self._memory: TextMemory | None = None
        self._file: MemoryFile | None = None
        self._files = RememberedFiles()
        if not isinstance(memory, bool):
            self._file = MemoryFile(memory, vocabulary)
        if self._lookups and memory is not False:
            self._memory = TextMemory()
            if self._file is not None:
                self._file.load(self._memory)
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

    def add_files(self, *paths: str | os.PathLike[str]) -> None:
        """Remember files and folders. Raises OptionError, and remembers none of them then."""
        self.add([])  # which refuses where there is no memory
        files = RememberedFiles()
        for path in paths:
            files.add(path)
        self._files.take(files)

    def refresh(self, tokenize: Callable[[str], list[int]]) -> None:
        """Remember what is new in the files."""
        if self._memory is not None:
            with self._memory.lock:
                for text in self._files.changed():
                    self._memory.add(tokenize(text))

    def save(self, *, is_last: bool = False) -> None:
        """Keep on disk what is new, once it is much, or is_last: with the present text."""
        if self._memory is None or self._file is None:
            return
        with self._memory.lock:
            for lookup in self._lookups if is_last else ():
                lookup.keep_text()
            self._file.save(self._memory, at_least=1 if is_last else _UNSAVED_TOKENS)

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
