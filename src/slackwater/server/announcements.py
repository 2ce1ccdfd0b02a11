"""What a node hears of at once: one feed over the system's own records, beside the polling that repairs it.

    liveness         NodeLiveness learns of a record when it is written, not at its next heartbeat
    span config      SpanWatch is nudged and reads
    settings         ClusterSettings puts them into force
    descriptors      the catalog's bell rings, and it reads what is new
    jobs             the driver of jobs looks for what has changed

Each of them works without a feed, only later: nothing that must be right depends on an announcement (pitfall 44).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.catalog.records import descriptors_span
from slackwater.config.zones import zones_span
from slackwater.feeds.watch import CatalogBell, SystemWatch, Topic
from slackwater.jobs.record import open_span
from slackwater.model.spans import Span
from slackwater.replica.driver.liveness import liveness_span
from slackwater.server.cluster_settings import ClusterSettings, settings_span

if TYPE_CHECKING:
    from slackwater.replica.driver import NodeLiveness
    from slackwater.server.node import Node


def announcements(node: Node, liveness: NodeLiveness) -> SystemWatch:
    """The watch of a node that belongs to a cluster; its two loops run with the node."""
    bell = CatalogBell()
    node.catalog.watch = bell
    topics = [
        Topic("liveness", Span(*liveness_span()), lambda _, raw: liveness.heard(raw), poll=False),
        Topic("span config", zones_span(), lambda _, __: node.span_watch.nudge(), poll=False),
        Topic("settings", settings_span(), ClusterSettings(node.settings).heard),
        Topic("descriptors", descriptors_span(), bell.ring, poll=False),
        Topic("jobs", open_span(), node.jobs.ring, poll=False),
    ]
    watch = SystemWatch(topics, client=node.feed_client, kv=node.kv)
    node.scope.spawn(watch.follow(), name="announcements")
    node.scope.spawn(watch.poll(), name="announcements repaired")
    return watch
