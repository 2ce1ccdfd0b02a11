"""The gateway as a Python API: the same methods as a client's calls, without a connection, as a layer above it will use them."""

import pytest

from slackwater.codec.rows import RowCodec
from slackwater.errors import AccessDenied, UsageError
from slackwater.gateway.context import LocalCall
from slackwater.model import kinds
from slackwater.model.txns import TXN_ID_BYTES
from slackwater.protocol.client import calls
from slackwater.runtime import run
from slackwater.runtime.access import Role
from tests.unit.server.cluster import Cluster

COLUMNS = (calls.ColumnSpec("id", kinds.INT, nullable=False), calls.ColumnSpec("v", kinds.STRING))
CREATE = calls.CreateTable("t", COLUMNS, (calls.KeySpec("id"),))


def write(schema, rows, **how):
    keys, values = zip(*(RowCodec(schema).encode({"id": i, "v": v}) for i, v in sorted(rows.items())), strict=True)
    return calls.Write(schema.table_id, schema.version, calls.WriteKind.UPSERT, list(keys), list(values), **how)


def test_tables_rows_and_transactions_without_a_connection() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            (node,) = cluster.nodes
            gateway, call = node.gateway, LocalCall(node.runtime.clock, timeout_s=20)
            accepted = node.server.connections
            schema = (await gateway.tables.create(CREATE, call)).table.latest.schema
            alone = write(schema, {1: "a", 2: "b"}, txn_id=b"x" * TXN_ID_BYTES)
            assert (await gateway.rows.write(alone, call)).rows == 2
            found = await gateway.rows.get(calls.GetRows(schema.table_id, alone.keys), call)
            assert found.values == alone.values
            txn = b"t" * TXN_ID_BYTES
            await gateway.rows.write(write(schema, {2: "c"}, txn=txn, opens=True), call)
            assert len(gateway.txns) == 1
            ended = await gateway.txns.commit(calls.EndClientTxn(txn), call)
            assert ended.ts
            assert len(gateway.txns) == 0
            after = await gateway.rows.get(calls.GetRows(schema.table_id, alone.keys), call)
            assert after.values == [alone.values[0], *write(schema, {2: "c"}).values]
            assert node.server.connections == accepted

    run(main())


def test_a_local_call_has_the_rights_and_the_time_that_it_says() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            (node,) = cluster.nodes
            clock = node.runtime.clock
            ann = LocalCall(clock, user="ann", roles=Role.CLIENT)
            schema = (await node.gateway.tables.create(CREATE, ann)).table.latest.schema
            with pytest.raises(AccessDenied):
                await node.gateway.tables.drop(
                    calls.DropTableByName("t"), LocalCall(clock, user="bob", roles=Role.CLIENT)
                )
            assert ann.remaining() is None
            assert 0 < ann.deadline(default_s=3.0).remaining() <= 3.0
            short = LocalCall(clock, timeout_s=1.0)
            assert 0 < (short.remaining() or 0.0) <= 1.0
            assert short.deadline(default_s=60.0).remaining() <= 1.0
            unsorted = write(schema, {1: "a", 2: "b"}, txn_id=b"x" * TXN_ID_BYTES)
            unsorted.keys.reverse()
            with pytest.raises(UsageError):  # content is checked as for every caller
                await node.gateway.rows.write(unsorted, short)

    run(main())
