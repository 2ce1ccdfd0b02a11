"""Reading what happened off an applied batch: new versions, and what became of locks.

A command carries effects only (docs/decisions/005); nothing is logged for feeds. A range without listeners never runs
this file. What the batch of one log entry says:

    DATA put      key ++ ~ts -> value     a version was committed: an event
    DATA delete                           garbage was collected: no event
    LOCK put      key -> intent           a transaction locked the key, wrote it again, or was moved up
    LOCK delete   key                     the lock went: committed (then there is a DATA put of the key, too), or aborted

A LOCK delete does not say *whose* lock went, and the listener is called when the engine already holds the new state. So
`LockMap` remembers key -> (transaction, ts) of every lock of the span while a feed is attached. It is filled by one scan of
the LOCK family, which may run beside the live stream, on a snapshot taken at or after the moment the live stream was
joined. Live news are always newer than what the scan brings, so what touched a key first while scanning is right:

    live    put k (T2)        delete m (not known yet)         put n (T3)
    scan                 k (T1): passed over            m (T1): passed over      p (T1): taken

For that the map notes the keys of deletions it could not attribute (`_passed`), until the scan is done. The queue of
transactions (`unresolved.py`) is told of every step; a new lock over another transaction's is one gone and one written,
which also covers two commands of one log entry whose lock writes the batch has folded into one.

A committed version gets its transaction's id from the lock that goes in the same batch. One-phase commits leave no lock
and history stores no id, so the id is "where known" by nature.
"""

from __future__ import annotations

from operator import itemgetter
from struct import unpack
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from slackwater.clock.timestamp import Timestamp
from slackwater.codec.layout import VERSION_BYTES
from slackwater.errors import DecodeError, Overloaded
from slackwater.hooks import probe
from slackwater.model.txns import Intent
from slackwater.protocol.feeds.events import Changes
from slackwater.runtime.seam import Family
from slackwater.storage.versions import newest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from slackwater.feeds.unresolved import Unresolved
    from slackwater.model.spans import Span
    from slackwater.runtime.seam import Reader
    from slackwater.storage.batch import WriteBatch

LOCKS_TRACKED_MAX = 1 << 20
"""Locks that one range's feed remembers; beyond it feeds end (TOO_MANY_LOCKS) and may come back later."""
_MASK = (1 << 64) - 1
_INVERTED = bytes(range(255, -1, -1))
"""A stored timestamp is inverted, so that the newest version of a key comes first."""
NO_CHANGES = Changes([], [], [])
from_bytes = int.from_bytes
_mark_of = itemgetter(slice(-VERSION_BYTES, None))
_key_of = itemgetter(slice(None, -VERSION_BYTES))


class _LockHead(msgspec.Struct, frozen=True, array_like=True):
    """The beginning of a `storage.intents.StoredIntent`: its value and history are not looked at."""

    txn_id: bytes
    anchor: bytes
    start: Timestamp
    epoch: int
    ts: Timestamp


_decoder = msgspec.msgpack.Decoder(_LockHead)


def lock_of(key: bytes, raw: bytes) -> Intent:
    """The intent that a LOCK value holds; anything else is a `DecodeError`."""
    try:
        head = _decoder.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DecodeError("these bytes are not an intent", reason=str(error)) from None
    return Intent(key, head.txn_id, head.anchor, head.start, head.epoch, head.ts)


class Lock(NamedTuple):
    """The transaction that holds a key."""

    txn_id: bytes
    ts: Timestamp


class Effects(NamedTuple):
    """What one log entry did, as feeds see it."""

    changes: Changes
    locked: list[Intent]
    unlocked: list[bytes]
    cleared: list[tuple[bytes, bytes]]
    """Whole spans of the LOCK family that were emptied."""


def read_effects(batch: WriteBatch) -> Effects:
    """The new versions and the lock changes of an applied batch, in the order of its writes."""
    data, locks = batch.writes[Family.DATA], batch.writes[Family.LOCK]
    changes = _changes(data) if data else NO_CHANGES
    if not locks:
        return Effects(changes, [], [], batch.ranges[Family.LOCK])
    return Effects(
        changes,
        [lock_of(key, raw) for key, raw in locks.items() if raw is not None],
        [key for key, raw in locks.items() if raw is None],
        batch.ranges[Family.LOCK],
    )


def _changes(data: dict[bytes, bytes | None]) -> Changes:
    values: list[Any] = list(data.values())
    if not all(values):  # deletions, which are events, or collected garbage, which is none
        data = {key: value for key, value in data.items() if value is not None}
        values = list(data.values())
    stored = list(data)
    marks = b"".join(map(_mark_of, stored))
    if marks == marks[:VERSION_BYTES] * len(stored):  # one transaction's: few writers, or large ones
        timestamps = [~from_bytes(marks[:VERSION_BYTES], "big") & _MASK] * len(stored)
    else:
        timestamps = list(unpack(f">{len(stored)}Q", marks.translate(_INVERTED)))
    return Changes(list(map(_key_of, stored)), timestamps, values)


def with_befores(changes: Changes, reader: Reader) -> Changes:
    """The same versions with what each of them replaced, read from the engine that has applied them."""
    befores = []
    for key, ts in zip(changes.keys, changes.timestamps, strict=True):
        found = newest(reader, key, upto=Timestamp(ts - 1))
        befores.append(b"" if found is None else found.value)
    return msgspec.structs.replace(changes, befores=befores)


class Followed(NamedTuple):
    """What an entry did to the locks of a span."""

    went: dict[bytes, bytes]
    """key -> transaction id of the locks that are no longer there."""
    fresh: list[int]
    """Timestamps of locks on keys that their transaction did not hold before."""


class LockMap:
    """Every lock of a span, by key. Tells the queue of transactions what changes."""

    def __init__(self, span: Span, queue: Unresolved, *, limit: int = LOCKS_TRACKED_MAX) -> None:
        self.span = span
        self._queue = queue
        self._limit = limit
        self._locks: dict[bytes, Lock] = {}
        self._passed: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._locks)

    @property
    def locks(self) -> Mapping[bytes, Lock]:
        """Key by key."""
        return self._locks

    def keys_of(self, txn_id: bytes) -> list[bytes]:
        """The keys a transaction holds here, in order: what to resolve once its fate is known."""
        return sorted(key for key, lock in self._locks.items() if lock.txn_id == txn_id)

    def apply(self, effects: Effects) -> Followed:
        """Follow one entry."""
        went: dict[bytes, bytes] = {}
        fresh: list[int] = []
        for start, end in effects.cleared:
            for key in [k for k in self._locks if start <= k < end]:
                self._remove(key, went)
            if not self._queue.complete:
                probe("feeds.locks_cleared_in_scan")
                raise Overloaded("locks were cleared wholesale while a feed scanned them; register again")
        for key in effects.unlocked:
            if key in self.span:
                self._remove(key, went)
        for intent in effects.locked:
            if intent.key in self.span:
                self._put(intent, went, fresh)
        return Followed(went, fresh)

    def scanned(self, locks: Iterable[tuple[bytes, bytes]]) -> None:
        """What the scan of the LOCK family has met: (key, stored intent)."""
        for key, raw in locks:
            if key in self._locks or key in self._passed or key not in self.span:
                probe("feeds.scan_met_changed_lock")
                continue
            intent = lock_of(key, raw)
            self._remember(intent)
            self._queue.written(intent)

    def finish_scan(self) -> None:
        """The scan is done."""
        self._passed.clear()
        self._queue.finish_scan()

    def shrink(self, span: Span) -> None:
        """Go on with a part of the span, after a split: the other part's locks are another range's business."""
        went: dict[bytes, bytes] = {}
        for key in [k for k in self._locks if k not in span]:
            self._remove(key, went)
        self.span = span

    def _put(self, intent: Intent, went: dict[bytes, bytes], fresh: list[int]) -> None:
        held = self._locks.get(intent.key)
        if held is not None and held.txn_id == intent.txn_id:
            self._locks[intent.key] = Lock(intent.txn_id, intent.ts)
            self._queue.moved(intent)
            return
        if held is not None:
            self._remove(intent.key, went)
        self._remember(intent)
        self._queue.written(intent)
        fresh.append(intent.ts)

    def _remember(self, intent: Intent) -> None:
        if len(self._locks) + len(self._passed) >= self._limit:
            raise Overloaded("more locks in one range than a feed remembers; register again later", limit=self._limit)
        self._locks[intent.key] = Lock(intent.txn_id, intent.ts)

    def _remove(self, key: bytes, went: dict[bytes, bytes]) -> None:
        held = self._locks.pop(key, None)
        if held is not None:
            went[key] = held.txn_id
            self._queue.gone(held.txn_id)
        if not self._queue.complete:
            if len(self._locks) + len(self._passed) >= self._limit:
                raise Overloaded("more locks change than a feed remembers while it scans; register again later")
            self._passed.add(key)  # the scan may still bring what was there before
