"""A rolling restart of a healthy cluster: every node in turn is asked to stop, switched off, and on again.

Under load, for the clients of the healed world still work. Operators do this with every upgrade, and it is where a graceful
stop has to be one: with nothing else going wrong, `oracles/stopping.py` holds each stop to its bound. (Stops in the middle of
faults are a kind of the nemesis.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.hooks import probe
from slackwater.sim.handles import NS

if TYPE_CHECKING:
    from slackwater.sim.scenarios.cluster_plan import Cluster
    from slackwater.sim.world import Machine

POLL_NS = NS // 4
CALM_NS = 3 * NS
"""After healing, nodes find each other again first."""
REST_NS = NS // 2


async def rolling_restart(cluster: Cluster) -> None:
    """Once the world is well, restart every node, one after the other."""
    world = cluster.world
    cluster.busy["rolling"] = "rolling restart"
    while not (world.healthy and cluster.ready):
        await world.sleep_ns(POLL_NS)
    await world.sleep_ns(CALM_NS)
    for machine in world.nodes:
        life = machine.incarnation
        while not machine.gone and machine.incarnation == life and not _ready(cluster, machine.name):
            await world.sleep_ns(POLL_NS)
        if machine.gone or not machine.stop(rest_ns=REST_NS, stopped=world.stopped):
            continue
        while not _retired(machine) and (machine.incarnation == life or not _ready(cluster, machine.name)):
            await world.sleep_ns(POLL_NS)
    probe("cluster.rolled")
    cluster.busy["rolling"] = ""


def _retired(machine: Machine) -> bool:
    """Asked anew: a machine may go while it is waited for."""
    return machine.gone


def _ready(cluster: Cluster, name: str) -> bool:
    node = cluster.nodes.get(name)
    return node is not None and node.member is not None and node.member.liveness.own() is not None
