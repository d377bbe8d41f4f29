"""Texts that wait, each with its caches.

Each lane has one text at a time. The models' contexts hold several sequences, one for each
lane, so a conversation that returns finds its text where it left it. If all lanes are taken,
the text that has waited longest is copied out, as far as the granted memory suffices. Copies
that have to leave the memory may go to disk. A new text begins with a copy of the text with
which it shares the longest beginning.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import weakref
from collections.abc import Sequence

from localspec.engine.cache_file import PooledCache, Scope
from localspec.engine.cache_store import COPIED_PER_DECODED, CacheStore
from localspec.engine.lane import Lane, nobody
from localspec.engine.open_models import CacheDisk, CacheRoom, Models
from localspec.errors import CacheError, Interrupted
from localspec.speculative.prefix import common_length
from localspec.streaming.cancellation import CancelCheck, never

logger = logging.getLogger(__name__)

# A text in another lane is copied only if more than 1/128 of it is a common beginning. Without
# this bound any common beginning would copy it.
_COPIED_BESIDE = 128
# Tokens: a lane next to those at work is preferred to one with up to that many more cached.
_FEW = 32


class CachePool:
    """A text for each owner, in a lane or copied out; of copies the oldest leave first.

    An owner is any object; its text goes when the object does.

    Args:
        room: Bounds of all copies together: of the memory, where 0 keeps none, and of the disk
            for texts that leave the memory.
    """

    def __init__(self, lanes: Sequence[Lane], room: CacheRoom) -> None:
        self._lanes = lanes
        self._store = _store_of(lanes[0].models, room.disk)
        self.budget_bytes = room.memory_bytes
        self._uses = itertools.count(1)
        # Least recently used first.
        self._kept: weakref.WeakKeyDictionary[object, PooledCache] = weakref.WeakKeyDictionary()

    @property
    def num_bytes(self) -> int:
        """Memory that the copies take. From any thread."""
        num_bytes = 0
        # The references come by one call of C: iterating over the dictionary itself fails where
        # another thread changes it.
        for reference in self._kept.keyrefs():
            owner = reference()
            if owner is None:
                continue
            kept = self._kept.get(owner)
            if kept is not None:
                num_bytes += kept.num_bytes
        return num_bytes

    def lane_for(self, owner: object | None, tokens: Sequence[int], scope: Scope) -> Lane:
        """The free lane with the owner's text, or else the free lane that is cheapest to lose.

        Prefers an unowned lane whose text is a prefix of `tokens`, then an empty one. Among
        these it takes the nearest to the lanes at work, since decodes of neighbours are joined,
        even where that lane has a few tokens less than another.
        """
        free = [lane for lane in self._lanes if lane.is_free]
        at_work = []
        for number, lane in enumerate(self._lanes):
            if not lane.is_free:
                at_work.append(number)
        tokens_per_rank = 1
        if at_work:
            tokens_per_rank = _FEW

        def rank(lane: Lane) -> tuple[bool, bool, int, int, int]:
            owned_by = lane.owner()
            if owned_by is not None:
                is_other = owned_by is not owner
                return is_other, True, 0, 0, lane.last_used
            num_worth = lane.common_with(tokens, scope) // tokens_per_rank
            own = self._lanes.index(lane)
            distances = [abs(number - own) for number in at_work]
            return True, False, -num_worth, min(distances, default=0), lane.last_used

        return min(free, key=rank)

    def switch_to(
        self,
        lane: Lane,
        owner: object | None,
        tokens: Sequence[int],
        scope: Scope,
    ) -> None:
        """Switch a lane to the owner's text, and keep the previous owner's text.

        Args:
            lane: The lane, which is free.
            owner: The owner of the next text; None if nobody owns it.
            tokens: The next text. Where another text has a longer part of it cached, also one
                in another lane, the lane gets a copy of that. If the owner has no text, the
                lane's text stays: it may begin alike.
            scope: The scope of the next text; texts of other scopes are not used.
        """
        lane.last_used = next(self._uses)
        own = None
        if owner is not lane.owner():
            self._keep_text(lane)
            own = self._own_text(lane, owner)
        if own is not None and own.scope != scope:  # the owner asks under other scales
            self._save(own)
            own = None
        num_there = lane.common_with(tokens, scope)
        if own is not None:
            num_there = self._reach(own, tokens)
        others = [other for other in self._lanes if other is not lane]
        copied = self._best_copy(num_there, tokens, others, scope)
        if copied is not None:
            own = copied
            num_there = self._reach(copied, tokens)
        if self._store is not None:
            stored = self._store.best(tokens, num_there, scope.scales)
            if stored is not None:
                own = stored
        lane.enter(scope)
        if own is not None:
            lane.restore(own)

    def _keep_text(self, lane: Lane) -> None:
        """Keep a copy of the lane's text for its owner, if it has one."""
        owner = lane.owner()
        if owner is None:
            return
        copied = self._park(lane)
        if copied is not None:
            self._kept[owner] = copied

    def _own_text(self, lane: Lane, owner: object | None) -> PooledCache | None:
        """Make `owner` the lane's owner. Returns the copy that was kept for it, if any."""
        if owner is None:
            lane.owner = nobody
            return None
        lane.owner = weakref.ref(owner)
        return self._kept.pop(owner, None)

    def _best_copy(
        self,
        num_there: int,
        tokens: Sequence[int],
        others: Sequence[Lane],
        scope: Scope,
    ) -> PooledCache | None:
        """A copy of the text that spares the most decodes; None if none is worth its copying.

        Args:
            num_there: How many of `tokens` need no decode even without such a copy.
            tokens: The next text.
            others: The other lanes, whose texts may be copied, too.
            scope: The scope of the next text.
        """
        best: object | None = None
        most_spared = 0
        for owner, kept in list(self._kept.items()):
            if kept.scope != scope:
                continue
            num_spared = self._reach(kept, tokens) - num_there
            copy_cost = len(kept.tokens) // COPIED_PER_DECODED  # in decodes
            if num_spared > max(most_spared, copy_cost):
                best = owner
                most_spared = num_spared
        for lane in others:
            if lane.scope != scope:
                continue
            cache = lane.models.target.cache
            there = lane.decoder.tokens
            num_common = common_length(there, tokens)
            num_spared = cache.num_restorable(cache.outline(), num_common) - num_there
            copy_cost = len(there) // _COPIED_BESIDE  # in decodes
            if num_spared > max(most_spared, copy_cost):
                best = lane
                most_spared = num_spared
        if best is None:
            return None
        if isinstance(best, Lane):
            return _copy_for(tokens, best)
        # It goes to the end: it was just used, so it leaves last. Its states are shared, since
        # they are only read.
        used = self._kept.pop(best)
        self._kept[best] = used
        return used._replace(tokens=used.tokens[:])

    def _reach(self, kept: PooledCache, tokens: Sequence[int]) -> int:
        """How many of `tokens` the target need not decode after a copy of that text."""
        state = kept.states[0]
        if state is None:
            return 0
        target = self._lanes[0].models.target
        return target.cache.num_restorable(state, common_length(kept.tokens, tokens))

    def clear(self) -> None:
        """Free what was kept."""
        self._kept.clear()

    def text_of(self, owner: object) -> PooledCache | None:
        """A copy of the owner's text and its states, if there is one.

        Raises CacheError if they are larger than the budget, which `put` would refuse.
        """
        for lane in self._lanes:
            if lane.owner() is owner:
                self._check_size(sum(lane.sizes()))
                return lane.copied()
        return self._kept.get(owner)

    def put(self, owner: object, kept: PooledCache) -> None:
        """Make that the owner's text, from the next `switch_to` on.

        Raises CacheError if it is larger than the budget.
        """
        self.make_room(kept.num_bytes)
        for lane in self._lanes:
            if lane.owner() is owner:
                lane.owner = nobody
        self._kept[owner] = kept

    def make_room(self, num_bytes: int) -> None:
        """Let older copies leave for a new one. Raises CacheError if that is too large.

        Args:
            num_bytes: The size of the new copy.
        """
        self._check_size(num_bytes)
        for owner, kept in list(self._kept.items()):
            if self.num_bytes + num_bytes <= self.budget_bytes:
                break
            self._kept.pop(owner, None)
            self._save(kept)

    def save_all(self, is_cancelled: CancelCheck = never) -> None:
        """Write all texts that are worth it to disk, the latest first, until cancelled."""
        latest_first = sorted(self._lanes, key=lambda lane: -lane.last_used)
        with contextlib.suppress(Interrupted):
            for lane in latest_first:
                self._save_lane(lane, is_cancelled)
            for kept in reversed(list(self._kept.values())):
                self._save(kept, is_cancelled)

    def _save_lane(self, lane: Lane, is_cancelled: CancelCheck = never) -> None:
        """Write a lane's text to disk if it is worth it. Raises Interrupted, as `_save`."""
        store = self._store
        if store is None or not store.has_room_for(sum(lane.sizes())):
            return
        # `_save` asks the same, but only once the text is copied.
        outline = lane.models.target.cache.outline()
        if not store.wants(lane.decoder.tokens, outline, lane.scope.scales):
            return
        copied = lane.copied()
        if copied is not None:
            self._save(copied, is_cancelled)

    def _save(self, text: PooledCache, is_cancelled: CancelCheck = never) -> None:
        """Write a text to disk if it is worth it. Raises Interrupted once it is cancelled."""

        def raise_if_cancelled() -> None:
            if is_cancelled():
                raise Interrupted("a text was not kept on disk: other work came first")

        target_state = text.states[0]
        store = self._store
        if store is None or target_state is None:
            return
        if store.wants(text.tokens, target_state, text.scope.scales):
            store.keep(text, raise_if_cancelled)

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes > self.budget_bytes:
            raise CacheError(
                f"the caches take {num_bytes} bytes; the limit is {self.budget_bytes}",
                "Allow more: load(kept_bytes=…).",
            )

    def _park(self, lane: Lane) -> PooledCache | None:
        """A copy of the lane's text in memory, for which older copies leave.

        None if there is nothing to copy, or copying fails, or all the room is too small for it.
        In that last case the text is written to disk instead, if it is worth it.
        """
        num_bytes = sum(lane.sizes())
        if num_bytes == 0:
            return None
        if num_bytes > self.budget_bytes:
            self._save_lane(lane)
            return None
        self.make_room(num_bytes)
        return lane.copied()


def _copy_for(tokens: Sequence[int], lane: Lane) -> PooledCache | None:
    """A copy of another lane's text, to go on with `tokens` in this one.

    While an answer runs in that lane, only what both texts begin with is copied. Returns None
    if there is nothing to copy, or copying fails.
    """
    if not lane.is_free:
        return lane.beginning(tokens)
    copied = lane.copied()
    head = lane.models.head
    if copied is None or head is None:
        return copied
    return copied._replace(head=head.copy_state())  # `Lane.copied` leaves out the head's data


def _store_of(models: Models, disk: CacheDisk) -> CacheStore | None:
    """The texts on disk; None if the disk may keep none, or the store cannot be used."""
    if disk.num_bytes == 0:
        return None
    target = models.target
    try:
        return CacheStore(
            disk, models.identities, target.cache.num_restorable, target.context_length
        )
    except CacheError as error:
        logger.warning("conversations are not kept on disk: %s", error)
        return None
