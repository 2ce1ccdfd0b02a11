"""A cluster whose log and nodes are gone: made again from surviving stores, by the commands, and used."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import slackwater
from slackwater.errors import SlackwaterError
from slackwater.log.nats_server import LocalNats
from slackwater.runtime.clock import RealClock
from slackwater.runtime.ports import free_ports
from slackwater.runtime.sync import timeout
from slackwater.server.remote import connect
from tests.integration.cluster import READY_S, Processes, client_settings, spread

if TYPE_CHECKING:
    from pathlib import Path

ACCOUNTS, BALANCE, WORKERS, WORK_S = 40, 100, 6, 6.0


def recover(*words: str, status: int = 0) -> dict:
    command = [sys.executable, "-m", "slackwater.cli.main", "recover", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout) if status == 0 else {"error": done.stderr}


async def transfer(db, worker: int, commits: list[int]) -> None:
    number = worker
    while True:
        number += WORKERS
        one, two = number % ACCOUNTS, (number * 7 + 3) % ACCOUNTS
        if one == two:
            continue

        async def work(tx, one=one, two=two) -> None:
            a, b = await tx.get("accounts", one), await tx.get("accounts", two)
            await tx.upsert("accounts", [{**a, "balance": a["balance"] - 1}, {**b, "balance": b["balance"] + 1}])

        try:
            await db.run(work)
        except SlackwaterError:
            continue
        commits.append(number)


async def work(tmp_path: Path, cluster: Processes) -> None:
    """Money moves until every node is killed at once."""
    commits: list[int] = []
    await cluster.make()
    async with slackwater.aconnect(f"slackwater://{','.join(cluster.addresses)}") as db:
        await db.create_table("accounts", {"id": "int8", "balance": "int8 not null"}, primary_key=["id"])
        await db.create_table("notes", {"id": "int8", "text": "text"}, primary_key=["id"])
        await db.upsert("accounts", [{"id": n, "balance": BALANCE} for n in range(ACCOUNTS)])
        await db.upsert("notes", [{"id": 1, "text": "written once, long before"}])
        async with connect(cluster.addresses, settings=client_settings()) as remote:
            await spread(remote, cluster)
        workers = [asyncio.create_task(transfer(db, n, commits)) for n in range(WORKERS)]
        await asyncio.sleep(WORK_S)
        refused = recover("plan", "--store", str(tmp_path / "n1"), status=1)
        assert "its node runs" in refused["error"]
        cluster.end_all()
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    assert commits, "money moved"


async def recover_and_use(tmp_path: Path, *, destroyed: int | None = None, log: tuple[str, ...] = ()) -> None:
    """Make a cluster of the stores that are left, and use it."""
    if destroyed is not None:
        shutil.rmtree(tmp_path / f"n{destroyed + 1}")
    directories = [tmp_path / f"n{n + 1}" for n in range(3) if n != destroyed]
    before = contents(directories)
    named = [word for directory in directories for word in ("--store", str(directory))]
    plan = recover("plan", *named)
    assert plan["recoverable"]
    assert plan["lost"] == []
    assert set(plan["tables"]) == {"accounts", "notes"}
    made = recover("apply", *named, "--into", str(tmp_path / "new"), *log)
    assert made["at"] == plan["at"]
    assert contents(directories) == before, "the old stores are only read"
    assert "not empty" in recover("apply", *named, "--into", str(tmp_path / "new"), status=1)["error"]
    await use(tmp_path, made)


@pytest.mark.integration
@pytest.mark.parametrize("destroyed", [None, 1])
def test_a_cluster_without_its_log_is_recovered_from_its_stores(tmp_path: Path, destroyed: int | None) -> None:
    async def main() -> None:
        async with Processes(tmp_path, nodes=3, log_url=f"sqlite://{tmp_path}/log.db") as cluster:
            await work(tmp_path, cluster)
        for path in tmp_path.glob("log.db*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        await recover_and_use(tmp_path, destroyed=destroyed)

    asyncio.run(main())


@pytest.mark.integration
def test_a_cluster_that_lost_two_of_three_log_servers_is_recovered_from_its_stores(tmp_path: Path) -> None:
    """All nodes are killed, and with them all servers of the log, two of which lose their disks. The new log is theirs again."""
    pytest.importorskip("nats")

    async def main() -> None:
        async with LocalNats(tmp_path / "nats", servers=3, clock=RealClock()) as servers:
            async with Processes(tmp_path, nodes=3, log_url=servers.url(stream="bank")) as cluster:
                await work(tmp_path, cluster)
            for index in range(3):
                servers.kill(index)
            for index in range(2):
                shutil.rmtree(tmp_path / "nats" / f"s{index}")
            await servers.start()
            await recover_and_use(tmp_path, log=("--log", servers.url(stream="again")))

    asyncio.run(main())


def contents(directories: list[Path]) -> dict[str, tuple[int, int]]:
    files = (path for directory in directories for path in directory.rglob("*"))
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


async def use(tmp_path: Path, made: dict) -> None:
    """The recovered cluster holds all money at T, takes writes, and lets nodes join."""
    ports = free_ports(2)
    first, second = (f"127.0.0.1:{port}" for port in ports)
    start = [sys.executable, "-m", "slackwater.cli.main", "start", "--insecure", "--http", "none", "--log", made["log"]]
    nodes = [
        subprocess.Popen([*start, "--store", made["into"], "--listen", first], stderr=subprocess.DEVNULL),
        subprocess.Popen(
            [*start, "--store", str(tmp_path / "joined"), "--listen", second, "--join", first],
            stderr=subprocess.DEVNULL,
        ),
    ]
    try:
        async with timeout(READY_S):
            rows = await ready(first)
            assert sum(row["balance"] for row in rows) == ACCOUNTS * BALANCE
            assert len(rows) == ACCOUNTS
            async with slackwater.aconnect(f"slackwater://{first}") as db:
                assert (await db.get("notes", 1))["text"] == "written once, long before"
                await db.upsert("notes", [{"id": 2, "text": "after"}])
                at = await db.close_now("accounts")
                past = (await (await db.snapshot(as_of=made["at"])).scan("accounts")).to_pylist()
                assert sum(row["balance"] for row in past) == ACCOUNTS * BALANCE
                assert at > made["at"]
            assert len(await ready(second)) == ACCOUNTS
        old = subprocess.run(
            [*start, "--store", str(tmp_path / "n1"), "--listen", "127.0.0.1:0"], capture_output=True, timeout=60
        )
        assert b"not the log" in old.stderr, "a node of the old cluster is fenced"
    finally:
        for node in nodes:
            node.kill()
            node.wait()


async def ready(address: str) -> list[dict]:
    while True:
        try:
            async with slackwater.aconnect(f"slackwater://{address}?timeout=5s") as db:
                return (await db.scan("accounts")).to_pylist()
        except SlackwaterError:
            await asyncio.sleep(0.3)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda d: None, "holds no store"),
        (lambda d: (d / "engine").mkdir(parents=True), "holds no store"),
    ],
)
def test_a_directory_that_holds_no_store_is_refused_by_name(tmp_path: Path, make, says: str) -> None:
    make(tmp_path / "n1")
    said = recover("plan", "--store", str(tmp_path / "n1"), status=1)["error"]
    assert says in said
    assert str(tmp_path / "n1") in said
