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
    from collections.abc import Callable, Iterator, Sequence

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
_decoder_of_many = msgspec.msgpack.Decoder(list[StoredIntent])
_ARRAY = b"\xdd"
"""What msgpack writes before the number of items, four bytes, and the items themselves."""


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


def decode_intents(data: Sequence[bytes]) -> list[StoredIntent]:
    """Many at once, in their order: a third of what one by one takes."""
    try:
        return _decoder_of_many.decode(_ARRAY + len(data).to_bytes(4, "big") + b"".join(data))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return [decode_intent(one) for one in data]  # names the one that is none


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
    assert intents, "an error names one intent at least"
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
assert CONFLICTS_MAX * RESOLVED_BYTES <= CONFLICT_BYTES_MAX, "an error has room for as many intents as it may name"


class ResolvedIntents(NamedTuple):
    """What resolving did."""

    stats: Stats = ZERO
    """The change of the statistics."""
    found: int = 0
    """Intents of that transaction."""
    size: int = 0
    """About how many bytes this adds to a command."""
    resume: bytes | None = None
    """Where to go on in a span."""


NOT_THERE = ResolvedIntents()


def resolve(reader: Reader, batch: EngineBatch, key: bytes, resolution: Resolution) -> ResolvedIntents:
    """Apply what became of a transaction to its intent on one key. See the rules above."""
    raw = reader.get(Family.LOCK, key)
    return NOT_THERE if raw is None else _resolve(batch, key, raw, resolution, partial(newest, reader))


def resolve_span(
    reader: Reader,
    batch: EngineBatch,
    start: bytes,
    end: bytes,
    resolution: Resolution,
    *,
    max_bytes: int = 0,
    done_before: set[bytes] | None = None,
) -> ResolvedIntents:
    """Resolve every intent of the transaction in [start, end), until they fill `max_bytes` of a command.

    Keys in `done_before` were resolved in the same batch already, and are left out; what is resolved now is added to it.
    One walk over the locks and, beside it, one over the versions: a commit costs no seek per key.
    """
    tail = tail_key(start, end)  # its versions sort beyond the end
    walk = Walk(reader.cursor(Family.DATA, start=start, end=end if tail is None else tail + AFTER_VERSIONS))
    work = _Committing(batch, resolution, walk) if resolution.status is TxnStatus.COMMITTED else None
    cursor = reader.cursor(Family.LOCK, start=start, end=end)
    stats, found, size = ZERO, 0, 0
    while True:
        keys, raws = cursor.chunk(LOCK_BLOCK)
        if not keys:
            break
        if done_before is not None and not done_before.isdisjoint(keys):
            left = [(key, raw) for key, raw in zip(keys, raws, strict=True) if key not in done_before]
            keys, raws = [key for key, _ in left], [raw for _, raw in left]
        if work is not None:
            resume = work.add(keys, raws, max_bytes=max_bytes)
            if resume is not None:
                return work.done(resume)
            if done_before is not None:
                done_before.update(keys)
            continue
        for key, raw in zip(keys, raws, strict=True):
            if max_bytes and size >= max_bytes:
                assert start <= key < end, "what is left lies in the span"
                return ResolvedIntents(stats, found, size, key)
            one = _resolve(batch, key, raw, resolution, walk.at)
            stats, found, size = stats.plus(one.stats), found + one.found, size + one.size
            if done_before is not None:
                done_before.add(key)
    return ResolvedIntents(stats, found, size) if work is None else work.done(None)


class _Committing:
    """Turns intents of a committed transaction into versions: what `_resolve` does, in blocks, with no object for each."""

    def __init__(self, batch: EngineBatch, resolution: Resolution, walk: Walk) -> None:
        self._batch = batch
        self._resolution = resolution
        self._walk = walk
        self._stats = ZERO
        self._found = self._size = 0

    def add(self, keys: list[bytes], raws: list[bytes], *, max_bytes: int) -> bytes | None:
        """Resolve those that are of the transaction; returns the key at which the command was full."""
        txn_id, epoch, ts = self._resolution.txn_id, self._resolution.epoch, self._resolution.ts
        marks, delete, newest_of, size = suffix(ts), self._batch.delete, self._walk.at, self._size
        stored: list[bytes] = []
        values: list[bytes] = []
        replaced, gone = ZERO, 0
        gone_bytes = new_bytes = 0
        full: bytes | None = None
        for key, raw, intent in zip(keys, raws, decode_intents(raws), strict=True):
            if max_bytes and size >= max_bytes:
                full = key
                break
            if intent.txn_id != txn_id:
                continue
            delete(Family.LOCK, key)
            gone += 1
            gone_bytes += len(key) + len(raw)
            size += RESOLVED_BYTES + len(key)
            if intent.epoch != epoch:
                continue
            value, prior = intent.value, newest_of(key)
            _check_newest(prior, key, ts)
            stored.append(key + marks)
            values.append(value)
            size += len(key) + len(value)
            if prior is None and value:
                new_bytes += len(key) + len(marks) + len(value)
            else:
                replaced = replaced.plus(added(prior, key, ts, value))
        self._batch.put_many(Family.DATA, stored, values)
        fresh = len(stored) - replaced.versions
        assert 0 <= fresh <= len(stored), "versions are counted"
        assert gone >= len(stored), "a version comes from an intent"
        plain = Stats(new_bytes, fresh, new_bytes, fresh, fresh, 0, -gone, -gone_bytes)
        self._stats = self._stats.plus(plain).plus(replaced)
        self._found, self._size = self._found + gone, size
        return full

    def done(self, resume: bytes | None) -> ResolvedIntents:
        """All that was done."""
        assert self._stats.intents == -self._found, "an intent that is resolved is gone (I-34)"
        return ResolvedIntents(self._stats, self._found, self._size, resume)


def _check_newest(prior: Version | None, key: bytes, commit: Timestamp) -> None:
    """The intent kept all others from writing above it, so a commit is always the newest version."""
    if prior is not None:
        invariant(prior.ts < commit, "A-commit-is-newest", key=key, prior=prior, commit=commit)


def _resolve(
    batch: EngineBatch, key: bytes, raw: bytes, resolution: Resolution, newest_of: Callable[[bytes], Version | None]
) -> ResolvedIntents:
    intent = decode_intent(raw)
    if intent.txn_id != resolution.txn_id:
        return NOT_THERE
    if resolution.status is TxnStatus.PENDING:
        return _push(batch, key, raw, intent, resolution.ts)
    batch.delete(Family.LOCK, key)
    gone = intent_changed(key, before=raw, after=None)
    if resolution.status is TxnStatus.ABORTED or intent.epoch != resolution.epoch:
        return ResolvedIntents(gone, found=1, size=RESOLVED_BYTES + len(key))
    prior = newest_of(key)
    _check_newest(prior, key, resolution.ts)
    batch.put(Family.DATA, key + suffix(resolution.ts), intent.value)
    size = RESOLVED_BYTES + 2 * len(key) + len(intent.value)
    assert resolution.ts > 0, "a commit has a timestamp"
    return ResolvedIntents(gone.plus(added(prior, key, resolution.ts, intent.value)), found=1, size=size)


def _push(batch: EngineBatch, key: bytes, raw: bytes, intent: StoredIntent, ts: Timestamp) -> ResolvedIntents:
    if intent.ts >= ts:
        return ResolvedIntents(found=1)
    moved = encode_intent(msgspec.structs.replace(intent, ts=ts))
    assert ts > intent.ts, "intents move up"
    batch.put(Family.LOCK, key, moved)
    size = RESOLVED_BYTES + len(key) + len(moved)
    return ResolvedIntents(intent_changed(key, before=raw, after=moved), found=1, size=size)
