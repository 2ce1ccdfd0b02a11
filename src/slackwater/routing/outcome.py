"""What an error means for the sender: may the batch be tried again, and if not, what is the caller told?

    refused    the replica says that nothing happened and where to go      try on
    answer     the replica says what is wrong with the request itself      the caller's
    lost       no answer, or one that cannot be trusted                    try on if repeatable, else AmbiguousResult

The table is by class; anything that is not known to be definite counts as lost. A write is repeatable only when
executing it twice, the second time arbitrarily late, cannot be told from once. That rules out every write of a new
version: with others' writes in between, a late second Put is a lost update. (Not so `FillRows`, which writes no key that was
written since.) Inside a transaction it is ruled out as
well: a copy that arrives after the commit would leave an intent behind that its committed record turns into data. The
coordinator bumps the epoch instead, which makes the late copy harmless.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.errors import (
    AmbiguousResult,
    BelowGcThreshold,
    ConditionFailed,
    ConflictError,
    ConnectionLost,
    DeadlineExceeded,
    NotLeaseholder,
    Overloaded,
    ProtocolError,
    RetryableError,
    RoutingError,
    SlackwaterError,
    TooStale,
    TransactionAborted,
    UnavailableError,
    UsageError,
)
from slackwater.protocol.range.bulk import BULK
from slackwater.protocol.range.requests import (
    FOLLOWER_READS,
    READS,
    VERSION_WRITES,
    AbortMerge,
    Barrier,
    CloseNow,
    ComputeChecksum,
    EndTxn,
    FillRows,
    ForgetLocks,
    GcSpan,
    GcTxnRecords,
    GcVersions,
    HeartbeatTxn,
    PushTxn,
    QueryResolved,
    RaiseGcThreshold,
    RequestLease,
    ResolveIntents,
    Thaw,
)
from slackwater.protocol.range.served import Why
from slackwater.routing.facts import intents_of, maybe_sent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.protocol.range.requests import Header, Request

REPEATABLE = frozenset(
    {
        *READS, FillRows, QueryResolved, CloseNow, PushTxn, ResolveIntents, ForgetLocks, HeartbeatTxn,
        Barrier, ComputeChecksum, RequestLease, RaiseGcThreshold, GcVersions, GcSpan, GcTxnRecords, AbortMerge, Thaw,
    }
)  # fmt: skip
_READS = frozenset(READS)
_FOLLOWER_READS = frozenset(FOLLOWER_READS)
_WRITES = frozenset(VERSION_WRITES)
_BULK = frozenset(BULK)
_ABOUT_REPLICAS = frozenset({QueryResolved})

# The worst first: what the caller of a divided batch is told when its shares failed in different ways.
_SEVERITY: tuple[type[SlackwaterError], ...] = (
    AmbiguousResult,
    TransactionAborted,
    UsageError,
    ConditionFailed,
    BelowGcThreshold,
    TooStale,
    UnavailableError,
    RetryableError,
    ConflictError,
)
_DEFINITE = (
    RetryableError,
    ConflictError,
    ConditionFailed,
    RoutingError,
    UnavailableError,
    BelowGcThreshold,
    TooStale,
    UsageError,
)


def repeatable(requests: Sequence[Request]) -> bool:
    """Whether executing the batch again, at any later time, does no harm."""
    return REPEATABLE.issuperset(map(type, requests))


def read_only(requests: Sequence[Request]) -> bool:
    """Whether the batch changes nothing."""
    return _READS.issuperset(map(type, requests))


def bulk(requests: Sequence[Request]) -> bool:
    """Whether the batch asks for columns, which come in chunks."""
    return _BULK.issuperset(map(type, requests))


def atomic(requests: Sequence[Request], header: Header) -> bool:
    """Whether the batch may not be divided: nothing but its range holds it together."""
    if header.txn is None:
        return not _WRITES.isdisjoint(map(type, requests))
    return len(requests) > 1 and any(type(request) is EndTxn for request in requests)


def follower_may_serve(requests: Sequence[Request], header: Header) -> bool:
    """Whether a replica without the lease may be asked at all (pitfall 20)."""
    if not header.follower_ok:
        return False
    if _ABOUT_REPLICAS.issuperset(map(type, requests)):
        return True  # about the replica that is asked, at no timestamp
    if not _FOLLOWER_READS.issuperset(map(type, requests)):
        return False
    return header.txn is not None or header.ts != 0


def why_no_follower(error: SlackwaterError, header: Header) -> Why:
    """What a failed try to have a read served by a follower says."""
    if not isinstance(error, NotLeaseholder):
        return Why.UNREACHABLE
    if error.facts.get("intent"):
        return Why.INTENT
    return Why.WAITED if header.wait_ms else Why.NOT_CLOSED


def why_leaseholder(requests: Sequence[Request], header: Header, met: Why | None) -> Why:
    """Why a read was served by the leaseholder; `met` is what was met on the way there."""
    if not header.follower_ok:
        return Why.NOT_ALLOWED
    return met or (Why.LEADS if follower_may_serve(requests, header) else Why.KIND)


def lost(error: SlackwaterError) -> bool:
    """Whether the batch may have been executed all the same."""
    if isinstance(error, ConnectionLost | DeadlineExceeded):
        return maybe_sent(error)
    return isinstance(error, ProtocolError) or not isinstance(error, _DEFINITE)


def ambiguous(error: SlackwaterError) -> AmbiguousResult:
    """What the caller of a write is told whose answer is `lost`."""
    if isinstance(error, AmbiguousResult):
        return error
    return AmbiguousResult(f"the write may or may not have happened: {error}")


def should_try_next_replica(error: SlackwaterError) -> bool:
    """Whether another replica, or the same one later, may answer."""
    return isinstance(error, UnavailableError) and not isinstance(error, Overloaded)


def worst(errors: Sequence[SlackwaterError]) -> SlackwaterError:
    """The error that decides; conflicts are put together, so that they can be cleared at once."""

    def severity(error: SlackwaterError) -> int:
        return next((i for i, kind in enumerate(_SEVERITY) if isinstance(error, kind)), -1)

    found = min(errors, key=severity)
    conflicts = [e for e in errors if isinstance(e, ConflictError)]
    if isinstance(found, ConflictError) and len(conflicts) > 1:
        return ConflictError(found.message, intents=[i for e in conflicts for i in intents_of(e)])
    return found
