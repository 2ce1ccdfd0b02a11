"""What a node says of itself: /health, /metrics, and its journal."""

from __future__ import annotations

import asyncio
import io
import json
import re

import pytest

from slackwater.cli.start import http_address
from slackwater.codec.layout import kv
from slackwater.errors import UsageError
from slackwater.server import metrics
from slackwater.server.arguments import http_tls
from slackwater.server.health import answer, health
from slackwater.server.journal import LINE_CHARS_MAX, Format, Journal, Level
from slackwater.txn.staleness import Staleness
from tests.unit.server.cluster import Cluster

LINE = re.compile(r'([a-z_]+)(\{[a-z]+="[^"]*"\})? (-?[0-9.e+-]+)')


def values(page: str) -> dict[str, float]:
    """Every sample of a page; fails on a line that is none."""
    found = {}
    for line in page.splitlines():
        if not line.startswith("# "):
            match = LINE.fullmatch(line)
            assert match, line
            found[match.group(1) + (match.group(2) or "")] = float(match.group(3))
    return found


def test_a_serving_node_is_ready_and_has_numbers() -> None:
    async def test() -> None:
        async with Cluster(2) as cluster:
            await cluster.fill(100)
            node = cluster.nodes[0]
            found = answer(node.node, "/health")
            assert found.status == 200, found.body
            said = json.loads(found.body)
            assert (said["live"], said["ready"], said["reasons"], said["node"]) == (True, True, [], "n1")
            page = values(answer(node.node, "/metrics").body)
            assert page["slackwater_ready"] == 1
            assert page['slackwater_node_live{node="n1"}'] == 1
            assert page['slackwater_node_live{node="n2"}'] == 1
            assert page["slackwater_ranges"] == len(node.store.replicas)
            assert page["slackwater_live_keys"] >= 100
            assert (
                page['slackwater_closed_lag_seconds{quantile="0"}']
                <= page['slackwater_closed_lag_seconds{quantile="1"}']
            )
            assert answer(node.node, "/nothing").status == 404

    asyncio.run(test())


def test_closing_on_demand_and_follower_reads_are_counted() -> None:
    async def test() -> None:
        async with Cluster(1, closed_timestamp__target_duration=600.0) as cluster:
            node = cluster.nodes[0]
            await node.kv.put(kv(b"a"), b"1")
            before = values(answer(node.node, "/metrics").body)
            session = Staleness(sender=node.sender, clock=node.clock, settings=node.settings)
            at = await session.close([(kv(b"a"), kv(b"b"))])
            assert await session.close([(kv(b"a"), kv(b"b"))], at=at) == at, "closed already: nothing is written"
            assert await node.kv.get(kv(b"a"), ts=at, follower_ok=True) == b"1"
            await node.kv.get(kv(b"a"), ts=node.clock.now(), follower_ok=True)
            page = values(answer(node.node, "/metrics").body)
            assert page["slackwater_closes_total"] - before["slackwater_closes_total"] == 1
            assert page["slackwater_close_seconds_total"] > before["slackwater_close_seconds_total"]
            for name in ("slackwater_follower_reads_total", "slackwater_follower_reads_refused_total"):
                assert page[name] == before[name] + 1, name
            assert 'slackwater_cannot_close_total{reason="merge in progress"}' in page

    asyncio.run(test())


def test_a_node_that_is_quarantined_draining_or_expired_says_so() -> None:
    async def test() -> None:
        async with Cluster(1) as cluster:
            node = cluster.nodes[0]
            node.store.quarantined[7] = "it differs"
            assert health(node.node).ready
            assert health(node.node).warnings == ["r7 is quarantined: it differs"]
            node.liveness._own = None
            found = answer(node.node, "/health/ready")
            assert found.status == 503
            assert "liveness record has expired" in json.loads(found.body)["reasons"][0]
            assert answer(node.node, "/health/live").status == 200

    asyncio.run(test())


def test_metrics_escape_what_labels_may_not_hold() -> None:
    page = metrics.render([metrics.gauge("a", "back\\slash\nline", 0.5, peer='x"y\\z\n')])
    assert page == '# HELP a back\\\\slash\\nline\n# TYPE a gauge\na{peer="x\\"y\\\\z\\n"} 0.5\n'
    assert metrics.render([metrics.gauges("empty", "none", "peer", {})]) == "\n"


@pytest.mark.parametrize(
    ("said", "listen", "expected"),
    [
        ("", "127.0.0.1:7400", "127.0.0.1:7480"),
        ("", "127.0.0.1:7402", "127.0.0.1:7482"),
        ("", "[::1]:7400", "[::1]:7480"),
        ("", "127.0.0.1:65500", "127.0.0.1:0"),
        ("", "127.0.0.1:0", "127.0.0.1:0"),
        ("none", "127.0.0.1:7400", ""),
        ("127.0.0.1:9000", "127.0.0.1:7400", "127.0.0.1:9000"),
    ],
)
def test_where_http_is_served(said: str, listen: str, expected: str) -> None:
    assert http_address(said, listen=listen) == expected


def test_http_without_certificates_is_for_loopback_only() -> None:
    assert http_tls(credentials=None, listen="127.0.0.1:7480") is None
    assert http_tls(credentials=None, listen="") is None
    with pytest.raises(UsageError, match="loopback addresses only"):
        http_tls(credentials=None, listen="0.0.0.0:7480")


class Clock:
    def wall_ns(self) -> int:
        return 1_800_000_000_123_456_789


def test_the_journal_as_json_keeps_types_and_stays_json() -> None:
    to = io.StringIO()
    journal = Journal(Clock(), to=to, form=Format.JSON)
    journal.warn("lost", range="r3", count=3, ok=True, level="high", text='a "b"\nc')
    journal.error("long", text="x" * (2 * LINE_CHARS_MAX))
    first, second = map(json.loads, to.getvalue().splitlines())
    assert first == {
        "time": "2027-01-15T08:00:00.123456Z",
        "level": "warn",
        "event": "lost",
        "range": "r3",
        "count": 3,
        "ok": True,
        "level_": "high",
        "text": 'a "b"\nc',
    }
    assert len(second["text"]) == LINE_CHARS_MAX // 2


def test_the_journal_leaves_out_what_matters_less() -> None:
    to = io.StringIO()
    journal = Journal(Clock(), to=to, level=Level.WARN)
    journal.debug("a")
    journal.info("b")
    journal.warn("c")
    journal.error("d")
    assert [line.split()[2] for line in to.getvalue().splitlines()] == ["c", "d"]
