"""Space comes back on disk: what is left in the files of a real node after tables were dropped, emptied and rewritten."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest

import slackwater
from slackwater.codec.layout import table_span
from slackwater.protect.zone_changes import change_zone
from slackwater.protocol.node.services import STATUS, StatusRequest
from slackwater.server.process import ENGINE
from slackwater.server.remote import connect
from slackwater.storage.gc import keys_of
from slackwater.storage.rocks import RocksDisk
from slackwater.storage.stats import Stats
from tests.integration.cluster import Processes, client_settings, dialing

if TYPE_CHECKING:
    from pathlib import Path

    from slackwater.runtime.rpc import Dialer

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("cluster")]
TTL_S = 2.0
ROWS = 10_000
SETTINGS = {"queue.interval": 0.5, "gc.interval": 0.5, "store.flush_interval": 0.5, "jobs.poll_interval": 0.5}
DEADLINE_S = 120.0


def rows(draw: random.Random, count: int = ROWS) -> list[dict[str, object]]:
    """Rows that do not compress."""
    return [{"id": n, "v": draw.randbytes(150).hex()} for n in range(count)]


async def versions(dialer: Dialer, address: str) -> int:
    """Versions in ranges of users' tables, as the node counts them."""
    answer = await dialer.call(address, STATUS, StatusRequest(), timeout=10.0)
    users = [r for r in answer.replicas if r.descriptor.end > table_span(100).start]
    return sum(Stats(*r.stats).versions for r in users)


def disk_bytes(store: Path) -> int:
    return sum(file.stat().st_size for file in store.rglob("*.sst"))


def versions_in(store: Path, tables: dict[str, int]) -> dict[str, int]:
    """Versions of each table in the files of a store that no process has open."""
    engine = RocksDisk(store, sleep=asyncio.sleep).open(ENGINE)
    try:
        spans = {name: table_span(table_id) for name, table_id in tables.items()}
        return {n: sum(len(v) for _, v in keys_of(engine, s.start, s.end)) for n, s in spans.items()}
    finally:
        engine.close()


def test_dropped_emptied_deleted_and_rewritten_rows_leave_the_files(tmp_path: Path) -> None:
    async def main() -> None:
        draw = random.Random(1)
        log = f"sqlite://{tmp_path}/log.db"
        async with Processes(tmp_path, nodes=1, log_url=log, settings=SETTINGS) as cluster:
            await cluster.make()
            tables, store = {}, tmp_path / "n1"
            async with slackwater.aconnect(f"slackwater://{cluster.addresses[0]}", timeout=30) as db:
                for name in ("dropped", "emptied", "deleted", "rewritten"):
                    made = await db.create_table(name, {"id": "int8", "v": "text"}, primary_key="id")
                    tables[name] = made.table_id
                    await db.upsert(name, rows(draw))
                for _ in range(3):
                    await db.upsert("rewritten", rows(draw))
                async with asyncio.timeout(DEADLINE_S):
                    while (full := disk_bytes(store)) < 7 * ROWS * 150:
                        await asyncio.sleep(0.1)
                await db.drop_table("dropped")
                await db.truncate_table("emptied")
                for low in range(0, ROWS, 1000):
                    await db.delete("deleted", [{"id": n} for n in range(low, low + 1000)])
                async with connect(cluster.addresses, settings=client_settings()) as remote:
                    await change_zone(remote.kv, b"", b"", gc_ttl_s=TTL_S)
                async with asyncio.timeout(DEADLINE_S), dialing() as dialer:
                    while await versions(dialer, cluster.addresses[0]) > ROWS + 1_000 or disk_bytes(store) > full / 3:
                        await asyncio.sleep(0.2)
                assert len((await db.scan("rewritten")).to_pylist()) == ROWS
                assert (await db.scan("deleted")).num_rows == (await db.scan("emptied")).num_rows == 0
            await cluster.stop(0)
            assert versions_in(store, tables) == {"dropped": 0, "emptied": 0, "deleted": 0, "rewritten": ROWS}

    asyncio.run(main())
