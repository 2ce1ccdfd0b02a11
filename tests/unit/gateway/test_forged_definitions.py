"""Drawn and forged schema requests of an ordinary client: each is done or refused in one sentence, and nothing is half-changed.

A client with a certificate sends what it likes: `db.define_in_txn`, `db.change_table`, `db.plan_change` and rows in between, with
names, types, defaults and conditions that fit, nearly fit or make no sense, over several transactions at a time. What holds:

    only errors of the tree come back, and never an invariant's or an assertion's
    tables of others stay as they are
    in the end no transaction or job is left, every table can be read, and every index has exactly the rows of its table

SLACKWATER_FORGED=seconds draws for longer than the moment that the test takes by default.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Any

import pytest

from slackwater.codec.rows import RowCodec
from slackwater.errors import AccessDenied, UsageError
from slackwater.gateway.context import LocalCall
from slackwater.model.kinds import BOOL, FLOAT, INT, INT2, INT4, JSON, STRING, UUID, ColumnKind, ColumnType
from slackwater.protocol.client import calls
from slackwater.protocol.client import schema as to
from slackwater.protocol.client.calls import ColumnSpec, CreateTable, IndexSpec, KeySpec
from slackwater.runtime.access import Role
from tests.unit.client.world import ACCOUNTS, accounts, session
from tests.unit.gateway.forging import FAST, SECONDS, ForgingClient
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable

REQUESTS = 150
TABLES = ["mine", "mine", "other", "third", "theirs", "nowhere", "system.jobs", "", "a b", "x" * 200]
COLUMNS = ["id", "a", "b", "c", "d", "nope", "_op", "_commit_ts", "", "é", "y" * 200, "not null 2"]
NAMES = ["i", "j", "k", "primary", "", "1st", "z" * 200]
TYPES = [
    INT,
    INT,
    INT2,
    INT4,
    STRING,
    STRING,
    BOOL,
    JSON,
    UUID,
    FLOAT,
    FLOAT,
    ColumnType(ColumnKind.DECIMAL, 5, 2),
    ColumnType(ColumnKind.DECIMAL, 38, 0),
]
DEFAULTS = [None, None, 0, 7, "text", True, 1.5, b"\x00", 1 << 70, float("nan"), "nan", float("-inf")]
CONDITIONS = ["a > 0", "b is not null", "c = 'x'", "a > b", "", "(", "nope < 1", "a > 0 and b < 5", "true", "a >" * 50]


class Forger:
    """Draws requests."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def spec(self) -> ColumnSpec:
        pick = self.draw.choice
        function = pick(["", "", "", "now()", "gen_random_uuid()", "rm()"])
        return ColumnSpec(pick(COLUMNS), pick(TYPES), pick([True, True, False]), pick(DEFAULTS), function)

    def keys(self) -> tuple[KeySpec, ...]:
        pick = self.draw.choice
        return tuple(KeySpec(pick(COLUMNS), pick([True, False])) for _ in range(pick([0, 1, 1, 1, 2])))

    def create(self) -> CreateTable:
        pick = self.draw.choice
        columns = (ColumnSpec("id", INT), *(self.spec() for _ in range(pick([0, 1, 2, 3]))))
        index = IndexSpec(pick(NAMES), self.keys(), pick([True, False]), tuple(pick([[], [], ["a"]])))
        key = (KeySpec("id"),) if pick([True, True, True, False]) else self.keys()
        return CreateTable(pick(TABLES), columns, key, pick([(), (), (index,)]))

    def change(self) -> to.Change:
        pick = self.draw.choice
        column, name = pick(COLUMNS), pick(NAMES)
        kinds: list[Callable[[], to.Change]] = [
            lambda: to.CreateIndex(name, self.keys(), pick([True, False]), tuple(pick([[], [], ["b"], ["b", "b"]]))),
            lambda: to.DropIndex(name),
            lambda: to.AddColumn(self.spec()),
            lambda: to.AddColumn(ColumnSpec(pick("abcd"), pick(TYPES))),
            lambda: to.DropColumn(column),
            lambda: to.RenameColumn(column, pick(COLUMNS)),
            lambda: to.RenameTable(pick(TABLES)),
            lambda: to.SetNotNull(column),
            lambda: to.DropNotNull(column),
            lambda: to.AddCheck(pick(NAMES), pick(CONDITIONS)),
            lambda: to.DropCheck(name),
            lambda: to.SetType(column, pick(TYPES)),
            to.TruncateTable,
            to.DropTable,
        ]
        return pick(kinds)()

    def changes(self) -> tuple[to.Change, ...]:
        return tuple(self.change() for _ in range(self.draw.choice([0, 1, 1, 1, 1, 2, 3, 17])))


class Client(ForgingClient):
    """One client of one gateway, and what it was told."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        super().__init__(cluster)
        self.forger = Forger(seed)
        self.own: dict[bytes, dict[str, Any]] = {}
        """By transaction: the tables that it was told of."""
        self.txns = [self.forger.draw.randbytes(16) for _ in range(3)]
        """The transactions that are open. Ids are used again, for one transaction after the other."""

    def renew(self, slot: int) -> None:
        self.own.pop(self.txns[slot], None)
        if self.forger.draw.random() < 0.3:
            self.txns[slot] = self.forger.draw.randbytes(16)

    async def once(self) -> None:
        draw, gateway = self.forger.draw, self.node.gateway
        slot = draw.randrange(3)
        txn = self.txns[slot]
        bob = LocalCall(self.node.runtime.clock, user="bob", roles=Role.CLIENT, timeout_s=3.0)
        name, what = draw.choice(TABLES), draw.random()
        if what < 0.55:
            await self.define(txn, bob)
        elif what < 0.7:
            await self.told_of(self.write(txn, bob))
        elif what < 0.8:
            self.renew(slot)
            await self.told_of(gateway.txns.commit(calls.EndClientTxn(txn), bob))
            await self.told_of(gateway.txns.rollback(calls.EndClientTxn(txn), bob))
        elif what < 0.85:
            self.renew(slot)
            await self.told_of(gateway.txns.rollback(calls.EndClientTxn(txn), bob))
        elif what < 0.93:
            await self.told_of(gateway.schema.change(to.ChangeTable(name, self.forger.changes()), bob))
        else:
            await self.told_of(gateway.schema.plan(to.PlanChange(name, self.forger.changes()), bob))

    async def define(self, txn: bytes, bob: LocalCall) -> None:
        draw = self.forger.draw
        create = self.forger.create() if draw.random() < 0.35 else None
        changes = () if create is not None and draw.random() < 0.9 else self.forger.changes()
        request = to.DefineInTxn(txn, create, draw.choice(TABLES), changes, opens=True)
        reply = await self.told_of(self.node.gateway.schema.in_txns.define(request, bob))
        if reply is not None:
            self.own.setdefault(txn, {})[reply.table.latest.name] = reply.table.latest

    async def write(self, txn: bytes, bob: LocalCall) -> None:
        """Rows by a version that this transaction was told of, perhaps one that is not its last."""
        draw, known = self.forger.draw, self.own.get(txn, {})
        if not known:
            return
        table = draw.choice(list(known.values()))
        codec = RowCodec(table.schema)
        rows = sorted(codec.encode({"id": draw.randrange(20)}) for _ in range(1))
        kind = draw.choice([calls.WriteKind.UPSERT, calls.WriteKind.UPSERT, calls.WriteKind.DELETE])
        keys, values = [key for key, _ in rows], [value for _, value in rows if kind is calls.WriteKind.UPSERT]
        write = calls.Write(table.table_id, table.version, kind, keys, values, txn=txn, opens=True)
        await self.node.gateway.rows.write(write, bob)


@pytest.mark.parametrize("seed", [time.time_ns() & 0xFFFFFF] if SECONDS else [1, 2])
def test_forged_requests_change_nothing_by_halves(seed: int) -> None:
    async def main() -> None:
        async with Cluster(1, **FAST) as cluster, session(cluster) as db:
            await db.create_table("theirs", ACCOUNTS, primary_key="id")
            await db.upsert("theirs", accounts(3))
            client, ends = Client(cluster, seed), time.monotonic() + SECONDS
            done = 0
            while done < REQUESTS or time.monotonic() < ends:
                await client.once()
                done += 1
            bob = LocalCall(client.node.runtime.clock, user="bob", roles=Role.CLIENT, timeout_s=10.0)
            for txn in client.txns:
                await client.node.gateway.txns.rollback(calls.EndClientTxn(txn), bob)
            for job in await db.jobs.list(kind="schema-change"):
                if not job.status.ended:
                    await db.jobs.wait(job.id, timeout=30)
            assert (await db.history("theirs")).latest.version == 1
            assert (await db.scan("theirs")).num_rows == 3
            for table in await db.tables():
                latest = (await db.history(table.name)).latest
                assert latest.mutations == ()
                rows = (await db.scan(table.name, index="primary")).to_pylist()
                for index in latest.indexes:
                    found = (await db.scan(table.name, index=index.name)).to_pylist()
                    assert sorted(map(repr, found)) == sorted(map(repr, rows)), (table.name, index.name)
            print(f"seed {seed}: {done} requests, {client.told}")
            assert client.told["done"] > 10
            assert client.told["UsageError"] > 10

    asyncio.run(main())


def test_a_client_defines_nothing_in_tables_of_others() -> None:
    async def main() -> None:
        async with Cluster(1, **FAST) as cluster, session(cluster) as db:
            await db.create_table("theirs", ACCOUNTS, primary_key="id")
            gateway = cluster.nodes[0].gateway
            bob = LocalCall(cluster.nodes[0].runtime.clock, user="bob", roles=Role.CLIENT, timeout_s=10.0)
            for change in (to.DropTable(), to.TruncateTable(), to.RenameTable("mine"), to.DropColumn("owner")):
                with pytest.raises(AccessDenied, match="belongs to the operators"):
                    await gateway.schema.change(to.ChangeTable("theirs", (change,)), bob)
                request = to.DefineInTxn(b"b" * 16, table="theirs", changes=(change,), opens=True)
                with pytest.raises(AccessDenied, match="belongs to the operators"):
                    await gateway.schema.in_txns.define(request, bob)
            for name in ("system.jobs", "SYSTEM.jobs"):
                with pytest.raises(UsageError, match="belong to tables of the system"):
                    await gateway.schema.in_txns.define(
                        to.DefineInTxn(b"b" * 16, table=name, changes=(to.DropTable(),), opens=True), bob
                    )
            await gateway.txns.commit(calls.EndClientTxn(b"b" * 16), bob)
            assert (await db.history("theirs")).latest.version == 1

    asyncio.run(main())
