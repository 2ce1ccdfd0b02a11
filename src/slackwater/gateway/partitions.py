"""A table in parts that tasks read in parallel.

    ranges      ├───────── r7 ─────────┤├── r8 ──┤├──────── r9 ────────┤
    count = 0   ├──────────────────────┤├────────┤├────────────────────┤     one a range: where the rows are
    count = 6   ├───────┤├───────┤├───────┤├───────┤├────────┤├────────┤     about as many rows each
    count = 2   ├────────────────────────────┤├────────────────────────┤

A job is as slow as its largest part, so parts of a given number are made even, across ranges: each range counts as many rows
as its replica here says, or as the average when there is none. Inside a range a part ends at a row that is there: the first
at or after a point that lies as far between the first and the last key, as numbers, as the end lies among the rows. That is
even for ids that are spread evenly and merely correct for others. Where an end is near that of a range, that is taken.
Divisions are about speed only: a partition is a span, and its reader resolves again which ranges hold it.

Where to read. Each partition names its replicas in the order in which to ask them, among those that are equally near: every
partition another follower first, in turns, and the leaseholder, which has the writes to do, last. The order does not change
from one scan to the next: a follower that has made columns of these rows before still has them (`storage.columns`).
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from typing import TYPE_CHECKING

from slackwater.codec.layout import schema_span
from slackwater.errors import UsageError
from slackwater.model.spans import Span
from slackwater.protocol.client import calls
from slackwater.storage.stats import Stats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.clock.timestamp import Timestamp
    from slackwater.gateway.context import CallContext
    from slackwater.gateway.service import Gateway
    from slackwater.model.descriptors import RangeDescriptor

PARTITIONS_MAX = 10_000
DIGITS = 8
"""Bytes, after what first and last key have in common, that points are spread over."""
ONE = 1_000_000
NEAR = ONE // 50
"""An end this near that of a range becomes it."""


class Partitions:
    """Divides tables."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def partitions(self, request: calls.GetPartitions, context: CallContext) -> calls.PartitionsReply:
        """Parts of a table, in key order, without gaps."""
        if not 0 <= request.count <= PARTITIONS_MAX:
            raise UsageError(f"a table is read in 1 to {PARTITIONS_MAX} partitions", count=request.count)
        node, catalog = self._gateway.node, self._gateway.catalog
        await catalog.complete_upto(request.at)
        history = await catalog.find_id(request.table_id)
        known_upto = catalog.tables.upto  # of this history: while ranges are asked for, the table may change
        held = history.at(request.at) or history.latest  # before a table was emptied its rows had other keys
        whole = schema_span(held.schema)
        if request.start:
            self._gateway.check_inside(request.table_id, request.start, request.end)
            whole = Span(request.start, request.end)
        found = await node.sender.ranges_of(whole.start, whole.end, timeout=context.remaining())
        if request.count == 0:
            cuts = {max(d.start, whole.start) for d in found} - {whole.start}
        else:
            cuts = await self._cuts(found, whole, request.count, request.at)
        made: list[calls.Partition] = []
        for low, high in itertools.pairwise([whole.start, *sorted(cuts), whole.end]):
            places = self._places(next(d for d in reversed(found) if d.start <= low))
            made.append(calls.Partition(history.latest.name, request.table_id, low, high, in_turn(places, len(made))))
        return calls.PartitionsReply(made, history, known_upto)

    async def _cuts(self, ranges: Sequence[RangeDescriptor], whole: Span, count: int, at: Timestamp) -> set[bytes]:
        """Up to `count - 1` keys that divide a table evenly."""
        cuts: set[bytes] = set()
        ends: dict[int, tuple[bytes, bytes] | None] = {}
        for number, ratio in divisions(self._weights(ranges), count):
            start, end = max(ranges[number].start, whole.start), min(ranges[number].end, whole.end)
            if ratio in (0, ONE):
                cuts.add(end if ratio else start)
                continue
            if number not in ends:
                ends[number] = await self._ends(start, end, at)
            if (known := ends[number]) is not None:
                point = max(start, point_between(*known, ratio))
                found = await self._gateway.node.kv.scan(point, end, max_keys=1, ts=at, follower_ok=True)
                cuts.update(found.keys)
        return {cut for cut in cuts if whole.start < cut < whole.end}

    async def _ends(self, start: bytes, end: bytes, at: Timestamp) -> tuple[bytes, bytes] | None:
        """The first and the last key of a span."""
        kv = self._gateway.node.kv
        first = await kv.scan(start, end, max_keys=1, ts=at, follower_ok=True)
        last = await kv.reverse_scan(start, end, max_keys=1, ts=at, follower_ok=True)
        return (first.keys[0], last.keys[0]) if first.keys and last.keys else None

    def _weights(self, ranges: Sequence[RangeDescriptor]) -> list[int]:
        """About how many rows each range has."""
        store = self._gateway.node.store
        here = [store.replicas.get(d.range_id) for d in ranges]
        known = [None if r is None else Stats(*r.state.stats).live_keys for r in here]
        counted = [rows for rows in known if rows is not None]
        average = sum(counted) // len(counted) if counted else 1
        return [max(1, average if rows is None else rows) for rows in known]

    def _places(self, descriptor: RangeDescriptor) -> list[calls.ReplicaPlace]:
        """The replicas, the leaseholder last."""
        node = self._gateway.node
        here = node.store.replicas.get(descriptor.range_id)
        cached = node.sender.cache.leaseholder(descriptor.range_id)
        leaseholder = here.state.lease.holder if here is not None else cached
        known = [node.book.nodes[n] for n in sorted(descriptor.replicas) if n in node.book.nodes]
        known.sort(key=lambda n: n.node_id == leaseholder)
        return [calls.ReplicaPlace(n.node_id, n.address, n.locality) for n in known]


def in_turn(places: list[calls.ReplicaPlace], number: int) -> tuple[calls.ReplicaPlace, ...]:
    """The order for the partition of this number: all but the last take turns in being the first."""
    if not places:
        return ()
    followers, leaseholder = places[:-1], places[-1]
    at = number % len(followers) if followers else 0
    return (*followers[at:], *followers[:at], leaseholder)


def divisions(weights: Sequence[int], count: int) -> list[tuple[int, int]]:
    """Where `count` even parts end: (number of the piece, how far in it, of `ONE`). All but the last end."""
    tops = list(itertools.accumulate(weights))
    found = []
    for part in range(1, count):
        place = tops[-1] * part // count
        number = bisect_right(tops, place)
        ratio = ONE * (place - (tops[number] - weights[number])) // weights[number]
        found.append((number, 0 if ratio < NEAR else ONE if ratio > ONE - NEAR else ratio))
    return found


def point_between(first: bytes, last: bytes, ratio: int) -> bytes:
    """A byte string that lies `ratio` of `ONE` between two keys, as numbers."""
    if first >= last:
        return last
    common = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    width = common + DIGITS
    low = int.from_bytes(first[common:width].ljust(DIGITS, b"\x00"), "big")
    high = int.from_bytes(last[common:width].ljust(DIGITS, b"\x00"), "big")
    return first[:common] + (low + (high - low) * ratio // ONE).to_bytes(DIGITS, "big")
