"""Protections of a node: where the store of them meets the catalog, the zones and the node's tasks.

    node.protections ── Store, ProtectionCatalog      transactions over three system tables
                     └─ PollingTracker      this node's copy, polled; garbage collection asks it

To protect a table is to protect what it takes to read it then: its descriptors and its name from the catalog, its zone and that
of the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.catalog.records import history_spans
from slackwater.codec.layout import table_span
from slackwater.config.zones import zone_key
from slackwater.model.spans import Span
from slackwater.protect import ProtectionCatalog, Protections, ProtectionStore
from slackwater.protect.driver import PollingTracker

if TYPE_CHECKING:
    from slackwater.server.node import Node


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
