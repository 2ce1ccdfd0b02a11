"""What `slackwater status` says of jobs and protections."""

from __future__ import annotations

import datetime as dt

from slackwater.cli.status import FAILED_SHOWN_MAX, LATELY, job_lines, protection_lines
from slackwater.clock.timestamp import add_seconds, from_us
from slackwater.model.jobs import Job, Status
from slackwater.model.protection import Mode
from slackwater.protocol.client.protections import Protection

NOW = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)


def job(number: int, status: Status, ago_s: float = 0.0, **fields) -> Job:
    at = NOW - dt.timedelta(seconds=ago_s)
    times = {"finished": at} if status.ended else {"started": at}
    return Job(id=number, type="verify", description="", creator="", created=at, status=status, **times, **fields)


def test_jobs_are_counted_by_status_with_the_oldest_that_runs() -> None:
    jobs = [
        job(1, Status.RUNNING, 30),
        job(2, Status.RUNNING, 90),
        job(3, Status.PAUSED, 500),
        job(4, Status.SUCCEEDED, 5),
    ]
    assert job_lines(jobs, NOW) == ["jobs: 2 running, 1 paused, 1 succeeded; the oldest has been running for 90 s"]
    assert job_lines([], NOW) == []


def test_what_failed_lately_is_named_and_what_failed_long_ago_only_counted() -> None:
    old = job(1, Status.FAILED, LATELY.total_seconds() + 1, error="long ago")
    new = job(2, Status.FAILED, 60, error="a row cannot be decoded")
    assert job_lines([old, new], NOW) == ["jobs: 2 failed", "job 2 (verify) failed: a row cannot be decoded"]
    many = [job(number, Status.FAILED, 60, error="x") for number in range(FAILED_SHOWN_MAX + 3)]
    *_, last = job_lines(many, NOW)
    assert last.startswith("and 3 more within a day")


def test_protections_are_counted_with_the_age_of_the_oldest_and_what_is_pinned() -> None:
    now = from_us(10**15)

    def made(age_s: float, pinned: int) -> Protection:
        return Protection(
            "0" * 32, add_seconds(now, -age_s), Mode.AT, "user", "", ("orders",), now, pinned_bytes=pinned
        )

    assert protection_lines([], now) == []
    found = protection_lines([made(60, 5 << 20), made(3 * 3600, 7 << 20)], now)
    assert found == ["protections: 2, the oldest 3h old, the largest pins 7.0 MiB"]
