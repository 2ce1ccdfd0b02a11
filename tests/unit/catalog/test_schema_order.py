"""The cases by which the document about leases argues that they are right, as golden scripts on two nodes in one process.

    L < SC, L > SC, L == SC      a lease that is acquired at L beside a change that commits at SC
    example 1 to 3               writers under v and v+2 on one row: one of them sees the other, or is refused
    the story of its beginning   an insert by a gateway that has not heard of an index

The nodes' own code runs. A script only says who waits where (`hold`: after it has read the table's descriptor), and at which
timestamp a transaction of a lease or of a change begins (`at=`: the one of another that is held).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from slackwater.catalog import definition, ladder
from slackwater.catalog.bulk_fill import BulkBackfill
from slackwater.catalog.filling import FillTask
from slackwater.catalog.ladder import Rung
from slackwater.catalog.lease_driver import ROWS
from slackwater.codec.index_entries import IndexCodec
from slackwater.codec.layout import schema_span, table_span
from slackwater.codec.rows import RowCodec
from slackwater.errors import LeasesInTheWay, SlackwaterError
from slackwater.model.indexes import index_schema
from slackwater.model.kinds import INT
from slackwater.protocol.client import schema as to
from slackwater.protocol.client.calls import ColumnSpec, KeySpec
from tests import golden
from tests.unit.client.world import session
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from slackwater.catalog.leases import DescriptorLease
    from slackwater.client.database import AsyncDatabase
    from slackwater.client.transaction import AsyncTransaction
    from slackwater.model.tables import TableDescriptor
    from slackwater.server.member import Member
    from slackwater.txn import Transaction

SETTINGS = {
    "catalog__lease__duration": 0.5,
    "catalog__lease__abandoned_duration": 0.5,
    "catalog__poll_interval": 0.05,
}
TABLE, INDEX = "t", "by_a"
STEP_TIMEOUT_S = 0.4
LONG_S = 15.0
CREATE = to.CreateIndex(INDEX, (KeySpec("a"),), False, ())


class _Held:
    """A transaction of a lease or a change that waits after it has read the descriptor."""

    def __init__(self) -> None:
        self.read, self.go = asyncio.Event(), asyncio.Event()
        self.txn: Transaction | None = None
        self.task: asyncio.Task[Any] | None = None


class Order:
    """One script: two nodes, a table, and named writers."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._contexts: list[AbstractAsyncContextManager[Any]] = []
        self._held: dict[str, _Held] = {}
        self._open: dict[str, tuple[Any, AsyncTransaction]] = {}
        self._next: tuple[_Held | None, int | None] | None = None
        self._taken: list[DescriptorLease] = []
        self._published: dict[str, TableDescriptor] = {}
        self._intent: Transaction
        self._backfill: asyncio.Task[str]
        self._run(self._start())

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(work)

    async def _start(self) -> None:
        self.cluster = await self._enter(Cluster(2, **SETTINGS))
        self.dbs: list[AsyncDatabase] = [await self._enter(session(self.cluster, at)) for at in range(2)]
        made = await self.dbs[0].create_table(TABLE, {"id": "int8", "a": "int8"}, primary_key="id")
        self.table_id = made.table_id
        for node in self.cluster.nodes:
            self._gate(node)

    async def _enter(self, context: Any) -> Any:
        self._contexts.append(context)
        return await context.__aenter__()

    def close(self) -> None:
        """End everything."""

        async def end() -> None:
            for context in reversed(self._contexts):
                await context.__aexit__(None, None, None)

        self._run(end())
        self._runner.close()

    def _gate(self, node: Member) -> None:
        """Let the next transaction that reads a descriptor begin at a timestamp, and wait once it has read."""
        read = node.catalog.latest_in

        async def latest_in(txn: Transaction, table_id: int) -> TableDescriptor:
            asked, self._next = self._next, None
            if asked is None:
                return await read(txn, table_id)
            held, at = asked
            if at is not None:
                txn.state.start = txn.state.read_ts = txn.state.write_ts = at  # type: ignore[assignment]
            found = await read(txn, table_id)
            if held is not None:
                held.txn = txn
                held.read.set()
                await held.go.wait()
            return found

        node.catalog.latest_in = latest_in  # type: ignore[method-assign]

    def _member(self, name: str) -> Member:
        return self.cluster.nodes[int(name[1:]) - 1]

    def _timestamp(self, name: str | None) -> int | None:
        if name is None:
            return None
        if name in self._published:
            return int(self._published[name].modified)
        txn = self._held[name].txn
        assert txn is not None
        return int(txn.state.read_ts)

    # --- leases and changes

    def do_acquire(self, node: str, *words: str, at: str | None = None, name: str = "lease") -> str:
        """`acquire n2 [hold] [at=other] [name=x]`: have a node acquire a lease."""
        held = _Held() if "hold" in words else None
        self._next = (held, self._timestamp(at))
        leases = self._member(node).catalog.leases

        async def work() -> str:
            async with leases._lock(self.table_id):
                lease = await leases._acquire(self.table_id)
            self._taken.append(lease.take())
            return f"{node} has a lease on version {lease.version}, and uses it"

        return self._begin(held, name, work(), node)

    def do_publish(self, node: str, rung: str, *words: str, at: str | None = None, name: str = "change") -> str:
        """`publish n1 delete-only [hold] [at=other] [name=x]`: publish the version in which the index stands at a rung."""
        held = _Held() if "hold" in words else None
        self._next = (held, self._timestamp(at))
        catalog = self._member(node).catalog
        timeout = LONG_S if "wait" in words or held is not None else STEP_TIMEOUT_S

        def change(now: TableDescriptor) -> Any:
            if rung == "column":
                return definition.with_column(now, ColumnSpec(f"c{now.version}", INT))
            return ladder.next_record(CREATE, Rung(rung), now)

        async def work() -> str:
            made = await catalog.publish(self.table_id, change, timeout=timeout)
            self._published[name] = made
            return f"version {made.version} is published: {rung}"

        return self._begin(held, name, work(), node)

    def do_blocked(self, node: str, rung: str) -> str:
        """`blocked n1 write-only`: the same, and it has to wait for a lease of n2."""
        try:
            return self.do_publish(node, rung)
        except LeasesInTheWay as error:
            holders = error.facts["holders"]
            assert isinstance(holders, list)
            used = [version for holder, version in holders if holder == 2]
            return f"the next version waits: n2 uses version {used}"

    def _begin(self, held: _Held | None, name: str, work: Coroutine[Any, Any, str], who: str) -> str:
        if held is None:
            return str(self._run(work))
        self._held[name] = held

        async def until_read() -> str:
            held.task = asyncio.create_task(work)
            await held.read.wait()
            return f"{name} of {who} has read the descriptor, and waits"

        return str(self._run(until_read()))

    def do_go_on(self, name: str) -> str:
        """`go-on lease`: let a transaction that is held end."""
        held = self._held[name]

        async def end() -> str:
            held.go.set()
            assert held.task is not None
            return str(await held.task)

        return str(self._run(end()))

    def do_order(self, first: str, second: str) -> str:
        """`order lease change`: which of two came first, in timestamps."""
        at, then = self._timestamp(first), self._timestamp(second)
        assert at is not None
        assert then is not None
        return f"{first} {'<' if at < then else '==' if at == then else '>'} {second}"

    def do_leases(self, version: str) -> str:
        """`leases 1`: the nodes that have a lease on a version."""
        found = self._run(ROWS.scan(self.cluster.nodes[0].kv, self.table_id, int(version)))
        nodes = ", ".join(f"n{row['node_id']}" for row in found)
        return f"version {version} is leased by {nodes or 'no node'}"

    def do_give_back(self) -> str:
        """Give back what was acquired: its node deletes a lease that no write uses once it has heard of a newer version."""
        while self._taken:
            self._taken.pop().give_back()
        return "given back"

    def do_lose_epoch(self, node: str) -> str:
        """`lose-epoch n2`: a node ends its liveness epoch, and its leases are abandoned from then on."""
        member = self._member(node)
        self._run(member.liveness.step_down(horizon=member.store.horizon))
        return f"{node} has another epoch"

    # --- rows

    def do_begin(self, name: str, node: str) -> str:
        """`begin DELETE n2`: a transaction over a gateway."""

        async def work() -> None:
            db = self.dbs[int(node[1:]) - 1]
            db._tables.forget(TABLE)  # as `db.run` does when it was told that there is a newer version
            context = db.transaction()
            self._open[name] = context, await context.__aenter__()

        self._run(work())
        return f"{name} begins on {node}"

    def do_put(self, *words: str, tx: str | None = None, on: str = "n1") -> str:
        """`put 1 5 [tx=UPDATE]`: the row (1, 5)."""
        row = {"id": int(words[0]), "a": int(words[1])}
        writer = self._open[tx][1] if tx else self.dbs[int(on[1:]) - 1]
        self._run(writer.upsert(TABLE, [row]))
        return "written"

    def do_delete(self, key: str, *, tx: str | None = None, on: str = "n1") -> str:
        """`delete 1 [tx=DELETE]`."""
        writer = self._open[tx][1] if tx else self.dbs[int(on[1:]) - 1]
        self._run(writer.delete(TABLE, [int(key)]))
        return "deleted"

    def do_read(self, key: str, *, tx: str | None = None) -> str:
        """`read 1 [tx=…]`: a row. What a transaction has written is sent to its gateway with that, which takes a lease for it."""
        reader = self._open[tx][1] if tx else self.dbs[0]
        return f"{self._run(reader.get(TABLE, int(key)))}"

    def do_commit(self, name: str) -> str:
        """`commit DELETE`: committed, or refused; a client would run the transaction again."""
        context, _ = self._open.pop(name)
        try:
            self._run(context.__aexit__(None, None, None))
        except SlackwaterError as error:
            return f"{name} is refused: {type(error).__name__}"
        return f"{name} is committed"

    def do_backfill(self, *words: str, on: str = "n1") -> str:
        """`backfill [hold 1 5] [on=n2]`: give every row its entry; held, it waits for an intent on that of (1, 5)."""
        node = self._member(on)

        async def work() -> str:
            await node.catalog.refresh()
            history = await node.catalog.find_id(self.table_id)
            (index,) = history.latest.indexes
            span = schema_span(history.latest.schema)
            runner = BulkBackfill(node.kv, node.catalog)
            try:
                run = await runner.read(FillTask(history, index), span, rows=1000)
                await runner.write(run)
            except SlackwaterError as error:
                return f"the backfill is refused: {type(error).__name__}: {error.message}"
            return f"{run.filled.rows} rows were looked at"

        async def held() -> str:
            latest = (await node.catalog.find_id(self.table_id)).latest
            key, _ = IndexCodec(latest.schema, latest.indexes[0]).entry({"id": int(words[1]), "a": int(words[2])})
            self._intent = self.cluster.nodes[0].kv.begin()  # of no gateway, so it holds no lease
            await self._intent.put(key, b"never committed")
            await self._intent.get(key)  # sends it
            self._backfill = asyncio.create_task(work())
            while not any(lease.taken > lease.given for lease in node.catalog.leases.book.held(self.table_id)):
                await asyncio.sleep(0.01)
            return f"{on} has read the rows, and its block waits for an intent"

        return str(self._run(held() if "hold" in words else work()))

    def do_let_go(self) -> str:
        """Take away the intent that a backfill waits for."""

        async def end() -> str:
            await self._intent.rollback()
            return await self._backfill

        return str(self._run(end()))

    def do_stored(self, index_id: str) -> str:
        """`stored 2`: how many entries are stored under the id of an index, whether the table has it or not."""

        async def work() -> int:
            span = table_span(self.table_id, int(index_id))
            return len((await self.cluster.nodes[0].kv.scan(span.start, span.end)).keys)

        return f"{self._run(work())} entries"

    def do_by_index(self, value: str) -> str:
        """`by-index 5`: the rows that a SELECT by the index finds."""
        found = self._run(self.dbs[0].scan(TABLE, where=[("a", "=", int(value))], index=INDEX))
        return str([(row["id"], row["a"]) for row in found.to_pylist()])

    def do_index(self) -> str:
        """Rows, entries, and whether they fit."""

        async def work() -> str:
            node = self.cluster.nodes[0]
            await node.catalog.refresh()
            history = await node.catalog.find_id(self.table_id)
            latest, at = history.latest, node.clock.now()
            rows = RowCodec(latest.schema, history.by_version())
            span = schema_span(latest.schema)
            found = [rows.decode(v) for v in (await node.kv.scan(span.start, span.end, ts=at)).values]
            shown = f"rows {[(row['id'], row['a']) for row in found]}"
            for index in latest.indexes:
                codec = IndexCodec(latest.schema, index, history.schemas())
                entries = schema_span(index_schema(latest.schema, index))
                kept = [codec.codec.decode(v) for v in (await node.kv.scan(entries.start, entries.end, ts=at)).values]
                has, wanted = sorted((e["a"], e["id"]) for e in kept), sorted((r["a"], r["id"]) for r in found)
                fits = "equal" if has == wanted else "some missing" if set(has) < set(wanted) else "DIFFERENT"
                shown += f", {index.state.value} entries {has}: {fits}"
            return shown

        return str(self._run(work()))


@pytest.mark.parametrize("path", golden.scripts("schema_order"), ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    runner = Order()
    try:
        golden.check(path, runner)
    finally:
        runner.close()
