"""Jobs are fenced, end once, and leave nothing behind (I-36). Judged by V: every version of every row and effect there ever was.

    effect    key (job, step), value: the number of the claim that wrote it. The row just below its timestamp must be claimed
              under that number: the transaction compared it there
    row       claim numbers do not go back, nor does a request to pause or to cancel while the claim lasts; a checkpoint that is
              new names the claim that holds the row; after its end the row is removed or stays as it is
    owned     what a job owns exists only while the job has not ended, and its tombstone has the timestamp of the end

Whether jobs end at all is asked by the play once the world is well (`open_jobs`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.catalog.climbing import SCHEMA_CHANGE
from slackwater.codec.keys import escape
from slackwater.codec.layout import SYSTEM, prefix_span, split_version, table_prefix, table_span
from slackwater.gateway.staged_jobs import STAGED
from slackwater.jobs.record import job_of
from slackwater.model.jobs import Job, Status
from slackwater.model.system_tables import JOBS
from slackwater.runtime.seam import Family
from slackwater.sim.checkers.violation import Violation
from slackwater.sim.oracles.replication import _Watcher
from slackwater.txn.system_rows import SystemRows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from slackwater.sim.oracles.versions import VersionsOracle
    from slackwater.sim.oracles.witness import ApplyEvent
    from slackwater.sim.world import World

EFFECTS = table_prefix(99, 1)
OWNED = table_prefix(99, 2)
_ROWS = table_span(JOBS.table_id, JOBS.index_id)
_STAGING = prefix_span(SYSTEM + escape(b"staging"))
_ID_BYTES = 8
OTHERS = (STAGED, SCHEMA_CHANGE)
"""Types whose checkpoints do not name the claim that wrote them."""

Versions = list[tuple[int, Job | None]]
"""A job's row over time; None where it was removed."""


class ClaimSaid(msgspec.Struct, frozen=True):
    """What every checkpoint of the play's own jobs says: which claim wrote it."""

    claim: int = 0


def effect_key(job_id: int, what: int) -> bytes:
    """Where a step leaves its effect."""
    return EFFECTS + job_id.to_bytes(_ID_BYTES, "big") + what.to_bytes(2, "big")


def owned_key(job_id: int) -> bytes:
    """Where the thing lies that a job owns."""
    return OWNED + job_id.to_bytes(_ID_BYTES, "big")


class FencedJobs(_Watcher):
    """I-36: rows as they are applied, effects and owned things in the end."""

    name = "I-36"

    def __init__(self, versions: VersionsOracle) -> None:
        self._versions = versions
        self._codec = SystemRows(JOBS).codec
        self._last: dict[bytes, tuple[int, Job | None]] = {}
        self._staged: dict[bytes, tuple[int, bytes]] = {}

    def attach(self, world: World) -> None:
        """The workload asks for jobs that are open."""
        super().attach(world)
        world.facts["fenced jobs"] = self

    def applied(self, event: ApplyEvent) -> None:
        """Compare each new version of a row with the one before it."""
        for stored, value in event.batch.writes[Family.DATA].items() if event.first else ():
            if value is not None and _STAGING.start <= stored < _STAGING.end:
                chunk, at = split_version(stored)
                self._staged[chunk] = max(self._staged.get(chunk, (-1, b"")), (at, value))
            if value is None or not _ROWS.start <= stored < _ROWS.end:
                continue
            key, ts = split_version(stored)
            job = job_of(self._codec.decode(value)) if value else None
            last_ts, before = self._last.get(key, (-1, None))
            if ts > last_ts:
                self._last[key] = (ts, job)
                for kind, text in _wrong(before, job, ts):
                    self.violated(kind, text)

    def judge(self, world: World) -> Iterable[Violation]:
        """Compare everything that was written with the rows at the time."""
        jobs = self.jobs()
        for key, found in sorted(self._versions.found.items()):
            if key.startswith(EFFECTS):
                yield from self._effects(key, found, jobs)
            elif key.startswith(OWNED):
                yield from self._owned(key, found, jobs)

    def jobs(self) -> dict[int, Versions]:
        """Every job that there was, by id."""
        found: dict[int, Versions] = {}
        for key, versions in self._versions.found.items():
            if _ROWS.start <= key < _ROWS.end:
                job_id = self._codec.decode_key(key)["id"]
                rows = [(ts, job_of(self._codec.decode(v)) if v else None) for ts, v in sorted(versions.items())]
                found[job_id] = rows
        return found

    def staged(self) -> int:
        """Chunks that are staged now."""
        return sum(1 for _, value in self._staged.values() if value)

    def latest(self) -> list[Job]:
        """Every job as it stood last."""
        rows = [v[max(v)] for key, v in self._versions.found.items() if _ROWS.start <= key < _ROWS.end]
        return [job_of(self._codec.decode(row)) for row in rows if row]

    def open_jobs(self) -> list[Job]:
        """Jobs that have not ended although a node should work on them."""
        return [
            job for job in self.latest() if not job.status.ended and job.status is not Status.PAUSED and not _waits(job)
        ]

    def paused(self) -> list[Job]:
        """Jobs that stay paused until a user resumes them."""
        return [job for job in self.latest() if job.status is Status.PAUSED]

    def _effects(self, key: bytes, found: dict[int, bytes], jobs: dict[int, Versions]) -> Iterator[Violation]:
        job_id = int.from_bytes(key[len(EFFECTS) : len(EFFECTS) + _ID_BYTES], "big")
        for ts, value in found.items():
            row = _below(jobs.get(job_id, []), ts)
            if row is None or str(row.claim_number).encode() != value or not row.claimed_by or row.status.ended:
                text = f"claim {value!r} of job {job_id} left an effect at {ts}: {_shown(row)}"
                yield self._violation("fenced-effect", text)

    def _owned(self, key: bytes, found: dict[int, bytes], jobs: dict[int, Versions]) -> Iterator[Violation]:
        job_id = int.from_bytes(key[len(OWNED) :], "big")
        versions = jobs.get(job_id, [])
        ended = next((ts for ts, job in versions if job is not None and job.status.ended), None)
        gone = [ts for ts, value in found.items() if not value]
        for ts in gone:
            if ts != ended:
                yield self._violation("released-apart", f"job {job_id} ended at {ended}; what it owned went at {ts}")
        last = max(found)
        if ended is not None and found[last]:
            yield self._violation("kept", f"job {job_id} ended at {ended} and still owns what it made at {last}")

    def _violation(self, kind: str, text: str) -> Violation:
        return Violation(self.name, kind, text, {})


def fenced_jobs(world: World) -> FencedJobs:
    """The oracle of a run."""
    oracle: FencedJobs = world.facts["fenced jobs"]
    return oracle


def _wrong(before: Job | None, job: Job | None, ts: int) -> Iterator[tuple[str, str]]:
    """What is wrong with the version of a row that came after another."""
    if before is None:
        return
    if job is None:
        if not before.status.ended:
            yield "removed", f"job {before.id} was removed at {ts}: {_shown(before)}"
        return
    if before.status.ended:
        yield "changed-after-end", f"job {job.id} had ended ({before.status.value}) and was changed at {ts}"
    if job.claim_number < before.claim_number:
        yield "claim-went-back", f"job {job.id} has claim {job.claim_number} at {ts}, after {before.claim_number}"
    if job.checkpoint != before.checkpoint:
        said = before.claim_number if job.type in OTHERS else msgspec.json.decode(job.checkpoint, type=ClaimSaid).claim
        if said != before.claim_number or not before.claimed_by:
            yield "fenced-checkpoint", f"claim {said} wrote a checkpoint of job {job.id} at {ts}: {_shown(before)}"
    if _undone(before, job):
        yield "request-undone", f"job {job.id} was {before.status.value} and runs again at {ts}"


def _undone(before: Job, job: Job) -> bool:
    """Whether a pause or a cancellation was overwritten by the claimant that should have stopped."""
    asked = before.status in (Status.PAUSING, Status.CANCELLING)
    return asked and job.status is Status.RUNNING and job.claim_number == before.claim_number


def _waits(job: Job) -> bool:
    """Whether a job waits for an application to claim it."""
    return job.type == "application" and job.status is Status.PENDING


def _below(versions: Versions, ts: int) -> Job | None:
    """The row that a transaction which committed at `ts` has read."""
    found = None
    for at, job in versions:
        if at < ts:
            found = job
    return found


def _shown(job: Job | None) -> str:
    if job is None:
        return "there was no row"
    return f"its row had claim {job.claim_number} by {job.claimed_by or 'no node'}, {job.status.value}"
