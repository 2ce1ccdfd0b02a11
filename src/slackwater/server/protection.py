"""Protections of a node: where the store of them meets the catalog, the zones and the node's tasks.

    node.protections ── Store, ProtectionCatalog      transactions over three system tables
                     └─ PollingTracker      this node's copy, polled; garbage collection asks it

To protect a table is to protect what it takes to read it then: its descriptors and its name from the catalog, its zone and that
of the rest.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from slackwater.catalog.records import history_spans
from slackwater.clock.timestamp import MIN, add_seconds, seconds_between
from slackwater.codec.layout import table_span
from slackwater.config.zones import zone_key
from slackwater.errors import SlackwaterError
from slackwater.model.spans import Span
from slackwater.protect import ProtectionCatalog, Protections, ProtectionStore
from slackwater.protect.driver import PollingTracker
from slackwater.routing.parallel import in_parallel
from slackwater.storage.stats import Stats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slackwater.clock.timestamp import Timestamp
    from slackwater.config.zones import Zones
    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.model.protection import Record
    from slackwater.server.node import Node

ASKED_AT_ONCE_MAX = 16


def node_protections(node: Node) -> Protections:
    """The protections of a node that belongs to a cluster; its copy of them is kept fresh from now on."""

    def decoding(table_id: int) -> list[Span]:
        history = node.catalog.tables.by_id(table_id)
        names = [version.name for version in history.versions] if history else []
        zones = [Span.point(zone_key(start)) for start in (b"", table_span(table_id).start)]
        return [*history_spans(table_id, names), *zones]

    store = ProtectionStore(clock=node.clock, settings=node.settings, rng=node.runtime.rng, decoding=decoding)
    tracker = PollingTracker(node.kv, settings=node.settings)
    node.scope.spawn(tracker.run(), name="protections")
    return Protections(node.kv, store, ProtectionCatalog(node.settings), tracker)


class PinnedHistory:
    """How much history protections pin: what is not live in the ranges they cover, once it is older than its ttl."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def of(self, records: Sequence[Record]) -> dict[bytes, int]:
        """Bytes by record, over the whole cluster; of nodes that do not answer, nothing."""
        node = self._node
        now, zones = node.clock.peek(), node.span_watch.zones
        works = [partial(node.peers.status, node_id) for node_id in node.book.nodes]
        answers = await in_parallel(node.scope, works, limit=ASKED_AT_ONCE_MAX, name="pinned")
        found: dict[bytes, int] = {}
        for answer in answers if records else ():
            if isinstance(answer, SlackwaterError):
                continue
            for status in answer.replicas:
                if status.lease.holder == answer.node_id:
                    for record_id in pinning(records, zones, status.descriptor, now):
                        found[record_id] = found.get(record_id, 0) + history_bytes(status.stats)
        return found

    def here(self) -> int:
        """Bytes in ranges that this node leads, whichever protection pins them."""
        node, records = self._node, self._node.protections.tracker.state.records
        if node.store is None or not records:
            return 0
        now, zones = node.clock.peek(), node.span_watch.zones
        led = [r.state for r in node.store.replicas.values() if r.state.lease.holder == node.node_id]
        return sum(history_bytes(s.stats) for s in led if any(pinning(records, zones, s.descriptor, now)))

    def oldest_s(self) -> float:
        """The age of the oldest protected timestamp; 0 without any."""
        records = self._node.protections.tracker.state.records
        now = self._node.clock.peek()
        return max((seconds_between(record.ts, now) for record in records), default=0.0)

    def warnings(self) -> list[str]:
        """What an operator should know: protections that are very old."""
        limit_s, age_s = self._node.settings["protected_timestamp.warning_age"], self.oldest_s()
        if not limit_s or age_s <= limit_s:
            return []
        return [
            f"a protected timestamp is {age_s / 3600:.1f} hours old and keeps history from being collected"
            f" ({self.here() >> 20} MiB in ranges led here); see `slackwater protections`"
        ]


def pinning(records: Sequence[Record], zones: Zones, descriptor: RangeDescriptor, now: Timestamp) -> Iterator[bytes]:
    """The records that keep what the ttl would let go in a range."""
    span = Span(descriptor.start, descriptor.end)
    here = zones.of(span)
    young = add_seconds(now, -here.gc_ttl_s) if here is not None else MIN
    return (record.id for record in records if record.ts < young and record.overlaps(span))


def history_bytes(stats: tuple[int, ...]) -> int:
    """Bytes of versions that are not live."""
    counted = Stats(*stats)
    return max(0, counted.total_bytes - counted.live_bytes)
