"""What the NATS log says on the wire: subjects, positions, acknowledgement subjects, configurations. Pure.

One stream is one log; a range is a subject in it; a message is a block of up to 1024 payloads:

    stream "orders"
      seq 17  orders.e.3   block of 2    positions 17<<10 | 0, 17<<10 | 1      entries of range 3
      seq 18  orders.e.8   block of 1    position  18<<10                      entries of range 8
      seq 19  orders.t.3   "17409"                                             range 3 was trimmed up to 17<<10 | 1

Positions follow the sequence of the stream, which the servers agree on, and the place in the block (L-3).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from slackwater.errors import LogError, ProtocolError, UsageError
from slackwater.log import blocks
from slackwater.model.ids import Position, RangeId
from slackwater.settings import describe

if TYPE_CHECKING:
    from slackwater.log.contract import Entry

INDEX_BITS = 10
PAYLOADS_PER_MESSAGE_MAX = 1 << INDEX_BITS
MESSAGE_OVERHEAD_BYTES = 4096
"""Room kept under the server's max_payload for headers and the block's own header."""
assert 4 * PAYLOADS_PER_MESSAGE_MAX <= MESSAGE_OVERHEAD_BYTES, (
    "the lengths of a full message fit the room kept for them"
)
DUPLICATE_WINDOW_NS = 120_000_000_000
assert describe("log.append_timeout").safe[1] * 1e9 <= DUPLICATE_WINDOW_NS, (
    "a message that is sent again while its append waits is recognized"
)
INCARNATION_KEY = "slackwater.incarnation"
FORMAT_KEY = "slackwater.format"
FORMAT = "1"
_SHORT_ACK_TOKENS = 9
_NAME_FORBIDDEN = set(" .*>/\\\t\r\n")
assert {".", "*", ">"} <= _NAME_FORBIDDEN, "a name is one token of a subject"


def check_stream_name(name: str) -> None:
    """Raise unless the name can be a stream and a subject token."""
    if not name or set(name) & _NAME_FORBIDDEN or not name.isascii() or not name.isprintable():
        raise UsageError("a stream name must be printable ASCII without spaces and . * > / \\", name=name)


def entry_subject(stream: str, range_id: RangeId) -> str:
    """Where the entries of a range go."""
    return f"{stream}.e.{range_id}"


def trim_subject(stream: str, range_id: RangeId) -> str:
    """Where the trims of a range are recorded."""
    subject = f"{stream}.t.{range_id}"
    assert range_of(stream, subject) is None, "what was trimmed is not read back as an entry"
    return subject


def all_subjects(stream: str) -> str:
    """Everything in a stream: entries and trims."""
    return f"{stream}.>"


def range_of(stream: str, subject: str) -> RangeId | None:
    """The range of an entry subject; None for anything else."""
    prefix = f"{stream}.e."
    token = subject.removeprefix(prefix)
    return RangeId(int(token)) if subject.startswith(prefix) and token.lstrip("-").isdigit() else None


def position(sequence: int, index: int) -> Position:
    """The position of payload `index` in the message `sequence`."""
    assert sequence > 0, "JetStream counts from 1"
    assert 0 <= index < PAYLOADS_PER_MESSAGE_MAX, "an index fits its bits"
    return Position(sequence << INDEX_BITS | index)


def sequence_of(at: Position) -> int:
    """The message that holds a position."""
    assert at >= 0, "positions are not negative"
    return at >> INDEX_BITS


assert sequence_of(position(1, PAYLOADS_PER_MESSAGE_MAX - 1)) == 1, "every payload's position names its message"
assert position(1, PAYLOADS_PER_MESSAGE_MAX - 1) < position(2, 0), "positions rise from message to message (L-3)"


def entries(sequence: int, block: bytes) -> list[Entry]:
    """The entries of one message."""
    found = blocks.entries(block, first=sequence << INDEX_BITS)
    _checked(sequence, len(found))
    assert found[-1].position == position(sequence, len(found) - 1), (
        "an entry is read at the position its append was told (L-3)"
    )
    return found


def _checked(sequence: int, count: int) -> int:
    """The number of payloads that a message says it holds, if positions can number them."""
    if sequence < 1 or not 1 <= count <= PAYLOADS_PER_MESSAGE_MAX:
        raise LogError(
            "the log is damaged: a message holds no entries, or too many; restore it from a backup",
            sequence=sequence,
            count=count,
        )
    return count


def last_position(sequence: int, block: bytes) -> Position:
    """The position of the last payload of one message."""
    return position(sequence, _checked(sequence, blocks.count(block)) - 1)


def stored(answer: bytes, *, conflicts: tuple[int, ...]) -> bool:
    """Whether a guarded write was stored: False if the guard did not hold, an error for anything else."""
    try:
        error = json.loads(answer).get("error")
    except (ValueError, AttributeError):
        raise ProtocolError("JetStream answered with something else than JSON", answer=answer[:80]) from None
    if error is not None and error.get("err_code") not in conflicts:
        raise LogError(f"the stream refused a write: {error.get('description')}", code=error.get("err_code"))
    return error is None


class Delivered(NamedTuple):
    """What the reply subject of a delivered message says."""

    stream_sequence: int
    consumer_sequence: int


def delivered(reply: str) -> Delivered:
    """Parse `$JS.ACK.[domain.account.]stream.consumer.deliveries.stream_seq.consumer_seq.time.pending[.token]`."""
    tokens = reply.split(".")
    at = 5 if len(tokens) == _SHORT_ACK_TOKENS else 7
    try:
        return Delivered(int(tokens[at]), int(tokens[at + 1]))
    except (IndexError, ValueError):
        raise ProtocolError("the server sent a message without a JetStream reply subject", reply=reply) from None


def stream_config(name: str, *, replicas: int, incarnation: str) -> dict[str, Any]:
    """The only configuration in which a stream keeps what it acknowledged."""
    assert replicas > 0, "a stream is somewhere"
    return {
        "name": name,
        "subjects": [f"{name}.>"],
        "storage": "file",
        "num_replicas": replicas,
        "retention": "limits",
        "discard": "new",
        "max_age": 0,
        "max_msgs": -1,
        "max_bytes": -1,
        "max_msgs_per_subject": -1,
        "max_consumers": -1,
        "duplicate_window": DUPLICATE_WINDOW_NS,
        "allow_direct": False,
        "metadata": {INCARNATION_KEY: incarnation, FORMAT_KEY: FORMAT},
    }


def consumer_config(name: str, *, start: int, inactive_seconds: float, **more: Any) -> dict[str, Any]:
    """A throw-away consumer that delivers each message once, in order, from sequence `start` on."""
    assert start > 0, "JetStream counts from 1"
    return {
        "name": name,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": start,
        "ack_policy": "none",
        "replay_policy": "instant",
        "max_deliver": 1,
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": int(inactive_seconds * 1e9),
        **more,
    }
