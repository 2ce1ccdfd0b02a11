"""What must be so once the world is well again (I-21, I-31).

    I-21   no intent is left anywhere, and no transaction record is pending
    I-31   every range is whole: all its replicas are there, none is quarantined, all have applied the whole log and hold
           the same bytes

`unsettled` is asked during recovery and names one thing that is still missing; `judge` compares the bytes at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.model.layout import LOCAL, prefix_end
from slackwater.model.txns import TxnStatus
from slackwater.replica.records import decode_record
from slackwater.replica.snapshot import range_digest
from slackwater.runtime.seam import Family
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
        yield "the cluster was never set up"
    for client, doing in cluster.busy.items():
        if doing:
            yield f"{client} is still busy with {doing}"
    if not cluster.swept:
        yield cluster.trouble or "the sweep has not ended"
    yield from _absent(cluster)
    yield from _leftovers(cluster)


def descriptors(cluster: Cluster) -> list[RangeDescriptor]:
    """The ranges there are, as the newest of their own states say."""
    newest: dict[int, RangeDescriptor] = {}
    for _, node in cluster.up():
        for replica in node.store.replicas.values() if node.store else ():
            descriptor = replica.state.descriptor
            known = newest.get(descriptor.range_id)
            if known is None or known.generation < descriptor.generation:
                newest[descriptor.range_id] = descriptor
    return [newest[range_id] for range_id in sorted(newest)]


def _absent(cluster: Cluster) -> Iterator[str]:
    """Replicas that are missing, failed or behind."""
    nodes = {node.node_id: (name, node) for name, node in cluster.up()}
    if len(nodes) < len(cluster.addresses):
        yield f"only {len(nodes)} nodes are up"
    log = cluster.world.log
    for descriptor in descriptors(cluster):
        newest = log.range(descriptor.range_id).newest
        for node_id in descriptor.replicas:
            name, node = nodes.get(node_id, (f"n{node_id}", None))
            replica = node.store.replicas.get(descriptor.range_id) if node is not None and node.store else None
            if replica is None:
                yield f"{name} has no replica of {descriptor.status()}"
            elif replica.failure is not None:
                yield f"{name} r{descriptor.range_id} is quarantined: {replica.failure}"
            elif replica.state.position < newest:
                yield f"{name} r{descriptor.range_id} has applied {replica.state.position} of {newest}"
            elif replica.state.frozen is not None:
                yield f"{name} r{descriptor.range_id} is still frozen"


def _leftovers(cluster: Cluster) -> Iterator[str]:
    """Intents and pending records."""
    for name, node in cluster.up():
        engine = engine_of(node)
        locks, _ = engine.cursor(Family.LOCK, start=b"\x01", end=b"\xff").chunk(1)
        if locks:
            yield f"{name} still has an intent on {locks[0]!r}"
        cursor = engine.cursor(Family.LOCAL, start=RECORDS, end=prefix_end(RECORDS))
        while True:
            keys, values = cursor.chunk(CHUNK)
            if not keys:
                break
            for value in values:
                record = decode_record(value)
                if record.status is TxnStatus.PENDING:
                    yield f"{name} still has a pending record of transaction {record.txn_id.hex()}"


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
            for replica in node.store.replicas.values() if node.store else ():
                if replica.failure is not None:
                    continue
                place = (replica.state.descriptor.range_id, replica.state.position)
                digest = range_digest(engine_of(node), replica.state)
                known, who = digests.setdefault(place, (digest, name))
                if known != digest:
                    text = f"{name} and {who} hold different bytes of r{place[0]} at {place[1]}"
                    yield Violation("I-31", "diverged", text, {"range_id": place[0]})
