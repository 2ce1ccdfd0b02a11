"""Rows of `system.jobs` and the keys beside them. Pure.

    system.jobs, index 1          id    ->  the row          what every client reads
    system.jobs, index 2          name  ->  id               for names that are used once
    system/open_job               id    ->  status           of every job that has not ended: what nodes look through for work

The notes of open jobs lie among the system's records, where every node's feed of announcements is attached anyway; a feed over
the table would be attached to a range that users write to. So a change of status is a transaction over two ranges, and a
checkpoint, which is far more frequent, is one command of one range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from slackwater.codec.keys import escape, unescape
from slackwater.codec.layout import SYSTEM, prefix_span, system, table_prefix
from slackwater.model.jobs import Job, Owned, Status
from slackwater.model.system_tables import JOBS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slackwater.model.spans import Span

JOB_ID_KEY = system("alloc", b"job")
_OPEN = "open_job"
_NAMES = table_prefix(JOBS.table_id, 2)
_ID_BYTES = 8
_EMPTY_AS_NULL = ("claimed_by", "error", "name")
_owns = msgspec.json.Decoder(tuple[Owned, ...])


def open_key(job_id: int) -> bytes:
    """Where it is noted that a job has not ended."""
    return system(_OPEN, job_id.to_bytes(_ID_BYTES, "big"))


def open_span() -> Span:
    """The notes of all jobs that have not ended."""
    return prefix_span(SYSTEM + escape(_OPEN.encode()))


def id_of_open(key: bytes) -> int:
    """The job that such a note is about."""
    rest, _ = unescape(key, len(SYSTEM + escape(_OPEN.encode())))
    return int.from_bytes(rest, "big")


def name_key(name: str) -> bytes:
    """Where a job's name is claimed."""
    return _NAMES + escape(name.encode())


def encode_id(job_id: int) -> bytes:
    """A job's id as the value of its name."""
    return job_id.to_bytes(_ID_BYTES, "big")


def decode_id(value: bytes) -> int:
    """The job that a name stands for."""
    return int.from_bytes(value, "big")


def row_of(job: Job) -> dict[str, object]:
    """A job as a row."""
    row: dict[str, object] = msgspec.structs.asdict(job)
    row["status"] = job.status.value
    row["ending"] = None if job.ending is None else job.ending.value
    row["owns"] = msgspec.json.encode(job.owns).decode()
    for name in _EMPTY_AS_NULL:
        row[name] = row[name] or None
    return row


def job_of(row: Mapping[str, Any]) -> Job:
    """The job that a row holds."""
    fields = dict(row)
    fields["status"] = Status(row["status"])
    fields["ending"] = None if row["ending"] is None else Status(row["ending"])
    fields["owns"] = _owns.decode(row["owns"])
    for name in _EMPTY_AS_NULL:
        fields[name] = row[name] or ""
    return Job(**fields)
