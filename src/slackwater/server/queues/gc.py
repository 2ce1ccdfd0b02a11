"""Garbage collection: on the leaseholder, by score, a little at a time (I-26, I-28).

    sweep ── each range: due? ──► score ──► waiting ranges, the heaviest first ──► one worker per node

    collect(range)    1  copies of zones and protections that are new enough
                      2  a walk over a snapshot, off the loop: is there anything to collect?
                      3  RaiseGcThreshold, through the log
                      4  GcSpan and GcVersions, in batches, through the log; pauses in between; then on with 2
                      5  when the oldest garbage that is left will be old enough: not before that is the range due again

A range is due when the oldest garbage it had after the last walk has passed its time to live, and at most every `gc.interval`
(and `gc.slack` of the ttl), unless its score says that it cannot wait. The score is garbage bytes times their age, measured in
live bytes times the ttl: 1 means that reads of this range may pass as much garbage of full age as live rows.

The threshold is raised only where something is going to be deleted, so a quiet table can be read further back than it
promises. What a protection kept and does not need any more is let go by the same command. A threshold is raised, and deletions
are checked, by the leaseholder's own rules (`server.retention`): this queue only asks.

Dropped tables go by range tombstone once the threshold has passed the drop, and so do long runs of deleted keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from slackwater.clock.timestamp import MAX, MIN, Timestamp, seconds_between
from slackwater.errors import RangeMismatch, RetryableError, SlackwaterError, UsageError
from slackwater.hooks import level, probe
from slackwater.model.retention import Decision, decide, stretches
from slackwater.protocol.range import requests
from slackwater.replica.driver.duty import Duty
from slackwater.runtime.seam import Family
from slackwater.runtime.sync import Event, Lock
from slackwater.storage import gc
from slackwater.storage.stats import Stats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slackwater.model.ids import RangeId
    from slackwater.model.retention import Stretch
    from slackwater.replica.driver import Replica
    from slackwater.replica.state import RangeState
    from slackwater.runtime.seam import EngineSnapshot
    from slackwater.server.queues.context import QueueContext, Visit

WAITING_MAX = 10_000
"""Ranges that wait for the worker."""
PLAN_VERSIONS = 10_000
"""Garbage that one walk looks for before it is deleted."""
COPY_AGE_S_MIN = 1.0
"""Copies of zones and protections younger than this are new enough whatever the ttl."""
SCORE_BYTES_MIN = 1 << 20
"""Of live bytes: little garbage in a small range is no hurry."""
SLICE_SCANNED = 4_000
"""Versions that one walk passes beside point work: some milliseconds, for which the loop has to ask for the interpreter."""
COMPACT_VERSIONS_MIN = 1_000
COMPACT_SHARE = 8
"""With one deleted version for each that is left a walk takes twice as long, with one in eight a fifth longer; to write a
version anew costs 0.3 us, so a deletion pays for 2.4 us of that at most (40 000 rows of 100 bytes)."""


class GcProgress(NamedTuple):
    """What is known of a range's collection, on its leaseholder."""

    ran_at: Timestamp = MIN
    next_at: Timestamp = MIN
    """What is garbage and was left, is so since this time or a later one."""
    versions: int = 0
    """Deleted by the last run."""
    why_not: str = ""
    """What the last try met."""


@dataclass
class GcCounts:
    """What collecting came to, since this node started. For metrics."""

    runs: int = 0
    raised: int = 0
    versions: int = 0
    spans: int = 0
    scanned: int = 0
    refused: int = 0
    compactions: int = 0


def wants_compaction(deleted: int, stats: Stats, *, limit: float) -> bool:
    """Whether enough was deleted of a replica for its files to be written anew: much, or much beside what is left."""
    share = deleted >= COMPACT_VERSIONS_MIN and deleted * COMPACT_SHARE > stats.versions
    return bool(limit) and (deleted >= limit or share)


def score(stats: Stats, *, now: Timestamp, ttl_s: float) -> float:
    """How much a range's garbage weighs: bytes times age, over live bytes times the ttl."""
    if stats.garbage_bytes <= 0:
        return 0.0
    return stats.garbage_age(now) / (max(stats.live_bytes, SCORE_BYTES_MIN) * ttl_s)


def is_due(
    last: GcProgress, stats: Stats, *, now: Timestamp, ttl_s: float, interval_s: float, slack: float, urgent: float
) -> bool:
    """Whether a range with garbage should be collected now."""
    if stats.garbage_bytes <= 0:
        return False
    if last.ran_at == MIN:
        # Never looked at here: perhaps nothing is old enough, but everything may be.
        return True
    if seconds_between(last.next_at, now) < ttl_s:
        return False
    since_s = seconds_between(last.ran_at, now)
    return since_s >= max(interval_s, slack * ttl_s) or score(stats, now=now, ttl_s=ttl_s) >= urgent


def batches(points: Sequence[gc.GcPoint], *, limit: int) -> Iterator[requests.GcVersions]:
    """Requests of at most `limit` versions; of a key with more, the oldest go first, and it vanishes with the last of them."""
    keys: list[tuple[bytes, tuple[Timestamp, ...]]] = []
    vanishing: list[tuple[bytes, tuple[Timestamp, ...]]] = []
    room = limit
    for point in points:
        times = point.timestamps
        while times:
            some = times[-room:]
            times = times[: len(times) - len(some)]
            (vanishing if point.vanishing and not times else keys).append((point.key, some))
            room -= len(some)
            if room == 0 or times:
                yield requests.GcVersions(tuple(keys), tuple(vanishing))
                keys, vanishing, room = [], [], limit
    if keys or vanishing:
        yield requests.GcVersions(tuple(keys), tuple(vanishing))


class GcQueue:
    """Collects the history of ranges led by this node."""

    name = "gc"

    def __init__(self) -> None:
        self.counts = GcCounts()
        self.progress: dict[RangeId, GcProgress] = {}
        self._waiting: dict[RangeId, float] = {}
        """Ranges that are due, with their scores."""
        self._news = Event()
        self._compacting = Lock()
        self._collecting: RangeId | None = None

    async def process(self, visit: Visit) -> bool:
        """Put the range in line, if it is due."""
        context, state = visit.context, visit.replica.state
        range_id = state.descriptor.range_id
        # A range that is being collected is compacted when that ends: before, most of it would be written only to be deleted.
        if range_id != self._collecting and not self._compacting.locked():
            await self.compact(context, visit.replica)
        if not visit.leading:
            self.progress.pop(range_id, None)  # the leaseholder knows better
            self._waiting.pop(range_id, None)
            return False
        weight = self._weight(context, state)
        if weight is not None and len(self._waiting) < WAITING_MAX:
            self._waiting[range_id] = weight
            level("gc.waiting", len(self._waiting), WAITING_MAX)
            self._news.set()
        return False

    async def compact(self, context: QueueContext, replica: Replica) -> None:
        """Give the space of deleted versions back to the disk, if they are many: on every replica, one by one, off the loop."""
        async with self._compacting:
            limit = context.settings["gc.compact_versions"]
            if not wants_compaction(replica.deleted, Stats(*replica.state.stats), limit=limit):
                return
            here = replica.state.descriptor
            replica.deleted = 0
            probe("gc.compacted")
            # Intents of large commits are gone as well: they stay in the files until four more have been flushed.
            for family in (Family.DATA, Family.LOCK):
                await context.runtime.offload(replica.context.engine.compact, family, here.start, here.end)
            self.counts.compactions += 1

    def _weight(self, context: QueueContext, state: RangeState) -> float | None:
        """The score of a range that is due; None: it is not."""
        settings, now = context.settings, context.clock.peek()
        ttl_s, interval_s = context.retention.ttl_s(state), settings["gc.interval"]
        if ttl_s is None or not interval_s or state.frozen is not None:
            return None
        stats, last = Stats(*state.stats), self.progress.get(state.descriptor.range_id, GcProgress())
        slack, urgent = settings["gc.slack"], settings["gc.urgent_score"]
        due = is_due(last, stats, now=now, ttl_s=ttl_s, interval_s=interval_s, slack=slack, urgent=urgent)
        waited = seconds_between(last.ran_at, now) >= max(interval_s, slack * ttl_s)
        if due or (waited and (self._let_go(context, state) or self._dropped(context, state))):
            return score(stats, now=now, ttl_s=ttl_s)
        return None

    def _let_go(self, context: QueueContext, state: RangeState) -> bool:
        """Whether something is kept that no protection needs any more."""
        if not state.kept:
            return False
        try:
            permit = context.retention.permit(state)
        except RetryableError:
            return True  # the run gets newer copies
        return decide(state.retained, permit.protections, target=permit.target).kept != state.kept

    def _dropped(self, context: QueueContext, state: RangeState) -> bool:
        start, end = state.descriptor.start, state.descriptor.end
        return bool(Stats(*state.stats).versions and context.retention.dropped_in(start, end))

    # --- the worker --------------------------------------------------------------------------------------------------

    async def run(self, context: QueueContext) -> None:
        """Collect one range after the other, the heaviest first, for as long as the node lives."""
        while True:
            await self._news.wait()
            self._news.clear()
            await self.drain(context)

    async def drain(self, context: QueueContext) -> None:
        """Collect every range in line."""
        while self._waiting:
            range_id = max(self._waiting, key=lambda r: (self._waiting[r], -r))
            del self._waiting[range_id]
            replica = context.store.replicas.get(range_id)
            if replica is not None:
                await self.collect(context, replica)

    async def collect(self, context: QueueContext, replica: Replica) -> None:
        """Collect one range; what it meets is noted, and tried again later."""
        range_id, began = replica.state.descriptor.range_id, context.clock.peek()
        run = GcRun(context, replica, self.counts)
        why, self._collecting = "", range_id
        try:
            await run.run()
        except (SlackwaterError, TimeoutError) as error:
            probe("gc.refused")
            self.counts.refused += 1
            why = str(error)
        self.counts.runs += 1
        next_at = MIN if why or run.left else Timestamp(min(run.next_at, began))
        self.progress[range_id] = GcProgress(began, next_at, run.versions, why)
        self._collecting = None
        if run.versions:
            # At once, not with the next sweep: until then every scan passes the engine's own marks of what is gone.
            await self.compact(context, replica)


class GcRun:
    """One collection of one range."""

    def __init__(self, context: QueueContext, replica: Replica, counts: GcCounts) -> None:
        self._context = context
        self._replica = replica
        self._counts = counts
        self.versions = 0
        self.next_at = MAX
        self.left = False
        """Whether something that may go was left."""
        self._duty = Duty()

    @property
    def _state(self) -> RangeState:
        return self._replica.state

    async def run(self) -> None:
        """Collect all that may go now."""
        await self._freshen()
        decision = self._decide()
        await self._clear_dropped(decision)
        at: bytes | None = self._state.descriptor.start
        while at is not None:
            descriptor = self._state.descriptor
            if not descriptor.contains(at):
                return  # it was split or merged: the next sweep looks at what there is now
            rules = stretches(decision.threshold, decision.kept, at, descriptor.end)
            found = await self._plan(at, descriptor.end, rules)
            self._counts.scanned += found.scanned
            self.next_at = Timestamp(min(self.next_at, found.next_at))
            if found.versions or decision.kept != self._state.kept:
                await self._raise(decision)
                await self._delete(found)
            at = found.resume

    async def _freshen(self) -> None:
        """Have copies of zones and protections that are new enough for this range."""
        context, state = self._context, self._state
        rules, now = context.retention, context.clock.peek()
        ttl_s = rules.ttl_s(state) or 0.0
        if rules.age_s(now) > max(COPY_AGE_S_MIN, context.settings["gc.slack"] * ttl_s):
            probe("gc.refreshed")
            await context.refresh_retention(Timestamp(max(now, state.lease.start)))
            return
        try:
            rules.permit(state)
        except RetryableError:
            probe("gc.refreshed_for_lease_or_zone")
            await context.refresh_retention(Timestamp(max(now, state.lease.start)))

    def _decide(self) -> Decision:
        permit = self._context.retention.permit(self._state)
        return decide(self._state.retained, permit.protections, target=permit.target)

    async def _plan(self, start: bytes, end: bytes, rules: list[Stretch]) -> gc.GcPlan:
        began = self._context.now_ns()
        frozen = self._replica.context.engine.snapshot(once=True)
        settings = self._context.settings
        clear_min, listed, scanned = int(settings["gc.clear_versions"]), PLAN_VERSIONS, gc.SCANNED_MAX
        if self._busy():
            probe("gc.walks_in_slices")
            listed, scanned = int(settings["gc.batch_versions"]), SLICE_SCANNED
        found = await self._context.runtime.offload(_walk, frozen, start, end, rules, clear_min, listed, scanned)
        await self._pause(began)
        return found

    async def _raise(self, decision: Decision) -> None:
        """Raise the threshold first (pitfall 18), unless it is there."""
        if (decision.threshold, decision.kept) != (self._state.gc_threshold, self._state.kept):
            await self._ask(requests.RaiseGcThreshold(decision.threshold), at=self._state.descriptor.start)
            self._counts.raised += 1
            probe("gc.raised")

    async def _delete(self, found: gc.GcPlan) -> None:
        for start, end in found.clears:
            await self._clear(start, end)
        for batch in batches(found.points, limit=int(self._context.settings["gc.batch_versions"])):
            began = self._context.now_ns()
            key = (*batch.keys, *batch.vanishing)[0][0]
            done = await self._ask(batch, at=key)
            self._deleted(done)
            probe("gc.versions")
            await self._pause(began)

    async def _clear(self, start: bytes, end: bytes) -> None:
        began = self._context.now_ns()
        try:
            self._deleted(await self._ask(requests.GcSpan(start, end), at=start))
            self._counts.spans += 1
        except UsageError:
            probe("gc.span_in_use")  # something was written there meanwhile: by versions, next time
            self.left = True
        await self._pause(began)

    async def _clear_dropped(self, decision: Decision) -> None:
        """Rows of dropped and emptied tables, and entries of dropped indexes, of which nothing can be read any more."""
        rules, descriptor = self._context.retention, self._state.descriptor
        for span in rules.dropped_in(descriptor.start, descriptor.end):
            dropped_at = rules.dropped_at(span.start, span.end)
            kept = any(k.start < span.end and span.start < k.end for k in decision.kept)
            engine = self._replica.context.engine
            if not MIN < dropped_at <= decision.threshold or kept:
                continue
            if engine.cursor(Family.DATA, start=span.start, end=span.end).chunk(1)[0]:
                probe("gc.dropped_table")
                await self._raise(decision)
                await self._clear(span.start, span.end)

    async def _ask(self, request: requests.Request, *, at: bytes) -> requests.Result:
        """Send to this very range: what was planned for it is not for another (pitfall 36)."""
        descriptor = self._state.descriptor
        if self._replica.retired or not descriptor.contains(at):
            raise RangeMismatch("the range has changed while it was collected", descriptors=[descriptor])
        return await self._context.admin.ask(request, at=at)

    def _deleted(self, done: requests.Result) -> None:
        if isinstance(done, requests.Number):
            self.versions += done.number
            self._counts.versions += done.number

    def _busy(self) -> bool:
        """Whether this node has point work to do."""
        return self._context.store.context.bulk_gate.busy(self._context.now_ns())

    async def _pause(self, began_ns: int) -> None:
        """Leave point work the rest of the time, by `gc.share`: what was worked since `began_ns` is paid for in full."""
        context = self._context
        self._duty.worked((context.now_ns() - began_ns) / 1e9, share=context.settings["gc.share"])
        while self._busy():
            if not (pause_s := self._duty.pause_s()):
                return
            probe("gc.paused")
            await context.runtime.clock.sleep(pause_s)
        self._duty.forgive()


def _walk(
    frozen: EngineSnapshot,
    start: bytes,
    end: bytes,
    rules: list[Stretch],
    clear_min: int,
    max_versions: int,
    scanned_max: int,
) -> gc.GcPlan:
    with frozen:
        return gc.plan(
            frozen,
            start,
            end,
            stretches=rules,
            max_versions=max_versions,
            clear_min=clear_min,
            scanned_max=scanned_max,
        )
