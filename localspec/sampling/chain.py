"""Raw logits and the text so far → the distribution of the next token.

In llama.cpp's default order: logit bias, penalties, DRY, then the cuts of `filters`. Tokens
that a constraint forbids are removed from the row before the cuts.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
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
    """All that shapes the distributions of one answer, the same for target and draft.

    Args:
        params: The settings.
        num_prompt_tokens: Tokens of the text before the answer.
        num_said: Tokens that the answer already has.
        ends: Every end-of-generation id of the target; needed only if they may be banned.
        breakers: dry_sequence_breakers as token ids of the target.
        constraint: The answer's constraint, in its state after the tokens that the answer has.
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
        # Tokens of the text from which on the answer may end.
        self._least_length = num_prompt_tokens + params.min_tokens
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
        """Continue the constraint with tokens. Raises ConstraintError for forbidden ones."""
        if self._states is not None:
            self._states.commit(tokens)
            self._num_committed += len(tokens)

    def num_allowed(self, draft_tokens: Sequence[int]) -> int:
        """How many of the draft tokens, counted from the first, the constraint allows."""
        if self._states is None or not draft_tokens:
            return len(draft_tokens)
        return self._states.committed.validate(draft_tokens)

    def distribution(
        self,
        logits: Logits,
        tokens: Sequence[int],
        draft_tokens: Sequence[int] = (),
    ) -> Distribution:
        """A draft's distribution after `tokens` followed by `draft_tokens`.

        For a draft, any distribution is correct. So the constraint is applied only if exactly
        `tokens` are committed to it, and only if it allows a token of the row. The next call of
        `distributions` overwrites the result.

        Args:
            logits: (vocab,), not changed.
            tokens: Prompt and answer so far: in all calls, beginnings of one text.
            draft_tokens: Tokens after these, which may be others in each call.

        Raises:
            DecodeError: If the row holds NaN or no finite maximum.
        """
        return self._distribution(
            logits,
            tokens,
            draft_tokens,
            self._draft_masses,
            is_target=False,
        )

    def draft_distribution(
        self,
        logits: Logits,
        tokens: Sequence[int],
        draft_tokens: Sequence[int] = (),
    ) -> Distribution:
        """As `distribution`, but without DecodeError.

        An answer continues without a draft that fails. If bans leave none of the draft's
        tokens, they do not count: the target may know other tokens that are not banned. If the
        row has no finite maximum, token 0 is certain.
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

        After a draft token that the constraint forbids, any distribution is correct: that token
        is refused. The next call overwrites the results.

        Args:
            rows: (rows, vocab) logits, not changed.
            tokens: Prompt and answer so far, which end where the constraint was committed.
            draft_tokens: The draft tokens, one less than there are rows.

        Returns:
            One distribution for each row. It has fewer if a later row holds NaN or no finite
            maximum: verification may refuse the draft token before that row.

        Raises:
            DecodeError: If the first row holds NaN or no finite maximum.
            ConstraintError: If the constraint and bans leave no token of a row.
        """
        distributions: list[Distribution] = []
        buffers = self._target_masses
        buffers.num_used = 0
        self._draft_masses.num_used = 0
        for index, row in enumerate(rows):
            drafted = draft_tokens[:index]
            try:
                distribution = self._distribution(
                    row,
                    tokens,
                    drafted,
                    buffers,
                    is_target=True,
                )
            except DecodeError:
                if not distributions:
                    raise
                break
            distributions.append(distribution)
        return distributions

    def _distribution(
        self,
        logits: Logits,
        tokens: Sequence[int],
        draft_tokens: Sequence[int],
        buffers: _Buffers,
        *,
        is_target: bool,
    ) -> Distribution:
        """The distribution of a row.

        Args:
            buffers: Where masses are written.
            is_target: Whether the constraint is always applied, with ConstraintError if it
                leaves no token. Otherwise as for `distribution`.
        """
        row = self._transformed(logits, tokens, draft_tokens)
        mask = None
        # In a replay a draft reads tokens before the constraint's state.
        is_at_state = is_target or len(tokens) == self._num_committed
        if self._states and is_at_state:
            state = self._states.after(draft_tokens)
            if state is not None:
                mask = state.mask()
        if mask is None:
            return filtered_distribution(row, self.params, buffers.take)
        # Only allowed tokens go through the cuts: usually far fewer.
        ids = mask[: len(row)].nonzero()[0]
        allowed = row[ids]
        if len(allowed) > 0 and allowed.max() != -np.inf:
            distribution = filtered_distribution(allowed, self.params, buffers.take)
            return distribution._replace(ids=ids[distribution.ids])
        if is_target:
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
        """The row with biases and penalties, before any cut.

        It is `logits` itself if there are none, or a copy that the next call overwrites.
        """
        length = len(tokens) + len(draft_tokens)
        are_ends_banned = self.params.ignore_eos or length < self._least_length
        has_penalties = self._penalises_tokens or self._penalises_repeats
        if not (len(self._bias) or are_ends_banned or has_penalties):
            return logits
        if len(self._row) < len(logits):
            self._row = np.empty(len(logits), dtype=np.float32)
        row = self._row[: len(logits)]
        np.copyto(row, logits)  # libllama's own row stays what it is
        # A draft's row may be shorter than the target's: ids beyond it are skipped.
        num_biased = int(np.searchsorted(self._bias_ids, len(row)))
        biased = self._bias_ids[:num_biased]
        # A damaged file's numbers may overflow; the cuts refuse a row without a finite maximum.
        with np.errstate(over="ignore", invalid="ignore"):
            row[biased] += self._bias[:num_biased]
            if are_ends_banned:
                ends = self._ends[self._ends < len(row)]
                row[ends] = -np.inf
            if has_penalties:
                text = self._text.extended(tokens, draft_tokens)
                if self._penalises_tokens:
                    penalise_tokens(row, text, self.params)
                if self._penalises_repeats:
                    penalise_repeats(row, text, self.params, self._breakers)
        return row


class _Buffers:
    """Arrays for probability masses, kept from step to step.

    In a new array, page faults would cost more than computing the masses.
    """

    def __init__(self) -> None:
        self._rows: dict[int, Logits] = {}
        self.num_used = 0

    def take(self, size: int) -> Logits:
        """An array of this size that is not given out again until `num_used` is set to 0."""
        row = self._rows.get(self.num_used)
        if row is None or len(row) < size:
            row = np.empty(size, dtype=np.float32)
            self._rows[self.num_used] = row
        self.num_used += 1
        return row[:size]


class _GrowingText:
    """The text as an array, to which only new tokens are copied."""

    def __init__(self) -> None:
        self._buffer = np.empty(256, dtype=np.int64)
        self._length = 0
        self._has_cells = False

    def extended(self, tokens: Sequence[int], draft_tokens: Sequence[int]) -> TokenIds:
        """`tokens` and then `draft_tokens`, without the cells of pictures.

        The next call overwrites the result. In all calls `tokens` are beginnings of one text.
        """
        length = len(tokens) + len(draft_tokens)
        if length > len(self._buffer):
            self._buffer = np.resize(self._buffer, 2 * length)
        new = self._buffer[self._length : len(tokens)]
        new[:] = tokens[self._length :]
        if (new < 0).any():
            self._has_cells = True
        self._length = len(tokens)
        self._buffer[self._length : length] = draft_tokens
        text = self._buffer[:length]
        if self._has_cells:
            return text[text >= 0]
        return text


_LONGEST_TAIL = 20  # tokens of a breaker after its first; llama.cpp's bound


class Resolver:
    """Makes the chains of answers: checks settings by the target's vocabulary, and finds the
    tokens that end an answer, and those of DRY's breakers.

    What it finds by a scan of the vocabulary is cached.
    """

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

        Raises OptionError for a bias on an id without a token, or a constrained answer whose
        end is banned.

        Args:
            params, num_prompt_tokens, constraint, num_said: As for `SamplerChain`.
        """
        bans_ends = params.ignore_eos or params.min_tokens > 0
        if constraint is not None and bans_ends:
            name = "min_tokens"
            if params.ignore_eos:
                name = "ignore_eos"
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
        if bans_ends:
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

    As in llama.cpp: a token that contains the text is a breaker alone; a token that ends with
    the text's beginning is a breaker if the tokens of the remaining text follow.
    """
    tails: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    spellings = list(enumerate(vocabulary.spellings()))
    for text in texts:
        whole = text.encode()
        for token, spelling in spellings:
            if whole in spelling:
                tails[token].add(())
        for split in range(1, len(text)):
            start = text[:split].encode()
            remaining = vocabulary.tokenize(text[split:], parse_special=False)
            tail = tuple(remaining[:_LONGEST_TAIL])
            for token, spelling in spellings:
                if spelling.endswith(start) and whole not in spelling:
                    tails[token].add(tail)
    return {token: sorted(token_tails) for token, token_tails in tails.items()}
