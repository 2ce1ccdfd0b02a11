"""The client against real processes: three nodes whose gateways are killed, TLS, and a node inside this process."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import slackwater
from slackwater.errors import ConnectionLost, SlackwaterError, UnavailableError, UsageError
from slackwater.runtime.certs import create_ca, create_node, create_operator
from slackwater.server.remote import connect
from tests.integration.cluster import Processes, client_settings, free_ports, spread

if TYPE_CHECKING:
    from pathlib import Path

    from slackwater.client import Database, Transaction

pytestmark = pytest.mark.integration
ACCOUNTS = {"id": "int8", "balance": "int8 not null"}
COUNT = 40
TOTAL = 100 * COUNT


def transfer(tx: Transaction, a: int, b: int) -> None:
    one, two = tx.get("accounts", a), tx.get("accounts", b)
    assert one is not None
    assert two is not None
    rows = [{**one, "balance": one["balance"] - 1}, {**two, "balance": two["balance"] + 1}]
    tx.upsert("accounts", rows)


def test_a_bank_survives_the_death_of_its_gateways(tmp_path: Path) -> None:
    async def main() -> None:
        settings = {"queue.interval": 0.0, "closed_timestamp.target_duration": 0.5}
        cluster = Processes(tmp_path, nodes=3, log_url=f"sqlite://{tmp_path}/log.db", settings=settings)
        async with cluster:
            await cluster.make()
            await cluster.wait_live()
            async with connect(cluster.addresses, settings=client_settings()) as remote:
                await spread(remote, cluster)
            await asyncio.to_thread(_bank, cluster)

    asyncio.run(main())


def _bank(cluster: Processes) -> None:
    url = "slackwater://" + ",".join(cluster.addresses)
    with slackwater.connect(url, timeout=30) as db:
        db.create_table("accounts", ACCOUNTS, primary_key="id")
        db.upsert("accounts", [{"id": i, "balance": 100} for i in range(COUNT)])
        stop, done, failures = threading.Event(), [0], []
        worker = threading.Thread(target=_work, args=(url, stop, done, failures))
        worker.start()
        try:
            for round_ in range(6):
                if round_ == 2:
                    cluster.kill(0)  # the gateway of every session
                snap = db.snapshot(tables=["accounts"], read_from="follower")
                assert sum(snap.scan("accounts").column("balance").to_pylist()) == TOTAL
                parts = pickle.loads(pickle.dumps(snap.partitions("accounts", 3)))
                found = [b for p in parts for b in db.read_partition(p, at=snap.timestamp)]
                assert sum(sum(b.column("balance").to_pylist()) for b in found) == TOTAL
                with db.transaction() as tx:
                    assert sum(tx.scan("accounts").column("balance").to_pylist()) == TOTAL
        finally:
            stop.set()
            worker.join()
        assert not failures, failures
        assert done[0] > 0
        assert {read.node for read in snap.reads} <= {2, 3}
        rows = db.frontier("accounts")
        assert {row.node for row in rows} == {2, 3}


def _work(url: str, stop: threading.Event, done: list[int], failures: list[BaseException]) -> None:
    try:
        with slackwater.connect(url, timeout=30) as db:
            while not stop.is_set():
                a, b = done[0] % COUNT, (done[0] * 7 + 3) % COUNT
                if a != b:
                    db.run(lambda tx, a=a, b=b: transfer(tx, a, b))
                done[0] += 1
    except BaseException as error:
        failures.append(error)


def test_a_node_in_this_process(tmp_path: Path) -> None:
    with slackwater.open(tmp_path / "data") as db:
        assert db.url == ""
        db.create_table("accounts", ACCOUNTS, primary_key="id")
        db.upsert("accounts", pa.table({"id": [1, 2], "balance": [10, 20]}))
        db.run(lambda tx: transfer(tx, 1, 2))
        at = db.now()
        with pytest.raises(SlackwaterError):  # one process at a time, and one session of it
            slackwater.open(tmp_path / "data")
    with pytest.raises(UsageError, match="closed"):
        db.get("accounts", 1)
    db.close()
    with slackwater.open(tmp_path / "data") as db:
        assert db.scan("accounts").to_pydict() == {"id": [1, 2], "balance": [9, 21]}
        assert db.snapshot(as_of=at).get("accounts", 1) == {"id": 1, "balance": 9}
        batches = db.scan_batches("accounts")
        assert next(batches).num_rows == 2
        del batches


def test_a_node_in_this_process_serves_others(tmp_path: Path) -> None:
    with slackwater.open(tmp_path / "data", listen="127.0.0.1:0") as db:
        db.create_table("accounts", ACCOUNTS, primary_key="id")
        script = f"import slackwater\nwith slackwater.connect({db.url!r}) as d: d.upsert('accounts', [dict(id=7, balance=1)])"
        subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
        assert db.get("accounts", 7) == {"id": 7, "balance": 1}


@pytest.mark.parametrize("path", ["/dev/null/x", "/proc/nope"])
def test_a_directory_that_is_none(path: str) -> None:
    with pytest.raises(UsageError, match="data directory"):
        slackwater.open(path)


def test_no_cluster_there() -> None:
    (port,) = free_ports(1)
    with pytest.raises(UnavailableError, match="no node of the cluster answers"):
        slackwater.connect(f"slackwater://127.0.0.1:{port}")
    with pytest.raises(UsageError, match="certificates"):
        slackwater.connect("slackwater://db.example:7400")


def test_certificates_are_verified_in_both_directions(tmp_path: Path) -> None:
    certs, other = tmp_path / "certs", tmp_path / "other"
    for directory in (certs, other):
        create_ca(directory)
        create_node(directory, ["127.0.0.1"])
        create_operator(directory, "root")
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    command = [sys.executable, "-m", "slackwater.cli.main"]
    start = ["start", "--store", str(tmp_path / "n1"), "--listen", address, "--certs", str(certs), "--http", "none"]
    with (tmp_path / "journal").open("wb") as journal:
        node = subprocess.Popen([*command, *start], stdout=journal, stderr=journal, env={**os.environ})
    try:
        _until_listening(tmp_path / "journal", node)
        init = [*command, "init", "--host", address, "--certs", str(certs)]
        subprocess.run(init, check=True, timeout=60, stdout=subprocess.DEVNULL)
        with slackwater.connect(f"slackwater://{address}?certs={certs}") as db:
            assert db.tables() == []
        with pytest.raises(UnavailableError, match=r"no node of the cluster answers.*certificate"):
            slackwater.connect(f"slackwater://{address}", certs=other)
        with pytest.raises(UsageError, match="missing"):
            slackwater.connect(f"slackwater://{address}", certs=certs, user="nobody")
        with pytest.raises((UnavailableError, ConnectionLost)):
            slackwater.connect(f"slackwater://{address}")
    finally:
        node.kill()
        node.wait()


def _until_listening(journal: Path, node: subprocess.Popen[bytes]) -> None:
    while b"listening" not in journal.read_bytes():
        assert node.poll() is None, journal.read_text()
        threading.Event().wait(0.05)


def test_a_fork_is_told_that_it_has_no_connection(tmp_path: Path) -> None:
    with slackwater.open(tmp_path / "data") as db:
        assert _in_a_fork(db) == 0


def _in_a_fork(db: Database) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            db.tables()
        except UsageError as error:
            os._exit(0 if "forked" in str(error) else 2)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)
