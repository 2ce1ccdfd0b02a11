"""Whole clusters in the simulator: a few seeds, the oracles' own sharpness, and bugs that were found here.

`make sim` runs hundreds of seeds; these are a smoke test. A seed means another run after every change of the code, so
the regressions below are unit tests of what the seeds found (`tests/unit/…`), named in their docstrings.
"""

from __future__ import annotations

import pytest

from slackwater.clock.timestamp import seconds_between
from slackwater.sim.run import SimJob, run_job
from slackwater.sim.scenario import MIX, PLANTED, PLAYS, default_play, find_play, load
from tests.sim.cluster import Cluster, play
from tests.sim.hunt import hunt

load()
SHORT_S = 24.0


@pytest.mark.parametrize("seed", range(6))
def test_a_cluster_holds_its_promises(seed: int) -> None:
    result = run_job(SimJob(seed=seed, play="cluster", duration_s=SHORT_S))
    assert result.passed, f"{result.oracle} {result.kind}: {result.summary}\n{result.evidence}"
    assert result.probes.get("cluster.ok", 0) >= 1, "something must have succeeded, or nothing was tested"


def test_the_standard_scenario_does_everything_it_is_for() -> None:
    result = run_job(SimJob(seed=1, play="standard"))
    assert result.passed, f"{result.oracle} {result.kind}: {result.summary}"
    reached = {"cluster.ok", "cluster.audited", "cluster.transferred", "cluster.split", "lease.acquire"}
    assert reached <= set(result.probes), reached - set(result.probes)


def test_replicas_that_are_filled_twice_at_once_lose_nothing() -> None:
    result = run_job(SimJob(seed=1, play="snapshots", duration_s=SHORT_S))
    assert result.passed, f"{result.oracle} {result.kind}: {result.summary}\n{result.evidence}"
    reached = {"snapshots.filled", "snapshots.moved", "store.replica_removed"}
    assert reached <= set(result.probes), reached - set(result.probes)


@pytest.mark.parametrize("settings", [{"lease.duration": 1.0}, {"liveness.duration": 0.6}])
def test_leases_shorter_than_the_clock_bound_are_of_use_all_the_same(settings: dict[str, float]) -> None:
    """Seeds 7000021 and 7000002: the first range's lease, or a node's record, was in stasis from its first instant."""

    async def story(c: Cluster) -> None:
        for i in range(20):
            await c.kv.put(c.key(b"k%d" % i), b"v", timeout=3.0)
            await c.settle(0.5)
        lease = c.node.store.replicas[1].state.lease
        assert lease.sequence < 4, "the lease of the first range is extended, not taken again and again"
        closed = c.node.store.replicas[3].closing.closed()
        assert seconds_between(closed, c.node.clock.now()) < 5

    play(story, settings={"clock.max_offset": 1.0, **settings})


@pytest.mark.parametrize("seed", [0, 4])
def test_a_leaseholder_that_is_cut_off_or_full_is_replaced_while_it_lives(seed: int) -> None:
    result = run_job(SimJob(seed=seed, play="gray"))
    assert result.passed, f"{result.oracle} {result.kind}: {result.summary}\n{result.evidence}"
    assert result.probes.get("fitness.step_down", 0) >= 1, "nobody gave anything up, so nothing was tested"


def test_the_same_seed_is_the_same_run() -> None:
    job = SimJob(seed=2, play="leases", duration_s=12.0)
    assert run_job(job).trace_hash == run_job(job).trace_hash


@pytest.mark.parametrize("name", ["X-DOUBLE-APPLY", "X-GRAY", "X-NO-REFRESH", "X-NO-UNCERTAINTY"])
def test_a_planted_bug_is_killed_by_its_oracle(name: str) -> None:
    hunt(name)


def test_seeds_play_everything_and_clusters_most_and_every_planted_bug_has_a_play() -> None:
    plays = [default_play(seed) for seed in range(1000, 1000 + len(MIX))]
    assert plays.count("cluster") >= len(plays) / 3
    assert set(plays) == set(PLAYS) - {"standard", "resend"}
    for bug in PLANTED.values():
        assert find_play(bug.play).name == bug.play
