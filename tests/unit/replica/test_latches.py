"""Latches by hand: the conflict table, the bounds, misuse. Orders and grants are in the scripts and properties."""

from __future__ import annotations

import pytest

from slackwater.clock.timestamp import Timestamp
from slackwater.errors import InvariantViolation, Overloaded, UsageError
from slackwater.replica import latches
from slackwater.replica.latches import Latch, LatchManager, LatchSpan, RequestId, WaitingLatch, read_latch, write_latch
from slackwater.replica.spanmap import INDEX_SLACK, KeyIndex
from tests.twins.latches import conflict


def at(ts: int) -> Timestamp:
    return Timestamp(ts)


READ_5 = read_latch(b"k", at=at(5))
WRITE_5 = write_latch(b"k", at=at(5))


@pytest.mark.parametrize(
    ("first", "second", "conflicts"),
    [
        (READ_5, READ_5, False),
        (READ_5, write_latch(b"k", at=at(6)), False),
        (READ_5, WRITE_5, True),
        (READ_5, write_latch(b"k", at=at(4)), True),
        (WRITE_5, write_latch(b"k", at=at(9)), True),
        (READ_5, write_latch(b"k"), True),
        (read_latch(b"k"), write_latch(b"k", at=at(9)), True),
        (read_latch(b"k"), READ_5, False),
        (read_latch(b"k"), read_latch(b"k"), False),
        (write_latch(b"k"), write_latch(b"k"), True),
        (WRITE_5, write_latch(b"j", at=at(5)), False),
        (WRITE_5, write_latch(b"a", b"k", at=at(5)), False),
        (WRITE_5, write_latch(b"k", b"l", at=at(5)), True),
        (write_latch(b"a", b"k"), write_latch(b"k", b"z"), False),
        (write_latch(b"a", b"k\x00"), write_latch(b"k", b"z"), True),
    ],
)
def test_the_conflict_table_both_ways(first: LatchSpan, second: LatchSpan, conflicts: bool) -> None:
    for one, other in ((first, second), (second, first)):
        manager = LatchManager()
        assert isinstance(manager.acquire(RequestId(1), [one]), Latch)
        assert isinstance(manager.acquire(RequestId(2), [other]), WaitingLatch) == conflicts
        assert conflict(one, other) == conflicts, "the twin has its own copy of the table"


def test_a_request_does_not_conflict_with_itself_and_leaves_nothing_behind() -> None:
    manager = LatchManager()
    spans = [
        WRITE_5,
        WRITE_5,
        READ_5,
        read_latch(b"a", b"z", at=at(5)),
        write_latch(b"j", b"l"),
        write_latch(b"j", b"l"),
    ]
    assert isinstance(manager.acquire(RequestId(1), spans), Latch)
    assert isinstance(manager.acquire(RequestId(2), [READ_5]), WaitingLatch)
    assert manager.release(RequestId(1)) == [2]
    assert manager.release(RequestId(2)) == []
    assert isinstance(manager.acquire(RequestId(3), [write_latch(b"a", b"z")]), Latch)


def test_a_key_declared_twice_counts_with_the_timestamp_that_excludes_more() -> None:
    for low, high in ((3, 8), (8, 3)):
        manager = LatchManager()
        manager.acquire(RequestId(1), [read_latch(b"r", at=at(low)), read_latch(b"r", at=at(high))])
        manager.acquire(RequestId(2), [write_latch(b"w", at=at(low)), write_latch(b"w", at=at(high))])
        assert isinstance(manager.acquire(RequestId(3), [write_latch(b"r", at=at(5))]), WaitingLatch), "8 sees 5"
        assert isinstance(manager.acquire(RequestId(4), [read_latch(b"w", at=at(5))]), WaitingLatch), "5 sees 3"
        assert manager.release(RequestId(1)) == [3]
        assert manager.release(RequestId(2)) == [4]


def test_a_hot_key_waits_for_the_last_writer_only() -> None:
    manager = LatchManager()
    for n in range(1, 51):
        manager.acquire(RequestId(n), [WRITE_5])
    assert manager.behind(RequestId(50)) == (49,)
    assert manager.cancel(RequestId(49)) == []
    assert manager.behind(RequestId(50)) == (48,)


def test_grants_come_in_order_of_arrival_even_for_those_who_had_to_look_again() -> None:
    manager = LatchManager()
    manager.acquire(RequestId(1), [write_latch(b"k", at=at(1))])
    manager.acquire(RequestId(2), [write_latch(b"k", at=at(5))])
    manager.acquire(RequestId(3), [read_latch(b"k", at=at(6))])  # behind 2, which stands for 1
    manager.acquire(RequestId(4), [read_latch(b"k", at=at(2))])  # behind 1 only: 2 writes above it
    assert (manager.behind(RequestId(3)), manager.behind(RequestId(4))) == ((2,), (1,))
    assert manager.cancel(RequestId(2)) == []
    assert manager.release(RequestId(1)) == [3, 4]


def test_releasing_what_is_not_held_is_a_violation() -> None:
    manager = LatchManager()
    manager.acquire(RequestId(1), [WRITE_5])
    manager.acquire(RequestId(2), [WRITE_5])
    for request in (2, 3):
        with pytest.raises(InvariantViolation, match="A-latch-release-granted"):
            manager.release(RequestId(request))
    with pytest.raises(InvariantViolation, match="A-latch-cancel-known"):
        manager.cancel(RequestId(3))
    with pytest.raises(InvariantViolation, match="A-latch-acquire-once"):
        manager.acquire(RequestId(1), [WRITE_5])
    assert manager.status() == "held=[1] waiting=[2<-1]"


def test_cancel_after_the_grant_is_a_release() -> None:
    manager = LatchManager()
    manager.acquire(RequestId(1), [WRITE_5])
    manager.acquire(RequestId(2), [WRITE_5])
    assert manager.cancel(RequestId(1)) == [2]


def test_bad_input_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = LatchManager(requests_max=1)
    with pytest.raises(UsageError):
        manager.acquire(RequestId(1), [WRITE_5, write_latch(b"b", b"b")])
    monkeypatch.setattr(latches, "LATCHES_PER_REQUEST_MAX", 1)
    with pytest.raises(UsageError):
        manager.acquire(RequestId(1), [WRITE_5, READ_5])
    assert len(manager) == 0
    manager.acquire(RequestId(1), [WRITE_5])
    with pytest.raises(Overloaded):
        manager.acquire(RequestId(2), [write_latch(b"other")])
    assert manager.release(RequestId(1)) == []
    assert isinstance(manager.acquire(RequestId(2), [WRITE_5]), Latch)


def test_a_key_index_stays_small_when_nobody_asks() -> None:
    keys: dict[bytes, int] = {}
    index = KeyIndex(keys)
    for n in range(10 * INDEX_SLACK):
        key = b"%d" % n
        keys[key] = n
        index.note(key)
        del keys[key]
    assert len(index._noted) <= INDEX_SLACK + 1
    keys[b"last"] = 0
    index.note(b"last")
    assert index.between(b"", b"z") == [b"last"]
