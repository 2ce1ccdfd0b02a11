"""The simulated network: connections that behave as TCP does, faults included.

The design's fault model speaks of datagrams: loss, duplication, reordering. Production speaks TCP, and so does this
network, because a fault that production can never show finds only bugs that do not exist:

    a lost packet           is sent again: the connection stalls (a lossy link), and breaks if nothing gets through at
                            all (a cut link). No frame is ever missing in the middle
    a duplicate             cannot happen inside a connection; it is made by RPC retries on another connection
    reordering              happens between connections, never inside one
    a partition             stalls both the data and the acknowledgements. Data flows on an open link even when the way
                            back is cut, and the sender then gives up for want of acknowledgements (one-way partition)
    a power cut             the peer hears nothing (half-open) until it sends: then it times out while the host is
                            down, or is reset once the host is up again, whose new kernel knows no such connection
    a killed process        the kernel lives and resets all its connections at once
    in flight at a crash    frames that left the dead sender still arrive at a live receiver; frames for the dead
                            incarnation never reach the next one (stale connection)

Cost: sending a frame is one queue entry and, if none is pending for its direction, one timer; delivery is one callback
for all frames that are due. No tasks; an idle connection costs nothing.

    Endpoint a ── queue [(arrival, frame) …] ── Link a→b ──► b.handler.frames([…])       (a step of b's domain)
    Endpoint b ── queue ──────────────────────── Link b→a ──► a.handler.frames([…])
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from slackwater.errors import ConnectionLost, EntryTooLarge, UsageError
from slackwater.sim.handles import NS, SimFuture
from slackwater.sim.link import Link

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

    from slackwater.runtime.access import Certificate
    from slackwater.runtime.seam import Address, Connection, FrameHandler
    from slackwater.settings import Settings
    from slackwater.sim.handles import Domain
    from slackwater.sim.loop import SimLoop
    from slackwater.sim.tape import Tape, TapeStream

GIVE_UP_NS_MIN, GIVE_UP_NS_MAX = 4 * NS, 12 * NS
"""How long a sender waits for acknowledgements before its connection times out (TCP_USER_TIMEOUT)."""
CONNECT_TIMEOUT_NS = 3 * NS
SYN_RETRY_NS = NS
FIRST_FREE_PORT = 40_000

FIN: Final = 1
RESET: Final = 2
ACCEPTED: Final = 3
Item = bytes | int


class Host:
    """A machine with a name. `domain` is the incarnation that runs on it, if one does."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.certificate: Certificate | None = None
        """What the machine shows to others, as TLS would verify it."""
        self.domain: Domain | None = None
        self.kernel_up = True
        self.endpoints: dict[int, Endpoint] = {}
        self.ports: dict[Address, Callable[[Connection], FrameHandler]] = {}
        self.next_port = FIRST_FREE_PORT


class Endpoint:
    """One end of a connection. Implements `seam.Connection`."""

    def __init__(self, net: SimNet, host: Host, link: Link, back: Link, *, peer: str, number: int) -> None:
        assert host.domain is not None, "only a running incarnation has connections"
        self.peer = peer
        self.certificate = net.hosts[link.dst].certificate
        self.number = number
        self._net = net
        self._host = host
        self._link = link
        self._back = back
        self._context: Context = host.domain.context
        self._queue: deque[tuple[int, Item]] = deque()
        self._queued_bytes = 0
        self._last_ns = 0
        self._armed = False
        self._stalled = False
        self._giving_up = False
        self._full = False
        self.closed = False
        self.dead = False
        self.other: Endpoint | None = None
        self.handler: FrameHandler | None = None
        self.opened: tuple[Callable[[Connection], FrameHandler], SimFuture] | None = None
        host.endpoints[number] = self

    @property
    def name(self) -> str:
        """Both ends, for reports."""
        return f"{self._host.name}–{self._link.dst}"

    # --- what the owner calls --------------------------------------------------------------------------------------

    @property
    def congested(self) -> bool:
        """Whether more is queued than the high-water mark allows."""
        if self._queued_bytes > self._net.high_water:
            self._full = True
        return self._full

    def trust(self) -> None:
        """Simulated peers send no more than they should: limits of strangers are those of real sockets."""

    def hold(self, *, held: bool) -> None:
        """Simulated peers send no more than they should: what they send meanwhile waits at the receiving session."""

    def send(self, frame: bytes) -> None:
        """Queue a frame."""
        if self.closed or self.dead:
            return
        size = len(frame)
        if size > self._net.frame_bytes_max:
            raise EntryTooLarge(
                "the frame is over rpc.frame_bytes_max; split it", size=size, limit=self._net.frame_bytes_max
            )
        self._queued_bytes += size
        if self._queued_bytes > self._net.high_water:
            self._full = True
        self.put(frame, size)

    def close(self) -> None:
        """End the connection: this side now, the peer after what was sent before."""
        if self.closed or self.dead:
            return
        self.put(FIN, 0)
        self._end("closed by this side")

    # --- the wire --------------------------------------------------------------------------------------------------

    def put(self, item: Item, size: int) -> None:
        """Send a frame or a signal in order."""
        loop = self._net.loop
        arrival_ns = self._link.arrival_ns(loop.now_ns, size)
        if arrival_ns < self._last_ns:
            arrival_ns = self._last_ns
        self._last_ns = arrival_ns
        self._queue.append((arrival_ns, item))
        if not self._armed and not self._stalled:
            self._arm(arrival_ns)

    def _arm(self, when_ns: int) -> None:
        other = self.other
        context = self._net.loop.root.context if other is None or other.dead else other._context
        self._armed = True
        self._net.loop.call_at_ns(when_ns, self._deliver, context=context)

    def rearm(self) -> None:
        """The receiver died and its pending delivery with it: carry on in the world's domain."""
        self._armed = False
        if self._queue and not self._stalled:
            self._arm(max(self._queue[0][0], self._net.loop.now_ns))

    def retransmit(self, now_ns: int) -> None:
        """The link works again."""
        self._stalled = False
        if self._queue and not self._armed:
            self._arm(self._link.arrival_ns(now_ns, 0))

    def _deliver(self) -> None:
        """Hand over everything that is due. Runs as a step of the receiver."""
        self._armed = False
        if self._link.cuts:
            self._stall()
            return
        other = self.other
        if other is None or other.dead or other.closed:
            self._undeliverable()
            return
        now_ns, queue = self._net.loop.now_ns, self._queue
        frames: list[bytes] = []
        signal = 0
        while queue and queue[0][0] <= now_ns and not signal:
            item = queue.popleft()[1]
            if isinstance(item, bytes):
                frames.append(item)
                self._queued_bytes -= len(item)
            else:
                signal = item
        if queue:
            self._arm(max(queue[0][0], now_ns))
        if self._full and self._queued_bytes <= self._net.low_water:
            self._full = False
            self._net.loop.call_soon(self._drained, context=self._context)
        if self._back.cuts and not self.closed:
            self._give_up_later()
        if frames and other.handler is not None:
            other.handler.frames(frames)
        if signal:
            other._signal(signal)

    def _signal(self, signal: int) -> None:
        """The peer opened, closed or reset the connection."""
        if signal == ACCEPTED:
            if self.opened is not None and not self.closed:
                handler, waiter = self.opened
                self.handler = handler(self)
                if not waiter.done():
                    waiter.set_result(None)
        else:
            self._end("the peer closed the connection" if signal == FIN else "connection reset by the peer")

    def _drained(self) -> None:
        if not self.closed and self.handler is not None:
            self.handler.writable()

    def _stall(self) -> None:
        if self.dead:  # its kernel would have sent it again, and there is no kernel any more
            self._queue.clear()
            return
        self._stalled = True
        self._link.stalled.append(self)
        if not self.closed:
            self._give_up_later()

    def _give_up_later(self) -> None:
        if not self._giving_up:
            self._giving_up = True
            wait_ns = self._net.stream.between(GIVE_UP_NS_MIN, GIVE_UP_NS_MAX)
            self._net.loop.call_at_ns(self._net.loop.now_ns + wait_ns, self._give_up, context=self._context)

    def _give_up(self) -> None:
        self._giving_up = False
        peer_gone = self.other is not None and self.other.dead
        if not self.closed and (self._link.cuts or self._back.cuts or peer_gone):
            self._queue.clear()
            self._end("timed out: the peer does not acknowledge")

    def _undeliverable(self) -> None:
        """Something arrived for a connection that is not known: a reset comes back, if the host has a kernel."""
        self._queue.clear()
        self._queued_bytes = 0
        if self.closed or self.dead:
            return
        host = self._net.hosts[self._link.dst]
        if host.kernel_up and not self._back.cuts:
            at_ns = self._back.arrival_ns(self._net.loop.now_ns, 0)
            self._net.loop.call_at_ns(at_ns, self._end, "connection reset by the peer", context=self._context)
        else:
            self._give_up_later()

    def _end(self, reason: str) -> None:
        if self.closed:
            return
        self.closed = True
        self._host.endpoints.pop(self.number, None)
        handler, self.handler = self.handler, None
        if self.opened is not None and not self.opened[1].done():
            self.opened[1].set_exception(
                ConnectionLost(f"cannot connect to {self.peer}: {reason}", address=self.peer, sent=False)
            )
        if handler is not None:
            self._net.loop.call_soon(handler.closed, reason, context=self._context)

    def die(self, *, kernel_lives: bool) -> None:
        """The incarnation that owned this end is gone."""
        self.dead = True
        self.handler = None
        if kernel_lives and not self.closed:
            self.put(RESET, 0)
        if self.other is not None and not self.other.dead:
            self.other.rearm()

    def break_now(self) -> None:
        """A middlebox resets the connection: both ends hear of it, what is in flight is lost."""
        for end in (self, self.other):
            if end is not None and not end.dead and not end.closed:
                end._queue.clear()
                end._queued_bytes = 0
                at_ns = end._back.arrival_ns(self._net.loop.now_ns, 0)
                self._net.loop.call_at_ns(at_ns, end._end, "connection reset", context=end._context)


class SimListener:
    """An open port of a host."""

    def __init__(self, host: Host, address: Address) -> None:
        self._host = host
        self.address = address

    async def close(self) -> None:
        """Stop accepting."""
        self._host.ports.pop(self.address, None)


class SimNet:
    """All hosts, links and connections of a world."""

    def __init__(self, loop: SimLoop, tape: Tape, settings: Settings) -> None:
        self.loop = loop
        self.stream: TapeStream = tape.stream("net")
        self.hosts: dict[str, Host] = {}
        self.links: dict[tuple[str, str], Link] = {}
        self.frame_bytes_max = int(settings["rpc.frame_bytes_max"])
        self.high_water = int(settings["rpc.send_buffer_bytes"])
        self.low_water = self.high_water // 2
        self._tape = tape
        self._numbers = 0

    def host(self, name: str) -> Host:
        """The host of that name, made at first use."""
        known = self.hosts.get(name)
        if known is None:
            known = self.hosts[name] = Host(name)
        return known

    def link(self, src: str, dst: str) -> Link:
        """The directed link between two hosts."""
        known = self.links.get((src, dst))
        if known is None:
            known = self.links[src, dst] = Link(src, dst, self._tape.stream(f"net/{src}-{dst}"))
        return known

    def endpoint(self, host: Host, peer_host: str, peer: str) -> Endpoint:
        """A new end of a connection."""
        self._numbers += 1
        there, back = self.link(host.name, peer_host), self.link(peer_host, host.name)
        return Endpoint(self, host, there, back, peer=peer, number=self._numbers)

    def boot(self, name: str, domain: Domain) -> Host:
        """A new incarnation runs on the host."""
        host = self.host(name)
        host.domain = domain
        host.kernel_up = True
        return host

    def crash(self, name: str, *, kernel_lives: bool) -> None:
        """The incarnation is gone; with the kernel alive, its connections are reset."""
        host = self.host(name)
        host.domain = None
        host.kernel_up = kernel_lives
        host.ports.clear()
        for endpoint in list(host.endpoints.values()):
            endpoint.die(kernel_lives=kernel_lives)
        host.endpoints.clear()

    def heal(self) -> None:
        """Undo every cut and every slowness."""
        for link in self.links.values():
            link.slow_ns = link.loss_percent = 0
            while link.cuts:
                link.heal(self.loop.now_ns)

    def open_connections(self) -> list[Endpoint]:
        """One end of each connection between two live hosts, in order of birth."""
        ends = (end for host in self.hosts.values() for end in host.endpoints.values())
        return sorted((e for e in ends if e.other is not None and e.number < e.other.number), key=lambda e: e.number)


class NodeNet:
    """`seam.Net` of one incarnation."""

    def __init__(self, net: SimNet, host: Host) -> None:
        self._net = net
        self._host = host
        self._domain = host.domain

    async def connect(self, address: Address, handler: Callable[[Connection], FrameHandler]) -> Endpoint:
        """Open a connection or raise `ConnectionLost`."""
        net, target = self._net, address.rpartition(":")[0]
        assert self._domain is self._host.domain, "only a running incarnation opens connections"
        if target not in net.hosts:
            raise ConnectionLost(f"cannot connect to {address}: no such host", address=address, sent=False)
        near = net.endpoint(self._host, target, address)
        waiter = net.loop.create_future()
        near.opened = (handler, waiter)
        at_ns = near._link.arrival_ns(net.loop.now_ns, 0)
        net.loop.call_at_ns(at_ns, _knock, net, near, address, context=net.loop.root.context)
        timer = net.loop.call_at_ns(net.loop.now_ns + CONNECT_TIMEOUT_NS, near._end, "timed out")
        try:
            await waiter
        except BaseException:
            near.close()
            raise
        finally:
            timer.cancel()
        return near

    async def listen(self, address: Address, accept: Callable[[Connection], FrameHandler]) -> SimListener:
        """Accept connections at this host."""
        name, _, port = address.rpartition(":")
        if name != self._host.name:
            raise UsageError(f"cannot listen on {address}: this host is {self._host.name}", address=address)
        if port == "0":
            port, self._host.next_port = str(self._host.next_port), self._host.next_port + 1
            address = f"{name}:{port}"
        if address in self._host.ports:
            raise UsageError(f"cannot listen on {address}: it is taken", address=address)
        self._host.ports[address] = accept
        return SimListener(self._host, address)


def _knock(net: SimNet, near: Endpoint, address: Address) -> None:
    """A connection request arrives. A step of the world."""
    if near.closed or near.dead:
        return
    host = net.hosts[near._link.dst]
    if near._link.cuts or near._back.cuts or not host.kernel_up:
        net.loop.call_at_ns(net.loop.now_ns + SYN_RETRY_NS, _knock, net, near, address)
    elif host.domain is None or address not in host.ports:
        at_ns = near._back.arrival_ns(net.loop.now_ns, 0)
        net.loop.call_at_ns(at_ns, near._end, "connection refused", context=near._context)
    else:
        net.loop.call_soon(_accept, net, near, host, address, context=host.domain.context)


def _accept(net: SimNet, near: Endpoint, host: Host, address: Address) -> None:
    """The listener takes the connection. A step of the listening node."""
    accept = host.ports.get(address)
    if near.closed:
        return
    if accept is None:
        net.loop.call_soon(near._end, "connection refused", context=near._context)
        return
    far = net.endpoint(host, near._link.src, f"{near._link.src}:{near.number}")
    near.other, far.other = far, near
    far.put(ACCEPTED, 0)
    far.handler = accept(far)
