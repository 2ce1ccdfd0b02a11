"""A table in parts that tasks read in parallel.

    ranges      ├───────── r7 ─────────┤├── r8 ──┤├──────── r9 ────────┤
    count = 0   ├──────────────────────┤├────────┤├────────────────────┤     one a range: where the rows are
    count = 6   ├───────┤├──────┤├─────┤├────────┤├─────────┤├─────────┤     ranges divided, none put together
    count = 2   ├────────────────────────────────┤├────────────────────┤     neighbours put together

A range is divided at rows that are there: points spread evenly, as numbers, between its first and its last key, and the
first row at or after each. That is even for ids that are spread evenly and merely correct for others. Divisions are
about speed only: a partition is a span, whoever reads it re-resolves which ranges hold it.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from slackwater.errors import UsageError
from slackwater.model import native as nt
from slackwater.model.layout import schema_span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.runtime.rpc.method import Context
    from slackwater.server.gateway.service import Gateway

PARTITIONS_MAX = 10_000
DIGITS = 8
"""Bytes, after what first and last key have in common, that points are spread over."""


class Partitions:
    """Divides tables."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def partitions(self, request: nt.GetPartitions, context: Context) -> nt.PartitionsReply:
        """Parts of a table, in key order, without gaps."""
        if not 0 <= request.count <= PARTITIONS_MAX:
            raise UsageError(f"a table is read in 1 to {PARTITIONS_MAX} partitions", count=request.count)
        node = self._gateway.node
        history = await self._gateway.catalog.find_id(request.table_id)
        whole = schema_span(history.latest.schema)
        found = await node.sender.ranges_of(whole.start, whole.end, timeout=context.remaining())
        pieces = [(max(d.start, whole.start), min(d.end, whole.end), d) for d in found]
        made: list[nt.Partition] = []
        for group, share in shares(pieces, request.count):
            start, end, descriptor = group[0][0], group[-1][1], group[0][2]
            cuts = [start, *await self._cuts(start, end, share, request.at), end]
            places = self._places(descriptor)
            name = history.latest.name
            made += [nt.Partition(name, request.table_id, low, high, places) for low, high in itertools.pairwise(cuts)]
        return nt.PartitionsReply(made)

    async def _cuts(self, start: bytes, end: bytes, share: int, at: Timestamp) -> list[bytes]:
        """Up to `share - 1` keys that divide a span."""
        if share <= 1:
            return []
        kv = self._gateway.node.kv
        first = await kv.scan(start, end, max_keys=1, ts=at, follower_ok=True)
        last = await kv.reverse_scan(start, end, max_keys=1, ts=at, follower_ok=True)
        if not first.keys or not last.keys:
            return []
        cuts: set[bytes] = set()
        for point in points_between(first.keys[0], last.keys[0], share):
            found = await kv.scan(max(point, start), end, max_keys=1, ts=at, follower_ok=True)
            cuts.update(key for key in found.keys if start < key < end)
        return sorted(cuts)

    def _places(self, descriptor: RangeDescriptor) -> tuple[nt.ReplicaPlace, ...]:
        nodes = self._gateway.node.book.nodes
        known = [nodes[n] for n in descriptor.replicas if n in nodes]
        return tuple(nt.ReplicaPlace(n.node_id, n.address, n.locality) for n in known)


def shares(
    pieces: Sequence[tuple[bytes, bytes, RangeDescriptor]], count: int
) -> list[tuple[Sequence[tuple[bytes, bytes, RangeDescriptor]], int]]:
    """Neighbouring pieces that go together, and into how many parts each group is divided."""
    size = len(pieces)
    if count == 0 or count == size:
        return [([piece], 1) for piece in pieces]
    if count < size:
        bounds = [size * i // count for i in range(count + 1)]
        return [(pieces[low:high], 1) for low, high in itertools.pairwise(bounds)]
    bounds = [count * i // size for i in range(size + 1)]
    return [([piece], bounds[i + 1] - bounds[i]) for i, piece in enumerate(pieces)]


def points_between(first: bytes, last: bytes, parts: int) -> list[bytes]:
    """`parts - 1` byte strings, spread evenly between two keys."""
    if first >= last:
        return []
    common = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    width = common + DIGITS
    low = int.from_bytes(first[common:width].ljust(DIGITS, b"\x00"), "big")
    high = int.from_bytes(last[common:width].ljust(DIGITS, b"\x00"), "big")
    steps = [low + (high - low) * i // parts for i in range(1, parts)]
    return [first[:common] + step.to_bytes(DIGITS, "big") for step in steps]
