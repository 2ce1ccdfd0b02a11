"""Reading and changing zones: one transaction per change, ordered against every protection.

A change reads all records, so that two operators who set overlapping spans at the same time do not both succeed. It reads the
meta row of the protections, which every protection writes. And every record is written by `config.zones.revised`, so that a
longer ttl remembers what the shorter one may have collected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.clock.timestamp import MIN
from slackwater.config.zones import (
    PolicyKind,
    Zone,
    ZoneConfig,
    Zones,
    check_apart,
    check_zone,
    decode_zone,
    encode_zone,
    revised,
    zone_key,
    zones_span,
)
from slackwater.errors import UsageError
from slackwater.protect.rows import read_metadata
from slackwater.protocol.range.requests import Get, Header, Scan, Value
from slackwater.routing.sender import NO_RANGE
from slackwater.txn.operations import rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.clock.timestamp import Timestamp
    from slackwater.protocol.range.requests import Result
    from slackwater.txn.coordinator import Transaction
    from slackwater.txn.kv import KV


async def read_zones(kv: KV, *, timeout: float | None = None) -> Zones:
    """All zones as they are now, complete as of `Zones.read_at`."""
    span = zones_span()
    answer = await kv.read([Scan(span.start, span.end)], Header(NO_RANGE), timeout=timeout, movable=True)
    keys = rows_of(answer.results).keys
    found: Sequence[Result] = []
    if keys:
        found = (await kv.read([Get(key) for key in keys], Header(NO_RANGE, ts=answer.ts), timeout=timeout)).results
    return Zones(_stored(found), read_at=answer.ts)


async def zones_in(txn: Transaction) -> Zones:
    """All zones as a transaction sees them: no change of them can come between this and its commit."""
    span = zones_span()
    keys = (await txn.scan(span.start, span.end)).keys
    found = await txn.batch([Get(key) for key in keys]) if keys else []
    return Zones(_stored(found), read_at=txn.state.read_ts)


def _stored(found: Sequence[Result]) -> list[Zone]:
    values = [value for value in found if isinstance(value, Value) and value.value is not None]
    return [Zone(decode_zone(value.value or b""), value.ts) for value in values]


async def write_zone(kv: KV, config: ZoneConfig, *, timeout: float | None = None) -> ZoneConfig:
    """Set the configuration of a span that overlaps no other (but may replace the one with the same bounds)."""
    check_zone(config)

    async def write(txn: Transaction) -> ZoneConfig:
        return await _write(txn, await zones_in(txn), config)

    return await kv.run(write, timeout=timeout)


async def change_zone(
    kv: KV,
    start: bytes,
    end: bytes,
    *,
    replication_factor: int | None = None,
    policy: PolicyKind | None = None,
    duration_ms: int | None = None,
    gc_ttl_s: float | None = None,
    timeout: float | None = None,
) -> ZoneConfig:
    """Change some of a span's configuration, keeping what is not named; returns the whole of it."""

    async def write(txn: Transaction) -> ZoneConfig:
        zones = await zones_in(txn)
        old = _of_bounds(zones, start, end) or ZoneConfig(start, end)
        if policy is not None and policy is not PolicyKind.LAG and duration_ms is None:
            old = msgspec.structs.replace(old, duration_ms=0)
        new = ZoneConfig(
            start,
            end,
            old.replication_factor if replication_factor is None else replication_factor,
            old.policy if policy is None else policy,
            old.duration_ms if duration_ms is None else duration_ms,
            old.gc_ttl_s if gc_ttl_s is None else gc_ttl_s,
        )
        check_zone(new)
        return await _write(txn, zones, new)

    return await kv.run(write, timeout=timeout)


async def unset_zone(kv: KV, start: bytes, end: bytes, *, timeout: float | None = None) -> bool:
    """Let a span be as the rest again; whether it was anything else."""

    async def remove(txn: Transaction) -> bool:
        zones = await zones_in(txn)
        found = next((z.config for z in zones.records if z.config.start == start), None)
        if found is not None and found.end != end:
            raise UsageError("the zone that begins there ends elsewhere; name its bounds", end=found.end)
        if found is None or not found.decides:
            return False
        await _write(txn, zones, ZoneConfig(start, end))
        return True

    return await kv.run(remove, timeout=timeout)


def _of_bounds(zones: Zones, start: bytes, end: bytes) -> ZoneConfig | None:
    return next((z.config for z in zones.records if (z.config.start, z.config.end) == (start, end)), None)


async def _write(txn: Transaction, zones: Zones, config: ZoneConfig) -> ZoneConfig:
    """Write a record, and what follows from it for others; ordered against every protection by reading the meta row."""
    await read_metadata(txn)
    check_apart(config, (z for z in zones.records if z.config.decides))
    now: Timestamp = txn.state.read_ts
    revision = revised(zones, msgspec.structs.replace(config, ttl_before_s=0.0, floor=MIN), now=now)
    for start in revision.deletes:
        await txn.delete(zone_key(start))
    for put in revision.puts:
        await txn.put(zone_key(put.start), encode_zone(put))
    return next((p for p in revision.puts if p.start == config.start), config)
