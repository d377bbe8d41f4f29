"""Finds the text that a prompt continues, among those whose caches are kept."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from localspec.speculative.prefix import common_length

_MOST_TEXTS = 32  # that are remembered; how many caches are kept depends on the memory
# Tokens that a template writes at the end of a prompt, but not before an answer that is there.
_ASKING = 16


class AnsweredText:
    """A prompt and its answer; the owner of caches in the engine.

    client: as `Prompt` has it. is_in_use: whether it is being answered. Only who answers it
    knows what it has by then.
    """

    def __init__(self, client: str = "") -> None:
        self.client = client
        self.is_in_use = False
        self.tokens: Sequence[int] = ()
        self.num_asked = 0  # how many of them are the prompt
        # How many a prompt repeats that continues it; those behind may change.
        self.num_stable = 0

    def is_continued_by(self, prompt: Sequence[int]) -> bool:
        """Whether another prompt repeats all of this one, perhaps without its thoughts."""
        num_needed = max(self.num_stable - _ASKING, self.num_stable // 2)
        return common_length(self.tokens, prompt) >= num_needed


class AnsweredTexts:
    """The texts that were answered last, in the order of their last use. From any thread."""

    def __init__(self) -> None:
        self._choosing = threading.Lock()  # held while a prompt gets its text
        self._texts: list[AnsweredText] = []

    def text_for(self, prompt: Sequence[int], client: str = "") -> AnsweredText:
        """The client's longest text that the prompt continues, or a new one; it is in use.

        So a conversation finds its own caches. A side question that only has the same
        beginning does not take their place, nor does one that is asked again at the same time.
        """
        with self._choosing:
            own = [text for text in self._texts if text.client == client]
            unused = [text for text in own if not text.is_in_use]
            candidates = [text for text in unused if text.is_continued_by(prompt)]
            if candidates:
                found = max(candidates, key=lambda text: common_length(text.tokens, prompt))
                self._texts.remove(found)
            else:
                found = AnsweredText(client)
                self._texts = self._texts[1 - _MOST_TEXTS :]
            self._texts.append(found)
            found.is_in_use = True
            return found
