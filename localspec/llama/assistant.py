"""Heads that attend with their target's keys and values: Gemma 4's assistants."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.llama.head import LlamaHead


class AssistantHead(LlamaHead):
    """A head without a cache. It drafts behind the last token that its target has cached.

    All tokens of a draft are decoded at one position: that is how it was trained, see
    src/models/gemma4-assistant.cpp and common/speculative.cpp of llama.cpp.
    """

    @property
    def readable(self) -> range:
        """The position behind the target's tokens, if there is any."""
        rows = self._target_rows
        return range(rows.end, rows.end + (rows.end > rows.first))

    def _draft(self, tokens: Sequence[int]) -> None:
        position = self.begins_at + self.num_cached - len(self._drafted) - 1
        self._drafted += tokens
        self.num_cached += 1
        self._batch.rows[0] = self._own_rows[0]
        self._decode_batch(tokens, position, 1, 0)
        self._own_rows[0] = self._row_of_last(1, 1)

    def _cut(self, num_cached: int) -> None:
        # The cells are the target's.
        self.num_cached = num_cached
        self._drafted.clear()
