"""`slackwater jobs`: the durable jobs of a cluster: list, show, pause, resume, cancel, wait; and verify, which starts one.

On a terminal `wait` draws a bar with the rate and the time that is left, by what the job has said in the last half minute.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from slackwater.cli.calling import CALL_TIMEOUT_S, calling
from slackwater.cli.status import print_table
from slackwater.clock.timestamp import MIN, from_us, parse
from slackwater.errors import UnavailableError
from slackwater.model.jobs import Job, Status
from slackwater.protocol.client import jobs as calls
from slackwater.runtime.clock import RealClock
from slackwater.runtime.real import run
from slackwater.server.arguments import add_client_arguments, verb_first

if TYPE_CHECKING:
    from slackwater.runtime.rpc.dialer import Dialer

TEXT = """\
status     pending, running, pausing, paused, cancelling, reverting: on its way; succeeded, failed, cancelled: ended
claimed by the node, or the application outside of the cluster, that works on the job

A job goes on when its node is lost: another node takes it over from the last checkpoint. Jobs that ended are listed for
`jobs.retention`. The same rows: db.scan("system.jobs").

examples:
  slackwater jobs list --status running,paused
  slackwater jobs show 17
  slackwater jobs verify orders --wait          read and decode every row of a table
  slackwater jobs pause 17; slackwater jobs resume 17
  slackwater jobs cancel 17
  slackwater jobs wait 17 --json                exits with status 0 if it succeeded, 1 if not
"""
BAR_CHARS = 30
LOOK_S = 0.25
WINDOW_S = 30.0
LOST_MAX = 40
"""Looks in a row that may fail before waiting is given up: the node that is asked may be restarted meanwhile."""
_CHANGES = {change.value: change for change in calls.JobChange}


def main(argv: list[str]) -> int:
    """Look at jobs or change one; `wait` exits with status 1 unless the job succeeded."""
    options = _parser().parse_args(verb_first(argv))
    return run(_do(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="slackwater jobs",
        description="Look at the durable jobs of a cluster, pause, resume and cancel them, wait for them.",
        epilog=TEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    listed = verbs.add_parser("list", help="every job that is kept, newest last")
    listed.add_argument("--status", default="", metavar="STATUS,…", help="only jobs of these")
    listed.add_argument("--type", default="", metavar="TYPE", help="only jobs of this type")
    helps = {
        "show": "everything about one job",
        "pause": "stop working on a job until it is resumed",
        "resume": "go on with a paused job",
        "cancel": "stop a job for good and undo what it did",
        "wait": "return when a job has ended",
    }
    for name, text in helps.items():
        verbs.add_parser(name, help=text).add_argument("job", type=int, metavar="JOB", help="its number")
    verify = verbs.add_parser("verify", help="start a job that reads and decodes every row of a table")
    verify.add_argument("table", metavar="TABLE")
    verify.add_argument("--at", metavar="TIME", help="as of then instead of now: ISO-8601, or -5m")
    verify.add_argument("--wait", action="store_true", help="and wait for it")
    for verb in verbs.choices.values():
        add_client_arguments(verb)
        verb.add_argument("--json", action="store_true", help="print JSON: one object, of list one a line")
    return parser


async def _do(options: argparse.Namespace) -> int:
    async with calling(options) as dialer:
        if options.verb == "list":
            _print_list(await _list(options, dialer), as_json=options.json)
            return 0
        job = await _start(options, dialer)
        if options.verb == "wait" or (options.verb == "verify" and options.wait):
            job = await _wait(options, dialer, job.id)
            _print_job(job, as_json=options.json)
            return 0 if job.status is Status.SUCCEEDED else 1
        _print_job(job, as_json=options.json)
        return 0


async def _list(options: argparse.Namespace, dialer: Dialer) -> list[Job]:
    statuses = tuple(name.strip() for name in options.status.split(",") if name.strip())
    request = calls.ListJobs(statuses, options.type)
    return (await dialer.call(options.host, calls.LIST_JOBS, request, timeout=CALL_TIMEOUT_S)).jobs


async def _start(options: argparse.Namespace, dialer: Dialer) -> Job:
    """Do what was asked of one job; returns it."""
    if options.verb == "verify":
        at = MIN if options.at is None else parse(options.at, now=from_us(RealClock().wall_ns() // 1000))
        request = calls.VerifyTable(options.table, at)
        return (await dialer.call(options.host, calls.VERIFY, request, timeout=CALL_TIMEOUT_S)).job
    if options.verb in _CHANGES:
        change = calls.ChangeJob(options.job, _CHANGES[options.verb])
        return (await dialer.call(options.host, calls.CHANGE_JOB, change, timeout=CALL_TIMEOUT_S)).job
    return await _get(options, dialer, options.job)


async def _get(options: argparse.Namespace, dialer: Dialer, job_id: int) -> Job:
    return (await dialer.call(options.host, calls.GET_JOB, calls.GetJob(job_id), timeout=CALL_TIMEOUT_S)).job


async def _wait(options: argparse.Namespace, dialer: Dialer, job_id: int) -> Job:
    clock, bar, lost = RealClock(), Bar(), 0
    shown = sys.stderr.isatty() and not options.json
    while True:
        try:
            job = await _get(options, dialer, job_id)
            lost = 0
        except UnavailableError:
            lost += 1
            if lost > LOST_MAX:
                raise
        else:
            if shown:
                print(f"\r\x1b[K{bar.line(job, clock.monotonic_ns() / 1e9)}", end="", file=sys.stderr, flush=True)
            if job.status.ended:
                if shown:
                    print(file=sys.stderr)
                return job
        await clock.sleep(LOOK_S)


class Bar:
    """A job's progress in one line: bar, share, rate and time left by the last half minute, and what the job says."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    def line(self, job: Job, now_s: float) -> str:
        """The line of a job, looked at now."""
        self._seen.append((now_s, job.fraction))
        while now_s - self._seen[0][0] > WINDOW_S:
            self._seen.popleft()
        full = round(job.fraction * BAR_CHARS)
        bar = "█" * full + "·" * (BAR_CHARS - full)
        parts = [f"job {job.id}", job.status.value, bar, f"{job.fraction:4.0%}"]
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        if job.status is Status.RUNNING and last > first:
            rate = (last - first) / (last_s - first_s)
            parts += [f"{rate * 60:.1%}/min", f"{_duration((1 - last) / rate)} left"]
        return "  ".join([*parts, job.progress]).rstrip()


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _print_list(jobs: list[Job], *, as_json: bool) -> None:
    if as_json:
        for job in jobs:
            print(msgspec.json.encode(job).decode())
        return
    if not jobs:
        print("no jobs")
        return
    table = [["job", "type", "status", "done", "claimed by", "created", "progress"]]
    for job in jobs:
        created = job.created.isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")
        said = job.error if job.status is Status.FAILED else job.progress or job.error
        row = [str(job.id), job.type, job.status.value, f"{job.fraction:.0%}", job.claimed_by or "-", created]
        table.append([*row, said[:80] or job.description[:80]])
    print_table(table)


def _print_job(job: Job, *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode(job).decode())
        return
    for name in Job.__struct_fields__:
        value = getattr(job, name)
        text = value.value if isinstance(value, Status) else ", ".join(f"{o.kind} {o.ref}" for o in job.owns)
        if not isinstance(value, Status | tuple):
            text = f"{value:.1%}" if name == "fraction" else str("" if value is None else value)
        if text:
            print(f"{name.replace('_', ' '):<14}{text}")
