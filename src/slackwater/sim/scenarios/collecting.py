"""Garbage collection under fire: short times to live that change, protections that come and go, spans that are emptied.

    pest      writes, deletes and rewrites a span of its own; asks ranges for more than their rules allow; changes zones
    keeper    protects parts of ranges, reads them until it lets go of them, and leaves some to the end (I-26, I-28); sometimes
              it protects again what its first protection keeps, far older than the ttl, and lets go of the first (I-27)
    traveler  protects an instant of a table, and reads it until it lets go of it: the same each time (I-27, `travelers`)

Everything else is the cluster play: transactions, splits, merges, lease transfers, moves, restarts, all faults. Protections
that the traveler forgets, or whose answer it lost, expire (I-28).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from slackwater.clock.timestamp import MAX, Timestamp, add_seconds
from slackwater.codec.layout import kv
from slackwater.errors import AmbiguousResult, BelowGcThreshold, RetryableError, SlackwaterError, TooLate, UsageError
from slackwater.hooks import probe
from slackwater.model.protection import Kept, Mode
from slackwater.model.spans import Span
from slackwater.protect.zone_changes import change_zone
from slackwater.protocol.range.requests import GcSpan, GcVersions, Header, RaiseGcThreshold
from slackwater.routing.sender import NO_RANGE
from slackwater.runtime.access import NODES_AND_OPERATORS
from slackwater.runtime.rpc.method import Method
from slackwater.runtime.sync import timeout
from slackwater.sim.handles import NS
from slackwater.sim.oracles import following
from slackwater.sim.oracles.collecting import AcknowledgedWrite, GarbageGoes, NothingOutlivesItsOwner, acknowledged
from slackwater.sim.scenario import Oracle, Play, Scenario, Workload, draw_scenario, register
from slackwater.sim.scenarios import cluster as base
from slackwater.sim.scenarios.cluster_plan import KV_SPAN, cluster_of, draw_plan
from slackwater.sim.scenarios.cluster_programs import Client
from slackwater.sim.scenarios.travelers import Traveler

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.protocol.range.requests import Rows
    from slackwater.runtime.rpc.method import Context
    from slackwater.server.node import Node
    from slackwater.sim.checkers.violation import Violation
    from slackwater.sim.scenarios.cluster_plan import Cluster, ClusterPlan
    from slackwater.sim.tape import Tape, TapeStream
    from slackwater.sim.world import SimRuntime, World
    from slackwater.txn.coordinator import Transaction

SETTINGS = {
    "gc.interval": 0.5,
    "gc.clear_versions": 4,
    "queue.interval": 1.0,
    "range.min_bytes": 0,
    "closed_timestamp.target_duration": 0.5,
    "protected_timestamp.refresh_interval": 5.0,
    "protected_timestamp.reconcile_interval": 2.0,
    "span_config.poll_interval": 2.0,
}
PEST = Span(kv(b"pest/"), kv(b"pest0"))
PEST_KEYS = [kv(b"pest/%02d" % i) for i in range(12)]
TTLS_S = (1.0, 1.5, 3.0, 6.0)
TIMEOUT_S = 4.0
ACT_TIMEOUT_S = 30.0
"""Of all that one protection is read and protected again for."""
PEST_CLIENT = 998
"""The client number under which the pest writes down what it does."""


class ProtectSpan(msgspec.Struct, frozen=True):
    """Protect a part of a range, as a gateway does for tables."""

    ts: int
    mode: Mode
    start: bytes
    end: bytes


class SpanProtected(msgspec.Struct, frozen=True):
    """The record that was made, or is to be released."""

    record: bytes


PROTECT: Method[ProtectSpan, SpanProtected] = Method(
    "sim.protect", ProtectSpan, SpanProtected, callers=NODES_AND_OPERATORS
)
RELEASE: Method[SpanProtected, SpanProtected] = Method(
    "sim.release", SpanProtected, SpanProtected, callers=NODES_AND_OPERATORS
)


def protect_for_clients(node: Node) -> None:
    """Let a node protect spans for clients: its own program does it, and ends with it."""

    async def protect(request: ProtectSpan, context: Context) -> SpanProtected:
        spans, protections = [Span(request.start, request.end)], node.here().protections
        ts = Timestamp(request.ts)
        return SpanProtected(await protections.protect(ts, request.mode, "sim", b"", spans=spans, timeout=TIMEOUT_S))

    async def release(request: SpanProtected, context: Context) -> SpanProtected:
        await node.here().protections.release(request.record, timeout=TIMEOUT_S)
        return request

    node.server.handle(PROTECT, protect)
    node.server.handle(RELEASE, release)


class Pest:
    """A machine that makes garbage, and asks for it to be collected too early."""

    def __init__(self, client: Client, cluster: Cluster, draw: TapeStream) -> None:
        self._client = client
        self._kv = client.kv
        self._cluster = cluster
        self._draw = draw

    async def main(self, name: str, act: Any, mean_ns: int) -> None:
        """Act, now and then, while there is traffic."""
        cluster, clock = self._cluster, self._client.runtime.clock
        cluster.busy[name] = "beginning"
        await self._client.meet(1)
        while not cluster.ready:
            await clock.sleep(0.1)
        while cluster.traffic:
            cluster.busy[name] = act.__name__
            try:
                async with timeout(ACT_TIMEOUT_S):
                    await act()
            except (SlackwaterError, TimeoutError):
                pass
            await clock.sleep(self._draw.decay(mean_ns) / NS)
        cluster.busy[name] = ""

    async def pester(self) -> None:
        """One thing, drawn."""
        what = self._draw.below(10)
        if what < 4:
            await self._write([self._draw.pick(PEST_KEYS) for _ in range(self._draw.between(1, 6))], delete=False)
        elif what < 7:
            await self._write(PEST_KEYS, delete=True)
            probe("gc.pest_emptied")
        elif what < 8:
            await change_zone(self._kv, b"", b"", gc_ttl_s=self._draw.pick(TTLS_S), timeout=TIMEOUT_S)
            probe("gc.pest_zone")
        else:
            await self._ask_too_much()

    async def _write(self, keys: list[bytes], *, delete: bool) -> None:
        """One transaction, written down for the checkers."""
        facts, recorder = self._cluster.world.facts, self._cluster.recorder
        facts["pests"] = number = facts.get("pests", 0) + 1
        value = None if delete else b"pest.%d" % number
        pen, told = recorder.txn(client=PEST_CLIENT), list[int]()

        async def attempt(txn: Transaction) -> None:
            pen.restart()
            for key in sorted(set(keys)):
                pen.write(key, value)
                await (txn.delete(key) if value is None else txn.put(key, value))
            told.append(await txn.commit())

        try:
            await self._kv.run(attempt, timeout=TIMEOUT_S)
        except AmbiguousResult:
            pen.unknown()
            raise
        except SlackwaterError:
            pen.failed()
            raise
        pen.ok(commit_ts=told[-1])

    async def _ask_too_much(self) -> None:
        """What a node with a bug, or with an old plan, might ask for."""
        key, now = self._draw.pick(PEST_KEYS), self._client.clock.now()
        requests = (
            RaiseGcThreshold(add_seconds(now, 3600)),
            RaiseGcThreshold(now),
            GcSpan(PEST.start, PEST.end),
            GcSpan(key, PEST.end),
            GcVersions(vanishing=((key, (now,)),)),
            RaiseGcThreshold(MAX),
        )
        request = self._draw.pick(requests)
        header = Header(NO_RANGE)
        try:
            await self._client.sender.send([request], header, at=key, timeout=TIMEOUT_S)
        except (UsageError, RetryableError):
            probe("gc.pest_refused")

    async def keep(self) -> None:
        """Protect a part of a range, read it for a while, and release it; or leave it to the end, as an audit does."""
        world, draw = self._cluster.world, self._draw
        low, high = sorted(draw.shuffled([KV_SPAN[0], PEST.start, *PEST_KEYS[2::4], PEST.end])[:2])
        ts = add_seconds(self._client.clock.now(), -draw.below(1500) / 1000)
        mode = draw.pick((Mode.AT, Mode.AT, Mode.AFTER))
        first = await self._kv.scan(low, high, ts=ts, timeout=TIMEOUT_S)
        record = await self._protect(ts, mode, Span(low, high))
        acknowledged(world)[record] = AcknowledgedWrite(record, Kept(low, high, ts, after=mode is Mode.AFTER))
        probe("gc.protected")
        if not await self._reads_the_same(low, high, ts, first):
            return
        if mode is Mode.AFTER and draw.chance(2, 3):
            record = await self._protect_again(record, Span(low, high), ts)
        if draw.chance(3, 4):
            acknowledged(world).pop(record)
            await self._release(record)

    async def _protect(self, ts: Timestamp, mode: Mode, span: Span) -> bytes:
        request = ProtectSpan(ts, mode, span.start, span.end)
        return (await self._client.dialer.call(self._gateway(), PROTECT, request, timeout=TIMEOUT_S)).record

    async def _release(self, record: bytes) -> None:
        with suppress(SlackwaterError):
            await self._client.dialer.call(self._gateway(), RELEASE, SpanProtected(record), timeout=TIMEOUT_S)

    def _gateway(self) -> str:
        address: str = self._draw.pick(list(self._cluster.addresses.values()))
        return address

    async def _reads_the_same(self, low: bytes, high: bytes, ts: Timestamp, first: Rows | None) -> bool:
        """Read a protected instant for a while; `first` is what was read there before."""
        world, draw = self._cluster.world, self._draw
        for _ in range(draw.between(1, 6)):
            await self._client.runtime.clock.sleep(draw.between(200, 4000) / 1000)
            try:
                again = await self._kv.scan(low, high, ts=ts, timeout=TIMEOUT_S)
            except BelowGcThreshold as error:
                world.violated("I-27", "protected-refused", f"a read at the protected {ts} was refused: {error}")
                return False
            first = first or again
            if (again.keys, again.values) != (first.keys, first.values):
                world.violated("I-27", "protected-changed", f"a read at the protected {ts} is not what it was")
            probe("gc.kept")
        return True

    async def _protect_again(self, former: bytes, span: Span, ts: Timestamp) -> bytes:
        """Go on with what a protection keeps: protect a later time, older than the ttl, and let go of the first one.

        Sometimes a time before it is asked for as well, which only the ttl can grant.
        """
        world, draw = self._cluster.world, self._draw
        low, high = span.start, span.end
        later = add_seconds(ts, draw.pick((-5.0, -2.0, 0.0, 0.3, 1.0)))
        first = None
        with suppress(BelowGcThreshold):
            first = await self._kv.scan(low, high, ts=later, timeout=TIMEOUT_S)
        try:
            record = await self._protect(later, Mode.AFTER, span)
        except TooLate:
            if later >= ts:
                world.violated("I-27", "protected-refused", f"{later} is protected after {ts}, and cannot be protected")
            return former
        acknowledged(world)[record] = AcknowledgedWrite(record, Kept(low, high, later, after=True))
        acknowledged(world).pop(former)
        probe("gc.protected_again")
        await self._release(former)
        await self._reads_the_same(low, high, later, first)
        return record


class Collecting:
    """The cluster's traffic, with a pest, a keeper and a traveler."""

    def __init__(self) -> None:
        self._traffic = base.Traffic(_plan)

    def setup(self, world: World, scenario: Scenario) -> None:
        """Add every machine."""
        self._traffic.setup(world, scenario)
        cluster_of(world).on_node.append(protect_for_clients)
        world.add_client("pest", self._boot(world, "pest"))
        world.add_client("keeper", self._boot(world, "keeper"))
        world.add_client("traveler", self._boot(world, "traveler"))

    def _boot(self, world: World, name: str) -> Any:
        async def boot(runtime: SimRuntime) -> None:
            cluster = cluster_of(world)
            client, draw = Client(runtime, cluster), world.tape.stream(f"workload/{name}")
            pest = Pest(client, cluster, draw)
            acts = {"pest": pest.pester, "keeper": pest.keep, "traveler": Traveler(client, cluster, draw).act}
            await pest.main(name, acts[name], NS // 2)

        return boot

    def unsettled(self, world: World) -> str | None:
        """What the cluster says."""
        return self._traffic.unsettled(world)

    def check(self, world: World) -> Iterable[Violation]:
        """All is judged by oracles."""
        return ()


def _plan(tape: Tape, *, nodes: int) -> ClusterPlan:
    plan = draw_plan(tape, nodes=nodes)
    return replace(plan, gc_ttl_s=TTLS_S[tape.stream("cluster/ttl").below(len(TTLS_S))])


def _draw(tape: Tape, duration_s: float) -> Scenario:
    drawn = draw_scenario(tape, nodes=(1, 4), clients=(1, 3), duration_s=duration_s)
    return replace(drawn, settings={**drawn.settings, **SETTINGS})


def _oracles() -> list[Oracle]:
    return base._oracles()


def _workloads() -> list[Workload]:
    return [Collecting(), following.Advances(), GarbageGoes(), NothingOutlivesItsOwner()]


register(
    Play(
        name="collecting",
        summary="short times to live that change, protections that come and go, spans that are emptied and filled again",
        draw=_draw,
        workloads=_workloads,
        oracles=_oracles,
        settle_s=base.SETTLE_S + 60.0,
    )
)
