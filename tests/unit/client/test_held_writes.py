"""Writes of a transaction that wait for its next message: seen by its reads, never lost in silence."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from slackwater.errors import ConditionFailed, RetryableError, SlackwaterError
from slackwater.protocol.client import calls
from tests.unit.client.world import session
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from slackwater.client import AsyncDatabase


def _with_database(story: Callable[[AsyncDatabase], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Cluster(1) as cluster, session(cluster) as db:
            await db.create_table("t", {"id": "int8", "v": "int8"}, primary_key=["id"])
            await story(db)

    asyncio.run(main())


class _Messages:
    """What goes to the gateway, noted; the next one of a method fails if that was asked for."""

    def __init__(self, db: AsyncDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.fail: str = ""
        call = db._gateways.call

        async def noted(method: Any, request: Any, **how: Any) -> Any:
            self.sent.append((method.name, request))
            if method.name == self.fail:
                self.fail = ""
                raise RetryableError("told to fail")
            return await call(method, request, **how)

        monkeypatch.setattr(db._gateways, "call", noted)


def test_small_writes_travel_with_the_next_message(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(db: AsyncDatabase) -> None:
        await db.upsert("t", [{"id": 1, "v": 1}])
        messages = _Messages(db, monkeypatch)
        async with db.transaction() as tx:
            await tx.upsert("t", [{"id": 2, "v": 2}])
            await tx.delete("t", [1])
            assert messages.sent == []
            found = list(await asyncio.gather(tx.get("t", 2), tx.get("t", 1), tx.get("t", 2)))
            assert found == [{"id": 2, "v": 2}, None, {"id": 2, "v": 2}]
            await tx.upsert("t", [{"id": 3, "v": 3}])
            assert (await tx.scan("t")).to_pylist() == [{"id": 2, "v": 2}, {"id": 3, "v": 3}]
            await tx.upsert("t", [{"id": 4, "v": 4}])
        assert [(name, len(request.before)) for name, request in messages.sent] == [
            (calls.GET_ROWS.name, 2), (calls.TXN_SCAN.name, 1), (calls.COMMIT.name, 1),
        ]  # fmt: skip
        assert (await db.scan("t")).num_rows == 3

    _with_database(play)


def test_a_failed_message_with_writes_on_board_ends_the_try(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(db: AsyncDatabase) -> None:
        messages = _Messages(db, monkeypatch)
        tries = 0

        async def work(tx: Any) -> None:
            nonlocal tries
            tries += 1
            await tx.upsert("t", [{"id": tries, "v": 1}])
            messages.fail = calls.GET_ROWS.name if tries == 1 else calls.COMMIT.name if tries == 2 else ""
            try:
                await tx.get("t", 9)
            except SlackwaterError:
                assert tries == 1
                with pytest.raises(RetryableError):
                    await tx.upsert("t", [{"id": 100, "v": 1}])
            await tx.upsert("t", [{"id": 50, "v": tries}])

        await db.run(work)
        assert (await db.scan("t")).to_pylist() == [{"id": 3, "v": 1}, {"id": 50, "v": 3}]

    _with_database(play)


def test_an_insert_that_met_a_row_leaves_what_it_carried() -> None:
    async def play(db: AsyncDatabase) -> None:
        await db.upsert("t", [{"id": 1, "v": 1}])
        async with db.transaction() as tx:
            await tx.upsert("t", [{"id": 2, "v": 2}])
            with pytest.raises(ConditionFailed, match="already"):
                await tx.insert("t", [{"id": 1, "v": 9}])
            with pytest.raises(ConditionFailed, match="already"):
                await tx.insert("t", [{"id": 2, "v": 9}])
            outcome = await asyncio.gather(
                tx.insert("t", [{"id": 3, "v": 1}]), tx.insert("t", [{"id": 3, "v": 2}]), return_exceptions=True
            )
            assert sum(isinstance(one, ConditionFailed) for one in outcome) == 1
            await tx.delete("t", [2])
            await tx.insert("t", [{"id": 2, "v": 3}])
        kept = {row["id"]: row["v"] for row in (await db.scan("t")).to_pylist()}
        assert sorted(kept) == [1, 2, 3]
        assert (kept[1], kept[2]) == (1, 3)

    _with_database(play)


def test_of_many_that_insert_the_same_row_one_succeeds() -> None:
    async def play(db: AsyncDatabase) -> None:
        async def insert(value: int) -> None:
            async def work(tx: Any) -> None:
                await tx.upsert("t", [{"id": 100 + value, "v": value}])
                await tx.insert("t", [{"id": 1, "v": value}])

            await db.run(work)

        outcome = await asyncio.gather(*(insert(value) for value in range(8)), return_exceptions=True)
        alone = await asyncio.gather(*(db.insert("t", [{"id": 2, "v": v}]) for v in range(8)), return_exceptions=True)
        for results in (outcome, alone):
            assert sum(isinstance(one, ConditionFailed) for one in results) == 7, results
        (won,) = (value for value, result in enumerate(outcome) if result is None)
        kept = {row["id"]: row["v"] for row in (await db.scan("t")).to_pylist()}
        assert sorted(kept) == [1, 2, 100 + won]
        assert kept[1] == kept[100 + won] == won

    _with_database(play)
