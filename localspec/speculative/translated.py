"""A draft with another tokenizer, as a model that reads and proposes the target's tokens.

Its rows have the logits of the tokens that both have, under the target's ids, and -inf for all
others. So its distributions are what its tokens are drawn from, and every rule is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from localspec.pictures.cells import without_cells
from localspec.sampling.distribution import Logits
from localspec.speculative.model import Decode, Decoding, Model, result_of
from localspec.speculative.own_text import OwnText
from localspec.speculative.proposers import DraftModel
from localspec.speculative.shared_vocabulary import SharedVocabulary

_SPARE_TOKENS = 16  # of the context: a word that is not whole yet may take more tokens


class TranslatedModel:
    """A `Model` over the target's ids, made of a model that has ids of its own.

    own_model: the latter. text: its text in both tokenizers. After a checkpoint single tokens
    are the draft's own, and are not tokenised again until the text goes on. Each of several
    rows takes a decode of its own, because tokens that follow may change the last word.
    """

    def __init__(self, model: Model, text: OwnText) -> None:
        self.maps = maps = text.maps
        self.vocab_size = len(maps.pieces)
        self.context_length = model.context_length
        self.max_outputs = model.max_outputs
        self.max_rollback = model.max_rollback
        self.own_model = model
        self.text = text
        self._drafts = False
        self._rows = np.full((model.max_outputs, self.vocab_size), -np.inf, np.float32)
        self._gathered = np.empty(len(maps.own_ids), dtype=np.float32)

    @property
    def num_cached(self) -> int:
        return self.text.num_covered(self.own_model.num_cached)

    def room_after(self, tokens: Sequence[int]) -> int:
        """How many drafted tokens its context can hold after `tokens`."""
        self._drafts = False
        self.text.extend(tokens[len(self.text.tokens) :])
        self._settle()
        return self.context_length + 1 - _SPARE_TOKENS - len(self.text.own)

    def decode(self, tokens: Sequence[int], num_logits: int) -> Logits:
        return result_of(self.decoding(tokens, num_logits))

    def decoding(self, tokens: Sequence[int], num_logits: int) -> Decoding[Logits]:
        """`decode`, which yields the decodes of its own model."""
        # Counted on from here, since tokens without bytes are not cached while nothing else is.
        begin = self.num_cached
        num_together = len(tokens) - max(num_logits - 1, 0)
        yield from self._decode(tokens[:num_together], begin, 0 if num_logits else None)
        for row, token in enumerate(tokens[num_together:], 1):
            yield from self._decode([token], begin + num_together + row - 1, row)
        return self._rows[:num_logits]

    def rows_together(
        self, tokens: Sequence[int], num_rows: int
    ) -> Decoding[list[tuple[int, Logits]]]:
        """Append tokens by one decode; the rows after the last num_rows of them.

        Each row comes with its index. Tokens behind which no token of the draft ends have none.
        """
        model, text = self.own_model, self.text
        self._append(tokens, self.num_cached)
        num_own, num_before = len(text.own), len(text.tokens) - num_rows
        first = max(model.num_cached, num_own - self.max_outputs)
        ends = [text.num_own_at(num_before + 1 + index) for index in range(num_rows)]
        lengths = [num_own - end + 1 if end > first else 0 for end in ends]
        num_logits = max(lengths, default=0)
        missing = text.own[model.num_cached :]
        if not missing:
            return []
        rows = yield Decode(model, missing, num_logits)
        return [
            (index, self._renamed(rows[num_logits - length], index))
            for index, length in enumerate(lengths)
            if length
        ]

    def _decode(self, tokens: Sequence[int], begin: int, row: int | None) -> Decoding[None]:
        """Append tokens, and write the row after the last of them to `_rows[row]`."""
        model, text = self.own_model, self.text
        self._append(tokens, begin)
        if row is not None and not text.own:
            self._rows[row][self.maps.target_ids] = 0.0  # nothing to read: all are as likely
            return
        if row is not None and model.num_cached == len(text.own):
            # The last token changed nothing: the row was there, and is asked for again.
            model.truncate(len(text.own) - 1)
        if missing := text.own[model.num_cached :]:
            rows = yield Decode(model, missing, 0 if row is None else 1)
            if row is not None:
                self._renamed(rows[0], row)

    def _append(self, tokens: Sequence[int], begin: int) -> None:
        """Continue the text with tokens from an index on, which may be there already."""
        text = self.text
        if text.tokens[begin:] != list(tokens):
            text.cut(begin)
            own = int(self.maps.to_own[tokens[0]]) if self._drafts and len(tokens) == 1 else -1
            if own >= 0:
                text.follow(tokens[0], own)
            else:
                text.extend(tokens)
        self._settle()

    def _renamed(self, own_row: Logits, row: int) -> Logits:
        np.take(own_row, self.maps.own_ids, out=self._gathered, mode="clip")
        renamed: Logits = self._rows[row]
        renamed[self.maps.target_ids] = self._gathered
        return renamed

    def _settle(self) -> None:
        text = self.text
        text.settle()
        if text.num_same < self.own_model.num_cached:
            self.own_model.truncate(text.num_same)
        text.num_same = len(text.own)

    def truncate(self, num_cached: int) -> None:
        """Cut as `Model.truncate` does, or to more than is cached: the text is cut, too."""
        self.text.cut(num_cached)
        if self.text.num_same < self.own_model.num_cached:
            self.own_model.truncate(self.text.num_same)

    def checkpoint(self) -> None:
        self._drafts = True
        self.own_model.checkpoint()


class TranslatedDraft(DraftModel):
    """A draft model with another tokenizer than the target's.

    It rests where its vocabulary cannot spell the text. Its decodes differ in size anyway.
    """

    _reads_ahead = False

    def __init__(self, model: TranslatedModel, is_end: Callable[[int], bool]) -> None:
        size = model.vocab_size
        super().__init__(model, SharedVocabulary(size, size, size, ()), is_end)
        self.translated = model

    def knows(self, tokens: Sequence[int]) -> bool:
        return bool(self.translated.maps.can_spell[without_cells(tokens)].all())

    def _rows_together(
        self, missing: Sequence[int], num_rows: int
    ) -> Decoding[list[tuple[int, Logits]]]:
        return self.translated.rows_together(missing, num_rows)

    def _decoding(self, missing: Sequence[int], num_rows: int) -> Decoding[Logits]:
        return self.translated.decoding(missing, num_rows)

    def _room(self, tokens: Sequence[int]) -> int:
        return self.translated.room_after(tokens[self.begins_at :])

    def _keep(self, num_tokens: int) -> None:
        self.translated.truncate(num_tokens)
