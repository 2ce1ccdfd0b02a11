"""Everything at once on three real nodes: what each capability promises, while all the others are at work and nodes die.

    clients     transfers between accounts, each with a row in the ledger; a row of their own that they read after every write
    audits      snapshots of every kind: the ledger explains every balance, every public index shows the rows of its table
    batches     one table whose rows are replaced together, by transactions and by staged commits: no read sees two of them
    feeds       a mirror of accounts and ledger that goes on from its token now and then: at what is resolved it is the tables
    names       rows whose names are unique: no snapshot in which their index is public holds one twice
    travelers   protected snapshots, read again while history of ten seconds is collected: they never change
    changes     indexes and columns that come and go
    ranges      splits and merges; tables that lead, lag, or do not close at all
    faults      `test_cluster_bank.Faults`: kill -9, SIGSTOP, SIGTERM, long absences, blackouts or lost log servers; and
                flipped bytes in the table files of one node

Must hold: no check fails, every acknowledged transfer is in the ledger, no refused one is. Errors that say "later" are counted;
any other error is a problem. `make faults-all SECONDS=600` runs it for ten minutes over SQLite and then over NATS.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from contextlib import AsyncExitStack, aclosing, suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import slackwater
from slackwater.codec.layout import schema_span
from slackwater.codec.rows import RowCodec
from slackwater.config.zones import PolicyKind
from slackwater.errors import (
    AmbiguousResult,
    ConflictError,
    Overloaded,
    RetryableError,
    SlackwaterError,
    TooLate,
    TooStale,
    UnavailableError,
    UniqueViolation,
    UsageError,
)
from slackwater.log.nats_server import LocalNats
from slackwater.protect.zone_changes import change_zone
from slackwater.runtime.clock import RealClock
from slackwater.server.remote import connect
from tests.integration.cluster import Processes, client_settings, merge, split
from tests.integration.damage import flip_byte, sst_files
from tests.integration.test_cluster_bank import Faults, seed_of_this_run
from tests.integration.test_schema_faults import move

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from slackwater.client.database import AsyncDatabase
    from slackwater.client.snapshot import AsyncSnapshot
    from slackwater.client.transaction import AsyncTransaction
    from slackwater.model.spans import Span
    from slackwater.server.remote import Remote

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("cluster")]
SECONDS = float(os.environ.get("SLACKWATER_EVERYTHING_SECONDS", "0"))
SHORT_S = 20.0
CALM_S = 120.0
ACCOUNTS, FIRST_BALANCE = 40, 100
BATCH_ROWS = 400
NAMED = 60
TTL_S = 10.0
DAMAGED_S = 10.0
SETTINGS = {
    "catalog.lease.duration": 2.0,
    "catalog.lease.abandoned_duration": 2.0,
    "closed_timestamp.target_duration": 0.5,
    "gc.interval": 2.0,
}
LATER = (UnavailableError, RetryableError, AmbiguousResult, ConflictError, Overloaded, TooStale, TooLate)
TABLES = ("accounts", "ledger")
REFUSED = "then decommission this one"


class Town:
    """What the tasks share."""

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.random = random.Random(seed)
        self.stopping = asyncio.Event()
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.acknowledged: set[int] = set()
        self.refused: set[int] = set()
        self.used = 0

    def draw(self) -> random.Random:
        return random.Random(self.random.random())

    async def repeat(self, name: str, step: Callable[[AsyncDatabase, random.Random], Awaitable[None]]) -> None:
        """Take a step in a session of its own until the end; an error that says "later" is counted, any other is a problem."""
        draw = self.draw()
        while not self.stopping.is_set():
            try:
                async with slackwater.aconnect(self.url, timeout=draw.choice([2.0, 15.0])) as db:
                    for _ in range(draw.randint(5, 200)):
                        if self.stopping.is_set():
                            return
                        try:
                            await step(db, draw)
                            self.counts[name] += 1
                        except LATER as error:
                            self.counts[f"{name}: {type(error).__name__}"] += 1
                            await asyncio.sleep(0.1)
                        await asyncio.sleep(draw.uniform(0, 0.05))
            except LATER as error:
                self.counts[f"{name}: session: {type(error).__name__}"] += 1
                await asyncio.sleep(0.2)
            except SlackwaterError as error:
                self.problems.append(f"{name}: {type(error).__name__}: {error}")
                await asyncio.sleep(0.5)

    # --- clients

    async def transfer(self, db: AsyncDatabase, draw: random.Random) -> None:
        self.used += 1
        number, (one, other), amount = self.used, draw.sample(range(ACCOUNTS), 2), draw.randint(1, 20)

        async def work(tx: AsyncTransaction) -> None:
            await move(tx, one=one, other=other, amount=amount)
            await tx.insert("ledger", [{"id": number, "payer": one, "payee": other, "amount": amount}])

        try:
            await db.run(work)
        except AmbiguousResult:
            raise
        except SlackwaterError:
            self.refused.add(number)
            raise
        self.acknowledged.add(number)
        if draw.random() < 0.3 and await db.get("ledger", number) is None:
            self.problems.append(f"transfer {number} was acknowledged and is not seen by its own session")

    # --- audits

    async def audit(self, db: AsyncDatabase, draw: random.Random) -> None:
        how = draw.choice([{}, {"max_staleness": 8.0}, {"as_of": "-2s"}, {"as_of": "follower_read_timestamp()"}])
        where = draw.choice(["any", "leader", "follower"])
        snapshot = await db.snapshot(tables=TABLES, read_from=where, **how)
        self.explain(await tables_of(snapshot), f"snapshot {how} {where} at {snapshot.timestamp}")

    def explain(self, tables: dict[str, dict[int, Any]], what: str) -> None:
        """The ledger says how every balance came about."""
        balances = dict.fromkeys(range(ACCOUNTS), FIRST_BALANCE)
        for row in tables["ledger"].values():
            balances[row["payer"]] -= row["amount"]
            balances[row["payee"]] += row["amount"]
        seen = {row["id"]: row["balance"] for row in tables["accounts"].values()}
        if seen != balances:
            wrong = {n: (seen.get(n), balances[n]) for n in balances if seen.get(n) != balances[n]}
            self.problems.append(f"{what}: balances and the ledger's sums differ: {wrong}")

    async def audit_indexes(self, db: AsyncDatabase, draw: random.Random) -> None:
        snapshot = await db.snapshot(tables=["accounts"], as_of=draw.choice(["-1s", "-3s", db.now()]))
        then = (await db.history("accounts")).at(snapshot.timestamp)
        assert then is not None
        public = [index.name for index in then.indexes if index.state.public]
        if not public:
            return
        rows = by_id(await snapshot.scan("accounts", index="primary"))
        for name in public:
            found = await snapshot.scan("accounts", index=name)
            if by_id(found) != rows or found.num_rows != len(rows):
                self.problems.append(f"index {name} differs from its table at {snapshot.timestamp}")
            self.counts["indexes compared"] += 1

    # --- batches

    async def replace(self, db: AsyncDatabase, draw: random.Random) -> None:
        """Write every row of the table with one number, in one commit."""
        number = time.time_ns()
        rows = pa.table({"id": list(range(BATCH_ROWS)), "batch": [number] * BATCH_ROWS})
        if draw.random() < 0.5:
            part = await db.staging("batches")
            await part.add(rows)
            await db.publish("batches", [await part.finish()], timeout=20.0)
            self.counts["staged commits"] += 1
        else:

            async def work(tx: AsyncTransaction) -> None:
                await tx.upsert("batches", rows)

            await db.run(work)

    async def look(self, db: AsyncDatabase, draw: random.Random) -> None:
        if draw.random() < 0.5:
            found = await db.scan("batches", columns=draw.choice([None, ["batch"]]))
        else:
            snapshot = await db.snapshot(tables=["batches"], as_of=draw.choice(["-1s", "-4s"]))
            found = await snapshot.scan("batches")
        batches = Counter(found.column("batch").to_pylist())
        if len(batches) != 1 or found.num_rows != BATCH_ROWS:
            self.problems.append(f"a read saw parts of several commits: {batches}")

    # --- feeds

    async def mirror(self) -> None:
        """Keep what is resolved, compare it with a snapshot at that time, and go on from the token, now and then anew."""
        draw, token, kept = self.draw(), None, {name: {} for name in TABLES}
        pending: list[tuple[int, str, dict[str, Any]]] = []
        while not self.stopping.is_set():
            pending.clear()
            try:
                async with slackwater.aconnect(self.url, timeout=20) as db:
                    feed = db.changes(list(TABLES), after=token, resolved=0.5)
                    async with aclosing(feed), asyncio.timeout(draw.uniform(3, 30)):
                        async for batch in feed:
                            if batch.kind == "rows":
                                pending += [(row["_commit_ts"], batch.table, row) for row in batch.data.to_pylist()]
                            elif batch.kind == "resolved" and batch.resolved:
                                keep(kept, pending, batch.resolved)
                                token = batch.token
                                await self.compare(db, kept, batch.resolved)
                                if self.stopping.is_set():
                                    return
            except TimeoutError:
                self.counts["feed: gone on from its token"] += 1
            except LATER as error:
                self.counts[f"feed: {type(error).__name__}"] += 1
                await asyncio.sleep(0.2)
            except SlackwaterError as error:
                self.problems.append(f"feed: {type(error).__name__}: {error}")
                return

    async def compare(self, db: AsyncDatabase, kept: dict[str, dict[int, Any]], resolved: int) -> None:
        while resolved > db.now():  # while all tables lead it may lie in the future, which cannot be read
            await asyncio.sleep(0.01)
        try:
            tables = await tables_of(await db.snapshot(tables=TABLES, as_of=resolved))
        except LATER as error:
            self.counts[f"mirror not compared: {type(error).__name__}"] += 1
            return
        self.counts["mirrors compared"] += 1
        for name in TABLES:
            mine = {n: plain(row) for n, row in kept[name].items()}
            theirs = {n: plain(row) for n, row in tables[name].items()}
            if mine != theirs:
                wrong = [(n, mine.get(n), theirs.get(n)) for n in mine.keys() | theirs if mine.get(n) != theirs.get(n)]
                self.problems.append(f"the mirror of {name} differs at {resolved}: {wrong[:3]}")

    # --- names

    async def name(self, db: AsyncDatabase, draw: random.Random) -> None:
        """Give a row a name, or take it away, by itself or in a transaction; another row may have the name."""
        row = {"id": draw.randrange(NAMED), "name": f"n{draw.randrange(NAMED // 2)}"}
        try:
            if draw.random() < 0.2:
                await db.delete("named", [row["id"]])
            elif draw.random() < 0.5:
                await db.upsert("named", [row])
            else:

                async def work(tx: AsyncTransaction) -> None:
                    await tx.get("named", row["id"])
                    await tx.upsert("named", [row])

                await db.run(work)
        except UniqueViolation:
            self.counts["names taken"] += 1

    async def audit_names(self, db: AsyncDatabase, draw: random.Random) -> None:
        snapshot = await db.snapshot(tables=["named"], as_of=draw.choice(["-1s", "-3s", db.now()]))
        then = (await db.history("named")).at(snapshot.timestamp)
        assert then is not None
        if not any(index.name == "by_name" and index.state.public for index in then.indexes):
            return
        rows = by_id(await snapshot.scan("named", index="primary"))
        twice = [name for name, count in Counter(row["name"] for row in rows.values()).items() if count > 1]
        if twice or by_id(await snapshot.scan("named", index="by_name")) != rows:
            self.problems.append(f"the unique index at {snapshot.timestamp}: {twice} are there twice, or it differs")
        self.counts["unique indexes compared"] += 1

    async def change_names(self, db: AsyncDatabase, draw: random.Random) -> None:
        """Drop the unique index, and make it again as soon as the rows let it be made."""
        await asyncio.sleep(draw.uniform(1, 5))
        try:
            if any(index.name == "by_name" for index in (await db.history("named")).latest.indexes):
                await db.drop_index("named", "by_name")
            else:
                await db.create_index("named", "by_name", ["name"], unique=True)
        except UsageError as error:
            if "a change that has not ended" in error.message:  # of a session that gave up waiting
                return
            if "two rows have the same values" not in error.message:
                raise
            self.counts["unique indexes refused"] += 1
            rows = (await db.scan("named")).to_pylist()
            first = {row["name"]: row["id"] for row in rows}
            await db.delete("named", [row["id"] for row in rows if first[row["name"]] != row["id"]])

    # --- policies

    async def change_policy(self, remote: Remote, spans: Sequence[Span]) -> None:
        draw = self.draw()
        while not self.stopping.is_set():
            span, policy = draw.choice(spans), draw.choice([PolicyKind.LAG, PolicyKind.LAG, PolicyKind.LEAD])
            lag_ms = 500 if policy is PolicyKind.LAG else 0
            try:
                await change_zone(remote.kv, span.start, span.end, policy=policy, duration_ms=lag_ms, timeout=10.0)
                self.counts[f"policy {policy.value}"] += 1
            except LATER as error:
                self.counts[f"policy: {type(error).__name__}"] += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), draw.uniform(2, 10))

    # --- travelers

    async def travel(self, db: AsyncDatabase, draw: random.Random) -> None:
        snapshot = await db.snapshot(tables=TABLES, as_of="-1s", protect=True, protect_ttl=120.0)
        first = await again(self, tables_of, snapshot)
        until = time.monotonic() + draw.uniform(1, 40)
        while first is not None and not self.stopping.is_set() and time.monotonic() < until:
            await asyncio.sleep(draw.uniform(0.5, 4))
            later = await again(self, tables_of, snapshot)
            if later is not None and later != first:
                self.problems.append(f"a protected snapshot at {snapshot.timestamp} has changed")
            self.counts["protected reads"] += later is not None
        await snapshot.release()

    # --- changes and ranges

    async def change(self, db: AsyncDatabase, draw: random.Random) -> None:
        latest = (await db.history("accounts")).latest
        names, columns = [index.name for index in latest.indexes], [column.name for column in latest.columns]
        what = draw.random()
        if what < 0.4 and len(names) < 3:
            made = await db.create_index("accounts", f"i{draw.getrandbits(40)}", ["balance"], wait=False)
        elif what < 0.6 and names:
            made = await db.drop_index("accounts", draw.choice(names), wait=False)
        elif "note" in columns:
            made = await db.alter_table("accounts", drop_column="note", wait=False)
        else:
            made = await db.alter_table("accounts", add_column={"note": "text"}, wait=False)
        until = time.monotonic() + CALM_S
        while not (job := await again(self, db.jobs.get, made.jobs[-1].id)) or not job.status.ended:
            if time.monotonic() > until:
                self.problems.append(f"{made.jobs[-1].description} does not end")
                return
            await asyncio.sleep(0.2)
        self.counts[f"change {job.status.value}"] += 1

    # --- in the end

    async def judge(self, db: AsyncDatabase) -> None:
        tables = await tables_of(await db.snapshot(as_of=db.now(), tables=TABLES))
        self.explain(tables, "in the end")
        found = set(tables["ledger"])
        if lost := self.acknowledged - found:
            self.problems.append(f"{len(lost)} acknowledged transfers are not there: {sorted(lost)[:5]}")
        if wrong := self.refused & found:
            self.problems.append(f"{len(wrong)} refused transfers are there: {sorted(wrong)[:5]}")
        await self.audit_indexes(db, self.draw())


class TownFaults(Faults):
    """The same faults; ranges of the town's tables are split and merged after each of them."""

    keys: tuple[bytes, ...] = ()

    async def run(self, seconds: float, remote: Remote) -> None:
        """Damage one node behind all other faults: damage is met late, and two damaged copies of three are a loss."""
        await super().run(seconds, remote)
        await self.cluster.wait_live()
        await self.cluster.wait_replicated()
        await self._damage(self.random.randrange(len(self.cluster.addresses)))

    async def _damage(self, victim: int) -> None:
        self.cluster.kill(victim)
        file = self.random.choice(sst_files(self.cluster.directory / f"n{victim + 1}" / "engine"))
        at = self.random.randrange(file.stat().st_size)
        flip_byte(file, at)
        self._count("damage")
        self.cluster.launch(victim)
        supervisor = asyncio.create_task(self._supervise(victim, file, at))
        try:
            await asyncio.sleep(DAMAGED_S)
            await self.cluster.wait_replicated()
        finally:
            supervisor.cancel()

    async def _supervise(self, victim: int, file: Path, at: int) -> None:
        """Start a node again that has ended itself, as a service manager does: its files are damaged under its writes.

        One whose own records or files are damaged says so, and is not of use again before its disk is.
        """
        while True:
            await asyncio.sleep(0.2)
            if not self.cluster.running(victim):
                self.cluster.kill(victim)
                self._count("ended by itself")
                if REFUSED in self.cluster.last_words(victim) and file.exists():
                    flip_byte(file, at)
                    self._count("refused to start")
                self.cluster.launch(victim)

    async def _reshape(self, remote: Remote) -> None:
        for _ in range(3):
            work = self.random.choice([split, merge])
            try:
                await work(remote, self.random.choice(self.keys))
                self._count(work.__name__)
            except SlackwaterError as error:
                self._count(f"{work.__name__}: {type(error).__name__}")


def by_id(rows: Any) -> dict[int, Any]:
    return {row["id"]: row for row in rows.to_pylist()}


async def tables_of(snapshot: AsyncSnapshot) -> dict[str, dict[int, Any]]:
    return {name: by_id(await snapshot.scan(name)) for name in TABLES}


async def again(town: Town, work: Callable[[Any], Awaitable[Any]], argument: Any) -> Any:
    """What a call returns, or None where it can be had later only."""
    try:
        return await work(argument)
    except (UnavailableError, ConflictError) as error:
        town.counts[f"later: {type(error).__name__}"] += 1
        return None


def keep(kept: dict[str, dict[int, Any]], pending: list[tuple[int, str, dict[str, Any]]], upto: int) -> None:
    """Apply what is resolved, in order; the rest waits."""
    for ts, table, row in sorted((item for item in pending if item[0] <= upto), key=lambda item: item[0]):
        if row["_op"] == "delete":
            kept[table].pop(row["id"], None)
        else:
            kept[table][row["id"]] = row
        assert ts <= upto
    pending[:] = [item for item in pending if item[0] > upto]


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """What a row says by columns that no schema change here takes away."""
    return {name: value for name, value in row.items() if not name.startswith("_") and name != "note"}


async def play(cluster: Processes, faults: TownFaults, seed: int, seconds: float) -> Town:
    await cluster.make_whole()
    town = Town("slackwater://" + ",".join(cluster.addresses), seed)
    async with (
        connect(cluster.addresses, settings=client_settings()) as remote,
        slackwater.aconnect(town.url, timeout=60) as db,
    ):
        await change_zone(remote.kv, b"", b"", gc_ttl_s=TTL_S)
        await db.create_table("accounts", {"id": "int8", "balance": "int8 not null"}, primary_key="id")
        await db.create_table("named", {"id": "int8", "name": "text"}, primary_key="id")
        await db.create_index("named", "by_name", ["name"], unique=True)
        columns = {"id": "int8", "payer": "int8", "payee": "int8", "amount": "int8"}
        await db.create_table("ledger", columns, primary_key="id")
        await db.create_table("batches", {"id": "int8", "batch": "int8"}, primary_key="id")
        await db.upsert("accounts", [{"id": n, "balance": FIRST_BALANCE} for n in range(ACCOUNTS)])
        await db.create_index("accounts", "by_balance", ["balance"])
        await town.replace(db, random.Random(0))
        cuts = {"accounts": ACCOUNTS, "ledger": 1000, "batches": BATCH_ROWS}
        codecs = {name: RowCodec((await db.history(name)).latest.schema) for name in cuts}
        faults.keys = tuple(codecs[name].key([n]) for name, most in cuts.items() for n in range(0, most, most // 4))
        await asyncio.sleep(5.0)  # audits look some seconds back
        steps = [("transfers", town.transfer)] * 4 + [("audits", town.audit)] * 2 + [("batches", town.replace)]
        steps += [("index audits", town.audit_indexes), ("looks", town.look), ("travelers", town.travel)]
        steps += [("changes", town.change), ("names", town.name), ("names", town.name)]
        steps += [("name audits", town.audit_names), ("changes of names", town.change_names)]
        spans = [schema_span(codecs[name].schema) for name in cuts]
        async with asyncio.TaskGroup() as tasks:
            for name, step in steps:
                tasks.create_task(town.repeat(name, step))
            tasks.create_task(town.mirror())
            tasks.create_task(town.change_policy(remote, spans))
            try:
                await faults.run(seconds, remote)
                await cluster.wait_live()
                done = town.counts["transfers"]
                async with asyncio.timeout(CALM_S):
                    while town.counts["transfers"] < done + 10:
                        await asyncio.sleep(0.1)
            finally:
                town.stopping.set()
        await town.judge(db)
        town.counts.update({f"fault {name}": count for name, count in faults.done.items()})
    return town


@pytest.mark.parametrize("log", ["sqlite", "nats"])
def test_all_promises_hold_together(tmp_path: Path, log: str) -> None:
    if log == "nats" and not SECONDS:
        pytest.skip("make faults-all runs it over NATS as well")
    seed = seed_of_this_run()

    async def main() -> Town:
        async with AsyncExitStack() as stack:
            servers, url = None, f"sqlite://{tmp_path}/log.db"
            if log == "nats":
                servers = await stack.enter_async_context(LocalNats(tmp_path / "nats", servers=3, clock=RealClock()))
                url = servers.url(stream="town")
            cluster = Processes(tmp_path, nodes=3, log_url=url, settings=SETTINGS)
            await stack.enter_async_context(cluster)
            return await play(cluster, TownFaults(cluster, seed, servers=servers), seed, SECONDS or SHORT_S)

    town = asyncio.run(main())
    print(dict(sorted(town.counts.items())))
    assert not town.problems, "\n".join(town.problems[:10])
    parts = ("transfers", "audits", "index audits", "names", "name audits", "batches", "looks", "mirrors compared")
    for what in (*parts, "protected reads"):
        assert town.counts[what] > 0, f"no {what}"
