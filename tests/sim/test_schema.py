"""Tables whose schema changes beside their writers, on nodes that die: the play `schema`, and the bugs that it must kill."""

from __future__ import annotations

import pytest

from slackwater.sim.run import SimJob, run_job
from tests.sim.hunt import hunt

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


@pytest.mark.parametrize(
    ("name", "first"),
    [("M24", 0), ("M25", 0), ("M26", 8), ("M27", 7), ("M31", 0), ("M32", 10), ("M33", 3), ("M34", 0), ("M35", 0)],
)
def test_planted_bugs_are_killed_by_name(name: str, first: int) -> None:
    hunt(name, first=first)
