"""Applications over gateways that end under them: the play `gateways`, and the bugs that it must kill."""

from __future__ import annotations

import pytest

from slackwater.sim.run import SimJob, run_job
from tests.sim.hunt import hunt


def test_a_settled_write_is_seen_by_every_later_read() -> None:
    result = run_job(SimJob(seed=3, play="gateways"))
    assert result.passed, result.summary
    assert result.probes.get("txn.settle"), "no commit was settled: the play does not show what it is for"
    assert result.probes.get("txn.commit_wait")
    assert result.probes.get("gateways.dropped"), "no table was dropped under its writers"
    assert result.probes.get("gateways.brief_written")


@pytest.mark.parametrize(("name", "first"), [("X-SETTLE-EARLY", 32), ("X-TIMEOUT-ANEW", 0)])
def test_planted_bugs_are_killed_by_name(name: str, first: int) -> None:
    """Few seeds have a gateway that ends in its commit-wait and a read that would notice: from 0 on that takes minutes."""
    hunt(name, first=first)
