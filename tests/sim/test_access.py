"""Machines of the simulator show certificates too, and the same check lets them in or does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from slackwater.errors import AccessDenied
from slackwater.protocol.client import calls
from slackwater.protocol.node import services
from slackwater.runtime.access import Certificate
from slackwater.runtime.rpc import Dialer, Identity
from slackwater.runtime.sync import Event
from tests.sim.cluster import NODE, Cluster, play

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from slackwater.sim.world import SimRuntime


async def elsewhere(
    c: Cluster, name: str, work: Callable[[Dialer], Awaitable[None]], *, role: str, node_id: int = 0
) -> None:
    """Do some work on a machine of its own, which shows a certificate of that role."""
    done = Event()
    problems: list[BaseException] = []

    async def boot(runtime: SimRuntime) -> None:
        scope = runtime.scope("elsewhere")
        identity = Identity(cluster_id="test", node_id=node_id)
        dialer = Dialer(runtime, scope, identity=identity, settings=c.settings)
        try:
            await work(dialer)
        except BaseException as error:
            problems.append(error)
        finally:
            await dialer.close()
            done.set()

    if role == "node":
        c.world.add_node(name, boot)
    else:
        c.world.add_client(name, boot, role=role)
    while not done.is_set():
        await c.settle(0.1)
    if problems:
        raise problems[0]


def test_a_client_uses_tables_and_nothing_below() -> None:
    async def story(c: Cluster) -> None:
        async def work(dialer: Dialer) -> None:
            assert (await dialer.call(NODE, calls.CLUSTER, calls.AskCluster(), timeout=5)).cluster_id == "test"
            with pytest.raises(AccessDenied, match=r"store\.status is for nodes and operators, not for client 'c9'"):
                await dialer.call(NODE, services.STATUS, services.StatusRequest(), timeout=5)

        await elsewhere(c, "c9", work, role="client")

    play(story)


def test_another_machine_cannot_be_the_node_that_is_known_here() -> None:
    async def story(c: Cluster) -> None:
        async def work(dialer: Dialer) -> None:
            with pytest.raises(AccessDenied, match="is for n9, and n1 is at n1"):
                await dialer.call(NODE, services.REPORT, services.ReportRequest(), timeout=5)

        await elsewhere(c, "n9", work, role="node", node_id=1)

    play(story)


def test_a_machine_without_a_role_is_nobody() -> None:
    async def story(c: Cluster) -> None:
        async def work(dialer: Dialer) -> None:
            c.world.net.hosts["c8"].certificate = Certificate("", "root")
            with pytest.raises(AccessDenied, match="has no role"):
                await dialer.call(NODE, calls.CLUSTER, calls.AskCluster(), timeout=5)

        await elsewhere(c, "c8", work, role="operator")

    play(story)
