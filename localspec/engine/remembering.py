"""What an engine's lookup searches besides the text: a reference, and a memory of texts."""

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
    """The lookup among an engine's proposers, if there is one, and its memory.

    memory: whether there is one; a name keeps it on disk. Raises OptionError for a bad name,
    CacheError for a damaged file.
    """

    def __init__(
        self, proposers: Sequence[Proposer], vocabulary: TokenTable, *, memory: bool | str
    ) -> None:
        self._lookup = next((each for each in proposers if isinstance(each, Lookup)), None)
        self._file: MemoryFile | None = None
        self._files = RememberedFiles()
        if not isinstance(memory, bool):
            self._file = MemoryFile(memory, vocabulary)
        if self._lookup is not None and memory is not False:
            self._lookup.memory = TextMemory()
            if self._file is not None:
                self._file.load(self._lookup.memory)

    def refer_to(self, reference: Sequence[int]) -> None:
        """Search these tokens as well; none drops the reference."""
        if self._lookup is not None:
            self._lookup.refer_to(reference)

    def add(self, tokens: Sequence[int]) -> None:
        """Remember a text. Raises OptionError where there is no memory."""
        if self._lookup is None or self._lookup.memory is None:
            raise OptionError(
                "this engine has no memory",
                "Load it with memory=True, and with the proposer 'auto' or 'lookup'.",
            )
        self._lookup.memory.add(tokens)

    def add_files(self, *paths: str | os.PathLike[str]) -> None:
        """Remember files and folders. Raises OptionError, and remembers none of them then."""
        self.add([])  # which refuses where there is no memory
        files = RememberedFiles()
        for path in paths:
            files.add(path)
        self._files.take(files)

    def refresh(self, tokenize: Callable[[str], list[int]]) -> None:
        """Remember what is new in the files."""
        if self._lookup is not None and self._lookup.memory is not None:
            for text in self._files.changed():
                self._lookup.memory.add(tokenize(text))

    def save(self, *, is_last: bool = False) -> None:
        """Keep on disk what is new, once it is much, or is_last: with the present text."""
        if self._lookup is None or self._lookup.memory is None or self._file is None:
            return
        if is_last:
            self._lookup.keep_text()
        self._file.save(self._lookup.memory, at_least=1 if is_last else _UNSAVED_TOKENS)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """In the block nothing is remembered, and nothing that was is proposed."""
        if (lookup := self._lookup) is None:
            yield
            return
        memory, lookup.memory = lookup.memory, None
        try:
            yield
        finally:
            lookup.memory = memory


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
