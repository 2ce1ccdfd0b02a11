"""Tables through a gateway on the simulator: the same client, virtual time, answers that are lost, nodes that crash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from slackwater.catalog.definition import with_column
from slackwater.client.database import AsyncDatabase
from slackwater.client.gateways import Gateways
from slackwater.clock.timestamp import seconds_between
from slackwater.codec.layout import table_span
from slackwater.config.zones import PolicyKind, ZoneConfig
from slackwater.errors import ConnectionLost, SlackwaterError, TooStale, UsageError
from slackwater.model.kinds import INT
from slackwater.protect.zone_changes import write_zone
from slackwater.protocol.client import calls
from tests.sim.cluster import NODE, Cluster, play

if TYPE_CHECKING:
    from slackwater.client.transaction import AsyncTransaction

ACCOUNTS = {"id": "int8", "balance": "int8 not null"}
COUNT = 8


def session(c: Cluster) -> AsyncDatabase:
    gateways = Gateways(c.runtime, c.scope.child("gateways"), [NODE], settings=c.settings, timeout_s=60.0)
    return AsyncDatabase(gateways, c.scope.child("client"))


async def table(c: Cluster) -> AsyncDatabase:
    db = session(c)
    await db._gateways.greet()
    await db.create_table("accounts", ACCOUNTS, primary_key="id")
    await db.upsert("accounts", [{"id": i, "balance": 100} for i in range(COUNT)])
    return db


async def total(db: AsyncDatabase) -> int:
    return sum((await db.scan("accounts")).column("balance").to_pylist())


def transfer(a: int, b: int) -> Any:
    async def work(tx: AsyncTransaction) -> None:
        one, two = await tx.get("accounts", a), await tx.get("accounts", b)
        assert one is not None
        assert two is not None
        await tx.upsert("accounts", [{**one, "balance": one["balance"] - 1}, {**two, "balance": two["balance"] + 1}])

    return work


@pytest.mark.parametrize("seed", range(3))
def test_a_bank_keeps_its_total(seed: int) -> None:
    async def story(c: Cluster) -> None:
        db = await table(c)
        tasks = [c.scope.spawn(db.run(transfer(i, (i + 3) % COUNT)), name="transfer") for i in range(COUNT)]
        assert await total(db) == 100 * COUNT
        for task in tasks:
            await task
        assert await total(db) == 100 * COUNT
        assert {row["balance"] for row in (await db.scan("accounts")).to_pylist()} == {100}
        await c.settle(70)  # nothing is left open, or held back
        assert len(c.node.gateway.txns) == 0
        assert c.intents() == 0

    play(story, seed=seed, buggify=True)


@pytest.mark.parametrize("lost_after", [False, True])
def test_lost_answers_are_settled_exactly_once(lost_after: bool) -> None:
    async def story(c: Cluster) -> None:
        db = await table(c)
        inner, seen = db._gateways._dialer.call, [0]

        async def call(address: str, method: Any, request: Any, **options: Any) -> Any:
            deciding = method is calls.COMMIT or (method is calls.WRITE and not request.txn)
            seen[0] += deciding
            if deciding and seen[0] % 2:
                if lost_after:
                    await inner(address, method, request, **options)
                raise ConnectionLost("the answer was lost", sent=True)
            return await inner(address, method, request, **options)

        db._gateways._dialer.call = call  # type: ignore[method-assign]
        for i in range(4):
            await db.run(transfer(i, i + 4))
            await db.upsert("accounts", [{"id": 100 + i, "balance": i}])
        db._gateways._dialer.call = inner  # type: ignore[method-assign]
        rows = {row["id"]: row["balance"] for row in (await db.scan("accounts")).to_pylist()}
        assert [rows[i] for i in range(COUNT)] == [99] * 4 + [101] * 4
        assert [rows[100 + i] for i in range(4)] == [0, 1, 2, 3]

    play(story)


def test_tables_and_rows_survive_a_crash() -> None:
    async def story(c: Cluster) -> None:
        db = await table(c)
        before = await db.history("accounts")
        tx = db.attempts().tx
        assert await tx.get("accounts", 0) == {"id": 0, "balance": 100}
        await tx.upsert("accounts", [{"id": 0, "balance": 0}])
        machine = c.world.nodes[0]
        machine.crash()
        machine.start()
        await c.settle(10)
        fresh = session(c)
        await fresh._gateways.greet()
        assert await total(fresh) == 100 * COUNT
        assert await fresh.history("accounts") == before
        with pytest.raises(SlackwaterError):
            await tx.commit()
        assert await total(db) == 100 * COUNT

    play(story)


def test_follower_read_timestamps_follow_the_policies_of_the_tables() -> None:
    async def story(c: Cluster) -> None:
        db = await table(c)
        for name, kind, duration_ms in (
            ("fast", PolicyKind.LAG, 100),
            ("global", PolicyKind.LEAD, 0),
            ("silent", PolicyKind.OFF, 0),
        ):
            made = await db.create_table(name, {"id": "int8"}, primary_key=["id"])
            span = table_span(made.table_id)
            await write_zone(c.kv, ZoneConfig(span.start, span.end, policy=kind, duration_ms=duration_ms))
        await c.settle(30)

        async def age_s(*tables: str) -> float:
            return seconds_between(await db.follower_read_timestamp(tables), db.now())

        assert await age_s() == pytest.approx(2.2, abs=0.05), "1 s, one tick, and the slack of 1 s"
        assert await age_s("accounts") == pytest.approx(2.2, abs=0.05)
        assert await age_s("fast") == pytest.approx(1.3, abs=0.05)
        assert await age_s("global") == pytest.approx(0.0, abs=0.05)
        assert await age_s("global", "fast") == pytest.approx(1.3, abs=0.05)
        with pytest.raises(UsageError, match="closing is off for this span"):
            await db.follower_read_timestamp(["fast", "silent"])
        snap = await db.snapshot(as_of="follower_read_timestamp()", tables=["fast"], nearest_only=True)
        assert seconds_between(snap.timestamp, db.now()) == pytest.approx(1.3, abs=0.05)
        assert (await snap.scan("fast")).num_rows == 0
        await db.create_table("new", {"id": "int8"}, primary_key=["id"])
        assert await age_s("new") < 1.0, "never before there was a table"

    play(story, settings={"closed_timestamp.target_duration": 1.0})


def test_a_snapshot_that_insists_on_the_nearest_replica() -> None:
    async def story(c: Cluster) -> None:
        await table(c)
        await c.second_node(b"a")  # all tables are in that range
        await c.settle(5)
        far = AsyncDatabase(
            Gateways(c.runtime, c.scope.child("n2"), ["n2:7400"], settings=c.settings, timeout_s=60.0),
            c.scope.child("far"),
        )
        await far._gateways.greet()
        began = c.world.seconds
        with pytest.raises(TooStale, match="accept an older one"):
            await far.snapshot(max_staleness=0.1, tables=["accounts"], nearest_only=True)
        snap = await far.snapshot(as_of=far.now(), nearest_only=True)
        for work in (snap.get("accounts", 1), snap.scan("accounts")):
            with pytest.raises(TooStale, match="n2, the nearest replica, cannot serve"):
                await work
        assert c.world.seconds - began < 1.0, "told at once, by the one gateway that was asked"
        patient = await far.snapshot(as_of=far.now(), nearest_only=True, wait=10)
        assert (await patient.scan("accounts")).num_rows == COUNT
        (read,) = patient.reads
        assert (read.node, read.by_follower, read.why) == (2, True, "")
        forwarded = await far.snapshot(as_of=far.now())
        assert (await forwarded.scan("accounts")).num_rows == COUNT
        assert [(r.node, r.why) for r in forwarded.reads] == [(1, "the timestamp was not closed on the follower")]
        with pytest.raises(UsageError, match="nearest_only"):
            await far.snapshot(nearest_only=True, read_from="leader")

    play(story, settings={"closed_timestamp.target_duration": 1.0, "queue.interval": 0.0})


def test_a_leading_table_is_read_at_present_time_on_every_replica() -> None:
    async def story(c: Cluster) -> None:
        db = await table(c)
        await c.second_node(b"a")  # all tables are in that range
        span = table_span((await db.table("accounts")).table_id)
        await c.node.admin.split(span.start)
        await c.node.admin.split(span.end)
        await write_zone(c.kv, ZoneConfig(span.start, span.end, policy=PolicyKind.LEAD))
        await c.settle(10)
        far = AsyncDatabase(
            Gateways(c.runtime, c.scope.child("n2"), ["n2:7400"], settings=c.settings, timeout_s=60.0),
            c.scope.child("far"),
        )
        await far._gateways.greet()
        here = c.nodes["n2"].store
        assert here.holding(span.start).state.lease.holder == 1
        for balance in (7, 8):
            await db.upsert("accounts", [{"id": 1, "balance": balance}])
            before = here.context.closing.served
            assert await far.get("accounts", 1, nearest=True) == {"id": 1, "balance": balance}
            found = (await far.scan("accounts", nearest=True)).column("balance").to_pylist()
            assert found == [100, balance, *[100] * (COUNT - 2)]
            assert here.context.closing.served >= before + 2, "by the replica beside the gateway"
            before = here.context.closing.served
            assert await far.get("accounts", 1) == {"id": 1, "balance": balance}
            assert here.context.closing.served == before, "by the leaseholder"

    play(story, settings={"closed_timestamp.target_duration": 1.0, "queue.interval": 0.0})


def test_a_partition_brings_its_schema_history_and_is_read_from_a_follower_that_reaches_nobody() -> None:
    async def story(c: Cluster) -> None:
        db = await table(c)
        await c.second_node(b"a")  # all tables are in that range, and so is the catalog
        await c.settle(5)
        after = db.now()
        await db.upsert("accounts", [{"id": 1, "balance": 7}])
        at = await db.close_now("accounts")
        await c.settle(1)
        (part,) = await db.partitions("accounts", at=at)
        assert part.history is not None
        assert part.known_upto >= at
        far = AsyncDatabase(
            Gateways(c.runtime, c.scope.child("n2"), ["n2:7400"], settings=c.settings, timeout_s=60.0),
            c.scope.child("far"),
        )
        await far._gateways.greet()
        c.world.machines["n1"].pause()  # with it go the lease of the rows and that of the catalog
        began, reads = c.world.seconds, []
        rows = [b async for b in far.read_partition(part, at=at, on_read=reads.append)]
        assert sum(batch.num_rows for batch in rows) == COUNT
        assert [(read.node, read.by_follower) for read in reads] == [(2, True)]
        changed = [b async for b in far.read_changes(part, after=after, upto=at)]
        assert [batch.column("balance").to_pylist() for batch in changed] == [[7]]
        assert c.world.seconds - began < 1.0, "nothing was waited for"

    play(story, settings={"closed_timestamp.target_duration": 1.0, "queue.interval": 0.0})


def test_a_partition_that_is_read_later_than_it_was_made_for_asks_for_newer_versions() -> None:
    async def story(c: Cluster) -> None:
        db = await table(c)
        (part,) = await db.partitions("accounts")
        catalog, schema = c.node.catalog, await db.table("accounts")
        spec = calls.ColumnSpec("limit", INT, default=7)
        await catalog.publish(schema.table_id, lambda now: with_column(now, spec))
        await db.upsert("accounts", [{"id": 1, "balance": 1, "limit": 1}])
        at = db.now()
        assert at > part.known_upto
        rows = [b async for b in db.read_partition(part, at=at, read_from="leader")]
        assert [batch.column("limit").to_pylist()[:3] for batch in rows] == [[7, 1, 7]]

    play(story)
