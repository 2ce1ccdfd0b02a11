"""A new cluster whose first node is gone for good, store and all: the others make its ranges again from the log."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

import pytest

import slackwater
from slackwater.codec import layout
from slackwater.errors import SlackwaterError
from slackwater.runtime.sync import timeout
from slackwater.server.remote import connect
from tests.integration.cluster import READY_S, Processes, client_settings, spread

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 500


@pytest.mark.integration
def test_what_only_the_lost_node_had_is_made_again_from_the_log(tmp_path: Path) -> None:
    async def main() -> None:
        async with Processes(
            tmp_path, nodes=3, log_url=f"sqlite://{tmp_path}/log.db", settings={"queue.interval": 0.0}
        ) as cluster:
            await cluster.make()  # its queues rest: only the first node has replicas
            async with slackwater.aconnect(f"slackwater://{cluster.addresses[0]}") as db:
                await db.create_table("things", {"id": "int8", "name": "text"}, primary_key=["id"])
                for begin in range(0, ROWS, 50):
                    await db.upsert("things", [{"id": n, "name": f"thing {n}"} for n in range(begin, begin + 50)])
                await db.delete("things", [{"id": 7}])
            async with connect(cluster.addresses, settings=client_settings()) as remote:
                await spread(remote, cluster, upto=layout.META)  # range 1 alone
            cluster.kill(0)
            shutil.rmtree(tmp_path / "n1")
            for index in (1, 2):
                await cluster.stop(index)
            cluster.settings["queue.interval"] = 1.0
            for index in (1, 2):
                cluster.launch(index)
            async with timeout(READY_S):
                assert await _rows(cluster.addresses[1:]) == {n: f"thing {n}" for n in range(ROWS) if n != 7}

    asyncio.run(main())


async def _rows(addresses: list[str]) -> dict[int, str]:
    """Every row, as soon as the others lead its range; one more write shows that they do."""
    while True:
        try:
            async with slackwater.aconnect(f"slackwater://{','.join(addresses)}?timeout=5s") as db:
                await db.upsert("things", [{"id": ROWS, "name": "after the loss"}])
                await db.delete("things", [{"id": ROWS}])
                return {row["id"]: row["name"] for row in (await db.scan("things")).to_pylist()}
        except SlackwaterError:
            await asyncio.sleep(0.5)
