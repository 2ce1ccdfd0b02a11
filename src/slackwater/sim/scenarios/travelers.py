"""Time travelers: applications that protect an instant of a table, read it again and again, and let it go (I-27, I-28).

    write      rows of a table of their own, updated and deleted again and again
    protect    at an instant, or after it, as old as chance has it: `TooLate` is a fair answer, until it was promised
    read       the table at that instant through any gateway, and its descriptors as of then: the same each time
    release    or forget it: what has an expiry is released by the cluster, within a bound

A protection counts from the answer to its request until its release begins, or until shortly before it expires. One whose
answer was lost counts for nothing, and expires.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from slackwater.catalog.records import versions_span
from slackwater.clock.timestamp import add_seconds
from slackwater.codec.layout import table_span
from slackwater.config.zones import SYSTEM_SPAN
from slackwater.errors import BelowGcThreshold, SlackwaterError, TooLate, UsageError
from slackwater.hooks import probe
from slackwater.model.protection import Kept
from slackwater.protect.zone_changes import change_zone
from slackwater.server.cluster_settings import write_setting
from slackwater.sim.oracles.collecting import AcknowledgedWrite, acknowledged
from slackwater.sim.scenarios.gateways_work import session

if TYPE_CHECKING:
    from slackwater.client.database import AsyncDatabase
    from slackwater.clock.timestamp import Timestamp
    from slackwater.protocol.client.protections import Protection
    from slackwater.sim.scenarios.cluster_plan import Cluster
    from slackwater.sim.scenarios.cluster_programs import Client
    from slackwater.sim.tape import TapeStream

TABLE = "travel"
COLUMNS = {"id": "int8", "value": "text"}
ROWS = 8
TIMEOUT_S = 4.0
EXPIRES_S = 20.0
READS_UNTIL_S = 12.0
"""Reads stop long before the expiry: a read that has begun may take a while."""
SYSTEM_TTL_S = 1.0
"""Of the system's keys, whose ttl is at least that of every zone: so the catalog's history is collected like any other."""


class Traveler:
    """One machine that travels."""

    def __init__(self, client: Client, cluster: Cluster, draw: TapeStream) -> None:
        self._client = client
        self._cluster = cluster
        self._draw = draw
        self._written = 0
        self._shortened = False

    async def act(self) -> None:
        """One thing, drawn."""
        db = session(self._client, self._cluster, timeout_s=TIMEOUT_S)
        table_id = await self._found(db)
        rows = sorted({self._draw.below(ROWS) for _ in range(self._draw.between(1, 4))})
        if self._draw.chance(1, 4):
            await db.delete(TABLE, [{"id": row} for row in rows])
        else:
            self._written += 1
            await db.upsert(TABLE, [{"id": row, "value": f"v{self._written}"} for row in rows])
        if self._draw.chance(1, 3):
            await self._overwrite_a_record()
        if self._draw.chance(1, 2):
            await self._travel(db, table_id)

    async def _overwrite_a_record(self) -> None:
        """Make garbage beside the catalog's records, and have it collected soon."""
        kv = self._client.kv
        await write_setting(kv, "protected_timestamp.warning_age", 86400.0 + self._draw.below(1000))
        if not self._shortened:
            start, end = SYSTEM_SPAN.start, SYSTEM_SPAN.end
            await change_zone(kv, start, end, gc_ttl_s=SYSTEM_TTL_S, timeout=TIMEOUT_S)
            self._shortened = True

    async def _found(self, db: AsyncDatabase) -> int:
        try:
            return (await db.table(TABLE)).table_id
        except UsageError:
            return (await db.create_table(TABLE, COLUMNS, primary_key="id")).table_id

    async def _travel(self, db: AsyncDatabase, table_id: int) -> None:
        draw, world = self._draw, self._cluster.world
        ts = add_seconds(self._client.clock.now(), -draw.below(6000) / 1000)
        after = draw.chance(1, 3)
        first = None
        with suppress(BelowGcThreshold, UsageError):  # collected already, or from before the table was made
            first = await self._read(db, table_id, ts)
        try:
            made = await db.protect(
                TABLE, at=None if after else ts, after=ts if after else None, expires=EXPIRES_S, reason="to travel"
            )
        except (TooLate, UsageError):
            probe("travel.too_late")
            return
        span, key = table_span(table_id), bytes.fromhex(made.id)
        until = add_seconds(made.expires, READS_UNTIL_S - EXPIRES_S)
        acknowledged(world)[key] = AcknowledgedWrite(key, Kept(span.start, span.end, ts, after=after), until)
        probe("travel.protected")
        try:
            await self._look_back(db, table_id, made, first)
        finally:
            acknowledged(world).pop(key, None)
        if draw.chance(1, 2):
            await db.release(made)
            probe("travel.released")

    async def _look_back(self, db: AsyncDatabase, table_id: int, made: Protection, first: Any) -> None:
        """Read the protected instant until it is time to go."""
        world, clock = self._cluster.world, self._client.runtime.clock
        ts, record_id = made.timestamp, bytes.fromhex(made.id)
        for _ in range(self._draw.between(1, 5)):
            if record_id not in acknowledged(world):
                return
            try:
                again = await self._read(db, table_id, ts)
            except BelowGcThreshold as error:
                if record_id not in acknowledged(world):
                    return
                world.violated("I-27", "protected-refused", f"a read at the protected {ts} was refused: {error}")
                return
            except SlackwaterError:
                again = None  # no node answered in time
            if again is not None:
                first = first or again
                probe("travel.looked_back")
            if again is not None and again != first:
                world.violated("I-27", "protected-changed", f"a read at the protected {ts} is not what it was")
                return
            await clock.sleep(self._draw.between(200, 3000) / 1000)

    async def _read(self, db: AsyncDatabase, table_id: int, ts: Timestamp) -> Any:
        """The rows, and what it took to decode them, as of then."""
        snapshot = await db.snapshot(as_of=ts)
        rows = (await snapshot.scan(TABLE)).to_pylist()
        span = versions_span(table_id)
        catalog = await self._client.kv.scan(span.start, span.end, ts=ts, timeout=TIMEOUT_S)
        return rows, catalog.keys, catalog.values
