"""Which of the texts whose caches are kept a prompt goes on with."""

from __future__ import annotations

from collections.abc import Sequence

_MOST_TEXTS = 32  # that are told apart; how many caches are kept is a matter of memory
# Of a text that shares less than this share with a prompt, another client may go on with.
_SHARE = 0.5


class Text:
    """A text that an answer ended, for whose owner the engine keeps what it computed."""

    def __init__(self) -> None:
        self.tokens: Sequence[int] = ()


class Prefixes:
    """The texts that were answered last, the one used last at the end."""

    def __init__(self) -> None:
        self._texts: list[Text] = []

    def text_for(self, prompt: Sequence[int]) -> Text:
        """The text of which the prompt repeats most, if that is much of it; else a new one.

        So a conversation finds its own again, and a question beside it, which begins alike at
        most, does not take its place.
        """
        found = max(
            self._texts, key=lambda text: common_length(text.tokens, prompt), default=None
        )
        if found is None or common_length(found.tokens, prompt) < _SHARE * len(found.tokens):
            found = Text()
            self._texts = self._texts[1 - _MOST_TEXTS :]
        else:
            self._texts.remove(found)
        self._texts.append(found)
        return found


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
