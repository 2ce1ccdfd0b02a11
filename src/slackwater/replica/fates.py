"""Outcomes of other transactions that a read may rely on, so that it need not wait for their intents to be resolved.

    told      the header's `decided`: what the leaseholder of the record answered to a push
    applied   the record itself, where a replica of its range is on this store; final states never change, and a pending
              record's timestamp only moves up, so a replica that lags behind is right too

Both hold on the leaseholder and on a follower alike. COMMITTED at c, epoch e: an intent of epoch e is a version at c. On a
follower that serves a read at t <= closed, every intent of that epoch with a timestamp at or below t is applied; one that is
not applied yet belongs to a commit above t, where the read does not look. ABORTED is never undone. PENDING at p: the record
refuses a commit below p, so a read that looks at nothing at or above p may pass the intent by.

Not enough: "aborted" said by a record that is not there. It may have been committed, resolved on the leaseholder and
collected while this follower still shows the intent (M11). Such an answer is marked ambiguous and is never told
(`txn.contention`); here a missing record says nothing. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import Timestamp
from slackwater.model.txns import Resolution, TxnStatus
from slackwater.protocol.range import requests
from slackwater.protocol.range.bulk import ExportArrow
from slackwater.replica import records
from slackwater.storage.through import Through

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slackwater.runtime.seam import Reader
    from slackwater.storage.intents import StoredIntent


def fates(
    reader: Reader, told: Sequence[Resolution] = (), *, own: bytes = b""
) -> Callable[[StoredIntent], Resolution | None]:
    """A function that says what became of an intent's transaction, as far as is known here."""
    known = {outcome.txn_id: outcome for outcome in told}

    def fate(intent: StoredIntent) -> Resolution | None:
        if intent.txn_id == own:
            return None
        heard = known.get(intent.txn_id)
        if heard is not None and heard.status is not TxnStatus.PENDING:
            return heard
        record = records.read_record(reader, anchor=intent.anchor, txn_id=intent.txn_id)
        if record is None:
            return heard
        found = records.resolution(record)
        assert found.txn_id == intent.txn_id, "the record of the transaction that was met"
        return heard if heard is not None and found.status is TxnStatus.PENDING and heard.ts > found.ts else found

    return fate


def through(reader: Reader, told: Sequence[Resolution], *, bound: Timestamp, own: bytes = b"") -> Through:
    """`reader` with the intents of decided transactions, but not one's own, shown as what became of them."""
    assert bound >= 0, "a bound is a timestamp"
    return Through(reader, fates(reader, told, own=own), bound=bound)


def highest_looked_at(batch: requests.Batch, *, read_ts: Timestamp, uncertain_upto: Timestamp) -> Timestamp:
    """The highest timestamp that a batch of reads looks at."""
    header = batch.header
    limit = header.txn.uncertainty_limit if header.txn is not None else header.uncertainty_limit
    present = max(read_ts, uncertain_upto, limit)
    windows = (requests.Export, requests.Refresh, ExportArrow)  # these say themselves up to where
    return Timestamp(max(r.upto if isinstance(r, windows) else present for r in batch.requests))
