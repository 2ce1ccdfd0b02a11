"""The frontier play: closed timestamps under pressure, and the planted bugs of closing.

`slackwater sim --planted` runs all of them; here are those that die within a few seconds, each by the oracle that is named
for it, and what the follower-read workload must have reached.
"""

from __future__ import annotations

import pytest

from slackwater.sim.run import SimJob, run_job
from slackwater.sim.scenario import PLANTED, load
from tests.sim.hunt import hunt

load()
SHORT_S = 20.0
CLOSING = ("M01", "M02", "M03", "M04", "M05", "M06", "M07", "M09")


def test_the_frontier_holds_and_every_kind_of_read_is_served() -> None:
    missing = {
        "follow.closed",
        "follow.direct_by_follower",
        "follow.negotiated",
        "follow.read",
        "follow.resolved",
        "frontier.merged",
    }
    for seed in range(1, 5):
        result = run_job(SimJob(seed=seed, play="frontier", duration_s=30.0))
        assert result.passed, f"{result.oracle} {result.kind}: {result.summary}\n{result.evidence}"
        missing -= set(result.probes)
        if not missing:
            return
    pytest.fail(f"never reached: {missing}")


@pytest.mark.parametrize("name", ["M03", "M06", "M09"])
def test_a_planted_bug_of_closing_is_killed_by_its_oracle(name: str) -> None:
    hunt(name, duration_s=SHORT_S)


def test_every_planted_bug_of_closing_is_on_the_shelf() -> None:
    assert set(CLOSING) <= set(PLANTED)
