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

# A text in another lane is copied only if that spares a decode for every 128 of its tokens.
# Without this bound a common beginning of any length would copy it.
_LANE_COPIED_PER_DECODED = 128
# A lane next to busy lanes is preferred to a lane with up to that many more cached tokens.
_TOKENS_PER_RANK = 32


class CachePool:
    """A text for each owner, in a lane or as a copy in memory. The oldest copies leave first.

    An owner is any object. Its text is freed when the object is.

    Args:
        lanes: All lanes of the engine.
        room: The most bytes of all copies in memory together (0 keeps none), and of the files
            to which texts are written that leave the memory.
    """

    def __init__(self, lanes: Sequence[Lane], room: CacheRoom) -> None:
        self._lanes = lanes
        self._store = _store_of(lanes[0].models, room.disk)
        self.budget_bytes = room.memory_bytes
        self._uses = itertools.count(1)
        # Least recently used first.
        self._copies: weakref.WeakKeyDictionary[object, PooledCache] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that the copies take. From any thread."""
        num_bytes = 0
        # `keyrefs` is one call of C: iterating over the dictionary itself fails where another
        # thread changes it.
        for reference in self._copies.keyrefs():
            owner = reference()
            if owner is None:
                continue
            copied = self._copies.get(owner)
            if copied is not None:
                num_bytes += copied.num_bytes
        return num_bytes

    def lane_for(self, owner: object | None, tokens: Sequence[int], scope: Scope) -> Lane:
        """The free lane with the owner's text, or else the free lane whose text is worth least.

        If no lane has the owner's text, the lanes that nobody owns come first: the lane with
        most of `tokens` cached, or one with a few cached tokens less that is nearer to busy
        lanes, since decodes of neighbours are joined. If all free lanes are owned, it is the
        lane that was not used for longest.

        Args:
            owner: The owner of the next text; None if nobody owns it.
            tokens: The next text.
            scope: The scope of the next text.
        """
        free = [lane for lane in self._lanes if lane.is_free]
        busy_numbers = []
        for number, lane in enumerate(self._lanes):
            if not lane.is_free:
                busy_numbers.append(number)
        tokens_per_rank = 1
        if busy_numbers:
            tokens_per_rank = _TOKENS_PER_RANK

        def rank(lane: Lane) -> tuple[int, int, int, int]:
            """The rank of a lane: the lane with the lowest is taken."""
            lane_owner = lane.owner()
            if lane_owner is None:
                cached_rank = lane.common_with(tokens, scope) // tokens_per_rank
                own_number = self._lanes.index(lane)
                distances = [abs(number - own_number) for number in busy_numbers]
                distance = min(distances, default=0)
                return 1, -cached_rank, distance, lane.last_used
            if lane_owner is owner:
                return 0, 0, 0, lane.last_used
            return 2, 0, 0, lane.last_used

        return min(free, key=rank)

    def switch_to(
        self,
        lane: Lane,
        owner: object | None,
        tokens: Sequence[int],
        scope: Scope,
    ) -> None:
        """Give a lane to an owner, with the cached text that spares most decodes of `tokens`.

        The lane's present text is kept for its owner. The next text is the new owner's own, or
        a copy of another text if that has a longer beginning of `tokens` cached: of a text in
        memory, in another lane or on disk. If there is neither, the lane keeps its present
        text, which may begin like `tokens`, unless that text has another scope.

        Args:
            lane: The lane, which is free.
            owner: The owner of the next text; None if nobody owns it.
            tokens: The tokens that will be read next.
            scope: The scope of the next text; texts of other scopes are not used.
        """
        lane.last_used = next(self._uses)
        to_load: PooledCache | None = None  # the lane's next text, if it is not there yet
        if owner is not lane.owner():
            self._keep_text(lane)
            to_load = self._change_owner(lane, owner)
        if to_load is not None and to_load.scope != scope:  # the owner asks under other scales
            self._save(to_load)
            to_load = None
        num_cached = lane.common_with(tokens, scope)
        if to_load is not None:
            num_cached = self._num_reusable(to_load, tokens)
        other_lanes = [other for other in self._lanes if other is not lane]
        better = self._best_copy(num_cached, tokens, other_lanes, scope)
        if better is not None:
            to_load = better
            num_cached = self._num_reusable(better, tokens)
        if self._store is not None:
            stored = self._store.best(tokens, num_cached, scope.scales)
            if stored is not None:
                to_load = stored
        lane.enter(scope)
        if to_load is not None:
            lane.restore(to_load)

    def _keep_text(self, lane: Lane) -> None:
        """Keep a copy of the lane's text, if the text has an owner."""
        owner = lane.owner()
        if owner is None:
            return
        copied = self._copy_within_budget(lane, owner)
        if copied is not None:
            self._copies[owner] = copied

    def _change_owner(self, lane: Lane, owner: object | None) -> PooledCache | None:
        """Make `owner` the lane's owner. Removes and returns the owner's copy, if there is one.

        Args:
            lane: The lane.
            owner: The new owner; None for nobody.
        """
        if owner is None:
            lane.owner = nobody
            return None
        lane.owner = weakref.ref(owner)
        return self._copies.pop(owner, None)

    def _best_copy(
        self,
        num_cached: int,
        tokens: Sequence[int],
        other_lanes: Sequence[Lane],
        scope: Scope,
    ) -> PooledCache | None:
        """A copy of the text that spares the most decodes; None if none is worth its copying.

        Args:
            num_cached: How many of `tokens` need no decode even without such a copy.
            tokens: The next text.
            other_lanes: The other lanes, whose texts may be copied, too.
            scope: The scope of the next text.
        """
        best: object | None = None  # a lane, or the owner of a copy
        most_spared = 0
        for owner, copied in list(self._copies.items()):
            if copied.scope != scope:
                continue
            num_spared = self._num_reusable(copied, tokens) - num_cached
            copy_cost = len(copied.tokens) // COPIED_PER_DECODED  # in decodes
            if num_spared > max(most_spared, copy_cost):
                best = owner
                most_spared = num_spared
        for lane in other_lanes:
            if lane.scope != scope:
                continue
            cache = lane.models.target.cache
            lane_tokens = lane.decoder.tokens
            num_common = common_length(lane_tokens, tokens)
            num_spared = cache.num_restorable(cache.outline(), num_common) - num_cached
            copy_cost = len(lane_tokens) // _LANE_COPIED_PER_DECODED  # in decodes
            if num_spared > max(most_spared, copy_cost):
                best = lane
                most_spared = num_spared
        if best is None:
            return None
        if isinstance(best, Lane):
            return _copy_from_lane(best, tokens)
        # The copy goes to the end of the order: it was just used, so it leaves the memory last.
        # The returned text shares its states, which are only read.
        used = self._copies.pop(best)
        self._copies[best] = used
        return used._replace(tokens=used.tokens[:])

    def _num_reusable(self, pooled: PooledCache, tokens: Sequence[int]) -> int:
        """How many of `tokens` the target need not decode once `pooled` is loaded."""
        state = pooled.states[0]
        if state is None:
            return 0
        num_common = common_length(pooled.tokens, tokens)
        return self._lanes[0].models.target.cache.num_restorable(state, num_common)

    def clear(self) -> None:
        """Free all copies in memory."""
        self._copies.clear()

    def text_of(self, owner: object) -> PooledCache | None:
        """A copy of the owner's text and its states.

        None if nothing of it is cached, or copying fails.

        Raises CacheError if the states are larger than the budget: `put` would refuse them.
        """
        for lane in self._lanes:
            if lane.owner() is owner:
                self._check_size(sum(lane.sizes()))
                return lane.copied()
        return self._copies.get(owner)

    def put(self, owner: object, text: PooledCache) -> None:
        """Replace the owner's text. The next `switch_to` for the owner loads it.

        Raises CacheError if the text is larger than the budget.
        """
        self.make_room(text.num_bytes, owner)
        for lane in self._lanes:
            if lane.owner() is owner:
                lane.owner = nobody
        self._copies[owner] = text

    def make_room(self, num_bytes: int, owner: object) -> None:
        """Remove the oldest copies until a new one fits. Those worth a file go to disk.

        Args:
            num_bytes: The size of the new copy.
            owner: Its owner, whose old copy it replaces. The old one is removed first.

        Raises:
            CacheError: If the new copy alone is larger than the budget.
        """
        self._check_size(num_bytes)
        self._copies.pop(owner, None)
        for oldest_owner, oldest in list(self._copies.items()):
            if self.num_bytes + num_bytes <= self.budget_bytes:
                break
            self._copies.pop(oldest_owner, None)
            self._save(oldest)

    def save_all(self, is_cancelled: CancelCheck = never) -> None:
        """Write all texts worth a file to disk, the last used first, until cancelled."""
        latest_first = sorted(self._lanes, key=lambda lane: -lane.last_used)
        with contextlib.suppress(Interrupted):
            for lane in latest_first:
                self._save_lane(lane, is_cancelled)
            for copied in reversed(list(self._copies.values())):
                self._save(copied, is_cancelled)

    def _save_lane(self, lane: Lane, is_cancelled: CancelCheck = never) -> None:
        """Write a lane's text to disk if it is worth a file. Raises as `_save`."""
        store = self._store
        num_bytes = sum(lane.sizes())
        if store is None or not store.has_room_for(num_bytes):
            return
        # `_save` checks the same, but needs a copy of the text for that.
        outline = lane.models.target.cache.outline()
        if not store.is_worth_file(lane.decoder.tokens, outline, lane.scope.scales):
            return
        copied = lane.copied()
        if copied is not None:
            self._save(copied, is_cancelled)

    def _save(self, text: PooledCache, is_cancelled: CancelCheck = never) -> None:
        """Write a text to disk if it is worth a file: see `CacheStore.is_worth_file`.

        Raises Interrupted once this is cancelled.
        """

        def raise_if_cancelled() -> None:
            if is_cancelled():
                raise Interrupted("a text was not kept on disk: other work came first")

        target_state = text.states[0]
        store = self._store
        if store is None or target_state is None:
            return
        if store.is_worth_file(text.tokens, target_state, text.scope.scales):
            store.keep(text, raise_if_cancelled)

    def _check_size(self, num_bytes: int) -> None:
        """Raise CacheError if a copy of that size is larger than the budget."""
        if num_bytes > self.budget_bytes:
            raise CacheError(
                f"the caches take {num_bytes} bytes; the limit is {self.budget_bytes}",
                "Allow more: load(kept_bytes=…).",
            )

    def _copy_within_budget(self, lane: Lane, owner: object) -> PooledCache | None:
        """A copy of the lane's text for its owner, after older copies have made room for it.

        None if there is nothing to copy, or copying fails, or the copy alone is larger than the
        budget. In that last case the text is written to disk instead, if it is worth a file.
        """
        num_bytes = sum(lane.sizes())
        if num_bytes == 0:
            return None
        if num_bytes > self.budget_bytes:
            self._save_lane(lane)
            return None
        self.make_room(num_bytes, owner)
        return lane.copied()


def _copy_from_lane(lane: Lane, tokens: Sequence[int]) -> PooledCache | None:
    """A copy of a lane's text for another lane, which will read `tokens`.

    While an answer runs in the copied lane, only the common beginning of its text and `tokens`
    is copied. None if there is nothing to copy, or copying fails.
    """
    if not lane.is_free:
        return lane.beginning(tokens)
    copied = lane.copied()
    head = lane.models.head
    if copied is None or head is None:
        return copied
    return copied._replace(head=head.copy_state())  # `Lane.copied` leaves out the head's data


def _store_of(models: Models, disk: CacheDisk) -> CacheStore | None:
    """The store of texts on disk; None if nothing may be kept there.

    None also, with a warning in the log, if the models cannot be identified.
    """
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
