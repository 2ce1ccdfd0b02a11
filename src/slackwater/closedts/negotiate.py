"""Which timestamp a read may use without ever waiting: resolved timestamps, and bounded staleness over many ranges.

Closed is not enough. At or below a closed timestamp nothing *new* can appear, but an intent that is already there may
still become a committed version at its own timestamp:

    ───────────●──────────────┬─────────────────────► time          resolved = min(closed, oldest intent − 1)
            intent          closed
          ▲ resolved

A read at or below the resolved timestamp of its span meets no intent that is in its way and is never redirected, by the
replica that reports it. An intent whose transaction is decided, as far as this replica knows, is not in the way: reads
go through it (`replica.fates`), however long its resolution takes. One that is pending and may not commit below p counts
as one at p.

Bounded staleness asks for the freshest timestamp that needs no waiting anywhere, but not older than a bound: the *lowest*
resolved timestamp over all spans of the query is the highest timestamp that all of them can serve.

    span A   resolved 140 ┐
    span B   resolved  90 ├─► 90, if 90 >= bound; otherwise the leaseholder, or `TooStale` for `nearest_only`
    span C   resolved 120 ┘

    I-16  the chosen timestamp is never below the bound, never above any resolved timestamp, and never below what the
          session has read at before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from slackwater.clock.timestamp import MAX, MIN, Timestamp, add_seconds
from slackwater.errors import UsageError
from slackwater.model.txns import TxnStatus
from slackwater.storage.intents import decode_intent, intents_in
from slackwater.storage.through import txn_id_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from slackwater.model.txns import Intent, Resolution
    from slackwater.runtime.seam import Reader
    from slackwater.storage.intents import StoredIntent

SPANS_MAX = 10_000
"""Spans of one negotiation."""


class ResolvedSpan(NamedTuple):
    """How far a span can be read without meeting an intent, and the intent that is in the way of more."""

    ts: Timestamp
    closed: Timestamp
    held_by: Intent | None = None
    """The oldest intent, when it and not `closed` is the limit."""
    final: bool = False
    """Whether every intent is of a transaction that is decided: nothing holds the span back until there is another intent."""


def resolve(
    reader: Reader,
    start: bytes,
    end: bytes,
    *,
    closed: Timestamp,
    fate: Callable[[StoredIntent], Resolution | None] = lambda _: None,
) -> ResolvedSpan:
    """The resolved timestamp of `[start, end)`. Take `closed` first, then the snapshot behind `reader` (pitfall 16).

    `fate` tells what is known of an intent's transaction, for ever true; it is asked once for each transaction.
    """
    upto, oldest = closed, None
    least: dict[bytes, Timestamp] = {}  # where a transaction may commit at the earliest, as far as its record says
    for key, raw in intents_in(reader, start, end):
        txn_id = txn_id_of(raw)
        if txn_id in least and least[txn_id] > upto:
            continue
        intent = decode_intent(raw)
        if txn_id not in least:
            known = fate(intent)
            pending = known is None or known.status is TxnStatus.PENDING
            least[txn_id] = (MIN if known is None else known.ts) if pending else MAX
        earliest = Timestamp(max(intent.ts, least[txn_id]))
        if earliest <= upto:
            upto, oldest = Timestamp(earliest - 1), intent.named(key)
    assert upto <= closed, "resolved is at or below closed (I-23)"
    assert (oldest is None) == (upto == closed), "an intent holds it back, or nothing does"
    return ResolvedSpan(upto, closed, oldest, final=all(ts == MAX for ts in least.values()))


def bound_of_staleness(now: Timestamp, max_staleness_s: float) -> Timestamp:
    """The oldest timestamp that `with_max_staleness` accepts."""
    if max_staleness_s < 0:
        raise UsageError("a staleness is not negative; give the age that is still acceptable", seconds=max_staleness_s)
    bound = add_seconds(now, -max_staleness_s)
    assert bound <= now, "an age lies in the past"
    return bound


def negotiate(
    resolved: Iterable[Timestamp], *, at_least: Timestamp, now: Timestamp, seen: Timestamp
) -> Timestamp | None:
    """The freshest timestamp that every span can serve; None when that is older than `at_least`, or than `seen`.

    `seen` is the newest timestamp this session has read at: a session does not travel back. Global tables close the
    future, which is not read, so `now` is a limit too.
    """
    spans = list(resolved)
    if not spans:
        raise UsageError("a negotiation needs at least one span")
    if len(spans) > SPANS_MAX:
        raise UsageError("too many spans in one negotiation; split the query", limit=SPANS_MAX)
    chosen = Timestamp(min(now, *spans))
    assert chosen <= now, "nothing of the future is chosen"
    return chosen if chosen >= max(at_least, seen) else None
