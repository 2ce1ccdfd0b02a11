"""The two settings of leases on descriptors change in one order only, and a refusal says what to do first."""

from __future__ import annotations

import asyncio

import pytest

from slackwater.clock.timestamp import MIN, add_seconds
from slackwater.errors import InvalidSetting, UsageError
from slackwater.model.descriptors import Epoch, Liveness
from slackwater.model.ids import NodeId
from slackwater.protocol.node.config import CHANGE_SETTING, ChangeSetting
from slackwater.server.cluster_settings import read_settings
from slackwater.server.lease_settings import ABANDONED, DURATION, check_abandoned, check_duration
from tests.unit.server.cluster import Cluster

NOW = add_seconds(MIN, 1_000.0)


def record(node: int, *, lease_s: float, ends_in_s: float = 2.0) -> Liveness:
    return Liveness(NodeId(node), Epoch(1), add_seconds(NOW, ends_in_s), lease_ms=round(lease_s * 1000))


def test_the_duration_stays_at_or_below_the_time_after_which_leases_are_deleted() -> None:
    check_duration(8.0, abandoned_s=8.0)
    with pytest.raises(UsageError, match=f"{DURATION} cannot be 20 s while {ABANDONED} is 8 s") as caught:
        check_duration(20.0, abandoned_s=8.0)
    assert f"set {ABANDONED} to 20 or more first, then {DURATION}" in caught.value.message


def test_leases_are_deleted_no_earlier_than_any_node_relies_on_them() -> None:
    check_abandoned(4.0, duration_s=4.0, records=[record(1, lease_s=4.0)], now=NOW)
    with pytest.raises(UsageError, match=f"set {DURATION} to 4 or less first, then {ABANDONED}"):
        check_abandoned(4.0, duration_s=8.0, records=[], now=NOW)
    with pytest.raises(UsageError, match=r"some nodes still rely on their leases for longer: n2 \(8 s\); .* in 10 s"):
        check_abandoned(4.0, duration_s=4.0, records=[record(1, lease_s=4.0), record(2, lease_s=8.0)], now=NOW)
    # what a node that died long ago was promised is over
    check_abandoned(4.0, duration_s=4.0, records=[record(2, lease_s=8.0, ends_in_s=-9.0)], now=NOW)


def test_a_running_cluster_takes_the_safe_order_only() -> None:
    async def main() -> None:
        async with Cluster(2, liveness__duration=1.0) as cluster:
            node = cluster.nodes[1]

            async def change(name: str, value: float | None) -> dict[str, float]:
                reply = await node.dialer.call(node.address, CHANGE_SETTING, ChangeSetting(name, value), timeout=10.0)
                return reply.values

            with pytest.raises(UsageError, match=f"set {ABANDONED} to 20 or more first"):
                await change(DURATION, 20.0)
            assert await read_settings(node.kv) == {}, "nothing is half-changed"
            with pytest.raises(InvalidSetting):
                await change(ABANDONED, 0.0)
            assert await change(ABANDONED, 20.0) == {ABANDONED: 20.0}
            assert await change(DURATION, 20.0) == {ABANDONED: 20.0, DURATION: 20.0}
            with pytest.raises(UsageError, match=f"set {DURATION} to 8 or less first"):
                await change(ABANDONED, None)
            await cluster.until(
                lambda: all(n.liveness.own() is not None and n.liveness.own().lease_ms == 20_000 for n in cluster.nodes)
            )
            await change(DURATION, None)
            with pytest.raises(UsageError, match="some nodes still rely on their leases for longer"):
                await change(ABANDONED, None)
            assert await read_settings(node.kv) == {ABANDONED: 20.0}

    asyncio.run(main())
