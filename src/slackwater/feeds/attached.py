"""A replica with consumers: where the apply path hands over what it did, and goes on at once.

    apply path    applied(run, batch) ── its versions are kept ─► waiting: ▓▓▓▓▓
    all other callers                    `feed` ── settle() ────► one pass over all that waits ─► RangeFeed (pure)

Writers should hardly notice a listener. So the step in which something is applied does no more than put its versions behind
those that wait, and say, for the first of them, that there is something to take. The consumer that takes it (a session, after
it has waited `feed.linger`), to publish, to register, to push: they all go through `feed`, which settles first. What was
applied meanwhile is read as one block, not as one block per log entry: for entries of one row a third of the work, of eight
rows half. Nothing else of a run that only commits is kept, neither its entries nor their states: a few hundred objects that
live for `feed.linger` instead of for a moment are looked at by Python's collector again and again.

Rules
    1  No caller sees a feed that is behind its replica: `feed` is the only way to it, and it settles. In particular a barrier is
       believed, a snapshot joined and a resolved timestamp worked out only with everything applied up to then in it.
    2  Runs are settled in the order in which they were applied. Those that only commit versions are joined; one that touches
       locks, the bounds of the range or the GC threshold, or that collects versions, is settled alone, and if it has locks or
       collects, entry by entry: a replica that catches up may apply a commit and its collection together.
    3  What waits is bounded: by `WAITING_RUNS_MAX`, a run of `WAITING_ROWS_MAX` rows does not wait at all, and the caller that
       publishes comes by every `feed.publish_interval`. A consumer that takes nothing is found out then (I-22).
    4  What is remembered beyond a restart (`index.py`) is written right before the store flushes, with everything settled.
    5  Before-images are read from the engine, which may collect them; while a consumer wants some, nothing waits.

A joined block is checked against what was resolved *before* it (I-23), which is all that any consumer has been told.

A broken rule inside a feed (I-23) ends that feed for its consumers and is reported; the replica goes on: it has done
nothing wrong.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from slackwater.errors import InvariantViolation, StorageError
from slackwater.feeds.history import Indexed, Scanning
from slackwater.feeds.index import PENDING_ROWS_MAX, TimeIndex
from slackwater.feeds.rangefeed import RangeFeed
from slackwater.hooks import level, probe, tap
from slackwater.model.spans import Span
from slackwater.protocol.feeds.events import EndReason
from slackwater.replica.driver import DetachReason
from slackwater.runtime.seam import Family
from slackwater.storage.batch import WriteBatch

if TYPE_CHECKING:
    from slackwater.feeds.driver import NodeFeeds
    from slackwater.feeds.history import Reading
    from slackwater.feeds.rangefeed import CatchUpScan, Effect
    from slackwater.model.ids import Position
    from slackwater.protocol.feeds.events import Event as FeedEvent
    from slackwater.replica.apply import Applied
    from slackwater.replica.driver import Replica
    from slackwater.replica.state import RangeState
    from slackwater.runtime.sync import Event

    Run = list[tuple[RangeState, Applied, Position]]

WAITING_RUNS_MAX = 64
WAITING_ROWS_MAX = 512

_ENDS = {
    DetachReason.REMOVED: EndReason.REPLICA_GONE,
    DetachReason.ABSORBED: EndReason.RANGE_MERGED,
    DetachReason.REPLACED: EndReason.LOG_TRIMMED,
    DetachReason.FAILED: EndReason.REPLICA_GONE,
}


class _Waiting:
    """Neighboring runs that only commit versions, as one; or a single run of another kind, with its entries."""

    __slots__ = ("after", "batch", "before", "joined", "run")

    def __init__(self, before: RangeState, after: RangeState, batch: WriteBatch, run: Run | None) -> None:
        self.before = before
        self.after = after
        self.batch = batch
        self.run = run
        self.joined: dict[bytes, bytes | None] | None = None
        """The versions of `batch`, once it is one of its own."""

    def join(self, after: RangeState, data: dict[bytes, bytes | None]) -> int:
        """Another run that only commits versions; how many there are then. A batch that was applied stays as it is."""
        self.after = after
        joined = self.joined
        if joined is None:
            applied, self.batch = self.batch, WriteBatch()
            joined = self.joined = self.batch.writes[Family.DATA]
            joined.update(applied.writes[Family.DATA])
        joined.update(data)
        return len(joined)


class Attached:
    """A replica with consumers. Implements `ApplySubscriber` and `session.EventSource`."""

    def __init__(self, owner: NodeFeeds, replica: Replica) -> None:
        state, settings = replica.state, replica.context.settings
        self.replica = replica
        self.range_id = state.descriptor.range_id
        self._engine = replica.context.engine
        self.index = stored_index(replica) if settings["feed.index_bytes_max"] else None
        self._feed = RangeFeed(
            Span(state.descriptor.start, state.descriptor.end),
            closed=replica.closing.closed(),
            gc_threshold=state.gc_threshold,
            kept=state.kept,
            recent_bytes_max=int(settings["feed.recent_bytes_max"]),
            index=self.index,
        )
        self.idle_since_ns = 0
        """When the last consumer went; meaningful while there is none."""
        self.room: dict[int, Event] = {}
        """Catch-up scans that wait for their consumer."""
        self._owner = owner
        self._waiting: list[_Waiting] = []
        self._runs = 0
        """That wait."""

    @property
    def feed(self) -> RangeFeed:
        """The feed, with everything in it that the replica has applied."""
        if self._waiting:
            self.take_waiting()
        return self._feed

    # --- the replica ---------------------------------------------------------------------------------------------

    def applied(self, run: Run, whole: WriteBatch) -> None:
        """Take in entries that were applied together."""
        data, locks, _ = whole.writes
        waiting, before, after, rows = self._waiting, run[0][0], run[-1][1].state, len(data)
        plain = (  # nothing but versions, and what is closed, came of it
            not locks
            and not whole.ranges[Family.LOCK]
            and before.descriptor is after.descriptor
            and before.gc_threshold == after.gc_threshold
            and before.kept is after.kept
            and not _collects(data)
        )
        if plain and waiting and waiting[-1].run is None:
            rows = waiting[-1].join(after, data)
        else:
            if not waiting:
                self._owner.stir(self._feed.registrations)
            waiting.append(_Waiting(before, after, whole, None if plain else run))
        self._runs += 1
        level("feeds.waiting_runs", self._runs, WAITING_RUNS_MAX)
        if self._runs >= WAITING_RUNS_MAX or rows >= WAITING_ROWS_MAX or self._feed.wants_befores:
            self.take_waiting()

    def take_waiting(self) -> None:
        """Take into the feed whatever has been applied and waits."""
        waiting, self._waiting, self._runs = self._waiting, [], 0
        if self._feed.over or not waiting:
            return
        effects: list[Effect] = []
        try:
            for waits in waiting:
                effects += self._taken_in(waits)
        except InvariantViolation as error:
            probe("feeds.broken")
            tap("feeds.broken", self, error)
            effects += self._feed.end_all(EndReason.REPLICA_GONE, f"the feed broke a rule: {error}")
            self._let_go()
        self._owner.follow(self, effects)
        if self.index is not None and self.index.pending >= PENDING_ROWS_MAX:
            self.flushing()

    def flushing(self) -> None:
        """Everything applied so far is about to become durable: so should the index of it."""
        if self.index is None or self.feed.over:
            return
        batch = WriteBatch()
        self.index.spill(batch, position=self.replica.state.position)
        self._engine.write(batch)

    def _taken_in(self, waits: _Waiting) -> list[Effect]:
        """What waits: one block, but entry by entry where their order or the bounds of the range matter."""
        before, after, run = waits.before, waits.after, waits.run
        data, locks, _ = waits.batch.writes
        alone = run is None or len(run) == 1 or not (locks or _collects(data))
        if run is None or (alone and before.descriptor is after.descriptor):
            return self._entry(waits.batch, before, after)
        effects: list[Effect] = []
        for earlier, applied, _ in run:
            effects += self._entry(applied.batch, earlier, applied.state)
        return effects

    def _entry(self, batch: WriteBatch, before: RangeState, after: RangeState) -> list[Effect]:
        feed = self._feed
        if feed.over:
            return []
        effects = feed.applied(batch, closed=after.closed, lai=after.lai, reader=self._engine)
        if after.gc_threshold > before.gc_threshold or after.kept is not before.kept:
            feed.collected(after.gc_threshold, after.kept)
        if after.descriptor.end < before.descriptor.end:
            effects += feed.split(Span(after.descriptor.start, after.descriptor.end))
        elif after.descriptor.end > before.descriptor.end:
            effects += feed.end_all(EndReason.RANGE_MERGED)
        return effects

    def gone(self, why: DetachReason, detail: str) -> None:
        """The replica is no more, and whatever comes in its place may have another history."""
        self.end(_ENDS[why], detail)
        self.forget_index()

    def forget_index(self) -> None:
        """Leave nothing on disk; unless the node stops, whose last flush has made it durable for the next life to use."""
        if self.index is not None and self.index.written and not self.replica.stopped:
            batch = WriteBatch()
            self.index.clear(batch)
            with suppress(StorageError):  # what is left is recognized as stale
                self._engine.write(batch)

    def end(self, reason: EndReason, detail: str) -> None:
        """Ends every consumer, with the reason."""
        self._owner.follow(self, self.feed.end_all(reason, detail))
        self._let_go()

    def _let_go(self) -> None:
        """No catch-up scan waits for a consumer any more."""
        for event in self.room.values():
            event.set()

    # --- consumers -----------------------------------------------------------------------------------------------

    def take(self, registration: int, *, bytes_max: int) -> tuple[list[FeedEvent], bool]:
        """The next events of a consumer, and whether there are more."""
        feed = self.feed
        events = feed.take(registration, bytes_max=bytes_max)
        found = feed.registrations.get(registration)
        if (room := self.room.get(registration)) is not None:
            room.set()
        if found is None:
            self._owner.forget(registration)
        return events, found is not None and found.pending()

    def reading(self, history: CatchUpScan) -> Reading:
        """How to read what a consumer has missed; from a snapshot taken in this very step."""
        if self.index is not None and not history.befores:
            lookup = self.index.lookup(history.span, history.after)
            if lookup is not None:
                probe("feeds.history_by_index")
                return Indexed(lookup)
        return Scanning(history)

    def publish(self, *, quiet: bool) -> list[Effect]:
        """What has been closed since."""
        feed = self.feed
        feed.forward_closed(self.replica.closing.closed())
        return feed.publish(quiet=quiet)


def _collects(data: dict[bytes, bytes | None]) -> bool:
    """Whether versions are collected by a batch; those of several entries then do not show what the first ones committed."""
    values = data.values()  # looking for what is false, deletions too, costs a tenth of looking for None
    return not all(values) and None in values


def stored_index(replica: Replica) -> TimeIndex:
    """What this replica's store remembers of it, if that is up to date."""
    state, context = replica.state, replica.context
    limit = int(context.settings["feed.index_bytes_max"])
    return TimeIndex.load(context.engine, state.descriptor.range_id, position=state.position, limit=limit)
