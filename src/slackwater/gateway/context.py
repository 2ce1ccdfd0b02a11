"""Who asks a gateway, and until when: the one thing that differs between a call from the network and one in the same process.

    RpcServer ── Context ────┐
                             ├──► gateway.rows.write(Write(…), context)        the same method, the same checks of its content
    SQL, a job ─ LocalCall ──┘

The methods of a gateway's topics are its Python API: each takes a message of `protocol.client` and a `CallContext`, and returns a
message. Whether a caller may use a method at all is checked before: by the RPC server for calls that come by a connection
(`runtime.access`), by the maker of a `LocalCall` for its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from slackwater.runtime.access import ANYBODY
from slackwater.runtime.deadline import Deadline

if TYPE_CHECKING:
    from slackwater.runtime.access import Role
    from slackwater.runtime.seam import Clock


class CallContext(Protocol):
    """What a topic of the gateway may know of the call it serves; `runtime.rpc.Context` is one."""

    @property
    def peer(self) -> str:
        """The address of the caller, for messages."""
        ...

    @property
    def user(self) -> str:
        """The name of the caller; "" where there are no certificates."""
        ...

    @property
    def roles(self) -> Role:
        """What the caller is."""
        ...

    def remaining(self) -> float | None:
        """Seconds for work on behalf of this call; None: no deadline."""
        ...

    def deadline(self, *, default_s: float) -> Deadline:
        """The one deadline of everything done on behalf of this call; without one, `default_s` from now."""
        ...


class LocalCall:
    """A call that is made in the process of the node."""

    def __init__(
        self, clock: Clock, *, timeout_s: float | None = None, user: str = "", roles: Role = ANYBODY, peer: str = "here"
    ) -> None:
        self.peer = peer
        self.user = user
        self.roles = roles
        self._clock = clock
        self._until = None if timeout_s is None else Deadline(clock, seconds=timeout_s)

    def remaining(self) -> float | None:
        """Seconds until the deadline; None: there is none."""
        return None if self._until is None else self._until.remaining()

    def deadline(self, *, default_s: float) -> Deadline:
        """The deadline; without one, `default_s` from now."""
        return Deadline(self._clock, seconds=default_s) if self._until is None else self._until
