"""What a lease is worth when, and what records decide about transactions."""

from __future__ import annotations

import msgspec
import pytest

from slackwater.clock.timestamp import LOGICAL_BITS, MIN, Timestamp, add_seconds, from_us
from slackwater.errors import RetryableError, TransactionAborted
from slackwater.model.descriptors import NO_LEASE, Lease, Liveness
from slackwater.model.txns import Intent, Txn, TxnRecord, TxnStatus
from slackwater.protocol.range.requests import EndTxn, PushTxn
from slackwater.replica import records
from slackwater.replica.lease import (
    LeaseState,
    lasts_s,
    lease_state,
    next_epoch_lease,
    next_expiration_lease,
    usable_until,
)
from slackwater.storage.batch import WriteBatch
from slackwater.storage.memory import MemoryEngine

OFFSET_US = 500_000
T0 = from_us(1_000_000_000)


def at(seconds: float) -> Timestamp:
    return add_seconds(T0, seconds)


EPOCH_LEASE = Lease(1, 5, T0, epoch=3)


@pytest.mark.parametrize(
    ("liveness", "now", "expected"),
    [
        (Liveness(1, 3, at(10)), at(5), LeaseState.VALID),
        (Liveness(1, 3, at(10)), at(9.6), LeaseState.STASIS),
        (Liveness(1, 3, at(10)), at(9.5), LeaseState.STASIS),
        (Liveness(1, 3, at(10)), at(10), LeaseState.EXPIRED),
        (Liveness(1, 4, at(99)), at(5), LeaseState.EXPIRED),  # the epoch was ended
        (Liveness(1, 2, at(99)), at(5), LeaseState.UNKNOWN),  # an older record says nothing about this epoch
        (None, at(5), LeaseState.UNKNOWN),
    ],
)
def test_epoch_lease(liveness: Liveness | None, now: Timestamp, expected: LeaseState) -> None:
    assert lease_state(EPOCH_LEASE, liveness, now=now, max_offset_us=OFFSET_US) is expected


def test_expiration_lease_and_none() -> None:
    lease = Lease(1, 5, T0, expiration=at(10))
    assert lease_state(lease, None, now=at(9.4), max_offset_us=OFFSET_US) is LeaseState.VALID
    assert lease_state(lease, None, now=at(10), max_offset_us=OFFSET_US) is LeaseState.EXPIRED
    assert lease_state(NO_LEASE, None, now=at(1), max_offset_us=OFFSET_US) is LeaseState.NONE
    assert usable_until(lease, None, max_offset_us=OFFSET_US) == at(10) - (OFFSET_US << LOGICAL_BITS)
    assert usable_until(EPOCH_LEASE, None, max_offset_us=OFFSET_US) == MIN


@pytest.mark.parametrize(
    ("wanted_s", "offset_us", "expected"),
    [(6, OFFSET_US, 6), (1, 1_000_000, 2), (0.87, 807_000, 1.614), (0.5, 5_000, 0.505), (1, 5_000_000, 10)],
)
def test_no_lease_is_so_short_that_the_clocks_error_eats_it(wanted_s: float, offset_us: int, expected: float) -> None:
    """Seeds 7000021 and 7000002: a lease as long as the clock bound was taken 24 650 times and never served under."""
    assert lasts_s(wanted_s, max_offset_us=offset_us) == pytest.approx(expected)


def test_the_next_lease_starts_after_the_last_one() -> None:
    held = Lease(1, 5, T0, expiration=at(10))
    mine = next_expiration_lease(held, 2, now=at(9), duration_s=6)
    assert (mine.sequence, mine.start) == (6, at(10) + 1)
    again = next_expiration_lease(held, 1, now=at(9), duration_s=6)
    assert again.start == at(9), "the holder itself need not wait"
    assert next_epoch_lease(held, 2, 7, now=at(3), ended_at=at(4)).start == at(4) + 1


TXN = Txn(b"t" * 16, b"anchor", at(1), 0, at(1), at(1), at(1.5), 1)
INTENT = Intent(b"k", TXN.txn_id, TXN.anchor, TXN.start, 0, TXN.write_ts)


def record(**changes: object) -> TxnRecord:
    fields: dict[str, object] = {
        "txn_id": TXN.txn_id,
        "anchor": TXN.anchor,
        "start": TXN.start,
        "epoch": 0,
        "status": TxnStatus.PENDING,
        "write_ts": TXN.write_ts,
        "heartbeat": at(1),
    }
    return TxnRecord(**(fields | changes))  # type: ignore[arg-type]


def push(
    known: TxnRecord | None, *, older: bool, abort: bool, now: float = 2, force: bool = False, floor: Timestamp = MIN
):
    request = PushTxn(INTENT, at(0.5) if older else at(1.5), b"p" * 16, at(3), abort, force)
    batch = WriteBatch()
    return records.push(batch, known, request, now=at(now), txn_floor=floor, expiration_s=5), len(batch)


@pytest.mark.parametrize("known", [None, record()])
def test_wound_wait(known: TxnRecord | None) -> None:
    outcome, wrote = push(known, older=True, abort=True)
    assert (outcome.status, wrote) == (TxnStatus.ABORTED, 1)
    outcome, wrote = push(known, older=True, abort=False)
    assert (outcome.status, outcome.ts, wrote) == (TxnStatus.PENDING, at(3) + 1, 1)
    assert push(known, older=False, abort=True) == (None, 0), "the younger waits"
    assert push(known, older=False, abort=False) == (None, 0)
    for abort in (True, False):
        outcome, wrote = push(known, older=False, abort=abort, now=7)
        assert (outcome.status, wrote) == (TxnStatus.ABORTED, 1), "nobody waits for the dead"
    outcome, _ = push(known, older=False, abort=True, force=True)
    assert outcome.status is TxnStatus.ABORTED


def test_pushing_what_has_ended_changes_nothing() -> None:
    done = record(status=TxnStatus.COMMITTED, write_ts=at(9))
    outcome, wrote = push(done, older=True, abort=True)
    assert (outcome.status, outcome.ts, wrote) == (TxnStatus.COMMITTED, at(9), 0)


def test_a_collected_record_counts_as_aborted_and_cannot_come_back() -> None:
    outcome, wrote = push(None, older=False, abort=False, floor=at(1))
    assert (outcome.status, wrote) == (TxnStatus.ABORTED, 0)
    with pytest.raises(TransactionAborted):
        records.heartbeat(WriteBatch(), None, TXN, now=at(2), txn_floor=at(1))
    with pytest.raises(TransactionAborted):
        records.check_commit(None, TXN, EndTxn(commit=True), commit_ts=at(1), txn_floor=at(1))


def test_commit_is_refused_below_a_push_without_refresh_and_past_the_deadline() -> None:
    end = EndTxn(commit=True)
    records.check_commit(None, TXN, end, commit_ts=TXN.read_ts, txn_floor=MIN)
    with pytest.raises(RetryableError) as pushed:
        records.check_commit(record(write_ts=at(4)), TXN, end, commit_ts=TXN.read_ts, txn_floor=MIN)
    assert pushed.value.facts["push_to"] == at(4)
    with pytest.raises(RetryableError) as stale:
        records.check_commit(None, TXN, end, commit_ts=at(2), txn_floor=MIN)
    assert stale.value.facts["push_to"] == at(2)
    records.check_commit(None, TXN, EndTxn(commit=True, can_forward=True), commit_ts=at(2), txn_floor=MIN)
    with pytest.raises(RetryableError):
        records.check_commit(None, TXN, EndTxn(commit=True, deadline=at(1)), commit_ts=at(1), txn_floor=MIN)
    with pytest.raises(TransactionAborted):
        records.check_commit(record(status=TxnStatus.ABORTED), TXN, end, commit_ts=at(1), txn_floor=MIN)


def test_heartbeats_keep_a_record_alive_and_leave_finished_ones_alone() -> None:
    engine, batch = MemoryEngine(), WriteBatch()
    made = records.heartbeat(batch, None, TXN, now=at(2), txn_floor=MIN)
    engine.write(batch)
    assert records.read_record(engine, anchor=TXN.anchor, txn_id=TXN.txn_id) == made
    later = records.heartbeat(WriteBatch(), made, msgspec.structs.replace(TXN, epoch=2), now=at(4), txn_floor=MIN)
    assert (later.heartbeat, later.epoch) == (at(4), 2)
    ended = record(status=TxnStatus.ABORTED)
    batch = WriteBatch()
    assert records.heartbeat(batch, ended, TXN, now=at(9), txn_floor=MIN) is ended
    assert len(batch) == 0
