"""A node that ends its epoch, and one that takes over having heard of it by nothing but the log.

    n2 (leads, ahead)    ── reads at 12.9 ──► ends its epoch: record in range 1 ──┐
    n1 (behind, cut off from nodes and from half of the clients)    10.4 ◄── log ─┴─► takes the lease: from when on?

Messages between nodes carry time, so a node that talks to others is hardly ever behind one of them. An entry of the log has no
stamp: a record that comes by it says that an epoch is over, and the clock of its reader knows nothing of what was served under
it. That is in the record, and a lease that begins at the taker's clock alone overlaps the one before. Nodes end their epochs when
they stop or are unfit; that one of them does so just when another is cut off from all others is too rare to wait for.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from slackwater.errors import SlackwaterError
from slackwater.hooks import probe
from slackwater.runtime.tasks import Scope
from slackwater.sim.handles import NS
from slackwater.sim.scenarios.cluster_sever import cut_off, holds_leases

if TYPE_CHECKING:
    from slackwater.server.node import Node
    from slackwater.sim.scenarios.cluster_plan import Cluster
    from slackwater.sim.tape import TapeStream

REST_NS = (NS, 3 * NS)
APART_NS = (NS // 10, NS // 2)
"""From the cut to the end of the epoch: less than the clocks are apart."""
LASTS_NS = (2 * NS, 4 * NS)


async def unheard(cluster: Cluster) -> None:
    """Until the world is to recover: set two clocks apart, cut one node off, have the other end its epoch, heal, rest."""
    world = cluster.world
    draw = world.tape.stream("unheard")
    rounds = 0
    while not world.healthy:
        await world.sleep_ns(draw.between(*REST_NS))
        rounds += 1
        name = f"unheard/{rounds}"
        pair = _pair(cluster, draw) if world.allows_fault(name) and not world.calm() and not world.healthy else None
        if pair is None:
            continue
        taker, ending = pair
        for machine, by in ((taker, -1), (ending, 1)):
            clock = world.machines[machine].clock
            clock.step_ns = by * clock.band_ns - clock.skew_ns()
        await world.sleep_ns(draw.between(*REST_NS))
        if world.healthy:
            return
        fault = cut_off(cluster, taker, name, what="unheard", from_log=False)
        await world.sleep_ns(draw.between(*APART_NS))
        _end_epoch(cluster, ending)
        await world.sleep_ns(draw.between(*LASTS_NS))
        fault.end(world)


def _pair(cluster: Cluster, draw: TapeStream) -> tuple[str, str] | None:
    """A node to be cut off, and one whose leases it may take; neither leads the first range, where records are kept."""
    others = [(name, node) for name, node in cluster.up() if name != cluster.world.focus()]
    leading = [name for name, node in others if holds_leases(node)]
    if not leading or len(others) < 2:
        return None
    ending = draw.pick(leading)
    return draw.pick([name for name, _ in others if name != ending]), ending


def _end_epoch(cluster: Cluster, name: str) -> None:
    world, machine, node = cluster.world, cluster.world.machines[name], cluster.nodes.get(name)
    if machine.domain is None or node is None or node.member is None:
        return
    world.event(f"{name} ends its epoch")
    work = _step_down(node)
    scope = Scope(f"{name}/unheard", on_failure=machine.failed)
    world.loop.call_soon(lambda: scope.spawn(work, name=f"{name}/unheard"), context=machine.domain.context)


async def _step_down(node: Node) -> None:
    assert node.member is not None, "looked at in the same step"
    with suppress(SlackwaterError):  # its record cannot be written now, and expires
        await node.member.liveness.step_down(horizon=node.member.store.horizon)
        probe("cluster.ended_unheard")
