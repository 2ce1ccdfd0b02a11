"""What must be so once the world is well again (I-21, I-31).

    I-21   no intent is left anywhere, no transaction record is pending, and none that is finished still names intents; a
           record that is no longer needed is gone some time after its retention
    I-31   every range is whole: all its replicas are there, none is quarantined, all have applied the whole log and hold
           the same bytes
    meta   the index of ranges, as every replica of range 1 holds it, tiles the whole key space, and each entry is what the
           range says of itself

Nothing helps: clients and operators are silent by then, and what they left behind is found by the queues of the nodes within
the play's `settle_s`. `unsettled` is asked during recovery and names one thing that is still missing; `judge` compares the
bytes at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import add_seconds
from slackwater.codec.layout import KEY_MAX, KEY_MIN, LOCAL, META, prefix_end, split_version
from slackwater.model.descriptors import FIRST_RANGE
from slackwater.model.txns import TxnStatus
from slackwater.replica.records import decode_record
from slackwater.replica.snapshot import range_digest
from slackwater.runtime.seam import Family
from slackwater.server import meta
from slackwater.sim.checkers.violation import Violation
from slackwater.sim.scenarios.cluster_plan import cluster_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.server.node import Node
    from slackwater.sim.scenarios.cluster_plan import Cluster
    from slackwater.sim.world import World
    from slackwater.storage.memory import MemoryEngine

CHUNK = 4096
RECORDS = LOCAL + b"k"
RECORD_SWEEPS = 4
RECORD_SLACK_S = 30.0
"""A sweep takes its time, and a queue that failed once is tried again in the next."""


def engine_of(node: Node) -> MemoryEngine:
    """A node's store without the faults of its disk."""
    engine: MemoryEngine = node.engine.engine  # type: ignore[attr-defined]
    return engine


def unsettled(world: World) -> str | None:
    """One thing that is still missing, or None."""
    cluster = cluster_of(world)
    for text in _missing(cluster):
        return text
    return None


def _missing(cluster: Cluster) -> Iterator[str]:
    if not cluster.ready:
        yield f"the cluster was never set up: {cluster.trouble}"
    for client, doing in cluster.busy.items():
        if doing:
            yield f"{client} is still busy with {doing} {cluster.trouble}"
    yield from _absent(cluster)
    yield from _leftovers(cluster)
    yield from _index(cluster)


def descriptors(cluster: Cluster) -> list[RangeDescriptor]:
    """The ranges there are, as the newest of their own states say."""
    newest: dict[int, RangeDescriptor] = {}
    for _, node in cluster.up():
        for replica in node.member.store.replicas.values() if node.member else ():
            descriptor = replica.state.descriptor
            known = newest.get(descriptor.range_id)
            if known is None or known.generation < descriptor.generation:
                newest[descriptor.range_id] = descriptor
    return [newest[range_id] for range_id in sorted(newest)]


def _absent(cluster: Cluster) -> Iterator[str]:
    """Replicas that are missing, failed or behind."""
    nodes = {node.node_id: (name, node) for name, node in cluster.up() if node.member is not None}
    wanted = sum(1 for machine in cluster.world.nodes if not machine.gone)
    if len(nodes) < wanted:
        yield f"I-31 only {len(nodes)} of {wanted} nodes are up"
    log = cluster.world.log
    for descriptor in descriptors(cluster):
        newest = log.range(descriptor.range_id).newest
        for node_id in descriptor.replicas:
            name, node = nodes.get(node_id, (f"n{node_id}", None))
            replica = node.member.store.replicas.get(descriptor.range_id) if node is not None and node.member else None
            if replica is None:
                yield f"I-31 {name} has no replica of {descriptor.status()}"
            elif replica.failure is not None:
                yield f"I-31 {name} r{descriptor.range_id} is quarantined: {replica.failure}"
            elif replica.state.position < newest:
                yield f"I-31 {name} r{descriptor.range_id} has applied {replica.state.position} of {newest}"
            elif replica.state.frozen is not None:
                yield f"I-31 {name} r{descriptor.range_id} is still frozen"


def _leftovers(cluster: Cluster) -> Iterator[str]:
    """Intents, and records that should have ended or gone."""
    for name, node in cluster.up():
        engine = engine_of(node)
        locks, _ = engine.cursor(Family.LOCK, start=b"\x01", end=b"\xff").chunk(1)
        if locks:
            yield f"I-21 {name} still has an intent on {locks[0]!r}"
        too_old = add_seconds(node.clock.peek(), -_record_age_max_s(cluster))
        for value in _values(engine, RECORDS):
            record = decode_record(value)
            who = f"a record of transaction {record.txn_id.hex()}"
            if record.status is TxnStatus.PENDING:
                yield f"I-21 {name} still has a pending {who}"
            elif not record.resolved:
                yield f"I-21 {name} still has {who} that names intents"
            elif max(record.start, record.heartbeat) < too_old:
                yield f"I-21 {name} still has {who}, which is no longer needed"


def _record_age_max_s(cluster: Cluster) -> float:
    """Retention, and time for a few sweeps."""
    settings = cluster.world.settings
    return settings["txn.record_retention"] + RECORD_SWEEPS * settings["queue.interval"] + RECORD_SLACK_S


def _values(engine: MemoryEngine, prefix: bytes) -> Iterator[bytes]:
    cursor = engine.cursor(Family.LOCAL, start=prefix, end=prefix_end(prefix))
    while True:
        keys, values = cursor.chunk(CHUNK)
        if not keys:
            return
        yield from values


def _index(cluster: Cluster) -> Iterator[str]:
    """The index of ranges, on every replica of the range that holds it."""
    truth = {d.end: d for d in descriptors(cluster)}
    for name, node in cluster.up():
        if node.member is None or FIRST_RANGE not in node.member.store.replicas:
            continue
        at = KEY_MIN
        for descriptor in _indexed(engine_of(node)):
            if descriptor.start != at:
                yield f"I-31 the index on {name} says {descriptor.status()} where {at!r} should begin"
                break
            if truth.get(descriptor.end) != descriptor:
                known = truth.get(descriptor.end)
                yield f"I-31 the index on {name} says {descriptor.status()}, the range says {known.status() if known else None}"
            at = descriptor.end
        else:
            if at != KEY_MAX:
                yield f"I-31 the index on {name} ends at {at!r}"


def _indexed(engine: MemoryEngine) -> list[RangeDescriptor]:
    """The newest version of each entry."""
    newest: dict[bytes, bytes] = {}
    cursor = engine.cursor(Family.DATA, start=META, end=prefix_end(META))
    while True:
        keys, values = cursor.chunk(CHUNK)
        if not keys:
            break
        for stored, value in zip(keys, values, strict=True):
            newest.setdefault(split_version(stored)[0], value)
    return [meta.decode(key, raw).descriptor for key, raw in newest.items() if raw]


class Equal:
    """I-31: replicas hold the same bytes in the end."""

    name = "I-31"

    def attach(self, world: World) -> None:
        """Nothing to watch."""

    def judge(self, world: World) -> Iterable[Violation]:
        """Compare the replicas of every range."""
        cluster = cluster_of(world)
        digests: dict[tuple[int, int], tuple[bytes, str]] = {}
        for name, node in cluster.up():
            for replica in node.member.store.replicas.values() if node.member else ():
                if replica.failure is not None:
                    continue
                place = (replica.state.descriptor.range_id, replica.state.position)
                digest = range_digest(engine_of(node), replica.state)
                known, who = digests.setdefault(place, (digest, name))
                if known != digest:
                    text = f"{name} and {who} hold different bytes of r{place[0]} at {place[1]}"
                    yield Violation("I-31", "diverged", text, {"range_id": place[0]})
