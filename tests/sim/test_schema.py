"""Tables whose schema changes beside their writers, on nodes that die: the play `schema`, and the bugs that it must kill."""

from __future__ import annotations

import pytest

from slackwater.sim.run import SimJob, run_job
from slackwater.sim.scenario import find_planted

SEEDS = {
    "M24": range(4),
    "M25": range(2),
    "M26": range(5, 6),
    "M27": range(11, 12),
    "M31": range(2),
    "M32": range(4, 5),
    "M33": range(2),
}
REACHED = (
    "schema.play_written",
    "schema.play_changed",
    "schema.play_steered",
    "schema.play_audited",
    "schema.play_split",
    "schema.play_undone",
    "schema.backfill_left_out",
    "schema.waited_for_leases",
    "schema.oracle_delete-only",
    "schema.oracle_write-only",
    "schema.oracle_backfilling",
    "schema.oracle_public",
    "schema.oracle_replica",
    "catalog.lease_reaped",
    "jobs.taken_over",
)


def test_an_index_fits_its_table_through_every_state() -> None:
    result = run_job(SimJob(seed=3, play="schema"))
    assert result.passed, result.summary
    for site in REACHED:
        assert result.probes.get(site), f"{site} was never reached: the play does not show what it is for"


@pytest.mark.parametrize("name", SEEDS)
def test_planted_bugs_are_killed_by_name(name: str) -> None:
    bug = find_planted(name)
    runs = (run_job(SimJob(seed=seed, play=bug.play, planted=(bug.name,))) for seed in SEEDS[name])
    assert next((run.oracle for run in runs if run.oracle), "") in bug.expected
