"""Moving a transaction's reads up in time without reading again.

    read at 10      [a ── c)   [k]            nothing written there in (10, 25]?
    refresh to 25   [a ── c)   [k]   ── yes ──► the same reads are true at 25: read_ts = 25
                                     ── no  ──► it was written: the transaction restarts

The ranges answer in parallel, and from then on keep writers above 25 in those spans. An intent of another transaction
at or below 25 is pushed out of the way like for any other read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.errors import ConflictError, RetryableError, TransactionAborted
from slackwater.hooks import probe
from slackwater.protocol.range.requests import BATCH_REQUESTS_MAX, Header, Refresh
from slackwater.routing.sender import NO_RANGE
from slackwater.txn.pushing import TxnPusher

if TYPE_CHECKING:
    from slackwater.clock.timestamp import Timestamp
    from slackwater.protocol.range.requests import Request
    from slackwater.txn.contention import ContentionWait
    from slackwater.txn.context import TxnContext
    from slackwater.txn.spanbook import SpanBook
    from slackwater.txn.state import TxnState


def requests_for(reads: SpanBook, *, after: Timestamp, upto: Timestamp) -> list[Request]:
    """What asks whether anything read was written in (after, upto]."""
    assert after < upto, "reads move up"
    return [Refresh(span.start, span.end, after, upto) for span in reads.all_spans()]


async def refresh(
    context: TxnContext, state: TxnState, reads: SpanBook, *, upto: Timestamp, waiting: ContentionWait
) -> bool:
    """Move the read timestamp up to `upto` if nothing that was read has changed; whether it moved."""
    if upto <= state.read_ts:
        return True
    epoch = state.epoch
    if reads:
        requests = requests_for(reads, after=state.read_ts, upto=upto)
        for i in range(0, len(requests), BATCH_REQUESTS_MAX):
            if not await _unchanged(context, state, requests[i : i + BATCH_REQUESTS_MAX], upto=upto, waiting=waiting):
                probe("txn.refresh_failed")
                return False
        probe("txn.refreshed")
    if epoch != state.epoch:  # cannot be: the transaction's operations take turns
        return False
    assert upto > state.read_ts, "reads move up (I-18)"
    state.refreshed(upto)
    return True


async def _unchanged(
    context: TxnContext, state: TxnState, requests: list[Request], *, upto: Timestamp, waiting: ContentionWait
) -> bool:
    pusher = TxnPusher(state.start, state.txn_id, upto, uncertain=False, holds_locks=True)
    while True:
        try:
            header = Header(NO_RANGE, txn=state.message(), decided=waiting.decided)
            await context.sender.send(requests, header, timeout=waiting.deadline.remaining())
        except ConflictError as error:
            await waiting.clear(error, requests, pusher)
        except TransactionAborted:
            raise
        except RetryableError:
            return False
        else:
            return True
