"""Messages about protections and jobs that a client library would not send, under the certificate of a real client."""

from __future__ import annotations

import pytest

import slackwater
from slackwater.clock.timestamp import MAX, MIN, Timestamp, add_seconds
from slackwater.errors import AccessDenied, DecodeError, NotFound, UsageError
from slackwater.model.jobs import JobProgress, Owned
from slackwater.model.protection import Mode
from slackwater.protocol.client import jobs, protections
from slackwater.protocol.client.jobs import JobChange, JobWork
from slackwater.runtime.real import run
from tests.unit.server.guarded import Guarded

SAID_MAX = 2_000


def forged_protections(now: Timestamp, id_: bytes):
    """Messages, with the error that each must be answered with and a word of it."""

    def protect(tables=("hers",), ts=now, mode=Mode.AT, **more):
        return protections.PROTECT, protections.ProtectTables(tuple(tables), Timestamp(ts), mode, **more)

    renew, release = protections.RenewProtection, protections.ReleaseProtection
    return [
        (*protect(ts=-5), DecodeError, "int"),
        (*protect(ts=MIN), UsageError, "did not exist yet"),
        (*protect(ts=MAX), UsageError, "future"),
        (*protect(ts=add_seconds(now, 3600)), UsageError, "future"),
        (*protect(tables=["hers"] * 5000), UsageError, "256"),
        (*protect(tables=[]), UsageError, "256"),
        (*protect(tables=["none"]), UsageError, "no table"),
        (*protect(expires_s=-1.0), UsageError, "366 days"),
        (*protect(expires_s=float("nan")), UsageError, "366 days"),
        (*protect(expires_s=float("inf")), UsageError, "366 days"),
        (*protect(expires_s=1e300), UsageError, "366"),
        (*protect(kind="job"), UsageError, "user, snapshot, spark"),
        (*protect(kind="feed"), UsageError, "user, snapshot, spark"),
        (*protect(about="x" * (1 << 20)), UsageError, "200"),
        (protections.RELEASE, release(id_), AccessDenied, "belongs to 'ann'"),
        (protections.RELEASE, release(b""), NotFound, "no protection"),
        (protections.RELEASE, release(b"\0" * (1 << 20)), NotFound, "no protection"),
        (protections.RENEW, renew(id_, 5.0), AccessDenied, "belongs to 'ann'"),
        (protections.RENEW, renew(id_, float("nan")), UsageError, "366 days"),
        (protections.RENEW, renew(id_, -1.0), UsageError, "366 days"),
        (protections.RENEW, renew(id_, 5.0, Timestamp(MAX)), UsageError, "future"),
    ]


def forged_jobs(job: int, claim: int):
    """The same for jobs."""
    work = jobs.WorkOnJob
    return [
        *((jobs.CHANGE_JOB, jobs.ChangeJob(job, what), AccessDenied, "belongs to ann") for what in JobChange),
        (jobs.CHANGE_JOB, jobs.ChangeJob(1 << 62, JobChange.CANCEL), UsageError, "no job"),
        (jobs.CLAIM_JOB, jobs.ClaimJob(job, "thief"), AccessDenied, "belongs to ann"),
        (jobs.WORK_ON_JOB, work(job, claim, work=JobWork.SUCCEEDED), AccessDenied, "belongs to ann"),
        (
            jobs.WORK_ON_JOB,
            work(job, claim, JobProgress(owns=(Owned("protection", "00" * 16),))),
            UsageError,
            "what a job owns",
        ),
        (jobs.WORK_ON_JOB, work(job, claim + 1), AccessDenied, "belongs to ann"),
        (jobs.WORK_ON_JOB, work(job, claim, JobProgress(fraction=float("nan"))), AccessDenied, "belongs to ann"),
        (jobs.START_JOB, jobs.StartJob("x", payload="{" * 1_000), UsageError, "JSON"),
        (jobs.START_JOB, jobs.StartJob("x", payload="[" * 20_000 + "]" * 20_000), UsageError, "JSON"),
        (jobs.START_JOB, jobs.StartJob("x", payload="x" * (1 << 20)), UsageError, "65536 bytes"),
        (jobs.START_JOB, jobs.StartJob("x" * (1 << 20)), UsageError, "characters"),
        (jobs.START_JOB, jobs.StartJob("x", name="x" * (1 << 20)), UsageError, "characters"),
        (jobs.VERIFY, jobs.VerifyTable("none"), UsageError, "no table"),
        (jobs.VERIFY, jobs.VerifyTable("hers", Timestamp(MAX)), UsageError, "future"),
        (jobs.VERIFY, jobs.VerifyTable("hers", Timestamp(-1)), DecodeError, "int"),
        (jobs.LIST_JOBS, jobs.ListJobs(("no such status",)), UsageError, "no status"),
    ]


def test_forged_messages_about_retention_are_one_error_each_and_change_nothing(certs):
    async def main():
        async with Guarded(certs) as guarded:
            url = f"slackwater://{guarded.address}?certs={certs}"
            async with slackwater.aconnect(url, user="ann") as ann:
                await ann.create_table("hers", {"id": "int"}, primary_key="id")
                await ann.upsert("hers", [{"id": 1}])
                made = await ann.protect("hers", at=ann.now())
                claim = await ann.jobs.start("hers too", application="hers")
                before = await ann.protections(), await ann.jobs.list()
                bob, (job,) = guarded.dialer("bob"), before[1]
                forged = forged_protections(ann.now(), bytes.fromhex(made.id)) + forged_jobs(job.id, job.claim_number)
                for method, message, error, said in forged:
                    with pytest.raises(error, match=said) as raised:
                        await bob.call(guarded.address, method, message, timeout=10)
                    assert len(str(raised.value)) < SAID_MAX, "an error does not repeat all that it was sent"
                after = await ann.protections(), await ann.jobs.list()
                assert after == before, "nothing was changed"
                await claim.succeed()
                await ann.release(made.id)
                assert await ann.protections() == []

    run(main())
