"""What the clients of a simulated cluster do, and how they write it down.

    register   get, put and compare-and-swap of single keys, outside transactions       linearizable per key (I-19)
    bank       move money between two accounts; read all of them                        the total stays (I-18)
    ring       exchange two neighbors of a ring by rewriting three pointers              one ring (I-18)
    list       read and append to lists, several in one transaction                     no cycles (I-18)
    fork       write each key once; read whole groups                                   one order for all (I-18)
    audit      scan the past through any replica                                        equals V at that time (I-15)

Each operation has a drawn timeout. `AmbiguousResult` is unknown, any other error means
that nothing happened; the checkers hold the store to that.

A register operation is written down twice: for the search over true time and, as a transaction of one key, for the
comparison with V. Values are unique over the run, so that V tells the writer of each.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from slackwater.clock.timestamp import Timestamp, add_seconds
from slackwater.codec.layout import prefix_end
from slackwater.errors import AmbiguousResult, ConditionFailed, SlackwaterError
from slackwater.hooks import probe
from slackwater.sim.scenarios.cluster_plan import (
    KV_SPAN,
    OPENING_BALANCE,
    account_keys,
    fork_groups,
    list_keys,
    register_keys,
    ring_keys,
)
from slackwater.sim.scenarios.cluster_worker import TIMEOUTS_S, finish, operation

if TYPE_CHECKING:
    from slackwater.sim.checkers import TxnPen
    from slackwater.sim.scenarios.cluster_plan import Cluster
    from slackwater.sim.scenarios.cluster_programs import Client
    from slackwater.sim.scenarios.cluster_worker import Worker
    from slackwater.txn import Transaction

LOADER = 0
"""The client number under which the opening balances are written down."""
PAST_S = (0.5, 4.0, 8.0)


def balance(value: bytes) -> int:
    """The balance in a stored account: `balance:client:number`."""
    return int(value.partition(b":")[0])


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

    await finish(pen, client.kv.run(write, timeout=TIMEOUTS_S[-1]), lambda: pen.ok(commit_ts=committed[-1]))
    cluster.loaded_ts = committed[-1]


# --- registers -------------------------------------------------------------------------------------------------


@operation("register")
async def _register(me: Worker, timeout: float) -> None:
    key = me.draw.pick(register_keys())
    recorder, client = me.cluster.recorder, me.number
    what = me.draw.below(10)
    if what < 5:
        pen = recorder.read(key, client=client)
        try:
            value = await me.kv.get(key, timeout=timeout)
        except SlackwaterError:
            pen.failed()
            return
        probe("cluster.ok")
        pen.ok(saw=value)
        return
    value = me.unique()
    found = await me.kv.get(key, timeout=timeout) if what < 7 else None
    page = recorder.txn(client=client)
    page.write(key, value)
    pen = (
        recorder.cas(key, expected=found, value=value, client=client)
        if what < 7
        else recorder.write(key, value, client=client)
    )
    try:
        if what < 7:
            ts = await me.kv.cput(key, value, expected=found, timeout=timeout)
        else:
            ts = await me.kv.put(key, value, timeout=timeout)
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


@operation("bank")
async def _bank(me: Worker, timeout: float) -> None:
    draw, accounts = me.draw, account_keys()
    if draw.chance(1, 3):
        await me.txn(partial(_read_bank, me), timeout)
        return
    giver, taker = draw.shuffled(accounts)[:2]
    amount = draw.between(1, 20)

    async def move(txn: Transaction, pen: TxnPen) -> None:
        held = {}
        for key in (giver, taker):
            value = await txn.get(key)
            pen.read(key, value)
            held[key] = balance(value or b"0")
        await me.dawdle()
        some = min(amount, held[giver])
        for key, change in ((giver, -some), (taker, some)):
            value = b"%d:%s" % (held[key] + change, me.unique())
            pen.write(key, value)
            await txn.put(key, value)

    await me.txn(move, timeout)


async def _read_bank(me: Worker, txn: Transaction, pen: TxnPen) -> None:
    if me.draw.chance(1, 2):
        for key in me.draw.shuffled(account_keys()):
            pen.read(key, await txn.get(key))
        return
    start, end = account_keys()[0], prefix_end(account_keys()[-1])
    rows = await txn.scan(start, end)
    pen.scan(start=start, end=end, rows=list(zip(rows.keys, rows.values, strict=True)))


@operation("ring")
async def _ring(me: Worker, timeout: float) -> None:
    ring = ring_keys()
    if me.draw.chance(1, 3):
        await me.txn(partial(_read_ring, me), timeout)
        return
    first = me.draw.pick(ring)

    async def exchange(txn: Transaction, pen: TxnPen) -> None:
        """A → b → c → d becomes a → c → b → d."""
        chain = [first]
        for _ in range(3):
            value = await txn.get(chain[-1])
            pen.read(chain[-1], value)
            chain.append(value or first)
        await me.dawdle()
        a, b, c, d = chain
        for key, value in ((a, c), (c, b), (b, d)):
            pen.write(key, value)
            await txn.put(key, value)

    await me.txn(exchange, timeout)


async def _read_ring(me: Worker, txn: Transaction, pen: TxnPen) -> None:
    for key in me.draw.shuffled(ring_keys()):
        pen.read(key, await txn.get(key))


@operation("fork")
async def _fork(me: Worker, timeout: float) -> None:
    group = me.draw.pick(fork_groups())
    if me.draw.chance(1, 2):

        async def look(txn: Transaction, pen: TxnPen) -> None:
            for key in me.draw.shuffled(group):
                pen.read(key, await txn.get(key))

        await me.txn(look, timeout)
        return
    key = me.draw.pick(group)

    async def once(txn: Transaction, pen: TxnPen) -> None:
        found = await txn.get(key)
        pen.read(key, found)
        await me.dawdle()
        if found is None:
            value = me.unique()
            pen.write(key, value)
            await txn.put(key, value)

    await me.txn(once, timeout)


@operation("list")
async def _list(me: Worker, timeout: float) -> None:
    draw = me.draw
    pen = me.cluster.recorder.list_txn(client=me.number)
    page = me.cluster.recorder.txn(client=me.number)
    told: list[int] = []
    steps = [(draw.pick(list_keys()), draw.chance(1, 2)) for _ in range(draw.between(1, 3))]

    async def attempt(txn: Transaction) -> None:
        pen.restart()
        page.restart()
        for key, appends in steps:
            await me.dawdle()
            raw = await txn.get(key)
            page.read(key, raw)
            elements = msgspec.json.decode(raw) if raw else []
            pen.read(key, elements)
            if appends:
                element = me.element()
                value = msgspec.json.encode([*elements, element])
                pen.append(key, element)
                page.write(key, value)
                await txn.put(key, value)
        told.append(await txn.commit())

    try:
        await finish(pen, me.kv.run(attempt, timeout=timeout), pen.ok)
    except AmbiguousResult:
        page.unknown()
        raise
    except SlackwaterError:
        page.failed()
        raise
    page.ok(commit_ts=told[-1] if page._writes else None, read_ts=None if page._writes else told[-1])


# --- the past --------------------------------------------------------------------------------------------------


@operation("audit")
async def _audit(me: Worker, timeout: float) -> None:
    """Scan a drawn span at a drawn moment of the past, wherever it is closed."""
    draw, ts = me.draw, Timestamp(me.client.clock.now())
    ts = add_seconds(ts, -draw.pick(PAST_S))
    if ts <= me.cluster.loaded_ts:
        return
    start, end = draw.pick([(account_keys()[0], prefix_end(account_keys()[-1])), KV_SPAN])
    pen = me.cluster.recorder.txn(client=me.number, historical=True)
    try:
        rows = await me.kv.scan(start, end, ts=ts, follower_ok=True, timeout=timeout)
    except SlackwaterError:
        pen.failed()
        return
    probe("cluster.audited")
    pen.scan(start=start, end=end, rows=list(zip(rows.keys, rows.values, strict=True)))
    pen.ok(read_ts=ts)
