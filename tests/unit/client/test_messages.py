"""How few messages a transaction needs, and what happens when the first of them, or the only one, goes wrong."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from slackwater.client.point_reads import POINT_READS_MAX, PointReadBatcher
from slackwater.errors import ConditionFailed, ConnectionLost, RetryableError, UsageError
from slackwater.protocol.client import calls
from slackwater.runtime.clock import RealClock
from tests.unit.client.world import session
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from slackwater.client import AsyncDatabase

TABLES = ("a", "b")


def _with_database(story: Callable[[AsyncDatabase, _Wire], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Cluster(1) as cluster, session(cluster) as db:
            for table in TABLES:
                await db.create_table(table, {"id": "int8", "v": "int8"}, primary_key=["id"])
                await db.upsert(table, [{"id": n, "v": n} for n in range(10)])
            await story(db, _Wire(db))

    asyncio.run(main())


class _Wire:
    """What is sent, noted; messages of one method can be lost before they leave, or on the way back."""

    def __init__(self, db: AsyncDatabase) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.unsent: set[str] = set()
        self.unanswered: set[str] = set()
        self._call = db._gateways._dialer.call
        db._gateways._dialer.call = self._noted  # type: ignore[method-assign]

    async def _noted(self, address: str, method: Any, request: Any, **how: Any) -> Any:
        self.sent.append((method.name, request))
        if method.name in self.unsent:
            self.unsent.discard(method.name)
            raise ConnectionLost("told to fail", sent=False)
        reply = await self._call(address, method, request, **how)
        if method.name in self.unanswered:
            self.unanswered.discard(method.name)
            raise ConnectionLost("told to lose the answer", sent=True)
        return reply

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.sent]


def test_a_transfer_is_two_messages() -> None:
    async def story(db: AsyncDatabase, wire: _Wire) -> None:
        async def transfer(tx: Any) -> None:
            a, b, again, none = await asyncio.gather(tx.get("a", 1), tx.get("b", 2), tx.get("a", 3), tx.get("b", 100))
            assert (a, b, again, none) == ({"id": 1, "v": 1}, {"id": 2, "v": 2}, {"id": 3, "v": 3}, None)
            await tx.upsert("a", [{**a, "v": 0}])
            await tx.upsert("b", [{**b, "v": 3}])

        await db.run(transfer)
        assert wire.names == [calls.GET_ROWS.name, calls.COMMIT.name]
        assert [request.opens for _, request in wire.sent] == [True, False]
        assert await asyncio.gather(db.get("a", 1), db.get("b", 2)) == [{"id": 1, "v": 0}, {"id": 2, "v": 3}]

    _with_database(story)


def test_blind_writes_are_one_message_and_nothing_is_none() -> None:
    async def story(db: AsyncDatabase, wire: _Wire) -> None:
        async with db.transaction() as tx:
            await tx.upsert("a", [{"id": 1, "v": 5}])
            await tx.delete("b", [1])
        assert wire.names == [calls.COMMIT.name]
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what is tested
            async with db.transaction() as tx:
                await tx.upsert("a", [{"id": 1, "v": 6}])
                raise ZeroDivisionError
        assert wire.names == [calls.COMMIT.name]
        with pytest.raises(UsageError, match="has ended"):
            await tx.get("a", 1)
        assert await asyncio.gather(db.get("a", 1), db.get("b", 1)) == [{"id": 1, "v": 5}, None]

    _with_database(story)


def test_a_first_message_that_never_left_goes_to_another_gateway_under_another_id() -> None:
    async def story(db: AsyncDatabase, wire: _Wire) -> None:
        wire.unsent = {calls.GET_ROWS.name}
        async with db.transaction() as tx:
            assert await tx.get("a", 1) == {"id": 1, "v": 1}
            await tx.upsert("a", [{"id": 1, "v": 2}])
        assert wire.names == [calls.GET_ROWS.name, calls.GET_ROWS.name, calls.COMMIT.name]
        first, second, commit = (request.txn for _, request in wire.sent)
        assert first != second == commit

    _with_database(story)


def test_a_first_message_without_an_answer_ends_the_try() -> None:
    async def story(db: AsyncDatabase, wire: _Wire) -> None:
        wire.unanswered = {calls.GET_ROWS.name}
        tries = 0

        async def work(tx: Any) -> None:
            nonlocal tries
            tries += 1
            row = await tx.get("a", 1)
            await tx.upsert("a", [{"id": 1, "v": row["v"] + 1}])

        await db.run(work)
        assert tries == 2
        assert len({request.txn for _, request in wire.sent}) == 2
        assert await db.get("a", 1) == {"id": 1, "v": 2}

    _with_database(story)


def test_a_commit_that_was_the_first_message_is_settled_when_its_answer_is_lost() -> None:
    async def story(db: AsyncDatabase, wire: _Wire) -> None:
        wire.unanswered = {calls.COMMIT.name}
        async with db.transaction() as tx:
            await tx.upsert("a", [{"id": 1, "v": 7}])
        assert wire.names == [calls.COMMIT.name, calls.SETTLE.name]
        assert await db.get("a", 1) == {"id": 1, "v": 7}
        assert tx.commit_timestamp
        # and where the commit never got anywhere, the question rules it out
        wire.sent.clear()
        mark = calls.TxnHandle(b"7" * 16, wire_key(db), tx.commit_timestamp, 0, tx.commit_timestamp)
        assert not (
            await db._gateways.call(calls.SETTLE, calls.Settle(mark), deadline=db._gateways.deadline())
        ).committed
        held = (calls.Write(table_id(db), 1, calls.WriteKind.UPSERT, *rows(db, 1, 9)),)
        with pytest.raises(RetryableError):
            await db._gateways.call(
                calls.COMMIT, calls.EndClientTxn(b"7" * 16, held, opens=True), deadline=db._gateways.deadline()
            )
        assert await db.get("a", 1) == {"id": 1, "v": 7}

    _with_database(story)


def test_the_record_of_a_failed_insert_is_where_it_was_made() -> None:
    """The first write decides where the record lives, even if it met a row: a lost commit is asked for there."""

    async def story(db: AsyncDatabase, wire: _Wire) -> None:
        async with db.transaction() as tx:
            with pytest.raises(ConditionFailed):
                await tx.insert("b", [{"id": 1, "v": 9}])
            await tx.upsert("a", [{"id": 1, "v": 8}])
            wire.unanswered = {calls.COMMIT.name}
        assert wire.names == [calls.WRITE.name, calls.COMMIT.name, calls.SETTLE.name]
        assert await db.get("a", 1) == {"id": 1, "v": 8}

    _with_database(story)


def test_nothing_overtakes_the_first_message() -> None:
    async def story(db: AsyncDatabase, wire: _Wire) -> None:
        async with db.transaction() as tx:
            found, row, _ = await asyncio.gather(tx.scan("a"), tx.get("b", 1), tx.insert("a", [{"id": 100, "v": 1}]))
            assert found.num_rows in (10, 11)
            assert row == {"id": 1, "v": 1}
        opening, *others, commit = [request for _, request in wire.sent]
        assert opening.opens
        assert not any(request.opens for request in others)
        assert {request.txn for _, request in wire.sent} == {opening.txn}
        assert not commit.opens

    _with_database(story)


def test_a_cancelled_first_message_leaves_its_name_behind() -> None:
    async def story(db: AsyncDatabase, wire: _Wire) -> None:
        async with db.transaction() as tx:
            reading = asyncio.ensure_future(tx.get("a", 1))
            while not wire.sent:
                await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            await tx.upsert("a", [{"id": 1, "v": 3}])
        (_, first), (_, commit) = wire.sent
        assert first.txn != commit.txn
        assert commit.opens
        assert await db.get("a", 1) == {"id": 1, "v": 3}

    _with_database(story)


# --- reads that go together, by themselves


def table_id(db: AsyncDatabase) -> int:
    return db._tables._by_name["a"].latest.table_id


def rows(db: AsyncDatabase, key: int, value: int) -> tuple[list[bytes], list[bytes]]:
    codec = db._tables.codec(db._tables._by_name["a"])
    encoded = codec.encode({"id": key, "v": value})
    return [encoded[0]], [encoded[1]]


def wire_key(db: AsyncDatabase) -> bytes:
    return rows(db, 1, 0)[0][0]


def test_a_cancelled_leader_leaves_the_others_to_themselves() -> None:
    async def main() -> None:
        sent: list[int] = []
        stuck = asyncio.Event()

        async def send(wanted: list[tuple[int, int, bytes]]) -> list[bytes | None]:
            sent.append(len(wanted))
            if len(sent) == 1:
                await stuck.wait()
            return [key for _, _, key in wanted]

        together = PointReadBatcher(RealClock(), send)
        first, *others = [asyncio.ensure_future(together.get(1, 1, b"%d" % n)) for n in range(4)]
        while not sent:
            await asyncio.sleep(0)
        others[0].cancel()
        first.cancel()
        found = await asyncio.gather(first, *others, return_exceptions=True)
        assert [type(one) for one in found[:2]] == [asyncio.CancelledError] * 2
        assert found[2:] == [b"2", b"3"]
        assert sent == [4, 2]

    asyncio.run(main())


def test_groups_are_bounded_and_an_error_is_everybodys() -> None:
    async def main() -> None:
        sent: list[int] = []

        async def send(wanted: list[tuple[int, int, bytes]]) -> list[bytes | None]:
            sent.append(len(wanted))
            if len(sent) == 2:
                raise RetryableError("told to fail")
            return [key for _, _, key in wanted]

        together = PointReadBatcher(RealClock(), send)
        work = [together.get(1, 1, b"%d" % n) for n in range(POINT_READS_MAX + 3)]
        found = await asyncio.gather(*work, return_exceptions=True)
        assert sent == [POINT_READS_MAX, 3]
        assert found[:POINT_READS_MAX] == [b"%d" % n for n in range(POINT_READS_MAX)]
        assert all(isinstance(one, RetryableError) for one in found[POINT_READS_MAX:])

    asyncio.run(main())
