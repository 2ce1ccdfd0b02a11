"""How old follower reads are, and what they save.

    staleness      now − closed on a follower, sampled all the time: of an idle range (side transport) and of a busy one
                   (commands). The limit is target_duration + side_transport_interval + 100 ms
    close          `close(span, now)` and then a read at that timestamp on the follower; the peer is one small write,
                   which passes the same log
    stuck request  the same of a range beside one whose write does not get into the log: no range waits for another
    write cost     writes per second of processor time with closing on beside off, and what closing's own steps take
                   (`bench._closing_cost`; goal: 2 % at most)
    50 ms link     a read by the nearest replica beside the same read at a leaseholder 50 ms away
    leading span   what the policy `lead` costs and gives: a write waits for its time to come (the peer is the lead itself:
                   that wait is the price, the rest is ours); reads of the present that a follower serves without asking
                   anybody, under writes, and one of them beside the leaseholder's 50 ms away

Two nodes with their clients in this one process, over loopback TCP, with a log and engines in memory: what is measured
is the protocol, not a disk. The link's delay is added around every message to the other node.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from bench._closing_cost import paired, steps
from bench.harness import Figure, figure
from slackwater.clock.timestamp import add_seconds, seconds_between
from slackwater.closedts.policy import lead_s, terms_of
from slackwater.codec.layout import KV, kv
from slackwater.config.zones import PolicyKind, ZoneConfig
from slackwater.errors import NotLeaseholder, ReadWithinUncertainty
from slackwater.log.memory import MemoryLog
from slackwater.model.ids import RangeId
from slackwater.protect.zone_changes import write_zone
from slackwater.protocol.range import requests
from slackwater.runtime import RealRuntime, TcpNet
from slackwater.runtime import run as run_main
from slackwater.server.node import Node
from slackwater.settings import Settings
from slackwater.storage.memory import MemoryDisk, MemoryEngine
from slackwater.txn.staleness import Staleness

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from slackwater.model.ids import NodeId
    from slackwater.replica.driver.replica import Replica
    from slackwater.routing.transport import Transport
    from slackwater.server.member import Member

INTERVAL_S = 0.2
ALLOWANCE_S = 0.1
TARGETS_S = (0.2, 3.0)
SAMPLE_S = 0.005
LINK_S = 0.050
IDLE, BUSY = kv(b"a"), kv(b"p")


def run(*, quick: bool) -> Iterator[Figure]:
    """All figures."""
    for target_s in TARGETS_S:
        yield from run_main(_staleness(target_s, seconds=3.0 if quick else 15.0))
    yield from run_main(_on_demand(rounds=20 if quick else 200))
    yield run_main(_beside_a_stuck_request(seconds=2.0 if quick else 10.0))
    yield from run_main(_write_cost(pairs=20 if quick else 400))
    yield from run_main(_leading(rounds=10 if quick else 60))


class Far:
    """A transport to another node over a long link."""

    def __init__(self, inner: Transport, here: NodeId) -> None:
        self._inner = inner
        self._here = here

    async def batch(self, node_id: NodeId, batch: requests.Batch) -> requests.BatchResult:
        """There and back."""
        if node_id != self._here:
            await asyncio.sleep(LINK_S / 2)
        try:
            return await self._inner.batch(node_id, batch)
        finally:
            if node_id != self._here:
                await asyncio.sleep(LINK_S / 2)


@asynccontextmanager
async def two_nodes(**settings: float) -> AsyncIterator[tuple[Member, Member]]:
    """n1 leads, n2 follows both ranges."""
    values = {"queue.interval": 0.0, "closed_timestamp.side_transport_interval": INTERVAL_S}
    values |= {name.replace("__", "."): value for name, value in settings.items()}
    net = TcpNet(Settings(values))
    log = MemoryLog("bench", rng=RealRuntime(disk=MemoryDisk(), net=net).rng)
    nodes: list[Node] = []
    for number in range(2):
        runtime = RealRuntime(disk=MemoryDisk(), net=net)
        node = Node(
            runtime=runtime,
            scope=runtime.scope(f"n{number + 1}"),
            engine=MemoryEngine(),
            log=log.handle(),
            address="127.0.0.1:0",
            settings=Settings(values),
            join=(nodes[0].address,) if nodes else (),
        )
        await node.start()
        if not nodes:
            await node.init(cluster_id="bench")
        await asyncio.wait_for(node.ready.wait(), 20)
        nodes.append(node)
    first, second = (node.here() for node in nodes)
    try:
        await _settle(first, second)
        yield first, second
    finally:
        for node in nodes:
            await node.stop()


async def _settle(first: Member, second: Member) -> None:
    """Both ranges on both nodes, with a row in each."""
    await _until(lambda: all(n.liveness.own() is not None for n in (first, second)))
    await _until(lambda: len(first.book.nodes) == 2, poke=lambda: first.book.refresh(first.system))
    await first.admin.split(kv(b"m"))
    for key in (IDLE, BUSY):
        await first.admin.change_replicas(key, [first.node_id, second.node_id])
        await first.kv.put(key, b"1")
    await _until(lambda: all(_follower(second, key) is not None for key in (IDLE, BUSY)))


async def _until(condition: Callable[[], bool], *, poke: Callable[[], Awaitable[object]] | None = None) -> None:
    async with asyncio.timeout(30):
        while not condition():
            if poke is not None:
                await poke()
            await asyncio.sleep(0.02)


def _follower(node: Member, key: bytes) -> Replica | None:
    return node.store.holding(key)


async def _staleness(target_s: float, *, seconds: float) -> list[Figure]:
    async with two_nodes(closed_timestamp__target_duration=target_s) as (first, second):
        writer = asyncio.get_running_loop().create_task(_write(first))
        await asyncio.sleep(target_s + 4 * INTERVAL_S)
        ages: dict[bytes, list[float]] = {IDLE: [], BUSY: []}
        begin = time.monotonic()
        while time.monotonic() < begin + seconds:
            now = second.clock.physical()
            for key, seen in ages.items():
                replica = _follower(second, key)
                assert replica is not None
                seen.append(seconds_between(replica.closing.closed(), now))
            await asyncio.sleep(SAMPLE_S)
        writer.cancel()
    limit = target_s + INTERVAL_S + ALLOWANCE_S
    return [
        figure(
            "staleness", f"p99 staleness, {name} range, target {target_s:g} s", _p99(ages[key]), "s",
            peer="target + interval + 100 ms", peer_value=limit, goal=1.0, better="lower",
        )
        for key, name in ((IDLE, "idle"), (BUSY, "busy"))
    ]  # fmt: skip


async def _write(node: Member) -> None:
    while True:
        await node.kv.put(BUSY, b"2")
        await asyncio.sleep(SAMPLE_S)


def _p99(samples: list[float]) -> float:
    return sorted(samples)[int(len(samples) * 0.99)]


async def _median_ms(work: Callable[[], Awaitable[object]], rounds: int) -> float:
    spent = []
    for _ in range(rounds):
        begin = time.perf_counter()
        await work()
        spent.append(time.perf_counter() - begin)
    return sorted(spent)[rounds // 2] * 1e3


async def _write_cost(*, pairs: int) -> list[Figure]:
    """Two ways, see `bench._closing_cost`. The steps are looked at under a lag so long that nothing old is checked again."""
    async with two_nodes(closed_timestamp__target_duration=3.0) as (first, second):
        cost = await paired(first, second, pairs=pairs, lag_s=3.0)
    async with two_nodes(closed_timestamp__target_duration=600.0) as (first, _):
        own_s, whole_s = await steps(first, slices=pairs)
    on = figure(
        "staleness", "writes, closing on", cost.off * cost.ratio, "writes/s CPU",
        peer="closing off", peer_value=cost.off, goal=0.98, error=cost.error,
    )  # fmt: skip
    direct = figure(
        "staleness", "closing's own steps, per write", own_s * 1e6, "µs CPU",
        peer="one write", peer_value=whole_s * 1e6, goal=0.02, better="lower",
    )  # fmt: skip
    return [on, direct]


async def _beside_a_stuck_request(*, seconds: float) -> Figure:
    """A write of the busy range does not get into the log; how old the other range is on its follower meanwhile."""
    async with two_nodes(closed_timestamp__target_duration=TARGETS_S[0]) as (first, second):
        stuck, other = _follower(first, BUSY), _follower(second, IDLE)
        assert stuck is not None
        assert other is not None
        log: Any = stuck.context.log
        append, go_on = log.append, asyncio.Event()

        async def late(range_id: RangeId, payloads: list[bytes]) -> object:
            if range_id == stuck.state.descriptor.range_id:
                await go_on.wait()
            return await append(range_id, payloads)

        log.append = late
        write = asyncio.get_running_loop().create_task(first.kv.put(BUSY, b"6", timeout=10 * seconds + 60))
        await asyncio.sleep(1.0)
        ages, begin = [], time.monotonic()
        while time.monotonic() < begin + seconds:
            ages.append(seconds_between(other.closing.closed(), second.clock.physical()))
            await asyncio.sleep(SAMPLE_S)
        assert seconds_between(stuck.closing.closed(), first.clock.physical()) > seconds
        go_on.set()
        await write
    return figure(
        "staleness", f"p99 staleness beside a stuck request, target {TARGETS_S[0]:g} s", _p99(ages), "s",
        peer="target + interval + 100 ms", peer_value=TARGETS_S[0] + INTERVAL_S + ALLOWANCE_S, goal=1.0, better="lower",
    )  # fmt: skip


async def _on_demand(*, rounds: int) -> list[Figure]:
    async with two_nodes(closed_timestamp__target_duration=1.0) as (_, second):
        session = Staleness(sender=second.sender, clock=second.clock, settings=second.settings)
        store, replica = second.store, _follower(second, IDLE)
        assert store is not None
        assert replica is not None
        range_id = replica.state.descriptor.range_id

        async def close_and_read() -> None:
            at = await session.close([(IDLE, IDLE + b"\x00")])
            answer = await store.execute(
                requests.Batch(requests.Header(range_id, ts=at, follower_ok=True, wait_ms=1_000), [requests.Get(IDLE)])
            )
            assert answer.by_follower

        write = await _median_ms(lambda: second.kv.put(IDLE, b"3"), rounds)
        closing = await _median_ms(close_and_read, rounds)
        await asyncio.sleep(2)
        transport = second.sender._transport
        second.sender._transport = Far(transport, second.node_id)

        async def near() -> None:
            at = session.follower_read_timestamp()
            header = requests.Header(RangeId(0), ts=at, follower_ok=True)
            answer = await second.sender.send([requests.Get(IDLE)], header)
            assert answer.by_follower

        await asyncio.sleep(3)
        by_follower = await _median_ms(near, rounds)
        by_leaseholder = await _median_ms(lambda: second.kv.get(IDLE), rounds)
        second.sender._transport = transport
    return [
        figure(
            "staleness", "close(now) and read it on the follower", closing, "ms",
            peer="one write", peer_value=write, goal=3.0, better="lower",
        ),
        figure(
            "staleness", "follower read, leaseholder 50 ms away", by_follower, "ms",
            peer="leaseholder read", peer_value=by_leaseholder, goal=0.1, better="lower",
        ),
    ]  # fmt: skip


async def _leading(*, rounds: int) -> list[Figure]:
    """The range of IDLE leads; the one of BUSY goes on as before."""
    async with two_nodes(closed_timestamp__target_duration=1.0, span_config__poll_interval=0.1) as (first, second):
        await write_zone(first.kv, ZoneConfig(KV, kv(b"m"), policy=PolicyKind.LEAD))
        replica = _follower(second, IDLE)
        assert replica is not None
        await _until(
            lambda: replica.closing.closed() > add_seconds(second.clock.physical(), first.clock.max_offset_us / 1e6)
        )
        lead = lead_s(0, terms_of(first.settings)) * 1e3
        writing = await _median_ms(lambda: first.kv.put(IDLE, b"4"), rounds)
        by_follower = await _present_served(first, second, reads=50 * rounds)
        transport = second.sender._transport
        second.sender._transport = Far(transport, second.node_id)
        near = await _median_ms(lambda: second.kv.get(IDLE, nearest=True), 20 * rounds)
        far = await _median_ms(lambda: second.kv.get(IDLE), rounds)
        second.sender._transport = transport
    return [
        figure(
            "staleness", "write to a leading span, until its time has come", writing, "ms",
            peer="the lead", peer_value=lead, goal=1.1, better="lower",
        ),
        figure(
            "staleness", "reads of the present served by the follower, under writes", by_follower, "of all",
            peer="all", peer_value=1.0, goal=0.99,
        ),
        figure(
            "staleness", "read of the present by the follower, leaseholder 50 ms away", near, "ms",
            peer="leaseholder read", peer_value=far, goal=0.1, better="lower",
        ),
    ]  # fmt: skip


async def _present_served(first: Member, second: Member, *, reads: int) -> float:
    """Which part of reads at present time the follower answers itself while a client writes."""

    async def write() -> None:
        while True:
            await first.kv.put(IDLE, b"5")

    writer = asyncio.get_running_loop().create_task(write())
    store, replica, served = second.store, _follower(second, IDLE), 0
    assert store is not None
    assert replica is not None
    range_id = replica.state.descriptor.range_id
    for _ in range(reads):
        now = second.clock.now()
        header = requests.Header(range_id, ts=now, uncertainty_limit=second.kv.uncertain_upto(now), follower_ok=True)
        try:
            await store.execute(requests.Batch(header, [requests.Get(IDLE)]))
        except ReadWithinUncertainty:
            served += 1  # answered: the present has moved on, read just above it
        except NotLeaseholder:
            pass
        else:
            served += 1
        await asyncio.sleep(SAMPLE_S)
    writer.cancel()
    return served / reads
