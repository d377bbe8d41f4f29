"""Every transform of an answer: raw logits and the text so far → the distribution of the next
token.

In llama.cpp's default order: logit bias, penalties, DRY, then the cuts of `filters`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from localspec.sampling.distribution import Distribution, Logits, TokenIds
from localspec.sampling.filters import filtered_distribution
from localspec.sampling.params import SamplingParams
from localspec.sampling.penalties import Breakers, penalise_repeats, penalise_tokens


class SamplerChain:
    """The chain of one answer, the same for target and draft.

    num_prompt_tokens: where in the text the answer begins. ends: every end-of-generation
    id of the target. breakers: dry_sequence_breakers as token ids of the target.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        num_prompt_tokens: int,
        ends: Sequence[int] = (),
        breakers: Breakers | None = None,
    ) -> None:
        self.params = params
        self._bias_ids = np.array(sorted(params.logit_bias), dtype=np.int64)
        self._bias = np.array(
            [params.logit_bias[token] for token in sorted(params.logit_bias)], np.float32
        )
        self._ends = np.array(sorted(ends), dtype=np.int64)
        self._ends_from = num_prompt_tokens + params.min_tokens
        self._breakers = breakers or {}
        self._penalises_tokens = params.penalty_last_n > 0 and (
            params.repetition_penalty != 1.0
            or params.presence_penalty != 0.0
            or params.frequency_penalty != 0.0
        )
        self._penalises_repeats = params.dry_multiplier > 0.0 and params.dry_penalty_last_n > 0
        self._text = _GrowingText()
        self._row = np.empty(0, dtype=np.float32)

    def distribution(
        self, logits: Logits, tokens: Sequence[int], draft_tokens: Sequence[int] = ()
    ) -> Distribution:
        """The distribution after `tokens` followed by `draft_tokens`. logits: (vocab,), not
        changed.

        tokens: prompt and answer so far, which only grow from call to call; draft_tokens
        may be others each time. Raises DecodeError if the row holds NaN or no finite maximum.
        """
        ends_banned = self._ends_banned(len(tokens) + len(draft_tokens))
        looks_back = self._penalises_tokens or self._penalises_repeats
        if not (len(self._bias) or ends_banned or looks_back):
            return filtered_distribution(logits, self.params)
        row = self._copied(logits)
        num_known = int(np.searchsorted(self._bias_ids, len(row)))
        row[self._bias_ids[:num_known]] += self._bias[:num_known]
        if ends_banned:
            row[self._ends[self._ends < len(row)]] = -np.inf
        if looks_back:
            text = self._text.extended(tokens, draft_tokens)
            if self._penalises_tokens:
                penalise_tokens(row, text, self.params)
            if self._penalises_repeats:
                penalise_repeats(row, text, self.params, self._breakers)
        return filtered_distribution(row, self.params)

    def distributions(
        self, rows: Logits, tokens: Sequence[int], draft_tokens: Sequence[int]
    ) -> list[Distribution]:
        """One of each row: after `tokens` and the first 0, 1, 2 … draft tokens."""
        return [self.distribution(row, tokens, draft_tokens[:i]) for i, row in enumerate(rows)]

    def _ends_banned(self, length: int) -> bool:
        return self.params.ignore_eos or length < self._ends_from

    def _copied(self, logits: Logits) -> Logits:
        """A copy that the next call overwrites: libllama's own row stays what it is."""
        if len(self._row) < len(logits):
            self._row = np.empty(len(logits), dtype=np.float32)
        row = self._row[: len(logits)]
        np.copyto(row, logits)
        return row


class _GrowingText:
    """A text as an array, to which only what is new is copied."""

    def __init__(self) -> None:
        self._buffer = np.empty(256, dtype=np.int64)
        self._length = 0

    def extended(self, tokens: Sequence[int], draft_tokens: Sequence[int]) -> TokenIds:
        """`tokens` and then `draft_tokens`: a view that the next call overwrites."""
        length = len(tokens) + len(draft_tokens)
        if length > len(self._buffer):
            self._buffer = np.resize(self._buffer, 2 * length)
        self._buffer[self._length : len(tokens)] = tokens[self._length :]
        self._length = len(tokens)
        self._buffer[self._length : length] = draft_tokens
        return self._buffer[:length]
