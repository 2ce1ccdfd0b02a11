"""Applications over gateways that end under them: the play `gateways`, and the bugs that it must kill."""

from __future__ import annotations

from slackwater.sim.run import Job, run_job
from slackwater.sim.scenario import find_planted

EARLY = 3
"""A seed in which a gateway ends in its commit-wait: without the wait in `txn.settle` it breaks I-19."""


def test_a_settled_write_is_seen_by_every_later_read() -> None:
    result = run_job(Job(seed=EARLY, play="gateways"))
    assert result.passed, result.summary
    assert result.probes.get("txn.settle"), "no commit was settled: the play does not show what it is for"
    assert result.probes.get("txn.commit_wait")


def test_an_early_answer_of_another_gateway_is_seen() -> None:
    bug = find_planted("X-SETTLE-EARLY")
    result = run_job(Job(seed=EARLY, play=bug.play, planted=(bug.name,)))
    assert result.oracle in bug.expected, result.summary
