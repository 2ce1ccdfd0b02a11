"""A cluster of real processes for tests: started, killed, paused and restarted by process id, on loopback.

    async with Processes(tmp_path, nodes=3, log_url=f"sqlite://{tmp_path}/log.db") as cluster:
        await cluster.make()                        # start all, init, wait until everybody serves
        async with connect(cluster.addresses) as remote:
            await spread(remote, cluster)           # every range on every node
            cluster.kill(1)
            ...
            await cluster.start(1)

Every process writes its journal to `tmp_path/nK.journal`; when a test fails, the ends of all journals are in the error.
Leaving the block ends every process that was started here, whatever state it is in.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.codec import layout
from slackwater.errors import SlackwaterError, UnavailableError
from slackwater.model.ids import NodeId, RangeId
from slackwater.protocol.node.admin import MERGE, SPLIT, KeyRequest
from slackwater.protocol.node.services import (
    FETCH,
    INIT,
    REPORT,
    STATUS,
    FetchRequest,
    InitRequest,
    ReportReply,
    ReportRequest,
    StatusRequest,
)
from slackwater.protocol.range import requests
from slackwater.routing.sender import NO_RANGE
from slackwater.runtime.ports import free_ports
from slackwater.runtime.real import RealRuntime
from slackwater.runtime.rpc import Dialer, Identity
from slackwater.server.meta import MetaIndex
from slackwater.server.system_kv import KvAdapter
from slackwater.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slackwater.server.remote import Remote

QUICK = {
    # Failover within a few seconds, so that a short test sees many.
    "liveness.duration": 2.0,
    "liveness.heartbeat_interval": 0.3,
    "lease.duration": 2.0,
    "lease.acquire_timeout": 2.0,
    "txn.expiration": 2.0,
    "txn.heartbeat_interval": 0.4,
    "store.flush_interval": 1.0,
    # Queues look at every range all the time: replicas move, small ranges merge, logs are trimmed under lagging nodes.
    "queue.interval": 1.0,
    "queue.check_interval": 5.0,
    "range.quiet_period": 4.0,
    "range.frozen_patience": 2.0,
    "liveness.dead_after": 1.0,
    "txn.record_retention": 5.0,
    "rpc.heartbeat_interval": 0.3,
    "rpc.heartbeat_timeout": 2.0,
}
READY_S = 60.0
ADMIN_S = 15.0
JOURNAL_LINES = 30


def client_settings(**values: float) -> Settings:
    """Settings for a client of a quick cluster."""
    return Settings({k: v for k, v in QUICK.items() if k.startswith(("rpc.", "txn."))} | values)


class Processes:
    """`slackwater start`, several times."""

    def __init__(
        self, directory: Path, *, nodes: int, log_url: str, settings: Mapping[str, float] | None = None
    ) -> None:
        self.directory = directory
        self.log_url = log_url
        self.settings = {**QUICK, **(settings or {})}
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(nodes)]
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * nodes
        self._paused: set[int] = set()

    async def __aenter__(self) -> Processes:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, at: object) -> None:
        self.end_all()
        if error is not None:
            error.add_note(self.journals())

    # --- whole cluster

    async def make(self) -> None:
        """Start all nodes, make a cluster of the first, and wait until every node belongs to it."""
        for index in range(len(self.addresses)):
            self.launch(index)
        async with dialing() as dialer:
            for index in range(len(self.addresses)):
                await self._report(dialer, index, lambda _: True)
            await dialer.call(self.addresses[0], INIT, InitRequest(), timeout=READY_S)
            for index in range(len(self.addresses)):
                await self._report(dialer, index, lambda report: report.node.node_id > 0)

    async def make_whole(self) -> None:
        """`make`, and wait until every node is live and has every range: from then on any one of them may be lost."""
        await self.make()
        await self.wait_live()
        await self.wait_replicated()

    async def wait_live(self) -> None:
        """Wait until every node knows every node to be live."""
        count = len(self.addresses)

        def all_live(report: ReportReply) -> bool:
            return sum(record.live_at(report.now) for record in report.liveness) == count

        async with dialing() as dialer:
            for index in range(count):
                await self._report(dialer, index, all_live)

    async def wait_replicated(self) -> None:
        """Wait until every node has a replica of every range, and none is out of use.

        What stops a node before that stops the only replica of a range, as often as the machine is slow.
        """
        deadline = asyncio.get_running_loop().time() + READY_S
        async with dialing() as dialer:
            while True:
                try:
                    replies = [
                        await dialer.call(address, STATUS, StatusRequest(), timeout=2.0) for address in self.addresses
                    ]
                except SlackwaterError as error:
                    seen: object = error
                else:
                    seen = [{replica.descriptor.range_id for replica in reply.replicas} for reply in replies]
                    first = replies[0].replicas
                    everywhere = all(len(replica.descriptor.replicas) == len(self.addresses) for replica in first)
                    failed = any(replica.failure for reply in replies for replica in reply.replicas)
                    if first and everywhere and not failed and all(held == seen[0] for held in seen):
                        return
                if asyncio.get_running_loop().time() > deadline:
                    raise TimeoutError(f"replicas are missing: {seen}\n{self.journals()}")
                await asyncio.sleep(0.05)

    def end_all(self) -> None:
        """End whatever still runs."""
        for index in range(len(self._processes)):
            self.kill(index)

    def journals(self) -> str:
        """The last lines of every journal, for error messages."""
        parts = []
        for index in range(len(self.addresses)):
            path = self._journal(index)
            lines = path.read_text(errors="replace").splitlines()[-JOURNAL_LINES:] if path.exists() else ["(none)"]
            parts.append("\n".join([f"--- {path.name}", *lines]))
        return "\n".join(parts)

    def last_words(self, index: int) -> str:
        """The last line of a node's journal."""
        return next(reversed(self._journal(index).read_text(errors="replace").splitlines()), "")

    # --- one node

    def launch(self, index: int) -> None:
        """Start a process; it is ready some time later."""
        assert self._processes[index] is None, "this node runs already"
        command = [sys.executable, "-m", "slackwater.cli.main", "start"]
        command += ["--store", str(self.directory / f"n{index + 1}"), "--listen", self.addresses[index], "--insecure"]
        command += ["--join", ",".join(self.addresses), "--log", self.log_url, "--locality", f"zone=z{index + 1}"]
        command += ["--http", "none"]  # a default port might be one that another test was just given
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        with self._journal(index).open("ab") as journal:
            self._processes[index] = subprocess.Popen(
                command, stdout=journal, stderr=journal, stdin=subprocess.DEVNULL, cwd=self.directory
            )

    async def start(self, index: int) -> None:
        """Start a process and wait until it serves."""
        self.launch(index)
        async with dialing() as dialer:
            await self._report(dialer, index, lambda report: report.node.node_id > 0)

    def kill(self, index: int) -> None:
        """End a process without a warning."""
        process = self._processes[index]
        if process is not None:
            process.kill()
            process.wait()
            self._processes[index] = None
            self._paused.discard(index)

    async def stop(self, index: int) -> int:
        """End a process gracefully; returns its exit status."""
        process = self._processes[index]
        assert process is not None
        process.send_signal(signal.SIGTERM)
        try:
            status = await asyncio.wait_for(asyncio.to_thread(process.wait), READY_S)
        except TimeoutError:
            self.dump(index)
            await asyncio.sleep(0.5)
            raise
        self._processes[index] = None
        return status

    def pause(self, index: int) -> None:
        """Freeze a process as a long garbage collection or a moved virtual machine would."""
        self._signal(index, signal.SIGSTOP)
        self._paused.add(index)

    def resume(self, index: int) -> None:
        """Let a frozen process go on."""
        self._signal(index, signal.SIGCONT)
        self._paused.discard(index)

    def dump(self, index: int) -> None:
        """Have a process write its state to its journal; not before it is ready for that: the signal would end it."""
        process = self._processes[index]
        assert process is not None, "this node does not run"
        if catches(process.pid, signal.SIGUSR1):
            self._signal(index, signal.SIGUSR1)

    def running(self, index: int) -> bool:
        """Whether the process is there."""
        process = self._processes[index]
        return process is not None and process.poll() is None

    def _signal(self, index: int, number: signal.Signals) -> None:
        process = self._processes[index]
        assert process is not None, "this node does not run"
        os.kill(process.pid, number)

    def _journal(self, index: int) -> Path:
        return self.directory / f"n{index + 1}.journal"

    async def _report(self, dialer, index, wanted) -> ReportReply:
        deadline = asyncio.get_running_loop().time() + READY_S
        last: object = None
        while asyncio.get_running_loop().time() < deadline:
            process = self._processes[index]
            assert process is not None, f"n{index + 1} was not started"
            assert process.poll() is None, f"n{index + 1} ended:\n{self.journals()}"
            try:
                last = await dialer.call(self.addresses[index], REPORT, ReportRequest(), timeout=2.0)
            except SlackwaterError as error:
                last = error
            else:
                if wanted(last):
                    return last
            await asyncio.sleep(0.05)
        raise TimeoutError(f"n{index + 1} is not ready: {last}")


class dialing:  # noqa: N801 - reads as a statement
    """A dialer without a clock, for looking at nodes."""

    async def __aenter__(self):
        settings = Settings({"rpc.reconnect_pause_max": 0.1})
        self._runtime = RealRuntime(disk=None, settings=settings)
        self._scope = self._runtime.scope("look")
        self._dialer = Dialer(self._runtime, self._scope, identity=Identity(), settings=settings)
        return self._dialer

    async def __aexit__(self, *exc: object) -> None:
        await self._dialer.close()
        await self._scope.close()
        self._runtime.close()


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, mask = line.partition(":")
        if name == "SigCgt":
            return bool(int(mask, 16) >> (number - 1) & 1)
    return False


async def spread(remote: Remote, cluster: Processes, *, upto: bytes = layout.KEY_MAX) -> None:
    """Put a replica of every range that begins below `upto` on every node, and wait until all of them are there."""
    everyone = tuple(NodeId(n + 1) for n in range(len(cluster.addresses)))
    deadline = asyncio.get_running_loop().time() + READY_S
    while True:
        try:
            await remote.book.refresh(KvAdapter(remote.kv))
            remote.sender.cache.clear()
            ranges = await remote.sender.ranges_of(layout.KEY_MIN, upto)
            for descriptor in ranges:
                await _spread_range(remote, descriptor, everyone)
            counts = [await held_by(remote, node) for node in everyone]
        except SlackwaterError as error:
            counts = error
        else:
            if all(held >= {d.range_id for d in ranges} for held in counts):
                return
        assert asyncio.get_running_loop().time() < deadline, f"replicas are missing: {counts}"
        await asyncio.sleep(0.2)


async def _spread_range(remote: Remote, descriptor, everyone) -> None:
    if set(descriptor.replicas) >= set(everyone):
        return
    change = requests.ChangeReplicas(everyone, descriptor.generation)
    await remote.sender.send([change], requests.Header(NO_RANGE), at=max(descriptor.start, layout.META))
    info = await lease_info(remote, descriptor.replicas[0], descriptor.range_id)
    await MetaIndex(remote.kv).publish(info.descriptor)
    for node in everyone:
        if node not in descriptor.replicas:
            request = FetchRequest(descriptor.range_id, descriptor.replicas[0])
            await remote.dialer.call(address_of(remote, node), FETCH, request, timeout=30.0)


async def lease_info(remote: Remote, node: NodeId, range_id: RangeId) -> requests.LeaseResult:
    """What one replica knows of its range."""
    answer = await remote.transport.batch(node, requests.Batch(requests.Header(range_id), [requests.LeaseInfo()]))
    (info,) = answer.results
    assert isinstance(info, requests.LeaseResult)
    return info


def address_of(remote: Remote, node: NodeId) -> str:
    """Where a node is; `UnavailableError` when it has joined and this client has not heard of it yet."""
    address = remote.book.resolve(node)
    if address is None:
        raise UnavailableError(f"the address of n{node} is not known yet")
    return address


async def held_by(remote: Remote, node: NodeId) -> set[RangeId]:
    """The ranges a node has replicas of."""
    reply = await remote.dialer.call(address_of(remote, node), STATUS, StatusRequest(), timeout=10.0)
    return {replica.descriptor.range_id for replica in reply.replicas}


async def administer(remote: Remote, method, request):
    """Ask some node that answers for an administrative operation."""
    last: SlackwaterError | None = None
    for node in list(remote.book.nodes.values()):
        try:
            return await remote.dialer.call(node.address, method, request, timeout=ADMIN_S)
        except UnavailableError as error:
            last = error
    raise last or UnavailableError("no node is known")


async def split(remote: Remote, at: bytes) -> None:
    """Divide the range that holds `at` there."""
    await administer(remote, SPLIT, KeyRequest(at))


async def merge(remote: Remote, key: bytes) -> None:
    """Merge the range that holds `key` with its right neighbour."""
    await administer(remote, MERGE, KeyRequest(key))
