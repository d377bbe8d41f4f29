"""Finds the text that a prompt continues, among those whose caches are kept."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.speculative.prefix import common_length

_MOST_TEXTS = 32  # that are remembered; how many caches are kept depends on the memory
# Tokens that a template writes at the end of a prompt, but not before an answer that is there.
_ASKING = 16


class AnsweredText:
    """A prompt and its answer; the owner of caches in the engine."""

    def __init__(self) -> None:
        self.tokens: Sequence[int] = ()
        self.num_asked = 0  # how many of them are the prompt
        # How many a prompt repeats that continues it; those behind may change.
        self.num_stable = 0

    def is_continued_by(self, prompt: Sequence[int]) -> bool:
        """Whether another prompt repeats all of this one, perhaps without its thoughts."""
        num_needed = max(self.num_stable - _ASKING, self.num_stable // 2)
        return common_length(self.tokens, prompt) >= num_needed


class AnsweredTexts:
    """The texts that were answered last, in the order of their last use."""

    def __init__(self) -> None:
        self._texts: list[AnsweredText] = []

    def text_for(self, prompt: Sequence[int]) -> AnsweredText:
        """The longest of the texts that the prompt continues, or a new one.

        So a conversation finds its own caches. A side question that only has the same
        beginning does not take their place.
        """
        candidates = [text for text in self._texts if text.is_continued_by(prompt)]
        if candidates:
            found = max(candidates, key=lambda text: common_length(text.tokens, prompt))
            self._texts.remove(found)
        else:
            found = AnsweredText()
            self._texts = self._texts[1 - _MOST_TEXTS :]
        self._texts.append(found)
        return found
