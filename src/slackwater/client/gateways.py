"""The nodes that a client talks to: one at a time, another when that one fails.

    call(resend=ALWAYS)       reads, lookups: a request whose answer is lost is sent again, to the next gateway
    call(resend=IF_UNSENT)    writes: sent again only if the request certainly never left; otherwise the caller is told,
                              and finds out what became of it
    stream                    opened on one gateway; its reader goes on at another from where it broke

Any node will do. The list given to `connect` is where to begin; the answer to `db.cluster` names all others, which are tried
after those. Between rounds over all gateways there is a growing, jittered pause.

Time and tries. `deadline()` begins one operation of an application; everything done for it (lookups, calls, tries at other
gateways, pauses, finding out about a lost commit, undoing) is given that one object, spends from it and ends with it (I-33,
`runtime.retry`). So no call here has a timeout, and no loop a count, of its own.

The client follows the cluster's clocks (`HybridClock`): a call made after an answer has a later timestamp on every node.
"""

from __future__ import annotations

import enum
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from slackwater.client.session import SessionFloor
from slackwater.clock.hlc import HybridClock
from slackwater.clock.hook import FollowClock
from slackwater.codec.rows import VALUE_BYTES_MAX
from slackwater.errors import (
    BelowGcThreshold,
    ConditionFailed,
    ConflictError,
    ConnectionLost,
    DeadlineExceeded,
    ProtocolError,
    RetryableError,
    SlackwaterError,
    TooStale,
    UnavailableError,
    UsageError,
)
from slackwater.model.locality import shared
from slackwater.protocol.client import calls
from slackwater.runtime.credentials import Credentials
from slackwater.runtime.retry import RetryBudget, RetryPolicy
from slackwater.runtime.rpc.dialer import Dialer
from slackwater.runtime.rpc.method import Identity
from slackwater.runtime.tcp import TcpNet, is_loopback
from slackwater.runtime.tls import client_files

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from slackwater.client.url import Target
    from slackwater.model.descriptors import NodeDescriptor
    from slackwater.model.locality import Locality
    from slackwater.runtime.rpc.method import Method, StreamMethod
    from slackwater.runtime.rpc.stream import Stream
    from slackwater.runtime.seam import Address, Runtime, TaskScope
    from slackwater.settings import Settings

Req = TypeVar("Req")
Res = TypeVar("Res")

RETRIES = RetryPolicy(tries_max=100, pause_s_min=0.01, pause_s_max=0.5)
"""Of every operation of a client."""
GREET_TIMEOUT_S = 10.0
GATEWAYS_MAX = 256
"""Addresses a client remembers."""


_DEFINITE = (RetryableError, ConflictError, ConditionFailed, TooStale, BelowGcThreshold, UsageError)


def lost(error: SlackwaterError) -> bool:
    """Whether a request that failed like this may have been executed all the same.

    Also when an answer came and could not be used: its clock was beyond the bound (`ClockError`), or it did not decode.
    """
    if isinstance(error, UnavailableError):
        return isinstance(error, ConnectionLost | DeadlineExceeded) and error.facts.get("sent") is not False
    return isinstance(error, ProtocolError) or not isinstance(error, _DEFINITE)


class Resend(enum.Enum):
    """When a request may be sent a second time."""

    ALWAYS = "always"
    IF_UNSENT = "if unsent"


class Gateways:
    """Calls to whichever node answers. Owned by `scope`."""

    def __init__(
        self,
        runtime: Runtime,
        scope: TaskScope,
        addresses: Sequence[Address],
        *,
        settings: Settings,
        timeout_s: float,
        locality: Locality = (),
    ) -> None:
        self.runtime = runtime
        self.settings = settings
        self.timeout_s = timeout_s
        self.locality = locality
        self.clock = HybridClock(runtime.clock.wall_ns, max_offset_s=settings["clock.max_offset"])
        self.floor = SessionFloor(self.clock)
        self.identity = Identity()
        self._dialer = Dialer(runtime, scope, identity=self.identity, settings=settings, hook=FollowClock(self.clock))
        self._scope = scope
        self._addresses = list(addresses)
        self._at = 0
        self.nodes: dict[int, NodeDescriptor] = {}
        self.row_bytes_max = VALUE_BYTES_MAX
        """Bytes of one row that the cluster takes, as it said when it was greeted; gateways check it too."""

    def deadline(self, seconds: float | None = None) -> RetryBudget:
        """The time and the tries of an operation that an application begins now. Called where it begins, and nowhere else."""
        runtime = self.runtime
        return RetryBudget(runtime.clock, runtime.rng, RETRIES, seconds=self.timeout_s if seconds is None else seconds)

    async def greet(self) -> None:
        """Find one node that answers and take its cluster for ours; the error says what each address said."""
        reasons = []
        deadline = self.deadline()
        for index, address in enumerate(self._addresses):
            share = deadline.remaining() / (len(self._addresses) - index)
            try:
                reply = await self._dialer.call(
                    address, calls.CLUSTER, calls.AskCluster(), timeout=min(GREET_TIMEOUT_S, share)
                )
            except SlackwaterError as error:
                reasons.append(f"{address}: {error.message}")
                continue
            if not reply.cluster_id:
                reasons.append(f"{address}: the node belongs to no cluster yet; run `slackwater init`")
                continue
            self.identity.cluster_id = reply.cluster_id
            self._at = index
            self.learn(reply.nodes)
            self.row_bytes_max = reply.row_bytes_max or VALUE_BYTES_MAX
            return
        raise UnavailableError("no node of the cluster answers; " + "; ".join(reasons))

    def learn(self, nodes: Sequence[NodeDescriptor]) -> None:
        """Remember nodes, to be tried after those that are known."""
        for node in nodes:
            self.nodes[node.node_id] = node
            if node.address not in self._addresses and len(self._addresses) < GATEWAYS_MAX:
                self._addresses.append(node.address)

    @property
    def current(self) -> Address:
        """The gateway that the next call goes to."""
        return self._addresses[self._at]

    def move_on(self, failed: Address) -> None:
        """Use the next gateway, unless another call has moved on already."""
        if self.current == failed:
            self._at = (self._at + 1) % len(self._addresses)

    async def call(
        self,
        method: Method[Req, Res],
        request: Req,
        *,
        deadline: RetryBudget,
        resend: Resend = Resend.ALWAYS,
        sparing: bool = False,
        at: Address | None = None,
        renew: Callable[[Address, Req], Req] | None = None,
    ) -> Res:
        """Ask the current gateway, or `at`; then others, as far as `resend` and the deadline allow.

        With `sparing`, time is left for asking what became of it. With `renew`, what is sent is made for each try anew, by
        the address it goes to.
        """
        tries, maybe_done = 0, False
        last: SlackwaterError | None = None
        while (timeout := deadline.sparing() if sparing else deadline.remaining()) > 0:
            address = self._addresses[self._at] if at is None else at
            made = request if renew is None else renew(address, request)
            try:
                return await self._dialer.call(address, method, made, timeout=timeout)
            except UnavailableError as error:
                last, maybe_done = error, maybe_done or lost(error)
                if resend is Resend.IF_UNSENT and maybe_done:
                    self.move_on(address)
                    raise
            if at is not None:
                raise last
            self.move_on(address)
            tries += 1
            if tries % len(self._addresses) == 0:
                await deadline.back_off()
        raise deadline.exceeded("no gateway answered", last, sent=maybe_done)

    def background(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """Do something that no caller waits for; nothing, when the session is closing."""
        try:
            self._scope.spawn(work, name=name)
        except UsageError:
            work.close()

    async def stream(
        self,
        method: StreamMethod[Req, Res],
        request: Req,
        *,
        at: Address | None = None,
        timeout: float | None = None,
        dial_timeout: float | None = None,
    ) -> tuple[Address, Stream[Res]]:
        """Open a stream on the current gateway, or on `at`; says which one it was. `timeout` bounds its whole life."""
        address = self.current if at is None else at
        stream = await self._dialer.stream(address, method, request, timeout=timeout, dial_timeout=dial_timeout)
        return address, stream

    def near(self, places: Sequence[calls.ReplicaPlace]) -> list[Address]:
        """Addresses of copies, the nearest first: most shared locality, then in the order given."""
        if self.locality:
            places = sorted(places, key=lambda p: -shared(self.locality, p.locality))
        return [place.address for place in places]

    async def close(self) -> None:
        """End every connection."""
        await self._dialer.close()

    async def refresh(self) -> None:
        """Learn nodes that have joined; a gateway that does not answer changes nothing."""
        with suppress(SlackwaterError):
            reply = await self.call(calls.CLUSTER, calls.AskCluster(), deadline=self.deadline(GREET_TIMEOUT_S))
            self.learn(reply.nodes)


def client_net(settings: Settings, target: Target) -> TcpNet:
    """The network of a client: under TLS, or on loopback only."""
    if target.certs is not None:
        return TcpNet(settings, client_tls=Credentials(client_files(target.certs, target.user)).fresh_client)
    far = [address for address in target.addresses if not is_loopback(address)]
    if far:
        raise UsageError(
            "a node on a network is reached with certificates: connect(..., certs=DIR) or ?certs=DIR", address=far[0]
        )
    return TcpNet(settings)
