"""Which text a prompt continues, of those whose caches are kept."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.speculative.prefix import common_length

_MOST_TEXTS = 32  # that are told apart; how many caches are kept is a matter of memory
# Tokens with which a template asks for an answer, and which it leaves out once there is one.
_ASKING = 16


class AnsweredText:
    """A prompt and its answer, for whose owner the engine keeps what it computed."""

    def __init__(self) -> None:
        self.tokens: Sequence[int] = ()
        self.num_asked = 0  # of these the prompt's

    def is_continued_by(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt repeats all of this one's; without its thoughts, perhaps."""
        num_needed = max(self.num_asked - _ASKING, self.num_asked // 2)
        return common_length(self.tokens, prompt) >= num_needed


class AnsweredTexts:
    """The texts that were answered last, the one used last at the end."""

    def __init__(self) -> None:
        self._texts: list[AnsweredText] = []

    def text_for(self, prompt: Sequence[int]) -> AnsweredText:
        """The longest of the texts that the prompt continues, or else a new one.

        So a conversation finds its own again, and a question beside it, which begins alike at
        most, does not take its place.
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
