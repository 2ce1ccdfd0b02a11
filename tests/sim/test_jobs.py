"""Durable jobs under every fault: the play `jobs`, and the bugs that it must kill."""

from __future__ import annotations

import pytest

from slackwater.sim.run import SimJob, run_job
from tests.sim.hunt import hunt

DURATION_S = 40.0


def test_jobs_are_taken_over_and_those_who_come_back_change_nothing() -> None:
    result = run_job(SimJob(seed=101, play="jobs"))
    assert result.passed, result.summary
    for site in (
        "jobs.taken_over",
        "jobs.fenced",
        "jobs.claim_lost",
        "jobs.retried",
        "jobs.play_steered",
        "jobs.play_lost",
    ):
        assert result.probes.get(site), f"{site} was never reached: the play does not show what it is for"


def test_a_job_may_end_by_itself_while_another_one_is_being_stopped() -> None:
    result = run_job(SimJob(seed=103, play="jobs"))
    assert result.passed, result.summary


@pytest.mark.parametrize(
    ("name", "first"),
    [("X-JOB-UNFENCED", 0), ("X-JOB-CHECKED-BEFORE", 3), ("X-JOB-KEEPS", 0), ("X-JOB-RELEASES-APART", 0)],
)
def test_planted_bugs_are_killed_by_name(name: str, first: int) -> None:
    hunt(name, first=first, duration_s=DURATION_S)
