"""The plays of the schemes of closing: each of them alone, and moves between them under load."""

from __future__ import annotations

import pytest

from slackwater.sim.run import SimJob, run_job
from slackwater.sim.scenario import load

load()


@pytest.mark.parametrize(
    ("play", "reached"),
    [
        ("store_wide", {"closedts.heartbeat_reset", "closedts.leaseholder_woken", "follow.direct_by_follower"}),
        ("ages", {"closedts.empty_command", "follow.direct_by_follower"}),
        ("schemes", {"closedts.schemes_changed", "schemes.store_wide", "schemes.max_write_age"}),
    ],
)
def test_every_scheme_closes_and_a_cluster_moves_between_them(play: str, reached: set[str]) -> None:
    missing = set(reached)
    for seed in range(3):
        result = run_job(SimJob(seed=seed, play=play, duration_s=25.0))
        assert result.passed, f"{result.oracle} {result.kind}: {result.summary}\n{result.evidence}"
        missing -= set(result.probes)
        if not missing:
            return
    pytest.fail(f"never reached: {missing}")
