"""The three schemes of closing side by side: what each costs, how far behind its followers are, and what disturbs it.

    write            CPU of one write on the pure cores: touched, evaluated above the floor, sequenced, encoded, applied on its
                     leaseholder. No I/O
    idle bytes       1 000, 10 000 and 50 000 idle ranges that one node leads, messages and entries as they are encoded.
                     log-driven and store-wide: one message per tick to each follower, with no frame around it. max-write-age:
                     one empty command per range and `closed_timestamp.empty_command_interval`, as it is appended to the
                     log, once; every replica reads it as well
    idle CPU         of the same, sending and encoding; applying an empty command on one replica included
    staleness        now − closed on a follower, sampled every 20 ms: idle ranges, and one that is written to five times a
                     second. Whole nodes in the simulator, virtual time; lag and age are both 3 s. This and what follows:
                     medians of five seeds
    slow request     one range's writes wait for the log for 10 s: how far behind its neighbors on the same store get
    lost messages    leaseholder and follower cannot reach each other for 5 s, and for 15 s (more than are kept): how far
                     behind idle ranges get, how long they take to be back, and what is sent for it at 10 000 ranges

The peer of every figure is the same figure of the log-driven scheme, in the same run. Lower is better in all of them.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from bench.harness import Figure, figure
from bench.sidetransport import EPOCH, INTERVAL_S, LEASE, SIZES, TERMS, IdleRange
from slackwater.clock.timestamp import MIN, Timestamp, add_seconds, from_us, seconds_between
from slackwater.closedts import BucketTracker
from slackwater.closedts.kinds import Scheme
from slackwater.closedts.log_driven.sender import Sender
from slackwater.closedts.max_write_age.ages import WriteAges
from slackwater.closedts.store_wide.sender import Sender as HeartbeatSender
from slackwater.model.descriptors import Generation, Lease, LeaseAppliedIndex, LeaseSequence, RangeDescriptor
from slackwater.model.ids import NodeId, Position, RangeId
from slackwater.protocol.closedts.heartbeat import WakeRanges
from slackwater.protocol.log.commands import COMMAND_ID_BYTES, decode_packet
from slackwater.replica.apply import apply_packet
from slackwater.replica.propose import Proposal, ProposalBuffer
from slackwater.replica.state import RangeState
from slackwater.runtime.sync import Event
from tests.sim.cluster import Cluster, play
from tests.unit.closedts.core_world import KEYS, N1, R1, CoreWorld

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LAG_S = 3.0
EMPTY_S = 1.0
SAMPLE_S = 0.02
SLOW_S = 10.0
NAMES = tuple(f"{chr(ord('a') + n)}".encode() for n in range(8))
"""One range each; the last one is written to."""
REPAIR_RANGES = 10_000
SEEDS = 5

_encode = msgspec.msgpack.Encoder().encode


def run(*, quick: bool) -> Iterator[Figure]:
    """All figures."""
    yield from write_cost(quick=quick)
    for size in SIZES[:1] if quick else SIZES:
        yield from idle_cost(size)
    yield from repair_bytes()
    seconds, seeds = (10.0, 1) if quick else (30.0, SEEDS)
    yield from beside({scheme: median_of(scheme, seconds=seconds, seeds=seeds) for scheme in Scheme})


def sided(metric: str, unit: str, values: dict[Scheme, float]) -> Iterator[Figure]:
    """One figure per scheme."""
    for scheme, value in values.items():
        yield figure(
            "schemes", f"{metric}: {scheme.label}", value, unit,
            peer="log-driven", peer_value=values[Scheme.LOG_DRIVEN], better="lower",
        )  # fmt: skip


# --- on the pure cores -------------------------------------------------------------------------------------------------


def write_cost(*, quick: bool) -> Iterator[Figure]:
    """One write, from the request to the applied state of its leaseholder."""
    worlds = {scheme: CoreWorld(scheme=scheme, lag_s=LAG_S) for scheme in Scheme}

    def writing(world: CoreWorld) -> Callable[[], int]:
        def write() -> int:
            for _ in range(500):
                replica = world.leaseholder(R1)
                assert replica is not None
                world.now += 1
                world.propose(replica, write=KEYS[0])
                world.apply(N1)
            world.tick()
            return 500

        return write

    works = {scheme: writing(world) for scheme, world in worlds.items()}
    spent: dict[Scheme, list[float]] = {scheme: [] for scheme in Scheme}
    for _ in range(3 if quick else 15):  # in turns, so that noise hits all of them alike
        for scheme, work in works.items():
            begin = time.process_time_ns()
            count = work()
            spent[scheme].append((time.process_time_ns() - begin) / count / 1e3)
    yield from sided("write", "µs CPU", {scheme: sorted(taken)[len(taken) // 2] for scheme, taken in spent.items()})


class AnyRange(IdleRange):
    """An idle range that every scheme closes."""

    __slots__ = ()

    def closes_by(self, scheme: Scheme) -> bool:
        """Whichever is measured."""
        return True


class EmptyCommands:
    """A leaseholder of many ranges under the max-write-age scheme, and one replica that applies what it proposes."""

    def __init__(self, size: int) -> None:
        self.ages, self.ranges = WriteAges(), {}
        for number in range(1, size + 1):
            range_id = RangeId(number)
            descriptor = RangeDescriptor(range_id, b"a%d" % number, b"b%d" % number, (NodeId(1),), Generation(1))
            state = RangeState(descriptor, Lease(NodeId(1), LeaseSequence(1), MIN, EPOCH), LeaseAppliedIndex(7))
            buffer: ProposalBuffer[None] = ProposalBuffer(range_id, BucketTracker(), entry_bytes_max=1 << 20)
            buffer.start_lease(sequence=LeaseSequence(1), lai=state.lai, closed=MIN)
            self.ranges[range_id] = (state, buffer)

    def once(self, now: Timestamp) -> int:
        """An empty command on every range; how many bytes they are."""
        total = 0
        for range_id, (state, buffer) in self.ranges.items():
            self.ages.proposed(range_id, now)
            buffer.insert(
                Proposal(
                    command_id=range_id.to_bytes(COMMAND_ID_BYTES, "big"),
                    lease_sequence=LeaseSequence(1),
                    min_write_ts=MIN,
                    effects=b"",
                    stats=(),
                    trigger=None,
                    generation=1,
                    waiter=None,
                )
            )
            bound = self.ages.bound(range_id, lease_start=MIN, now=now, age_s=LAG_S)
            flight = buffer.flush(close_target=bound, close_limit=LEASE.upto)
            assert flight is not None
            total += len(flight.payload)
            applied = apply_packet(state, Position(state.position + 1), decode_packet(flight.payload))
            buffer.take_decided(applied.outcomes[0].command.command_id)
            self.ranges[range_id] = (applied.state, buffer)
        return total


def idle_cost(size: int) -> Iterator[Figure]:
    """Bytes and CPU a second when nothing happens."""
    now = from_us(1_700_000_000_000_000)
    sender, beats = Sender(NodeId(1), incarnation=1), HeartbeatSender(NodeId(1), incarnation=1)
    beats.start()
    for number in range(1, size + 1):
        sender.add(RangeId(number), AnyRange())
        beats.add(RangeId(number), AnyRange())
    for _ in range(2 + size // 4_096):  # asking is bounded per tick
        now = add_seconds(now, INTERVAL_S)
        sender.tick(now, TERMS, LEASE)
        beats.heartbeat(now, TERMS, LEASE)
    empty = EmptyCommands(size)
    empty.once(now)

    def spent(work: Callable[[Timestamp], int], interval_s: float, rounds: int) -> tuple[float, float]:
        at, cpu_ns, total = now, [], 0
        for _ in range(rounds):
            at = add_seconds(at, interval_s)
            begin = time.process_time_ns()
            total = work(at)
            cpu_ns.append(time.process_time_ns() - begin)
        return total / interval_s, sorted(cpu_ns)[rounds // 2] / 1e6 / interval_s

    found = {
        Scheme.LOG_DRIVEN: spent(lambda at: len(_encode(sender.tick(at, TERMS, LEASE))), INTERVAL_S, 9),
        Scheme.STORE_WIDE: spent(lambda at: len(_encode(beats.heartbeat(at, TERMS, LEASE))), INTERVAL_S, 9),
        Scheme.MAX_WRITE_AGE: spent(empty.once, EMPTY_S, 3),
    }
    yield from sided(f"idle bytes, {size} ranges", "bytes/s", {s: f[0] for s, f in found.items()})
    yield from sided(f"idle CPU, {size} ranges", "µs/s", {s: f[1] * 1e3 for s, f in found.items()})


def repair_bytes() -> Iterator[Figure]:
    """What brings a follower back that missed more messages than are kept."""
    now = from_us(1_700_000_000_000_000)
    sender, beats = Sender(NodeId(1), incarnation=1), HeartbeatSender(NodeId(1), incarnation=1)
    beats.start()
    for number in range(1, REPAIR_RANGES + 1):
        sender.add(RangeId(number), AnyRange())
        beats.add(RangeId(number), AnyRange())
    for _ in range(4):
        now = add_seconds(now, INTERVAL_S)
        sender.tick(now, TERMS, LEASE)
        beats.heartbeat(now, TERMS, LEASE)
    full = len(_encode(sender.full()))
    asked = len(_encode(WakeRanges([RangeId(n) for n in range(1, REPAIR_RANGES + 1)])))
    for number in range(1, REPAIR_RANGES + 1):
        beats.touch(RangeId(number))
    named = 0
    for _ in range(2):
        now = add_seconds(now, INTERVAL_S)
        named += len(_encode(beats.heartbeat(now, TERMS, LEASE)))
    values = {Scheme.LOG_DRIVEN: float(full), Scheme.STORE_WIDE: float(asked + named), Scheme.MAX_WRITE_AGE: 0.0}
    yield from sided(f"bytes after a long loss, {REPAIR_RANGES} ranges", "bytes", values)


# --- on whole nodes, in virtual time -----------------------------------------------------------------------------------


class Found(NamedTuple):
    """What one scheme came to."""

    idle_p99_s: float
    busy_p99_s: float
    slow_neighbors_s: float
    short_loss_s: float
    short_back_s: float
    long_loss_s: float
    long_back_s: float


def beside(found: dict[Scheme, Found]) -> Iterator[Figure]:
    """The same figures of all schemes."""
    for name, metric in (
        ("idle_p99_s", "staleness p99, idle"),
        ("busy_p99_s", "staleness p99, written to"),
        ("slow_neighbors_s", "furthest behind beside a request that is slow for 10 s"),
        ("short_loss_s", "furthest behind, messages lost for 5 s"),
        ("short_back_s", "back after that"),
        ("long_loss_s", "furthest behind, messages lost for 15 s"),
        ("long_back_s", "back after that, long"),
    ):
        yield from sided(metric, "s", {scheme: getattr(f, name) for scheme, f in found.items()})


def median_of(scheme: Scheme, *, seconds: float, seeds: int) -> Found:
    """The median of each figure over several seeds: how long a reconnection takes is drawn."""
    runs = [story_of(scheme, seconds=seconds, seed=seed) for seed in range(1, seeds + 1)]
    return Found(*(statistics.median(values) for values in zip(*runs, strict=True)))


def story_of(scheme: Scheme, *, seconds: float, seed: int) -> Found:
    """Two nodes, eight ranges, all led by n1 and followed by n2."""
    told: list[Found] = []

    async def story(c: Cluster) -> None:
        await ranges(c)
        idle, busy = await quiet_and_busy(c, seconds)
        slow = await slow_request(c)
        short, long = await lost(c, 5.0), await lost(c, 15.0)
        told.append(Found(idle, busy, slow, *short, *long))

    play(
        story,
        seed=seed,
        settings={
            "queue.interval": 0.0,
            "closed_timestamp.scheme": float(scheme),
            "closed_timestamp.target_duration": LAG_S,
            "closed_timestamp.max_write_age": LAG_S,
            "closed_timestamp.empty_command_interval": EMPTY_S,
            "closed_timestamp.side_transport_interval": INTERVAL_S,
        },
    )
    return told[0]


async def ranges(c: Cluster) -> None:
    """Give both nodes a replica of each range."""
    for name in NAMES:
        await c.kv.put(c.key(name), b"0")
    await c.second_node(NAMES[0])
    for name in NAMES[1:]:
        await c.split(name)
    await c.settle(8)


def lags(c: Cluster, names: tuple[bytes, ...]) -> list[float]:
    """How far behind now n2 is."""
    now = c.clock.now()
    replicas = [c.nodes["n2"].store.holding(c.key(name)) for name in names]
    return [seconds_between(r.closing.closed(), now) for r in replicas if r is not None]


async def watch(c: Cluster, names: tuple[bytes, ...], seconds: float) -> list[float]:
    """Samples over a time."""
    found: list[float] = []
    for _ in range(int(seconds / SAMPLE_S)):
        await c.settle(SAMPLE_S)
        found += lags(c, names)
    return sorted(found)


async def quiet_and_busy(c: Cluster, seconds: float) -> tuple[float, float]:
    """The 99th percentile of staleness of ranges that write nothing, and of one that does."""
    stop = False

    async def write() -> None:
        number = 0
        while not stop:
            number += 1
            await c.kv.put(c.key(NAMES[-1]), b"%d" % number)
            await c.settle(0.2)

    writer = c.scope.spawn(write(), name="writer")
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(int(seconds / SAMPLE_S)):
        await c.settle(SAMPLE_S)
        found[0].extend(lags(c, NAMES[:-1]))
        found[1].extend(lags(c, NAMES[-1:]))
    stop = True
    await writer
    idle, busy = (sorted(samples)[int(len(samples) * 0.99)] for samples in found)
    return idle, busy


async def slow_request(c: Cluster) -> float:
    """Writes of the last range wait for the log; how far behind the others get meanwhile."""
    slow = c.node.store.holding(c.key(NAMES[-1]))
    assert slow is not None
    log, go_on = c.node.store.context.log, Event()
    append = log.append

    async def late(range_id: RangeId, payloads: Any) -> Any:
        if range_id == slow.state.descriptor.range_id:
            await go_on.wait()
        return await append(range_id, payloads)

    log.append = late  # type: ignore[method-assign]
    # The first one is on its way to the log; the second one has no index yet, and waits behind it.
    writes = []
    for number in range(2):
        write = c.node.kv.put(c.key(NAMES[-1] + b"%d" % number), b"slow", timeout=60.0)
        writes.append(c.scope.spawn(write, name="slow"))
        await c.settle(0.1)
    furthest = (await watch(c, NAMES[:-1], SLOW_S))[-1]
    go_on.set()
    for waiting in writes:
        await waiting
    log.append = append  # type: ignore[method-assign]
    await c.settle(6)
    return furthest


async def lost(c: Cluster, seconds: float) -> tuple[float, float]:
    """n1 and n2 cannot reach each other for a while: how far behind idle ranges get, and how long until they are back."""
    usual = (await watch(c, NAMES[:-1], 4.0))[-1]
    links = [c.world.net.link(a, b) for a, b in (("n1", "n2"), ("n2", "n1"))]
    for link in links:
        link.cut()
    furthest = (await watch(c, NAMES[:-1], seconds))[-1]
    for link in links:
        link.heal(c.world.loop.now_ns)
    back = 0.0
    while max(lags(c, NAMES[:-1])) > usual and back < 60.0:
        await c.settle(SAMPLE_S)
        back += SAMPLE_S
        furthest = max(furthest, *lags(c, NAMES[:-1]))
    await c.settle(6)
    return furthest, back
