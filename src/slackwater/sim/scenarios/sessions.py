"""Sessions of the native client that change their gateways: they read what they wrote, and never go back (I-16).

    s1 … s3     `AsyncDatabase` over every node, on machines of their own, beside the cluster's traffic, operator and faults

Each session counts up a row of its own in one table, in every way there is to write, and reads the rows of all in every way
that reads the present, each time through a gateway that is drawn. Rows only grow, so what a session may expect is a number
per row:

    written     the count of its last acknowledged write: every later read of its own row shows it, or more
    seen        the highest count of each row that it has read: no later read shows less
    handed on   now and then one session takes over another's floor, and with it everything that one may expect

Transactions that fail or whose outcome is unknown add nothing to what is expected. Half of the runs have the table lead, so
that its commits lie in the future until they are acknowledged.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from slackwater.codec.layout import table_span
from slackwater.config.zones import PolicyKind
from slackwater.errors import SlackwaterError
from slackwater.hooks import probe
from slackwater.protect.zone_changes import change_zone
from slackwater.sim.handles import NS
from slackwater.sim.scenarios.beside import TIMEOUT_S, TableClient, register_beside
from slackwater.sim.scenarios.cluster_programs import Client

if TYPE_CHECKING:
    from slackwater.client.transaction import AsyncTransaction
    from slackwater.sim.scenarios.cluster_plan import Cluster
    from slackwater.sim.tape import TapeStream
    from slackwater.sim.world import SimRuntime

TABLE = "counters"
SESSIONS = 3
THINK_MEAN_NS = NS // 4
HAND_ON_ONE_IN = 8
SWITCH_ONE_IN = 2
SETTINGS = {"closed_timestamp.target_duration": 2.0, "clock.max_offset": 0.25}


class CheckedSession(TableClient):
    """One session and what it may expect."""

    def __init__(self, runtime: SimRuntime, cluster: Cluster, draw: TapeStream) -> None:
        super().__init__(runtime, cluster, draw, scope="session")
        self.number = int(runtime.name[1:])
        self.expected: dict[int, int] = {}
        """By row, the least count that a read of the present may show."""

    async def main(self) -> None:
        """Write and read until the traffic ends."""
        cluster = self._cluster
        await self.begin()
        sessions = cluster.world.facts.setdefault("table sessions", {})
        sessions[self.name] = self
        while cluster.traffic:
            cluster.busy[self.name] = "reading and writing"
            await self._runtime.clock.sleep(self._draw.decay(THINK_MEAN_NS) / NS)
            if self._draw.chance(1, SWITCH_ONE_IN):
                self._gateways._at = self._draw.below(len(cluster.addresses))
            if self._draw.chance(1, HAND_ON_ONE_IN):
                self._take_over(self._draw.pick(sorted(sessions)))
            work = self._write if self._draw.chance(1, 3) else self._read
            with suppress(SlackwaterError):
                await work()
        cluster.busy[self.name] = ""

    async def _prepare(self) -> None:
        if self.number == 1 and not [t for t in await self.db.tables() if t.name == TABLE]:
            made = await self.db.create_table(TABLE, {"id": "int8", "count": "int8 not null"}, primary_key="id")
            if self._cluster.world.tape.stream("sessions/lead").chance(1, 2):
                await self._lead(made.table_id)
        await self.db.table(TABLE)

    async def _lead(self, table_id: int) -> None:
        client, span = Client(self._runtime, self._cluster), table_span(table_id)
        await client.meet(1)
        with suppress(SlackwaterError):
            await change_zone(client.kv, span.start, span.end, policy=PolicyKind.LEAD, timeout=TIMEOUT_S)
            probe("sessions.lead")

    def _take_over(self, other: str) -> None:
        """Go on from where another session stands."""
        found: CheckedSession = self._cluster.world.facts["table sessions"][other]
        with suppress(SlackwaterError):  # its clock may be too far ahead of this one
            self.db.raise_session_floor(found.db.session_floor)
            for row, count in found.expected.items():
                self._expect(row, count)
            probe("sessions.handed_on")

    def _expect(self, row: int, count: int) -> None:
        self.expected[row] = max(count, self.expected.get(row, 0))

    # --- writes

    async def _write(self) -> None:
        facts = self._cluster.world.facts
        facts[self.name] = count = facts.get(self.name, 0) + 1
        row = {"id": self.number, "count": count}
        await self._draw.pick([self._upsert, self._run, self._block, self._publish])(row)
        self._expect(self.number, count)
        probe("sessions.wrote")

    async def _upsert(self, row: dict[str, int]) -> None:
        await self.db.upsert(TABLE, [row])

    async def _run(self, row: dict[str, int]) -> None:
        async def work(tx: AsyncTransaction) -> None:
            self._check("a transaction", {self.number: await tx.get(TABLE, self.number)})
            await tx.upsert(TABLE, [row])

        await self.db.run(work)

    async def _block(self, row: dict[str, int]) -> None:
        async with self.db.transaction() as tx:
            await tx.upsert(TABLE, [row])

    async def _publish(self, row: dict[str, int]) -> None:
        part = await self.db.staging(TABLE)
        await part.add([row])
        await self.db.publish(TABLE, [await part.finish()])

    # --- reads of the present

    async def _read(self) -> None:
        ways = (self._get, self._scan, self._snapshot, self._snapshot, self._closed, self._in_txn)
        what, found, least = await self._draw.pick(ways)()
        self._check(what, found, least)
        probe("sessions.read")

    def _check(self, what: str, found: dict[int, Any], least: dict[int, int] | None = None) -> None:
        """Hold what was read against what was expected when the read began, then expect no less."""
        counts = {row: 0 if value is None else value["count"] for row, value in found.items()}
        for row, count in (self.expected if least is None else least).items():
            if row in counts and counts[row] < count:
                text = f"{self.name}: {what} through {self._gateways.current} shows row {row} at {counts[row]}"
                self._cluster.world.violated(
                    "I-16", "session-went-back", f"{text}, but the session has written or seen {count}"
                )
        for row, count in counts.items():
            self._expect(row, count)

    async def _get(self) -> tuple[str, dict[int, Any], dict[int, int]]:
        row, nearest, least = self._draw.between(1, SESSIONS), self._draw.chance(1, 2), dict(self.expected)
        return f"get(nearest={nearest})", {row: await self.db.get(TABLE, row, nearest=nearest)}, least

    async def _scan(self) -> tuple[str, dict[int, Any], dict[int, int]]:
        nearest, least = self._draw.chance(1, 2), dict(self.expected)
        return f"scan(nearest={nearest})", _rows(await self.db.scan(TABLE, nearest=nearest)), least

    async def _snapshot(self) -> tuple[str, dict[int, Any], dict[int, int]]:
        source, least = self._draw.pick(["any", "leader", "follower"]), dict(self.expected)
        snap = await self.db.snapshot(tables=[TABLE], read_from=source, wait=1.0)
        return f"snapshot(read_from={source})", _rows(await snap.scan(TABLE)), least

    async def _closed(self) -> tuple[str, dict[int, Any], dict[int, int]]:
        least = dict(self.expected)
        snap = await self.db.snapshot(as_of=await self.db.close_now(TABLE), tables=[TABLE])
        return "close_now", _rows(await snap.scan(TABLE)), least

    async def _in_txn(self) -> tuple[str, dict[int, Any], dict[int, int]]:
        least = dict(self.expected)
        async with self.db.transaction() as tx:
            found = _rows(await tx.scan(TABLE))
        return "a transaction's scan", found, least


def _rows(table: Any) -> dict[int, Any]:
    rows = {row["id"]: row for row in table.to_pylist()}
    return {number: rows.get(number) for number in range(1, SESSIONS + 1)}


register_beside(
    "sessions",
    "native clients that change gateways: they read what they wrote and never go back",
    {f"s{number}": CheckedSession for number in range(1, SESSIONS + 1)},
    nodes=(2, 4),
    clients=(1, 3),
    settings=SETTINGS,
)
