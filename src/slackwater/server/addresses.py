"""The address book: where the nodes of a cluster are.

Every node writes its descriptor to range 1 when it starts and reads those of all nodes now and then. Before it can read anything
it asks the addresses it was given to join; what they answer is enough to find range 1. It also keeps what it knows in its
own store: the first node of a cluster was given no address to join, and must find the others again after a restart.

Range 1 may be led by a node whose address is not known yet, and then cannot be read to find it out. So a greeting goes both
ways: a caller's greeting says where it is, the answer says which nodes are known, and a node that misses an address greets all
again.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from slackwater.codec.layout import prefix_end, range_local, system
from slackwater.errors import SlackwaterError, UnavailableError, UsageError
from slackwater.hooks import probe
from slackwater.model.descriptors import NodeDescriptor, RangeDescriptor
from slackwater.model.ids import NodeId
from slackwater.model.locality import check_locality
from slackwater.protocol.node.services import HELLO, HelloReply, HelloRequest
from slackwater.runtime.seam import Family
from slackwater.runtime.sync import Event
from slackwater.runtime.tcp import parse_address
from slackwater.storage.batch import WriteBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from slackwater.replica.driver import SystemKv
    from slackwater.runtime.rpc.dialer import Dialer
    from slackwater.runtime.seam import Address, Engine

NODES_MAX = 4096
ADDRESS_BYTES_MAX = 255
STORE_ID_BYTES_MAX = 64
NODE_ID_MAX = 0xFFFFFFFF
"""As `address_key` writes it."""
HELLO_TIMEOUT_S = 2.0

BOOK_KEY = range_local(0, b"addresses")

_decoder = msgspec.msgpack.Decoder(NodeDescriptor)


def address_key(node_id: NodeId) -> bytes:
    """Where a node's descriptor lives."""
    return system("address", node_id.to_bytes(4, "big"))


def check_address(address: str) -> None:
    """An address that may be kept and told to others."""
    if len(address.encode(errors="surrogatepass")) > ADDRESS_BYTES_MAX:
        raise UsageError(f"an address has at most {ADDRESS_BYTES_MAX} bytes", bytes=len(address))
    parse_address(address)


def check_descriptor(node: NodeDescriptor) -> None:
    """A node's descriptor that may be kept and told to others; every node has a copy, so it is small."""
    if not 0 < node.node_id <= NODE_ID_MAX:
        raise UsageError("a node has a positive id", node_id=node.node_id)
    check_address(node.address)
    check_locality(node.locality)
    if len(node.store_id.encode(errors="surrogatepass")) > STORE_ID_BYTES_MAX:
        raise UsageError(f"the id of a store has at most {STORE_ID_BYTES_MAX} bytes", bytes=len(node.store_id))


class AddressBook:
    """Nodes by id, and the way to range 1."""

    def __init__(
        self,
        own_address: Address,
        join: Iterable[Address],
        dialer: Dialer,
        *,
        local_first_range: Callable[[], RangeDescriptor | None],
    ) -> None:
        self.nodes: dict[NodeId, NodeDescriptor] = {}
        self._own_address = own_address
        self._join = [a for a in join if a != own_address]
        self._dialer = dialer
        self._local_first_range = local_first_range
        self._first_range: RangeDescriptor | None = None
        self._kept: dict[NodeId, NodeDescriptor] = {}
        self._greeted = NodeId(0)
        self.own: NodeDescriptor | None = None
        """This node, once it is one."""
        self.missed = Event()
        """Set when an address was asked for that is not known."""

    def resolve(self, node_id: NodeId) -> Address | None:
        """The address of a node."""
        known = self.nodes.get(node_id)
        if known is None:
            self.missed.set()
            return None
        return known.address

    def locality(self, node_id: NodeId) -> tuple[tuple[str, str], ...]:
        """Where a node is, as far as is known."""
        known = self.nodes.get(node_id)
        return () if known is None else known.locality

    def learn(self, nodes: Iterable[NodeDescriptor]) -> None:
        """Take over newer descriptors; one that is no descriptor is passed over."""
        for node in nodes:
            try:
                check_descriptor(node)
            except UsageError:
                probe("addresses.bad_descriptor")
                continue
            known = self.nodes.get(node.node_id)
            if (known is None and len(self.nodes) < NODES_MAX) or (
                known is not None and known.started_at <= node.started_at
            ):
                self.nodes[node.node_id] = node

    def recall(self, engine: Engine) -> None:
        """Take over what a former life of this node knew."""
        raw = engine.get(Family.LOCAL, BOOK_KEY)
        if raw is not None:
            self.learn(msgspec.msgpack.decode(raw, type=list[NodeDescriptor]))

    async def keep(self, engine: Engine) -> None:
        """Write down what is known, if that is news. Durably: a node without replicas has no other reason to flush."""
        if self._kept != self.nodes:
            known = dict(self.nodes)
            batch = WriteBatch()
            batch.put(Family.LOCAL, BOOK_KEY, msgspec.msgpack.encode(list(known.values())))
            engine.write(batch)
            await engine.flush()
            self._kept = known

    async def refresh(self, kv: SystemKv) -> None:
        """Read every node's descriptor."""
        prefix = system("address")[:-2]
        rows = await kv.scan(prefix, prefix_end(prefix))
        self.learn(_decoder.decode(value) for _, value in rows)

    async def publish(self, kv: SystemKv, own: NodeDescriptor) -> None:
        """Write this node's descriptor."""
        await kv.put(address_key(own.node_id), msgspec.msgpack.encode(own))
        self.learn([own])

    async def first_range(self) -> RangeDescriptor:
        """The descriptor of range 1: from here if it is here, else from a node that has it, else the newest rumor."""
        local = self._local_first_range()
        if local is not None:
            return local
        last: SlackwaterError | None = None
        for address in self._candidates():
            try:
                reply = await self.greet(address)
            except SlackwaterError as error:
                last = error
                continue
            # A node that has a replica knows; others repeat what they once heard, and the range may have moved since.
            if reply.first_range is not None and reply.node.node_id in reply.first_range.replicas:
                return reply.first_range
        if self._first_range is not None:
            return self._first_range
        probe("addresses.no_first_range")
        raise UnavailableError("no node that was asked knows the first range", cause=str(last)) from last

    async def greet(self, address: Address) -> HelloReply:
        """Ask a node what it knows, and learn it."""
        reply = await self._dialer.call(address, HELLO, HelloRequest(self.own), timeout=HELLO_TIMEOUT_S)
        self.learn([*reply.nodes, reply.node] if reply.node.node_id else reply.nodes)
        if reply.first_range is not None and (
            self._first_range is None or reply.first_range.generation >= self._first_range.generation
        ):
            self._first_range = reply.first_range
        return reply

    async def greet_all(self) -> None:
        """Ask all nodes that may know addresses, one after the other; one that does not answer is passed over."""
        for address in self._candidates():
            with suppress(SlackwaterError):
                await self.greet(address)

    async def greet_next(self) -> None:
        """Greet one of the known nodes, each in its turn: one that has lost every address learns ours from it."""
        others = [n for n in sorted(self.nodes) if self.nodes[n].address != self._own_address]
        self._greeted = next((n for n in others if n > self._greeted), others[0] if others else NodeId(0))
        address = self.resolve(self._greeted) if others else None
        if address is not None:
            with suppress(SlackwaterError):
                await self.greet(address)

    def known_first_range(self) -> RangeDescriptor | None:
        """What this node would tell others."""
        return self._local_first_range() or self._first_range

    def _candidates(self) -> list[Address]:
        """Replicas of range 1 first, then all known nodes, then the addresses given at start."""
        holders = self._first_range.replicas if self._first_range else ()
        ordered = [self.resolve(n) for n in holders] + [n.address for n in self.nodes.values()] + self._join
        return list(dict.fromkeys(a for a in ordered if a and a != self._own_address))
