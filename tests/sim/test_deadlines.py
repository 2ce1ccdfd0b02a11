"""One deadline for an operation, whatever is dead: every call of a client in virtual time (I-33)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from slackwater.client.database import AsyncDatabase
from slackwater.client.gateways import Gateways
from slackwater.clock.timestamp import seconds_between
from slackwater.codec.arrow import settle_pandas
from slackwater.errors import AmbiguousResult, DeadlineExceeded, SlackwaterError, UnavailableError
from slackwater.protocol.range.served import Why
from slackwater.sim.handles import NS
from tests.sim.cluster import NODE, Cluster, play

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from slackwater.client.transaction import AsyncTransaction

settle_pandas()  # or Arrow would import it, behind the fence
TIMEOUT_S = 3.0
SLACK_S = 0.5
BULK = 20_000
TABLE = "accounts"
QUIET = {"queue.interval": 0.0}


def session(c: Cluster, *addresses: str, timeout_s: float = TIMEOUT_S) -> AsyncDatabase:
    gateways = Gateways(c.runtime, c.scope.child("gateways"), addresses, settings=c.settings, timeout_s=timeout_s)
    return AsyncDatabase(gateways, c.scope.child("client"))


async def rows(c: Cluster, count: int = 100) -> AsyncDatabase:
    db = session(c, NODE)
    await db._gateways.greet()
    await db.create_table(TABLE, {"id": "int8", "balance": "int8 not null"}, primary_key="id")
    await db.upsert(TABLE, [{"id": i, "balance": 100} for i in range(count)])
    return db


def row(i: int) -> list[dict[str, int]]:
    return [{"id": i, "balance": i}]


async def _run(db: AsyncDatabase) -> None:
    async def work(tx: AsyncTransaction) -> None:
        found = await tx.get(TABLE, 1)
        assert found is not None
        await tx.upsert(TABLE, [{**found, "balance": 1}])

    await db.run(work)


async def _blind(db: AsyncDatabase) -> None:
    async def work(tx: AsyncTransaction) -> None:
        await tx.upsert(TABLE, row(1))

    await db.run(work)


async def _block(db: AsyncDatabase) -> None:
    async with db.transaction() as tx:
        await tx.upsert(TABLE, row(1))


async def _batches(db: AsyncDatabase) -> None:
    async for _ in db.scan_batches(TABLE):
        pass


READS: dict[str, Callable[[AsyncDatabase], Awaitable[Any]]] = {
    "get": lambda db: db.get(TABLE, 1),
    "nearest get": lambda db: db.get(TABLE, 1, nearest=True),
    "scan": lambda db: db.scan(TABLE),
    "scan_batches": _batches,
    "snapshot": lambda db: db.snapshot(max_staleness=30),
    "tables": lambda db: db.tables(),
    "history": lambda db: db.history(TABLE),
    "partitions": lambda db: db.partitions(TABLE),
    "close_now": lambda db: db.close_now([TABLE]),
}
WRITES: dict[str, Callable[[AsyncDatabase], Awaitable[Any]]] = {
    "upsert": lambda db: db.upsert(TABLE, row(1)),
    "insert": lambda db: db.insert(TABLE, row(1000)),
    "delete": lambda db: db.delete(TABLE, [1]),
    "run": _run,
    "run without reading": _blind,
    "transaction": _block,
    "bulk load": lambda db: db.upsert(TABLE, [{"id": i, "balance": i} for i in range(BULK)]),
    "create table": lambda db: db.create_table("other", {"id": "int8"}, primary_key="id"),
    "drop table": lambda db: db.drop_table(TABLE),
}


def pause(c: Cluster) -> None:
    for machine in c.world.nodes:
        machine.pause()


def cut_the_log(c: Cluster) -> None:
    for machine in c.world.nodes:
        c.world.log.link(machine.name).cut = True


def crash(c: Cluster) -> None:
    for machine in c.world.nodes:
        machine.crash()


def kill(c: Cluster) -> None:
    """The machines live on and refuse connections."""
    for machine in c.world.nodes:
        machine.crash(kernel_lives=True)


async def ends(
    c: Cluster, db: AsyncDatabase, what: Callable[[AsyncDatabase], Awaitable[Any]]
) -> SlackwaterError | None:
    """The error of an operation, which must end in time."""
    began_ns = c.world.loop.now_ns
    error: SlackwaterError | None = None
    try:
        await what(db)
    except SlackwaterError as failed:
        error = failed
    took_s = (c.world.loop.now_ns - began_ns) / NS
    assert took_s <= TIMEOUT_S + SLACK_S, f"took {took_s:.2f} s of {TIMEOUT_S}: {error}"
    return error


@pytest.mark.parametrize("fault", [pause, crash, kill])
@pytest.mark.parametrize("name", [*READS, *WRITES])
def test_every_call_ends_in_time_when_no_node_answers(name: str, fault: Callable[[Cluster], None]) -> None:
    async def story(c: Cluster) -> None:
        db = await rows(c)
        fault(c)
        error = await ends(c, db, {**READS, **WRITES}[name])
        if name in READS:
            assert isinstance(error, UnavailableError), repr(error)
        else:
            assert isinstance(error, UnavailableError | AmbiguousResult), repr(error)

    play(story, settings=QUIET)


@pytest.mark.parametrize("name", WRITES)
def test_every_write_ends_in_time_when_the_log_is_gone(name: str) -> None:
    async def story(c: Cluster) -> None:
        db = await rows(c)
        cut_the_log(c)
        assert await ends(c, db, WRITES[name]) is not None

    play(story, settings=QUIET)


def test_a_write_that_never_left_is_no_riddle() -> None:
    """Nothing was sent, so nothing happened: the caller is told so, and need not look."""

    async def story(c: Cluster) -> None:
        db = await rows(c)
        kill(c)
        await c.settle(1)
        for name in ("upsert", "run", "transaction"):
            error = await ends(c, db, WRITES[name])
            assert isinstance(error, DeadlineExceeded | UnavailableError), repr(error)
            assert not isinstance(error, AmbiguousResult), repr(error)

    play(story, settings=QUIET)


def test_a_write_that_may_have_happened_says_so() -> None:
    """The gateway stands still after it was sent the write: nobody else can be asked."""

    async def story(c: Cluster) -> None:
        db = await rows(c)
        assert await db.get(TABLE, 1) is not None
        pause(c)
        assert isinstance(await ends(c, db, WRITES["upsert"]), AmbiguousResult)

    play(story, settings=QUIET)


def test_a_stuck_follower_costs_its_wait_once_a_scan() -> None:
    """n2 is the gateway and the nearest replica, and hears nothing from the log any more."""
    wait_s = 2.0

    async def story(c: Cluster) -> None:
        writer = await rows(c, 2_000)
        await c.second_node(b"a")
        await c.settle(5)
        c.world.log.link("n2").cut = True
        await writer.upsert(TABLE, row(1))
        db = session(c, "n2:7400", timeout_s=60.0)
        await db._gateways.greet()
        await c.settle(3)
        now = db.now()
        snap = await db.snapshot(as_of=now, read_from="follower", wait=wait_s)
        began_ns = c.world.loop.now_ns
        pages = [batch async for batch in snap.scan_batches(TABLE)]
        assert sum(batch.num_rows for batch in pages) == 2_000
        assert len(pages) > 5
        assert {read.why for read in snap.reads} <= {Why.WAITED.value, Why.NOT_CLOSED.value}, snap.reads
        took_s = (c.world.loop.now_ns - began_ns) / NS
        assert wait_s / 2 <= took_s <= wait_s + 1.0, f"{len(pages)} pages took {took_s:.1f} s"
        assert seconds_between(now, db.now()) < 30

    world = play(story, settings={**QUIET, "gateway.page_bytes": 4096})
    assert world.probes["gateway.scan_waited_in_vain"] >= 1
