"""Texts that wait, with the caches of each.

Each lane has one text at a time, and where the models' contexts hold several sequences, there
are as many lanes: a conversation that comes back finds its own text where it left it. Where
all lanes are taken, the text that has waited longest there is copied out, as long as the
memory that was granted suffices; what has to leave that may go to disk. A new text begins with
a copy of the one that it shares most with.
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

# Of a text that lies in another lane. Without that it would have been copied in any case, for
# the sake of any common beginning.
_COPIED_BESIDE = 128
_FEW = 32  # tokens that are read rather than an answer be apart from those at work


class CachePool:
    """A text for each owner, in a lane or copied out; of copies the oldest leave first.

    An owner is any object; its text goes when the object does.

    Args:
        room: Bounds of all copies together: memory, where 0 keeps none, and the disk to which
            go texts that leave the memory.
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
        # References come by one call of C: an iteration fails where another thread changes it.
        owners = [reference() for reference in self._kept.keyrefs()]
        copies = [self._kept.get(owner) for owner in owners if owner is not None]
        return sum(kept.num_bytes for kept in copies if kept is not None)

    def lane_for(self, owner: object | None, tokens: Sequence[int], scope: Scope) -> Lane:
        """The free lane with the owner's text, or the one whose text can best be spared.

        Prefers an unowned lane whose text is a prefix of `tokens`, then an empty one; among
        these the nearest to those at work, since decodes of neighbours are joined, even where
        it has a few tokens less than another.
        """
        at_work = [number for number, lane in enumerate(self._lanes) if not lane.is_free]

        def rank(lane: Lane) -> tuple[bool, bool, int, int, int]:
            owned_by = lane.owner()
            is_own = owner is not None and owned_by is owner
            is_taken = owned_by is not None
            num_there = 0 if is_taken else lane.common_with(tokens, scope)
            own = self._lanes.index(lane)
            apart = min((abs(number - own) for number in at_work), default=0)
            distance = 0 if is_taken else apart
            num_worth = num_there // (_FEW if at_work else 1)
            return not is_own, is_taken, -num_worth, distance, lane.last_used

        return min((lane for lane in self._lanes if lane.is_free), key=rank)

    def switch_to(
        self, lane: Lane, owner: object | None, tokens: Sequence[int], scope: Scope
    ) -> None:
        """Give a lane the owner's text, and keep that of the one before. None: nobody's.

        Args:
            tokens: What comes next, of which another text may have more, also one in another
                lane: then the lane gets a copy of that. Without one of the owner's own the text
                there stays, since it may begin alike.
            scope: The scope of what comes next; texts of others are left alone.
        """
        lane.last_used = next(self._uses)
        previous = lane.owner()
        own = None
        if owner is not previous:
            if previous is not None:
                copied = self._park(lane)
                if copied is not None:
                    self._kept[previous] = copied
            lane.owner = nobody if owner is None else weakref.ref(owner)
            own = None if owner is None else self._kept.pop(owner, None)
        if own is not None and own.scope != scope:  # the owner asks under other scales
            self._save(own)
            own = None
        num_there = lane.common_with(tokens, scope) if own is None else self._reach(own, tokens)
        others = [other for other in self._lanes if other is not lane]
        better = self._better_than(num_there, tokens, others, scope)
        if better is not None:
            own = better
            num_there = self._reach(better, tokens)
        stored = None
        if self._store is not None:
            stored = self._store.best(tokens, num_there, scope.scales)
        own = own if stored is None else stored
        lane.enter(scope)
        if own is not None:
            lane.restore(own)

    def _better_than(
        self, num_there: int, tokens: Sequence[int], others: Sequence[Lane], scope: Scope
    ) -> PooledCache | None:
        """A copy of the text that spares most decodes, if it spares more than it costs."""
        best: object | None = None
        most = num_there
        for owner, kept in [each for each in self._kept.items() if each[1].scope == scope]:
            num_common = self._reach(kept, tokens)
            if num_common - num_there > max(
                most - num_there, len(kept.tokens) // COPIED_PER_DECODED
            ):
                best = owner
                most = num_common
        for lane in [each for each in others if each.scope == scope]:
            target = lane.models.target
            held = lane.decoder.tokens
            num_common = target.cache.reach(target.cache.outline(), common_length(held, tokens))
            if num_common - num_there > max(most - num_there, len(held) // _COPIED_BESIDE):
                best = lane
                most = num_common
        if best is None:
            return None
        if isinstance(best, Lane):
            copied = best.copied() if best.is_free else best.beginning(tokens)
            if copied is not None and best.is_free and best.models.head is not None:
                copied = copied._replace(head=best.models.head.copied())
            return copied
        # Used, so the last to leave; and the states are only read.
        used = self._kept[best] = self._kept.pop(best)
        return used._replace(tokens=used.tokens[:])

    def _reach(self, kept: PooledCache, tokens: Sequence[int]) -> int:
        """How many of `tokens` the target need not decode after a copy of that text."""
        state = kept.states[0]
        if state is None:
            return 0
        target = self._lanes[0].models.target
        return target.cache.reach(state, common_length(kept.tokens, tokens))

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
        """Let older copies leave for one of that size. Raises CacheError if it is too large."""
        self._check_size(num_bytes)
        for owner, kept in list(self._kept.items()):
            if self.num_bytes + num_bytes <= self.budget_bytes:
                break
            self._kept.pop(owner, None)
            self._save(kept)

    def save_all(self, is_cancelled: CancelCheck = never) -> None:
        """Save all texts to disk that are worth it, the latest first, until it is cancelled."""
        with contextlib.suppress(Interrupted):
            for lane in sorted(self._lanes, key=lambda lane: -lane.last_used):
                self._save_lane(lane, is_cancelled)
            for kept in reversed(list(self._kept.values())):
                self._save(kept, is_cancelled)

    def _save_lane(self, lane: Lane, is_cancelled: CancelCheck = never) -> None:
        """As `_save`, with the text of a lane."""
        outline = lane.models.target.cache.outline()
        size = sum(lane.sizes())
        store = self._store
        if store is None or not store.has_room_for(size):
            return
        if store.wants(lane.decoder.tokens, outline, lane.scope.scales):
            copied = lane.copied()
            if copied is not None:
                self._save(copied, is_cancelled)

    def _save(self, text: PooledCache, is_cancelled: CancelCheck = never) -> None:
        """Save a text to disk if it is worth it. Raises Interrupted once it is cancelled."""

        def check() -> None:
            if is_cancelled():
                raise Interrupted("a text was not kept on disk: other work came first")

        state = text.states[0]
        store = self._store
        if store is None or state is None:
            return
        if store.wants(text.tokens, state, text.scope.scales):
            store.keep(text, check)

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes > self.budget_bytes:
            raise CacheError(
                f"the caches take {num_bytes} bytes; the limit is {self.budget_bytes}",
                "Allow more: load(kept_bytes=…).",
            )

    def _park(self, lane: Lane) -> PooledCache | None:
        """Copy a lane's text to memory; older copies make room. None without a text or room."""
        num_bytes = sum(lane.sizes())
        if num_bytes > self.budget_bytes:
            self._save_lane(lane)
        if not 0 < num_bytes <= self.budget_bytes:
            return None
        self.make_room(num_bytes)
        return lane.copied()


def _store_of(models: Models, disk: CacheDisk) -> CacheStore | None:
    if disk.num_bytes:
        target = models.target
        try:
            return CacheStore(
                disk, models.identities, target.cache.reach, target.context_length
            )
        except CacheError as error:
            logger.warning("conversations are not kept on disk: %s", error)
    return None
