"""Applications over gateways that end under them: the play `gateways`, and the bugs that it must kill."""

from __future__ import annotations

import pytest

from slackwater.sim.run import SimJob, run_job
from slackwater.sim.scenario import find_planted

BUGS = ("X-SETTLE-EARLY", "X-TIMEOUT-ANEW")
SEEDS = 80
"""Few seeds have a gateway that ends in its commit-wait and a read that would notice; which ones changes with the code."""
FIRST = {"X-SETTLE-EARLY": 32}
"""Where to begin: the seed that kills it today. From 0 on that takes minutes."""


def test_a_settled_write_is_seen_by_every_later_read() -> None:
    result = run_job(SimJob(seed=3, play="gateways"))
    assert result.passed, result.summary
    assert result.probes.get("txn.settle"), "no commit was settled: the play does not show what it is for"
    assert result.probes.get("txn.commit_wait")
    assert result.probes.get("gateways.dropped"), "no table was dropped under its writers"
    assert result.probes.get("gateways.brief_written")


@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs_are_killed_by_name(name: str) -> None:
    bug = find_planted(name)
    seeds = range(FIRST.get(name, 0), FIRST.get(name, 0) + SEEDS)
    killers = (run_job(SimJob(seed=seed, play=bug.play, planted=(bug.name,))).oracle for seed in seeds)
    assert next((killer for killer in killers if killer), "") in bug.expected
