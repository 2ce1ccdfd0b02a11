"""Slackwater in processes of its own, for benchmarks: what `slackwater start` runs, without its command line.

    bench process                     server process(es)
    KV ── RangeSender ── RPC ──TCP──► Node ── RocksEngine
                                       └───── log: sqlite file, or NATS

A server prints its address when it serves, and ends when its standard input does, so that none outlives the benchmark.
`python -m bench._cluster DIRECTORY LOG_URL [JOIN]` runs one by hand.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bench._sampler import Sampler
from slackwater.clock import HybridClock
from slackwater.clock.timestamp import Timestamp
from slackwater.log import open_log
from slackwater.routing.sender import RangeSender
from slackwater.routing.transport import RpcTransport
from slackwater.runtime import RealRuntime, Scope, TcpNet, run
from slackwater.runtime.clock import RealClock
from slackwater.runtime.rpc.dialer import Dialer
from slackwater.runtime.rpc.method import Identity
from slackwater.server.addresses import AddressBook
from slackwater.server.node import Node
from slackwater.settings import Settings
from slackwater.storage.memory import MemoryDisk
from slackwater.storage.rocks import RocksDisk
from slackwater.txn.kv import KV

if TYPE_CHECKING:
    from types import TracebackType

    from slackwater.runtime.rpc.method import Measurement

CHECKOUT = Path(__file__).resolve().parents[1]
STOP_SECONDS_MAX = 30.0
PROFILE = "SLACKWATER_BENCH_PROFILE"
"""Names a file: the server samples itself between two SIGUSR1 and writes its stacks there."""


class ServerProcess:
    """One node in a process of its own."""

    def __init__(self, directory: Path, log_url: str, *, join: str = "") -> None:
        command = [sys.executable, "-m", "bench._cluster", str(directory), log_url, join]
        self._process = subprocess.Popen(command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
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

    def stop(self) -> None:
        """End it and wait."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(STOP_SECONDS_MAX)


class _Hook:
    """Couples a client's hybrid clock to its messages."""

    def __init__(self, clock: HybridClock) -> None:
        self._clock = clock

    def stamp(self) -> int:
        return self._clock.now()

    def update(self, ts: int) -> None:
        self._clock.update(Timestamp(ts))

    def measured(self, peer: str, measurement: Measurement) -> None:
        """A client serves nothing, so it need not fence itself."""


class Client:
    """A KV over RPC, as any program outside the cluster has it."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses

    async def __aenter__(self) -> KV:
        settings = Settings()
        runtime = RealRuntime(disk=MemoryDisk(), net=TcpNet(settings), settings=settings)
        clock = HybridClock(runtime.clock.wall_ns, max_offset_s=settings["clock.max_offset"])
        self._scope = Scope("client")
        self._dialer = Dialer(runtime, self._scope, identity=Identity(), settings=settings, hook=_Hook(clock))
        book = AddressBook("", self._addresses, self._dialer, local_first_range=lambda: None)
        for address in self._addresses:
            await book.greet(address)
        sender = RangeSender(
            transport=RpcTransport(self._dialer, book.resolve),
            runtime=runtime,
            scope=self._scope.child("sender"),
            clock=clock,
            settings=settings,
            first_range=book.first_range,
        )
        return KV(sender=sender, clock=clock, runtime=runtime, settings=settings, scope=self._scope.child("kv"))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._dialer.close()
        await self._scope.close()


async def serve(directory: Path, log_url: str, join: str) -> None:
    """Be a node until standard input ends."""
    settings = Settings()
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
    await node.start()
    if not joined:
        await node.init()
    await node.ready.wait()
    _profile_on_signal()
    print(node.address, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    await node.stop()
    engine.close()


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
