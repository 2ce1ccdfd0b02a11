"""A partition made to measure: a leaseholder and some clients on one side, all others on the other.

    { n2, c1, c2, c3 }  │  { n1 (holds r1), n3, c4, c5, c6, op }

The holder cannot renew its liveness, for range 1 is on the other side; the others see its record expire and take its
leases; its own clients keep asking it. It is cut off from the log as well, or it would read there that it has been
replaced and stop within milliseconds, which is what saves it most of the time. Whether both sides ever serve at once is
then a question of clocks alone. Clients matter: their messages carry time, so a client that talks to both sides would
hide a slow clock. Random partitions look like this too rarely to be relied upon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.sim import faults
from slackwater.sim.faults import FaultKind, InjectedFault
from slackwater.sim.handles import NS

if TYPE_CHECKING:
    from slackwater.server.node import Node
    from slackwater.sim.scenarios.cluster_plan import Cluster
    from slackwater.sim.tape import TapeStream

LASTS_NS = (6 * NS, 9 * NS)
PAUSE_NS = (NS, 3 * NS)


async def sever(cluster: Cluster) -> None:
    """Until the world is to recover: cut off a holder, wait, heal, wait."""
    world = cluster.world
    draw = world.tape.stream("sever")
    cuts = 0
    while not world.healthy:
        await world.sleep_ns(draw.between(*PAUSE_NS))
        cuts += 1
        wanted = world.allows_fault(f"sever/{cuts}") and not world.calm()
        fault = _cut(cluster, draw, f"sever/{cuts}") if wanted else None
        if fault is not None:
            await world.sleep_ns(draw.between(*LASTS_NS))
            fault.end(world)


def _cut(cluster: Cluster, draw: TapeStream, name: str) -> InjectedFault | None:
    world = cluster.world
    if world.healthy:
        return None
    first = world.focus()
    victims = [name for name, node in cluster.up() if name != first and holds_leases(node)]
    if not victims:
        return None
    return cut_off(cluster, draw.pick(victims), name, what="sever", from_log=True)


def cut_off(cluster: Cluster, victim: str, name: str, *, what: str, from_log: bool) -> InjectedFault:
    """Cut a node and half of the clients off from all others, and the node from the log as well if so asked."""
    world = cluster.world
    clients = [machine.name for machine in world.clients if machine.name != "op"]
    some = [victim, *clients[: len(clients) // 2]]
    others = [name for name in world.machines if name not in some]
    reconnect = faults._cut_all(world, faults._between(world, some, others))
    if from_log:
        world.log.link(victim).cut = True

    def undo() -> None:
        reconnect()
        if from_log:
            world.log.heal(victim)

    fault = InjectedFault(FaultKind.PARTITION, f"{' '.join(some)}|*", begin_ns=world.loop.now_ns, undo=undo, name=name)
    world.faults.append(fault)
    world.event(f"begin {what}({' '.join(some)})")
    return fault


def holds_leases(node: Node) -> bool:
    """Whether a node leads a range; one that has not joined yet leads none."""
    held = node.member.store.replicas.values() if node.member is not None else ()
    return any(replica.state.lease.holder == node.node_id for replica in held)
