"""What a transfer costs each process: `python -m bench._transfers transfer|purchase|upsert [CLIENTS [SECONDS [NODES [RANGES]]]]`.

    this process                       three servers over one sqlite log
    AsyncDatabase ── RPC ──TCP──────► gateway and leaseholder  (n1)
                                       followers               (n2, n3)

Prints operations per second and the processor time that every process spends on one, which a busy machine disturbs far less
than it disturbs rates. With `SLACKWATER_BENCH_SAMPLE` set to a node's number (or `client`) it also shows where that one's
time went; the stacks are in `profile.folded`. A transfer reads two rows and writes both; a purchase also inserts a third;
an upsert is one row without a transaction.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sys
import tempfile
import time
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench._cluster import PROFILE, ServerProcess
from bench._load import disk, throughput
from bench._sampler import Sampler
from slackwater.cli.calling import calling
from slackwater.client import aconnect
from slackwater.codec.layout import KEY_MAX, table_prefix
from slackwater.codec.layout import kv as kv_key
from slackwater.protocol.node.admin import SPLIT, KeyRequest
from slackwater.runtime import run
from slackwater.server.remote import connect

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from slackwater.client import AsyncDatabase

ACCOUNTS = 20_000
SAMPLE = "SLACKWATER_BENCH_SAMPLE"
REPLICATED_SECONDS_MAX = 60.0
IDLE_SECONDS = 3.0


def operations(db: AsyncDatabase) -> dict[str, Callable[[int], Awaitable[object]]]:
    """One operation of each kind, by its number."""
    choose = random.Random(7)

    async def move(tx: Any, order: int | None) -> None:
        payer, payee = choose.randrange(ACCOUNTS), choose.randrange(ACCOUNTS)
        a, b = await asyncio.gather(tx.get("left_accounts", payer), tx.get("right_accounts", payee))
        await tx.upsert("left_accounts", [{**a, "balance": a["balance"] - 1}])
        await tx.upsert("right_accounts", [{**b, "balance": b["balance"] + 1}])
        if order is not None:
            await tx.insert("orders", [{"id": order, "amount": 1}])

    orders = count()
    return {
        "transfer": lambda _: db.run(partial(move, order=None)),
        "purchase": lambda _: db.run(partial(move, order=next(orders))),
        "upsert": lambda number: db.upsert("left_accounts", [{"id": number * 7919 % ACCOUNTS, "balance": number}]),
    }


async def main(directory: Path, kind: str, clients: int, seconds: float, nodes: int, ranges: int) -> None:
    """Run the load and print what it cost."""
    os.environ[PROFILE] = str(directory / "profile")
    log_url = f"sqlite://{directory}/log.db"
    servers = [ServerProcess(directory / "n1", log_url)]
    try:
        servers += [ServerProcess(directory / f"n{n}", log_url, join=servers[0].address) for n in range(2, nodes + 1)]
        await _replicated([server.address for server in servers], nodes)
        async with aconnect("slackwater://" + servers[0].address) as db:
            for table in ("left_accounts", "right_accounts"):
                await db.create_table(table, {"id": "int8", "balance": "int8"}, primary_key=["id"])
                await db.upsert(table, [{"id": n, "balance": 1_000} for n in range(ACCOUNTS)])
            await db.create_table("orders", {"id": "int8", "amount": "int8"}, primary_key=["id"])
            if ranges > 1:
                await _split(db, servers[0].address)
            await _measure(db, servers, kind, clients, seconds)
    finally:
        for server in reversed(servers):
            server.stop()
    if os.environ.get(SAMPLE):
        print((directory / "profile.top").read_text())
        shutil.copy(directory / "profile", "profile.folded")


async def _measure(db: AsyncDatabase, servers: list[ServerProcess], kind: str, clients: int, seconds: float) -> None:
    one = operations(db)[kind]
    sampled, sampler = os.environ.get(SAMPLE, ""), Sampler()
    pids = [*(server.pid for server in servers), os.getpid()]
    idle = await _idle(pids)
    await throughput([one] * clients, seconds=2.0)
    if sampled.isdigit():
        servers[int(sampled) - 1].toggle_profile()
    elif sampled:
        sampler.start()
    before, begin = [_cpu_s(pid) for pid in pids], time.perf_counter()
    rate = await throughput([one] * clients, seconds=seconds)
    took = time.perf_counter() - begin
    spent = [
        (_cpu_s(pid) - was - took * rest) / (rate * took) * 1e3
        for pid, was, rest in zip(pids, before, idle, strict=True)
    ]
    if sampled.isdigit():
        servers[int(sampled) - 1].toggle_profile()
    elif sampled:
        sampler.stop()
        Path(os.environ[PROFILE]).write_text(sampler.folded())
        Path(os.environ[PROFILE] + ".top").write_text(sampler.top(25))
    shares = " ".join(f"n{n}={ms:.2f}" for n, ms in enumerate(spent[:-1], start=1))
    print(
        f"idle {' '.join(f'{share:.1%}' for share in idle)};"
        f" {kind}, {clients} clients: {rate:.0f}/s, ms of processor time each: {shares} client={spent[-1]:.2f}"
        f" all={sum(spent):.2f}, load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


async def _idle(pids: list[int]) -> list[float]:
    """The share of a core that every process takes with nothing to do; it is not counted."""
    await asyncio.sleep(1.0)
    before, begin = [_cpu_s(pid) for pid in pids], time.perf_counter()
    await asyncio.sleep(IDLE_SECONDS)
    took = time.perf_counter() - begin
    return [(_cpu_s(pid) - was) / took for pid, was in zip(pids, before, strict=True)]


async def _split(db: AsyncDatabase, address: str) -> None:
    """Give every table a range of its own."""
    async with calling(argparse.Namespace(host=address, certs=None, user="")) as dialer:
        for table in ("right_accounts", "orders"):
            key = table_prefix((await db.table(table)).table_id)
            await dialer.call(address, SPLIT, KeyRequest(key), timeout=30.0)


async def _replicated(addresses: list[str], nodes: int) -> None:
    deadline = time.monotonic() + REPLICATED_SECONDS_MAX
    async with connect(addresses) as remote:
        while True:
            remote.sender.cache.clear()
            ranges = await remote.sender.ranges_of(kv_key(b""), KEY_MAX)
            if all(len(descriptor.replicas) == nodes for descriptor in ranges):
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"ranges without {nodes} replicas: {[d.status() for d in ranges]}")
            await asyncio.sleep(0.5)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    place = Path(tempfile.mkdtemp(prefix="slackwater-bench-", dir=disk()))
    arguments = [*sys.argv[1:], *("transfer", "24", "8", "3", "1")[len(sys.argv) - 1 :]]
    kind, clients, seconds, nodes, ranges = arguments
    try:
        run(main(place, kind, int(clients), float(seconds), int(nodes), int(ranges)))
    finally:
        shutil.rmtree(place)
