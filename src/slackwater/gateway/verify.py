"""A job that reads every row of a table as of one time and decodes it: finds rows that no reader could read.

    checkpoint {next, rows}: where to go on, and how many rows were good

A page is read outside of transactions, at the job's timestamp, by any replica that can, and at most `jobs.verify_rate` rows a
second; each page ends with a checkpoint. The job owns a protection of that time, so nothing of it is collected meanwhile. A row
that does not decode fails the job, and its error tells the key (`slackwater.errors:DamagedRow`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.clock.timestamp import Timestamp
from slackwater.codec.damage import decode_row
from slackwater.codec.layout import schema_span
from slackwater.codec.rows import RowCodec
from slackwater.model.jobs import JobProgress

if TYPE_CHECKING:
    from slackwater.gateway.service import Gateway
    from slackwater.jobs import RunningJob

VERIFY_TYPE = "verify"
ROWS_PER_STEP = 2_000
BYTES_PER_STEP = 2 << 20


class _Payload(msgspec.Struct, frozen=True):
    table_id: int
    at: int


class _Verified(msgspec.Struct, frozen=True):
    next: str = ""
    """The key to go on from, in hexadecimal."""
    rows: int = 0


def payload_of(table_id: int, at: Timestamp) -> str:
    """What such a job is to do."""
    return msgspec.json.encode(_Payload(table_id, at)).decode()


class Verify:
    """Reads tables."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def resume(self, job: RunningJob) -> None:
        """Page by page, from the checkpoint on."""
        kv, wanted = self._gateway.kv, job.payload(_Payload)
        at = Timestamp(wanted.at)
        history = await self._gateway.catalog.find_id(wanted.table_id)
        codec = RowCodec(history.readable_at(at).schema, history.by_version())
        span = schema_span(codec.schema)
        total = self._gateway.schema.rows_about(span)
        done = job.checkpoint(_Verified)
        start: bytes | None = bytes.fromhex(done.next) or span.start
        clock, rate = self._gateway.node.runtime.clock, self._gateway.node.settings["jobs.verify_rate"]
        while start is not None:
            began_ns = clock.monotonic_ns()
            page = await kv.scan(
                start, span.end, max_keys=ROWS_PER_STEP, max_bytes=BYTES_PER_STEP, ts=at, follower_ok=True
            )
            for key, value in zip(page.keys, page.values, strict=True):
                decode_row(codec, key, value)
            start = page.resume
            done = _Verified((start or span.end).hex(), done.rows + len(page.keys))
            fraction = min(0.99, done.rows / total) if total and start is not None else None
            said = JobProgress(
                checkpoint=msgspec.json.encode(done).decode(), fraction=fraction, progress=f"{done.rows} rows read"
            )
            if start is not None:
                await job.said(said)
                await clock.sleep(max(0.0, len(page.keys) / rate - (clock.monotonic_ns() - began_ns) / 1e9))
            else:

                async def last(_: object, said: JobProgress = said) -> JobProgress:
                    return said

                await job.succeed(last)

    async def revert(self, job: RunningJob) -> None:
        """Undo nothing: the job wrote nothing."""
