"""Every error Slackwater raises, in one tree.

    SlackwaterError
    ├── RetryableError             safe to retry the whole transaction
    │   ├── WriteTooOld            a newer version exists; retry above it
    │   ├── ReadWithinUncertainty  a value may or may not precede the read; retry above it
    │   ├── SchemaChanged          the table has another version than the caller knows; learn it and retry
    │   ├── LeasesInTheWay         nodes still use the version before the present one; wait for them
    │   └── TransactionAborted     another transaction wounded this one
    ├── ConflictError              an intent of another transaction is in the way; push it or wait
    ├── ConditionFailed            a conditional put found another value; carries it
    │   └── UniqueViolation        another row has this value in a unique index; nothing was written
    ├── AmbiguousResult            may or may not have happened: never retry blindly
    │   └── AppendUnknown          the log did not say whether an append is durable
    ├── RoutingError               go elsewhere; carries the hint
    │   ├── NotLeaseholder
    │   └── RangeMismatch          the descriptor used is not the range's
    ├── UnavailableError           no node answered in time; nothing is known to be wrong
    │   ├── ConnectionLost
    │   ├── DeadlineExceeded
    │   └── Overloaded             a bound was reached; back off
    ├── LimitReached               the cluster holds as many as it may; give some up, or raise the limit
    ├── TooStale                   the nearest replica is behind what a read insists on; wait, or allow others
    ├── BelowGcThreshold           history is gone; pick a later timestamp (permanent)
    ├── TooLate                    history may be collected already, so it cannot be protected; pick a later timestamp
    ├── NotClosing                 a table's closing is off: nothing of it is resolved; give it a policy that closes
    ├── ClaimLost                  a job was taken over, paused or cancelled: stop working on it; nothing was changed
    ├── FeedExpired                a change feed lagged for too long and was to fail then; start it anew
    ├── ClockError                 a clock is beyond the maximum offset
    ├── NodeFenced                 another process runs as this node, from a copy of its store: stop this one
    ├── LogError                   the ordered log cannot be trusted or used
    │   ├── LogIdentityMismatch    positions are from another log: refuse to start
    │   ├── LogBehindStore         the log lacks entries that the store has applied: refuse to start
    │   ├── HistoryIncomplete      a lost range cannot be rebuilt from the log: start a node that has it, or restore a backup
    │   ├── LogTrimmed             the entries asked for are gone: restore from a snapshot
    │   └── LossyLogRefused        the server's settings can lose acknowledged data
    ├── IndexCorrupted             an index does not fit its table; drop it and create it again
    ├── StorageError               the engine failed or its data does not check
    │   └── DamageError            stored bytes are damaged or missing: quarantine the replica, ask another one
    ├── UsageError                 the caller's mistake; the message says what to do
    │   ├── ProtocolError          a peer broke the wire protocol
    │   ├── AccessDenied           the caller's certificate does not allow it; the message says which one does
    │   ├── EntryTooLarge          over the bound; chunk it
    │   ├── ConstraintViolation    a row does not satisfy a check of its table; nothing was written
    │   │   └── NotNullViolation   a row lacks a value that it must have by now; nothing was written
    │   ├── NotFound               nothing has this id; nothing was changed, and the transaction is usable
    │   └── UnknownSetting / InvalidSetting
    ├── DecodeError                bytes that are not what they claim to be
    │   ├── DamagedRow             a stored row cannot be decoded; delete it by its key, or write it anew
    │   │   └── VersionUnknown     it names a version of its table that the reader does not know; learn it and read again
    │   └── SegmentDamaged         a file of columns is not what was written; it is dropped, and rows are read instead
    └── InvariantViolation         a bug: stop the range or node, keep the evidence

Each class says three things a caller can act on: an SQLSTATE, a retry class, and whether it is *deterministic*
(every replica applying the same command would reach it, so it may be recorded as the command's result).
"""

from __future__ import annotations

import enum
from typing import ClassVar


class Retry(enum.Enum):
    """What a caller may do after an error."""

    NEVER = "never"  # the same call will fail again
    TRANSACTION = "transaction"  # restart the whole transaction
    REROUTE = "reroute"  # same request, another replica
    LATER = "later"  # same request, after a pause
    CHECK = "check"  # find out what happened first


FACT_CHARS_MAX = 400
TEXT_CHARS_MAX = 4000
"""Characters of one fact, and of a whole error, that are shown; the facts themselves are kept as they are."""


def _short(fact: object) -> str:
    if isinstance(fact, list | tuple) and len(fact) > 1:  # such as 64 intents: one shows what they are
        return f"{len(fact)} × {_short(fact[0])}" if len(text := repr(fact)) > FACT_CHARS_MAX else text
    text = repr(fact)
    return text if len(text) <= FACT_CHARS_MAX else f"{text[:FACT_CHARS_MAX]} …"


class SlackwaterError(Exception):
    """Base of the tree; `facts` hold what the reader needs to act."""

    sqlstate: ClassVar[str] = "XX000"
    retry: ClassVar[Retry] = Retry.NEVER
    deterministic: ClassVar[bool] = False

    def __init__(self, message: str, /, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def __str__(self) -> str:
        if not self.facts:
            return self.message
        text = f"{self.message} ({', '.join(f'{k}={_short(v)}' for k, v in self.facts.items())})"
        return text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]} …"


class RetryableError(SlackwaterError):
    """Safe to retry the whole transaction."""

    sqlstate = "40001"
    retry = Retry.TRANSACTION


class WriteTooOld(RetryableError):
    """A version at or above the write's timestamp exists; facts: `key`, `existing`."""


class ReadWithinUncertainty(RetryableError):
    """A value lies between the read timestamp and its uncertainty limit; facts: `key`, `existing`."""


class TransactionAborted(RetryableError):
    """The transaction was aborted by a pusher or by its own record's expiry."""


class SchemaChanged(RetryableError):
    """The table has another version than the caller knows, or is gone; facts: `table_id`, `version`."""


class LeasesInTheWay(RetryableError):
    """Nodes use the version before a table's present one, so the next waits; facts: `table_id`, `version`, `holders`."""


class ConflictError(SlackwaterError):
    """Intents of other transactions are in the way; fact: `intents`."""

    sqlstate = "55P03"
    retry = Retry.LATER


class ConditionFailed(SlackwaterError):
    """A conditional put found another value; facts: `key`, `actual`."""

    sqlstate = "23505"
    deterministic = True


class UniqueViolation(ConditionFailed):
    """Two rows would have one value in a unique index; facts: `index`, `values`. Nothing was written."""


class AmbiguousResult(SlackwaterError):
    """The operation may or may not have happened: find out before repeating it."""

    sqlstate = "40003"
    retry = Retry.CHECK


class AppendUnknown(AmbiguousResult):
    """The log did not say whether an append is durable."""


class RoutingError(SlackwaterError):
    """The request belongs elsewhere."""

    sqlstate = "40001"
    retry = Retry.REROUTE


class NotLeaseholder(RoutingError):
    """Another replica holds the lease; facts: `range_id`, `hint`, `reason`."""


class RangeMismatch(RoutingError):
    """The keys or descriptor in the request are not this range's; fact: `descriptors`."""


class UnavailableError(SlackwaterError):
    """No node answered in time."""

    sqlstate = "57P03"
    retry = Retry.LATER


class ConnectionLost(UnavailableError):
    """The connection ended before the answer came."""

    sqlstate = "08006"


class DeadlineExceeded(UnavailableError):
    """The answer did not come before the deadline."""

    sqlstate = "57014"


class Overloaded(UnavailableError):
    """A named bound was reached; back off and retry."""

    sqlstate = "53400"


class LimitReached(SlackwaterError):
    """The cluster holds as many of something as it may: give some up, or raise the limit; facts: `limit`.

    Unlike `Overloaded` it does not pass by itself, so no call is tried again for it.
    """

    sqlstate = "53400"


class TooStale(SlackwaterError):
    """The nearest replica cannot serve a read that insists on it; facts: `why`, or `resolved` and `bound`."""

    sqlstate = "72000"
    retry = Retry.LATER


class BelowGcThreshold(SlackwaterError):
    """History at this timestamp has been collected; facts: `timestamp`, `threshold`, `earliest`. Permanent."""

    sqlstate = "72000"
    deterministic = True


class TooLate(SlackwaterError):
    """A timestamp cannot be protected: its history may be collected already; facts: `timestamp`, `earliest`. Permanent."""

    sqlstate = "72000"


class NotClosing(SlackwaterError):
    """A table, or a part of it, closes nothing by policy, so nothing of it is ever resolved; facts: `table`, `policy`."""

    sqlstate = "55000"


class ClaimLost(SlackwaterError):
    """A job is not this claimant's any more: it was taken over, paused or cancelled. Nothing was changed; facts: `job`."""

    sqlstate = "55000"


class FeedExpired(SlackwaterError):
    """A change feed lagged for longer than it may keep history; facts: `lag_s`, `resolved`. Permanent for that feed."""

    sqlstate = "72000"


class ClockError(SlackwaterError):
    """A clock is beyond the maximum offset; facts: `offset_us`, `max_offset_us`."""

    sqlstate = "58000"


class NodeFenced(SlackwaterError):
    """Another process runs as this node; facts: `node_id`."""

    sqlstate = "58000"


class LogError(SlackwaterError):
    """The ordered log cannot be trusted or used."""

    sqlstate = "58030"


class LogIdentityMismatch(LogError):
    """The log is not the one this store was built on; facts: `expected`, `actual`."""


class LogBehindStore(LogError):
    """The log ends before what the store has applied; facts: `range_id`, `applied`, `head`."""


class LogTrimmed(LogError):
    """The entries asked for were trimmed; facts: `after`, `first`."""


class HistoryIncomplete(LogError):
    """The log does not hold all that made a range, so no replica of it can be made from the log."""


class LossyLogRefused(LogError):
    """The log server's settings can lose acknowledged data; facts: `problems`."""


class IndexCorrupted(SlackwaterError):
    """An entry of an index and its table do not fit; facts: `entry`, `row`. No answer was given from it."""

    sqlstate = "XX002"


class StorageError(SlackwaterError):
    """The engine failed, or what it holds does not check."""

    sqlstate = "58030"


class DamageError(StorageError):
    """Stored bytes are damaged or missing. The replica that met this is quarantined and fetched anew (I-34)."""

    remote = False
    """Whether a peer met it, not this node."""


class UsageError(SlackwaterError):
    """The caller's mistake; the message says what to do instead."""

    sqlstate = "22023"
    deterministic = True


class ProtocolError(UsageError):
    """A peer broke the wire protocol."""

    sqlstate = "08P01"


class AccessDenied(UsageError):
    """The caller, known or anonymous, may not do this; facts: `method` or `certificate`."""

    sqlstate = "42501"
    deterministic = False


class EntryTooLarge(UsageError):
    """Over a size bound; split the work; facts: `size`, `limit`."""

    sqlstate = "54000"


class ConstraintViolation(UsageError):
    """A row does not satisfy a check of its table; facts: `check`, `key`. Nothing was written."""

    sqlstate = "23514"


class NotNullViolation(ConstraintViolation):
    """A row has NULL in a column that is becoming NOT NULL; facts: `check`, `key`. Nothing was written."""

    sqlstate = "23502"


class NotFound(UsageError):
    """Nothing was changed, because no protection or job has this id; facts: `id`. A transaction that asked remains usable."""

    sqlstate = "42704"


class UnknownSetting(UsageError):
    """No setting has this name."""

    sqlstate = "42704"


class InvalidSetting(UsageError):
    """The value is not allowed for this setting."""


class DecodeError(SlackwaterError):
    """Bytes that are not what they claim to be. Every decoder raises this and nothing else."""

    sqlstate = "22P03"
    deterministic = True


class SegmentDamaged(DecodeError):
    """A file of columns is not what was written: it is dropped, and what it held is read from rows."""


class DamagedRow(DecodeError):
    """A stored row cannot be decoded; facts: `table`, `key`. Deleting it by its key, or writing it anew, needs no decoding."""

    sqlstate = "XX001"


class VersionUnknown(DamagedRow):
    """A row names a version of its table that the reader was not given; facts: `version`, `table`.

    Most likely a schema change was published meanwhile: learn the table's versions and read again. If that says the same, the
    row is damaged.
    """


class InvariantViolation(SlackwaterError):
    """A bug. Stop the range or the node and keep the evidence."""

    sqlstate = "XX000"

    def __init__(self, rule: str, facts: dict[str, object]) -> None:
        super().__init__(f"invariant {rule} violated", **facts)
        self.rule = rule
        self.remote = False
        """Whether it was found by a peer, not here."""


def invariant(holds: bool, rule: str, /, **facts: object) -> None:  # noqa: FBT001 - reads as a sentence
    """Stop on a broken invariant. Unlike `assert`, it survives `python -O`.

    `rule` is an ID of `docs/invariants.md` such as "I-10", or "A-name" for a local assertion.
    """
    if not holds:
        raise InvariantViolation(rule, facts)
