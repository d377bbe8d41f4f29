"""Texts that are to be filled in, as an editor asks for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from localspec.chat.workshop import PromptWorkshop
from localspec.gguf_file.header_vocabulary import FimTokens
from localspec.streaming.answer_text import Prompt
from localspec.streaming.cancellation import CancelCheck
from localspec.streaming.record import MadePrompt

_ANSWER = 256  # tokens that are left free for an answer, or more if it may be longer
_MARKS = 8  # tokens that the model's own marks take
_PART = 4  # the text after may take 1/4 of the context; texts are cut in steps of 1/4, too


@dataclass(frozen=True, slots=True)
class FillInSource:
    """A gap in a text that is to be filled. Text that does not fit the context is cut.

    Other files are left out first, then the beginning of the text before and the end of the
    text after. No text can name a control token.
    """

    before: str
    """The text before the gap."""

    after: str
    """The text after the gap."""

    fim: FimTokens
    """The model's fill-in tokens."""

    files: Sequence[tuple[str, str]] = ()
    """Names and texts of other files, the least useful first."""

    max_tokens: int | None = None
    """Tokens that the answer may have."""

    def make(self, workshop: PromptWorkshop, is_cancelled: CancelCheck) -> MadePrompt:
        """See `PromptSource`."""
        fim = self.fim
        tokenize = workshop.vocabulary.tokenize
        context = workshop.context_length
        # Also for a shorter answer: an editor that only prefills asks for one token.
        answer = max(self.max_tokens or 0, _ANSWER)
        answer = min(answer, context // _PART)
        room = max(context - answer - _MARKS, 0)
        after = tokenize(self.after, parse_special=False, after=fim.suffix)
        after = after[: room // _PART]
        before = tokenize(self.before, parse_special=False, after=fim.prefix)
        before = _end_of(before, room - len(after))
        # Rounded up to whole parts, so that the same files fit while the text grows.
        part = max(room // _PART, 1)
        num_parts = math.ceil(max(len(before) + len(after), 1) / part)
        front = self._files(workshop, room - num_parts * part)
        stable = [*front, fim.prefix, *before]
        vocabulary = workshop.vocabulary
        if vocabulary.add_bos and vocabulary.bos >= 0:
            stable.insert(0, vocabulary.bos)
        tokens = [*stable, fim.suffix, *after, fim.middle]
        return MadePrompt(Prompt(tokens), num_stable=len(stable))

    def _files(self, workshop: PromptWorkshop, room: int) -> list[int]:
        """The other files that fit, each with its name, in the model's notation of projects."""
        fim = self.fim
        tokenize = workshop.vocabulary.tokenize
        begin: list[int] = []
        end: list[int] = []
        if fim.repo is not None:
            begin = [fim.repo, *tokenize("project\n", parse_special=False)]
        if fim.file is not None:
            end = [fim.file, *tokenize("file\n", parse_special=False)]
        room -= len(begin) + len(end)
        kept: list[int] = []
        for name, text in reversed(self.files):
            if fim.file is None:
                chunk = tokenize(f"{name}\n{text}\n\n", parse_special=False)
            else:
                chunk = [fim.file, *tokenize(f"{name}\n{text}", parse_special=False)]
            if len(chunk) > room:
                break
            kept = [*chunk, *kept]
            room -= len(chunk)
        if kept:
            return [*begin, *kept, *end]
        return []


def _end_of(tokens: list[int], room: int) -> list[int]:
    """The last of the tokens, up to `room`.

    The cut stays at its position while the text grows a little, so that the tokens after it
    stay cached.
    """
    surplus = len(tokens) - room
    if surplus <= 0:
        return tokens
    part = max(room // _PART, 1)
    num_parts = math.ceil(surplus / part)
    return tokens[num_parts * part :]
