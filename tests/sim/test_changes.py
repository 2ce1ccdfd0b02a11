"""A feed of tables through a gateway on the simulator: virtual time, hostile settings, a gateway that crashes in the middle.

The mirror that a client builds from the feed is the table at every resolved timestamp (I-22), nothing new comes at or below one
(I-23), and each key's versions come in order (I-24), with whole transactions where they were asked for.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from slackwater.catalog import definition
from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.arrow import settle_pandas
from slackwater.codec.layout import schema_span, table_span
from slackwater.config.zones import PolicyKind
from slackwater.errors import NotClosing, SlackwaterError
from slackwater.model.kinds import INT
from slackwater.protect.zone_changes import change_zone, unset_zone
from slackwater.protocol.client.calls import ColumnSpec
from tests.sim.cluster import Cluster, play
from tests.sim.test_client import COUNT, session, table, transfer

if TYPE_CHECKING:
    from slackwater.client.changes import ChangeBatch
    from slackwater.client.database import AsyncDatabase

TRANSFERS = 30
settle_pandas()  # pyarrow would import it in the middle of a simulation


class Mirror:
    """The table as the feed tells it, and what the feed did wrong."""

    def __init__(self, *, atomic: bool) -> None:
        self.atomic = atomic
        self.versions: dict[int, dict[int, Any]] = {}
        self.resolved = MIN
        self.rebuilt: dict[Timestamp, list[tuple[int, int]]] = {}
        self.repeats = 0
        self.changed: list[int] = []

    def take(self, batch: ChangeBatch) -> None:
        """One batch of the feed."""
        if batch.kind == "rows":
            for row in batch.data.to_pylist():
                self._row(row, initial=batch.initial)
        elif batch.kind == "schema":
            assert batch.schema is not None
            self.changed.append(batch.schema.version)
        else:
            assert batch.resolved >= self.resolved, "resolved goes back"
            self.resolved = batch.resolved
            self.rebuilt[batch.resolved] = self.at(batch.resolved)

    def _row(self, row: dict[str, Any], *, initial: bool) -> None:
        ts, known = row["_commit_ts"], self.versions.setdefault(row["id"], {})
        value = None if row["_op"] == "delete" else row["balance"]
        if ts in known:
            assert known[ts] == value, "a repeat differs"
            assert not self.atomic, "a settled row comes twice"
            self.repeats += 1
            return
        assert initial or ts > self.resolved, "new at or below resolved"
        assert not known or ts > max(known), "a version comes after a newer one"
        assert ("level" in row) == (row["_version"] > 1), "decoded with another schema"
        known[ts] = value

    def at(self, ts: Timestamp) -> list[tuple[int, int]]:
        """The table as of then."""
        found = []
        for key, versions in sorted(self.versions.items()):
            newest = max((t for t in versions if t <= ts), default=None)
            if newest is not None and versions[newest] is not None:
                found.append((key, versions[newest]))
        return found


async def work(c: Cluster, db: AsyncDatabase) -> None:
    """Transfers, rows that come and go, and a new column half way."""
    for n in range(TRANSFERS):
        try:
            await db.run(transfer(n % COUNT, (n + 3) % COUNT))
            await db.upsert("accounts", [{"id": 100 + n, "balance": n}])
            if n % 4 == 3:
                await db.delete("accounts", [100 + n - 1])
            if n == TRANSFERS // 2:
                schema = await db.table("accounts")
                await c.node.catalog.publish(
                    schema.table_id, lambda now: definition.with_column(now, ColumnSpec("level", INT))
                )
                await db.history("accounts")
        except SlackwaterError:
            await c.settle(1)


async def follow(c: Cluster, mirror: Mirror, **asked: Any) -> None:
    """Follow until everything that was committed before the end of the work is there."""
    db = session(c)
    await db._gateways.greet()
    async with aclosing(db.changes("accounts", atomic=mirror.atomic, resolved=0.1, **asked)) as feed:
        async for batch in feed:
            mirror.take(batch)


async def judge(db: AsyncDatabase, mirror: Mirror) -> None:
    """The mirror at every resolved timestamp beside the table as of then."""
    assert len(mirror.rebuilt) > 3
    history = await db.history("accounts")
    assert mirror.changed == [v.version for v in history.versions if v.version > 1]
    for ts, mine in mirror.rebuilt.items():
        there = await (await db.snapshot(as_of=ts)).scan("accounts", columns=["id", "balance"])
        assert [(r["id"], r["balance"]) for r in there.to_pylist()] == mine, f"the mirror differs at {ts}"


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_mirror_is_the_table_at_every_resolved_timestamp(seed: int, atomic: bool) -> None:
    async def story(c: Cluster) -> None:
        db = await table(c)
        mirror = Mirror(atomic=atomic)
        following = c.scope.spawn(follow(c, mirror), name="follow")
        await work(c, db)
        end = db.now()
        while mirror.resolved < end:
            await c.settle(1)
        following.cancel()
        await judge(db, mirror)

    play(story, seed=seed, buggify=True)


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_a_gateway_that_crashes_is_come_back_to(seed: int, atomic: bool) -> None:
    async def story(c: Cluster) -> None:
        db = await table(c)
        mirror = Mirror(atomic=atomic)
        following = c.scope.spawn(follow(c, mirror), name="follow")
        for _ in range(3):
            await work(c, db)
            machine = c.world.nodes[0]
            machine.crash()
            machine.start()
            await c.settle(10)
        end = db.now()
        while mirror.resolved < end:
            await c.settle(1)
        following.cancel()
        await judge(db, mirror)

    play(story, seed=seed)


# --- tables that close nothing


async def first_resolved(db: AsyncDatabase, **options: Any) -> Timestamp:
    """The first resolved timestamp of a feed, or what it fails with."""
    async with aclosing(db.changes("accounts", resolved=0.1, **options)) as feed:
        async for batch in feed:
            if batch.kind == "resolved" and batch.resolved:
                return batch.resolved
    raise AssertionError("the feed ended")


def test_a_feed_of_a_table_that_closes_nothing_says_why_and_what_to_do() -> None:
    async def story(c: Cluster) -> None:
        db = await table(c)
        span = table_span((await db.table("accounts")).table_id)
        half = db._tables.codec(await db.history("accounts")).key([COUNT // 2])
        cases = (
            (span.start, span.end, "its policy is `off`"),
            (half, span.end, r"the policy of its part \[/table/.* is `off`"),
            (
                b"",
                b"",
                r"it has no policy of its own, and that of the rest of the keys is `off` \(zone --rest\)",
            ),
        )
        for start, end, why in cases:
            await change_zone(c.kv, start, end, policy=PolicyKind.OFF)
            await c.settle(3)
            with pytest.raises(NotClosing, match=rf"^table accounts closes nothing: {why}.*zone.*again") as told:
                await first_resolved(db)
            assert told.value.facts == {"table": "accounts", "policy": "off"}
            with pytest.raises(NotClosing, match="closes nothing"):
                await db.resolved("accounts")
            only = [b async for b in db.changes("accounts", initial_scan="only")]
            assert sum(b.data.num_rows for b in only if b.kind == "rows") == COUNT, "a scan needs nothing resolved"
            await unset_zone(c.kv, start, end)
            assert await first_resolved(db) > 0, "at once: what this node remembers is read again before it refuses"

    play(story, settings={"closed_timestamp.target_duration": 0.5, "span_config.poll_interval": 1.0})


def test_a_feed_that_runs_says_so_when_its_table_stops_closing() -> None:
    async def story(c: Cluster) -> None:
        db = await table(c)
        span = schema_span(await db.table("accounts"))
        began, resolved = 0.0, MIN

        async def follow() -> None:
            nonlocal began, resolved
            async for batch in db.changes("accounts", resolved=0.1):
                if batch.kind == "resolved" and batch.resolved and not began:
                    await change_zone(c.kv, span.start, span.end, policy=PolicyKind.OFF)
                    began = c.world.seconds
                    await db.upsert("accounts", [{"id": 1, "balance": 7}])
                resolved = max(resolved, batch.resolved)

        with pytest.raises(NotClosing, match="its policy is `off`"):
            await follow()
        assert c.world.seconds - began < 20.0
        await unset_zone(c.kv, span.start, span.end)
        again = [b async for b in db.changes("accounts", after=resolved, initial_scan="no", until=db.now())]
        found = [row["balance"] for b in again if b.kind == "rows" for row in b.data.to_pylist()]
        assert found in ([], [7]), "nothing is lost: it was at or below what had been resolved, or comes now"

    play(story, settings={"closed_timestamp.target_duration": 0.5, "span_config.poll_interval": 1.0})


def test_the_cluster_setting_that_closes_nothing_is_named() -> None:
    async def story(c: Cluster) -> None:
        db = await table(c)
        with pytest.raises(NotClosing, match=r"closed_timestamp.target_duration is 0, .*slackwater settings set"):
            await first_resolved(db)

    play(story, settings={"closed_timestamp.target_duration": 0.0})
