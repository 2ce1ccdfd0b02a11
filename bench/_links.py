"""TCP links between processes that can be cut: one proxy per node, which knows who dials.

    n2 ──► proxy of n1 ──► n1          clients ──► proxy of n1 ──► n1

A node listens on one port and advertises its proxy's, so everything that others send to it passes the proxy. The proxy finds
the dialing process by the port it dialed from (`/proc`). A cut link is silent: bytes are taken and dropped, connections are
accepted and say nothing, as behind a firewall that drops packets. No peer is told.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

CHUNK = 1 << 16
CLIENTS = -1
"""The dialing side of everything that is no node."""
LISTENING_ROWS = 1


class Links:
    """The proxies of one cluster."""

    def __init__(self) -> None:
        self.pids: dict[int, int] = {}
        """Process id of each node, by index; written by what starts a node."""
        self._cut: set[tuple[int, int]] = set()
        self._servers: list[asyncio.Server] = []
        self._pumps: set[asyncio.Task[None]] = set()
        self._ends: set[asyncio.StreamWriter] = set()

    async def add(self, index: int, target_port: int) -> str:
        """Open the proxy of a node; returns the address to advertise."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._accept(index, target_port, reader, writer)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self._servers.append(server)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    def cut(self, pairs: set[tuple[int, int]]) -> None:
        """Drop everything on connections dialed by the first of each pair to the second; `set()` heals all."""
        self._cut = pairs

    async def close(self) -> None:
        """End every connection."""
        for server in self._servers:
            server.close()
        for pump in list(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        for end in self._ends:
            end.transport.abort()
        await asyncio.sleep(0.05)  # transports close in the loop's next turns

    async def _accept(self, to: int, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.add(writer)
        by = self._dialer(writer.get_extra_info("peername")[1])
        try:
            there, back = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.transport.abort()
            return
        self._ends.add(back)
        for source, sink in ((reader, back), (there, writer)):
            pump = asyncio.get_running_loop().create_task(self._pump((by, to), source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, pair: tuple[int, int], source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(CHUNK):
                if pair in self._cut:
                    continue
                sink.write(data)
                await sink.drain()
        if pair not in self._cut:  # an end is news, too, and does not pass a cut
            sink.close()

    def _dialer(self, port: int) -> int:
        """The node whose process owns the socket with this local port."""
        inode = _inode(port)
        for index, pid in self.pids.items():
            with suppress(OSError):
                if any(_is_socket(entry, inode) for entry in list(Path(f"/proc/{pid}/fd").iterdir())):
                    return index
        return CLIENTS


def _is_socket(entry: Path, inode: str) -> bool:
    with suppress(OSError):
        return entry.readlink().name == f"socket:[{inode}]"
    return False


def _inode(port: int) -> str:
    """Of the socket with this local port that has a peer."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[LISTENING_ROWS:]:
        fields = line.split()
        if int(fields[1].rpartition(":")[2], 16) == port:
            return fields[9]
    return ""
