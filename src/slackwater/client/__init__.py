"""What applications import: a database of tables, over any node of a cluster.

    import slackwater
    with slackwater.connect("slackwater://127.0.0.1:7400") as db:
        db.create_table("accounts", {"id": "int8", "owner": "text", "balance": "int8"}, primary_key=["id"])
        db.upsert("accounts", [{"id": 1, "owner": "ada", "balance": 100}])

        def transfer(tx):
            row = tx.get("accounts", 1)
            tx.upsert("accounts", [{**row, "balance": row["balance"] - 10}])
        db.run(transfer)                                     # again, as long as others are in the way

        snap = db.snapshot(max_staleness=5, tables=["accounts"])
        snap.scan("accounts", where=[("balance", ">", 50)])  # a pyarrow.Table, from the nearest replicas

                sync.Database ── loop thread ──┐
                                               ▼
    application ─────────────────────► AsyncDatabase ── Gateways ── RPC ──► any node (protocol.client)
                                        │ tables    what tables look like, as far as is known
                                        │ inputs    dicts, Arrow, pandas → encoded rows
                                        │ writes    one transaction, or a bulk load
                                        │ reads     plans, pages, what to do when a gateway is lost
                                        └ transaction, snapshot

A client runs no part of the protocols between ranges: it talks to a *gateway*, any node, which does. So a client needs to
reach only one node, is not slowed down by a network further away than that, and may be old. It sees `protocol`, `codec`,
`config`, `model`, `clock` and `runtime`, and nothing of the server (import-linter holds it to that).

What an application may rely on: a call returns, or raises one error that says what to do, or `AmbiguousResult` when no
gateway can tell what happened. Bad input writes nothing. A gateway that dies is replaced by another within the call's timeout.

    connection     connect, url, gateways, session
    definitions    definitions, schema_changes, transaction_schema, tables (what is known of them)
    rows           arguments and inputs (what may be passed), generated, writes, staging, point_reads, index_reads, queries, reads
    transaction, snapshot, changes, jobs, protections
    sync           the synchronous client, written from the asynchronous one; blocking is what it rests on
"""

from slackwater.client.changes import ChangeBatch
from slackwater.client.connect import aconnect, connect
from slackwater.client.database import AsyncDatabase
from slackwater.client.definitions import Index
from slackwater.client.snapshot import AsyncSnapshot
from slackwater.client.sync import Database, Snapshot, Transaction
from slackwater.client.transaction import AsyncTransaction
from slackwater.client.writes import WriteResult

__all__ = [
    "AsyncDatabase",
    "AsyncSnapshot",
    "AsyncTransaction",
    "ChangeBatch",
    "Database",
    "Index",
    "Snapshot",
    "Transaction",
    "WriteResult",
    "aconnect",
    "connect",
]
