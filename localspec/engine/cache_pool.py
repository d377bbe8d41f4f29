"""Texts that wait, with the caches of each.

The loop has one text at a time. A conversation that another interrupts finds its own again,
without decoding it again. Where the models' contexts hold several sequences, its text waits in
one of them, and changing over costs nothing. Where they are all taken, the text that has
waited longest is copied out, as long as the memory that was granted suffices; what has to leave
that may go to disk. A new text begins with a copy of the one that it shares most with.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence

from localspec.engine.kept_text import (
    KeepsTexts,
    PooledCache,
    SavesState,
    UsesSequence,
    WaitingText,
)
from localspec.errors import CacheError, Interrupted, OptionError
from localspec.speculative.loop import SpeculativeDecoder
from localspec.speculative.policy_api import ProposerKind
from localspec.speculative.prefix import common_length
from localspec.speculative.proposers import DraftModel
from localspec.streaming.cancellation import CancelCheck, never

# Tokens of a text whose entries are copied in the time that one is decoded: some hundreds on
# processors, fewer where the copy has to cross to a GPU.
COPIED_PER_DECODED = 32
# Of a text that waits in a sequence. Without another it would have been copied in any case, for
# the sake of any common beginning.
_COPIED_BESIDE = 128


class CachePool:
    """A text for each owner but the one whose text the loop has; the oldest leave first.

    An owner is any object; its text goes when the object does. models: what the loop's text
    is cached in, the target first; others: whose caches are not copied. budget_bytes: of all
    copies together; 0 keeps none. num_sequences: that each context holds. store: where texts
    are kept that leave.

    Raises OptionError for a budget below 0.
    """

    def __init__(
        self,
        decoder: SpeculativeDecoder,
        models: Sequence[SavesState],
        budget_bytes: int,
        *,
        others: Sequence[UsesSequence] = (),
        num_sequences: int = 1,
        store: KeepsTexts | None = None,
    ) -> None:
        if not (isinstance(budget_bytes, int) and budget_bytes >= 0):
            raise OptionError(f"kept_bytes is {budget_bytes!r}", "Choose 0 (none) or more.")
        self._decoder = decoder
        self._models = models
        self._all = (*models, *others)
        self.budget_bytes = budget_bytes
        self.num_sequences = num_sequences
        self._store = store
        self._sequence = 0  # that the loop's text is in
        self._owner: Callable[[], object | None] = _nobody
        # Least recently used first.
        self._kept: weakref.WeakKeyDictionary[object, PooledCache | WaitingText] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def num_bytes(self) -> int:
        """Memory that the copies take. From any thread."""
        return sum(kept.num_bytes for kept in list(self._kept.values()))

    def switch_to(self, owner: object | None, tokens: Sequence[int]) -> None:
        """Give the loop the owner's text, and keep that of the one before. None: nobody's.

        tokens: what comes next, of which another text may have more: then the loop gets a copy
        of that. Without one of the owner's own the loop's stays, since it may begin alike.
        """
        self._use_own_sequence()
        previous = self._owner()
        own = None
        if owner is not previous:
            if previous is not None:
                self._keep(previous, owner)
            self._owner = _nobody if owner is None else weakref.ref(owner)
            own = None if owner is None else self._kept.pop(owner, None)
        if isinstance(own, WaitingText):
            self._go_to(own.sequence, own.tokens)
            own = None
        if own is None:
            num_there = common_length(self._decoder.tokens, tokens)
            num_there = min(num_there, self._decoder.target.num_cached)
        else:
            num_there = self._reach(own, tokens)
        other = self._better_than(num_there, tokens)
        if other is not None:
            # Used, so the last to leave; and the states are only read.
            used = self._kept[other] = self._kept.pop(other)
            num_there = self._reach(used, tokens)
            copied = self._copied(used) if isinstance(used, WaitingText) else used
            if copied is not None:
                own = copied._replace(tokens=copied.tokens[:])
        stored = None if self._store is None else self._store.best(tokens, num_there)
        own = own if stored is None else stored
        if own is not None:
            self._restore(own)

    def _better_than(self, num_there: int, tokens: Sequence[int]) -> object | None:
        """Whose text spares most decodes of `tokens`, if it spares more than it costs."""
        best, most = None, 0
        for owner, kept in list(self._kept.items()):
            num_spared = self._reach(kept, tokens) - num_there
            ratio = _COPIED_BESIDE if isinstance(kept, WaitingText) else COPIED_PER_DECODED
            if num_spared > max(most, len(kept.tokens) // ratio):
                best, most = owner, num_spared
        return best

    def _reach(self, kept: PooledCache | WaitingText, tokens: Sequence[int]) -> int:
        """How many of `tokens` the target need not decode after a copy of that text."""
        state = kept.outline if isinstance(kept, WaitingText) else kept.states[0]
        if state is None:
            return 0
        return self._models[0].reach(state, common_length(kept.tokens, tokens))

    def clear(self) -> None:
        """Free what was kept."""
        self._kept.clear()

    def text_of(self, owner: object) -> PooledCache | None:
        """A copy of the owner's text and its states, if there is one.

        Raises CacheError if they are larger than the budget, which `put` would refuse.
        """
        self._use_own_sequence()
        kept = self._as_waiting() if owner is self._owner() else self._kept.get(owner)
        if isinstance(kept, WaitingText):
            self._check_size(self._copied_bytes(kept))
            return self._copied(kept)
        return kept

    def put(self, owner: object, kept: PooledCache) -> None:
        """Make that the owner's text, from the next `switch_to` on.

        Raises CacheError if it is larger than the budget.
        """
        self.make_room(kept.num_bytes)
        if owner is self._owner():
            self._owner = _nobody
        self._kept[owner] = kept

    def make_room(self, num_bytes: int) -> None:
        """Let older copies leave for one of that size. Raises CacheError if it is too large."""
        self._check_size(num_bytes)
        for owner, kept in list(self._kept.items()):
            if self.num_bytes + num_bytes <= self.budget_bytes:
                break
            if isinstance(kept, PooledCache):
                self._kept.pop(owner, None)
                self._put_aside(kept)

    def put_all_aside(self, is_cancelled: CancelCheck = never) -> None:
        """Have all texts on disk that are worth it, the latest first, until it is cancelled."""
        if self._store is None:
            return
        self._use_own_sequence()
        with contextlib.suppress(Interrupted):
            for text in (self._as_waiting(), *reversed(list(self._kept.values()))):
                self._put_aside(text, is_cancelled)

    def _put_aside(
        self, text: PooledCache | WaitingText, is_cancelled: CancelCheck = never
    ) -> None:
        """Have a text on disk if it is worth it. Raises Interrupted once it is cancelled."""

        def check() -> None:
            if is_cancelled():
                raise Interrupted("a text was not kept on disk: other work has come")

        state = text.outline if isinstance(text, WaitingText) else text.states[0]
        if self._store is None or state is None or not self._store.wants(text.tokens, state):
            return
        if isinstance(text, PooledCache):
            self._store.keep(text, check)
        elif self._store.has_room_for(self._copied_bytes(text)):
            copied = self._copied(text)
            if copied is not None:
                self._store.keep(copied, check)

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes > self.budget_bytes:
            raise CacheError(
                f"{num_bytes} bytes of caches are more than {self.budget_bytes}",
                "Grant more: load(kept_bytes=…).",
            )

    def _keep(self, owner: object, next_owner: object | None) -> None:
        """Let the loop's text wait, in its sequence if there is one for the next owner's."""
        text = self._as_waiting()
        if self.num_sequences == 1:
            copied = self._copied_out(text)
            if copied is not None:
                self._kept[owner] = copied
            return
        if self._decoder.target.num_cached == 0:
            return
        sequence = None
        if not isinstance(next_owner and self._kept.get(next_owner), WaitingText):
            sequence = self._free_sequence()
        for proposer in self._partial():
            proposer.truncate(0)
        self._kept[owner] = text
        if sequence is not None:
            self._go_to(sequence, [])

    def _free_sequence(self) -> int:
        """A sequence for another text; the one that waits longest is copied out if need be."""
        waiting = {o: kept for o, kept in self._kept.items() if isinstance(kept, WaitingText)}
        taken = {self._sequence, *(text.sequence for text in waiting.values())}
        for sequence in range(self.num_sequences):
            if sequence not in taken:
                return sequence
        oldest, text = next(iter(waiting.items()))
        copied = self._copied_out(text)
        if copied is None:
            del self._kept[oldest]
        else:
            self._kept[oldest] = copied  # which leaves its place in the order as it is
        return text.sequence

    def _go_to(self, sequence: int, tokens: list[int]) -> None:
        """Give the loop the text in that sequence; with no tokens, the sequence is emptied.

        Wherever an exception comes, the caches hold what `_use_own_sequence` then needs.
        """
        for model in self._all:
            model.use_sequence(None)
        self._decoder.truncate(0)  # the loop and its proposers; no cache
        self._sequence = sequence
        self._decoder.tokens = tokens
        self._use_own_sequence()
        if not tokens:
            self._decoder.truncate(0)

    def _use_own_sequence(self) -> None:
        """Have all models at the loop's text, whatever an exception has left half done."""
        if self.num_sequences == 1:
            return
        for owner, kept in list(self._kept.items()):
            if isinstance(kept, WaitingText) and kept.sequence == self._sequence:
                del self._kept[owner]
        for model in self._all:
            model.use_sequence(self._sequence)

    @contextlib.contextmanager
    def _at(self, sequence: int) -> Iterator[None]:
        """Have the models at another text, but not the loop."""
        if sequence == self._sequence:
            yield
            return
        try:
            for model in self._models:
                model.use_sequence(sequence)
            yield
        finally:
            for model in self._models:
                model.use_sequence(self._sequence)

    def _as_waiting(self) -> WaitingText:
        """The loop's text."""
        outline = self._models[0].outline()
        return WaitingText(list(self._decoder.tokens), self._sequence, outline)

    def _partial(self) -> list[DraftModel]:
        """The drafts that have not read all of the loop's text, and would be believed to have.

        A head's context knows where it begins.
        """
        return [
            proposer
            for proposer in self._decoder.proposers
            if isinstance(proposer, DraftModel)
            and proposer.kind is ProposerKind.DRAFT
            and proposer.begins_at > 0
        ]

    def _sizes(self, text: WaitingText) -> list[int]:
        """Bytes of each model's state; 0 if there is nothing to keep. The models are at it."""
        partial: list[object] = []
        if text.sequence == self._sequence:
            partial += [proposer.model for proposer in self._partial()]
        return [0 if model in partial else model.state_bytes() for model in self._models]

    def _copied_bytes(self, text: WaitingText) -> int:
        with self._at(text.sequence):
            return sum(self._sizes(text))

    def _copied_out(self, text: WaitingText) -> PooledCache | None:
        """A copy, for which older ones leave; None if there is nothing, or no room for it."""
        num_bytes = self._copied_bytes(text)
        if num_bytes > self.budget_bytes:
            self._put_aside(text)
        if not 0 < num_bytes <= self.budget_bytes:
            return None
        self.make_room(num_bytes)
        return self._copied(text)

    def _copied(self, text: WaitingText) -> PooledCache | None:
        """The text and states; None if nothing is cached, or copying fails."""
        try:
            with self._at(text.sequence):
                states = [
                    model.save_state() if size else None
                    for model, size in zip(self._models, self._sizes(text), strict=True)
                ]
        except CacheError:
            return None  # then the text is decoded again when it comes back
        return PooledCache(text.tokens, states) if any(states) else None

    def _restore(self, kept: PooledCache) -> None:
        self._decoder.truncate(0)
        # Now, since whatever happens below, each cache holds a prefix of it.
        self._decoder.tokens = kept.tokens
        for model, state in zip(self._models, kept.states, strict=True):
            if state is not None:
                try:
                    model.restore_state(state)
                except CacheError:
                    continue  # its cache is empty, and decodes what it lacks


def _nobody() -> None:
    return None
