"""Lone writes that arrive together, as one batch: each stays an operation of its own, and they share one command.

    put      [Put]            no transaction, the leaseholder picks the timestamp      ─┐
    commit   [Put, EndTxn]    a transaction that is this one blind write (`at_once`)   ─┴► [Put, …, Put, EndEach]

Most of what a write costs is not its key: checks of the lease, a command, its way through the log and what is told of it. Writes
of different keys that meet nothing can share all of that. They are evaluated by the handlers that evaluate each of them alone,
at one timestamp of the leaseholder, which every one of them leaves to it.

Rules
    1. No two of them have the same key, so none reads what another wrote and their order does not matter.
    2. Each commit writes its own record, at its own anchor: a caller that loses the answer asks that one.
    3. All or nothing: what one of them meets (an intent, a record, a bound of the range, a time that has not come) is no answer
       to the others, so nothing is done together then, and each is served by itself.

Pure; `replica.driver.together` gathers them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.clock.timestamp import MIN
from slackwater.model.txns import Txn, TxnStatus
from slackwater.protocol.range.requests import Batch, BatchResult, Committed, Done, EndTxn, Header, Put

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.ids import RangeId

TOGETHER_MAX = 32
"""Writes that share a command: more would hold up the loop for longer, and gain little."""
TOGETHER_BYTES_MAX = 64 << 10
"""Bytes of their keys and values."""


class EndEach(msgspec.Struct, frozen=True):
    """Commit transactions each of which is one write of this batch. Made by a leaseholder for itself: it never travels."""

    ends: tuple[tuple[Txn, EndTxn], ...]


def may_join(batch: Batch) -> bool:
    """Whether a batch is a lone write that may share a command with others."""
    header, requests = batch.header, batch.requests
    if not requests or type(requests[0]) is not Put or header.write_below != MIN or header.follower_ok:
        return False
    if len(requests) == 1:
        return header.txn is None and header.ts == MIN
    end, txn = requests[1], header.txn
    if len(requests) != 2 or type(end) is not EndTxn or txn is None or txn.anchor != requests[0].key:
        return False
    return end.commit and end.one_phase and end.can_forward and not end.lock_keys and not end.lock_spans


def divide(batches: Sequence[Batch], now: Timestamp) -> tuple[list[int], list[int]]:
    """Which of some lone writes of one range may share a command at `now`, and which stay alone, by their places."""
    together: list[int] = []
    alone: list[int] = []
    keys: set[bytes] = set()
    room = TOGETHER_BYTES_MAX
    for place, batch in enumerate(batches):
        put, txn = batch.requests[0], batch.header.txn
        assert type(put) is Put, "a lone write begins with what it writes"
        size = len(put.key) + len(put.value)
        late = txn is not None and max(txn.read_ts, txn.write_ts) > now
        assert put.key not in keys, "no two of them have one key"
        if size > room or late:
            alone.append(place)
        else:
            keys.add(put.key)
            together.append(place)
            room -= size
    assert len(together) + len(alone) == len(batches), "each is served one way"
    return together, alone


def combined(range_id: RangeId, batches: Sequence[Batch]) -> Batch:
    """Lone writes of different keys as one batch."""
    assert 1 < len(batches) <= TOGETHER_MAX, "writes that share a command are several, and bounded"
    ends = tuple((b.header.txn, b.requests[1]) for b in batches if b.header.txn is not None)
    return Batch(Header(range_id), [*(b.requests[0] for b in batches), EndEach(ends)])  # type: ignore[list-item, arg-type]


def are_combined(batch: Batch) -> bool:
    """Whether a batch was made by `combined`."""
    return isinstance(batch.requests[-1], EndEach)


class Answers:
    """What each of some writes is told that shared a command."""

    __slots__ = ("commit", "put")

    def __init__(self, answer: BatchResult) -> None:
        ts, node = answer.ts, answer.served_by
        assert ts > MIN, "what was written was written at a time"
        self.put = BatchResult([Done()], ts, MIN, node)
        self.commit = BatchResult([Done(), Committed(TxnStatus.COMMITTED, ts, resolved=True)], ts, ts, node)

    def of(self, batch: Batch) -> BatchResult:
        """The answer to one of them, as if it had come alone."""
        return self.put if batch.header.txn is None else self.commit
