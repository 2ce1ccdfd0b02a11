"""What both sides of a call agree on: methods, who is speaking, and the clock they keep in step.

    READ = Method("range.read", ReadRequest, ReadResponse, callers=NODES)
    FEED = StreamMethod("range.feed", FeedRequest, FeedEvent, callers=NODES_AND_OPERATORS)

A method is a name, two types and who may call it, declared once and imported by caller and server; the name travels, the
rest does not. A method without callers cannot be made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from slackwater.errors import DecodeError, UsageError
from slackwater.runtime.deadline import Deadline, for_callee
from slackwater.runtime.rpc.versions import SUPPORTED, ProtocolVersions

if TYPE_CHECKING:
    from slackwater.runtime.access import Certificate, Role
    from slackwater.runtime.seam import Clock

Req = TypeVar("Req")
Res = TypeVar("Res")

HEAVY = 5.0
"""The weight of a call that divides, moves or fetches ranges, or changes what the whole cluster goes by."""


class _Signature(Generic[Req, Res]):
    """A name, what is asked, what is answered and who may ask.

    `weight`: what a call spends of its caller's patience (`rpc.patience`); 0 for what is called all the time.
    `timeless`: the server answers whatever the caller's clock says. A timestamp too far ahead is not followed, as always.
    """

    __slots__ = (
        "_decode_request", "_decode_response", "callers", "name", "request_type", "response_type", "timeless", "weight",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        request_type: type[Req],
        response_type: type[Res],
        *,
        callers: Role,
        timeless: bool = False,
        weight: float = 0.0,
    ) -> None:
        if not callers:
            raise UsageError(f"{name} names no role that may call it; give `callers`", name=name)
        self.name = name
        self.callers = callers
        self.timeless = timeless
        self.weight = weight
        self.request_type = request_type
        self.response_type = response_type
        self._decode_request = msgspec.msgpack.Decoder(request_type).decode
        self._decode_response = msgspec.msgpack.Decoder(response_type).decode

    def decode_request(self, body: msgspec.Raw) -> Req:
        """The request in a body, or `DecodeError`."""
        try:
            return self._decode_request(body)
        except Exception as error:
            raise DecodeError(f"the request of {self.name} does not decode: {error}") from None

    def decode_response(self, body: msgspec.Raw) -> Res:
        """The response in a body, or `DecodeError`."""
        try:
            return self._decode_response(body)
        except Exception as error:
            raise DecodeError(f"the response of {self.name} does not decode: {error}") from None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class Method(_Signature[Req, Res]):
    """A call with one answer."""

    __slots__ = ()


class StreamMethod(_Signature[Req, Res]):
    """A call answered by a stream of `response_type`."""

    __slots__ = ()


class Identity:
    """The node or client that greets. Shared by a node's server and dialer; the cluster id is filled in when the node joins one.

    `node_id` is 0 for a client that is no node. `cluster_id` is "" before bootstrap and then matches any cluster. `versions` are
    the protocol versions that this side announces.
    """

    __slots__ = ("cluster_id", "node_id", "versions")

    def __init__(self, *, cluster_id: str = "", node_id: int = 0, versions: ProtocolVersions = SUPPORTED) -> None:
        self.cluster_id = cluster_id
        self.node_id = node_id
        self.versions = versions


class Measurement(msgspec.Struct, frozen=True):
    """One heartbeat: how far away a peer is and how its clock differs.

    `offset_us` is the peer's wall clock minus ours; the truth lies within `error_us` of it, half the round trip.
    """

    rtt_ns: int
    offset_us: int
    error_us: int
    measured_at_ns: int


class ClockHook(Protocol):
    """Couples the hybrid clock, which lives a layer above, to every message sent and received."""

    def stamp(self) -> int:
        """The timestamp for a message that is about to be sent."""
        ...

    def update(self, ts: int) -> None:
        """Follow the timestamp of a received message; a `ClockError` fails that message only."""
        ...

    def measured(self, peer: str, measurement: Measurement) -> None:
        """A heartbeat came back from `peer` (`n3` for a node, else its address)."""
        ...


class Caller(Protocol):
    """The other end of the connection that a call came by."""

    node_id: int
    certificate: Certificate | None
    roles: Role
    version: int

    @property
    def address(self) -> str:
        """Where it calls from."""
        ...


class Context:
    """What a handler may know about the call it serves, and the server's record of it."""

    __slots__ = (
        "_clock", "_session", "cancelled", "credit", "deadline_ns", "id", "method", "size", "started", "task", "waiter",
        "window",
    )  # fmt: skip

    def __init__(
        self, call_id: int, method: str, session: Caller, clock: Clock, *, size: int, deadline_ns: int
    ) -> None:
        self.id = call_id
        self.method = method
        self._session = session
        self._clock = clock
        self.deadline_ns = deadline_ns  # on our monotonic clock; 0 for none
        self.size = size  # bytes of the request
        self.cancelled = False  # no caller waits for the answer any more
        self.started = False
        self.credit = 0
        self.window = 0
        self.task: Any = None
        self.waiter: Any = None

    @property
    def peer(self) -> str:
        """Where the call comes from, for messages."""
        return self._session.address

    @property
    def node_id(self) -> int:
        """The node that asks; 0 for a client."""
        return self._session.node_id

    @property
    def version(self) -> int:
        """The protocol version that both ends of the connection use."""
        return self._session.version

    @property
    def certificate(self) -> Certificate | None:
        """What the caller showed; None without TLS."""
        return self._session.certificate

    @property
    def roles(self) -> Role:
        """What the caller is; the server has checked already that this suffices for the method."""
        return self._session.roles

    @property
    def user(self) -> str:
        """The name in the caller's certificate; "" without TLS."""
        return "" if self.certificate is None else self.certificate.name

    def remaining(self) -> float | None:
        """Seconds for work on behalf of this call, which ends a little before the deadline cuts it off; None: no deadline."""
        if not self.deadline_ns:
            return None
        return for_callee(max(0.0, (self.deadline_ns - self._clock.monotonic_ns()) / 1e9))

    def deadline(self, *, default_s: float) -> Deadline:
        """The one deadline of everything done on behalf of this call; without one, `default_s` from now."""
        left = self.remaining()
        return Deadline(self._clock, seconds=default_s if left is None else left)
