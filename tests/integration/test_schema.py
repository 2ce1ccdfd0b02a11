"""Changing tables by commands, on a real node."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

import slackwater
from slackwater.client import Index
from tests.integration.cluster import Processes

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("cluster")]


async def command(*words: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "slackwater.cli.main", *words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    out, _ = await asyncio.wait_for(process.communicate(), 120)
    return process.returncode or 0, out.decode()


def test_tables_are_described_altered_and_indexed_by_commands(tmp_path) -> None:
    async def main() -> None:
        async with Processes(tmp_path, nodes=1, log_url=f"sqlite://{tmp_path}/log.db") as cluster:
            await cluster.make()
            await cluster.wait_live()
            (host,) = cluster.addresses
            async with slackwater.aconnect(f"slackwater://{host}") as db:
                await db.create_table("t", {"id": "int8", "v": "text"}, primary_key="id")
                await db.upsert("t", [{"id": n, "v": f"x{n % 7}"} for n in range(500)])
                at = ("--host", host)
                assert (await command("alter", "t", "add-column", "n", "int8 not null default 5", *at))[0] == 0
                assert (await db.scan("t", where=[("id", "=", 1)])).to_pylist() == [{"id": 1, "v": "x1", "n": 5}]
                status, out = await command("leases", "t", *at)
                assert status == 0
                assert out.splitlines()[0].split() == ["table", "version", "newest", "node", "epoch", "age", "until"]
                status, out = await command("leases", "--json", *at)
                assert {lease["node"] for lease in json.loads(out)["leases"]} <= {1}
                assert json.loads(out)["waiting"] == []
                status, out = await command("index", "create", "t", "by_v", "v", "--unique", "--dry-run", *at)
                assert status == 0
                assert "nothing was changed" in out
                assert "backfilling, then backfill" in out
                status, out = await command("index", "create", "t", "by_v", "v", "--unique", *at)
                assert status == 1
                assert "two rows have the same values" in out
                status, out = await command("index", "create", "t", "by_v", "v", "--storing", "n", "--json", *at)
                assert (status, json.loads(out)["status"]) == (0, "succeeded")
                status, out = await command("describe", "t", *at)
                assert "index by_v (v) storing (n), public" in out
                assert "n int not null default 5" in out
                status, out = await command("alter", "t", "drop-column", "v", *at)
                assert status == 1
                assert "used by index by_v" in out
                assert (await command("index", "drop", "t", "by_v", *at))[0] == 0
                assert (await command("alter", "t", "rename-to", "u", *at))[0] == 0
                status, out = await command("tables", *at)
                assert out.splitlines()[1].split()[0] == "u"
                status, out = await command("alter", "u", "drop", "--dry-run", *at)
                assert status == 0
                assert "nothing was changed" in out
                assert [table.name for table in await db.tables()] == ["u"]
                status, out = await command("alter", "u", "drop", "--json", *at)
                assert (status, json.loads(out)["status"]) == (0, "succeeded")
                assert await db.tables() == []
                status, out = await command("alter", "u", "drop", *at)
                assert status != 0
                assert "there is no table 'u'" in out

    asyncio.run(main())


def test_commands_refuse_what_cannot_be_in_one_line_and_change_nothing(tmp_path) -> None:
    async def main() -> None:
        async with Processes(tmp_path, nodes=1, log_url=f"sqlite://{tmp_path}/log.db") as cluster:
            await cluster.make()
            await cluster.wait_live()
            (host,) = cluster.addresses
            async with slackwater.aconnect(f"slackwater://{host}") as db:
                await db.create_table("t", {"id": "int8", "v": "text"}, primary_key="id", indexes=[Index("by_v", "v")])
                await db.create_table("u", {"id": "int8"}, primary_key="id")
                await db.upsert("t", [{"id": 1, "v": "x"}, {"id": 2, "v": "x"}])
                before = await db.history("t")
                for words, says in (
                    (("alter", "t", "add-column", "v", "text"), "has a column 'v' already"),
                    (("alter", "t", "add-column", "_op", "text"), "is reserved"),
                    (("alter", "t", "add-column", "x", "varchar2"), "unknown type 'varchar2'"),
                    (("alter", "t", "drop-column", "v"), "is used by index by_v"),
                    (("alter", "t", "rename-to", "u"), "there is a table 'u' already"),
                    (("alter", "nowhere", "drop-column", "v"), "there is no table 'nowhere' to change"),
                    (("index", "create", "t", "by_v", "v"), "has an index 'by_v' already"),
                    (("index", "create", "t", "i", "nope"), "has no column 'nope'"),
                    (("index", "drop", "t", "nope"), "nope"),
                    (("leases", "nowhere"), "there is no table 'nowhere'"),
                    (("settings", "set", "catalog.lease.duration", "30"), "set catalog.lease.abandoned_duration to 30"),
                ):
                    status, out = await command(*words, "--host", host)
                    assert status == 1, (words, out)
                    assert says in out, (words, out)
                    assert len(out.splitlines()) == 1, out
                status, out = await command("index", "create", "t", "unique_v", "v", "--unique", "--host", host)
                assert status == 1
                assert "id=1 and id=2" in out
                after = await db.history("t")
                assert after.latest.schema.columns == before.latest.schema.columns
                assert [index.name for index in after.latest.indexes] == ["by_v"]
                assert after.latest.mutations == ()

    asyncio.run(main())
