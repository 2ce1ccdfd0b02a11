"""Transaction ids are chosen by clients, so one may come twice: from a client that errs, or one that lies.

Two transactions of one id are two transactions. The one that has the record first keeps it; the other can never commit, is told
so in one sentence, and nothing that it wrote is ever seen. None is taken for the other by a reader, a pusher or a cleanup.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from slackwater.codec.rows import RowCodec
from slackwater.errors import RetryableError, SlackwaterError, TransactionAborted, UsageError
from slackwater.gateway.context import LocalCall
from slackwater.protocol.client import calls
from slackwater.protocol.client.calls import WriteKind
from slackwater.runtime.access import Role
from tests.unit.client.world import ACCOUNTS, session
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from slackwater.client.database import AsyncDatabase

NAME = b"the same name   "
REFUSED = "was used before"


class Forger:
    """A client that speaks to a gateway as it likes."""

    def __init__(self, cluster: Cluster, table: Any, *, gateway: int = 0, user: str = "bob") -> None:
        self.node = cluster.nodes[gateway]
        self.gateway = self.node.gateway
        self.table = table
        self.codec = RowCodec(table.schema)
        self.user = user

    def call(self) -> LocalCall:
        return LocalCall(self.node.runtime.clock, user=self.user, roles=Role.CLIENT, timeout_s=5.0)

    def rows(self, *rows: tuple[int, int], **options: Any) -> calls.Write:
        pairs = sorted(self.codec.encode({"id": i, "owner": "x", "balance": b}) for i, b in rows)
        keys, values = [key for key, _ in pairs], [value for _, value in pairs]
        return calls.Write(self.table.table_id, self.table.version, WriteKind.UPSERT, keys, values, **options)

    async def write(self, *rows: tuple[int, int], txn: bytes = NAME) -> calls.WriteReply:
        """Rows in a transaction, which is opened by the first."""
        return await self.gateway.rows.write(self.rows(*rows, txn=txn, opens=True), self.call())

    async def laid(self, *rows: tuple[int, int], txn: bytes = NAME) -> None:
        """The same, as intents: a transaction that reads what it wrote lays them."""
        written = await self.write(*rows, txn=txn)
        assert written.rows == len(rows)
        keys = self.rows(*rows).keys
        scan = calls.TxnScan(txn, self.table.table_id, keys[0], keys[-1] + b"\x00", 100, version=self.table.version)
        assert len((await self.gateway.txns.scan(scan, self.call())).values) == len(rows)

    async def commit(self, *, txn: bytes = NAME) -> calls.CommitReply:
        return await self.gateway.txns.commit(calls.EndClientTxn(txn), self.call())

    async def rollback(self, *, txn: bytes = NAME) -> None:
        await self.gateway.txns.rollback(calls.EndClientTxn(txn), self.call())


def _run(story: Callable[[Cluster, AsyncDatabase, Any], Awaitable[None]], *, nodes: int = 1) -> None:
    async def main() -> None:
        async with Cluster(nodes) as cluster, session(cluster) as db:
            await db.create_table("t", ACCOUNTS, primary_key="id")
            await db.upsert("t", [{"id": i, "owner": "x", "balance": 0} for i in (1, 2)])
            await story(cluster, db, (await db.history("t")).latest)

    asyncio.run(main())


async def balances(db: AsyncDatabase) -> dict[int, int]:
    return {row["id"]: row["balance"] for row in (await db.scan("t")).to_pylist()}


def test_a_second_transaction_of_a_committed_id_shows_nothing_and_cannot_commit() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase, table: Any) -> None:
        bob = Forger(cluster, table)
        await bob.laid((1, 10))
        await bob.commit()
        await db.upsert("t", [{"id": 2, "owner": "x", "balance": 20}])  # above the first commit
        await bob.laid((1, 11), (2, 21), (3, 31))
        # The committed record is the other one's: it makes none of these intents visible, and its commit is not theirs.
        assert await balances(db) == {1: 10, 2: 20}
        with pytest.raises(TransactionAborted, match=REFUSED):
            await bob.commit()
        await bob.rollback()
        assert await balances(db) == {1: 10, 2: 20}
        await db.upsert("t", [{"id": i, "owner": "x", "balance": i} for i in (1, 2, 3)])
        assert await balances(db) == {1: 1, 2: 2, 3: 3}

    _run(story)


def test_a_writer_that_meets_the_second_transaction_of_a_committed_id_is_not_in_its_way() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase, table: Any) -> None:
        bob = Forger(cluster, table)
        await bob.laid((1, 10))
        await bob.commit()
        await bob.laid((1, 11), (2, 21))
        await db.upsert("t", [{"id": i, "owner": "x", "balance": 5} for i in (1, 2)])
        with pytest.raises(TransactionAborted):
            await bob.commit()
        assert await balances(db) == {1: 5, 2: 5}

    _run(story)


def test_a_second_transaction_of_an_aborted_id_cannot_commit() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase, table: Any) -> None:
        bob = Forger(cluster, table)
        await bob.laid((1, 10))
        await bob.rollback()
        await bob.laid((1, 11), (2, 21))
        assert await balances(db) == {1: 0, 2: 0}
        with pytest.raises(TransactionAborted, match=REFUSED):
            await bob.commit()
        await bob.rollback()
        assert await balances(db) == {1: 0, 2: 0}

    _run(story)


def test_a_single_write_of_an_id_that_was_used_is_refused_not_acknowledged() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase, table: Any) -> None:
        bob = Forger(cluster, table)
        await bob.gateway.rows.write(bob.rows((1, 10), txn_id=NAME), bob.call())
        with pytest.raises(TransactionAborted, match=REFUSED):
            await bob.gateway.rows.write(bob.rows((1, 11), (2, 21), txn_id=NAME), bob.call())
        assert await balances(db) == {1: 10, 2: 0}
        await bob.laid((1, 12))
        with pytest.raises(TransactionAborted, match=REFUSED):
            await bob.commit()
        assert await balances(db) == {1: 10, 2: 0}

    _run(story)


def test_the_same_id_at_two_gateways_at_once_is_two_transactions() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase, table: Any) -> None:
        bob, eve = Forger(cluster, table), Forger(cluster, table, gateway=1, user="eve")
        await asyncio.gather(bob.laid((1, 10)), eve.laid((2, 20)))
        # Their records lie at different keys: there is nothing that one could take for the other's.
        await bob.commit()
        assert (await balances(db))[1] == 10
        assert (await balances(db))[2] == 0
        await eve.commit()
        assert await balances(db) == {1: 10, 2: 20}
        # Their records lie at one key: one of them has it.
        told = await asyncio.gather(_all(bob, (1, 11), (2, 11)), _all(eve, (1, 12), (2, 12)), return_exceptions=True)
        done = [one for one in told if not isinstance(one, BaseException)]
        assert all(isinstance(one, SlackwaterError) for one in told if isinstance(one, BaseException))
        assert len(done) <= 1
        found = await balances(db)
        assert found == (dict.fromkeys((1, 2), done[0]) if done else {1: 10, 2: 20})

    _run(story, nodes=2)


async def _all(client: Forger, *rows: tuple[int, int]) -> int:
    await client.laid(*rows, txn=b"another name    ")
    await client.commit(txn=b"another name    ")
    return rows[0][1]


def test_a_transaction_is_refused_to_other_users_of_its_gateway() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase, table: Any) -> None:
        bob, eve = Forger(cluster, table), Forger(cluster, table, user="eve")
        await bob.laid((1, 10))
        for attempt in (eve.write((2, 20)), eve.laid((1, 11)), eve.commit(), eve.rollback()):
            with pytest.raises(UsageError, match="another client has a transaction open under this id"):
                await attempt
        await bob.commit()
        assert await balances(db) == {1: 10, 2: 0}

    _run(story)


def test_an_outcome_is_told_by_name_or_of_exactly_one_transaction() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase, table: Any) -> None:
        bob, other = Forger(cluster, table), Forger(cluster, table, gateway=1)
        await bob.laid((1, 10))
        done = await bob.commit()
        await bob.laid((1, 11))
        second = (await bob.write((2, 21))).mark
        assert second is not None
        # All that a client knows whose first message went unanswered is what it chose.
        by_name = calls.TxnHandle(NAME, second.anchor, second.start, 0, second.start)
        told = await other.gateway.txns.settle(calls.Settle(by_name), other.call())
        assert (told.committed, told.ts) == (True, done.ts)
        told = await other.gateway.txns.settle(calls.Settle(second), other.call())
        assert not told.committed
        with pytest.raises(UsageError, match="an id of 16 bytes"):
            await other.gateway.txns.settle(
                calls.Settle(calls.TxnHandle(b"?", b"k", done.ts, 0, done.ts)), other.call()
            )
        with pytest.raises(RetryableError):
            await bob.commit()
        assert await balances(db) == {1: 10, 2: 0}

    _run(story, nodes=2)


class Draws:
    """Transactions of few names, drawn at several gateways at once; each writes its own number, which tells whose a row is."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.wrote: dict[int, list[int]] = {}
        self.committed: dict[int, int] = {}
        """By number, when it was told that it committed."""
        self.refused: set[int] = set()

    async def once(self, client: Forger) -> None:
        number, low = len(self.wrote) + 1, self.draw.randrange(1, 4)
        name = b"name %011d" % self.draw.randrange(6)
        self.wrote[number] = keys = list(range(low, low + self.draw.choice([1, 2])))
        rows = [(key, number) for key in keys]
        try:
            if self.draw.random() < 0.3:
                alone = await client.gateway.rows.write(client.rows(*rows, txn_id=name), client.call())
                self.committed[number] = alone.ts
                return
            await self.draw.choice([client.laid, client.write])(*rows, txn=name)
            if self.draw.random() < 0.8:
                self.committed[number] = (await client.commit(txn=name)).ts
                return
        except RetryableError:
            pass
        self.refused.add(number)
        await client.rollback(txn=name)


@pytest.mark.parametrize("seed", [1, 2])
def test_of_few_names_at_three_gateways_all_that_was_acknowledged_is_there_and_nothing_else(seed: int) -> None:
    async def story(cluster: Cluster, db: AsyncDatabase, table: Any) -> None:
        draws = Draws(seed)

        async def work(gateway: int) -> None:
            client = Forger(cluster, table, gateway=gateway, user=f"user {gateway}")
            for _ in range(40):
                await draws.once(client)
                assert draws.refused.isdisjoint((await balances(db)).values())

        await asyncio.gather(*(work(gateway) for gateway in range(3)))
        last: dict[int, int] = {1: 0, 2: 0}
        for number in sorted(draws.committed, key=draws.committed.__getitem__):
            last |= dict.fromkeys(draws.wrote[number], number)
        assert await balances(db) == last
        assert draws.committed
        assert draws.refused
        assert len(draws.committed) + len(draws.refused) == 120

    _run(story, nodes=3)
