"""What travels in RPC frames: one msgpack array per frame, tagged by a small integer.

    caller                                   server
      Hello(magic, versions, cluster, node) ────>
      <───────────────────────────────────── Hello        (or Goodbye with the reason)
      Request(7, "range.read", …, body) ───────>
      OpenStream(8, "range.feed", …, body) ────>
      <───────────────────────────────────── Response(7, body)
      <───────────────────────────────────── Item(8, body), Item(8, body)
      Credit(8, 2) ────────────────────────────>
      <───────────────────────────────────── Fault(8, class, message, facts)
      Ping(sent) ──────────────────────────────>
      <───────────────────────────────────── Pong(sent, wall)

Bodies are encoded in the same pass as their envelope and decoded in two: the envelope once, with the body left as a
`msgspec.Raw` slice, then the body with the decoder of its method. That makes an undecodable body an error of one call,
not of the connection.

Rules
    - Arrays grow at the end only: an older peer ignores what it does not know, and `Hello` never changes its first
      fields, so that any two versions can at least tell each other that they differ.
    - `ts` is the sender's hybrid-clock timestamp, 0 for none. `timeout_us` is time *left*, never a point in time,
      because clocks differ; 0 is no deadline.
    - Identifiers of calls are chosen by the caller, count up from 1, and are never used twice on one connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from slackwater.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable

MAGIC: Final = "slackwater-rpc"
WINDOW_MAX: Final = 4096  # the largest stream window a caller may ask for; the setting's safe range ends here


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The first frame of either side."""

    magic: str
    newest: int  # the highest protocol version that the sender speaks
    cluster_id: str
    node_id: int
    heartbeat_timeout_ms: int  # the sender takes the connection for lost after this much silence
    oldest: int = 0  # the lowest version that the sender speaks; 0: only `newest`


class Goodbye(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The last frame: why the sender closes the connection."""

    error: str
    message: str
    facts: dict[str, Any]


class Ping(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """A heartbeat; `sent_ns` is the sender's monotonic time and comes back unchanged."""

    ts: int
    sent_ns: int


class Pong(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """The answer to a heartbeat, with the server's wall time when it was read."""

    ts: int
    sent_ns: int
    wall_ns: int


class Request(msgspec.Struct, frozen=True, array_like=True, tag=4, gc=False):
    """A call with one answer."""

    id: int
    method: str
    ts: int
    timeout_us: int
    body: msgspec.Raw


class OpenStream(msgspec.Struct, frozen=True, array_like=True, tag=5, gc=False):
    """A call answered by a stream; the server may send `window` items ahead of the credit it is given."""

    id: int
    method: str
    ts: int
    timeout_us: int
    window: int
    body: msgspec.Raw


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=6, gc=False):
    """The caller no longer wants the answer."""

    id: int


class Credit(msgspec.Struct, frozen=True, array_like=True, tag=7, gc=False):
    """The caller consumed this many items of a stream."""

    id: int
    count: int


class Response(msgspec.Struct, frozen=True, array_like=True, tag=8, gc=False):
    """The answer of a unary call."""

    id: int
    ts: int
    body: msgspec.Raw


class Item(msgspec.Struct, frozen=True, array_like=True, tag=9, gc=False):
    """One message of a stream."""

    id: int
    ts: int
    body: msgspec.Raw


class End(msgspec.Struct, frozen=True, array_like=True, tag=10, gc=False):
    """A stream ended well."""

    id: int
    ts: int


class Fault(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """A call or stream ended with an error."""

    id: int
    ts: int
    error: str
    message: str
    facts: dict[str, Any]


FromCaller = Request | OpenStream | Cancel | Credit | Ping | Hello | Goodbye
FromServer = Response | Item | End | Fault | Pong | Hello | Goodbye

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
_from_caller: Callable[[bytes], FromCaller] = msgspec.msgpack.Decoder(FromCaller).decode
_from_server: Callable[[bytes], FromServer] = msgspec.msgpack.Decoder(FromServer).decode


def decode_from_caller(frame: bytes) -> FromCaller:
    """The message in a frame a server received."""
    try:
        return _from_caller(frame)
    except Exception as error:  # msgspec, recursion, bad UTF-8: all mean that these bytes are no message
        raise DecodeError(f"not an RPC frame: {error}") from None


def decode_from_server(frame: bytes) -> FromServer:
    """The message in a frame a caller received."""
    try:
        return _from_server(frame)
    except Exception as error:
        raise DecodeError(f"not an RPC frame: {error}") from None


def raw(body: Any) -> msgspec.Raw:
    """A body to send. The encoder takes any object where a decoded message has `Raw`; this is the one honest lie."""
    return body  # type: ignore[no-any-return]
