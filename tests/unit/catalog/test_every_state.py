"""Every kind of change, disturbed at every one of its states: paused, cancelled, broken off, beside inserts, updates, deletes.

The states are those that the executor really publishes: after each, rows are written over both gateways, and at one of them the
change is disturbed. In the end the whole history of the table is read and replayed (`sim.oracles.schema:Replay`): at every
timestamp at which anything changed, every index fits its table, and rows satisfy what their version promises.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from slackwater.catalog.schema_changes import SchemaChanger
from slackwater.clock.timestamp import MIN
from slackwater.codec.layout import table_span
from slackwater.errors import RetryableError, SlackwaterError, UsageError
from slackwater.protocol.range.requests import Export, Header, Versions
from slackwater.routing.sender import NO_RANGE
from slackwater.sim.oracles.schema import Replay
from tests.unit.client.world import session
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from slackwater.client.database import AsyncDatabase

FAST = {
    "jobs__poll_interval": 0.05,
    "jobs__retry_pause_min": 0.01,
    "catalog__poll_interval": 0.05,
    "schema__backfill_chunk": 7,
    "liveness__duration": 0.6,
    "catalog__lease__duration": 0.5,
    "catalog__lease__abandoned_duration": 0.5,
}
ROWS = 20
CHANGES: dict[str, tuple[int, Callable[[AsyncDatabase, str], Awaitable[Any]]]] = {
    "create index": (3, lambda db, t: db.create_index(t, "new", ["a desc"], storing=["b"], wait=False)),
    "create unique index": (3, lambda db, t: db.create_index(t, "new", ["c"], unique=True, wait=False)),
    "drop index": (2, lambda db, t: db.drop_index(t, "by_b", wait=False)),
    "set not null": (2, lambda db, t: db.alter_table(t, set_not_null="a", wait=False)),
    "drop not null": (1, lambda db, t: db.alter_table(t, drop_not_null="d", wait=False)),
    "add check": (2, lambda db, t: db.alter_table(t, add_check={"low": "a < 1000"}, wait=False)),
    "drop check": (1, lambda db, t: db.alter_table(t, drop_check="first", wait=False)),
    "drop column": (1, lambda db, t: db.alter_table(t, drop_column="d", wait=False)),
    "rename table": (1, lambda db, t: db.rename_table(t, f"{t}_new", wait=False)),
}
"""By name: the states at which it can be disturbed, and the change. The last one is published in the transaction that ends it.

Truncation is left to the simulator (`play schema`): a table that is being emptied has its writers wait."""


class Disturbed:
    """Changes on one cluster, each disturbed at a state."""

    def __init__(self, cluster: Cluster, dbs: list[AsyncDatabase]) -> None:
        self.cluster = cluster
        self.dbs = dbs
        self.names: list[str] = []
        self.number = 0
        self.states = 0
        self.at: int | None = None
        self.disturb: Callable[[int], Awaitable[None]] | None = None

    async def published(self, job_id: int) -> None:
        """The executor has published a state: write, and disturb it if this is the one."""
        await self.write()
        self.states += 1
        if self.disturb is not None and self.states - 1 == self.at:
            disturb, self.disturb = self.disturb, None
            await disturb(job_id)

    async def write(self) -> None:
        """An insert, an update and a delete over each gateway, by whatever name and columns the table has."""
        for at, db in enumerate(self.dbs):
            for name in self.names:
                self.number += 1
                with suppress(SlackwaterError):  # it is being emptied, or has another name
                    await self._write_one(db, name, self.number, at)

    async def _write_one(self, db: AsyncDatabase, name: str, number: int, at: int) -> None:
        columns = [column.name for column in (await db.table(name)).columns]
        fresh = {"id": 100 + number, "a": number % 5, "b": f"x{number}", "c": 1000 + number, "d": 1}
        changed = {"id": number % ROWS, "a": number % 7, "b": f"y{number}", "c": 5000 + number, "d": 2}
        for row in (fresh, changed):
            await db.upsert(name, [{key: value for key, value in row.items() if key in columns}])
        await db.delete(name, [(number * 3 + at) % ROWS])

    async def made(self, name: str) -> int:
        """A table with rows, an index and a check."""
        db = self.dbs[0]
        columns = {"id": "int8", "a": "int8", "b": "text", "c": "int8", "d": "int8 not null"}
        made = await db.create_table(name, columns, primary_key="id")
        await db.alter_table(name, add_check={"first": "id < 100000"})
        await db.create_index(name, "by_b", "b")
        await db.upsert(name, [{"id": n, "a": n, "b": f"b{n}", "c": n, "d": 0} for n in range(ROWS)])
        self.names = [name, f"{name}_new"]
        return int(made.table_id)

    async def judge(self, table_id: int) -> None:
        """Replay the whole history of a table."""
        node = self.cluster.nodes[0]
        await node.catalog.refresh()
        history = await node.catalog.find_id(table_id)
        span, found = table_span(table_id), {}
        upto = node.clock.now()
        (exported,) = (await node.kv.read([Export(span.start, span.end, MIN, upto)], Header(NO_RANGE, ts=upto))).results
        assert isinstance(exported, Versions)
        assert exported.resume is None
        for key, value, ts in zip(exported.keys, exported.values, exported.timestamps, strict=True):
            found.setdefault(key, {})[int(ts)] = value
        assert len(found) > ROWS
        assert list(Replay(history, found).judged()) == []
        assert history.latest.mutations == ()


async def run_change(play: Disturbed, kind: str, action: str, at: int) -> None:
    """One change, disturbed at one of its states."""
    db = play.dbs[0]
    name = f"{action}_{kind}_{at}".replace(" ", "_")
    table_id = await play.made(name)
    play.states, play.at = 0, at

    async def paused(job_id: int) -> None:
        await db.jobs.pause(job_id)

    async def cancelled(job_id: int) -> None:
        await db.jobs.cancel(job_id)

    async def broken_off(job_id: int) -> None:
        raise RetryableError("the executor ends here, and another one begins at the checkpoint")

    play.disturb = {"pause": paused, "cancel": cancelled, "break off": broken_off}[action]
    job = (await CHANGES[kind][1](db, name)).jobs[0]
    while not (now := await db.jobs.get(job.id)).status.ended:
        await play.write()
        with suppress(UsageError):  # it is not paused, or ended meanwhile
            if now.status.value == "paused":
                await db.jobs.resume(job.id)
        await asyncio.sleep(0.02)
    play.disturb = None
    await play.write()
    await play.judge(table_id)


@pytest.mark.parametrize("action", ["pause", "cancel", "break off"])
@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_that_is_disturbed_leaves_an_index_that_fits(
    kind: str, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = SchemaChanger._publish
    playing: list[Disturbed] = []

    async def published(self: SchemaChanger, job: Any, *args: Any) -> None:
        await publish(self, job, *args)
        if playing and playing[0].at is not None:
            await playing[0].published(job.job.id)

    monkeypatch.setattr(SchemaChanger, "_publish", published)

    async def main() -> None:
        async with (
            Cluster(2, **FAST) as cluster,
            session(cluster, 0, timeout_s=20) as one,
            session(cluster, 1, timeout_s=20) as two,
        ):
            play = Disturbed(cluster, [one, two])
            playing.append(play)
            for at in range(CHANGES[kind][0]):
                play.at = None
                await run_change(play, kind, action, at)
                assert play.states > at, "the state was reached"

    asyncio.run(main())
