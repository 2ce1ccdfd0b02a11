"""What may be said of a transaction whose record has been collected."""

from __future__ import annotations

import pytest

from slackwater.clock.timestamp import Timestamp
from slackwater.errors import TransactionAborted
from slackwater.model.txns import Intent, Resolution, Txn, TxnStatus
from slackwater.protocol.range.requests import PushTxn
from slackwater.replica import records
from slackwater.storage.batch import WriteBatch

FLOOR = Timestamp(100)
GONE = Intent(b"k", b"t" * 16, b"k", Timestamp(90), 0, Timestamp(95))


def pushed(*, force: bool) -> Resolution | None:
    request = PushTxn(GONE, Timestamp(500), b"p" * 16, Timestamp(95), abort=True, force=force)
    effects = WriteBatch()
    outcome = records.push(effects, None, request, now=Timestamp(600), txn_floor=FLOOR, expiration_s=5)
    assert not len(effects), "below the floor no record may be made"
    return outcome


def test_whoever_meets_an_intent_is_told_that_it_is_void() -> None:
    outcome = pushed(force=False)
    assert outcome is not None
    assert outcome.status is TxnStatus.ABORTED


def test_a_coordinator_that_settles_too_late_is_not_told_anything_definite() -> None:
    outcome = pushed(force=True)
    assert outcome is not None
    assert outcome.status is TxnStatus.PENDING, "the record may have said COMMITTED before it was collected"


def test_a_transaction_below_the_floor_learns_that_its_age_is_the_reason() -> None:
    txn = Txn(b"t" * 16, b"k", Timestamp(90), 0, Timestamp(95), Timestamp(95), Timestamp(95), 1)
    with pytest.raises(TransactionAborted) as caught:
        records.heartbeat(WriteBatch(), None, txn, now=Timestamp(600), txn_floor=FLOOR)
    assert caught.value.facts["collected"] is True
