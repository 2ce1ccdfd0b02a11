"""Protections that feeds make: none is lost when a feed is canceled, and none of a running feed is given up."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from slackwater.codec.layout import table_span
from slackwater.server import protection
from tests.unit.client.world import ACCOUNTS, session
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    import pytest

    from slackwater.model.spans import Span
    from slackwater.server.member import Member

STEPS = 60
"""A feed's task is canceled after each of so many steps of the loop: a protection is made in fewer."""


async def made(node: Member, span: Span) -> bytes:
    return await node.feed_protector.protect([span], node.clock.now(), owner="test", user="", former=b"")


async def kept(node: Member) -> list[bytes]:
    await node.protection_tracker.refresh(after=node.clock.now())
    return [record.id for record in node.protection_tracker.state.records]


def test_a_feed_that_is_canceled_while_its_protection_is_made_leaves_none() -> None:
    async def main() -> None:
        async with Cluster(1, protected_timestamp__reconcile_interval=3600) as cluster, session(cluster) as db:
            (node,) = cluster.nodes
            schema = await db.create_table("accounts", ACCOUNTS, primary_key="id")
            span = table_span(schema.table_id, schema.index_id)
            running, told, lost = await made(node, span), [], 0
            for steps in range(STEPS):
                task = asyncio.ensure_future(made(node, span))
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    told.append(await task)
            for one in told:
                await node.feed_protector.release(one)
            lost = len(await kept(node)) - 1
            assert lost > 0, "some commits were under way when their feeds were canceled; or make STEPS more"
            await node.feed_protector.release_ended()
            assert await kept(node) == [running]

    asyncio.run(main())


def test_a_feed_that_outlives_many_others_keeps_its_protection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protection, "MADE_MAX", 3)

    async def main() -> None:
        async with Cluster(1, protected_timestamp__reconcile_interval=3600) as cluster, session(cluster) as db:
            (node,) = cluster.nodes
            schema = await db.create_table("accounts", ACCOUNTS, primary_key="id")
            span = table_span(schema.table_id, schema.index_id)
            running = await made(node, span)
            for _ in range(5):
                await node.feed_protector.release(await made(node, span))
            assert await kept(node) == [running]
            await node.feed_protector.release_ended()
            assert await kept(node) == [running]

    asyncio.run(main())
