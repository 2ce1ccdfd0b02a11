"""Transactions as messages and records.

A transaction is known by a 16-byte id and lives on its *anchor* range, the one that holds its first written key.
Its record there decides for all: PENDING, COMMITTED or ABORTED. A missing record means that none has been needed
yet: the first push of such a transaction writes the record it decides on, so the question is settled once.

    id   [ name: 8 bytes, chosen by the client | life: 8 bytes, chosen by the gateway ]

A record is stored under its anchor and the *name*, which is all that a client knows whose first message, a commit, went
unanswered. Everything else compares whole ids: a client that gives one name to two transactions makes two transactions, and
whichever has the record first keeps it. The other can never commit (I-20).

    coordinator ── writes intents ──► ranges
        │  heartbeats, EndTxn ──► record on the anchor range ◄── PushTxn ── others that met an intent

Records stay until a collector removes them; it first raises the range's `txn_floor`, below which a record that is not
there may never be created again. That is what makes a repeated, late EndTxn harmless.
"""

from __future__ import annotations

import enum

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.model.ids import Natural

TXN_ID_BYTES = 16
TXN_NAME_BYTES = 8
"""Of an id, the part that its client chose."""
_NO_LIFE = bytes(TXN_ID_BYTES - TXN_NAME_BYTES)
"""In place of the gateway's part: any transaction of the name. No gateway chooses it."""


def by_name(txn_id: bytes) -> bytes:
    """The id by which a client asks that knows only what it chose."""
    return txn_id[:TXN_NAME_BYTES] + _NO_LIFE


def asks_for(asked: bytes, txn_id: bytes) -> bool:
    """Whether a question about `asked` is about the transaction `txn_id`: that very one, or any of its name."""
    return asked == txn_id or asked == by_name(txn_id)


class TxnStatus(enum.IntEnum):
    """The state a transaction record decides on."""

    PENDING = 0
    COMMITTED = 1
    ABORTED = 2


class Txn(msgspec.Struct, frozen=True, array_like=True):
    """A transaction as its coordinator sends it along with each request."""

    txn_id: bytes
    anchor: bytes
    start: Timestamp
    """When it began: its age in wound-wait, across restarts. Older wins."""
    epoch: Natural
    read_ts: Timestamp
    write_ts: Timestamp
    uncertainty_limit: Timestamp
    sequence: Natural
    """Of the request at hand: a read sees this transaction's own writes with lower sequences."""


class TxnRecord(msgspec.Struct, frozen=True, array_like=True):
    """What the anchor range knows of a transaction."""

    txn_id: bytes
    anchor: bytes
    start: Timestamp
    epoch: Natural
    status: TxnStatus
    write_ts: Timestamp
    """PENDING: it may not commit below this. COMMITTED: its commit timestamp."""
    heartbeat: Timestamp
    lock_keys: tuple[bytes, ...] = ()
    """Where intents are left to resolve, for the cleanup after a lost coordinator."""
    lock_spans: tuple[tuple[bytes, bytes], ...] = ()
    resolved: bool = False
    """Whether all its intents are known to be gone, so that the record may be collected."""


class Intent(msgspec.Struct, frozen=True, array_like=True):
    """An intent as a reader or writer meets it: enough to push its transaction and to resolve it."""

    key: bytes
    txn_id: bytes
    anchor: bytes
    start: Timestamp
    epoch: Natural
    ts: Timestamp


class Resolution(msgspec.Struct, frozen=True, array_like=True):
    """What became of a transaction, for resolving its intents."""

    txn_id: bytes
    epoch: Natural
    status: TxnStatus
    ts: Timestamp = MIN
    """COMMITTED: the commit timestamp. PENDING: move the intent up to here. ABORTED: unused."""
