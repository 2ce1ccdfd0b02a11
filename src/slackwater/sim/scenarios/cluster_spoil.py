"""Quarantines of replicas that are as good as any other: what their nodes do about it is what is tested.

A replica that met something it must not go on from (a checksum that differs, a log that was trimmed) is fetched anew from
another node, at the position that one has applied. When it was the leaseholder's, the new replica finds the lease of its
former life in the snapshot, while commands proposed under it may still be ahead in the log: nothing may be served, closed or
handed over under that lease until it has been acquired anew.

    r7 on n1 (leaseholder)   … 40 41 42 43 X            quarantined with 43 applied, 44 and 45 on their way to the log
    r7 on n2                 … 40 41 42 43 ── snapshot ──► r7 on n1 at 43; 44 and 45 are yet to come

One replica of a range at a time, and only while another one is well: one must be left to fetch from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slackwater.replica.driver import Replica
    from slackwater.sim.scenarios.cluster_plan import Cluster
    from slackwater.sim.tape import TapeStream

REASON = "the simulator says so"


def spoil(cluster: Cluster, draw: TapeStream) -> str | None:
    """Quarantine one replica, a leaseholder's three times out of four; None when every range needs all it has."""
    spare = _spare(cluster)
    led = [(name, replica) for name, replica in spare if replica.state.lease.holder == replica.context.node_id]
    if not spare or any(machine.disk.spoiled for machine in cluster.world.nodes):
        return None  # the other copy may be the damaged one
    name, replica = draw.pick(led if led and draw.chance(3, 4) else spare)
    machine = cluster.world.machines[name]
    assert machine.domain is not None, "only nodes that are up are looked at"
    cluster.world.loop.call_soon(replica.quarantine, REASON, context=machine.domain.context)
    return f"{name} r{replica.state.descriptor.range_id}"


def _spare(cluster: Cluster) -> list[tuple[str, Replica]]:
    """Replicas that could be fetched from another node."""
    of_range: dict[int, list[tuple[str, Replica]]] = {}
    for name, node in cluster.up():
        for range_id, replica in node.member.store.replicas.items() if node.member else ():
            of_range.setdefault(range_id, []).append((name, replica))
    return [
        one
        for replicas in of_range.values()
        if len(replicas) > 1 and all(replica.failure is None and not replica.retired for _, replica in replicas)
        for one in replicas
    ]
