"""Change feeds on whole clusters in the simulator: a few seeds, and planted bugs that their oracles must name."""

from __future__ import annotations

from collections import Counter

import pytest

from slackwater.sim.run import SimJob, run_job
from slackwater.sim.scenario import load
from tests.sim.hunt import hunt

load()
SHORT_S = 24.0


@pytest.mark.parametrize("seed", range(3))
def test_feeds_deliver_what_was_committed(seed: int) -> None:
    result = run_job(SimJob(seed=seed, play="feeds", duration_s=SHORT_S))
    assert result.passed, f"{result.oracle} {result.kind}: {result.summary}\n{result.evidence}"
    assert result.probes.get("feeds.restarted", 0) >= 1, "something must have been resumed, or nothing was tested"


@pytest.mark.parametrize("name", ["M12", "M13", "M14", "X-TOKEN-AHEAD"])
def test_a_planted_bug_is_killed_by_its_oracle(name: str) -> None:
    hunt(name, duration_s=40.0)


def test_what_a_consumer_keeps_is_the_tables_whenever_it_dies() -> None:
    done: Counter[str] = Counter()
    for seed in range(3):
        result = run_job(SimJob(seed=seed, play="feeds_tables", duration_s=SHORT_S))
        assert result.passed, f"{result.oracle} {result.kind}: {result.summary}\n{result.evidence}"
        done.update(result.probes)
    for what in ("feeds.keeper_died", "feeds.keeper_compared"):
        assert done[what] >= 1, f"{what} must have happened, or nothing was tested"


def test_a_consumer_whose_token_is_older_than_what_is_kept_begins_anew() -> None:
    done: Counter[str] = Counter()
    for seed in (6612050, 8006):  # clusters that do not answer for longer than history is kept
        result = run_job(SimJob(seed=seed, play="feeds_tables"))
        assert result.passed, f"{result.oracle} {result.kind}: {result.summary}\n{result.evidence}"
        done.update(result.probes)
    assert done["feeds.keeper_began_anew"] >= 1, "some token must have been refused, or nothing was tested"
