"""How long a frozen range waits for the replicas of its merge."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from slackwater.errors import ConnectionLost, UnavailableError
from slackwater.protocol.node.services import ReplicaStatus
from slackwater.runtime import run
from slackwater.server import merging


class Clock:
    """Time passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    async def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


def waited(answer: Any) -> tuple[float, bool]:
    """Seconds that a merge waits for two replicas, the second of which answers so at each time; whether it goes on."""
    clock = Clock()

    def status(position: int) -> ReplicaStatus:
        return ReplicaStatus(None, None, 0, position, 0, 0, (), True, "")  # type: ignore[arg-type]

    async def replicas(nodes: Any, range_id: int) -> dict[int, Any]:
        found = answer(clock.now_ns / 1e9)
        return {1: status(100), 2: status(found) if isinstance(found, int) else found}

    admin = SimpleNamespace(runtime=SimpleNamespace(clock=clock), peers=SimpleNamespace(replicas=replicas))
    try:
        run(merging.wait_applied(admin, 7, (1, 2), 100))  # type: ignore[arg-type]
    except UnavailableError:
        return clock.now_ns / 1e9, False
    return clock.now_ns / 1e9, True


GONE = ConnectionLost("connection refused")


def test_a_slow_replica_is_waited_for_and_a_silent_one_not_so_long():
    assert waited(lambda _: 100) == (0.0, True)
    assert waited(lambda at: 100 if at >= 3 else 99) == (pytest.approx(3.0), True)
    assert waited(lambda _: 99) == (pytest.approx(merging.APPLIED_WAIT_S, abs=0.1), False)
    assert waited(lambda _: GONE) == (pytest.approx(merging.UNREACHABLE_WAIT_S, abs=0.1), False)
    assert waited(lambda _: None)[1] is False, "no replica there"


def test_an_answer_in_between_begins_the_wait_anew():
    assert waited(lambda at: GONE if at < 0.9 or 1.0 < at < 1.9 else 99 if at < 2.5 else 100) == (
        pytest.approx(2.5, abs=0.1),
        True,
    )
