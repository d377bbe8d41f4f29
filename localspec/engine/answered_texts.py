"""The texts that were answered last. A prompt of any client may continue one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from localspec.speculative.prefix import common_length
from localspec.streaming.reply import Piece

_MOST_TEXTS = 32  # that are remembered; how many caches are kept depends on the memory
# Tokens that a template writes at the end of a prompt, but not before an answer that is there.
_ASKING = 16


class AnsweredText:
    """A prompt and its answer; the owner of caches.

    Args:
        scope: of its caches.
    """

    def __init__(self, scope: Hashable) -> None:
        self.scope = scope

        self.is_in_use = False
        """Whether it is being answered: until that ends its tokens are not known."""

        self.tokens: list[int] = []
        """The prompt, and once the answer is over its tokens."""

        self.num_stable = 0
        """The first tokens, which a prompt repeats that continues the text."""

    def mark_in_use(self, prompt: Sequence[int], num_stable: int | None) -> None:
        """Start an answer to the prompt. num_stable: None where all of it stays."""
        self.is_in_use = True
        # Now, for an answer that ends early: if the client asks again, this much is cached.
        self.tokens = list(prompt)
        self.num_stable = len(prompt) if num_stable is None else num_stable

    def end(self, read: Sequence[Piece]) -> None:
        """Add the answer, of which these pieces were read."""
        for piece in read:
            self.tokens += piece.token_ids
        self.is_in_use = False


class AnsweredTexts:
    """The texts in the order of their last use."""

    def __init__(self) -> None:
        self._texts: list[AnsweredText] = []

    def text_for(
        self, prompt: Sequence[int], scope: Hashable, num_stable: int | None
    ) -> AnsweredText:
        """The scope's longest text that the prompt continues, or a new one; it is in use.

        So a conversation finds its own caches, which neither a side question with the same
        beginning takes, nor the same question when it is asked again meanwhile.
        """
        found = self._continued_by(prompt, scope)
        if found is None:
            found = AnsweredText(scope)
            self._texts = self._texts[1 - _MOST_TEXTS :]
        else:
            self._texts.remove(found)
        self._texts.append(found)
        found.mark_in_use(prompt, num_stable)
        return found

    def _continued_by(self, prompt: Sequence[int], scope: Hashable) -> AnsweredText | None:
        longest: AnsweredText | None = None
        longest_length = 0
        for text in self._texts:
            if text.scope != scope or text.is_in_use:
                continue
            length = common_length(text.tokens, prompt)
            # A prompt repeats all of a text that it continues, perhaps without its thoughts.
            least = max(text.num_stable - _ASKING, text.num_stable // 2)
            if length >= least and length > longest_length:
                longest = text
                longest_length = length
        return longest
