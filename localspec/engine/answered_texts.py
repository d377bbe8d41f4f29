"""The texts that were answered last. A prompt of any client may continue one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from localspec.speculative.prefix import common_length
from localspec.streaming.reply import Piece

_MOST_TEXTS = 32  # remembered at once; how many caches are kept depends on the memory
# The most tokens that a template writes at the end of a prompt to open the answer, but leaves
# out once that answer is an earlier one.
_OPENING_TOKENS = 16


class AnsweredText:
    """A prompt and its answer. It owns cached text where no conversation is known.

    Args:
        scope: Who and what may reuse its caches: see `Scope`.
    """

    def __init__(self, scope: Hashable) -> None:
        self.scope = scope

        self.is_in_use = False
        """Whether it is being answered. Its tokens are not known until the answer ends."""

        self.tokens: list[int] = []
        """The prompt; with the answer's tokens once the answer is over."""

        self.num_stable = 0
        """The tokens at the beginning that a prompt repeats if it continues the text."""

    def mark_in_use(self, prompt: Sequence[int], num_stable: int | None) -> None:
        """Note that an answer to the prompt begins: the text is the prompt until it ends.

        Args:
            prompt: The prompt's tokens.
            num_stable: How many of them, from the first on, a later prompt repeats; None for
                all.
        """
        self.is_in_use = True
        # Set now: if the answer fails, the prompt is cached for the client's next attempt.
        self.tokens = list(prompt)
        if num_stable is None:
            num_stable = len(prompt)
        self.num_stable = num_stable

    def end(self, pieces: Sequence[Piece]) -> None:
        """Add the pieces of the answer that were read, and mark the text as not in use."""
        for piece in pieces:
            self.tokens += piece.token_ids
        self.is_in_use = False


class AnsweredTexts:
    """The texts that were answered last, in the order of their use."""

    def __init__(self) -> None:
        self._texts: list[AnsweredText] = []

    def text_for(
        self,
        prompt: Sequence[int],
        scope: Hashable,
        num_stable: int | None,
    ) -> AnsweredText:
        """Find the text that a prompt continues, or make a new one, and mark it as in use.

        So a conversation finds its own caches. Another question with the same beginning does
        not take them, nor does the same question when it is asked again before its answer ends.

        Args:
            prompt: The prompt's tokens.
            scope: The scope of the prompt.
            num_stable: See `AnsweredText.mark_in_use`.
        """
        text = self._longest_continued(prompt, scope)
        if text is None:
            text = AnsweredText(scope)
            self._texts = self._texts[1 - _MOST_TEXTS :]  # leaves room for the new one
        else:
            self._texts.remove(text)
        self._texts.append(text)
        text.mark_in_use(prompt, num_stable)
        return text

    def _longest_continued(self, prompt: Sequence[int], scope: Hashable) -> AnsweredText | None:
        """The text of this scope with the longest beginning that the prompt repeats, if any.

        Texts in use are left out, and texts of which the prompt repeats too little.
        """
        longest: AnsweredText | None = None
        longest_length = 0
        for text in self._texts:
            if text.scope != scope or text.is_in_use:
                continue
            length = common_length(text.tokens, prompt)
            # A prompt that continues a text repeats all of its stable beginning, apart from the
            # tokens that opened the answer: in a short text, at most half of that beginning.
            least = max(text.num_stable - _OPENING_TOKENS, text.num_stable // 2)
            if length >= least and length > longest_length:
                longest = text
                longest_length = length
        return longest
