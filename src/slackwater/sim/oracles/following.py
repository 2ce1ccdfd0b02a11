"""Reads of the past on any replica (I-14, I-15, I-16, I-17), watched as they are served and as time goes on.

    I-14   after healing, every replica closes: no further behind than the target, one tick, the way there and some slack,
           under traffic as well as at rest
    I-15   what a follower answers at ts is V at ts, at that very moment and on whichever replica; `history.py` holds what
           clients were told against V once more in the end
    I-16   a follower serves nothing above what it may believe. A *resolved* timestamp, once reported, is a promise too:
           no intent lies at or below it, nothing appears there any more anywhere, and the replica that reported it serves
           such reads for as long as it lives, without sending them elsewhere. (Bounds and sessions: `follower_work.py`,
           which knows what was asked for)
    I-17   nothing is served at or below the threshold of garbage collection, but for what is kept there

V is complete up to what a follower may serve: a promise is usable only once every command it speaks of is applied, and
an intent that is still there sends the read away.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN, Timestamp, add_seconds, from_us, seconds_between
from slackwater.closedts.kinds import Scheme
from slackwater.closedts.policy import target, terms_of, write_age_s
from slackwater.codec.layout import split_version
from slackwater.model.spans import Span, SpanSet
from slackwater.model.txns import TxnStatus
from slackwater.protocol.range import requests
from slackwater.replica import declare
from slackwater.replica.records import read_record
from slackwater.runtime.seam import Family
from slackwater.sim.clocks import EPOCH_NS
from slackwater.sim.handles import NS
from slackwater.sim.oracles.closing import (
    AboveClosed,
    Ledger,
    NeverBack,
    NotTooEarly,
    PublishedClosing,
    listen,
    name_of,
)
from slackwater.sim.oracles.replication import _Watcher
from slackwater.sim.oracles.versions import _blocked
from slackwater.sim.oracles.witness import witness_of
from slackwater.sim.scenarios.cluster_plan import KV_SPAN, all_keys, cluster_of
from slackwater.storage.intents import intent_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from slackwater.closedts.negotiate import ResolvedSpan
    from slackwater.closedts.policy import Terms
    from slackwater.protocol.range.requests import Batch, BatchResult
    from slackwater.replica.driver import Replica
    from slackwater.replica.state import RangeState
    from slackwater.runtime.seam import Reader
    from slackwater.sim.checkers.violation import Violation
    from slackwater.sim.oracles.versions import VersionsOracle
    from slackwater.sim.oracles.witness import ApplyEvent
    from slackwater.sim.scenario import Oracle, Scenario
    from slackwater.sim.world import World

REPORTS_KEPT_MAX = 16
"""Resolved timestamps remembered per replica, for reads that are sent elsewhere."""
RECOVER_NS, LOOK_NS, PATIENCE_NS = 5 * NS, NS, 8 * NS
"""Of a healed world with traffic: when it is first looked at, how often, and for how long a replica may be behind."""
SWEEP_LATEST = 1.25
"""Of `queue.interval`: the longest pause between two sweeps."""
DELAY_S, SLACK_S = 1.0, 1.0
"""Of a healed world: the slowest way from a leaseholder to a follower, and what timers are late by."""


class Follows(_Watcher):
    """I-15."""

    name = "I-15"

    def __init__(self, versions: VersionsOracle) -> None:
        self._versions = versions
        self._times: dict[bytes, list[int]] = {}

    def attach(self, world: World) -> None:
        """Look at every read that is served."""
        super().attach(world)
        listen(world, "replica.read_served", self._served)

    def _served(
        self, replica: Replica, batch: Batch, read_at: Timestamp, answer: BatchResult, state: RangeState
    ) -> None:
        if not answer.by_follower or batch.header.txn is not None:
            return
        for request, result in zip(batch.requests, answer.results, strict=True):
            if isinstance(request, requests.Get) and isinstance(result, requests.Value):
                found = {} if result.value is None else {request.key: result.value}
                self._compare(replica, read_at, (request.key, request.key + b"\x00"), found)
            elif isinstance(request, requests.Scan) and isinstance(result, requests.Rows):
                span = (request.start, result.resume or request.end)
                self._compare(replica, read_at, span, dict(zip(result.keys, result.values, strict=True)))

    def _compare(self, replica: Replica, ts: Timestamp, span: tuple[bytes, bytes], found: dict[bytes, bytes]) -> None:
        start, end = span
        if start < KV_SPAN[0]:
            return
        expected = {k: value for k in self._versions.found if start <= k < end and (value := self._at(k, ts))}
        for key in expected.keys() | found.keys() if found != expected else ():
            if found.get(key) != expected.get(key) and found.get(key) not in self._decided(key, ts):
                where = f"{name_of(replica.context)} r{replica.state.descriptor.range_id}"
                text = f"{where} served {key!r} at {ts} as {found.get(key)!r}, V has {expected.get(key)!r}"
                self.violated("not-what-was", text, state=replica.state.status())
                return

    def _decided(self, key: bytes, ts: Timestamp) -> list[bytes | None]:
        newest = max((at for at in self._versions.found.get(key, {}) if at <= ts), default=MIN)
        return decided(self.world, key, after=newest, upto=ts)

    def _at(self, key: bytes, ts: int) -> bytes:
        """The value of a key at `ts`; empty when it has none."""
        written = self._versions.found[key]
        times = self._times.get(key)
        if times is None or len(times) != len(written):
            times = self._times[key] = sorted(written)
        at = bisect_right(times, ts)
        return written[times[at - 1]] if at else b""


def decided(world: World, key: bytes, *, after: int, upto: int) -> list[bytes | None]:
    """What a committed transaction's intent, on whichever store, will show in (after, upto] once it is resolved.

    V learns of a version when it is applied; a reader may know it as soon as the record has committed.
    """
    engines = list(witness_of(world).engines.values())
    values: list[bytes | None] = []
    for intent in filter(None, (intent_of(engine, key) for engine in engines)):
        for engine in engines:
            record = read_record(engine, anchor=intent.anchor, txn_id=intent.txn_id)
            if record is None or record.status is not TxnStatus.COMMITTED or record.epoch != intent.epoch:
                continue
            if after < record.write_ts <= upto:
                values.append(intent.value or None)
    return values


class WithinBounds(_Watcher):
    """I-16."""

    name = "I-16"

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._resolved: dict[bytes, tuple[Timestamp, str]] = {}
        self._reports: dict[Replica, list[tuple[bytes, bytes, Timestamp]]] = {}
        self._to_come: set[tuple[bytes, Timestamp]] = set()

    def attach(self, world: World) -> None:
        """Look at reads, refusals and reports."""
        super().attach(world)
        listen(world, "replica.read_served", self._served)
        listen(world, "replica.follower_refused", self._refused)
        listen(world, "closedts.resolved", self._reported)

    def _served(
        self, replica: Replica, batch: Batch, read_at: Timestamp, answer: BatchResult, state: RangeState
    ) -> None:
        if answer.by_follower and declare.required_frontier(batch) > self._ledger.allowed(state):
            where = f"{name_of(replica.context)} r{replica.state.descriptor.range_id}"
            self.violated("above-closed", f"{where} served a follower read at {read_at}, above what is closed there")

    def _reported(self, replica: Replica, request: requests.QueryResolved, found: ResolvedSpan) -> None:
        where, ts = name_of(replica.context), found.ts
        if ts > self._ledger.allowed(replica.state):
            self.violated("resolved-not-closed", f"{where} reports {ts} as resolved, above what is closed there")
        engine = witness_of(self.world).engines[where]
        for key in sorted(_blocked(engine, request.start, request.end, ts)):
            if not self._passable(key, engine, ts):
                text = f"{where} reports {ts} as resolved, but {key!r} has an older intent that is not decided"
                self.violated("resolved-over-intent", text)
        reports = self._reports.setdefault(replica, [])
        reports.append((request.start, request.end, ts))
        del reports[:-REPORTS_KEPT_MAX]
        for key in all_keys():
            if request.start <= key < request.end and ts > self._resolved.get(key, (MIN, ""))[0]:
                self._resolved[key] = (ts, where)

    def _passable(self, key: bytes, engine: Reader, ts: Timestamp) -> bool:
        """Whether some store in the world has a record by which the intent on a key cannot change what is seen at `ts`.

        A commit at or below `ts` is noted: its version is still to come, but readers know it already.
        """
        intent = intent_of(engine, key)
        for other in witness_of(self.world).engines.values():
            record = None if intent is None else read_record(other, anchor=intent.anchor, txn_id=intent.txn_id)
            if record is not None and (record.status is not TxnStatus.PENDING or record.write_ts > ts):
                if record.status is TxnStatus.COMMITTED:
                    self._to_come.add((key, record.write_ts))
                return True
        return intent is None

    def _refused(self, replica: Replica, batch: Batch) -> None:
        required, span = declare.required_frontier(batch), declare.bounds(batch)
        for start, end, ts in self._reports.get(replica, ()):
            if span is not None and start <= span.start and span.end <= end and required <= ts:
                engine = witness_of(self.world).engines[name_of(replica.context)]
                if not _blocked(engine, span.start, span.end, required).isdisjoint(key for key, _ in self._to_come):
                    continue  # the record that decided it may have been collected since: slower, not wrong
                where = f"{name_of(replica.context)} r{replica.state.descriptor.range_id}"
                text = f"{where} sends a read at {required} elsewhere, although it reported {ts} as resolved"
                self.violated("resolved-redirected", text)

    def applied(self, event: ApplyEvent) -> None:
        """Nothing new at or below what was reported as resolved."""
        for stored, value in event.batch.writes[Family.DATA].items() if event.first else ():
            if value is None or not KV_SPAN[0] <= stored < KV_SPAN[1]:
                continue
            key, ts = split_version(stored)
            known, who = self._resolved.get(key, (MIN, ""))
            if ts <= known and (key, ts) not in self._to_come:
                text = f"{event.node} applied {key!r} at {ts}, although {who} had reported {known} as resolved"
                self.violated("resolved-changed", text, position=event.position)


class NotCollected(_Watcher):
    """I-17."""

    name = "I-17"

    def attach(self, world: World) -> None:
        """Look at every read that is served."""
        super().attach(world)
        listen(world, "replica.read_served", self._served)

    def _served(
        self, replica: Replica, batch: Batch, read_at: Timestamp, answer: BatchResult, state: RangeState
    ) -> None:
        # Of the state that was read: a bulk read goes on, on its snapshot, while the threshold rises and versions go.
        threshold, kept = state.gc_threshold, state.kept
        serving = SpanSet(Span(k.start, k.end) for k in kept if k.ts == read_at or (k.after and k.ts < read_at))
        reads = [declare.span_of(r) for r in batch.requests if isinstance(r, requests.FOLLOWER_READS)]
        spans = [Span(start, end or start + b"\x00") for start, end in filter(None, reads)]
        if read_at <= threshold and not all(map(serving.covers, spans)):
            where = f"{name_of(replica.context)} r{replica.state.descriptor.range_id}"
            self.violated("below-threshold", f"{where} served a read at {read_at}, collected up to {threshold}")


class Advances:
    """I-14, as a workload: judged while the healed world still has traffic, and once more when that has ended.

    Busy ranges: from `RECOVER_NS` after healing, about once a simulated second, no replica may be too far behind at all
    looks of `PATIENCE_NS`. A single look may find one: leases still move, ranges are split and merged, nodes are stopped.
    Frozen ranges: what a merge has frozen must not close, or its left neighbor would write below it (I-10). A merge whose
    coordinator died is undone by the queues once they have seen it frozen for `range.frozen_patience`: so much longer.
    Idle ranges: what is missing in the end is named by `unsettled`, and the run waits for it as for all else.
    """

    def __init__(self) -> None:
        self._behind_since_ns: dict[Replica, int] = {}
        self._frozen_since_ns: dict[Replica, int] = {}

    def setup(self, world: World, scenario: Scenario) -> None:
        """Begin to look when the world has had time to recover."""
        world.spawn(self._watch(world, after_ns=scenario.safety_ns + RECOVER_NS), name="I-14")

    async def _watch(self, world: World, *, after_ns: int) -> None:
        await world.sleep_ns(max(0, after_ns - world.loop.now_ns))
        while cluster_of(world).traffic:
            self._look(world)
            await world.sleep_ns(LOOK_NS)

    def _look(self, world: World) -> None:
        now_ns, before, frozen_before = world.loop.now_ns, self._behind_since_ns, self._frozen_since_ns
        self._behind_since_ns, self._frozen_since_ns = {}, {}
        for replica, text in self._too_far_behind(world):
            if replica.state.frozen is not None:
                since_ns = self._frozen_since_ns[replica] = frozen_before.get(replica, now_ns)
                patience_ns = PATIENCE_NS + round(_thawed_within_s(world) * NS)
            else:
                since_ns = self._behind_since_ns[replica] = before.get(replica, now_ns)
                patience_ns = PATIENCE_NS
            if now_ns - since_ns >= patience_ns:
                world.violated("I-14", "behind-under-traffic", f"for {patience_ns // NS} s, {text}")

    def check(self, world: World) -> Iterable[Violation]:
        """Judged while waiting."""
        return ()

    def unsettled(self, world: World) -> str | None:
        """A replica that is too far behind, if there is one."""
        return next((f"I-14 {text}" for _, text in self._too_far_behind(world)), None)

    def _too_far_behind(self, world: World) -> Iterator[tuple[Replica, str]]:
        terms, now = terms_of(world.settings), from_us((EPOCH_NS + world.loop.now_ns) // 1000)
        # Two ticks: under the store-wide scheme a target is closed by the heartbeat after the one that set it.
        spare_s = 2 * terms.interval_s + 2 * terms.max_offset_s + DELAY_S + SLACK_S
        spare_s += world.settings["closed_timestamp.empty_command_interval"]
        for name, node in cluster_of(world).up():
            for replica in node.member.store.replicas.values() if node.member else ():
                aim = _aim(replica, now, terms)
                if aim is None or replica.failure is not None:
                    continue
                behind_s = seconds_between(replica.closing.closed(), aim)
                if behind_s > spare_s:
                    yield (
                        replica,
                        f"{name} r{replica.state.descriptor.range_id} is closed {behind_s:.1f} s behind its target; "
                        f"allowed are {spare_s:.1f} s",
                    )


def _aim(replica: Replica, now: Timestamp, terms: Terms) -> Timestamp | None:
    """What should be closed by now: by the policy, or by the age of writes where only that scheme closes the range."""
    policy, closing = replica.closing.policy(), replica.closing
    if closing.closes_by(Scheme.LOG_DRIVEN) or closing.closes_by(Scheme.STORE_WIDE):
        return target(policy, now, terms)
    age_s = write_age_s(policy, terms)
    return add_seconds(now, -age_s) if age_s else None


def _thawed_within_s(world: World) -> float:
    """One sweep notices that a range is frozen, and the first one after the patience has passed thaws it."""
    return world.settings["range.frozen_patience"] + 2 * SWEEP_LATEST * world.settings["queue.interval"]


def watchers(versions: VersionsOracle) -> list[Oracle]:
    """All oracles of closed timestamps and follower reads, in the order in which they are to speak."""
    ledger = Ledger()
    return [
        ledger,
        NeverBack(ledger),
        AboveClosed(ledger),
        PublishedClosing(),
        NotTooEarly(ledger),
        Follows(versions),
        WithinBounds(ledger),
        NotCollected(),
    ]
