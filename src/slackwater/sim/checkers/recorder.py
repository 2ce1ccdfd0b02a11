"""Collects a history while the workloads run.

A workload asks the recorder for a *pen*, tells it what it reads and writes, and closes it with what it was told:

    pen = recorder.txn(client=3)
    while True:
        pen.restart()                             # each attempt starts from a clean page
        pen.read(key, value, version=ts)
        pen.write(key, new)
        ...
    pen.ok(commit_ts=ts)  |  pen.failed()  |  pen.unknown()

A pen that is never closed (its client was cut off, the run ended) is `unknown`: `history()` closes it so. That is the
safe default, because an unknown operation is allowed to have happened and allowed not to.

Identifiers are birth numbers and times come from the `now` it is given, which must be true simulated time, so the same
seed records the same history.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

from slackwater.errors import UsageError
from slackwater.sim.checkers.history import (
    ListOp,
    ListTxn,
    OperationOutcome,
    OpKind,
    Read,
    RecordedHistory,
    RegisterOp,
    ScanOp,
    TxnOp,
    Value,
    VersionHistory,
    WriteOp,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Record = TypeVar("Record", RegisterOp, TxnOp, ListTxn)


class _Pen(ABC, Generic[Record]):
    """What the three pens share: a number, a start, and exactly one end."""

    def __init__(self, number: int, client: int, now: Callable[[], int]) -> None:
        self.number = number
        self.client = client
        self._now = now
        self.invoked_ns = now()
        self.record: Record | None = None

    def failed(self) -> None:
        """The client was told that nothing happened."""
        self._close(OperationOutcome.FAILED)

    def unknown(self) -> None:
        """The client does not know, and never will."""
        self._close(OperationOutcome.UNKNOWN)

    def _close(self, outcome: OperationOutcome) -> None:
        if self.record is not None:
            raise UsageError("this operation is already closed; close each pen once", number=self.number)
        self.record = self._build(outcome, None if outcome is OperationOutcome.UNKNOWN else self._now())

    @abstractmethod
    def _build(self, outcome: OperationOutcome, returned_ns: int | None) -> Record:
        """The record of what this pen was told."""


class OpPen(_Pen[RegisterOp]):
    """Writes down one register operation."""

    def __init__(
        self, number: int, client: int, now: Callable[[], int], op: tuple[OpKind, bytes, Value, Value]
    ) -> None:
        super().__init__(number, client, now)
        self._kind, self._key, self._value, self._expected = op
        self._swapped = True

    def ok(self, *, saw: Value = None) -> None:
        """It succeeded; a read passes what it saw."""
        if self._kind is OpKind.READ:
            self._value = saw
        self._close(OperationOutcome.OK)

    def mismatch(self, *, found: Value) -> None:
        """A CAS answered, definitely, that it found something other than it expected."""
        self._value, self._swapped = found, False
        self._close(OperationOutcome.OK)

    def _build(self, outcome: OperationOutcome, returned_ns: int | None) -> RegisterOp:
        return RegisterOp(
            op_id=self.number,
            client=self.client,
            key=self._key,
            kind=self._kind,
            invoked_ns=self.invoked_ns,
            returned_ns=returned_ns,
            outcome=outcome,
            value=self._value,
            expected=self._expected,
            swapped=self._swapped,
        )


class TxnPen(_Pen[TxnOp]):
    """Writes down one transaction."""

    def __init__(self, number: int, client: int, now: Callable[[], int], *, historical: bool) -> None:
        super().__init__(number, client, now)
        self._historical = historical
        self._commit_ts: int | None = None
        self._read_ts: int | None = None
        self.restart()

    def restart(self) -> None:
        """A new attempt: forget what the last one read and wrote."""
        self._reads: list[Read] = []
        self._scans: list[ScanOp] = []
        self._writes: list[WriteOp] = []

    def read(self, key: bytes, value: Value, *, version: int | None = None) -> None:
        """The attempt read `value` (None: no such key), from the version at `version` when that is known."""
        self._reads.append(Read(key, value, version, len(self._writes)))

    def scan(self, *, start: bytes, end: bytes, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """The attempt read the span [start, end) and found exactly these rows."""
        self._scans.append(ScanOp(start, end, tuple(rows), len(self._writes)))

    def write(self, key: bytes, value: Value) -> None:
        """The attempt wrote `value` (None: deleted the key)."""
        self._writes.append(WriteOp(key, value))

    def ok(self, *, commit_ts: int | None = None, read_ts: int | None = None) -> None:
        """Committed; a read-only transaction passes the timestamp it read at, when it knows."""
        self._commit_ts, self._read_ts = commit_ts, read_ts
        self._close(OperationOutcome.OK)

    def _build(self, outcome: OperationOutcome, returned_ns: int | None) -> TxnOp:
        return TxnOp(
            txn_id=self.number,
            client=self.client,
            invoked_ns=self.invoked_ns,
            returned_ns=returned_ns,
            outcome=outcome,
            reads=tuple(self._reads),
            scans=tuple(self._scans),
            writes=tuple(self._writes),
            commit_ts=self._commit_ts,
            read_ts=self._read_ts,
            historical=self._historical,
        )


class ListPen(_Pen[ListTxn]):
    """Writes down one list-append transaction."""

    def __init__(self, number: int, client: int, now: Callable[[], int]) -> None:
        super().__init__(number, client, now)
        self.restart()

    def restart(self) -> None:
        """A new attempt: forget what the last one did."""
        self._ops: list[ListOp] = []

    def append(self, key: bytes, element: int) -> None:
        """The attempt appended `element`, which no other append to this key may use."""
        self._ops.append(ListOp(key, element))

    def read(self, key: bytes, elements: Iterable[int]) -> None:
        """The attempt read the whole list."""
        self._ops.append(ListOp(key, None, tuple(elements)))

    def ok(self) -> None:
        """Committed."""
        self._close(OperationOutcome.OK)

    def _build(self, outcome: OperationOutcome, returned_ns: int | None) -> ListTxn:
        return ListTxn(
            txn_id=self.number,
            client=self.client,
            invoked_ns=self.invoked_ns,
            returned_ns=returned_ns,
            outcome=outcome,
            ops=tuple(self._ops),
        )


class Recorder:
    """Hands out pens and gathers what they wrote. Its size is the run's: the scenario bounds the operations."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now = now_ns
        self._born = 0
        self._ops: list[OpPen] = []
        self._txns: list[TxnPen] = []
        self._lists: list[ListPen] = []

    def _next(self) -> int:
        self._born += 1
        return self._born

    def read(self, key: bytes, *, client: int) -> OpPen:
        """A register read is invoked now."""
        return self._op(client, (OpKind.READ, key, None, None))

    def write(self, key: bytes, value: Value, *, client: int) -> OpPen:
        """A register write is invoked now."""
        return self._op(client, (OpKind.WRITE, key, value, None))

    def cas(self, key: bytes, *, expected: Value, value: Value, client: int) -> OpPen:
        """A register compare-and-swap is invoked now."""
        return self._op(client, (OpKind.CAS, key, value, expected))

    def _op(self, client: int, op: tuple[OpKind, bytes, Value, Value]) -> OpPen:
        self._ops.append(OpPen(self._next(), client, self._now, op))
        return self._ops[-1]

    def txn(self, *, client: int, historical: bool = False) -> TxnPen:
        """A transaction is invoked now; `historical` when it asks for the past."""
        self._txns.append(TxnPen(self._next(), client, self._now, historical=historical))
        return self._txns[-1]

    def list_txn(self, *, client: int) -> ListPen:
        """A list-append transaction is invoked now."""
        self._lists.append(ListPen(self._next(), client, self._now))
        return self._lists[-1]

    def history(self, versions: VersionHistory | None = None) -> RecordedHistory:
        """Close what is still open as unknown, and hand over everything."""
        return RecordedHistory(
            register_ops=tuple(_finished(pen) for pen in self._ops),
            txns=tuple(_finished(pen) for pen in self._txns),
            list_txns=tuple(_finished(pen) for pen in self._lists),
            versions=versions or VersionHistory(),
        )


def _finished(pen: _Pen[Record]) -> Record:
    if pen.record is None:
        pen.unknown()
    if pen.record is None:
        raise AssertionError("closing a pen always leaves a record")
    return pen.record
