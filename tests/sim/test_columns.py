"""Columns that are made, changed, damaged and lost in a simulated cluster: every page of them is what rows are."""

from collections import Counter

from slackwater.sim.run import SimJob, run_job
from tests.sim.hunt import hunt

DONE = (
    "columns.wrote",
    "columns.scanned",
    "columns.feed_scanned",
    "columns.altered",
    "columns.oracle_read",
    "queues.columns_new",
    "queues.columns_changed",
    "columns.rot",
)


def test_columns_are_what_rows_are() -> None:
    done: Counter[str] = Counter()
    for seed in (5100, 5101, 5102):
        result = run_job(SimJob(seed=seed, play="columns", duration_s=25.0))
        assert result.passed, f"{result.oracle} {result.kind}: {result.summary}\n{result.evidence}"
        done.update(result.probes)
    for what in DONE:
        assert done[what] >= 1, f"{what} must have happened, or nothing was tested"


def test_columns_that_show_something_else_are_found_out() -> None:
    hunt("X-COLUMNS-UNNOTED", first=5100, duration_s=25.0)
