"""The plays of the schemes of closing: each of them alone, and moves between them under load."""

from __future__ import annotations

import pytest

from slackwater.sim.run import SimJob, run_job
from slackwater.sim.scenario import load
from tests.sim.hunt import hunt

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


def test_a_range_that_a_merge_froze_is_thawed_although_its_entries_are_slow() -> None:
    """Seed 7055: an empty command was to push the slow thaw out, and is refused by a frozen range; it waited for ever."""
    result = run_job(SimJob(seed=7055, play="ages", duration_s=25.0))
    assert result.passed, f"{result.oracle} {result.kind}: {result.summary}\n{result.evidence}"


@pytest.mark.parametrize(("name", "first"), [("M08", 26), ("X-UNNAMED", 0)])
def test_a_planted_bug_of_the_store_wide_scheme_is_killed_by_its_oracle(name: str, first: int) -> None:
    """A write below the lag that waits for its index over a heartbeat is rare: M08 dies in 2 of 30 seeds.

    The enumeration of `tests/unit/closedts/test_exhaustive.py` kills both in every run.
    """
    hunt(name, first=first, duration_s=25.0)
