"""The recorded history of a run: what clients asked, what they were told, and what the store ended up holding.

Two kinds of fact meet here, and every end-of-run oracle is a comparison of the two:

    clients said            true time, in ns                          the store holds
    ------------            ----------------------------------        ---------------------------
    T1 wrote a=1     ok     |--------|                                V(a) = [ (ts 12, 1), (ts 30, 2) ]
    T2 read  a=1     ok            |-----|                            V(b) = [ (ts 30, 7) ]
    T3 wrote a=2 b=7 unknown          |------------ …

Rules for recording
    * Times are *true* time (the simulator's own clock), never a node's. A precedes B in real time when A returned
      strictly before B was invoked.
    * `ok` means the client was told so. `failed` means it was told that nothing happened. Everything else is
      `unknown`, and an unknown operation has no return time: it may take effect at any later moment, or never.
    * A transaction that was retried is recorded once, with the reads and writes of its *last* attempt, and the
      invocation time of its first.
    * Reads that a transaction made after its own writes say so: `after` counts the writes it had issued by then.
    * `historical` marks reads that asked for the past (AS OF, follower, bounded staleness): they must be right at
      `read_ts` (I-15) but owe nothing to real time.
    * V(k) is complete. The watcher collects it from applied commits, so garbage collection does not reach it.
    * Versions at or below `loaded_upto` were put there before the run and need no writer in the history.

All records are frozen msgspec structs without garbage-collector tracking; a history writes itself to JSON and back, so
a failing run can be kept and judged again by another version of the checkers.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from slackwater.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Value = bytes | None
"""`None` is absence: never written, or deleted."""


class OperationOutcome(enum.Enum):
    """What the client knows about an operation."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


class OpKind(enum.Enum):
    """What a single-key operation does."""

    READ = "read"
    WRITE = "write"
    CAS = "cas"


class RegisterOp(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A single-key operation on a register, judged by `check_registers`."""

    op_id: int
    client: int
    key: bytes
    kind: OpKind
    invoked_ns: int
    returned_ns: int | None
    """None exactly when the outcome is unknown."""
    outcome: OperationOutcome
    value: Value = None
    """What a read saw; what a write or a swap put (None deletes); what a `swapped=False` CAS found instead."""
    expected: Value = None
    """What a CAS demanded to find."""
    swapped: bool = True
    """False for a CAS that answered, definitely, that it found `value` and not `expected`: an `ok` observation."""


class Read(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One key read inside a transaction."""

    key: bytes
    value: Value
    version: int | None = None
    """Timestamp of the version seen, when the store told; 0 for none."""
    after: int = 0
    """How many of the transaction's own writes had been issued before this read."""


class ScanOp(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A span [start, end) read inside a transaction. A scan cut by a limit ends just after its last row."""

    start: bytes
    end: bytes
    rows: tuple[tuple[bytes, bytes], ...]
    after: int = 0


class WriteOp(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One key written; the last write of a key in a transaction is the one that counts."""

    key: bytes
    value: Value


class TxnOp(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A transaction over keys and values: for `check_intervals`, `check_bank`, `check_ring`, `check_long_fork`."""

    txn_id: int
    client: int
    invoked_ns: int
    returned_ns: int | None
    """None exactly when the outcome is unknown."""
    outcome: OperationOutcome
    reads: tuple[Read, ...] = ()
    scans: tuple[ScanOp, ...] = ()
    writes: tuple[WriteOp, ...] = ()
    commit_ts: int | None = None
    """Where the store says it committed; may be missing, and is not believed without its versions."""
    read_ts: int | None = None
    """The one timestamp that a read-only transaction used, when known."""
    historical: bool = False
    """It asked for the past."""

    def seen(self) -> dict[bytes, Value]:
        """The values read before any own write, by key; rows of scans included."""
        found: dict[bytes, Value] = {}
        for scan in self.scans:
            if scan.after == 0:
                found.update(scan.rows)
        found.update((read.key, read.value) for read in self.reads if read.after == 0)
        return found


class ListOp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An append (`element` is set) or a read of a whole list (`elements` is set)."""

    key: bytes
    element: int | None = None
    elements: tuple[int, ...] | None = None


class ListTxn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A list-append transaction, its operations in program order, judged by `check_list_append`."""

    txn_id: int
    client: int
    invoked_ns: int
    returned_ns: int | None
    outcome: OperationOutcome
    ops: tuple[ListOp, ...]


class ObservedVersion(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One committed version of a key."""

    ts: int
    value: Value
    txn_id: int | None = None
    """The transaction that wrote it, when the watcher knows."""


class KeyVersions(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """V(k): the committed versions of one key, oldest first, strictly increasing in time."""

    key: bytes
    versions: tuple[ObservedVersion, ...]


class VersionHistory(msgspec.Struct, frozen=True, omit_defaults=True):
    """V: every committed version of every key, in key order."""

    keys: tuple[KeyVersions, ...] = ()
    loaded_upto: int = 0
    """Versions at or below this timestamp were loaded before the run."""

    @staticmethod
    def of(versions: Mapping[bytes, Iterable[ObservedVersion]], *, loaded_upto: int = 0) -> VersionHistory:
        """Build from versions in any order; two versions of one key at one timestamp are refused."""
        rows = []
        for key in sorted(versions):
            ordered = tuple(sorted(versions[key], key=lambda version: version.ts))
            for before, after in pairwise(ordered):
                if before.ts == after.ts:
                    raise UsageError("a key has two versions at one timestamp; record each once", key=key, ts=after.ts)
            if ordered and ordered[0].ts <= 0:
                raise UsageError("version timestamps start at 1; 0 means none", key=key, ts=ordered[0].ts)
            rows.append(KeyVersions(key, ordered))
        return VersionHistory(tuple(rows), loaded_upto)

    def within(self, *, start: bytes, end: bytes) -> VersionHistory:
        """Only the keys in [start, end): a workload is judged on the keys it owns."""
        names = [row.key for row in self.keys]
        return VersionHistory(self.keys[bisect_left(names, start) : bisect_left(names, end)], self.loaded_upto)

    def value_at(self, key: bytes, *, ts: int) -> Value:
        """What a read of `key` at `ts` must return (the slow, obvious way; checkers build an index)."""
        for row in self.keys:
            if row.key == key:
                place = bisect_right(row.versions, ts, key=lambda version: version.ts)
                return row.versions[place - 1].value if place else None
        return None


class RecordedHistory(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything recorded in one run: the artifact of a failure."""

    register_ops: tuple[RegisterOp, ...] = ()
    txns: tuple[TxnOp, ...] = ()
    list_txns: tuple[ListTxn, ...] = ()
    versions: VersionHistory = VersionHistory()

    def to_json(self) -> bytes:
        """For the artifact; `from_json` gives back an equal history."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_json(data: bytes) -> RecordedHistory:
        """Read an artifact back."""
        return msgspec.json.decode(data, type=RecordedHistory)
