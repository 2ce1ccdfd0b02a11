"""Sessions on the simulator: a read of the present sees what its session wrote, was told and read, through any gateway."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from slackwater.client.database import AsyncDatabase
from slackwater.client.gateways import Gateways
from slackwater.clock.timestamp import Timestamp, add_seconds
from slackwater.errors import ClockError, UsageError
from slackwater.sim.run import SimJob, run_job
from slackwater.sim.scenario import load
from tests.sim.cluster import NODE, Cluster, play
from tests.sim.hunt import hunt

load()

QUIET = {"closed_timestamp.target_duration": 3.0, "queue.interval": 0.0}


async def session(c: Cluster, *gateways: str) -> AsyncDatabase:
    found = Gateways(
        c.runtime, c.scope.child("gateways"), list(gateways or (NODE,)), settings=c.settings, timeout_s=60.0
    )
    await found.greet()
    return AsyncDatabase(found, c.scope.child("client"))


async def balances(reader: Any) -> list[int]:
    return (await reader.scan("accounts")).column("balance").to_pylist()


def test_a_snapshot_is_never_behind_what_its_session_has_read() -> None:
    async def story(c: Cluster) -> None:
        writer, reader = await session(c), await session(c)
        await writer.create_table("accounts", {"id": "int8", "balance": "int8"}, primary_key="id")
        await writer.upsert("accounts", [{"id": 1, "balance": 100}])
        await c.settle(10)
        await writer.upsert("accounts", [{"id": 1, "balance": 7}])
        assert await balances(await reader.snapshot(tables=["accounts"])) == [100], (
            "another session: what followers have"
        )
        assert await reader.get("accounts", 1) == {"id": 1, "balance": 7}
        assert await balances(await reader.snapshot(tables=["accounts"])) == [7]
        await writer.upsert("accounts", [{"id": 1, "balance": 8}])
        assert await balances(reader) == [8]
        assert await balances(await reader.snapshot(tables=["accounts"])) == [8]
        old = await reader.snapshot(as_of="-5s", tables=["accounts"])
        assert await balances(old) == [100], "who names an age gets that age"

    play(story, settings=QUIET)


def test_a_session_that_begins_from_the_floor_of_another_sees_what_that_one_wrote() -> None:
    async def story(c: Cluster) -> None:
        writer, reader = await session(c), await session(c)
        await writer.create_table("accounts", {"id": "int8", "balance": "int8"}, primary_key="id")
        await writer.upsert("accounts", [{"id": 1, "balance": 0}])
        await c.settle(10)

        async def add(tx: Any) -> None:
            await tx.upsert("accounts", [{"id": 1, "balance": (await tx.get("accounts", 1))["balance"] + 1}])

        async def publish() -> None:
            part = await writer.staging("accounts")
            await part.add([{"id": 1, "balance": 3}])
            await writer.publish("accounts", [await part.finish()])

        async def in_block() -> None:
            async with writer.transaction() as tx:
                await add(tx)

        ways = (
            lambda: writer.run(add),
            in_block,
            publish,
            lambda: writer.upsert("accounts", [{"id": 1, "balance": 4}]),
        )
        for balance, way in enumerate(ways, 1):
            before = writer.session_floor
            await way()
            assert writer.session_floor > before
            reader.raise_session_floor(writer.session_floor)
            assert await balances(await reader.snapshot(tables=["accounts"])) == [balance]
            assert reader.session_floor >= writer.session_floor
            await c.settle(5)
        before = writer.session_floor
        await writer.drop_table("accounts")
        assert writer.session_floor > before
        with pytest.raises(UsageError, match="as `session_floor` of another session"):
            reader.raise_session_floor("soon")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="in the future of this machine's clock"):
            reader.raise_session_floor(add_seconds(reader.now(), 60))

    play(story, settings=QUIET)


def test_a_session_that_goes_on_through_a_slower_gateway_sees_what_it_wrote_through_a_faster_one() -> None:
    async def story(c: Cluster) -> None:
        db = await session(c, NODE, "n2:7400")
        await db.create_table("accounts", {"id": "int8", "balance": "int8"}, primary_key="id")
        await c.second_node(b"a")  # all tables are in that range
        await c.settle(5)
        for machine in c.world.nodes:
            machine.clock.step_ns = 200_000_000 if machine.name == "n1" else -200_000_000
        await c.settle(5)

        async def in_txn(reader: AsyncDatabase) -> list[int]:
            async with reader.transaction() as tx:
                return await balances(tx)

        async def closed(reader: AsyncDatabase) -> list[int]:
            return await balances(await reader.snapshot(as_of=await reader.close_now("accounts")))

        async def negotiated(reader: AsyncDatabase) -> list[int]:
            return await balances(await reader.snapshot(tables=["accounts"]))

        for balance, read in enumerate((balances, in_txn, closed, negotiated) * 2):
            await c.settle(4)
            db._gateways._at = 0
            written = await db.upsert("accounts", [{"id": 1, "balance": balance}])
            assert written.timestamp > c.nodes["n2"].clock.physical(), (
                "the second gateway's clock has not come that far"
            )
            db._gateways._at = 1
            reader = db if balance < 4 else await session(c, "n2:7400")
            reader.raise_session_floor(db.session_floor)
            assert await read(reader) == [balance], (read.__name__, balance)

    play(story, settings={**QUIET, "clock.max_offset": 0.5})


def test_a_gateway_with_a_slow_clock_waits_for_the_floor_of_a_session() -> None:
    async def story(c: Cluster) -> None:
        gateway, clock = c.node.gateway, c.node.clock

        async def reached(ahead_s: float) -> float:
            """How long a floor so far ahead is waited for."""
            floor, began = add_seconds(clock.physical(), ahead_s), c.world.seconds
            await gateway.reach(floor)
            assert clock.now() > floor
            return c.world.seconds - began

        assert await reached(-1.0) == 0.0
        assert await reached(0.3) == 0.0, "as far as clocks may be apart, the clock follows"
        assert await reached(0.8) == pytest.approx(0.3, abs=0.01)
        with pytest.raises(ClockError, match="far beyond this node's clock"):
            await reached(60.0)

    play(story, settings={"clock.max_offset": 0.5})


def test_the_floor_only_rises() -> None:
    async def story(c: Cluster) -> None:
        db = await session(c)
        db.raise_session_floor(db.now())
        before = db.session_floor
        db.raise_session_floor(Timestamp(before - 1000))
        assert db.session_floor == before

    play(story)


def test_sessions_that_change_gateways_read_what_they_wrote() -> None:
    done: Counter[str] = Counter()
    for seed in range(4):  # of some the cluster is ready only when they are nearly over
        result = run_job(SimJob(seed=seed, play="sessions", duration_s=30.0))
        assert result.passed, f"{result.oracle} {result.kind}: {result.summary}\n{result.evidence}"
        done.update(result.probes)
    for what in ("sessions.wrote", "sessions.read", "sessions.handed_on"):
        assert done[what] >= 1, f"{what} must have happened, or nothing was tested"


def test_a_session_that_forgets_what_it_was_told_is_found_out() -> None:
    hunt("X-NO-FLOOR", duration_s=40.0)
