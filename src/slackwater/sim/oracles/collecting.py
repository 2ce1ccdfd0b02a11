"""What is collected, watched as it is applied (I-26, and the half of I-28 that says that garbage goes).

    I-26   every deletion: whatever can still be read of its key, above the threshold, at a kept instant and at a protected one,
           shows what V shows there, where an intent stands for what it has become on a replica that is ahead, and of a dropped
           table or index nothing is read since it was dropped; a threshold is raised only as far as the leaseholder's copies of
           zones and protections allow, and never past a protection that was acknowledged
    I-28   after healing, on every replica: no garbage that nothing needs is older than its time to live and some slack

Which protections were acknowledged, the oracle knows from the clients that asked for them (`AcknowledgedWrite`), not from nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from slackwater.clock.timestamp import MAX, MIN, Timestamp, add_seconds, from_us
from slackwater.codec.layout import INDEX_BYTES, KEY_MAX, KV, split_version
from slackwater.model.protection import kept_in
from slackwater.model.retention import clip, readable, stretches
from slackwater.model.spans import Span
from slackwater.runtime.seam import Family
from slackwater.sim.clocks import EPOCH_NS
from slackwater.sim.oracles.closing import listen
from slackwater.sim.oracles.replication import _Watcher
from slackwater.sim.scenarios.cluster_plan import cluster_of
from slackwater.storage.gc import garbage, keys_of, versions_of
from slackwater.storage.intents import intent_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from slackwater.model.protection import Kept
    from slackwater.replica.state import RangeState
    from slackwater.server.retention import NodeRetention
    from slackwater.sim.checkers.violation import Violation
    from slackwater.sim.oracles.versions import VersionsOracle
    from slackwater.sim.oracles.witness import ApplyEvent
    from slackwater.sim.scenario import Scenario
    from slackwater.sim.world import World
    from slackwater.storage.memory import MemoryEngine

SLACK_S = 5.0
"""For a run that was refused and comes again, a walk, and the log."""
SWEEPS = 4
KEYS = Span(KV, KEY_MAX)


class AcknowledgedWrite(NamedTuple):
    """A protection that a client was told to have."""

    record_id: bytes
    kept: Kept
    until: Timestamp = MAX
    """Shortly before it expires: from then on it keeps nothing."""


def acknowledged(world: World) -> dict[bytes, AcknowledgedWrite]:
    """The protections that clients have been told of, have not begun to release, and that have not expired."""
    found: dict[bytes, AcknowledgedWrite] = world.facts.setdefault("protections", {})
    now = from_us((EPOCH_NS + world.loop.now_ns) // 1000)
    for record_id in [record_id for record_id, one in found.items() if one.until <= now]:
        del found[record_id]  # its client lost power, or forgot it
    return found


class OnlyGarbageGoes(_Watcher):
    """I-26."""

    name = "I-26"

    def __init__(self, versions: VersionsOracle) -> None:
        self._versions = versions
        self._touched: dict[str, set[bytes]] = {}
        self._dropped: dict[bytes, Timestamp] = {}
        """By the first bytes of an index's keys: since when it is gone, as any node has learned."""

    def attach(self, world: World) -> None:
        """Look at thresholds as they are decided."""
        super().attach(world)
        listen(world, "gc.raising", self._raising)

    def _raising(self, state: RangeState, rules: NodeRetention, threshold: Timestamp) -> None:
        """The rule once more, from the copies themselves."""
        if threshold <= state.gc_threshold:
            return
        zones, protections = rules.zones(), rules.protections()
        zone = zones.of(Span(state.descriptor.start, state.descriptor.end))
        where = f"r{state.descriptor.range_id}"
        if zone is None or protections.read_at <= max(state.lease.start, zone.written):
            self.violated(
                "stale-copies", f"{where} raises its threshold by copies that are too old", read=protections.read_at
            )
            return
        back_s = zone.gc_ttl_s + self.world.settings["clock.max_offset"]
        if threshold > add_seconds(Timestamp(min(protections.read_at, zones.read_at)), -back_s):
            text = (
                f"{where} raises its threshold to {threshold}, further than copies read at {protections.read_at} allow"
            )
            self.violated("beyond-copies", text, ttl_s=zone.gc_ttl_s)

    def applied(self, event: ApplyEvent) -> None:
        """Compare every key of which something went with V, and the threshold with what was protected."""
        before, after = event.before, event.after
        if after.gc_threshold < before.gc_threshold:
            self.violated("threshold-back", f"{event.node}: the threshold goes back", before=before.gc_threshold)
        if (after.gc_threshold, after.kept) != (before.gc_threshold, before.kept):
            self._protected(event)
        touched = self._touched.setdefault(event.node, set())
        for stored, value in event.batch.writes[Family.DATA].items():
            if value is None and stored >= KV:
                touched.add(split_version(stored)[0])
        for start, end in event.batch.ranges[Family.DATA]:
            touched.update(key for key in self._versions.found if start <= key < end)
        if touched and event.engine is not None and event.last_of_run:
            for key in sorted(touched):
                self._compare(event, event.engine, key)
            touched.clear()

    def _protected(self, event: ApplyEvent) -> None:
        state = event.after
        start, end = state.descriptor.start, state.descriptor.end
        for one in acknowledged(self.world).values():
            for part in clip([one.kept], start, end):
                if not readable(state.gc_threshold, state.kept, part.start, part.end, ts=part.ts):
                    text = f"{event.node} r{state.descriptor.range_id} gives up {part}, which is protected"
                    self.violated("protection-broken", text, threshold=state.gc_threshold)

    def _compare(self, event: ApplyEvent, engine: MemoryEngine, key: bytes) -> None:
        state = event.after
        holder = next((s for s in self._states(event) if s.descriptor.contains(key)), state)
        written = self._versions.found.get(key, {})
        there = dict(versions_of(engine, key))
        there |= _to_come(engine, key, there, written)
        instants = {holder.gc_threshold + 1, holder.closed, MAX, *(k.ts for k in holder.kept if k.start <= key < k.end)}
        instants |= {a.kept.ts for a in acknowledged(self.world).values() if a.kept.start <= key < a.kept.end}
        # The first replica to apply an entry holds all of V in its range; others, and neighbors, all that is closed.
        upto = MAX if event.first and holder is state else holder.closed
        gone = self._gone(key)
        for t in sorted(t for t in instants if t <= upto and t < gone):
            if not readable(holder.gc_threshold, holder.kept, key, key + b"\x00", ts=Timestamp(t)):
                continue
            expected, found = _visible(written, t), _visible(there, t)
            if expected != found:
                text = (
                    f"{event.node} r{state.descriptor.range_id}: {key!r} at {t} shows {found!r} instead of {expected!r}"
                )
                self.violated("too-much-collected", text, threshold=holder.gc_threshold, position=event.position)
                return

    def _gone(self, key: bytes) -> Timestamp:
        """Since when no read reaches a key: its table or index was dropped, or its table emptied. MAX: it lives."""
        for node in cluster_of(self.world).nodes.values():
            if node.member is not None:
                at = node.member.store.context.retention.dropped_at(key, key + b"\x00")
                if at > MIN:
                    self._dropped[key[:INDEX_BYTES]] = at
        return self._dropped.get(key[:INDEX_BYTES], MAX)

    def _states(self, event: ApplyEvent) -> Iterator[RangeState]:
        """Every range of the node that applied this: a deletion must not have reached a neighbor."""
        yield event.after
        node = cluster_of(self.world).nodes.get(event.node)
        for replica in node.member.store.replicas.values() if node is not None and node.member else ():
            if replica.state.descriptor.range_id != event.after.descriptor.range_id:
                yield replica.state


def _to_come(
    engine: MemoryEngine, key: bytes, there: dict[Timestamp, bytes], written: dict[int, bytes]
) -> dict[Timestamp, bytes]:
    """The version that an intent on the key stands for, where V has it from a replica that has resolved the intent."""
    intent = intent_of(engine, key)
    if intent is None:
        return {}
    newest = max([intent.ts - 1, *there])
    return {Timestamp(ts): value for ts, value in written.items() if ts > newest and value == intent.value}


def _visible(versions: dict[Timestamp, bytes] | dict[int, bytes], ts: int) -> bytes:
    newest = max((t for t in versions if t <= ts), default=None)
    return b"" if newest is None else versions[newest]  # type: ignore[index]


class GarbageGoes:
    """The collector's half of I-28, as a workload: what is left is named while the world settles."""

    def setup(self, world: World, scenario: Scenario) -> None:
        """Nothing to prepare."""

    def check(self, world: World) -> Iterable[Violation]:
        """Judged while waiting."""
        return ()

    def unsettled(self, world: World) -> str | None:
        """Garbage that should have gone, if there is some."""
        now = from_us((EPOCH_NS + world.loop.now_ns) // 1000)
        interval_s, sweep_s = world.settings["gc.interval"], world.settings["queue.interval"]
        if not interval_s or not sweep_s:
            return None
        for name, node in cluster_of(world).up():
            member = node.member
            for replica in member.store.replicas.values() if member else ():
                assert member is not None
                state = replica.state
                ttl_s = member.retention.ttl_s(state)
                if ttl_s is None or replica.failure is not None or state.descriptor.start < KV:
                    continue
                slack_s = max(interval_s, world.settings["gc.slack"] * ttl_s) + SWEEPS * sweep_s + SLACK_S
                target = add_seconds(now, -(ttl_s + 2 * world.settings["clock.max_offset"] + slack_s))
                # A protection whose client was never told, or could not release it, is there until it is reconciled.
                records, _ = member.protection_tracker.protected(Span(state.descriptor.start, state.descriptor.end))
                kept = [*(a.kept for a in acknowledged(world).values()), *kept_in(records, KEYS)]
                found = _garbage(node.engine.engine, state, target, kept)  # type: ignore[attr-defined] # a SimEngine
                if found is not None:
                    why = member.queues.gc.progress.get(state.descriptor.range_id)
                    where = f"{name} r{state.descriptor.range_id}"
                    return f"I-28 {where} still has {found!r}, garbage for {slack_s:.0f} s too long: {why}"
        return None


def _garbage(engine: MemoryEngine, state: RangeState, target: Timestamp, kept: list[Kept]) -> bytes | None:
    """A key with a version that nothing needed at `target` already."""
    start, end = state.descriptor.start, state.descriptor.end
    rules = stretches(Timestamp(max(MIN, target)), clip(kept, start, end), start, end)
    at = 0
    for key, versions in keys_of(engine, start, end):
        while key >= rules[at].end:
            at += 1
        if garbage(versions, rules[at].floor, rules[at].instants):
            return key
    return None


class NothingOutlivesItsOwner:
    """The protections' half of I-28: what has expired is gone within the time that a world gets to settle."""

    def setup(self, world: World, scenario: Scenario) -> None:
        """Nothing to prepare."""

    def check(self, world: World) -> Iterable[Violation]:
        """Judged while waiting."""
        return ()

    def unsettled(self, world: World) -> str | None:
        """A protection that is to expire, or has: the world waits for its end, for as long as it waits for anything."""
        for name, node in cluster_of(world).up():
            for record in node.member.protections.tracker.state.records if node.member else ():
                if record.expires != MIN:
                    return f"I-28 {name} knows of {record.id.hex()}, which expires at {record.expires}"
        return None
