"""The scheduler of queues: what a broken queue does to the others, and when a sweep comes early."""

from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING, Any

import pytest

from slackwater.codec.layout import kv
from slackwater.errors import InvariantViolation, SlackwaterError, UnavailableError
from slackwater.model.ids import RangeId
from slackwater.protocol.range import requests
from slackwater.runtime import run
from slackwater.runtime.clock import RealClock
from slackwater.runtime.rpc.faults import pack, unpack
from slackwater.server.health import answer
from slackwater.server.journal import Journal
from slackwater.server.process import tell_crash
from slackwater.server.queues.scheduler import PROMPT_SWEEPS_MAX
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from slackwater.server.member import Member
    from slackwater.server.queues.context import Visit

R3 = RangeId(3)
HOUR = 3600.0


class Broken:
    """A queue that raises on one range."""

    name = "trim"

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.calls = 0

    async def process(self, visit: Visit) -> bool:
        """Raise."""
        if visit.descriptor.range_id == R3:
            self.calls += 1
            raise self.error
        return False


class After:
    """A queue behind the broken one."""

    name = "txns"

    def __init__(self) -> None:
        self.seen: list[int] = []

    async def process(self, visit: Visit) -> bool:
        """Note the range."""
        self.seen.append(visit.descriptor.range_id)
        return False


def with_broken(node: Member, error: Exception) -> tuple[Broken, After, list[dict[str, Any]]]:
    """Give a node a queue that raises and one behind it; returns both and what reaches the loop's handler."""
    broken, after = Broken(error), After()
    node.queues.queues = [broken, after]
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    return broken, after, reported


def test_a_queue_that_crashes_is_reported_and_rests_while_everything_else_goes_on() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            (node,) = cluster.nodes
            broken, after, reported = with_broken(node, ZeroDivisionError("a bug"))
            for _ in range(3):
                await node.queues.sweep()
            assert broken.calls == 1, "it leaves the range alone for a while"
            assert after.seen.count(R3) == 3, "the queues behind it are not stopped"
            assert [str(c["exception"]) for c in reported] == ["a bug"]
            assert node.queues.crashes == node.queues.failures["trim"] == 1
            assert "slackwater_queue_crashes_total 1" in answer(node.node, "/metrics").body
            assert "trim of r3 crashed: ZeroDivisionError: a bug" in node.queues.status()
            assert not node.store.quarantined
            assert node.scope.failure is None
            node.queues._rests["trim", R3] = (1, 0)
            await node.queues.sweep()
            await node.queues.sweep()
            assert broken.calls == 2
            crashes, until_ns = node.queues._rests["trim", R3]
            assert crashes == 2
            assert until_ns - node.queues.context.now_ns() > 1e9, "longer each time"
            broken.error = UnavailableError("not now")
            node.queues._rests["trim", R3] = (2, 0)
            await node.queues.sweep()
            assert node.queues.crashes == 2, "what may happen any day is no crash"

    run(main())


def test_the_journal_keeps_the_trace_of_what_crashed() -> None:
    to = io.StringIO()
    with pytest.raises(ValueError) as met:
        int("a bug")
    tell_crash(Journal(RealClock(), to=to), {"message": "the queue trim of r3 crashed", "exception": met.value})
    first, *trace = to.getvalue().splitlines()
    assert 'ERROR crashed what="the queue trim of r3 crashed" error="ValueError:' in first
    assert any("test_scheduler.py" in line for line in trace)


@pytest.mark.parametrize(
    ("error", "quarantined"),
    [
        (InvariantViolation("I-06", {"stats": 1}), True),
        (InvariantViolation("A-name", {}), False),
        (unpack(*pack(InvariantViolation("I-06", {}))), False),
    ],
    ids=["of the range's state", "local assertion", "found by a peer"],
)
def test_only_a_violation_found_here_in_the_ranges_state_quarantines_it(
    error: SlackwaterError, quarantined: bool
) -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            (node,) = cluster.nodes
            _, _, reported = with_broken(node, error)
            await node.queues.sweep()
            assert set(node.store.quarantined) == ({R3} if quarantined else set())
            assert bool(reported) == quarantined
            assert node.scope.failure is None
            assert node.queues.failures["trim"] == 1

    run(main())


def test_a_sweep_that_crashes_as_a_whole_ends_nothing() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            (node,) = cluster.nodes
            _, _, reported = with_broken(node, ZeroDivisionError("unused"))

            async def crash() -> None:
                raise KeyError("a bug in the scheduler")

            await node.queues._guarded(crash)
            assert len(reported) == node.queues.crashes == 1
            assert node.scope.failure is None

    run(main())


class Stuck:
    """A queue whose every visit waits for somebody who will not come."""

    name = "merge"

    def __init__(self) -> None:
        self.waiting = 0

    async def process(self, visit: Visit) -> bool:
        """Wait."""
        self.waiting += 1
        await asyncio.Event().wait()
        return False


def test_a_frozen_range_is_thawed_however_long_the_visits_of_other_queues_take() -> None:
    async def main() -> None:
        async with Cluster(1, queue__interval=0.02, queue__concurrency=1) as cluster:
            (node,) = cluster.nodes
            stuck = Stuck()
            node.queues.queues = [*node.queues.queues[:2], stuck]
            await cluster.fill(10)
            await cluster.until(lambda: stuck.waiting)
            left, right = await node.admin.split(kv(b"k000005"))
            await node.admin.ask(requests.Subsume(left.range_id, left.generation), at=right.start)
            await cluster.until(lambda: node.store.replicas[right.range_id].state.frozen is None)
            assert stuck.waiting == 1, "the other lane was held up all the time"
            assert len(await cluster.keys()) == 10

    run(main())


def test_new_nodes_get_their_replicas_at_once_however_rare_sweeps_are() -> None:
    async def main() -> None:
        async with Cluster(3, queue__interval=HOUR) as cluster:
            await cluster.until(
                lambda: all(n.store and {1, 2, 3} <= n.store.replicas.keys() for n in cluster.nodes),
            )

    run(main())


def test_sweeps_that_wake_each_other_come_early_only_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr("slackwater.server.queues.scheduler.PROMPT_PAUSE_S", 0.0)
        async with Cluster(1, queue__interval=HOUR) as cluster:
            (node,) = cluster.nodes

            class Restless(After):
                async def process(self, visit: Visit) -> bool:
                    visit.again = True
                    return await super().process(visit)

            restless = Restless()
            node.queues.queues = [restless]
            node.queues.wake()
            await cluster.until(lambda: node.queues._upkeep.early >= PROMPT_SWEEPS_MAX)
            seen = len(restless.seen)
            node.queues.wake()
            for _ in range(50):
                await asyncio.sleep(0)
            assert len(restless.seen) <= seen + 3, "one sweep may have been under way"

    run(main())


def test_a_step_left_to_another_node_is_looked_at_again_within_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr("slackwater.server.queues.scheduler.TURN_S", 0.01)
        async with Cluster(1, queue__interval=HOUR) as cluster:
            (node,) = cluster.nodes

            class Second(After):
                name = "nudge"

                async def process(self, visit: Visit) -> bool:
                    visit.waits_its_turn = len(self.seen) < 12
                    return await super().process(visit)

            second = Second()
            node.queues.queues = [second]
            node.queues.wake()
            await cluster.until(lambda: len(second.seen) >= 12)

    run(main())
