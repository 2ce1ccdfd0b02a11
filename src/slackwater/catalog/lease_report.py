"""Who holds which version of which table, and what changes that have not ended wait for: for people.

    system.lease ──► rows, each with its commit timestamp ──► LeaseHolder: node, version, epoch, age, what it is kept for
    descriptors that say `mutations` or `dropping`         ──► WaitingChange: what holds the next version up

Version v+1 waits for leases on v-1 alone (I-29), so those of a version below the newest are in the way and others are not.
Nothing here decides anything: `TableCatalog._put_next` counts for itself, in its own transaction.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from slackwater.catalog.lease_driver import ROWS
from slackwater.catalog.leases import abandoned_after
from slackwater.clock.timestamp import MIN, seconds_between, show
from slackwater.errors import UsageError
from slackwater.model.jobs import Status
from slackwater.protocol.client.schema import LeaseHolder, WaitingChange
from slackwater.protocol.range.requests import BATCH_REQUESTS_MAX, Get, Header, Value
from slackwater.routing.sender import NO_RANGE

if TYPE_CHECKING:
    from slackwater.catalog.driver import TableCatalog
    from slackwater.clock.timestamp import Timestamp
    from slackwater.jobs.store import JobStore
    from slackwater.model.descriptors import Liveness
    from slackwater.model.tables import TableDescriptor
    from slackwater.txn import KV

LEASES_MAX = 10_000
"""Rows of one report."""
READ_AT_ONCE = 1_000
assert READ_AT_ONCE <= BATCH_REQUESTS_MAX, "rows that are read one by one fit one batch"


async def held_leases(
    catalog: TableCatalog, kv: KV, table: TableDescriptor | None, *, now: Timestamp, abandoned_s: float
) -> list[LeaseHolder]:
    """The leases on one table, or on all, by table, version and node."""
    span = ROWS.span() if table is None else ROWS.span(table.table_id)
    found = await kv.scan(span.start, span.end, max_keys=LEASES_MAX)
    held: list[LeaseHolder] = []
    for low in range(0, len(found.keys), READ_AT_ONCE):
        gets = [Get(key) for key in found.keys[low : low + READ_AT_ONCE]]
        answer = await kv.read(gets, Header(NO_RANGE), movable=True)
        for value in answer.results:
            if isinstance(value, Value) and value.value is not None:
                row = ROWS.codec.decode(value.value)
                held.append(_holder(catalog, row, value.ts, now=now, abandoned_s=abandoned_s))
    return held


def _holder(
    catalog: TableCatalog, row: dict[str, Any], written: Timestamp, *, now: Timestamp, abandoned_s: float
) -> LeaseHolder:
    history = catalog.tables.by_id(row["desc_id"])
    newest = row["version"] if history is None else history.latest.version
    until, says = _kept_for(row, catalog.leases.record_of(row["node_id"]), newest, now=now, abandoned_s=abandoned_s)
    return LeaseHolder(
        node=row["node_id"],
        version=row["version"],
        epoch=row["epoch"],
        table="" if history is None else history.latest.name,
        table_id=row["desc_id"],
        newest=newest,
        since=written,
        age_s=max(0.0, seconds_between(written, now)),
        until=until,
        says=says,
    )


def _kept_for(
    row: dict[str, Any], record: Liveness | None, newest: int, *, now: Timestamp, abandoned_s: float
) -> tuple[Timestamp, str]:
    """Up to when a lease counts, and what it is kept for."""
    if record is None:
        return MIN, "its node is not known; it is deleted once no record of the node is found"
    if record.epoch > row["epoch"]:
        after = abandoned_after(record, abandoned_s=abandoned_s)
        return after, f"its epoch has ended; other nodes delete it after {show(after)}"
    if not record.live_at(now):
        after = abandoned_after(record.next_epoch(), abandoned_s=abandoned_s)
        what = "nothing waits for it" if row["version"] >= newest else f"other nodes delete it after {show(after)}"
        return after, f"its node does not renew its liveness record; {what}"
    if row["version"] >= newest:
        return record.promised_upto, "the newest version"
    return record.promised_upto, "writes that began with this version have not ended"


async def unfinished_changes(
    tables: list[TableDescriptor], held: list[LeaseHolder], jobs: JobStore, kv: KV
) -> list[WaitingChange]:
    """What changes of these tables that have not ended wait for."""
    found: list[WaitingChange] = []
    for table in tables:
        nodes = [
            f"n{lease.node} to release version {lease.version}: {lease.says}"
            for lease in held
            if lease.table_id == table.table_id and lease.in_the_way
        ]
        for place, mutation in enumerate(table.mutations):
            first = table.mutations[0]
            waits_for = nodes if not place else [f"job {first.job}: {first.description}"]
            if not place:
                with suppress(UsageError):  # it has ended, and its row was collected
                    job = await jobs.get(kv, mutation.job)
                    if job.status in (Status.PAUSED, Status.PAUSING):
                        waits_for = [f"an operator: job {job.id} is paused", *nodes]
            said = mutation.description + (" (going back)" if mutation.reverting else "")
            found.append(WaitingChange(table.name, said, mutation.job, waits_for))
    return found
