"""Intents: what a transaction has written and not yet committed.

At most one per key, in the LOCK family under the bare key. It holds the transaction's latest write of the key and, for
reads at a lower sequence of the same transaction, what it had written before:

    LOCK   key -> { txn id, anchor, start, epoch, ts, sequence 7, value, history [(2, v2), (5, v5)] }

    read at sequence 8 sees value;   at 6 sees v5;   at 2 or below sees the committed versions

Rules
    A read sees its own transaction's writes with *lower* sequences and the same epoch. Older epochs count for nothing:
    the transaction has restarted since. A request of an older epoch than the intent's comes from the past and fails.
    Resolving is idempotent and looks at the id and the epoch:
        committed, same epoch     the value moves to DATA at the commit timestamp, which need not be the intent's
        committed, other epoch    the value is discarded: that epoch was abandoned
        aborted                   the intent goes, whatever its epoch
        pending                   the intent moves up to the given timestamp, never down
    No intent, or one of another transaction: nothing happens; it was resolved before.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from slackwater.clock.timestamp import Timestamp
from slackwater.errors import ConflictError, DecodeError, EntryTooLarge, TransactionAborted, UsageError, invariant
from slackwater.model.txns import Intent, Resolution, Txn, TxnStatus
from slackwater.runtime.seam import Family
from slackwater.storage.stats import ZERO, Stats, added, intent_changed
from slackwater.storage.versions import AFTER_VERSIONS, Version, Walk, newest, suffix, tail_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from slackwater.runtime.seam import EngineBatch, Reader

CONFLICTS_MAX = 64
"""Intents that one ConflictError names; the rest will be met on retry."""
CONFLICT_BYTES_MAX = 32 << 10
"""Bytes of intents that one ConflictError names: facts that are larger do not cross the wire."""
HISTORY_MAX = 4096
"""Writes of one key by one transaction."""
LOCK_BLOCK = 256
assert CONFLICTS_MAX <= LOCK_BLOCK, "one block shows all that an error names"


class StoredIntent(msgspec.Struct, frozen=True, array_like=True):
    """The value in the LOCK family."""

    txn_id: bytes
    anchor: bytes
    start: Timestamp
    epoch: int
    ts: Timestamp
    sequence: int
    value: bytes
    history: tuple[tuple[int, bytes], ...] = ()
    """(sequence, value) of earlier writes of this epoch, lowest first."""

    def seen_at(self, sequence: int) -> bytes | None:
        """What its own transaction reads at `sequence`; None when nothing was written before that."""
        if self.sequence < sequence:
            return self.value
        return next((value for written, value in reversed(self.history) if written < sequence), None)

    def written_at(self, sequence: int) -> bytes | None:
        """What exactly that sequence wrote."""
        if sequence == self.sequence:
            return self.value
        return next((value for written, value in self.history if written == sequence), None)

    def named(self, key: bytes) -> Intent:
        """The intent as others are told of it."""
        return Intent(key, self.txn_id, self.anchor, self.start, self.epoch, self.ts)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(StoredIntent)


def encode_intent(intent: StoredIntent) -> bytes:
    """For the LOCK family."""
    assert intent.txn_id, "an intent says whose it is and where its record is"
    assert not intent.history or intent.history[-1][0] < intent.sequence, "sequences grow"
    return _encoder.encode(intent)


def decode_intent(data: bytes) -> StoredIntent:
    """From the LOCK family; anything else is a `DecodeError`."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DecodeError("these bytes are not an intent", reason=str(error)) from None


def intent_of(reader: Reader, key: bytes) -> StoredIntent | None:
    """The intent on a key."""
    raw = reader.get(Family.LOCK, key)
    return None if raw is None else decode_intent(raw)


def intents_in(reader: Reader, start: bytes, end: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
    """(key, stored intent) in [start, end), in order or reversed."""
    cursor = reader.cursor(Family.LOCK, start=start, end=end, reverse=reverse)
    while True:
        keys, values = cursor.chunk(LOCK_BLOCK)
        if not keys:
            return
        yield from zip(keys, values, strict=True)


def is_own(intent: StoredIntent, txn: Txn | None) -> bool:
    """Whether the transaction may ignore or read this intent; refuses requests of an epoch that is over."""
    if txn is None or intent.txn_id != txn.txn_id:
        return False
    if intent.epoch > txn.epoch:
        raise TransactionAborted(
            "this request is of an epoch that its transaction has left; its answer is not waited for",
            epoch=txn.epoch,
            current=intent.epoch,
        )
    return True


def own_value(intent: StoredIntent, txn: Txn, sequence: int) -> bytes | None:
    """What `txn` reads from its own intent at `sequence`; None: read the committed versions."""
    return intent.seen_at(sequence) if intent.epoch == txn.epoch else None


def conflict(intents: list[Intent]) -> ConflictError:
    """The error that names intents in the way, as many as fit a message."""
    assert intents, "a conflict is with something"
    room = CONFLICT_BYTES_MAX
    for count, intent in enumerate(intents):
        room -= len(intent.key) + len(intent.anchor) + RESOLVED_BYTES
        if room < 0 and count:
            intents = intents[:count]
            break
    return ConflictError("intents of other transactions are in the way; push them or wait", intents=tuple(intents))


def conflicts_in(reader: Reader, start: bytes, end: bytes, *, upto: Timestamp, txn: Txn | None = None) -> list[Intent]:
    """Foreign intents in [start, end) with ts <= upto, at most `CONFLICTS_MAX` of them."""
    found: list[Intent] = []
    for key, raw in intents_in(reader, start, end):
        intent = decode_intent(raw)
        if intent.ts <= upto and not is_own(intent, txn):
            found.append(intent.named(key))
            if len(found) == CONFLICTS_MAX:
                break
    assert len(found) <= CONFLICTS_MAX, "an error names a bounded number"
    return found


def next_intent(before: StoredIntent | None, txn: Txn, *, ts: Timestamp, sequence: int, value: bytes) -> StoredIntent:
    """The intent after one more write; the same one again when this write was already done."""
    history: tuple[tuple[int, bytes], ...] = ()
    if before is not None and before.epoch == txn.epoch:
        if sequence <= before.sequence:
            if before.written_at(sequence) != value:
                raise UsageError("a sequence number was used for two different writes", sequence=sequence)
            return before
        history = (*before.history, (before.sequence, before.value))
        if len(history) > HISTORY_MAX:
            raise EntryTooLarge(
                "a transaction writes one key too often; split it", size=len(history), limit=HISTORY_MAX
            )
        ts = Timestamp(max(ts, before.ts))
    assert before is None or before.txn_id == txn.txn_id, "only one's own intent is written over"
    return StoredIntent(txn.txn_id, txn.anchor, txn.start, txn.epoch, ts, sequence, value, history)


RESOLVED_BYTES = 64
"""What resolving one intent costs in a command besides its keys and value."""


class ResolvedIntent(NamedTuple):
    """What resolving did: the change of the statistics, and the version that a commit made."""

    stats: Stats = ZERO
    version: Version | None = None
    found: bool = False
    """Whether there was an intent of that transaction."""
    size: int = 0
    """About how many bytes this adds to a command."""


def resolve(reader: Reader, batch: EngineBatch, key: bytes, resolution: Resolution) -> ResolvedIntent:
    """Apply what became of a transaction to its intent on one key. See the rules above."""
    raw = reader.get(Family.LOCK, key)
    return ResolvedIntent() if raw is None else _resolve(batch, key, raw, resolution, partial(newest, reader))


def resolve_span(
    reader: Reader,
    batch: EngineBatch,
    start: bytes,
    end: bytes,
    resolution: Resolution,
    *,
    max_keys: int = 0,
    max_bytes: int = 0,
    done_before: set[bytes] | None = None,
) -> tuple[list[ResolvedIntent], bytes | None]:
    """Resolve every intent of the transaction in [start, end); (what was done, where to go on or None).

    Keys in `done_before` were resolved in the same batch already, and are left out; what is resolved now is added to it.
    One walk over the locks and, beside it, one over the versions: a commit costs no seek per key.
    """
    done: list[ResolvedIntent] = []
    size = 0
    tail = tail_key(start, end)  # its versions sort beyond the end
    walk = Walk(reader.cursor(Family.DATA, start=start, end=end if tail is None else tail + AFTER_VERSIONS))
    for key, raw in intents_in(reader, start, end):
        if (max_keys and len(done) >= max_keys) or (max_bytes and size >= max_bytes):
            return done, key
        if done_before is not None and key in done_before:
            continue
        result = _resolve(batch, key, raw, resolution, walk.at)
        if result.found:
            if done_before is not None:
                done_before.add(key)
            done.append(result)
            size += result.size
    return done, None


def _resolve(
    batch: EngineBatch, key: bytes, raw: bytes, resolution: Resolution, newest_of: Callable[[bytes], Version | None]
) -> ResolvedIntent:
    intent = decode_intent(raw)
    if intent.txn_id != resolution.txn_id:
        return ResolvedIntent()
    if resolution.status is TxnStatus.PENDING:
        return _push(batch, key, raw, intent, resolution.ts)
    batch.delete(Family.LOCK, key)
    gone = intent_changed(key, before=raw, after=None)
    if resolution.status is TxnStatus.ABORTED or intent.epoch != resolution.epoch:
        return ResolvedIntent(gone, None, found=True, size=RESOLVED_BYTES + len(key))
    prior = newest_of(key)
    # The intent kept everybody else from writing above it, so a commit is always the newest version.
    invariant(
        prior is None or prior.ts < resolution.ts, "A-commit-is-newest", key=key, prior=prior, commit=resolution.ts
    )
    batch.put(Family.DATA, key + suffix(resolution.ts), intent.value)
    version = Version(key, resolution.ts, intent.value)
    size = RESOLVED_BYTES + 2 * len(key) + len(intent.value)
    return ResolvedIntent(gone.plus(added(prior, *version)), version, found=True, size=size)


def _push(batch: EngineBatch, key: bytes, raw: bytes, intent: StoredIntent, ts: Timestamp) -> ResolvedIntent:
    if intent.ts >= ts:
        return ResolvedIntent(found=True)
    moved = encode_intent(msgspec.structs.replace(intent, ts=ts))
    assert ts > intent.ts, "intents move up"
    batch.put(Family.LOCK, key, moved)
    size = RESOLVED_BYTES + len(key) + len(moved)
    return ResolvedIntent(intent_changed(key, before=raw, after=moved), None, found=True, size=size)
