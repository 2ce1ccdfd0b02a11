"""Upserts of a few rows of a table with indexes or checks, the short way: read, planned and begun in one step.

    rows ──► [Get old row …, Get unique entry …] ──► plan ──► [PutRows, Delete …, EndTxn(one_phase)] ──► one command
              ranges of this node answer at once               the range of the rows: values and the record, no intents
                │                                               │
                └─ anything in the way ─────────────────────────┴─ anything to write in another range
                     └─► None: the long way (`planned_writes`) deals with it

This is a transaction like any other: it reads and writes at one timestamp, and the leaseholders let no other write at or below
it what was read, in whatever range that is. What it spares is the coordinator, whose work is to move, to wait and to clean up:
where any of that is needed, or a rule of the table is broken, nothing was written, and the long way finds out anew and tells
the client.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec import structs

from slackwater.clock.timestamp import LOGICAL_BITS, Timestamp
from slackwater.errors import AmbiguousResult, SlackwaterError
from slackwater.hooks import buggify, probe
from slackwater.model.txns import Txn
from slackwater.protocol.client.calls import WriteKind
from slackwater.protocol.range.requests import (
    Batch,
    BatchResult,
    Committed,
    Delete,
    EndTxn,
    Get,
    Header,
    PutRows,
    Value,
)
from slackwater.runtime.later import Later
from slackwater.txn.at_once import AT_ONCE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.catalog.planning import Planned, WritePlanner
    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.protocol.range.requests import Request
    from slackwater.txn.context import TxnContext

ROWS_MAX = 16
"""More rows take long enough that other requests should have a turn in between."""


def begin_planned(
    context: TxnContext, planner: WritePlanner, name: bytes, keys: list[bytes], values: list[bytes], *, below: Timestamp
) -> Later[tuple[Timestamp, bool]] | None:
    """Upsert sorted, unique rows with all that follows, by a command that is begun in this very step.

    None: nothing was done. Told an error other than `AmbiguousResult`: nothing came of it. Told a timestamp: all
    is committed there, which may be told to others once that time has come; and whether it has.
    """
    assert len(keys) == len(values), "a value for every key"
    home = context.sender.here(keys[0], keys[-1])
    if home is None or len(keys) > ROWS_MAX or buggify("gateway.planned_the_long_way"):
        return None
    write = _AtOnce(context, home, name, keys[0])
    try:
        planned = write.planned(planner, keys, values)
        begun = None if planned is None else write.begin(planned, below)
    except SlackwaterError:  # refused before anything was begun
        probe("gateway.planned_in_the_way")
        return None
    if begun is None or isinstance(begun, Later):
        return None if begun is None else begun.map(partial(_committed, context))
    done: Later[tuple[Timestamp, bool]] = Later()  # it had been committed before: the record said so
    done.settle(_committed(context, begun))
    return done


class _AtOnce:
    """A transaction that writes to one range, all of whose steps are one."""

    def __init__(self, context: TxnContext, home: RangeDescriptor, name: bytes, anchor: bytes) -> None:
        self._context = context
        self._home = home
        now = context.clock.now()
        limit = Timestamp(now + (context.clock.max_offset_us << LOGICAL_BITS))
        self._txn = Txn(context.life(name, now), anchor, now, 0, now, now, limit, 1)

    def planned(self, planner: WritePlanner, keys: list[bytes], values: list[bytes]) -> Planned | None:
        """The plan, if all that it depends on can be read here and now, and all that it writes is small and here."""
        writes = planner.begin(WriteKind.UPSERT, keys, values)
        found = self._read(writes.reads())
        if found is None:
            return None
        if further := writes.further_reads(found):
            more = self._read(further)
            if more is None:
                return None
            found |= more
        planned = writes.plan(found)
        if not all(map(self._home.contains, planned.deletes)) or not all(map(self._home.contains, planned.puts)):
            return None
        size = sum(len(key) + len(value) for key, value in planned.puts.items()) + sum(map(len, planned.deletes))
        return planned if size <= AT_ONCE_BYTES_MAX else None

    def _read(self, keys: Sequence[bytes]) -> dict[bytes, bytes | None] | None:
        found: dict[bytes, bytes | None] = {}
        waiting = list(keys)
        while waiting:
            first = waiting[0]
            place = self._home if self._home.contains(first) else self._context.sender.here(first, first)
            if place is None:
                return None
            part = [key for key in waiting if place.contains(key)]
            waiting = [key for key in waiting if not place.contains(key)]
            answer = self._send(place, [Get(key) for key in part])
            if not isinstance(answer, BatchResult):
                assert answer is None, "a read is answered in the step in which it comes, or not at once"
                return None
            assert len(answer.results) == len(part), "a value, or none, for every key"
            found |= {
                key: one.value if isinstance(one, Value) else None
                for key, one in zip(part, answer.results, strict=True)
            }
        return found

    def begin(self, planned: Planned, below: Timestamp) -> BatchResult | Later[BatchResult] | None:
        """Write and commit, where it was read."""
        ordered = sorted(planned.puts)
        requests: list[Request] = [PutRows(ordered, [planned.puts[key] for key in ordered])]
        requests += [Delete(key) for key in planned.deletes]
        return self._send(self._home, [*requests, EndTxn(commit=True, one_phase=True, deadline=below)])

    def _send(self, place: RangeDescriptor, requests: list[Request]) -> BatchResult | Later[BatchResult] | None:
        txn = self._txn
        header = Header(
            place.range_id,
            ts=txn.read_ts,
            txn=txn,
            uncertainty_limit=txn.uncertainty_limit,
            generation=place.generation,
        )
        self._txn = structs.replace(txn, sequence=txn.sequence + len(requests))
        # A reading of its own: the leaseholder serves by each only once (I-01).
        return self._context.sender.at_once(Batch(header, requests), self._context.clock.now())


def _committed(context: TxnContext, answer: BatchResult) -> tuple[Timestamp, bool]:
    """Where a range has committed, and whether that time has come."""
    ended = answer.results[-1]
    if not isinstance(ended, Committed):
        raise AmbiguousResult("the range did not answer a commit as one; ask the record", kind=type(ended).__name__)
    return ended.commit_ts, context.passed(ended.commit_ts)
