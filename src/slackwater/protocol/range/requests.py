"""What may be asked of a range.

A `Batch` carries requests for one range with one header. The leaseholder evaluates all of them against one state and
proposes at most one command, so a batch is atomic and isolated on its own; a transaction's batches are tied together by
intents and the transaction record.

    reads      Get Scan ReverseScan Export Refresh                    (span latches, no log entry)
    bulk       ScanArrow ExportArrow                                  (the same, as columns: see `bulk`)
    closing    QueryResolved CloseNow
    writes     Put ConditionalPut InitPut Increment Delete DeleteRange PutRows FillRows
    txn        EndTxn HeartbeatTxn PushTxn QueryTxn ResolveIntents
    range      Split Subsume Merge AbortMerge ChangeReplicas Barrier ComputeChecksum LeaseInfo
    leases     RequestLease TransferLease
    history    RaiseGcThreshold GcVersions GcSpan GcTxnRecords

Interval ends are in the names. Keys are logical keys; no request names a version except through timestamps.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.model.descriptors import Lease, LeaseAppliedIndex, RangeDescriptor
from slackwater.model.ids import Natural, NodeId, Position, RangeId, Small, Whole
from slackwater.model.protection import Kept
from slackwater.model.txns import Intent, Resolution, Txn, TxnRecord, TxnStatus
from slackwater.protocol.range.bulk import Blocks as Blocks
from slackwater.protocol.range.bulk import ExportArrow as ExportArrow
from slackwater.protocol.range.bulk import ScanArrow as ScanArrow
from slackwater.protocol.range.served import Served

BATCH_REQUESTS_MAX = 10_000
"""Requests in one batch."""


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of the tagged unions below: compact arrays on the wire, the class name as the tag."""


# --- reads ---------------------------------------------------------------------------------------------------------


class Get(_Message, frozen=True):
    """The value of one key."""

    key: bytes


class Scan(_Message, frozen=True):
    """Keys and values of `[start, end)` in order, up to the batch's limits."""

    start: bytes
    end: bytes


class ReverseScan(_Message, frozen=True):
    """Keys and values of `[start, end)` from the end."""

    start: bytes
    end: bytes


class Export(_Message, frozen=True):
    """Every version in `[start, end)` with after < ts <= upto: for feeds, backups, seals."""

    start: bytes
    end: bytes
    after: Timestamp
    upto: Timestamp


class Refresh(_Message, frozen=True):
    """Fails if anything in `[start, end)` was written in (after, upto]; otherwise the read holds at `upto` too."""

    start: bytes
    end: bytes
    after: Timestamp
    upto: Timestamp


# --- writes --------------------------------------------------------------------------------------------------------


class Put(_Message, frozen=True):
    """Set a key."""

    key: bytes
    value: bytes


class ConditionalPut(_Message, frozen=True):
    """Set a key if it now has `expected` (None: no value)."""

    key: bytes
    value: bytes
    expected: bytes | None


class InitPut(_Message, frozen=True):
    """Set a key unless it already has another value; the same value is fine."""

    key: bytes
    value: bytes


class Increment(_Message, frozen=True):
    """Add to a key that holds a signed 64-bit integer (absent counts as 0)."""

    key: bytes
    by: Whole


class Delete(_Message, frozen=True):
    """Remove a key."""

    key: bytes


class DeleteRange(_Message, frozen=True):
    """Remove every key of `[start, end)`, up to the batch's limits."""

    start: bytes
    end: bytes


class PutRows(_Message, frozen=True):
    """Set many keys at once: sorted, unique keys and their values. With `must_be_new`, any existing key fails all."""

    keys: list[bytes]
    values: list[bytes]
    must_be_new: bool = False


class FillRows(_Message, frozen=True):
    """Set those of many keys that were not written after `above`: sorted, unique keys and their values, no transaction.

    For entries of rows as they were at `above`, of an index whose writers keep it up since then. An intent on one of the keys is
    a conflict. Answers with the keys that were left out (`Rows`): written after `above`, and by now with another value. With
    `alone`, a key that has another value since before is left out as well: it may be another row's. May be sent twice.
    """

    keys: list[bytes]
    values: list[bytes]
    above: Timestamp
    alone: bool = False


# --- transactions --------------------------------------------------------------------------------------------------


class EndTxn(_Message, frozen=True):
    """Commit or roll back. Names every intent, so that any node can clean up."""

    commit: bool
    lock_keys: tuple[bytes, ...] = ()
    lock_spans: tuple[tuple[bytes, bytes], ...] = ()
    deadline: Timestamp | None = None
    """The commit timestamp must be below this (descriptor leases)."""
    one_phase: bool = False
    """The writes of this batch are all that the transaction made in this range: they are written as values, with no intents.

    Intents that it has elsewhere are in the locks, as ever."""
    can_forward: bool = False
    """The transaction read nothing, so it may commit at a higher timestamp without a refresh."""


class HeartbeatTxn(_Message, frozen=True):
    """Say that the coordinator lives; creates the record if there is none. Answers with the record."""


class PushTxn(_Message, frozen=True):
    """Ask what became of a transaction, and force the matter where the pusher may.

    `abort` wants it out of the way; otherwise its timestamp must move above `above`. Wound-wait: an older pusher wins
    at once; a younger one waits until the pushee ends or stops heartbeating. `force` is for the pushee's own
    coordinator, settling an ambiguous commit.
    """

    pushee: Intent
    pusher_start: Timestamp
    pusher_id: bytes
    above: Timestamp
    abort: bool
    force: bool = False
    wait_ms: Small = 0
    """How long the record's range may hold this push back while it has to wait."""


class QueryTxn(_Message, frozen=True):
    """Read a transaction record."""

    txn_id: bytes
    anchor: bytes


class ResolveIntents(_Message, frozen=True):
    """Apply what became of a transaction to its intents on these keys and spans."""

    resolution: Resolution
    keys: tuple[bytes, ...] = ()
    spans: tuple[tuple[bytes, bytes], ...] = ()
    awaited: bool = False
    """Whether a change feed waits for it: beside bulk reads it goes sooner then."""


class ForgetLocks(_Message, frozen=True):
    """Every intent of this finished transaction is gone: its record may be collected."""

    txn_id: bytes
    anchor: bytes


# --- ranges --------------------------------------------------------------------------------------------------------


class Split(_Message, frozen=True):
    """Divide the range at a key."""

    at: bytes
    right_id: RangeId


class Subsume(_Message, frozen=True):
    """Freeze this range, so that its left neighbour can take it over. Replicated; ends by the merge or by Thaw."""

    left_id: RangeId
    left_generation: Natural


class Thaw(_Message, frozen=True):
    """End a freeze whose merge can no longer happen: the left side's generation has moved on, as applied on this store."""

    left_generation_passed: Natural = 0
    """What the caller was told. The range checks for itself; this only tells apart a mistake from a moment too early."""


class Merge(_Message, frozen=True):
    """Take over the frozen right neighbour."""

    right: RangeDescriptor
    frozen: SubsumeResult


class AbortMerge(_Message, frozen=True):
    """Make sure that a merge proposed under `generation` can never apply, by raising the generation past it."""

    generation: Natural


class ChangeReplicas(_Message, frozen=True):
    """Replace the set of replicas, if the descriptor still has `generation`."""

    replicas: tuple[NodeId, ...]
    generation: Natural


class Barrier(_Message, frozen=True):
    """An empty command: once it is applied, everything proposed before is applied or dead."""


class ComputeChecksum(_Message, frozen=True):
    """Have every replica compute the digest of its state at this point of the log."""

    checksum_id: bytes


class LeaseInfo(_Message, frozen=True):
    """Asks for the lease as this replica knows it; with `by_holder`, as the leaseholder itself knows it, frozen or not."""

    by_holder: bool = False


class QueryResolved(_Message, frozen=True):
    """How far `[start, end)` can be read without meeting an intent, on the replica that is asked. Needs no lease."""

    start: bytes
    end: bytes


class CloseNow(_Message, frozen=True):
    """Close `at`, but nothing in the future, and publish it: followers of `[start, end)` may serve it at once."""

    start: bytes
    end: bytes
    at: Timestamp


class RequestLease(_Message, frozen=True):
    """Take the lease, given that `prev_sequence` is still the current one and has ended."""

    lease: Lease
    prev_sequence: Natural


class TransferLease(_Message, frozen=True):
    """Hand the lease to another replica."""

    to: NodeId
    life: Natural = 0
    """Of that node's process, as it said itself; 0: the one that its liveness record names."""


class RaiseGcThreshold(_Message, frozen=True):
    """Refuse reads at or below this from now on, but for what protections keep. Always before anything is deleted.

    The leaseholder decides what is kept, by the protections it knows, and refuses a threshold above what they, the time to
    live and its clock allow. A threshold that is reached already lets go of what no protection needs any more.
    """

    threshold: Timestamp


class GcVersions(_Message, frozen=True):
    """Remove versions that no read above the threshold, and none at a kept instant, can see."""

    keys: tuple[tuple[bytes, tuple[Timestamp, ...]], ...] = ()
    """(key, timestamps): each of these keys keeps its newest version."""
    vanishing: tuple[tuple[bytes, tuple[Timestamp, ...]], ...] = ()
    """The same for keys of which nothing stays: their writers wait."""


class GcSpan(_Message, frozen=True):
    """Remove a span in which nothing has to stay, by one range tombstone."""

    start: bytes
    end: bytes


class GcTxnRecords(_Message, frozen=True):
    """Remove finished, resolved transaction records that began before `before`: those named, or any when none is."""

    before: Timestamp
    records: tuple[tuple[bytes, bytes], ...] = ()
    """(anchor, transaction id)"""


Request: TypeAlias = (
    Get | Scan | ReverseScan | Export | Refresh | ScanArrow | ExportArrow
    | Put | ConditionalPut | InitPut | Increment | Delete | DeleteRange | PutRows | FillRows
    | EndTxn | HeartbeatTxn | PushTxn | QueryTxn | ResolveIntents | ForgetLocks
    | Split | Subsume | Thaw | Merge | AbortMerge | ChangeReplicas | Barrier | ComputeChecksum | LeaseInfo
    | RequestLease | TransferLease | QueryResolved | CloseNow
    | RaiseGcThreshold | GcVersions | GcSpan | GcTxnRecords
)  # fmt: skip


# --- results -------------------------------------------------------------------------------------------------------


class Done(_Message, frozen=True):
    """Says that a request has succeeded, and no more."""


class Value(_Message, frozen=True):
    """A value and when it was written (None: there is none)."""

    value: bytes | None
    ts: Timestamp = MIN


class Rows(_Message, frozen=True):
    """Keys and values; `resume` is where to go on when a limit ended the scan early."""

    keys: list[bytes]
    values: list[bytes]
    resume: bytes | None = None


class Versions(_Message, frozen=True):
    """Versions in key order, oldest first within a key; an empty value is a deletion."""

    keys: list[bytes]
    timestamps: list[int]
    values: list[bytes]
    resume: bytes | None = None


class Number(_Message, frozen=True):
    """The new value of a counter, or a count."""

    number: int
    more: bool = False  # of resolved intents: some are left, for another request; these filled a log entry
    resume: bytes | None = None  # of a span whose intents filled a log entry: where to go on


class Passed(_Message, frozen=True):
    """A barrier applied: in this range, at this index."""

    range_id: RangeId
    lai: LeaseAppliedIndex


class TxnResult(_Message, frozen=True):
    """A transaction record; None when there is none."""

    record: TxnRecord | None


class Pushed(_Message, frozen=True):
    """What became of a pushed transaction."""

    resolution: Resolution
    ambiguous: bool = False
    """Aborted, says a record that is not there: it may have committed, been resolved everywhere and been collected."""


class Committed(_Message, frozen=True):
    """The outcome of EndTxn."""

    status: TxnStatus
    commit_ts: Timestamp
    resolved: bool = False
    """Nothing is left to do: it has no intents any more."""
    left_keys: tuple[bytes, ...] = ()
    left_spans: tuple[tuple[bytes, bytes], ...] = ()
    """Otherwise: where its intents are; empty when that was not asked again."""


class SubsumeResult(_Message, frozen=True):
    """The state in which a range was frozen."""

    position: Position
    lai: LeaseAppliedIndex
    closed: Timestamp
    read_floor: Timestamp
    freeze_generation: Natural
    gc_threshold: Timestamp
    txn_floor: Timestamp
    stats: tuple[Whole, ...]
    kept: tuple[Kept, ...] = ()


class LeaseResult(_Message, frozen=True):
    """The lease and where its range stands."""

    lease: Lease
    descriptor: RangeDescriptor
    applied: LeaseAppliedIndex
    closed: Timestamp


class ResolvedResult(_Message, frozen=True):
    """The resolved timestamp of a span on one replica."""

    ts: Timestamp
    closed: Timestamp
    held_by: Intent | None = None
    """The oldest intent, when that and not `closed` is the limit."""


class ClosedResult(_Message, frozen=True):
    """What is closed on every replica that has applied up to `lai`."""

    lai: LeaseAppliedIndex
    closed: Timestamp


class Digest(_Message, frozen=True):
    """The digest of a replica's state."""

    digest: bytes


class SplitResult(_Message, frozen=True):
    """Both halves."""

    left: RangeDescriptor
    right: RangeDescriptor


Result: TypeAlias = (
    Done | Value | Rows | Versions | Number | TxnResult | Pushed | Committed | SubsumeResult | LeaseResult | Digest
    | SplitResult | ResolvedResult | ClosedResult | Blocks | Passed
)  # fmt: skip


# --- batches -------------------------------------------------------------------------------------------------------


class Header(msgspec.Struct, frozen=True, array_like=True):
    """What holds for every request of a batch."""

    range_id: RangeId
    ts: Timestamp = MIN
    """Read (and write) timestamp of a batch without transaction; MIN: the leaseholder's clock decides."""
    txn: Txn | None = None
    uncertainty_limit: Timestamp = MIN
    max_keys: Small = 0
    """Rows all scans of the batch may return together; 0: no limit."""
    max_bytes: Small = 0
    follower_ok: bool = False
    """Whether a replica without the lease may answer, if the timestamp is closed there."""
    wait_ms: Small = 0
    """How long a follower may wait for the timestamp to close before it redirects."""
    deadline_ms: Small = 0
    generation: Natural = 0
    """Of the descriptor the sender used; 0: unknown."""
    nearest_only: bool = False
    """With `follower_ok`: fail (`TooStale`) rather than be sent on by a follower that cannot serve it."""
    write_below: Timestamp = MIN
    """What a batch without transaction writes must lie below this; MIN: no bound. (A transaction's is in `EndTxn`.)"""
    decided: tuple[Resolution, ...] = ()  # outcomes of other transactions, for a read through their intents
    leader_only: bool = False
    """The leaseholder is to serve, however old the timestamp is. Otherwise senders ask the nearest replica for old reads."""


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """Requests for one range."""

    header: Header
    requests: list[Request]


class BatchResult(msgspec.Struct, frozen=True, array_like=True):
    """Results in the order of the requests."""

    results: list[Result]
    ts: Timestamp = MIN
    """The timestamp the batch read or wrote at."""
    txn_write_ts: Timestamp = MIN
    """Where the transaction's writes now are, if they had to move up."""
    served_by: NodeId = NodeId(0)
    by_follower: bool = False
    served: tuple[Served, ...] = ()
    """How each range served a read at a given timestamp, or one that allows followers."""


READS = (Get, Scan, ReverseScan, Export, Refresh, QueryTxn, LeaseInfo, ScanArrow, ExportArrow)
FOLLOWER_READS = (Get, Scan, ReverseScan, Export, ScanArrow, ExportArrow)
"""Read-only, client-timestamped, non-locking: all that a follower may ever answer (pitfall 20)."""
VERSION_WRITES = (Put, ConditionalPut, InitPut, Increment, Delete, DeleteRange, PutRows, FillRows)
"""Requests that create new versions or intents: they are tracked for closing and bumped above what was read."""
