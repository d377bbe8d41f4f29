"""Models of a few tokens for exact tests, which raise on any misuse of the cache."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from localspec.errors import CacheError, ContextError, DecodeError
from localspec.sampling.chain import SamplerChain
from localspec.sampling.distribution import Logits
from localspec.sampling.params import SamplingParams
from localspec.speculative.loop import Request, SpeculativeDecoder
from localspec.speculative.metrics import Step
from localspec.speculative.policy_api import DraftOff, DraftPolicy, ThreadPolicy
from localspec.speculative.proposers import Proposer
from localspec.speculative.randomness import Randomness
from localspec.speculative.rules import make_rule, rule_name
from localspec.speculative.shared_vocabulary import Difference, SharedVocabulary

GREEDY = SamplingParams(temperature=0.0)
UNFILTERED = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
FILTERED = SamplingParams(temperature=0.7, top_k=3, top_p=0.9, min_p=0.1)
PROMPT = [1]


def never(_token: int) -> bool:
    return False


def loop_of(
    target: TableModel,
    proposers: Sequence[Proposer],
    policy: DraftPolicy,
    *,
    reason: DraftOff | None = None,
    clock: Callable[[], float] | None = None,
) -> SpeculativeDecoder:
    """A loop whose clock shows one second more at each look, or another clock."""
    clock = clock or functools.partial(next, itertools.count(1.0))
    return SpeculativeDecoder(target, proposers, policy, ThreadPolicy(1), reason, clock)


def request(
    params: SamplingParams = GREEDY,
    *,
    seed: int = 0,
    rule: str | None = None,
    max_tokens: int = 20,
    is_end: Callable[[int], bool] = never,
    num_prompt_tokens: int = 3,
) -> Request:
    name = rule_name(rule, is_greedy=params.is_greedy, seed=None)
    made = make_rule(name, Randomness(seed))
    chain = SamplerChain(params, num_prompt_tokens=num_prompt_tokens)
    return Request(chain, made, max_tokens, is_end)


def steps_of(
    loop: SpeculativeDecoder, prompt: Sequence[int], *options, **keywords
) -> Iterator[Step]:
    """The steps of an answer to a prompt. options, keywords: of `request`."""
    loop.start(list(prompt))
    return loop.steps(request(*options, num_prompt_tokens=len(prompt), **keywords))


def tokens_of(steps: Iterable[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


def all_shared(
    target: TableModel, draft: TableModel, different: Sequence[int] = ()
) -> SharedVocabulary:
    """Ids that both have mean the same token, but for some."""
    size = min(target.vocab_size, draft.vocab_size)
    differences = tuple(Difference(token, b"a", b"b") for token in different)
    return SharedVocabulary(size, target.vocab_size, draft.vocab_size, differences)


class TableModel:
    """A distribution over a handful of tokens that depends on the last few, and on nothing
    else.

    Rows come from a generator keyed by (seed, last `order` tokens), so a token that is
    missing from the cache, doubled or out of place changes every row after it. Like
    libllama, it returns a view that the next decode overwrites.
    """

    def __init__(
        self,
        vocab_size: int = 8,
        *,
        seed: int = 0,
        spread: float = 2.0,
        order: int = 3,
        context_length: int = 64,
        max_outputs: int = 17,
        max_rollback: int | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.max_outputs = max_outputs
        # None: any. Else it is as if recurrent, with so many snapshots of the last decode.
        self.max_rollback = context_length if max_rollback is None else max_rollback
        self._is_recurrent = max_rollback is not None
        self._num_in_snapshots = 0
        self._checkpoint = 0
        self.cached: list[int] = []
        self.decoded: list[list[int]] = []
        self.fail_at: int | None = None
        self.rows_from = 0  # position of the first hidden row that a head would find
        self._key = seed
        self._spread = spread
        self._order = order
        self._rows = np.zeros((max_outputs, vocab_size), dtype=np.float32)
        self._made: dict[tuple[int, ...], Logits] = {}

    @property
    def num_cached(self) -> int:
        return len(self.cached)

    def row(self, history: Sequence[int]) -> Logits:
        """Logits (vocab,) of the token after `history`."""
        key = (self._key, *(token + 1 for token in history[-self._order :]))
        if key not in self._made:
            noise = np.random.default_rng(key).standard_normal(self.vocab_size)
            self._made[key] = (self._spread * noise).astype(np.float32)
        return self._made[key].copy()

    def decode(self, tokens: Sequence[int], num_logits: int) -> Logits:
        if not tokens or self.num_cached + len(tokens) > self.context_length:
            raise ContextError(f"{len(tokens)} tokens after {self.num_cached}")
        if not 0 <= num_logits <= min(self.max_outputs, len(tokens)):
            raise DecodeError(f"{num_logits} rows of {len(tokens)} tokens")
        if min(tokens) < 0 or max(tokens) >= self.vocab_size:
            raise DecodeError(f"ids {tokens} in a vocabulary of {self.vocab_size}")
        if self.fail_at == len(self.decoded):
            self.fail_at = None
            raise DecodeError("a failure that was asked for")
        self.decoded.append(list(tokens))
        self.cached += tokens
        self._num_in_snapshots = min(len(tokens) - 1, self.max_rollback)
        for index in range(num_logits):
            end = len(self.cached) - num_logits + index + 1
            self._rows[index] = self.row(self.cached[:end])
        return self._rows[:num_logits]

    def truncate(self, num_cached: int) -> None:
        if not 0 <= num_cached <= self.num_cached:
            raise CacheError(f"asked to keep {num_cached} of {self.num_cached}")
        num_taken = self.num_cached - num_cached
        if self._is_recurrent and num_taken > 0:
            if num_taken > self._num_in_snapshots:
                num_cached = self._checkpoint if self._checkpoint <= num_cached else 0
            self._num_in_snapshots = 0
        del self.cached[num_cached:]
        self.rows_from = min(self.rows_from, num_cached)
        self._checkpoint = min(self._checkpoint, num_cached)

    def checkpoint(self) -> None:
        self._checkpoint = self.num_cached


class TableHead(TableModel):
    """A table as a trained head: beside a target whose rows it would read.

    Raises DecodeError where a head would read rows that the target does not have, or a token
    that is not the target's. num_kept: of the target's latest tokens, whose rows are kept.
    """

    def __init__(
        self, target: TableModel, *, num_kept: int = 64, max_draft_tokens: int = 64, **keywords
    ) -> None:
        super().__init__(target.vocab_size, **keywords)
        self.max_draft_tokens = max_draft_tokens
        self.begins_at = self.read_size = 0
        self.num_layers = 1
        self._target = target
        self._num_kept = num_kept
        self._num_own = 0

    @property
    def readable(self) -> range:
        target, end = self._target, self._target.num_cached
        target.rows_from = first = max(target.rows_from, end - self._num_kept)
        return range(0 if first == 0 else first + 1, end + 1)

    def pause(self, num_tokens: int) -> None:
        """Nothing to do: its rows cost nothing."""

    def read_from(self, position: int) -> None:
        self.cached.clear()
        self.begins_at, self._num_own = position, 0

    def decode(self, tokens: Sequence[int], num_logits: int) -> Logits:
        position, readable = self.begins_at + self.num_cached, self.readable
        if position >= readable.stop:
            if len(tokens) > 1:
                raise DecodeError(f"{len(tokens)} tokens at once beyond {readable}")
            rows = super().decode(tokens, num_logits)
            self._num_own += 1
            return rows
        end = position + len(tokens)
        if self._num_own or position < readable.start or end > readable.stop:
            raise DecodeError(f"tokens {position} to {end} of {readable}")
        known = self._target.cached[position:end]
        if known != list(tokens[: len(known)]):
            raise DecodeError(f"{tokens} where the target has {known}")
        return super().decode(tokens, num_logits)

    def truncate(self, num_cached: int) -> None:
        super().truncate(min(num_cached, self.num_cached - self._num_own))
        self._num_own = 0


class TableBlocks:
    """Tables as a head that drafts a block at once, with a row for each place of it.

    Raises DecodeError where a head would read rows that the target does not have, or a token
    that is not the target's. is_paired: the row of a place depends on the token drafted before,
    as with DFlash2; else only on the text, the place and the size of the block. says: whether
    it has confidences of its own.
    """

    is_block = True

    def __init__(
        self,
        target: TableModel,
        *,
        num_kept: int = 64,
        max_draft_tokens: int = 64,
        is_paired: bool = False,
        says: bool = False,
    ) -> None:
        self.context_length = target.context_length
        self.max_draft_tokens = max_draft_tokens
        self.begins_at = self.num_cached = self.read_size = 0
        self.num_blocks = 0
        self._target = target
        self._num_kept = num_kept
        self._is_paired, self._says = is_paired, says
        self._tables = [
            TableModel(target.vocab_size, seed=70 + place, spread=1.0, order=4)
            for place in range(min(max_draft_tokens, 16))
        ]
        self._block: list[int] = []

    @property
    def readable(self) -> range:
        target, end = self._target, self._target.num_cached
        target.rows_from = first = max(target.rows_from, end - self._num_kept)
        return range(first, end + (end > first))

    def pause(self, num_tokens: int) -> None:
        """Nothing to do: its rows cost nothing."""

    def read_from(self, position: int) -> None:
        self.begins_at, self.num_cached = position, 0

    def truncate(self, num_cached: int) -> None:
        self.num_cached = min(self.num_cached, num_cached)

    def decode_block(self, tokens: Sequence[int], num_tokens: int) -> None:
        position = self.begins_at + self.num_cached
        end = position + len(tokens) - 1
        readable = self.readable
        if position < readable.start or end not in readable:
            raise DecodeError(f"rows {position} to {end} of {readable}")
        if list(tokens[:-1]) != self._target.cached[position:end]:
            raise DecodeError(f"{tokens} where the target has others")
        if not 0 < num_tokens <= self.max_draft_tokens:
            raise DecodeError(f"a block of {num_tokens}")
        self.num_cached = end - self.begins_at
        self.num_blocks += 1
        seen = self._target.cached[self.begins_at : end]
        self._block = [*seen, tokens[-1], num_tokens % self._target.vocab_size]

    def row(self, drafted: Sequence[int]) -> Logits:
        before = drafted[-1:] if self._is_paired else []
        return self._tables[len(drafted)].row([*self._block, *before])

    def confidence(self, index: int) -> float | None:
        return 1.0 / (1 + index) if self._says else None
