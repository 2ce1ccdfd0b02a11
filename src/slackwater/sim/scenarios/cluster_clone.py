"""A store that is copied, and a second process started from the copy: an operator's mistake, or a restored disk image.

    n2   ════════════════╪═══════════════════►        beside: the node runs on; the copy must refuse to start
    n2x                  └ copied ── boots

    n2   ═══════ killed ╪      boots again ──►        instead: the node is down; whichever of the two takes its record
    n2x                 └ copied ── boots ───►        first is the node, and the other one must refuse, or stop

Both have the node's id, its replicas and its former leases. What must hold is that they are never two leaseholders (I-07),
and that one of each pair is fenced and the other is not: once the world is well, every node is there once (I-31). There is
at least one other node, for clients to ask where the copy is, should that be the one that stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.hooks import probe
from slackwater.sim.handles import NS

if TYPE_CHECKING:
    from slackwater.sim.scenarios.cluster_plan import Cluster

POLL_NS = NS // 4
AFTER_NS = (NS // 10, 12 * NS)
BACK_NS = (NS // 100, 10 * NS)
"""How long the node stays away, where its copy is started instead."""


async def clone(cluster: Cluster) -> None:
    """At a drawn moment, copy the store of a node that has one, and start a second process from it."""
    world, draw = cluster.world, cluster.world.tape.stream("clone")
    while not cluster.ready:
        await world.sleep_ns(POLL_NS)
    await world.sleep_ns(draw.between(*AFTER_NS))
    settled = [m for m in world.nodes if m.up and not m.gone and not m.stopping and m.name in _members(cluster)]
    if world.healthy or not settled or not world.allows_fault("clone/1"):
        return
    machine, instead = draw.pick(settled), draw.chance(1, 2)
    if instead:
        machine.crash(kernel_lives=True)
        world.loop.call_at_ns(world.loop.now_ns + draw.between(*BACK_NS), machine.start)
    probe("cluster.cloned")
    world.event(f"the store of {machine.name} is copied, and started {'instead' if instead else 'beside'} it")
    world.add_copy(f"{machine.name}x", machine)


def _members(cluster: Cluster) -> set[str]:
    """Nodes that have their record: a store that was never part of the cluster has nothing to be mistaken for."""
    return {name for name, node in cluster.up() if node.member is not None and node.member.liveness.own() is not None}
