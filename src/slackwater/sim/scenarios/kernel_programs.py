"""The programs of the kernel scenario: small, but made of the real parts.

    client ──RPC──► node ──append──► log ──tail──► every node ──batch──► its engine
                     │ hybrid clock on every message; fences itself when its clock is beyond the bound

A node serves `append` over the real RPC layer on the simulated network, and applies what it tails. The position applied
is written in the same batch as the data, so a power cut leaves both or neither. Clients number their entries and repeat
one until it is acknowledged; nodes drop repeats when they apply, which makes every entry count once.

Keys, per range r and client c
    DATA   r c n     ->  the position at which entry n of client c counted
    LOCAL  a r       ->  the last position applied
    LOCAL  l r c     ->  the highest number of client c that counted
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.clock import HybridClock, OffsetMonitor, PeerOffset, Timestamp
from slackwater.errors import AmbiguousResult, ClockError, LogError, SlackwaterError, UnavailableError
from slackwater.hooks import buggify, probe
from slackwater.model.ids import Position, RangeId
from slackwater.runtime.access import ANYBODY
from slackwater.runtime.rpc import Context, Dialer, Identity, Measurement, Method, RpcServer
from slackwater.runtime.seam import Family
from slackwater.sim.handles import NS

if TYPE_CHECKING:
    from slackwater.log.contract import Entry
    from slackwater.runtime.seam import Engine, TaskScope
    from slackwater.sim.scenarios.kernel_witness import KernelWitness
    from slackwater.sim.world import SimRuntime, World

PORT = 7400
FLUSH_EVERY_S = 0.5
PEERS_EVERY_S = 0.5
CALL_TIMEOUTS_S = (3.0, 15.0)
"""Shorter and longer than the log's own timeout: the client hears of a lost answer from either."""
THINK_MEAN_NS = 200_000_000
RETRY_MEAN_NS = 300_000_000
TRIM_KEEPS = 16


class AppendRequest(msgspec.Struct, frozen=True):
    """Append entry `number` of `client` to a range."""

    range_id: int
    client: int
    number: int


class AppendReply(msgspec.Struct, frozen=True):
    """Where it is in the log."""

    position: int


APPEND = Method("kernel.append", AppendRequest, AppendReply, callers=ANYBODY)


def pack(client: int, number: int) -> bytes:
    """A log payload."""
    return client.to_bytes(2, "big") + number.to_bytes(4, "big")


def unpack(payload: bytes) -> tuple[int, int]:
    """Client and number of a payload."""
    return int.from_bytes(payload[:2], "big"), int.from_bytes(payload[2:], "big")


class KernelStore:
    """What a node keeps."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def applied(self, range_id: int) -> Position:
        """The last position applied, 0 before the first."""
        return Position(int.from_bytes(self.engine.get(Family.LOCAL, b"a" + _two(range_id)) or b"", "big"))

    def dump(self, range_id: int) -> dict[bytes, bytes]:
        """Everything that counted."""
        first, end = _two(range_id), _two(range_id + 1)
        cursor = self.engine.cursor(Family.DATA, start=first, end=end)
        keys, values = cursor.chunk(1 << 20)
        return dict(zip(keys, values, strict=True))

    def apply(self, range_id: int, entries: list[Entry]) -> None:
        """Apply entries and the position they lead to, together."""
        batch = self.engine.batch()
        highest: dict[int, int] = {}
        for entry in entries:
            client, number = unpack(entry.payload)
            if client not in highest:
                key = b"l" + _two(range_id) + _two(client)
                highest[client] = int.from_bytes(self.engine.get(Family.LOCAL, key) or b"", "big")
            if number <= highest[client]:
                probe("kernel.repeat_dropped")
                continue
            highest[client] = number
            batch.put(Family.DATA, _two(range_id) + entry.payload, _eight(entry.position))
        for client, number in highest.items():
            batch.put(Family.LOCAL, b"l" + _two(range_id) + _two(client), _eight(number))
        batch.put(Family.LOCAL, b"a" + _two(range_id), _eight(entries[-1].position))
        self.engine.write(batch)


class NodeClock:
    """The hybrid clock of a node, on every message (`rpc.ClockHook`)."""

    def __init__(self, runtime: SimRuntime, witness: KernelWitness) -> None:
        max_offset_s = runtime.settings["clock.max_offset"]
        self.clock = HybridClock(runtime.clock.wall_ns, max_offset_s=max_offset_s)
        self.monitor = OffsetMonitor(max_offset_s=max_offset_s)
        self._witness = witness
        self._name = runtime.name
        self._last = Timestamp(0)

    def stamp(self) -> int:
        """A timestamp for a message to be sent."""
        ts = self.clock.now()
        self._witness.stamped(self._name, before=self._last, ts=ts)
        self._last = ts
        return ts

    def update(self, ts: int) -> None:
        """Follow a received timestamp, unless it is beyond belief."""
        heard = Timestamp(ts)
        try:
            self.clock.update(heard)
        except ClockError:
            probe("kernel.timestamp_refused")
            raise

    def measured(self, peer: str, measurement: Measurement) -> None:
        """A heartbeat came back."""
        m = measurement
        self.monitor.record(peer, PeerOffset(m.offset_us, m.error_us, m.measured_at_ns))


class NodeProgram:
    """One node."""

    def __init__(
        self, runtime: SimRuntime, witness: KernelWitness, *, node_id: int, peers: list[str], ranges: int
    ) -> None:
        self._runtime = runtime
        self._witness = witness
        self._node_id = node_id
        self._peers = peers
        self._ranges = [RangeId(r) for r in range(1, ranges + 1)]
        self._store = KernelStore(runtime.disk.open("store"))
        self._hook = NodeClock(runtime, witness)

    async def main(self) -> None:
        """Serve, apply, flush, and watch the clock."""
        runtime, store = self._runtime, self._store
        for range_id in self._ranges:
            self._witness.booted(runtime.name, range_id, store.applied(range_id), store.dump(range_id))
        scope = runtime.scope(f"{runtime.name}/app")
        identity = Identity(cluster_id="kernel", node_id=self._node_id)
        common = {"identity": identity, "settings": runtime.settings, "hook": self._hook}
        server = RpcServer(runtime, scope, **common)  # type: ignore[arg-type]
        dialer = Dialer(runtime, scope, **common)  # type: ignore[arg-type]
        server.handle(APPEND, lambda request, context: self._append(scope, request, context))
        for range_id in self._ranges:
            scope.spawn(self._apply(range_id), name=f"{runtime.name}/apply/{range_id}")
        scope.spawn(self._flush(), name=f"{runtime.name}/flush")
        await server.listen(f"{runtime.name}:{PORT}")
        await self._keep_peers(dialer)

    async def _append(self, scope: TaskScope, request: AppendRequest, context: Context) -> AppendReply:
        log, payload = self._runtime.log, pack(request.client, request.number)
        return AppendReply(await log.append(RangeId(request.range_id), [payload]))

    async def _apply(self, range_id: RangeId) -> None:
        """Tail the log from what is applied, for ever; a broken reader is opened again."""
        while True:
            after = self._store.applied(range_id)
            tail = self._runtime.log.tail(range_id, after=after)
            try:
                async for entries in tail:
                    batch = entries[:1] if buggify("kernel.apply_one") else entries
                    self._witness.applying(self._runtime.name, range_id, after=after, entries=batch)
                    self._store.apply(range_id, batch)
                    after = batch[-1].position
                    if batch is not entries:
                        break
            except UnavailableError:
                probe("kernel.reader_restarted")
            await tail.aclose()  # type: ignore[attr-defined]

    async def _flush(self) -> None:
        """Make what is applied durable, and let the log forget what every node has."""
        runtime = self._runtime
        while True:
            await runtime.clock.sleep(0 if buggify("kernel.flush_early") else FLUSH_EVERY_S)
            reached = {r: self._store.applied(r) for r in self._ranges}
            await self._store.engine.flush()
            for range_id, position in reached.items():
                safe = self._witness.flushed(runtime.name, range_id, position)
                if safe and runtime.rng.chance(1, 8):
                    try:
                        await runtime.log.trim(range_id, upto=safe)
                    except (UnavailableError, LogError):
                        probe("kernel.trim_failed")

    async def _keep_peers(self, dialer: Dialer) -> None:
        """Stay connected, so that heartbeats measure clocks; stop the node when its own is beyond the bound."""
        clock = self._runtime.clock
        while True:
            for address in self._peers:
                if dialer.live(address) is None:
                    try:
                        await dialer.peer(address)
                    except SlackwaterError:
                        probe("kernel.dial_failed")
            await clock.sleep(PEERS_EVERY_S)
            try:
                self._hook.monitor.check(clock.monotonic_ns())
            except ClockError:
                probe("kernel.fenced")
                raise


class ClientProgram:
    """One client: a closed loop that repeats each entry until it is acknowledged."""

    def __init__(
        self, world: World, runtime: SimRuntime, witness: KernelWitness, *, client: int, nodes: list[str]
    ) -> None:
        self._world = world
        self._runtime = runtime
        self._witness = witness
        self._client = client
        self._nodes = nodes
        self._draw = world.tape.stream(f"workload/{runtime.name}")

    async def main(self) -> None:
        """Append numbered entries until the run's time is over."""
        runtime, witness = self._runtime, self._witness
        scope = runtime.scope(f"{runtime.name}/app")
        dialer = Dialer(runtime, scope, identity=Identity(cluster_id="kernel"), settings=runtime.settings)
        number = 0
        while self._world.loop.now_ns < witness.traffic_upto_ns:
            number += 1
            draw = self._draw = self._world.tape.stream(f"op/{runtime.name}/{number}")
            request = AppendRequest(1 + draw.below(witness.ranges), self._client, number)
            think_ns = draw.decay(THINK_MEAN_NS)
            if self._world.allows_operation(runtime.name, number):
                self._world.story(f"{runtime.name} #{number} append to r{request.range_id}")
                witness.asking(self._client, number)
                while not await self._try(dialer, request):
                    await runtime.clock.sleep(draw.decay(RETRY_MEAN_NS) / NS)
                witness.acknowledged(request.range_id, self._client, number)
            await runtime.clock.sleep(think_ns / NS)
        witness.asking(self._client, 0)

    async def _try(self, dialer: Dialer, request: AppendRequest) -> bool:
        address = self._draw.pick(self._nodes)
        try:
            await dialer.call(address, APPEND, request, timeout=self._draw.pick(CALL_TIMEOUTS_S))
        except AmbiguousResult:
            probe("kernel.append_unknown")
            return False
        except SlackwaterError:
            return False
        return True


def _two(number: int) -> bytes:
    return number.to_bytes(2, "big")


def _eight(number: int) -> bytes:
    return number.to_bytes(8, "big")
