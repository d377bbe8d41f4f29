"""Raw logits and the text so far → the distribution of the next token.

In llama.cpp's default order: logit bias, penalties, DRY, then the cuts of `filters`. Tokens
that a constraint forbids are removed from the row before the cuts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import cached_property, lru_cache, partial

import numpy as np

from localspec.errors import ConstraintError, DecodeError, OptionError
from localspec.sampling.constraint import Constraint, ConstraintStates
from localspec.sampling.distribution import Distribution, Logits, TokenIds
from localspec.sampling.filters import filtered_distribution, one_hot
from localspec.sampling.params import SamplingParams
from localspec.sampling.penalties import Breakers, penalise_repeats, penalise_tokens
from localspec.vocabulary import WholeVocabulary


class SamplerChain:
    """The chain of one answer, the same for target and draft.

    Args:
        num_prompt_tokens: The position in the text at which the answer begins.
        params: The settings.
        num_said: Tokens that the answer already has.
        ends: Every end-of-generation id of the target.
        breakers: dry_sequence_breakers as token ids of the target.
        constraint: The answer's constraint, in its state after the tokens said.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        num_prompt_tokens: int,
        num_said: int = 0,
        ends: Sequence[int] = (),
        breakers: Breakers | None = None,
        constraint: Constraint | None = None,
    ) -> None:
        self.params = params
        self.num_prompt_tokens = num_prompt_tokens
        biased = sorted(params.logit_bias.items())
        self._bias_ids = np.array([token for token, _ in biased], dtype=np.int64)
        self._bias = np.array([bias for _, bias in biased], dtype=np.float32)
        self._ends = np.array(sorted(ends), dtype=np.int64)
        self._ends_from = num_prompt_tokens + params.min_tokens
        self._breakers = breakers or {}
        has_additive = params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        has_penalty = params.repetition_penalty != 1.0 or has_additive
        self._penalises_tokens = has_penalty and params.penalty_last_n > 0
        self._penalises_repeats = params.dry_multiplier > 0.0 and params.dry_penalty_last_n > 0
        self._states: ConstraintStates | None = None
        if constraint is not None:
            self._states = ConstraintStates(constraint)
        # Tokens at the front of the text that are committed to the constraint.
        self._num_committed = num_prompt_tokens + num_said
        self._text = _GrowingText()
        self._row = np.empty(0, dtype=np.float32)
        self._target_masses = _Buffers()
        self._draft_masses = _Buffers()

    @property
    def constraint(self) -> Constraint | None:
        """The answer's constraint, in its state after the committed tokens."""
        if self._states is None:
            return None
        return self._states.committed

    def commit(self, tokens: Sequence[int]) -> None:
        """Continue the answer with tokens. Raises ConstraintError for forbidden ones."""
        if self._states is not None:
            self._states.commit(tokens)
            self._num_committed += len(tokens)

    def num_allowed(self, draft_tokens: Sequence[int]) -> int:
        """How many of the tokens, counted from the first, the constraint allows next."""
        if self._states is None or not draft_tokens:
            return len(draft_tokens)
        return self._states.committed.validate(draft_tokens)

    def distribution(
        self,
        logits: Logits,
        tokens: Sequence[int],
        draft_tokens: Sequence[int] = (),
    ) -> Distribution:
        """The distribution after `tokens` followed by `draft_tokens`.

        For a draft, any distribution is correct. So a constraint is applied only at the end of
        the text, and only if it allows a token of the row.

        Args:
            logits: (vocab,), not changed.
            tokens: Prompt and answer so far, which only grow from call to call; draft_tokens
                may be others each time. The distribution is good until the next call of
                `distributions`.

        Raises:
            DecodeError: If the row holds NaN or no finite maximum.
        """
        return self._distribution(
            logits,
            tokens,
            draft_tokens,
            self._draft_masses,
            must_fit=False,
        )

    def draft_distribution(
        self,
        logits: Logits,
        tokens: Sequence[int],
        draft_tokens: Sequence[int] = (),
    ) -> Distribution:
        """Draft distribution after the same tokens; no error of a draft ends an answer.

        If bans leave none of the draft's tokens, its row counts without them: the target may
        know other tokens that are not banned. If the row has no numbers, the first token is
        proposed.
        """
        with contextlib.suppress(DecodeError):
            return self.distribution(logits, tokens, draft_tokens)
        with contextlib.suppress(DecodeError):
            return filtered_distribution(logits, self.params)
        return one_hot(0)

    def distributions(
        self,
        rows: Logits,
        tokens: Sequence[int],
        draft_tokens: Sequence[int],
    ) -> list[Distribution]:
        """The target's distributions after `tokens` and the first 0, 1, 2 … draft tokens.

        `tokens` must end where the constraint was committed. Nothing is kept after a draft
        token that the constraint forbids, so any distribution is correct there. The list ends
        in front of a later row without numbers, as verification may refuse the draft token
        before it. All are good until the next call. Raises DecodeError if the first row has no
        numbers, ConstraintError if no token of a row is left.
        """
        distributions: list[Distribution] = []
        buffers = self._target_masses
        buffers.num_used = 0
        self._draft_masses.num_used = 0
        for index, row in enumerate(rows):
            drafted = draft_tokens[:index]
            try:
                made = self._distribution(
                    row,
                    tokens,
                    drafted,
                    buffers,
                    must_fit=True,
                )
            except DecodeError:
                if not distributions:
                    raise
                break
            distributions.append(made)
        return distributions

    def _distribution(
        self,
        logits: Logits,
        tokens: Sequence[int],
        draft_tokens: Sequence[int],
        buffers: _Buffers,
        *,
        must_fit: bool,
    ) -> Distribution:
        row = self._transformed(logits, tokens, draft_tokens)
        mask = None
        # In a replay a draft reads tokens before the constraint's state.
        if self._states and (must_fit or len(tokens) == self._num_committed):
            state = self._states.after(draft_tokens)
            if state is not None:
                mask = state.mask()
        if mask is None:
            return filtered_distribution(row, self.params, buffers.take)
        # Only allowed tokens go through the cuts: usually far fewer.
        ids = mask[: len(row)].nonzero()[0]
        left = row[ids]
        if len(left) > 0 and left.max() != -np.inf:
            kept = filtered_distribution(left, self.params, buffers.take)
            return kept._replace(ids=ids[kept.ids])
        if must_fit:
            raise ConstraintError(
                "no token is left: the constraint allows none, or only banned ones",
                "Remove bans (logit_bias), or let the constraint allow more.",
            )
        return filtered_distribution(row, self.params, buffers.take)

    def _transformed(
        self,
        logits: Logits,
        tokens: Sequence[int],
        draft_tokens: Sequence[int],
    ) -> Logits:
        """The row before any cut: the row itself, or a copy that the next call overwrites."""
        length = len(tokens) + len(draft_tokens)
        ends_banned = self.params.ignore_eos or length < self._ends_from
        looks_back = self._penalises_tokens or self._penalises_repeats
        if not (len(self._bias) or ends_banned or looks_back):
            return logits
        if len(self._row) < len(logits):
            self._row = np.empty(len(logits), dtype=np.float32)
        row = self._row[: len(logits)]
        np.copyto(row, logits)  # libllama's own row stays what it is
        num_known = int(np.searchsorted(self._bias_ids, len(row)))
        # A damaged file's numbers may overflow; the cuts refuse a row without a largest one.
        with np.errstate(over="ignore", invalid="ignore"):
            row[self._bias_ids[:num_known]] += self._bias[:num_known]
            if ends_banned:
                row[self._ends[self._ends < len(row)]] = -np.inf
            if looks_back:
                text = self._text.extended(tokens, draft_tokens)
                if self._penalises_tokens:
                    penalise_tokens(row, text, self.params)
                if self._penalises_repeats:
                    penalise_repeats(row, text, self.params, self._breakers)
        return row


class _Buffers:
    """Rows of masses that each step reuses: page faults of new rows cost more than sums."""

    def __init__(self) -> None:
        self._rows: dict[int, Logits] = {}
        self.num_used = 0

    def take(self, size: int) -> Logits:
        """A row of this size that nothing else holds until `num_used` is set back."""
        row = self._rows.get(self.num_used)
        if row is None or len(row) < size:
            row = np.empty(size, dtype=np.float32)
            self._rows[self.num_used] = row
        self.num_used += 1
        return row[:size]


class _GrowingText:
    """A text as an array, without pictures, to which only new tokens are copied."""

    def __init__(self) -> None:
        self._buffer = np.empty(256, dtype=np.int64)
        self._length = 0
        self._has_cells = False

    def extended(self, tokens: Sequence[int], draft_tokens: Sequence[int]) -> TokenIds:
        """`tokens` and then `draft_tokens`: a view that the next call overwrites."""
        length = len(tokens) + len(draft_tokens)
        if length > len(self._buffer):
            self._buffer = np.resize(self._buffer, 2 * length)
        new = self._buffer[self._length : len(tokens)]
        new[:] = tokens[self._length :]
        self._has_cells = self._has_cells or bool((new < 0).any())
        self._length = len(tokens)
        self._buffer[self._length : length] = draft_tokens
        text = self._buffer[:length]
        if self._has_cells:
            return text[text >= 0]
        return text


_LONGEST_TAIL = 20  # tokens of a breaker after its first; llama.cpp's bound


class Resolver:
    """Resolves options against the target's vocabulary, and caches the results of scans."""

    def __init__(self, vocabulary: WholeVocabulary) -> None:
        self._vocabulary = vocabulary
        # Only the last breakers are kept, since each answer may have others.
        self._breakers = lru_cache(maxsize=1)(partial(find_breakers, vocabulary=vocabulary))

    def chain(
        self,
        params: SamplingParams,
        num_prompt_tokens: int,
        constraint: Constraint | None = None,
        num_said: int = 0,
    ) -> SamplerChain:
        """The chain of an answer.

        Raises OptionError for a bias on an id without a token, or a constrained answer that
        must not end at the end of its constraint.
        """
        if constraint is not None and (params.ignore_eos or params.min_tokens):
            name = "ignore_eos" if params.ignore_eos else "min_tokens"
            raise OptionError(
                f"{name} is set for an answer that has to end where its constraint ends",
                "Leave out one of the two.",
            )
        size = self._vocabulary.size
        unknown = [token for token in params.logit_bias if token >= size]
        if unknown:
            raise OptionError(
                f"logit_bias names token {unknown[0]} of a vocabulary of {size}",
                f"Token ids are 0 to {size - 1}.",
            )
        ends: Sequence[int] = ()
        if params.ignore_eos or params.min_tokens:
            ends = self._ends
        breakers: Breakers = {}
        if params.dry_multiplier:
            breakers = self._breakers(params.dry_sequence_breakers)
        return SamplerChain(
            params,
            num_prompt_tokens=num_prompt_tokens,
            num_said=num_said,
            ends=ends,
            breakers=breakers,
            constraint=constraint,
        )

    @cached_property
    def _ends(self) -> list[int]:
        return self._vocabulary.ends()


def find_breakers(texts: tuple[str, ...], vocabulary: WholeVocabulary) -> Breakers:
    """Every way in which tokens can spell one of `texts`, perhaps with other text around it.

    After llama.cpp: a token that contains the text is a breaker alone; a token that ends with
    the text's beginning is a breaker if the tokens of the other part follow.
    """
    breakers: dict[int, set[tuple[int, ...]]] = {}
    spellings = list(enumerate(vocabulary.spellings()))
    for text in texts:
        whole = text.encode()
        for token, spelling in spellings:
            if whole in spelling:
                breakers.setdefault(token, set()).add(())
        for cut in range(1, len(text)):
            start = text[:cut].encode()
            rest = vocabulary.tokenize(text[cut:], parse_special=False)
            tail = tuple(rest[:_LONGEST_TAIL])
            for token, spelling in spellings:
                if spelling.endswith(start) and whole not in spelling:
                    breakers.setdefault(token, set()).add(tail)
    return {token: sorted(tails) for token, tails in breakers.items()}
