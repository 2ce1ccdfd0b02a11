"""A consumer that comes back with its token finds its history, although it is far older than the time to live (I-27)."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from slackwater.errors import BelowGcThreshold
from slackwater.protect.zone_changes import change_zone
from tests.sim.cluster import Cluster, play
from tests.sim.test_client import session

if TYPE_CHECKING:
    from slackwater.client.database import AsyncDatabase

SETTINGS = {
    "gc.interval": 0.5,
    "queue.interval": 1.0,
    "span_config.poll_interval": 1.0,
    "closed_timestamp.target_duration": 0.5,
    "protected_timestamp.refresh_interval": 1.0,
    "protected_timestamp.reconcile_interval": 1.0,
    "feed.protection_grace": 60.0,
}
AWAY_S = 20.0


async def some(db: AsyncDatabase, *, upto: int | None = None, **asked: Any) -> tuple[str, list[int]]:
    """Follow until the row 1 has had the value `upto`, or until something is resolved; (token, values of row 1)."""
    values: list[int] = []
    async with aclosing(db.changes("t", resolved=0.1, **asked)) as feed:
        async for batch in feed:
            if batch.kind == "rows":
                values += [row["v"] for row in batch.data.to_pylist() if row["id"] == 1]
            elif upto is None or (values and values[-1] >= upto):
                return batch.token, values
    raise AssertionError("the feed ended")


async def begun(c: Cluster) -> AsyncDatabase:
    db = session(c)
    await db._gateways.greet()
    await db.create_table("t", {"id": "int8", "v": "int8"}, primary_key="id")
    await change_zone(c.kv, b"", b"", gc_ttl_s=2.0)
    await db.upsert("t", [{"id": 1, "v": 0}])
    return db


async def overwritten(c: Cluster, db: AsyncDatabase) -> None:
    for number in range(1, 11):
        await db.upsert("t", [{"id": 1, "v": number}])
    await c.settle(AWAY_S)


def feeds(found: list[Any]) -> list[Any]:
    return [one for one in found if one.kind == "feed"]


def test_one_that_went_away_finds_everything_above_its_token_and_takes_its_protection_over() -> None:
    async def story(c: Cluster) -> None:
        db = await begun(c)
        token, _ = await some(db)
        await c.settle(2)
        (left,) = feeds(await db.protections())
        assert left.expires > 0, "for the grace time, and not for ever"
        await overwritten(c, db)
        again, values = await some(db, after=token, upto=10)
        assert values == list(range(1, 11)), "every version, although nine of them are older than the ttl"
        await c.settle(2)
        (later,) = feeds(await db.protections())
        assert later.id != left.id, "what was left is released by the feed that goes on with it"
        await c.settle(70)
        assert feeds(await db.protections()) == [], "the grace time is over"
        await c.settle(10)
        with pytest.raises(BelowGcThreshold, match="earliest readable time"):
            await some(db, after=token)
        assert again

    world = play(story, settings=SETTINGS)
    assert world.probes["protect.covered"] == 1
    assert world.probes["feeds.protection_taken_over"] == 1


def test_without_a_grace_time_nothing_is_left() -> None:
    async def story(c: Cluster) -> None:
        db = await begun(c)
        token, _ = await some(db)
        await c.settle(2)
        assert feeds(await db.protections()) == []
        await overwritten(c, db)
        with pytest.raises(BelowGcThreshold):
            await some(db, after=token)

    play(story, settings={**SETTINGS, "feed.protection_grace": 0.0})


def test_one_whose_gateway_crashed_finds_everything_too() -> None:
    async def story(c: Cluster) -> None:
        db = await begun(c)
        kept: dict[str, Any] = {}

        async def follow() -> None:
            async with aclosing(db.changes("t", resolved=0.1)) as feed:
                async for batch in feed:
                    if batch.kind == "resolved":
                        kept.setdefault("token", batch.token)

        following = c.scope.spawn(follow(), name="follow")
        while "token" not in kept:
            await c.settle(0.1)
        machine = c.world.nodes[0]
        machine.crash()
        following.cancel()
        machine.start()
        await c.settle(20)
        db = session(c)
        await db._gateways.greet()
        await overwritten(c, db)
        (left,) = feeds(await db.protections())
        assert left.expires > 0
        _, values = await some(db, after=kept["token"], upto=10)
        assert values[-10:] == list(range(1, 11))

    world = play(story, settings=SETTINGS)
    assert world.probes["feeds.protection_left_by_process"] == 1


def test_a_crowd_of_protections_is_not_made_worse() -> None:
    """A consumer that comes and goes every second fills at most half of the limit."""

    async def story(c: Cluster) -> None:
        db = await begun(c)
        for _ in range(12):
            await some(db)
        await c.settle(3)
        assert 1 <= len(feeds(await db.protections())) <= 5

    play(story, settings={**SETTINGS, "protected_timestamp.records_max": 8.0})
