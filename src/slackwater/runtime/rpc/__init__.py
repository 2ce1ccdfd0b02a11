"""RPC: many calls and streams on one connection, the same code on sockets and in the simulator.

    caller                                                server
    Dialer ── Peer ── Session ── Connection ~~~~ Connection ── Session ── ServerSession ── RpcServer
      │        │ Call (a future)                                              │ Context, a task
      │        └ Stream (a window)                                            └ Handler
      └ one Peer per address                                     Method / StreamMethod: names and types, shared

What a user of this folder may rely on
    - What a handler raises is raised at the caller as the same class of `errors.py`.
    - A call ends: by an answer, an error, its deadline, its cancellation or the loss of the connection, which a silent
      peer brings about within `rpc.heartbeat_timeout`. What ended at the caller is cancelled at the server.
    - `ConnectionLost` and `DeadlineExceeded` carry `sent`: False means that the request never left this process.
    - Nothing is retried here. Only the caller knows whether a request may be repeated.
    - Everything is bounded: calls per connection, items per stream, bytes per frame, connections per server and dialer.
    - A `ClockHook` sees every message in both directions, so the hybrid clocks of a cluster follow each other.

Files: `wire` (frames), `faults` (errors on the wire), `method` (what both sides share), `session` (handshake, silence),
`peer` and `stream` (calling), `serving` and `server` (answering), `dialer` (connections), `deadlines`, `versions`
(which protocol version a connection uses).
"""

from slackwater.runtime.rpc.dialer import Dialer
from slackwater.runtime.rpc.method import ClockHook, Context, Identity, Measurement, Method, StreamMethod
from slackwater.runtime.rpc.peer import Peer
from slackwater.runtime.rpc.server import RpcServer
from slackwater.runtime.rpc.stream import Stream
from slackwater.runtime.rpc.versions import SUPPORTED, ProtocolVersions

__all__ = [
    "SUPPORTED",
    "ClockHook",
    "Context",
    "Dialer",
    "Identity",
    "Measurement",
    "Method",
    "Peer",
    "ProtocolVersions",
    "RpcServer",
    "Stream",
    "StreamMethod",
]
