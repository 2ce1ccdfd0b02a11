"""System records are announced by feed, and what an announcement misses is read."""

from __future__ import annotations

import msgspec
import pytest

from slackwater.catalog import definition
from slackwater.codec.layout import prefix_span, system
from slackwater.config.setting_records import setting_key
from slackwater.config.zones import zone_key
from slackwater.errors import InvalidSetting, UnknownSetting, UsageError
from slackwater.feeds.watch import CatalogBell, Topic, TopicFollower
from slackwater.model.kinds import INT
from slackwater.protocol.client.calls import ColumnSpec, KeySpec
from slackwater.runtime import run
from slackwater.runtime.sync import timeout
from slackwater.server.cluster_settings import reset_setting, write_setting
from tests.unit.server.cluster import DEADLINE_S, Cluster

NEVER = 3600.0


def test_records_are_announced_to_every_node() -> None:
    async def main() -> None:
        async with Cluster(2, feed__poll_interval=NEVER, span_config__poll_interval=60.0) as cluster:
            first, second = cluster.nodes
            await cluster.until(lambda: second.announcements.announced > 0)
            await write_setting(first.kv, "range.max_bytes", 1 << 20)
            await cluster.until(lambda: all(n.settings["range.max_bytes"] == 1 << 20 for n in cluster.nodes))
            await reset_setting(first.kv, "range.max_bytes")
            await cluster.until(lambda: all(n.settings["range.max_bytes"] == 64 << 20 for n in cluster.nodes))
            reads = second.zone_follower.reads
            await first.kv.put(zone_key(b""), (await first.kv.get(zone_key(b""))) or b"\x80")
            await cluster.until(lambda: second.zone_follower.reads > reads)

    run(main())


def test_a_new_version_of_a_table_is_announced_to_every_node() -> None:
    async def main() -> None:
        async with Cluster(2, feed__poll_interval=NEVER, catalog__poll_interval=60.0) as cluster:
            first, second = cluster.nodes
            made = await first.catalog.create("t", (ColumnSpec("id", INT),), (KeySpec("id"),))
            await second.catalog.find("t")
            await cluster.until(lambda: second.announcements.announced > 0)
            await first.catalog.publish(made.table_id, lambda now: definition.with_column(now, ColumnSpec("a", INT)))
            await cluster.until(lambda: second.catalog.tables.by_id(made.table_id).latest.version == 2)

    run(main())


def test_what_is_not_announced_is_read() -> None:
    async def main() -> None:
        async with Cluster(1, feed__poll_interval=0.1) as cluster:
            node = cluster.nodes[0]
            heard: dict[bytes, bytes] = {}
            span = prefix_span(system("test topic")[:-2])
            watch = TopicFollower([Topic("t", span, heard.__setitem__)], client=node.feed_client, kv=node.kv)
            polling = node.scope.spawn(watch.poll(), name="poll")  # nobody follows the feed
            await node.kv.put(system("test topic", b"1"), b"one")
            await cluster.until(lambda: heard == {system("test topic", b"1"): b"one"})
            await node.kv.delete(system("test topic", b"1"))
            await cluster.until(lambda: heard == {system("test topic", b"1"): b""})
            assert watch.repaired == 2
            assert watch.announced == 0
            polling.cancel()

    run(main())


def test_unknown_and_unsafe_settings_are_refused_and_ignored() -> None:
    async def main() -> None:
        async with Cluster(1, feed__poll_interval=0.1) as cluster:
            node = cluster.nodes[0]
            with pytest.raises(UnknownSetting):
                await write_setting(node.kv, "raft", 1)
            with pytest.raises(InvalidSetting):
                await write_setting(node.kv, "range.max_bytes", -1)
            await node.kv.put(setting_key("nobody.knows"), b"\x01")
            with pytest.raises(UsageError):
                await node.kv.put(setting_key("range.max_bytes"), b"nonsense")
            await node.kv.put(setting_key("range.max_bytes"), msgspec.msgpack.encode(-1.0))
            await write_setting(node.kv, "range.min_bytes", 4096)
            await cluster.until(lambda: node.settings["range.min_bytes"] == 4096)
            assert node.settings["range.max_bytes"] == 64 << 20

    run(main())


def test_a_bell_remembers_that_it_rang() -> None:
    async def main() -> None:
        bell = CatalogBell()
        bell.ring()
        async with timeout(DEADLINE_S):
            await bell.changed()

    run(main())
