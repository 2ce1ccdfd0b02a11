"""Two transactions to which a client gave one name, at one anchor: the first to have a record keeps the place."""

from __future__ import annotations

import msgspec
import pytest

from slackwater.clock.timestamp import Timestamp
from slackwater.errors import ConflictError, TransactionAborted
from slackwater.model.txns import Intent, Resolution, Txn, TxnStatus, by_name
from slackwater.protocol.range.requests import (
    Committed,
    EndTxn,
    ForgetLocks,
    GcTxnRecords,
    Get,
    HeartbeatTxn,
    Number,
    PushTxn,
    Put,
    QueryTxn,
    ResolveIntents,
    Value,
)
from tests.unit.replica.test_evaluate import STATE, Bench, txn

AT_ONCE = EndTxn(commit=True, one_phase=True, can_forward=True)
FIRST = msgspec.structs.replace(txn(), txn_id=b"thename." + b"1" * 8)
SECOND = msgspec.structs.replace(txn(start=200, read=200, write=200, limit=200), txn_id=b"thename." + b"2" * 8)


def push(of: Txn, *, txn_id: bytes = b"", force: bool = False, abort: bool = True) -> PushTxn:
    pushee = Intent(b"k", txn_id or of.txn_id, b"k", of.start, 0, of.write_ts)
    return PushTxn(pushee, Timestamp(10_000), b"p" * 16, Timestamp(9_000), abort=abort, force=force)


def committed_first() -> Bench:
    bench = Bench()
    bench.run(Put(b"k", b"first"), AT_ONCE, txn=FIRST)
    bench.now = 210
    return bench


def test_a_second_one_is_refused_on_every_way_to_a_record() -> None:
    bench = committed_first()
    for requests in ([Put(b"k", b"second"), AT_ONCE], [EndTxn(commit=True)], [HeartbeatTxn()]):
        with pytest.raises(TransactionAborted, match="was used before"):
            bench.run(*requests, txn=SECOND)
    rolled_back = bench.run(EndTxn(commit=False), txn=SECOND)
    assert rolled_back.results == [Committed(TxnStatus.ABORTED, Timestamp(0))]
    assert rolled_back.read_only
    assert bench.value(b"k") == b"first"
    assert bench.run(Put(b"k", b"first"), AT_ONCE, txn=FIRST).results[-1].status is TxnStatus.COMMITTED


def test_a_committed_record_shows_no_intent_of_another_one_and_resolves_none() -> None:
    bench = committed_first()
    bench.run(Put(b"k", b"second"), txn=SECOND)
    with pytest.raises(ConflictError):
        bench.run(Get(b"k"), ts=300)
    told = Resolution(FIRST.txn_id, 0, TxnStatus.COMMITTED, Timestamp(90))
    assert bench.run(ResolveIntents(told, keys=(b"k",), spans=((b"a", b"z"),))).results == [Number(0)]
    for abort in (True, False):
        outcome = bench.run(push(SECOND, abort=abort)).results[0]
        assert outcome.resolution == Resolution(SECOND.txn_id, 0, TxnStatus.ABORTED)
        assert not outcome.ambiguous
    decided = (outcome.resolution,)
    assert bench.run(Get(b"k"), ts=300, decided=decided).results == [Value(b"first", Timestamp(90))]


def test_what_was_told_of_the_second_stays_true_when_the_record_is_collected() -> None:
    bench = committed_first()
    bench.run(Put(b"k", b"second"), txn=SECOND)
    assert bench.run(push(SECOND)).results[0].resolution.status is TxnStatus.ABORTED
    bench.now = 400
    assert bench.run(GcTxnRecords(Timestamp(200))).results == [Number(0)], "a floor there would let the second commit"
    collected = bench.run(GcTxnRecords(Timestamp(201)))
    assert collected.results == [Number(1)]
    bench.state = msgspec.structs.replace(bench.state, txn_floor=collected.trigger.txn_floor)
    with pytest.raises(TransactionAborted, match="collected"):
        bench.run(EndTxn(commit=True), txn=SECOND)


def test_a_commit_of_the_first_keeps_what_was_told_of_the_second() -> None:
    bench = Bench()
    bench.run(HeartbeatTxn(), txn=FIRST)
    assert bench.run(push(SECOND)).results[0].resolution.status is TxnStatus.ABORTED
    bench.run(Put(b"k", b"first"), AT_ONCE, txn=FIRST)
    record = bench.run(QueryTxn(FIRST.txn_id, b"k")).results[0].record
    assert record.heartbeat == SECOND.start


def test_an_old_intent_of_a_collected_record_is_not_judged_by_the_next_one_of_its_name() -> None:
    """M11: a follower may still show an intent that was committed, resolved and collected."""
    bench = Bench(msgspec.structs.replace(STATE, txn_floor=Timestamp(150)))
    bench.now = 210
    bench.run(Put(b"k", b"second"), AT_ONCE, txn=SECOND)
    assert bench.run(push(FIRST)).results[0].ambiguous
    settled = bench.run(push(FIRST, force=True)).results[0]
    assert settled.ambiguous
    assert settled.resolution.status is TxnStatus.PENDING


def test_a_question_by_name_is_answered_by_the_record_there_is_and_rules_out_all_that_come_later() -> None:
    name = by_name(FIRST.txn_id)
    assert committed_first().run(push(SECOND, txn_id=name, force=True)).results[0].resolution == Resolution(
        FIRST.txn_id, 0, TxnStatus.COMMITTED, Timestamp(90)
    )
    bench = Bench()
    asked = bench.run(push(FIRST, txn_id=name, force=True)).results[0]
    assert asked.resolution.status is TxnStatus.ABORTED
    for one in (FIRST, SECOND):
        with pytest.raises(TransactionAborted, match="ruled out"):
            bench.run(Put(b"k", b"v"), AT_ONCE, txn=one)
        assert bench.run(push(one)).results[0].resolution == Resolution(one.txn_id, 0, TxnStatus.ABORTED)
    assert bench.value(b"k") is None


def test_others_of_its_name_do_not_read_or_forget_a_record() -> None:
    bench = Bench()
    bench.run(Put(b"k", b"first"), txn=FIRST)
    bench.run(EndTxn(commit=True, lock_keys=(b"k", b"zz")), txn=FIRST)
    assert bench.run(QueryTxn(SECOND.txn_id, b"k")).results[0].record is None
    assert bench.run(ForgetLocks(SECOND.txn_id, b"k")).read_only
    assert not bench.run(QueryTxn(FIRST.txn_id, b"k")).results[0].record.resolved
