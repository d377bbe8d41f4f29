"""Texts that wait, with the caches of each.

Each place has one text at a time, and where the models' contexts hold several sequences, there
are as many places: a conversation that comes back finds its own text where it left it. Where
all places are taken, the text that has waited longest there is copied out, as long as the
memory that was granted suffices; what has to leave that may go to disk. A new text begins with
a copy of the one that it shares most with.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from localspec.engine.cache_file import PooledCache
from localspec.engine.cache_store import COPIED_PER_DECODED, CacheStore
from localspec.errors import CacheError, Interrupted
from localspec.speculative.loop import SpeculativeDecoder
from localspec.speculative.policy_api import ProposerKind
from localspec.speculative.prefix import common_length
from localspec.speculative.proposers import DraftModel
from localspec.streaming.cancellation import CancelCheck, never

if TYPE_CHECKING:
    from localspec.llama.model import LlamaModel

# Of a text that lies in another place. Without that it would have been copied in any case, for
# the sake of any common beginning.
_COPIED_BESIDE = 128
_FEW = 32  # tokens that are read rather than an answer be apart from those at work


class CopiedHead(Protocol):
    """A head whose state can be copied to another lane, up to the common prefix."""

    def copied(self) -> Any:
        """A copy of its state, for `take_over`. From any thread."""

    def take_over(self, other: Any, num_cached: int) -> None:
        """Have that of the first num_cached tokens, which its target has cached."""


class TextPlace:
    """Where a loop works on one text. models: what that is cached in, the target first.

    head: what else reads it, and is copied only to other places: it is soon read again.
    owner: gives the text's owner; None once that is gone, and of nobody's text. client: whose
    prompt it was, as `Prompt` has it.
    """

    def __init__(
        self,
        decoder: SpeculativeDecoder,
        models: Sequence[LlamaModel],
        head: CopiedHead | None = None,
    ) -> None:
        self.decoder = decoder
        self.models = models
        self.head = head
        self.owner: Callable[[], object | None] = _nobody
        self.client = ""
        self.last_used = 0
        self.is_free = True  # nobody works here

    def common_with(self, tokens: Sequence[int], client: str = "") -> int:
        """How many of a client's `tokens` are cached here."""
        common = common_length(self.decoder.tokens, tokens) if client == self.client else 0
        return min(common, self.decoder.target.num_cached)

    def sizes(self) -> list[int]:
        """Bytes of each model's state; 0 if there is nothing to keep."""
        # Drafts that have not read all of the text, and would be believed to have. A head's
        # context knows where it begins.
        partial: list[object] = [
            proposer.model
            for proposer in self.decoder.proposers
            if isinstance(proposer, DraftModel)
            and proposer.kind is ProposerKind.DRAFT
            and proposer.begins_at > 0
        ]
        return [0 if model in partial else model.state_bytes() for model in self.models]

    def copied(self) -> PooledCache | None:
        """The text and states; None if nothing is cached, or copying fails."""
        try:
            states = [
                model.save_state() if size else None
                for model, size in zip(self.models, self.sizes(), strict=True)
            ]
        except CacheError:
            return None  # then the text is decoded again when it comes back
        if not any(states):
            return None
        return PooledCache(self.decoder.tokens[:], states, client=self.client)

    def beginning(self, tokens: Sequence[int]) -> PooledCache | None:
        """A copy of what the text here begins alike, of target and head.

        Its answer may be in the midst of a step, and tokens that were drafted be cached.
        """
        try:
            state = self.models[0].save_state()
        except CacheError:
            return None
        head = None if self.head is None else self.head.copied()
        common = common_length(self.decoder.tokens, tokens)
        others = [None] * (len(self.models) - 1)
        return PooledCache(list(tokens[:common]), [state, *others], head, self.client)

    def restore(self, kept: PooledCache) -> None:
        """Have that text from now on."""
        self.decoder.truncate(0)
        # Now, since whatever happens below, each cache holds a prefix of it.
        self.decoder.tokens = kept.tokens
        for model, state in zip(self.models, kept.states, strict=True):
            if state is not None:
                try:
                    model.restore_state(state)
                except CacheError:
                    continue  # its cache is empty, and decodes what it lacks
        if self.decoder.target.num_cached > len(kept.tokens):
            self.decoder.truncate(len(kept.tokens))
        if kept.head is not None and self.head is not None:
            self.head.take_over(kept.head, self.decoder.target.num_cached)


Place = TypeVar("Place", bound=TextPlace)


class CachePool(Generic[Place]):
    """A text for each owner, in a place or copied out; of copies the oldest leave first.

    An owner is any object; its text goes when the object does. budget_bytes: of all copies
    together; 0 keeps none. store: where texts are kept that leave.
    """

    def __init__(
        self,
        places: Sequence[Place],
        budget_bytes: int,
        store: CacheStore | None = None,
    ) -> None:
        self._places = places
        self._store = store
        self.budget_bytes = budget_bytes
        self._uses = itertools.count(1)
        # Least recently used first.
        self._kept: weakref.WeakKeyDictionary[object, PooledCache] = weakref.WeakKeyDictionary()

    @property
    def num_bytes(self) -> int:
        """Memory that the copies take. From any thread."""
        # References come by one call of C: an iteration fails where another thread changes it.
        owners = [reference() for reference in self._kept.keyrefs()]
        copies = [self._kept.get(owner) for owner in owners if owner is not None]
        return sum(kept.num_bytes for kept in copies if kept is not None)

    def place_for(self, owner: object | None, tokens: Sequence[int], client: str = "") -> Place:
        """The free place with the owner's text, or the place that is missed least.

        Prefers an unowned place whose text is a prefix of `tokens`, then an empty one; among
        these the nearest to those at work, since decodes of neighbours are joined, even where
        it has a few tokens less than another.
        """
        at_work = [number for number, place in enumerate(self._places) if not place.is_free]

        def rank(place: TextPlace) -> tuple[bool, bool, int, int, int]:
            owned_by = place.owner()
            is_own = owner is not None and owned_by is owner
            is_taken = owned_by is not None
            num_there = 0 if is_taken else place.common_with(tokens, client)
            own = self._places.index(place)
            apart = min((abs(number - own) for number in at_work), default=0)
            distance = 0 if is_taken else apart
            num_worth = num_there // (_FEW if at_work else 1)
            return not is_own, is_taken, -num_worth, distance, place.last_used

        return min((place for place in self._places if place.is_free), key=rank)

    def switch_to(
        self,
        place: TextPlace,
        owner: object | None,
        tokens: Sequence[int],
        client: str = "",
    ) -> None:
        """Give a place the owner's text, and keep that of the one before. None: nobody's.

        tokens: what comes next, of which another text may have more, also one in another place:
        then the place gets a copy of that. Without one of the owner's own the text there stays,
        since it may begin alike. client: whose prompt it is. Texts of others are as if they
        were not there, or how many tokens are cached would tell what they asked.
        """
        place.last_used = next(self._uses)
        previous = place.owner()
        own = None
        if owner is not previous:
            if previous is not None:
                copied = self._copied_out(place)
                if copied is not None:
                    self._kept[previous] = copied
            place.owner = _nobody if owner is None else weakref.ref(owner)
            own = None if owner is None else self._kept.pop(owner, None)
        num_there = (
            place.common_with(tokens, client) if own is None else self._reach(own, tokens)
        )
        others = [other for other in self._places if other is not place]
        better = self._better_than(num_there, tokens, others, client)
        if better is not None:
            own, num_there = better, self._reach(better, tokens)
        stored = None if self._store is None else self._store.best(tokens, num_there)
        own = own if stored is None else stored
        if client != place.client:
            place.decoder.truncate(0)  # before: whatever comes between, no text has two clients
            place.client = client
        if own is not None:
            place.restore(own)

    def _better_than(
        self, num_there: int, tokens: Sequence[int], others: Sequence[TextPlace], client: str
    ) -> PooledCache | None:
        """A copy of the text that spares most decodes, if it spares more than it costs."""
        best: object | None = None
        most = num_there
        for owner, kept in [each for each in self._kept.items() if each[1].client == client]:
            num_common = self._reach(kept, tokens)
            if num_common - num_there > max(
                most - num_there, len(kept.tokens) // COPIED_PER_DECODED
            ):
                best, most = owner, num_common
        for place in [each for each in others if each.client == client]:
            target, held = place.models[0], place.decoder.tokens
            num_common = target.reach(target.outline(), common_length(held, tokens))
            if num_common - num_there > max(most - num_there, len(held) // _COPIED_BESIDE):
                best, most = place, num_common
        if best is None:
            return None
        if isinstance(best, TextPlace):
            copied = best.copied() if best.is_free else best.beginning(tokens)
            if copied is not None and best.is_free and best.head is not None:
                copied = copied._replace(head=best.head.copied())
            return copied
        # Used, so the last to leave; and the states are only read.
        used = self._kept[best] = self._kept.pop(best)
        return used._replace(tokens=used.tokens[:])

    def _reach(self, kept: PooledCache, tokens: Sequence[int]) -> int:
        """How many of `tokens` the target need not decode after a copy of that text."""
        state = kept.states[0]
        if state is None:
            return 0
        target = self._places[0].models[0]
        return target.reach(state, common_length(kept.tokens, tokens))

    def clear(self) -> None:
        """Free what was kept."""
        self._kept.clear()

    def text_of(self, owner: object) -> PooledCache | None:
        """A copy of the owner's text and its states, if there is one.

        Raises CacheError if they are larger than the budget, which `put` would refuse.
        """
        for place in self._places:
            if place.owner() is owner:
                self._check_size(sum(place.sizes()))
                return place.copied()
        return self._kept.get(owner)

    def put(self, owner: object, kept: PooledCache) -> None:
        """Make that the owner's text, from the next `switch_to` on.

        Raises CacheError if it is larger than the budget.
        """
        self.make_room(kept.num_bytes)
        for place in self._places:
            if place.owner() is owner:
                place.owner = _nobody
        self._kept[owner] = kept

    def make_room(self, num_bytes: int) -> None:
        """Let older copies leave for one of that size. Raises CacheError if it is too large."""
        self._check_size(num_bytes)
        for owner, kept in list(self._kept.items()):
            if self.num_bytes + num_bytes <= self.budget_bytes:
                break
            self._kept.pop(owner, None)
            self._put_aside(kept)

    def put_all_aside(self, is_cancelled: CancelCheck = never) -> None:
        """Have all texts on disk that are worth it, the latest first, until it is cancelled."""
        with contextlib.suppress(Interrupted):
            for place in sorted(self._places, key=lambda place: -place.last_used):
                self._put_place_aside(place, is_cancelled)
            for kept in reversed(list(self._kept.values())):
                self._put_aside(kept, is_cancelled)

    def _put_place_aside(self, place: TextPlace, is_cancelled: CancelCheck = never) -> None:
        """As `_put_aside`, the text of a place."""
        outline, size = place.models[0].outline(), sum(place.sizes())
        store = self._store
        if store and store.wants(place.decoder.tokens, outline) and store.has_room_for(size):
            copied = place.copied()
            if copied is not None:
                self._put_aside(copied, is_cancelled)

    def _put_aside(self, text: PooledCache, is_cancelled: CancelCheck = never) -> None:
        """Have a text on disk if it is worth it. Raises Interrupted once it is cancelled."""

        def check() -> None:
            if is_cancelled():
                raise Interrupted("a text was not kept on disk: other work has come")

        state, store = text.states[0], self._store
        if store is not None and state is not None and store.wants(text.tokens, state):
            store.keep(text, check)

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes > self.budget_bytes:
            raise CacheError(
                f"{num_bytes} bytes of caches are more than {self.budget_bytes}",
                "Grant more: load(kept_bytes=…).",
            )

    def _copied_out(self, place: TextPlace) -> PooledCache | None:
        """A copy, for which older ones leave; None if there is nothing, or no room for it."""
        num_bytes = sum(place.sizes())
        if num_bytes > self.budget_bytes:
            self._put_place_aside(place)
        if not 0 < num_bytes <= self.budget_bytes:
            return None
        self.make_room(num_bytes)
        return place.copied()


def _nobody() -> None:
    return None
