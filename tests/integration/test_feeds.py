"""A bank over two tables on three real nodes, followed by change feeds, while the node that serves a feed is killed with -9.

Every transfer changes two accounts and writes a row to the ledger, in one transaction. Two consumers follow both tables:

    Watcher    the rows as stored, with before-images, through the validators of `feeds.validate`: order per key, resolved
               timestamps that hold, before-images that fit, and a fingerprint of the rebuilt tables at every one of them
    Mirror     `db.changes(atomic=True)`, decoded: two dicts, whose money and ledger add up at every resolved timestamp

Every few seconds the node that one of them has for a gateway is killed; it comes back a moment later. The consumers are told
nothing: the client goes on elsewhere from its last position. In the end the tables are read again as of *every* resolved
timestamp that was handed out, and are what the consumers had.

A third one, in `keeper`, is itself killed with -9 at any moment; it keeps only what is resolved, and the token.

`SLACKWATER_FAULT_SECONDS=120 pytest tests/integration/test_feeds.py` runs each for two minutes.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from slackwater.client import aconnect
from slackwater.clock.timestamp import MAX, MIN
from slackwater.codec.layout import schema_span
from slackwater.codec.rows import RowCodec
from slackwater.errors import SlackwaterError
from slackwater.feeds.validate import Validators, fingerprint
from slackwater.log.nats_server import LocalNats
from slackwater.protocol.client.changes import OpenChanges
from slackwater.protocol.feeds.events import Resolved
from slackwater.runtime import run
from slackwater.runtime.clock import RealClock
from slackwater.server.remote import connect
from tests.integration.cluster import Processes, client_settings, split, spread
from tests.integration.keeper import load, table_of

if TYPE_CHECKING:
    from pathlib import Path

    from slackwater.client import AsyncDatabase
    from slackwater.clock.timestamp import Timestamp
    from slackwater.server.remote import Remote

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("cluster")]

SECONDS = float(os.environ.get("SLACKWATER_FAULT_SECONDS", "0"))
SQLITE_S, NATS_S = 25.0, 10.0
TABLES = ("accounts", "ledger")
ACCOUNTS, FIRST_BALANCE = 40, 100
WRITERS = 4
INTERVAL_S = 0.25
"""Between resolved timestamps."""
DOWN_S, CALM_S = 1.0, 2.5
"""How long a killed node stays away, and the pause after its return."""
CATCH_UP_S = 60.0
KILLS_MIN = 4
"""However slow the machine is: each consumer loses its gateway twice."""


class Consumer:
    """What both have in common: a session of its own, and a place to reach."""

    def __init__(self, db: AsyncDatabase) -> None:
        self.db = db
        self.resolved = MIN
        self.target = MAX
        """Once this is resolved, it has seen enough."""
        self.streams = 0

    def gateway(self) -> str:
        """The node that serves it."""
        return self.db._gateways.current


class Watcher(Consumer):
    """Follows what is stored and has every rule checked."""

    def __init__(self, db: AsyncDatabase, spans: list[Any]) -> None:
        super().__init__(db)
        self.spans = spans
        self.checks = Validators(spans)

    async def follow(self) -> None:
        request = OpenChanges(tables=TABLES, initial_scan="yes", befores=True, interval_s=INTERVAL_S)
        stream = self.db.change_items(request)
        async for item in stream:
            if item.since:  # the first word of a gateway
                self.streams += 1
                self.checks.restarted()
            if item.rows is not None:
                self.checks.event(item.rows, self.spans[0])
            if item.resolved > self.resolved:
                for span in self.spans:
                    self.checks.event(Resolved(item.resolved), span)
                self.resolved = item.resolved
            if self.resolved >= self.target:
                break
        await stream.aclose()


class Mirror(Consumer):
    """Follows rows and has its own copy of both tables, judged whenever it is told that it is whole."""

    def __init__(self, db: AsyncDatabase) -> None:
        super().__init__(db)
        self.tables: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in TABLES}
        self.seen: dict[Timestamp, int] = {}
        """By resolved timestamp, a hash of both tables."""
        self.problems: list[str] = []
        self.events = 0

    async def follow(self) -> None:
        stream = self.db.changes(TABLES, atomic=True, resolved=INTERVAL_S)
        async for batch in stream:
            if batch.kind == "rows":
                self.apply(batch)
            elif batch.kind == "resolved":
                self.resolved = batch.resolved
                self.seen[batch.resolved] = table_hash(self.tables)
                self.judge()
                if self.resolved >= self.target:
                    break
        await stream.aclose()

    def apply(self, batch: Any) -> None:
        rows = self.tables[batch.table]
        self.events += batch.data.num_rows
        for row in batch.data.to_pylist():
            if row["_op"] == "delete":
                rows.pop(row["id"], None)
            else:
                rows[row["id"]] = {name: value for name, value in row.items() if not name.startswith("_")}

    def judge(self) -> None:
        """Whole transactions, or the money does not fit the ledger."""
        expected = dict.fromkeys(range(ACCOUNTS), FIRST_BALANCE)
        for row in self.tables["ledger"].values():
            expected[row["source"]] -= row["amount"]
            expected[row["target"]] += row["amount"]
        held = {key: row["balance"] for key, row in self.tables["accounts"].items()}
        if held != expected:
            self.problems.append(f"at {self.resolved} the accounts are {held}, the ledger says {expected}")


def table_hash(tables: dict[str, dict[int, dict[str, Any]]]) -> int:
    return hash(tuple((name, tuple(tuple(rows[key].items()) for key in sorted(rows))) for name, rows in tables.items()))


class Bank:
    """Writers that never stop by themselves."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.stopping = False
        self.done = 0
        self.errors: dict[str, int] = {}

    async def load(self, db: AsyncDatabase) -> None:
        await db.create_table("accounts", {"id": "int8", "balance": "int8 not null"}, primary_key="id")
        columns = {"id": "int8", "source": "int8", "target": "int8", "amount": "int8"}
        await db.create_table("ledger", columns, primary_key="id")
        await db.upsert("accounts", [{"id": i, "balance": FIRST_BALANCE} for i in range(ACCOUNTS)])

    async def write(self, db: AsyncDatabase, number: int) -> None:
        turn = 0
        while not self.stopping:
            turn += 1
            try:
                await db.run(lambda tx, turn=turn: self.transfer(tx, number * 1_000_000 + turn))
            except SlackwaterError as error:
                self.errors[type(error).__name__] = self.errors.get(type(error).__name__, 0) + 1
                await asyncio.sleep(0.05)
            else:
                self.done += 1

    async def transfer(self, tx: Any, number: int) -> None:
        source, target = self.random.sample(range(ACCOUNTS), 2)
        one, two = await tx.get("accounts", source), await tx.get("accounts", target)
        amount = self.random.randint(0, 10)
        moved = [{**one, "balance": one["balance"] - amount}, {**two, "balance": two["balance"] + amount}]
        await tx.upsert("accounts", moved)
        await tx.upsert("ledger", [{"id": number, "source": source, "target": target, "amount": amount}])


async def kill_who_serves(cluster: Processes, consumers: list[Consumer], seconds: float) -> int:
    """Kill the gateway of one consumer after the other, for so long and often enough; returns how many were killed."""
    ends, kills = time.monotonic() + seconds, 0
    while time.monotonic() < ends or kills < KILLS_MIN:
        victim = cluster.addresses.index(consumers[kills % len(consumers)].gateway())
        cluster.kill(victim)
        kills += 1
        await asyncio.sleep(DOWN_S)
        await cluster.start(victim)
        await asyncio.sleep(CALM_S)
    return kills


async def source_at(remote: Remote, spans: list[Any], ts: Timestamp) -> list[tuple[bytes, bytes]]:
    """Both tables as of a timestamp, as stored."""
    found: list[tuple[bytes, bytes]] = []
    for span in spans:
        rows = await remote.kv.scan(span.start, span.end, ts=ts)
        assert rows.resume is None
        found += zip(rows.keys, rows.values, strict=True)
    return found


async def compare(remote: Remote, watcher: Watcher, mirror: Mirror, codecs: dict[str, RowCodec]) -> list[str]:
    """Read the source again as of every resolved timestamp that a consumer was given."""
    problems = [str(breach) for breach in watcher.checks.breaches] + mirror.problems
    spans = [schema_span(codecs[name].schema) for name in TABLES]
    for ts in sorted(watcher.checks.fingerprints.digests):
        rows = await source_at(remote, spans, ts)
        if fingerprint(rows) != watcher.checks.fingerprints.digests[ts]:
            problems.append(f"what the feed gave differs from the tables as of {ts}")
    for ts, digest in mirror.seen.items():
        rows = await source_at(remote, spans, ts)
        tables: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in TABLES}
        for key, value in rows:
            name = TABLES[key >= spans[1].start]
            row = codecs[name].decode(value)
            tables[name][row["id"]] = row
        if table_hash(tables) != digest:
            problems.append(f"the mirror differs from the tables as of {ts}")
    return problems


async def follow_under_kills(cluster: Processes, seconds: float) -> None:
    url = "slackwater://{}?timeout=10"
    first, second, third = cluster.addresses
    bank = Bank(seed=int(os.environ.get("SLACKWATER_FAULT_SEED", "0")) or 5)
    async with (
        connect(cluster.addresses, settings=client_settings()) as remote,
        aconnect(url.format(f"{first},{second},{third}")) as writing,
        aconnect(url.format(f"{second},{third},{first}")) as one,
        aconnect(url.format(f"{third},{first},{second}")) as other,
    ):
        await bank.load(writing)
        schemas = {name: (await writing.history(name)).latest.schema for name in TABLES}
        codecs = {name: RowCodec(schema) for name, schema in schemas.items()}
        await split(remote, schema_span(schemas["ledger"]).start)
        await split(remote, codecs["accounts"].key([ACCOUNTS // 2]))
        await spread(remote, cluster)
        watcher, mirror = Watcher(one, [schema_span(schemas[name]) for name in TABLES]), Mirror(other)
        reading = [asyncio.ensure_future(consumer.follow()) for consumer in (watcher, mirror)]
        writers = [asyncio.ensure_future(bank.write(writing, n + 1)) for n in range(WRITERS)]
        try:
            kills = await kill_who_serves(cluster, [watcher, mirror], seconds)
            await cluster.wait_live()
        finally:
            bank.stopping = True
            await asyncio.gather(*writers)
        watcher.target = mirror.target = writing.now()
        async with asyncio.timeout(CATCH_UP_S):
            await asyncio.gather(*reading)
        problems = await compare(remote, watcher, mirror, codecs)
    print(
        f"{bank.done} transfers {bank.errors}; {kills} kills, {watcher.streams} streams;"
        f" resolved timestamps: {len(watcher.checks.fingerprints.digests)} watched, {len(mirror.seen)} mirrored;"
        f" {mirror.events} events"
    )
    assert not problems, "\n".join(problems[:5])
    assert watcher.streams > 1, "no gateway was lost"
    assert len(watcher.checks.fingerprints.digests) > kills
    assert len(mirror.seen) > kills
    assert len(mirror.tables["ledger"]) >= bank.done > 0


SETTINGS = {"closed_timestamp.target_duration": 0.5, "queue.interval": 0.0}
CONSUMER_KILLS = 8


async def keep_under_kills(cluster: Processes, directory: Path) -> None:
    """Kill a keeper again and again; each time, what it has kept is both tables at what it was told is resolved."""
    url, path = f"slackwater://{','.join(cluster.addresses)}?timeout=10", directory / "kept.json"
    bank, chance = Bank(seed=7), random.Random(11)
    async with connect(cluster.addresses, settings=client_settings()) as remote, aconnect(url) as db:
        await bank.load(db)
        schemas = {name: (await db.history(name)).latest.schema for name in TABLES}
        for at in (
            schema_span(schemas["ledger"]).start,
            *(RowCodec(schemas["accounts"]).key([n]) for n in (10, 20, 30)),
        ):
            await split(remote, at)
        writers = [asyncio.ensure_future(bank.write(db, n + 1)) for n in range(WRITERS)]
        compared: set[int] = set()
        try:
            for kill in range(CONSUMER_KILLS):
                process = subprocess.Popen([sys.executable, "-m", "tests.integration.keeper", url, str(path), *TABLES])
                try:
                    before = load(path)["resolved"]
                    async with asyncio.timeout(CATCH_UP_S):
                        while load(path)["resolved"] <= before:
                            await asyncio.sleep(0.05)
                    await asyncio.sleep(chance.random())
                finally:
                    process.kill()
                    process.wait()
                kept = load(path)
                snap = await db.snapshot(as_of=kept["resolved"])
                for name in TABLES:
                    table = {row["id"]: row for row in (await snap.scan(name)).to_pylist()}
                    assert table_of(kept, name) == table, f"after kill {kill}, {name} at {kept['resolved']}"
                compared.add(kept["resolved"])
        finally:
            bank.stopping = True
            await asyncio.gather(*writers)
    assert len(compared) == CONSUMER_KILLS
    assert bank.done > 0


def test_a_consumer_that_keeps_what_is_resolved_misses_nothing_when_it_is_killed(tmp_path):
    async def main() -> None:
        async with Processes(tmp_path, nodes=1, log_url=f"sqlite://{tmp_path}/log.db", settings=SETTINGS) as cluster:
            await cluster.make()
            await cluster.wait_live()
            await keep_under_kills(cluster, tmp_path)

    run(main())


async def on_three_nodes(directory: Path, log_url: str, seconds: float) -> None:
    async with Processes(directory, nodes=3, log_url=log_url, settings=SETTINGS) as cluster:
        await cluster.make()
        await cluster.wait_live()
        await follow_under_kills(cluster, seconds)


def test_a_mirror_equals_the_tables_at_every_resolved_timestamp_while_who_serves_it_is_killed(tmp_path):
    run(on_three_nodes(tmp_path, f"sqlite://{tmp_path}/log.db", SECONDS or SQLITE_S))


def test_the_same_over_nats(tmp_path):
    pytest.importorskip("nats")

    async def main() -> None:
        async with LocalNats(tmp_path / "nats", servers=3, clock=RealClock()) as servers:
            await on_three_nodes(tmp_path, servers.url(stream="feeds"), SECONDS or NATS_S)

    run(main())
