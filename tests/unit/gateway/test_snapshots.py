"""The schema of a snapshot whose time is chosen by the gateway: every version at or below that time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slackwater.runtime import run
from slackwater.txn.staleness import Chosen, Staleness
from tests.unit.client.world import session
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    import pytest

FAST = {"jobs__poll_interval": 0.05, "jobs__retry_pause_min": 0.01, "catalog__poll_interval": 0.05}


def test_a_table_that_changes_while_a_time_is_chosen_is_read_by_its_new_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found by `test_everything`: a snapshot met a row of a version that the client had been told there was not."""

    async def main() -> None:
        async with Cluster(1, **FAST) as cluster, session(cluster) as db, session(cluster) as other:
            await db.create_table("t", {"id": "int8"}, primary_key="id")

            async def late(self: Staleness, *_: Any, **__: Any) -> Chosen:
                await other.alter_table("t", add_column={"v": "int8"})
                wrote = await other.upsert("t", [{"id": 1, "v": 2}])
                return Chosen(wrote.timestamp, by_followers=False)

            monkeypatch.setattr(Staleness, "with_min_timestamp", late)
            snapshot = await db.snapshot(tables=["t"])
            assert (await snapshot.scan("t")).to_pylist() == [{"id": 1, "v": 2}]

    run(main())
