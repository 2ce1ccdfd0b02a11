"""What clients of the play `schema` do: change tables, steer the changes, write rows, read indexes beside their tables."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from slackwater.codec.layout import schema_span
from slackwater.codec.rows import RowCodec
from slackwater.errors import UsageError
from slackwater.hooks import probe
from slackwater.model.indexes import index_schema
from slackwater.model.kinds import INTEGERS, ColumnKind
from slackwater.protocol.client import calls
from slackwater.sim.scenarios.cluster_operator import Operator
from slackwater.sim.scenarios.cluster_worker import operation
from slackwater.sim.scenarios.gateways_work import session

if TYPE_CHECKING:
    from slackwater.client.database import AsyncDatabase
    from slackwater.client.transaction import AsyncTransaction
    from slackwater.model.schema import Column, TableSchema
    from slackwater.model.tables import TableDescriptor
    from slackwater.sim.scenarios.cluster_worker import Worker
    from slackwater.sim.tape import TapeStream

TABLES = ("things", "stuff")
HELD_OPEN = "schema tables"
"""The fact that says that the tables were made."""
ROWS = 24
VALUES = 12
"""Numbers that rows have: few, so that unique indexes meet them twice."""
COLUMNS = {"id": "int8", "a": "int4", "b": "text", "c": "int8"}
MORE = ("p", "q", "r")
"""Names of columns that come and go."""
INDEXES_AT_ONCE = 4
BACK_S_MAX = 5
JOBS = "schema jobs"
WAIT_S = 4.0
LINGER_S_MAX = 5


async def make_table(db: AsyncDatabase, name: str) -> None:
    """A table with an index from the beginning."""
    await db.create_table(name, COLUMNS, primary_key="id")


# --- changes ---------------------------------------------------------------------------------------------------------


@operation("schema change")
async def _change(me: Worker, timeout: float) -> None:
    if not me.cluster.world.facts.get(HELD_OPEN):
        return
    db, draw, name = session(me.client, me.cluster, timeout_s=timeout), me.draw, me.draw.pick(TABLES)
    what = draw.below(40)
    if what == 0:
        await _anew(me, db, name)
        return
    latest = (await db.history(name)).latest
    if what < 3:
        made = await db.truncate_table(name, wait=False)
    elif what < 16:
        made = await _create_index(me, db, latest)
    elif what < 22 and latest.indexes:
        made = await db.drop_index(name, draw.pick(latest.indexes).name, wait=False)
    else:
        made = await db.alter_table(name, **_alteration(me, latest), wait=False)
    probe("schema.play_changed")
    jobs = [job.id for job in made.jobs]
    me.cluster.world.facts.setdefault(JOBS, []).extend(jobs)
    if draw.chance(1, 2):
        await db.jobs.wait(jobs[-1], timeout=WAIT_S)


async def _anew(me: Worker, db: AsyncDatabase, name: str) -> None:
    """Drop a table and make it again. A drop that fails is finished by the next one."""
    try:
        await db.drop_table(name)
    except UsageError:
        probe("schema.play_gone")  # another client was quicker
    probe("schema.play_dropped")
    await make_table(db, name)


async def _create_index(me: Worker, db: AsyncDatabase, latest: TableDescriptor) -> Any:
    draw = me.draw
    if len(latest.indexes) >= INDEXES_AT_ONCE:
        return await db.drop_index(latest.name, draw.pick(latest.indexes).name, wait=False)
    names = draw.shuffled([column.name for column in latest.columns])
    columns = [name + draw.pick(("", " desc")) for name in names[: draw.between(1, 2)]]
    storing = names[2:3] if draw.chance(1, 3) else []
    index = f"by_{me.unique().decode().replace('.', '_')}"
    return await db.create_index(latest.name, index, columns, unique=draw.chance(1, 3), storing=storing, wait=False)


def _alteration(me: Worker, latest: TableDescriptor) -> dict[str, Any]:
    draw = me.draw
    column = draw.pick([column for column in latest.columns if column.name != "id"] or list(latest.columns))
    what = draw.below(9)
    if what < 2:
        kind = draw.pick(("int8", "text", "int8 not null default 7", "int4 default 3"))
        return {"add_column": {draw.pick(MORE): kind}}
    if what < 4:
        return {"drop_column": column.name}
    if what == 4:
        return {"rename_column": {column.name: draw.pick(MORE)}}
    if what == 5:
        return {"set_type": {column.name: "int8"}}
    if what == 6:
        return {"drop_check": draw.pick(latest.checks).name} if latest.checks else {"add_check": {"low": "id < 1000"}}
    if what == 7:
        return {"drop_not_null" if not column.nullable else "set_not_null": column.name}
    if column.type.kind in INTEGERS:
        return {"add_check": {f"of_{column.name}": f"{column.name} < {VALUES - 1}"}}
    return {"set_not_null": column.name}


@operation("schema steer")
async def _steer(me: Worker, timeout: float) -> None:
    known = me.cluster.world.facts.get(JOBS, [])
    if not known:
        return
    job_id = known[-1 - me.draw.below(min(4, len(known)))]
    jobs = session(me.client, me.cluster, timeout_s=timeout).jobs
    await me.draw.pick((jobs.pause, jobs.resume, jobs.resume, jobs.resume, jobs.cancel))(job_id)
    probe("schema.play_steered")


@operation("schema cut")
async def _cut(me: Worker, timeout: float) -> None:
    """Divide a table or an index somewhere, or hand a range of it over."""
    if not me.cluster.world.facts.get(HELD_OPEN):
        return
    db, draw = session(me.client, me.cluster, timeout_s=timeout), me.draw
    latest = (await db.history(draw.pick(TABLES))).latest
    admin = Operator(me.client, me.cluster).admin
    key = RowCodec(latest.schema).key([draw.below(ROWS)])
    if latest.indexes and draw.chance(1, 2):
        key = schema_span(index_schema(latest.schema, draw.pick(latest.indexes))).start
    if draw.chance(1, 3):
        await admin.split(key)
        probe("schema.play_split")
    else:
        found = await admin.describe(key)
        await admin.transfer_lease(key, draw.pick(found.descriptor.replicas))
        probe("schema.play_transferred")


# --- rows ------------------------------------------------------------------------------------------------------------


def value_of(draw: TapeStream, column: Column) -> object:
    """Something that a column may have."""
    if column.nullable and draw.chance(1, 8):
        return None
    number = draw.below(VALUES)
    return f"v{number}" if column.type.kind is ColumnKind.STRING else number


def row_of(draw: TapeStream, schema: TableSchema) -> dict[str, object]:
    """A whole row."""
    return {"id": draw.below(ROWS)} | {
        column.name: value_of(draw, column) for column in schema.columns if column.name != "id"
    }


@operation("schema write")
async def _write(me: Worker, timeout: float) -> None:
    if not me.cluster.world.facts.get(HELD_OPEN):
        return
    db, draw, name = session(me.client, me.cluster, timeout_s=timeout), me.draw, me.draw.pick(TABLES)
    schema = await db.table(name)
    rows = [row_of(draw, schema) for _ in range(draw.pick((1, 1, 1, 3)))]
    rows = list({row["id"]: row for row in rows}.values())
    way = draw.below(12)
    if way < 4:
        await db.upsert(name, rows)
    elif way < 6:
        await db.delete(name, [row["id"] for row in rows])
    elif way == 6:
        await db.insert(name, rows)
    elif way < 9:
        linger_s = draw.between(1, LINGER_S_MAX) if draw.chance(1, 4) else 0
        db._gateways.timeout_s = max(timeout, 3.0 * linger_s)
        with suppress(Undone):
            await db.run(lambda tx: _in_transaction(me, tx, name, rows, linger_s))
    elif way < 10:
        await _bulk(db, name, rows)
    else:
        part = await db.staging(name)
        await part.add(rows)
        await me.dawdle()
        await db.publish(name, [await part.finish()], timeout=timeout)
    probe("schema.play_written")


class Undone(Exception):
    """A client that has changed its mind: its transaction is rolled back, and its intents go."""


async def _in_transaction(
    me: Worker, tx: AsyncTransaction, name: str, rows: list[dict[str, Any]], linger_s: int
) -> None:
    """Read, take some time, write and delete. A transaction that lingers holds up changes, unless its node loses its lease."""
    for row in rows:
        await tx.get(name, row["id"])
        await me.dawdle()
        if me.draw.chance(1, 3):
            await tx.delete(name, [row["id"]])
        else:
            await tx.upsert(name, [row])
            if me.draw.chance(1, 2):
                await tx.get(name, row["id"])  # the write is an intent from here on
                await me.dawdle()
    if me.draw.chance(1, 4):
        await me.dawdle()
        probe("schema.play_undone")
        raise Undone
    if linger_s:
        probe("schema.play_lingered")
        await me.client.runtime.clock.sleep(linger_s)
        await tx.upsert(name, rows)


async def _bulk(db: AsyncDatabase, name: str, rows: list[dict[str, Any]]) -> None:
    """A block of a bulk load; a whole one would be ten thousand rows."""
    deadline = db._gateways.deadline()
    history = await db._tables.by_name(name, deadline=deadline)
    codec, table = db._tables.codec(history), history.latest
    pairs = sorted(codec.encode(row) for row in rows)
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    request = calls.Write(table.table_id, table.version, calls.WriteKind.UPSERT, keys, values, bulk=True)
    await db._gateways.call(calls.WRITE, request, deadline=deadline)


# --- reading ---------------------------------------------------------------------------------------------------------


@operation("schema audit")
async def _audit(me: Worker, timeout: float) -> None:
    """An index and its table, as of one time and on any replica, have the same rows."""
    if not me.cluster.world.facts.get(HELD_OPEN):
        return
    db, draw, name = session(me.client, me.cluster, timeout_s=timeout), me.draw, me.draw.pick(TABLES)
    back_s, source = draw.below(BACK_S_MAX + 1), draw.pick(["any", "leader", "follower"])
    snap = await db.snapshot(tables=[name], read_from=source, as_of=f"-{back_s}s" if back_s else None)
    then = (await db.history(name)).at(snap.timestamp)
    public = [] if then is None else [index for index in then.indexes if index.state.public]
    if then is None or not public:
        return
    index = draw.pick(public)
    rows = (await snap.scan(name, index="primary")).to_pylist()
    found = (await snap.scan(name, index=index.name)).to_pylist()
    probe("schema.play_audited")
    if sorted(map(_shown, rows)) != sorted(map(_shown, found)):
        differ = sorted(set(map(_shown, rows)) ^ set(map(_shown, found)))[:4]
        text = (
            f"at {snap.timestamp} from {source}, index {index.name} of {name} shows other rows than the table: {differ}"
        )
        me.cluster.world.violated("I-30", "index-shows-other-rows", text)


def _shown(row: dict[str, Any]) -> str:
    return repr(sorted(row.items()))
