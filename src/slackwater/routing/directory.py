"""Finding the range of a key: the cache, then the index of ranges.

    key ──► RangeCache ──miss──► first_range()  holds it?  (range 1: meta and liveness; it never splits)
                                      │ no
                                      └──► Scan meta_after(key) on range 1 ──► descriptors, into the cache

The index maps end keys to descriptors and is brought up to date after a split or merge, not with it. So it can be old
(the replica refuses and says what it knows) or, for a moment, have a hole (no descriptor holds the key: look again
after a pause). A lookup reads a few rows ahead: a caller that needs one range often needs its neighbor next.

Lookups take turns, LOOKUPS_MAX at a time, and look into the cache again once it is their turn: a thousand requests that
miss the same range cost one read. A lookup never needs another lookup: the descriptor of range 1 is kept apart from the
cache, where it could be displaced, and is asked of `first_range` when its replicas no longer answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.codec import layout
from slackwater.errors import ConflictError, RangeMismatch, SlackwaterError, UnavailableError
from slackwater.hooks import buggify, probe
from slackwater.model.descriptors import FIRST_RANGE, RangeDescriptor
from slackwater.protocol.range.requests import Header, Rows, Scan
from slackwater.routing.call import AllReplicasTried
from slackwater.runtime.sync import Semaphore, timeout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from slackwater.model.ids import RangeId
    from slackwater.protocol.range.requests import BatchResult, Request
    from slackwater.routing.call import Call
    from slackwater.routing.range_cache import RangeCache

LOOKUPS_MAX = 8
LOOKUP_ROWS = 8
"""Descriptors read per lookup: the one asked for and what follows it."""

_decoder = msgspec.msgpack.Decoder(RangeDescriptor)


class Directory:
    """Finds the ranges of keys: in the cache, or by asking range 1."""

    def __init__(
        self,
        cache: RangeCache,
        *,
        first_range: Callable[[], Awaitable[RangeDescriptor]],
        ask: Callable[[RangeDescriptor, Sequence[Request], Header, Call], Awaitable[BatchResult]],
    ) -> None:
        """`ask` makes one round over the replicas of a range."""
        self.cache = cache
        self.on_conflict: Callable[[ConflictError, Call], Awaitable[None]] | None = None
        """Clears intents met in the index; set by the transaction layer, which lies above this one."""
        self.held: Callable[[RangeId], RangeDescriptor | None] = lambda _: None
        """What the store beside it, if there is one, knows of its own replica of a range; set by the node."""
        self._first: RangeDescriptor | None = None
        self._first_range = first_range
        self._ask = ask
        self._turns = Semaphore(LOOKUPS_MAX)

    async def locate(self, key: bytes, call: Call, *, below: bool = False) -> RangeDescriptor:
        """The range that holds `key`; with `below`, the one that holds the keys just below it."""
        while True:
            found = self.cached(key, below=below)
            if found is None or buggify("routing.forget_range"):
                found = await self._in_turn(key, call, below=below)
            found = _newer(found, call.told, key, below=below)
            if found is not None:
                return found
            probe("routing.meta_hole")
            call.last = UnavailableError("the index of ranges has no entry for the key yet", key=key)
            await call.next_round(pause=True)

    def known(self, key: bytes) -> RangeDescriptor | None:
        """The range that holds `key`, if no lookup is needed to tell."""
        return None if buggify("routing.forget_range") else self.cached(key, below=False)

    async def _in_turn(self, key: bytes, call: Call, *, below: bool) -> RangeDescriptor | None:
        try:
            async with timeout(call.deadline.remaining()):
                await self._turns.acquire()
        except TimeoutError:
            raise UnavailableError("too many lookups of ranges wait for the index", key=key) from None
        try:
            return self.cached(key, below=below) or await self._lookup(key, call, below=below)
        finally:
            self._turns.release()

    def forget_first_range(self) -> None:
        """Ask for range 1 again next time: its replicas may have moved."""
        if self._first is not None:
            self.cache.evict(self._first)
        self._first = None

    async def refresh(self, descriptor: RangeDescriptor, call: Call) -> None:
        """Look a range up again that no replica answers for; when the index cannot be read either, all stays as it is."""
        try:
            await self._lookup(descriptor.start, call, below=False)
        except SlackwaterError as error:
            probe("routing.refresh_failed")
            call.last = error

    def learn(self, wrong: RangeDescriptor, known: Sequence[RangeDescriptor]) -> bool:
        """`wrong` was refused; `known` is what the replica knows instead. Whether that was news."""
        news = False
        for descriptor in known:
            if descriptor != self.cache.lookup(descriptor.start) and self.cache.insert(descriptor):
                news = True
        if wrong not in known:
            self.cache.evict(wrong)
            if wrong.range_id == FIRST_RANGE:
                self._first = None  # its replicas have moved: ask again
        return news

    def cached(self, key: bytes, *, below: bool = False) -> RangeDescriptor | None:
        """What the cache has, unless the replica here knows better.

        A descriptor from before this node had a replica works for ever, by way of the others: no refusal would ever say that it
        is old, and no read would be served from here.
        """
        found = _lookup_in(self.cache, key, below=below)
        own = self.held(found.range_id) if found is not None else None
        if found is None or own is None or own.generation <= found.generation:
            return found
        probe("routing.replica_here_is_newer")
        self.cache.insert(own)
        return _lookup_in(self.cache, key, below=below)

    async def _lookup(self, key: bytes, call: Call, *, below: bool) -> RangeDescriptor | None:
        first = await self._first_descriptor(call)
        if _holds(first, key, below=below):
            return first
        start = layout.meta(key) if below else layout.meta_after(key).start
        request = Scan(start, layout.prefix_end(layout.META))
        header = Header(FIRST_RANGE, max_keys=LOOKUP_ROWS)
        rows = await self._read_index(request, header, call.fork(home=start, repeatable=True))
        found = None
        for descriptor in map(_decoder.decode, rows.values):
            self.cache.insert(descriptor)
            if found is None and _holds(descriptor, key, below=below):
                found = descriptor
        return found

    async def _first_descriptor(self, call: Call) -> RangeDescriptor:
        if self._first is None:
            try:
                async with timeout(call.deadline.remaining()):
                    self._first = await self._first_range()
            except TimeoutError:
                raise UnavailableError("no node told of the first range before the deadline") from None
        self.cache.insert(self._first)
        return self._first

    async def _read_index(self, request: Scan, header: Header, call: Call) -> Rows:
        while True:
            first = await self._first_descriptor(call)
            try:
                answer = await self._ask(first, [request], header, call)
            except RangeMismatch:
                self.forget_first_range()
                await call.next_round(pause=True)
                continue
            except AllReplicasTried:
                await call.next_round(pause=True)
                if call.looks_again:
                    self.forget_first_range()
                continue
            except ConflictError as error:
                call.last = error
                if self.on_conflict is not None:
                    await self.on_conflict(error, call)
                await call.next_round(pause=True)
                continue
            rows = answer.results[0]
            if not isinstance(rows, Rows):
                raise UnavailableError("a scan of the index was answered with something else", kind=type(rows).__name__)
            return rows


def _lookup_in(cache: RangeCache, key: bytes, *, below: bool) -> RangeDescriptor | None:
    return cache.lookup_below(key) if below else cache.lookup(key)


def _newer(
    found: RangeDescriptor | None, told: RangeCache | None, key: bytes, *, below: bool
) -> RangeDescriptor | None:
    """What this call was told by a replica, if it is newer than what was found."""
    if not told:
        return found
    other = _lookup_in(told, key, below=below)
    return other if found is None or (other is not None and other.generation > found.generation) else found


def _holds(descriptor: RangeDescriptor, key: bytes, *, below: bool) -> bool:
    return descriptor.start < key <= descriptor.end if below else descriptor.contains(key)
