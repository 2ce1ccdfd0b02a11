"""Views: tables of the system whose rows are decoded from the records under the system's own keys.

    db.scan("system.zones") ──► records as of the read's timestamp ──► rows of the view ──► pages like any table's

    system.descriptor   every version of every table, with the time since when it holds
    system.zones        what was configured for spans, and when
    system.settings     what was set for the whole cluster, and when

Everything is read as the caller of a table would have it: now, at a timestamp, by followers, or inside a transaction, whose reads
then hold until it commits. There are few records, so a scan is one page. A record that does not decode fails the read; nodes
refuse to write one (`server.records`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import structs

from slackwater.catalog.records import decode_record, descriptors_span, is_version
from slackwater.clock.timestamp import MIN
from slackwater.codec.rows import RowCodec
from slackwater.config.setting_records import decode_setting, setting_name, settings_span
from slackwater.config.zones import decode_zone, zones_span
from slackwater.model.scan_plan import decode_plan
from slackwater.model.system_tables import CLUSTER_SETTINGS, DESCRIPTOR, VIEWS, ZONES
from slackwater.protocol.client import calls
from slackwater.protocol.range.requests import Get, Header, Rows, Scan, Value
from slackwater.routing.sender import NO_RANGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.schema import TableSchema
    from slackwater.model.spans import Span
    from slackwater.protocol.range.requests import Result
    from slackwater.txn import KV, Transaction

ViewRow = dict[str, Any]


class _View(NamedTuple):
    """The records that the rows of a view are decoded from."""

    codec: RowCodec
    records: Span
    row: Callable[[bytes, bytes, Timestamp], ViewRow | None]


def _descriptor(key: bytes, value: bytes, ts: Timestamp) -> ViewRow | None:
    if not is_version(key):
        return None
    found = decode_record(key, value, ts)
    return {
        "id": found.table_id,
        "version": found.version,
        "name": found.name,
        "modified": ts,
        "owner": found.owner,
        "dropped": found.dropped,
        "descriptor": msgspec.json.encode(found).decode(),
    }


def _zone(key: bytes, value: bytes, ts: Timestamp) -> ViewRow | None:
    found = decode_zone(value)
    if not found.decides:  # it only remembers what was collected
        return None
    return {
        "start": found.start,
        "end_key": found.end,
        "replicas": found.replication_factor or None,
        "policy": None if found.policy is None else found.policy.value,
        "duration_ms": found.duration_ms or None,
        "gc_ttl_s": found.gc_ttl_s or None,
        "written": ts,
    }


def _setting(key: bytes, value: bytes, ts: Timestamp) -> ViewRow | None:
    return {"name": setting_name(key), "value": decode_setting(value), "written": ts}


def _view(
    schema: TableSchema, records: Span, row: Callable[[bytes, bytes, Timestamp], ViewRow | None]
) -> tuple[int, _View]:
    return schema.table_id, _View(RowCodec(schema), records, row)


_VIEWS: Mapping[int, _View] = dict(
    (
        _view(DESCRIPTOR, descriptors_span(), _descriptor),
        _view(ZONES, zones_span(), _zone),
        _view(CLUSTER_SETTINGS, settings_span(), _setting),
    )
)
assert frozenset(_VIEWS) == VIEWS, "every view has a source"


async def rows_at(
    kv: KV, table_id: int, header: Header, *, timeout: float | None = None
) -> tuple[dict[bytes, bytes], Timestamp]:
    """Every row of a view, by key, by a header of the caller's, and the timestamp at which they were read."""
    span = _VIEWS[table_id].records
    plain = structs.replace(header, range_id=NO_RANGE, max_keys=0, max_bytes=0)
    answer = await kv.read([Scan(span.start, span.end)], plain, timeout=timeout, movable=True)
    (found,) = answer.results
    assert isinstance(found, Rows), found
    if not found.keys:
        return {}, answer.ts
    at = structs.replace(plain, ts=answer.ts, uncertainty_limit=MIN)
    again = await kv.read([Get(key) for key in found.keys], at, timeout=timeout)
    return _rows(table_id, found.keys, again.results), answer.ts


async def rows_in(txn: Transaction, table_id: int) -> dict[bytes, bytes]:
    """Every row of a view, by key, as a transaction sees it."""
    span = _VIEWS[table_id].records
    keys = (await txn.scan(span.start, span.end)).keys
    return _rows(table_id, keys, await txn.batch([Get(key) for key in keys])) if keys else {}


def _rows(table_id: int, keys: Iterable[bytes], found: Sequence[Result]) -> dict[bytes, bytes]:
    view = _VIEWS[table_id]
    made: dict[bytes, bytes] = {}
    for key, value in zip(keys, found, strict=True):
        if isinstance(value, Value) and value.value is not None:
            row = view.row(key, value.value, value.ts)
            if row is not None:
                made.update((view.codec.encode(row),))
    return dict(sorted(made.items()))


def inside(rows: Mapping[bytes, bytes], start: bytes, end: bytes) -> list[bytes]:
    """The values of rows in a span, in key order."""
    return [value for key, value in rows.items() if start <= key < end]


def page_of(request: calls.ScanTable, rows: Mapping[bytes, bytes], ts: Timestamp) -> calls.ScanPage:
    """The one page of a scan of a view."""
    from slackwater.codec.bulk_arrow import pack  # pyarrow only when it is used
    from slackwater.codec.rows_arrow import BlockDecoder

    plan = decode_plan(request.plan)
    versions = {schema.version: schema for schema in plan.schemas}
    decoder = BlockDecoder(plan.schema(), versions, plan.columns, plan.predicates)
    batch = decoder.decode(inside(rows, request.start, request.end))
    if request.limit:
        batch = batch.slice(0, request.limit)
    return calls.ScanPage([pack(batch)] if batch.num_rows else [], batch.num_rows, ts, None, [])
