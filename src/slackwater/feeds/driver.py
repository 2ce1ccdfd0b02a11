"""The change feeds of one node, alive: replicas with consumers, sessions, catch-up scans, pushes.

    Replica.apply_subscriber ─► Attached ── RangeFeed (pure) ── effects ─► ScanLocks   a snapshot, read off the loop
                            ▲                                      WantSlot    CatchUpSlots ─► a snapshot, read off the loop
     side transport ────────┘ closed                               Wake        the consumer's Session
                                                                   Resolve, NeedBarrier     `pushing.FeedPusher`

A replica is attached while at least one consumer is registered, and for `feed.keep_attached` after the last has gone: it
may come back, and what is recent is then at hand (`recent.py`, `index.py`); after a restart, too, where the store remembers.
Before and after that nothing of this runs, and a write costs nothing more than a test for None. What an attached replica
applies is handed over in the step in which it was applied, and read when a consumer wants it (`attached.py`).

Two loops run while anything is attached: one publishes resolved timestamps (woken by the side transport, and every
`feed.publish_interval` in any case), one pushes old transactions (`pushing.py`).

How a feed ends for its consumers
    split        those reaching into the right half: RANGE_SPLIT; those inside the left half go on
    merge        RANGE_MERGED on both sides
    removed, quarantined                  REPLICA_GONE
    replaced by a snapshot                LOG_TRIMMED: what was jumped over is in history
    too slow, too many locks, collected   see `registration.py`, `effects.py`, `rangefeed.py`
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from slackwater.errors import (
    Overloaded,
    RangeMismatch,
    SlackwaterError,
    StorageError,
    UnavailableError,
    UsageError,
)
from slackwater.feeds.attached import Attached, stored_index
from slackwater.feeds.pushing import FeedPusher
from slackwater.feeds.rangefeed import NeedBarrier, Resolve, ScanLocks, Wake, WantSlot
from slackwater.feeds.registration import HISTORY_SHARE
from slackwater.feeds.session import FeedSession
from slackwater.feeds.slots import CatchUpSlots
from slackwater.hooks import level, probe
from slackwater.model.spans import Span
from slackwater.protocol.feeds.events import EndReason
from slackwater.protocol.feeds.messages import SESSION_BYTES
from slackwater.runtime.seam import Family
from slackwater.runtime.sync import Event, timeout
from slackwater.storage.batch import WriteBatch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Iterable

    from slackwater.clock.timestamp import Timestamp
    from slackwater.feeds.history import Reading
    from slackwater.feeds.rangefeed import Effect
    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.model.ids import RangeId
    from slackwater.protocol.feeds.messages import DropFeed, FeedItems, OpenFeed, RegisterFeed
    from slackwater.replica.driver import Replica, Store
    from slackwater.runtime.seam import EngineSnapshot, TaskScope
    from slackwater.txn.context import TxnContext

SESSIONS_MAX = 1_024
QUIET_INTERVALS = 16
"""Quiet consumers hear of resolved timestamps once in so many times `feed.publish_interval`."""
LOCKS_BLOCK = 1_000
HISTORY_BYTES = 1 << 20
HINTED_MAX = 16


class NodeFeeds:
    """All feeds that a node serves."""

    def __init__(self, store: Store, txn_context: TxnContext, scope: TaskScope) -> None:
        self.attached: dict[RangeId, Attached] = {}
        self.sessions: dict[bytes, FeedSession] = {}
        self._store = store
        self._txn_context = txn_context
        self._scope = scope
        self._runtime = txn_context.runtime
        self._settings = txn_context.settings
        self._numbers = 0
        self._owners: dict[int, tuple[Attached, FeedSession]] = {}
        self._slots: CatchUpSlots[int] = CatchUpSlots(int(txn_context.settings["feed.catch_up_slots"]))
        self._eager: set[int] = set()
        """Registrations that want to know soon how far they have everything."""
        self._closed = Event()
        self._busy = Event()
        self._running = False
        self._pusher = FeedPusher(self, txn_context, scope)
        transport = store.context.transport
        if transport is not None:
            transport.on_update = self._closed.set

    def resume(self) -> None:
        """The store's replicas are here and have applied nothing yet: go on with what was remembered of them."""
        batch = WriteBatch()
        for replica in self._store.replicas.values():
            index = stored_index(replica)
            if not index.written:
                continue
            if (
                index.coverage.floors
                and self._settings["feed.keep_attached"]
                and self._settings["feed.index_bytes_max"]
            ):
                probe("feeds.index_resumed")
                self._attach(replica).idle_since_ns = self._runtime.clock.monotonic_ns()
            else:
                probe("feeds.index_was_stale")
                index.clear(batch)
        if len(batch):
            self._store.context.engine.write(batch)

    # --- sessions --------------------------------------------------------------------------------------------------

    async def events(self, request: OpenFeed) -> AsyncGenerator[FeedItems, None]:
        """Serve one consumer for as long as it listens."""
        session = self._open(request)
        try:
            async for items in session.items():
                yield items
        finally:
            del self.sessions[session.name]
            for number in list(session.registrations):
                self._drop(number)

    def _open(self, request: OpenFeed) -> FeedSession:
        if len(request.session) != SESSION_BYTES or request.session in self.sessions:
            raise UsageError("a feed session has a random name of its own", bytes=SESSION_BYTES)
        if len(self.sessions) >= SESSIONS_MAX:
            raise Overloaded("too many consumers of feeds on this node; ask another replica", limit=SESSIONS_MAX)
        session = FeedSession(request.session, clock=self._runtime.clock, settings=self._settings)
        self.sessions[request.session] = session
        level("feeds.sessions", len(self.sessions), SESSIONS_MAX)
        return session

    def register(self, request: RegisterFeed) -> None:
        """A consumer wants a part of a range. What goes wrong later comes as `Ended`."""
        session = self.sessions.get(request.session)
        if session is None:
            raise UnavailableError("this feed session is not open here; open it again")
        if request.registration in session.numbers:
            raise UsageError("a registration's number was used twice", number=request.registration)
        span = Span(request.start, request.end)
        attached = self._attach(self._replica(request.range_id, span))
        self._numbers += 1
        number = self._numbers
        session.add(number, named=request.registration, source=attached)
        self._owners[number] = (attached, session)
        try:
            effects = attached.feed.register(
                number,
                span,
                after=request.after,
                befores=request.befores,
                budget_bytes=session.account.limit,
                account=session.account,
                quiet=request.quiet,
            )
        except SlackwaterError:
            self.forget(number)
            raise
        if not request.quiet:
            self._eager.add(number)
            self._busy.set()
        self.follow(attached, effects)

    def drop(self, request: DropFeed) -> None:
        """A consumer has had enough of some registrations."""
        session = self.sessions.get(request.session)
        for named in request.registrations if session is not None else ():
            number = session.numbers.get(named) if session is not None else None
            if number is not None:
                self._drop(number)

    def _replica(self, range_id: RangeId, span: Span) -> Replica:
        replica = self._store.replicas.get(range_id)
        if replica is None or not replica.state.descriptor.covers(span.start, span.end):
            raise RangeMismatch("this part of a range is not here; look it up again", descriptors=self._hints(span))
        if replica.failure is not None:
            raise UnavailableError("this replica is quarantined; ask another one", cause=str(replica.failure))
        return replica

    def _hints(self, span: Span) -> list[RangeDescriptor]:
        known = (r.state.descriptor for r in self._store.replicas.values())
        return [d for d in known if d.start < span.end and span.start < d.end][:HINTED_MAX]

    def _attach(self, replica: Replica) -> Attached:
        range_id = replica.state.descriptor.range_id
        attached = self.attached.get(range_id)
        if attached is None or attached.feed.over or attached.replica is not replica:
            try:
                attached = self.attached[range_id] = Attached(self, replica)
            except StorageError as error:
                raise self._store.read_failed(range_id, error) from error
            replica.apply_subscriber = attached
            self._busy.set()
            if not self._running:
                self._running = True
                self._scope.spawn(self._keep_publishing(), name="feeds publish")
                self._scope.spawn(self._pusher.run(), name="feeds push")
        return attached

    def _drop(self, number: int) -> None:
        attached, _ = self._owners[number]
        attached.feed.drop(number)
        self.forget(number)
        if (room := attached.room.get(number)) is not None:
            room.set()

    def forget(self, number: int) -> None:
        """A registration is over; its range is let go when it was the last."""
        attached, session = self._owners.pop(number)
        session.forget(number)
        self._eager.discard(number)
        self._slots.release(number)
        self._grant()
        if attached.feed.idle:
            attached.idle_since_ns = self._runtime.clock.monotonic_ns()
            # One that knows all that is recent waits a while for consumers that come back.
            if attached.feed.over or not attached.feed.remembers or not self._settings["feed.keep_attached"]:
                self._detach(attached)

    def _detach(self, attached: Attached) -> None:
        if self.attached.get(attached.range_id) is attached:
            del self.attached[attached.range_id]
            attached.forget_index()
        if attached.replica.apply_subscriber is attached:
            attached.replica.apply_subscriber = None

    # --- what the pure core asks for -------------------------------------------------------------------------------

    def stir(self, registrations: Iterable[int]) -> None:
        """Wake the consumers of these registrations: there may be events to take."""
        for number in registrations:
            owner = self._owners.get(number)
            if owner is not None:
                owner[1].wake(number)

    def follow(self, attached: Attached, effects: list[Effect]) -> None:
        """Do what a range's feed asks for."""
        wants = False
        for effect in effects:
            if isinstance(effect, Wake):
                owner = self._owners.get(effect.registration)
                if owner is not None:
                    owner[1].wake(effect.registration)
            elif isinstance(effect, WantSlot):
                owner = self._owners[effect.registration]
                self._slots.request(effect.registration, owner[1].name.hex())
                wants = True
            elif isinstance(effect, ScanLocks):
                frozen = self._store.context.engine.snapshot()
                self._read(self._scan_locks(attached, frozen, effect.span), frozen, name=f"locks r{attached.range_id}")
            elif isinstance(effect, Resolve):
                self._pusher.resolve(effect)
            elif isinstance(effect, NeedBarrier):
                self._pusher.need_barrier(attached, effect.txn_id)
        if wants:
            self._grant()

    def _read(self, work: Coroutine[Any, Any, None], frozen: EngineSnapshot, *, name: str) -> None:
        """Start a task that reads a snapshot; a node that is stopping starts none."""
        try:
            self._scope.spawn(work, name=name)
        except UsageError:
            frozen.close()

    async def _scan_locks(self, attached: Attached, frozen: EngineSnapshot, span: Span) -> None:
        """Every lock of the range, from the moment the live stream was joined."""
        try:
            cursor = frozen.cursor(Family.LOCK, start=span.start, end=span.end)
            done = False
            # To its end, also when its consumer goes: a feed that is kept for the next one is not scanned again.
            while not done and not attached.feed.over and self.attached.get(attached.range_id) is attached:
                keys, values = await self._runtime.offload(cursor.chunk, LOCKS_BLOCK)
                done = len(keys) < LOCKS_BLOCK
                self.follow(attached, attached.feed.locks_scanned(zip(keys, values, strict=True), done=done))
        except StorageError as error:
            self._store.read_failed(attached.range_id, error)
            attached.end(EndReason.REPLICA_GONE, str(error))
        finally:
            frozen.close()

    def _grant(self) -> None:
        """Let the next catch-up scans begin: the snapshot is taken in the step in which the live stream is joined."""
        for number in self._slots.grant():
            attached, session = self._owners[number]
            history = attached.feed.open(number)
            if history is None:
                self._slots.release(number)
                session.wake(number)
                continue
            frozen = self._store.context.engine.snapshot()
            attached.room[number] = Event()
            size = min(HISTORY_BYTES, history.budget_bytes // HISTORY_SHARE)
            work = self._catch_up(attached, number, attached.reading(history), frozen, size=size)
            self._read(work, frozen, name=f"catch up r{attached.range_id}")

    async def _catch_up(
        self, attached: Attached, number: int, reading: Reading, frozen: EngineSnapshot, *, size: int
    ) -> None:
        """Read history for one registration, no faster than it is taken. Its consumer may be gone before this begins."""
        feed, room = attached.feed, attached.room[number]
        try:
            while feed.scanning(number):
                if not feed.wants_history(number):
                    room.clear()
                    if not await self._room_in_time(room):
                        probe("feeds.catch_up_stalled")
                        feed.registrations[number].end(EndReason.SLOW_CONSUMER, "history was not taken in time")
                        self._owners[number][1].wake(number)
                    continue
                block = await self._runtime.offload(partial(reading.next, frozen, bytes_max=size))
                self.follow(attached, feed.history(number, block.changes, done=block.done))
        except StorageError as error:
            self._store.read_failed(attached.range_id, error)
            attached.end(EndReason.REPLICA_GONE, str(error))
        finally:
            frozen.close()
            attached.room.pop(number, None)
            self._slots.release(number)
        self._grant()

    async def _room_in_time(self, room: Event) -> bool:
        with suppress(TimeoutError):
            async with timeout(self._settings["feed.stall_timeout"]):
                await room.wait()
        return room.is_set()

    # --- publishing ------------------------------------------------------------------------------------------------

    async def _keep_publishing(self) -> None:
        clock, quiet_at_ns = self._runtime.clock, 0
        while True:
            await self.until_busy()
            seconds = self._settings["feed.publish_interval"]
            with suppress(TimeoutError):
                async with timeout(seconds if self._eager else seconds * QUIET_INTERVALS):
                    await (self._closed if self._eager else self._busy).wait()
            self._closed.clear()
            self._busy.clear()
            quiet = clock.monotonic_ns() >= quiet_at_ns
            if quiet:
                quiet_at_ns = clock.monotonic_ns() + int(seconds * QUIET_INTERVALS * 1e9)
            kept_ns = self._settings["feed.keep_attached"] * 1e9
            for attached in list(self.attached.values()):
                if attached.feed.idle:
                    if attached.feed.over or clock.monotonic_ns() - attached.idle_since_ns > kept_ns:
                        self._detach(attached)
                elif not attached.feed.over:
                    attached.replica.closing.wanted()
                    self.follow(attached, attached.publish(quiet=quiet))
            # Updates of several peers come in one burst: they are one reason to publish, not several.
            await self._runtime.clock.sleep(self._settings["feed.linger"])

    async def until_busy(self) -> None:
        """Return once something is attached."""
        while not self.attached:
            self._busy.clear()
            await self._busy.wait()

    def now(self) -> Timestamp:
        """This node's clock."""
        return self._txn_context.clock.now()

    def status(self) -> str:
        """A few lines for people."""
        lines = [f"feeds ranges={len(self.attached)} sessions={len(self.sessions)} {self._slots.status()}"]
        lines += [f"r{r} {self.attached[r].feed.status()}" for r in sorted(self.attached)]
        return "\n".join(lines)
