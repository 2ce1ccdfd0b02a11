"""Timeouts and drops with real processes: nodes that all stand still or are gone, and a table dropped under its writers."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import slackwater
from slackwater.errors import SlackwaterError
from tests.integration.cluster import Processes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from slackwater.client import Database, Transaction

pytestmark = pytest.mark.integration
COLUMNS = {"id": "int8", "balance": "int8 not null"}
TIMEOUT_S = 2.0
HANGS_S = 5 * TIMEOUT_S + 10
"""No measure of speed: only to tell what ends from what hangs."""


def _row(i: int) -> list[dict[str, int]]:
    return [{"id": i, "balance": i}]


def _run(db: Database) -> None:
    def work(tx: Transaction) -> None:
        tx.get("accounts", 1)
        tx.upsert("accounts", _row(1))

    db.run(work)


def _changes(db: Database) -> None:
    list(db.read_changes(db.partitions("accounts")[0], after=db.now() - 1, upto=db.now()))


CALLS: dict[str, Callable[[Database], Any]] = {
    "get": lambda db: db.get("accounts", 1),
    "scan": lambda db: db.scan("accounts"),
    "scan_batches": lambda db: list(db.scan_batches("accounts")),
    "snapshot": lambda db: db.snapshot(max_staleness=60, tables=["accounts"]),
    "read_changes": _changes,
    "upsert": lambda db: db.upsert("accounts", _row(1)),
    "delete": lambda db: db.delete("accounts", [1]),
    "run": _run,
    "bulk load": lambda db: db.upsert("accounts", [{"id": i, "balance": i} for i in range(20_000)]),
    "create_table": lambda db: db.create_table("other", COLUMNS, primary_key="id"),
    "drop_table": lambda db: db.drop_table("accounts"),
}


def _played(tmp_path: Path, story: Callable[[Processes], None], **settings: float) -> None:
    async def main() -> None:
        cluster = Processes(tmp_path, nodes=3, log_url=f"sqlite://{tmp_path}/log.db", settings=settings)
        async with cluster:
            await cluster.make_whole()
            await asyncio.to_thread(story, cluster)

    asyncio.run(main())


@pytest.mark.parametrize("fault", ["pause", "kill"])
def test_every_call_ends_when_all_nodes_are_dead(tmp_path: Path, fault: str) -> None:
    def story(cluster: Processes) -> None:
        url = "slackwater://" + ",".join(cluster.addresses)
        with slackwater.connect(url, timeout=30) as db:
            db.create_table("accounts", COLUMNS, primary_key="id")
            db.upsert("accounts", _row(1))
        with slackwater.connect(url, timeout=TIMEOUT_S) as db:
            assert db.get("accounts", 1) is not None
            snap = db.snapshot(max_staleness=60, tables=["accounts"])
            for index in range(3):
                getattr(cluster, fault)(index)
            for name, call in {**CALLS, "snapshot scan": lambda _: snap.scan("accounts")}.items():
                began = time.monotonic()
                with pytest.raises(SlackwaterError):
                    call(db)
                took_s = time.monotonic() - began
                assert took_s < HANGS_S, f"{name} took {took_s:.1f} s with a timeout of {TIMEOUT_S} s"

    _played(tmp_path, story)


def test_no_row_is_acknowledged_after_the_drop_of_its_table(tmp_path: Path) -> None:
    """Writers through the other two gateways, which hear of the drop when they hear of it."""

    def story(cluster: Processes) -> None:
        with slackwater.connect(f"slackwater://{cluster.addresses[0]}", timeout=30) as db:
            table = db.create_table("brief", COLUMNS, primary_key="id")
            acked: list[int] = []
            errors: list[SlackwaterError] = []
            workers = [
                threading.Thread(target=_write, args=(f"slackwater://{address}", acked, errors))
                for address in cluster.addresses[1:]
            ]
            for worker in workers:
                worker.start()
            time.sleep(1.0)
            db.drop_table("brief")
            for worker in workers:
                worker.join()
            twin = db._twin  # the drop's own timestamp is not something applications ask for
            dropped = db._loop.run(
                twin._tables.by_id(table.table_id, fresh=True, deadline=twin._gateways.deadline())
            ).latest
            assert dropped.dropped
            assert acked
            assert len(errors) == len(workers), "every writer is told in the end"
            assert max(acked) < dropped.modified

    _played(tmp_path, story, **{"catalog.poll_interval": 1.0})


def _write(url: str, acked: list[int], errors: list[SlackwaterError]) -> None:
    with slackwater.connect(url, timeout=10) as db:
        number = 0
        while True:
            number += 1
            try:
                if number % 2:
                    acked.append(db.upsert("brief", _row(number % 7)).timestamp)
                else:
                    tx_rows = _row(number % 7)
                    with db.transaction() as tx:
                        tx.upsert("brief", tx_rows)
                    acked.append(tx.commit_timestamp)
            except SlackwaterError as error:
                errors.append(error)
                return
