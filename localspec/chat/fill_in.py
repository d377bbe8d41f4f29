"""Prompts for filling a gap in a text, as editors ask for it (fill in the middle)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from localspec.chat.workshop import PromptWorkshop
from localspec.gguf_file.header_vocabulary import FimTokens
from localspec.streaming.answer_text import Prompt
from localspec.streaming.cancellation import CancelCheck
from localspec.streaming.record import MadePrompt

_ANSWER_TOKENS = 256  # left free for an answer, or more if it may be longer
_MARK_TOKENS = 8  # room for the model's fill-in tokens
# The answer and the text after the gap take at most 1/4 each; texts are cut in steps of 1/4.
_NUM_PARTS = 4


@dataclass(frozen=True, slots=True)
class FillInSource:
    """The source of the prompt for a gap in a text. What does not fit the context is left out.

    Other files are left out first, then the beginning of the text before the gap and the end of
    the text after it. No text can name a control token.
    """

    text_before: str
    """The text before the gap."""

    text_after: str
    """The text after the gap."""

    fim: FimTokens
    """The model's fill-in tokens."""

    files: Sequence[tuple[str, str]] = ()
    """Names and texts of other files, the least useful first."""

    max_tokens: int | None = None
    """The limit for the answer, in tokens; None for no limit of its own."""

    def make(self, workshop: PromptWorkshop, is_cancelled: CancelCheck) -> MadePrompt:
        """The prompt: other files, the text before the gap, and the text after it.

        See `PromptSource`.
        """
        fim = self.fim
        vocabulary = workshop.vocabulary
        room = self._room(workshop.context_length)
        suffix = vocabulary.tokenize(self.text_after, parse_special=False, after=fim.suffix)
        suffix = suffix[: room // _NUM_PARTS]
        prefix = vocabulary.tokenize(self.text_before, parse_special=False, after=fim.prefix)
        prefix = _last_tokens(prefix, room - len(suffix))
        # The room of both texts is rounded up, so that the same files fit while these grow.
        # Empty texts count as one token, so that the first one typed leaves out no file.
        num_text_tokens = max(len(prefix) + len(suffix), 1)
        room_for_files = room - _rounded_up(num_text_tokens, room)
        files = self._files(workshop, room_for_files)
        # The next prompts begin like this, too, while the user types at the gap.
        stable = [*files, fim.prefix, *prefix]
        if vocabulary.add_bos and vocabulary.bos >= 0:
            stable.insert(0, vocabulary.bos)
        tokens = [*stable, fim.suffix, *suffix, fim.middle]
        return MadePrompt(Prompt(tokens), num_stable=len(stable))

    def _room(self, context_length: int) -> int:
        """The tokens left for all texts beside the answer and the fill-in tokens."""
        # Editors prefill with max_tokens=1. At least _ANSWER_TOKENS are left free then, too, so
        # that the prompt is the one of the answer that they want later.
        answer = max(self.max_tokens or 0, _ANSWER_TOKENS)
        answer = min(answer, context_length // _NUM_PARTS)
        return max(context_length - answer - _MARK_TOKENS, 0)

    def _files(self, workshop: PromptWorkshop, room: int) -> list[int]:
        """The tokens of the other files that fit, in the model's notation of projects.

        The most useful files are kept, in the order of `files`, each after its name. A model
        without a token for files gets plain text. Returns [] if no file fits.

        Args:
            workshop: Has the vocabulary.
            room: The limit for all files together, in tokens.
        """
        fim = self.fim
        tokenize = workshop.vocabulary.tokenize
        project_head: list[int] = []
        edited_file_head: list[int] = []
        if fim.repo is not None:
            project_head = [fim.repo, *tokenize("project\n", parse_special=False)]
        if fim.file is not None:
            edited_file_head = [fim.file, *tokenize("file\n", parse_special=False)]
        room -= len(project_head) + len(edited_file_head)
        kept: list[int] = []
        for name, text in reversed(self.files):
            if fim.file is None:
                file_tokens = tokenize(f"{name}\n{text}\n\n", parse_special=False)
            else:
                file_tokens = [fim.file, *tokenize(f"{name}\n{text}", parse_special=False)]
            if len(file_tokens) > room:
                break
            kept = [*file_tokens, *kept]
            room -= len(file_tokens)
        if kept:
            return [*project_head, *kept, *edited_file_head]
        return []


def _last_tokens(tokens: list[int], room: int) -> list[int]:
    """The last tokens, at most `room` of them.

    The number of tokens cut off is a multiple of 1/4 of the room. So while the text grows, the
    cut mostly stays where it is, and the tokens after it stay cached.
    """
    num_surplus = len(tokens) - room
    if num_surplus <= 0:
        return tokens
    return tokens[_rounded_up(num_surplus, room) :]


def _rounded_up(count: int, room: int) -> int:
    """A number of tokens, rounded up to a multiple of 1/4 of the room."""
    step = max(room // _NUM_PARTS, 1)  # not 0 in a tiny context: it is a divisor
    return math.ceil(count / step) * step
