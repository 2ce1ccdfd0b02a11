"""What a node hears of at once: one feed over the system's own records, beside the polling that repairs it.

    liveness         NodeLiveness learns of a record when it is written, not at its next heartbeat
    span config      ZoneFollower is nudged and reads
    settings         ClusterSettings puts them into force
    descriptors      the catalog's bell rings, and it reads what is new
    jobs             the driver of jobs looks for what has changed

Each of them works without a feed, only later: nothing that must be right depends on an announcement (pitfall 44).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.catalog.records import descriptors_span
from slackwater.config.setting_records import settings_span
from slackwater.config.zones import zones_span
from slackwater.feeds.watch import CatalogBell, Topic, TopicFollower
from slackwater.jobs.record import open_span
from slackwater.model.spans import Span
from slackwater.replica.driver.liveness import liveness_span

if TYPE_CHECKING:
    from slackwater.server.member import Member


def announcements(member: Member) -> TopicFollower:
    """The watch of one node; the member runs its two loops."""
    bell = CatalogBell()
    member.catalog.watch = bell
    topics = [
        Topic("liveness", Span(*liveness_span()), lambda _, raw: member.liveness.heard(raw), poll=False),
        Topic("span config", zones_span(), lambda _, __: member.zone_follower.nudge(), poll=False),
        Topic("settings", settings_span(), member.cluster_settings.heard),
        Topic("descriptors", descriptors_span(), bell.ring, poll=False),
        Topic("jobs", open_span(), member.jobs.ring, poll=False),
    ]
    return TopicFollower(topics, client=member.feed_client, kv=member.kv)
