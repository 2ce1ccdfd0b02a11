"""Resolved timestamps and bounded staleness."""

from __future__ import annotations

import pytest

from slackwater.clock.timestamp import Timestamp, from_us
from slackwater.closedts.negotiate import ResolvedSpan, bound_of_staleness, negotiate, resolve
from slackwater.errors import UsageError
from slackwater.model.txns import Resolution, TxnStatus
from slackwater.runtime.seam import Family
from slackwater.storage.batch import WriteBatch
from slackwater.storage.intents import StoredIntent, encode_intent
from slackwater.storage.memory import MemoryEngine


def engine_with_intents(**intents: int) -> MemoryEngine:
    engine = MemoryEngine()
    batch = WriteBatch()
    for key, ts in intents.items():
        stored = StoredIntent(key.encode() * 16, b"anchor", Timestamp(1), 0, Timestamp(ts), 1, b"v")
        batch.put(Family.LOCK, key.encode(), encode_intent(stored))
    engine.write(batch)
    return engine


def ts(n: int) -> Timestamp:
    return Timestamp(n)


def test_without_intents_closed_is_resolved() -> None:
    found = resolve(engine_with_intents(), b"a", b"z", closed=ts(100))
    assert found.ts == found.closed == 100
    assert found.held_by is None


def test_the_oldest_intent_of_the_span_holds_it_back() -> None:
    engine = engine_with_intents(b=70, c=40, d=90, x=10)
    found = resolve(engine, b"a", b"e", closed=ts(100))
    assert found.ts == 39
    assert found.held_by is not None
    assert found.held_by.key == b"c"
    assert resolve(engine, b"d", b"e", closed=ts(100)).ts == 89
    assert resolve(engine, b"d", b"e", closed=ts(89)).held_by is None


def test_an_intent_exactly_at_the_closed_timestamp_counts() -> None:
    assert resolve(engine_with_intents(b=100), b"a", b"z", closed=ts(100)).ts == 99
    assert resolve(engine_with_intents(b=101), b"a", b"z", closed=ts(100)).ts == 100


def test_intents_of_decided_transactions_hold_nothing_back_for_good_and_one_between_them_is_found() -> None:
    large, asked = b"L" * 16, []

    def fate(intent: StoredIntent) -> Resolution | None:
        asked.append(intent.txn_id)
        return Resolution(large, 0, TxnStatus.COMMITTED, ts(60)) if intent.txn_id == large else None

    def write(key: bytes, txn_id: bytes, at: int) -> None:
        batch = WriteBatch()
        batch.put(Family.LOCK, key, encode_intent(StoredIntent(txn_id, b"a", ts(1), 0, ts(at), 1, b"v")))
        engine.write(batch)

    engine = MemoryEngine()
    for n in range(19):
        write(b"k%02d" % n, large, 50)
    found = resolve(engine, b"a", b"z", closed=ts(100), fate=fate)
    assert found == ResolvedSpan(ts(100), ts(100), final=True)
    assert asked == [large], "once for each transaction"
    write(b"k09x", b"o" * 16, 70)
    found = resolve(engine, b"a", b"z", closed=ts(100), fate=fate)
    assert (found.ts, found.final) == (69, False)
    assert found.held_by is not None
    assert found.held_by.key == b"k09x"
    assert resolve(engine, b"a", b"z", closed=ts(65), fate=fate) == ResolvedSpan(ts(65), ts(65), final=False)


def test_the_freshest_timestamp_that_all_spans_can_serve() -> None:
    spans = [ts(140), ts(90), ts(120)]
    assert negotiate(spans, at_least=ts(80), now=ts(200), seen=ts(0)) == 90
    assert negotiate(spans, at_least=ts(90), now=ts(200), seen=ts(0)) == 90
    assert negotiate(spans, at_least=ts(91), now=ts(200), seen=ts(0)) is None


def test_a_session_does_not_travel_back_and_nobody_reads_the_future() -> None:
    assert negotiate([ts(90)], at_least=ts(0), now=ts(200), seen=ts(95)) is None
    assert negotiate([ts(90)], at_least=ts(0), now=ts(200), seen=ts(90)) == 90
    assert negotiate([ts(900)], at_least=ts(0), now=ts(200), seen=ts(0)) == 200


def test_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError):
        negotiate([], at_least=ts(0), now=ts(1), seen=ts(0))
    with pytest.raises(UsageError):
        bound_of_staleness(ts(1), -1.0)
    monkeypatch.setattr("slackwater.closedts.negotiate.SPANS_MAX", 1)
    with pytest.raises(UsageError):
        negotiate([ts(1), ts(2)], at_least=ts(0), now=ts(1), seen=ts(0))


def test_a_staleness_is_a_bound() -> None:
    assert bound_of_staleness(from_us(10_000_000), 4.0) == from_us(6_000_000)
