"""Recording a history, and keeping it."""

from __future__ import annotations

import pytest

from slackwater.errors import UsageError
from slackwater.sim.checkers import (
    ObservedVersion,
    OperationOutcome,
    RecordedHistory,
    Recorder,
    VersionHistory,
    check_intervals,
    check_registers,
)


class TrueTime:
    """Ten nanoseconds pass at every look."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 10
        return self.now


def recorded() -> RecordedHistory:
    recorder = Recorder(TrueTime())
    recorder.write(b"k", b"\xff\x00", client=1).ok()
    recorder.read(b"k", client=2).ok(saw=b"\xff\x00")
    recorder.cas(b"k", expected=b"nope", value=b"2", client=1).mismatch(found=b"\xff\x00")
    recorder.cas(b"k", expected=b"\xff\x00", value=b"3", client=2).unknown()
    recorder.write(b"k", b"4", client=3).failed()
    pen = recorder.txn(client=4)
    pen.read(b"a", b"attempt one")
    pen.restart()
    pen.read(b"a", None)
    pen.write(b"a", b"1")
    pen.read(b"a", b"1")
    pen.scan(start=b"a", end=b"c", rows=[(b"a", b"1")])
    pen.ok(commit_ts=7)
    recorder.txn(client=5, historical=True).ok(read_ts=3)
    appends = recorder.list_txn(client=6)
    appends.append(b"l", 1)
    appends.restart()
    appends.append(b"l", 2)
    appends.read(b"l", [2])
    appends.ok()
    recorder.txn(client=9).write(b"z", b"cut off")
    return recorder.history(VersionHistory.of({b"a": [ObservedVersion(7, b"1", 6)]}, loaded_upto=2))


def test_round_trip():
    history = recorded()
    again = RecordedHistory.from_json(history.to_json())
    assert again == history
    assert again.to_json() == history.to_json()
    assert RecordedHistory.from_json(RecordedHistory().to_json()) == RecordedHistory()


def test_what_the_pens_wrote():
    history = recorded()
    first = history.register_ops[0]
    assert (first.invoked_ns, first.returned_ns, first.outcome) == (10, 20, OperationOutcome.OK)
    assert check_registers(history.register_ops) == []
    txn = history.txns[0]
    assert [read.after for read in txn.reads] == [0, 1]
    assert txn.scans[0].after == 1
    assert txn.seen() == {b"a": None}
    assert [op.element for op in history.list_txns[0].ops] == [2, None]
    open_one = history.txns[-1]
    assert (open_one.outcome, open_one.returned_ns) == (OperationOutcome.UNKNOWN, None)
    assert check_intervals(history.txns, history.versions) == []


def test_a_pen_closes_once():
    pen = Recorder(TrueTime()).txn(client=1)
    pen.ok()
    with pytest.raises(UsageError):
        pen.failed()


def test_version_history():
    history = VersionHistory.of(
        {b"b": [ObservedVersion(5, b"2"), ObservedVersion(3, b"1")], b"a": [], b"c": [ObservedVersion(4, None)]}
    )
    assert [row.key for row in history.keys] == [b"a", b"b", b"c"]
    assert [history.value_at(b"b", ts=ts) for ts in (2, 3, 4, 5)] == [None, b"1", b"1", b"2"]
    assert [row.key for row in history.within(start=b"b", end=b"c").keys] == [b"b"]
    with pytest.raises(UsageError):
        VersionHistory.of({b"a": [ObservedVersion(3, b"1"), ObservedVersion(3, b"2")]})
    with pytest.raises(UsageError):
        VersionHistory.of({b"a": [ObservedVersion(0, b"1")]})
