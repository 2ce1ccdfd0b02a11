"""A play for replicas that are fetched anew while they lead: quarantines, lagging followers, and promises ahead of time.

    lead, ticks of 20 ms    the side transport promises the future, and soon after whatever happened to a range
    quarantines             most often of a leaseholder's replica (`cluster_spoil`); most faults of the play are these
    readers that lag        the snapshot it is replaced by lacks commands that stand in the log already
    copied stores           in a third of the runs, a second process with one node's id (`cluster_clone`)
    graceful restarts       rolling ones under lead once the world is well, and single ones in the middle of faults

What is promised below a command that is still to be applied breaks I-10, and I-09 where that command closes less; what was
served to clients and comes out different breaks I-15, I-18 or I-19.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from slackwater.config.zones import PolicyKind
from slackwater.sim.faults import FaultKind
from slackwater.sim.handles import NS
from slackwater.sim.oracles import following
from slackwater.sim.scenario import Play, draw_scenario, register
from slackwater.sim.scenarios.cluster import SETTLE_S, Traffic, _oracles
from slackwater.sim.scenarios.cluster_plan import COPIES_MAX, ClusterPlan, _splits
from slackwater.sim.scenarios.policies import Switching

if TYPE_CHECKING:
    from slackwater.sim.scenario import Scenario, Workload
    from slackwater.sim.tape import Tape

SETTINGS = {
    "clock.max_offset": 0.25,
    "closed_timestamp.target_duration": 0.2,
    "closed_timestamp.side_transport_interval": 0.02,
    "span_config.poll_interval": 0.5,
    "queue.interval": 2.0,
}
FAULTS = frozenset(
    {
        FaultKind.QUARANTINE,
        FaultKind.READER_LAG,
        FaultKind.LOG_SLOW,
        FaultKind.READER_RESTART,
        FaultKind.KILL,
        FaultKind.STOP,
    }
)
KINDS = (PolicyKind.LEAD, PolicyKind.LEAD, PolicyKind.LEAD, PolicyKind.LAG)
RANGES = 5


def _plan(tape: Tape, *, nodes: int) -> ClusterPlan:
    draw = tape.stream("cluster")
    return ClusterPlan(
        ranges=RANGES,
        copies=min(COPIES_MAX, nodes),
        splits=_splits(draw, RANGES),
        workloads=("register", "bank", "list", "follow", "global", "global"),
        think_mean_ns=NS // 16,
        operator_mean_ns=draw.between(NS // 2, 2 * NS),
        merges=draw.chance(1, 2),
        moves=False,
        rolling=draw.chance(1, 2),
        clones=draw.chance(1, 3),
    )


def _draw(tape: Tape, duration_s: float) -> Scenario:
    drawn = draw_scenario(tape, nodes=(2, 3), clients=(4, 6), duration_s=duration_s)
    return replace(drawn, settings=dict(SETTINGS), faults=FAULTS, fault_mean_ns=NS // 2)


def _workloads() -> list[Workload]:
    return [Traffic(_plan), Switching(KINDS), following.Advances()]


register(
    Play(
        name="refetch",
        summary="leaseholders' replicas quarantined and fetched anew under lead, lagging readers, graceful restarts",
        draw=_draw,
        workloads=_workloads,
        oracles=_oracles,
        settle_s=SETTLE_S,
    )
)
