"""What the clients of a simulated cluster do, and how they write it down.

    register   get, put and compare-and-swap of single keys, outside transactions       linearizable per key (I-19)
    bank       move money between two accounts; read all of them                        the total stays (I-18)
    ring       exchange two neighbors of a ring by rewriting three pointers              one ring (I-18)
    list       read and append to lists, several in one transaction                     no cycles (I-18)
    fork       write each key once; read whole groups                                   one order for all (I-18)
    audit      scan the past through any replica                                        equals V at that time (I-15)

Closed loops with think time. Each operation has a drawn timeout. `AmbiguousResult` is unknown, any other error means
that nothing happened; the checkers hold the store to that.

A register operation is written down twice: for the search over true time and, as a transaction of one key, for the
comparison with V. Values are unique over the run, so that V tells who wrote what.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from slackwater.clock.timestamp import Timestamp, add_seconds
from slackwater.errors import AmbiguousResult, ConditionFailed, SlackwaterError
from slackwater.hooks import probe
from slackwater.model.layout import prefix_end
from slackwater.sim.handles import NS
from slackwater.sim.scenarios.cluster_plan import (
    KV_SPAN,
    OPENING_BALANCE,
    account_keys,
    fork_groups,
    list_keys,
    register_keys,
    ring_keys,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from slackwater.sim.checkers import ListPen, TxnPen
    from slackwater.sim.scenarios.cluster_plan import Cluster
    from slackwater.sim.scenarios.cluster_programs import Client
    from slackwater.sim.tape import Stream
    from slackwater.txn import Transaction

TIMEOUTS_S = (0.5, 3.0, 3.0, 10.0)
LOADER = 0
"""The client number under which the opening balances are written down."""
PAST_S = (0.5, 4.0, 8.0)
DAWDLE_MEAN_NS = NS // 5


async def open_books(client: Client, cluster: Cluster) -> None:
    """Write the opening balances and the ring, as one transaction of the history."""
    pen = cluster.recorder.txn(client=LOADER)
    ring = ring_keys()
    rows = [(key, b"%d:0:%d" % (OPENING_BALANCE, i)) for i, key in enumerate(account_keys())]
    rows += list(zip(ring, [*ring[1:], ring[0]], strict=True))
    committed: list[int] = []

    async def write(txn: Transaction) -> None:
        pen.restart()
        for key, value in rows:
            pen.write(key, value)
            await txn.put(key, value)
        committed.append(await txn.commit())

    await _finish(pen, client.kv.run(write, timeout=TIMEOUTS_S[-1]), lambda: pen.ok(commit_ts=committed[-1]))
    cluster.loaded_ts = committed[-1]


async def _finish(pen: TxnPen | ListPen, work: Awaitable[object], ok: Callable[[], None]) -> None:
    """Close a pen by what its client was told; errors go on to the caller."""
    try:
        await work
    except AmbiguousResult:
        probe("cluster.unknown")
        pen.unknown()
        raise
    except SlackwaterError:
        probe("cluster.failed")
        pen.failed()
        raise
    probe("cluster.ok")
    ok()


def balance(value: bytes) -> int:
    """The balance in a stored account: `balance:client:number`."""
    return int(value.partition(b":")[0])


class Worker:
    """One client: draws an operation, does it, writes down what it was told, thinks."""

    def __init__(self, client: Client, cluster: Cluster, number: int, draw: Stream) -> None:
        self._client = client
        self._cluster = cluster
        self._kv = client.kv
        self._number = number
        self._draw = draw
        self._made = 0
        self._ops = {
            "register": self._register,
            "bank": self._bank,
            "ring": self._ring,
            "list": self._list,
            "fork": self._fork,
            "audit": self._audit,
        }

    async def main(self, nodes: int) -> None:
        """Work until the traffic ends."""
        cluster, draw = self._cluster, self._draw
        name = f"c{self._number}"
        cluster.busy[name] = "waiting for the cluster"
        await self._client.meet(nodes)
        while not cluster.ready:
            await self._client.runtime.clock.sleep(0.1)
        while cluster.traffic:
            what = draw.pick(cluster.plan.workloads)
            cluster.busy[name] = what
            with suppress(SlackwaterError):  # already written down
                await self._ops[what](draw.pick(TIMEOUTS_S))
            await self._client.runtime.clock.sleep(draw.decay(cluster.plan.think_mean_ns) / NS)
        cluster.busy[name] = ""

    def _unique(self) -> bytes:
        self._made += 1
        return b"c%d.%d" % (self._number, self._made)

    async def _dawdle(self) -> None:
        """Some transactions take their time between reading and writing: leases move and others commit meanwhile."""
        if self._draw.chance(1, 4):
            await self._client.runtime.clock.sleep(self._draw.decay(DAWDLE_MEAN_NS) / NS)

    # --- registers -------------------------------------------------------------------------------------------------

    async def _register(self, timeout: float) -> None:
        key = self._draw.pick(register_keys())
        recorder, client = self._cluster.recorder, self._number
        what = self._draw.below(10)
        if what < 5:
            pen = recorder.read(key, client=client)
            try:
                value = await self._kv.get(key, timeout=timeout)
            except SlackwaterError:
                pen.failed()
                return
            probe("cluster.ok")
            pen.ok(saw=value)
            return
        value = self._unique()
        found = await self._kv.get(key, timeout=timeout) if what < 7 else None
        page = recorder.txn(client=client)
        page.write(key, value)
        pen = (
            recorder.cas(key, expected=found, value=value, client=client)
            if what < 7
            else recorder.write(key, value, client=client)
        )
        try:
            if what < 7:
                ts = await self._kv.cput(key, value, expected=found, timeout=timeout)
            else:
                ts = await self._kv.put(key, value, timeout=timeout)
        except ConditionFailed as error:
            actual = error.facts.get("actual")
            pen.mismatch(found=actual if isinstance(actual, bytes) else None)
            page.failed()
        except AmbiguousResult:
            pen.unknown()
            page.unknown()
        except SlackwaterError:
            pen.failed()
            page.failed()
        else:
            probe("cluster.ok")
            pen.ok()
            page.ok(commit_ts=ts)

    # --- transactions ----------------------------------------------------------------------------------------------

    async def _txn(self, body: Callable[[Transaction, TxnPen], Awaitable[None]], timeout: float) -> None:
        """Run a recorded transaction with retries; each attempt starts a clean page."""
        pen = self._cluster.recorder.txn(client=self._number)
        told: list[tuple[int, int]] = []

        async def attempt(txn: Transaction) -> None:
            pen.restart()
            await body(txn, pen)
            ts = await txn.commit()
            told.append((ts, int(txn.state.read_ts)))

        def ok() -> None:
            ts, read_ts = told[-1]
            if pen._writes:
                pen.ok(commit_ts=ts)
            else:
                pen.ok(read_ts=read_ts)

        await _finish(pen, self._kv.run(attempt, timeout=timeout), ok)

    async def _bank(self, timeout: float) -> None:
        draw, accounts = self._draw, account_keys()
        if draw.chance(1, 3):
            await self._txn(self._read_bank, timeout)
            return
        giver, taker = draw.shuffled(accounts)[:2]
        amount = draw.between(1, 20)

        async def move(txn: Transaction, pen: TxnPen) -> None:
            held = {}
            for key in (giver, taker):
                value = await txn.get(key)
                pen.read(key, value)
                held[key] = balance(value or b"0")
            await self._dawdle()
            some = min(amount, held[giver])
            for key, change in ((giver, -some), (taker, some)):
                value = b"%d:%s" % (held[key] + change, self._unique())
                pen.write(key, value)
                await txn.put(key, value)

        await self._txn(move, timeout)

    async def _read_bank(self, txn: Transaction, pen: TxnPen) -> None:
        if self._draw.chance(1, 2):
            for key in self._draw.shuffled(account_keys()):
                pen.read(key, await txn.get(key))
            return
        start, end = account_keys()[0], prefix_end(account_keys()[-1])
        rows = await txn.scan(start, end)
        pen.scan(start=start, end=end, rows=list(zip(rows.keys, rows.values, strict=True)))

    async def _ring(self, timeout: float) -> None:
        ring = ring_keys()
        if self._draw.chance(1, 3):
            await self._txn(self._read_ring, timeout)
            return
        first = self._draw.pick(ring)

        async def exchange(txn: Transaction, pen: TxnPen) -> None:
            """A → b → c → d becomes a → c → b → d."""
            chain = [first]
            for _ in range(3):
                value = await txn.get(chain[-1])
                pen.read(chain[-1], value)
                chain.append(value or first)
            await self._dawdle()
            a, b, c, d = chain
            for key, value in ((a, c), (c, b), (b, d)):
                pen.write(key, value)
                await txn.put(key, value)

        await self._txn(exchange, timeout)

    async def _read_ring(self, txn: Transaction, pen: TxnPen) -> None:
        for key in self._draw.shuffled(ring_keys()):
            pen.read(key, await txn.get(key))

    async def _fork(self, timeout: float) -> None:
        group = self._draw.pick(fork_groups())
        if self._draw.chance(1, 2):

            async def look(txn: Transaction, pen: TxnPen) -> None:
                for key in self._draw.shuffled(group):
                    pen.read(key, await txn.get(key))

            await self._txn(look, timeout)
            return
        key = self._draw.pick(group)

        async def once(txn: Transaction, pen: TxnPen) -> None:
            found = await txn.get(key)
            pen.read(key, found)
            await self._dawdle()
            if found is None:
                value = self._unique()
                pen.write(key, value)
                await txn.put(key, value)

        await self._txn(once, timeout)

    async def _list(self, timeout: float) -> None:
        draw = self._draw
        pen = self._cluster.recorder.list_txn(client=self._number)
        page = self._cluster.recorder.txn(client=self._number)
        told: list[int] = []
        steps = [(draw.pick(list_keys()), draw.chance(1, 2)) for _ in range(draw.between(1, 3))]

        async def attempt(txn: Transaction) -> None:
            pen.restart()
            page.restart()
            for key, appends in steps:
                await self._dawdle()
                raw = await txn.get(key)
                page.read(key, raw)
                elements = msgspec.json.decode(raw) if raw else []
                pen.read(key, elements)
                if appends:
                    self._made += 1
                    element = self._number * 1_000_000 + self._made
                    value = msgspec.json.encode([*elements, element])
                    pen.append(key, element)
                    page.write(key, value)
                    await txn.put(key, value)
            told.append(await txn.commit())

        try:
            await _finish(pen, self._kv.run(attempt, timeout=timeout), pen.ok)
        except AmbiguousResult:
            page.unknown()
            raise
        except SlackwaterError:
            page.failed()
            raise
        page.ok(commit_ts=told[-1] if page._writes else None, read_ts=None if page._writes else told[-1])

    # --- the past --------------------------------------------------------------------------------------------------

    async def _audit(self, timeout: float) -> None:
        """Scan a drawn span at a drawn moment of the past, wherever it is closed."""
        draw, ts = self._draw, Timestamp(self._client.clock.now())
        ts = add_seconds(ts, -draw.pick(PAST_S))
        if ts <= self._cluster.loaded_ts:
            return
        start, end = draw.pick([(account_keys()[0], prefix_end(account_keys()[-1])), KV_SPAN])
        pen = self._cluster.recorder.txn(client=self._number, historical=True)
        try:
            rows = await self._kv.scan(start, end, ts=ts, follower_ok=True, timeout=timeout)
        except SlackwaterError:
            pen.failed()
            return
        probe("cluster.audited")
        pen.scan(start=start, end=end, rows=list(zip(rows.keys, rows.values, strict=True)))
        pen.ok(read_ts=ts)
