"""What applications do on a simulated cluster: rows of tables, over gateways, with the client library they would import.

    rows     upserts, transactions and reads of single rows; the present is read on the nearest replicas
    brief    writes, by every way there is, to a table that is dropped through another gateway at any moment (I-30)

Every client of the other plays runs the protocols between ranges itself. These clients do not: they talk to a gateway, lose it
when it crashes, pauses or is restarted, and settle what became of their writes through another one. What they were told is
written down like any register (I-19): an acknowledged row is seen by every later read, on every replica of a leading table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slackwater.client.database import AsyncDatabase
from slackwater.client.gateways import Gateways
from slackwater.codec.arrow import settle_pandas
from slackwater.errors import AmbiguousResult, SlackwaterError
from slackwater.hooks import probe
from slackwater.protocol.client import calls
from slackwater.sim.scenarios.cluster_worker import operation

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from slackwater.client.transaction import AsyncTransaction
    from slackwater.sim.scenarios.cluster_plan import Cluster
    from slackwater.sim.scenarios.cluster_programs import Client
    from slackwater.sim.scenarios.cluster_worker import Worker

settle_pandas()  # or Arrow would import it, behind the fence
REGISTERS = "registers"
ROWS = 6
COLUMNS = {"id": "int8", "value": "text"}
SETUP_TIMEOUT_S = 10.0


def session(client: Client, cluster: Cluster, *, timeout_s: float) -> AsyncDatabase:
    """The client's session, made when it first needs one; its operations are bounded by `timeout_s` from now on."""
    if client.session is None:
        addresses = list(cluster.addresses.values())
        first = cluster.world.tape.stream(f"gateway/{client.runtime.name}").below(len(addresses))
        gateways = Gateways(
            client.runtime,
            client.scope.child("gateways"),
            [*addresses[first:], *addresses[:first]],
            settings=client.runtime.settings,
            timeout_s=timeout_s,
        )
        client.session = AsyncDatabase(gateways, client.scope.child("session"))
    client.session._gateways.timeout_s = timeout_s
    return client.session


@operation("brief")
async def _brief(me: Worker, timeout: float) -> None:
    name = me.cluster.world.facts.get("brief table")
    if name is None:
        return
    db = session(me.client, me.cluster, timeout_s=timeout)
    rows = [{"id": me.draw.below(ROWS), "value": me.unique().decode()}]
    way = me.draw.below(4)
    if way == 0:
        await db.upsert(name, rows)
    elif way == 1:

        async def write(tx: AsyncTransaction) -> None:
            await tx.upsert(name, rows)
            await tx.get(name, rows[0]["id"])  # the write is an intent from here on
            await me.dawdle()

        await db.run(write)
    elif way == 2:
        await _bulk(db, name, rows)
    else:
        part = await db.staging(name)
        await part.add(rows)
        await db.publish(name, [await part.finish()], timeout=timeout)
    probe("gateways.brief_written")


async def _bulk(db: AsyncDatabase, name: str, rows: list[dict[str, Any]]) -> None:
    """A block of a bulk load; a whole one would be ten thousand rows."""
    deadline = db._gateways.deadline()
    history = await db._tables.by_name(name, deadline=deadline)
    codec, table = db._tables.codec(history), history.latest
    (key, value) = codec.encode(rows[0])
    request = calls.Write(table.table_id, table.version, calls.WriteKind.UPSERT, [key], [value], bulk=True)
    await db._gateways.call(calls.WRITE, request, deadline=deadline)


def name_of(row: int) -> bytes:
    """How the history calls a row."""
    return b"row/%d" % row


@operation("rows")
async def _rows(me: Worker, timeout: float) -> None:
    if not me.cluster.world.facts.get("tables ready"):
        return
    db = session(me.client, me.cluster, timeout_s=timeout)
    row = me.draw.below(ROWS)
    what = me.draw.below(8)
    if what < 4:
        await _read(me, db, row, nearest=what < 3)
        return
    rows = [row] if what < 7 else [row, (row + 1) % ROWS]
    values = {row: me.unique().decode() for row in rows}
    wanted = [{"id": row, "value": value} for row, value in values.items()]

    async def write(tx: AsyncTransaction) -> None:
        await tx.upsert(REGISTERS, wanted)

    await _write(me, values, db.upsert(REGISTERS, wanted) if what < 6 else db.run(write))


async def _read(me: Worker, db: AsyncDatabase, row: int, *, nearest: bool) -> None:
    pen = me.cluster.recorder.read(name_of(row), client=me.number)
    try:
        found = await db.get(REGISTERS, row, nearest=nearest)
    except SlackwaterError:
        pen.failed()
        raise
    probe("gateways.read")
    pen.ok(saw=None if found is None else found["value"].encode())


async def _write(me: Worker, values: dict[int, str], work: Awaitable[object]) -> None:
    recorder = me.cluster.recorder
    pens = [recorder.write(name_of(row), value.encode(), client=me.number) for row, value in values.items()]
    try:
        await work
    except AmbiguousResult:
        probe("gateways.unknown")
        for pen in pens:
            pen.unknown()
        raise
    except SlackwaterError:
        probe("gateways.failed")
        for pen in pens:
            pen.failed()
        raise
    probe("gateways.written")
    for pen in pens:
        pen.ok()
