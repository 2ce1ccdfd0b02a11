"""Slackwater in processes of its own, for benchmarks: what `slackwater start` runs, without its command line.

    bench process                     server process(es)
    KV ── RangeSender ── RPC ──TCP──► Node ── RocksEngine
                                       └───── log: sqlite file, or NATS

A server prints its address when it serves, and ends when its standard input does, so that none outlives the benchmark. A line
there is answered by what making columns has cost.
`python -m bench._cluster DIRECTORY LOG_URL [JOIN]` runs one by hand.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench._calls import Calls
from bench._sampler import Sampler
from bench.codec import MIXED
from slackwater.codec.arrow import leave_pandas_out
from slackwater.codec.layout import KEY_MAX
from slackwater.codec.layout import kv as kv_key
from slackwater.feeds.watch import TopicFollower
from slackwater.log import open_log
from slackwater.log.nats_server import LocalNats
from slackwater.protocol.client.calls import ColumnSpec, KeySpec
from slackwater.replica.driver import columns as making_module
from slackwater.runtime import RealRuntime, Scope, TcpNet, run
from slackwater.runtime.clock import RealClock
from slackwater.server import member as member_module
from slackwater.server.node import Node
from slackwater.server.remote import connect, connect_kv
from slackwater.settings import Settings
from slackwater.storage.rocks import RocksDisk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from slackwater.model.schema import TableSchema
    from slackwater.server.member import Member
    from slackwater.server.remote import Remote
    from slackwater.txn.kv import KV

CHECKOUT = Path(__file__).resolve().parents[1]
STOP_SECONDS_MAX = 30.0
REPLICATED_SECONDS_MAX = 60.0
RAW = "raw"
"""The table whose rows benchmarks write without a gateway, by the schema `bench.codec.MIXED`."""
PROFILE = "SLACKWATER_BENCH_PROFILE"
"""Names a file: the server samples itself between two SIGUSR1 and writes its stacks there."""
WITHOUT_FEEDS = "SLACKWATER_BENCH_WITHOUT_FEEDS"
"""If set, nothing in the server registers a feed, not even for its own announcements."""

WITHOUT_COLUMNS = "SLACKWATER_BENCH_WITHOUT_COLUMNS"
"""If set, the server keeps no columns: every scan makes its own."""


class Making(NamedTuple):
    """Processor time of the threads that made columns, and how many files they made."""

    cpu_s: float
    made: int


class ServerProcess:
    """One node in a process of its own."""

    def __init__(
        self, directory: Path, log_url: str, *, join: str = "", feeds: bool = True, columns: bool = True
    ) -> None:
        command = [sys.executable, "-m", "bench._cluster", str(directory), log_url, join]
        environment = os.environ | ({} if feeds else {WITHOUT_FEEDS: "1"}) | ({} if columns else {WITHOUT_COLUMNS: "1"})
        pipe = subprocess.PIPE
        # A session of its own, as a service has, and as PostgreSQL gives each of its processes: the kernel may share the
        # processors between sessions (autogroups), and a node is not one with the load that is put on it.
        self._process = subprocess.Popen(
            command, cwd=CHECKOUT, env=environment, stdin=pipe, stdout=pipe, start_new_session=True
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().decode().strip()
        if not self.address:
            raise RuntimeError("the server did not start; its error is above")

    @property
    def pid(self) -> int:
        """Of the server."""
        return self._process.pid

    def toggle_profile(self) -> None:
        """Begin to sample, or end and write (see `PROFILE`)."""
        self._process.send_signal(signal.SIGUSR1)

    def count_calls(self) -> tuple[int, int]:
        """Begin to count calls, or end: runs applied, and calls they made into feeds (`bench._calls`)."""
        self._process.send_signal(signal.SIGUSR2)
        assert self._process.stdout is not None
        runs, feeds = self._process.stdout.readline().split()
        return int(runs), int(feeds)

    def making(self) -> Making:
        """What the node has spent on making columns since it began."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        cpu_s, made = self._process.stdout.readline().split()
        return Making(float(cpu_s), int(made))

    def stop(self) -> None:
        """End it and wait."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(STOP_SECONDS_MAX)


@asynccontextmanager
async def one_node(directory: Path, *, columns: bool = True) -> AsyncIterator[KV]:
    """A client of one node over a sqlite log; `columns`: whether it keeps those that scans make."""
    server = ServerProcess(directory / "node", f"sqlite://{directory}/log.db", columns=columns)
    try:
        async with connect_kv([server.address]) as kv:
            yield kv
    finally:
        server.stop()


@asynccontextmanager
async def three_nodes(directory: Path) -> AsyncIterator[KV]:
    """A client of three nodes over a log of three NATS servers, once every range of data has three replicas."""
    servers: list[ServerProcess] = []
    async with LocalNats(directory / "nats", servers=3, clock=RealClock()) as nats:
        url = nats.url(stream="bench")
        try:
            servers.append(ServerProcess(directory / "n1", url))
            servers += [ServerProcess(directory / name, url, join=servers[0].address) for name in ("n2", "n3")]
            async with connect([server.address for server in servers]) as remote:
                await _replicated(remote)
                yield remote.kv
        finally:
            for server in reversed(servers):
                server.stop()


async def _replicated(remote: Remote) -> None:
    deadline = time.monotonic() + REPLICATED_SECONDS_MAX
    while True:
        remote.sender.cache.clear()
        ranges = await remote.sender.ranges_of(kv_key(b""), KEY_MAX)
        if all(len(descriptor.replicas) == 3 for descriptor in ranges):
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"ranges without three replicas: {[d.status() for d in ranges]}")
        await asyncio.sleep(0.5)


async def serve(directory: Path, log_url: str, join: str) -> None:
    """Be a node until standard input ends."""
    leave_pandas_out()
    # a fresh cluster should have its replicas soon
    kept: dict[str, float] = {"columns.disk_bytes": 0} if os.environ.get(WITHOUT_COLUMNS) else {}
    settings = Settings({"queue.interval": 1.0, **kept})
    clock = RealClock()
    disk = RocksDisk(directory, sleep=clock.sleep, settings=settings)
    runtime = RealRuntime(disk=disk, net=TcpNet(settings), settings=settings)
    scope = Scope("node")
    log = await open_log(log_url, clock=runtime.clock, rng=runtime.rng, scope=scope, settings=settings)
    engine = disk.open("store")
    joined = tuple(a for a in join.split(",") if a)
    node = Node(
        runtime=runtime, scope=scope, engine=engine, log=log, address="127.0.0.1:0", settings=settings, join=joined
    )
    if os.environ.get(WITHOUT_FEEDS):
        vars(member_module)["announcements"] = _no_announcements
    await node.start()
    if not joined and not node.node_id:  # otherwise it was here before
        await node.init()
        await _create(node, MIXED)
    await node.ready.wait()
    _profile_on_signal()
    _count_on_signal()
    spent = _time_making()
    print(node.address, flush=True)
    while await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.readline):
        store = (await node.joined()).store
        print(sum(spent), store.context.columns.made, flush=True)
    await node.stop()
    engine.close()


async def _create(node: Node, schema: TableSchema) -> None:
    """Make the table that benchmarks write raw rows of: rows of tables that do not exist are refused."""
    names = {column.id: column.name for column in schema.columns}
    columns = [ColumnSpec(c.name, c.type, nullable=c.nullable) for c in schema.columns]
    made = await (await node.joined()).catalog.create(
        RAW, columns, [KeySpec(names[k.column_id]) for k in schema.primary_key]
    )
    assert made.table_id == schema.table_id, "the first table of a new cluster"


def _no_announcements(member: Member) -> TopicFollower:
    """A watch that never runs."""
    return TopicFollower([], client=member.feed_client, kv=member.kv)


def _time_making() -> list[float]:
    """Have every piece of work that makes columns take its time; what they took, in the order of their ends."""
    spent: list[float] = []

    def timed(work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            began = time.thread_time()
            try:
                return work(*args)
            finally:
                spent.append(time.thread_time() - began)

        return run

    for name in ("_begin", "_step"):
        vars(making_module)[name] = timed(vars(making_module)[name])
    return spent


def _count_on_signal() -> None:
    running: list[Calls] = []

    def toggle() -> None:
        if running:
            calls = running.pop()
            calls.stop()
        else:
            calls = Calls()
            running.append(calls)
            calls.start()
        print(calls.writes, calls.feeds, flush=True)

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, toggle)


def _profile_on_signal() -> None:
    path = os.environ.get(PROFILE)
    if not path:
        return
    running: list[Sampler] = []

    def toggle() -> None:
        if not running:
            running.append(Sampler())
            running[0].start()
            return
        sampler = running.pop()
        sampler.stop()
        Path(path).write_text(sampler.folded())
        Path(path + ".top").write_text(sampler.top(25))

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, toggle)


if __name__ == "__main__":
    run(serve(Path(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""))
