"""Gray failures: a leaseholder that is alive, reads and writes the log, and yet serves no client.

    cut     no node reaches it and it reaches none, the log excepted; often it is the holder of range 1, where the liveness
            of all nodes is kept, so that it goes on renewing its own and no other node can
    full    its disk takes nothing more: it reads its log and cannot apply it

Unlike the faults of the nemesis these last longer than any lease, nothing else goes wrong meanwhile, and a majority of nodes is
well and connected. So there is no excuse: whatever the node led must be led by others within `WITHIN_NS`, and stay with them
for as long as the failure lasts (I-35). Every cut is also felt by the nodes that are well: none of them may give up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.replica.lease import LeaseState
from slackwater.sim import faults
from slackwater.sim.faults import FaultKind, InjectedFault
from slackwater.sim.handles import NS

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.model.ids import RangeId
    from slackwater.server.node import Node
    from slackwater.sim.scenarios.cluster_plan import Cluster
    from slackwater.sim.tape import TapeStream

WITHIN_NS = 10 * NS
"""How long a leaseholder that cannot be reached, or cannot write, may keep its ranges from being led."""
LOOK_NS = NS // 4
LASTS_NS = (NS, 8 * NS)
"""Beyond WITHIN_NS, in which nothing may fall back to the failed node."""
PAUSE_NS = (6 * NS, 9 * NS)
"""Long enough for all nodes to find each other again."""


async def fail_gray(cluster: Cluster) -> None:
    """Until the world is to recover: hurt a holder, see that others take over, heal, wait."""
    world = cluster.world
    draw = world.tape.stream("gray")
    rounds = 0
    while not world.healthy:
        await world.sleep_ns(draw.between(*PAUSE_NS))
        rounds += 1
        name = f"gray/{rounds}"
        victim = _victim(cluster, draw)
        if victim is None or world.calm() or not world.allows_fault(name):
            continue
        led = _led(cluster.nodes[victim])
        fault = _begin(cluster, draw, victim, name)
        await _watch(cluster, victim, led, lasts_ns=WITHIN_NS + draw.between(*LASTS_NS))
        fault.end(world)


def _victim(cluster: Cluster, draw: TapeStream) -> str | None:
    """A node that leads something; two times in three the one that leads range 1. All nodes must be up and well."""
    if len(cluster.up()) < len(cluster.addresses) or any(_own_record(node) is None for _, node in cluster.up()):
        return None
    first = cluster.world.focus()
    if first is not None and draw.chance(2, 3):
        return first
    holders = [name for name, node in cluster.up() if _led(node)]
    return draw.pick(holders) if holders else None


def _own_record(node: Node) -> object:
    return None if node.member is None else node.member.liveness.own()


def _led(node: Node) -> list[RangeId]:
    if node.member is None:
        return []
    return [range_id for range_id, r in node.member.store.replicas.items() if r.state.lease.holder == node.node_id]


def _begin(cluster: Cluster, draw: TapeStream, victim: str, name: str) -> InjectedFault:
    world = cluster.world
    full = draw.chance(1, 3)
    undo: Callable[[], None]
    if full:
        disk = world.machines[victim].disk
        disk.full = True

        def undo() -> None:
            disk.full = False

    else:
        others = [other for other in world.machines if other != victim]
        undo = faults._cut_all(world, faults._between(world, [victim], others))
    kind = FaultKind.DISK_FULL if full else FaultKind.ISOLATE
    fault = InjectedFault(kind, victim, begin_ns=world.loop.now_ns, undo=undo, name=name)
    world.faults.append(fault)
    world.event(f"begin gray {kind.value}({victim})")
    return fault


async def _watch(cluster: Cluster, victim: str, led: list[RangeId], *, lasts_ns: int) -> None:
    world, life = cluster.world, cluster.world.machines[victim].incarnation
    begin_ns = world.loop.now_ns
    kept: list[RangeId] = led
    while world.loop.now_ns - begin_ns < lasts_ns and not world.healthy:
        await world.sleep_ns(LOOK_NS)
        if not world.machines[victim].up or world.machines[victim].incarnation != life:
            return  # it stopped itself, as it may when its disk fails
        kept = [range_id for range_id in led if _unled(cluster, victim, range_id)]
        if kept and world.loop.now_ns - begin_ns > WITHIN_NS:
            kinds = ", ".join(f"r{range_id}" for range_id in kept)
            world.violated(
                "I-35",
                "gray-failure",
                f"{victim} has been alive and of no use for {(world.loop.now_ns - begin_ns) / NS:.1f} s, a majority is "
                f"well, and no other node leads {kinds}",
                lease=[_lease_seen(cluster, victim, range_id) for range_id in kept],
            )
            return
        if not kept and world.loop.now_ns - begin_ns <= WITHIN_NS:
            world.loop.note(f"gray {victim} replaced")


def _unled(cluster: Cluster, victim: str, range_id: RangeId) -> bool:
    """Whether a range that the others have replicas of is led by none of them."""
    here = [
        (node, node.member.store.replicas[range_id])
        for name, node in cluster.up()
        if name != victim and node.member is not None and range_id in node.member.store.replicas
    ]
    return bool(here) and not any(
        replica.failure is None
        and replica.state.lease.holder == node.node_id
        and replica.leasing.status(node.clock.peek()) is LeaseState.VALID
        for node, replica in here
    )


def _lease_seen(cluster: Cluster, victim: str, range_id: RangeId) -> str:
    for name, node in cluster.up():
        if (
            name != victim
            and node.member is not None
            and (replica := node.member.store.replicas.get(range_id)) is not None
        ):
            return f"{name} sees {replica.state.lease.status()}"
    return "no node has a replica"
