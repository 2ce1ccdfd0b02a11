"""What may happen to a job and what may not, one state at a time."""

from __future__ import annotations

import datetime as dt

import pytest
from msgspec.structs import replace

from slackwater.errors import ClaimLost, UsageError
from slackwater.jobs import transitions as to
from slackwater.jobs.record import id_of_open, job_of, open_key, open_span, row_of
from slackwater.model.jobs import Job, JobProgress, Owned, Status
from slackwater.model.system_tables import JOBS

NOW = dt.datetime(2026, 11, 18, 4, tzinfo=dt.UTC)
LATER = NOW + dt.timedelta(seconds=5)
JOB = Job(id=17, type="backup", description="of t", creator="ann", created=NOW)
NODE = to.Claimant("n2", 4)


def running(**fields: object) -> Job:
    return replace(to.taken(JOB, NODE, now=NOW, attempts_max=3), **fields)


def test_a_row_is_a_job_and_back() -> None:
    assert {c.name for c in JOBS.columns} == set(Job.__struct_fields__)
    full = running(owns=(Owned("staged", "1"),), ending=Status.FAILED, error="x", name="nightly", claim_expires=LATER)
    for job in (JOB, full):
        assert job_of(row_of(job)) == job
    assert open_key(17) in open_span()
    assert id_of_open(open_key(17)) == 17


def test_the_way_of_a_job_that_succeeds() -> None:
    assert to.waits_for_claim(JOB, now=NOW)
    first = running()
    assert (first.status, first.claimed_by, first.claim_epoch, first.claim_number) == (Status.RUNNING, "n2", 4, 1)
    said = JobProgress(checkpoint='{"at": 3}', fraction=0.5, progress="half", owns=(Owned("staged", "1"),))
    half = to.checkpointed(replace(first, attempts=2, error="before"), said)
    assert (half.checkpoint, half.fraction, half.attempts, half.error) == ('{"at": 3}', 0.5, 1, "")
    assert to.checkpointed(half, said).owns == (Owned("staged", "1"),)
    done = to.succeeded(half, LATER)
    assert (done.status, done.finished, done.fraction, done.claimed_by) == (Status.SUCCEEDED, LATER, 1.0, "")


def test_a_claimant_whose_number_has_passed_changes_nothing() -> None:
    first = running()
    ticket = to.ticket_of(first)
    assert to.held(first, ticket) is first
    for since in (
        to.taken(first, to.Claimant("n3", 1), now=NOW, attempts_max=3),
        to.stopped(first),
        to.failed(first, "x"),
        to.retried(first, "x", at=LATER),
        to.succeeded(first, NOW),
        to.reverted(first, NOW),
    ):
        with pytest.raises(ClaimLost, match="nothing was changed"):
            to.held(since, ticket)
    for kept in (to.pause(first), to.cancel(first), to.renewed(first, LATER), to.checkpointed(first, JobProgress())):
        assert to.held(kept, ticket), "its claimant has to hear of it, and stop by itself"


def test_an_attempt_that_fails_is_followed_by_another_until_there_are_too_many() -> None:
    job = JOB
    for _ in range(3):
        job = to.taken(job, NODE, now=NOW, attempts_max=3)
        assert job.status is Status.RUNNING
        job = to.retried(job, "the log is slow", at=LATER)
        assert (job.status, job.error, job.claimed_by) == (Status.PENDING, "the log is slow", "")
        assert not to.waits_for_claim(job, now=NOW)
        assert to.waits_for_claim(job, now=LATER)
    job = to.taken(job, NODE, now=LATER, attempts_max=3)
    assert (job.status, job.ending) == (Status.REVERTING, Status.FAILED)
    assert job.error == "gave up after 3 attempts without progress: the log is slow"
    again = to.retried(job, "not now", at=LATER)
    assert again.status is Status.REVERTING
    assert to.reverted(to.taken(again, NODE, now=LATER, attempts_max=3), LATER).status is Status.FAILED


def test_pausing_and_resuming() -> None:
    paused = to.pause(JOB)
    assert paused.status is Status.PAUSED
    assert not to.waits_for_claim(paused, now=LATER)
    asked = to.pause(running())
    assert asked.status is Status.PAUSING
    stopped = to.stopped(asked)
    assert (stopped.status, stopped.claimed_by) == (Status.PAUSED, "")
    assert to.taken(asked, to.Claimant("n3", 1), now=NOW, attempts_max=3).status is Status.PAUSED, (
        "its claimant is gone"
    )
    resumed = to.resume(replace(stopped, attempts=9))
    assert (resumed.status, resumed.attempts) == (Status.PENDING, 0)
    assert to.succeeded(asked, NOW).status is Status.SUCCEEDED, "it was done before it could be paused"


def test_cancelling_reverts_and_then_ends() -> None:
    for before in (JOB, to.pause(JOB)):
        reverting = to.cancel(before)
        assert (reverting.status, reverting.ending) == (Status.REVERTING, Status.CANCELLED)
    asked = to.cancel(running())
    assert asked.status is Status.CANCELLING
    with pytest.raises(ClaimLost, match="cannot succeed any more"):
        to.succeeded(asked, NOW)
    for reverting in (to.stopped(asked), to.taken(asked, NODE, now=NOW, attempts_max=3), to.failed(asked, "x")):
        assert (reverting.status, reverting.ending) == (Status.REVERTING, Status.CANCELLED)
        assert to.reverted(reverting, NOW).status is Status.CANCELLED


@pytest.mark.parametrize(
    ("job", "what", "said"),
    [
        (to.pause(JOB), to.pause, "job 17 is paused already"),
        (to.pause(running()), to.pause, "job 17 is pausing already"),
        (to.succeeded(running(), NOW), to.pause, "cannot pause job 17: it has ended, it succeeded"),
        (to.cancel(running()), to.pause, "cannot pause job 17: it is being cancelled"),
        (to.failed(running(), "x"), to.pause, "cannot pause job 17: it failed and is being reverted"),
        (JOB, to.resume, "job 17 is not paused: it is pending"),
        (running(), to.resume, "job 17 is not paused: it is running"),
        (to.pause(running()), to.resume, "still being paused"),
        (to.reverted(to.cancel(JOB), NOW), to.resume, "cannot resume job 17: it has ended, it was cancelled"),
        (to.cancel(running()), to.cancel, "being cancelled already"),
        (to.cancel(JOB), to.cancel, "being cancelled already"),
        (to.reverted(to.cancel(JOB), NOW), to.cancel, "cannot cancel job 17: it has ended, it was cancelled"),
        (to.reverted(to.failed(running(), "x"), NOW), to.cancel, "cannot cancel job 17: it has ended, it failed"),
        (to.failed(running(), "x"), to.cancel, "cannot cancel job 17: it failed and is being reverted"),
    ],
)
def test_a_request_that_makes_no_sense_is_one_sentence(job: Job, what, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        what(job)
