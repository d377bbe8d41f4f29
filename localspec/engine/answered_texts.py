"""The texts that were answered last. A prompt of any client may continue one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from localspec.speculative.prefix import common_length
from localspec.streaming.reply import Piece

_MOST_TEXTS = 32  # remembered at once; how many caches are kept depends on the memory
# Tokens that a template writes at the end of a prompt, but not before an earlier answer.
_ASKING = 16


class AnsweredText:
    """A prompt and its answer; the owner of caches.

    Args:
        scope: The scope of its caches.
    """

    def __init__(self, scope: Hashable) -> None:
        self.scope = scope

        self.is_in_use = False
        """Whether it is being answered. Its tokens are not known until the answer ends."""

        self.tokens: list[int] = []
        """The prompt; with the answer's tokens once the answer is over."""

        self.num_stable = 0
        """Length of the beginning that a prompt repeats if it continues the text."""

    def mark_in_use(self, prompt: Sequence[int], num_stable: int | None) -> None:
        """Note that the prompt is being answered. num_stable: None for the whole prompt."""
        self.is_in_use = True
        # Set now, for an answer that ends early: if the client asks again, this much is cached.
        self.tokens = list(prompt)
        if num_stable is None:
            num_stable = len(prompt)
        self.num_stable = num_stable

    def end(self, read: Sequence[Piece]) -> None:
        """Add the pieces of the answer that were read; the text is free again."""
        for piece in read:
            self.tokens += piece.token_ids
        self.is_in_use = False


class AnsweredTexts:
    """The texts in the order of their last use."""

    def __init__(self) -> None:
        self._texts: list[AnsweredText] = []

    def text_for(
        self,
        prompt: Sequence[int],
        scope: Hashable,
        num_stable: int | None,
    ) -> AnsweredText:
        """The scope's longest text that the prompt continues, or a new one; marked as in use.

        So a conversation finds its own caches. A side question with the same beginning does not
        take them, nor does the same question when it is asked again in the meantime.
        """
        text = self._continued_by(prompt, scope)
        if text is None:
            text = AnsweredText(scope)
            self._texts = self._texts[1 - _MOST_TEXTS :]
        else:
            self._texts.remove(text)
        self._texts.append(text)
        text.mark_in_use(prompt, num_stable)
        return text

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
