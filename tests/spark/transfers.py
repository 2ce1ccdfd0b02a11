"""A workload whose sum never changes: money moves between the rows of two tables, in transactions."""

from __future__ import annotations

import asyncio
import threading
import time

import slackwater
from slackwater.errors import SlackwaterError

START = 1_000


class Transfers:
    """`with Transfers(url, "left", "right", accounts=100) as moving:`; `moving.rate()` tells how fast it went."""

    def __init__(self, url: str, *tables: str, accounts: int, workers: int = 8, seed: int = 7) -> None:
        self.url = url
        self.tables = tables
        self.accounts = accounts
        self.workers = workers
        self.total = START * accounts * len(tables)
        self.done = 0
        self.failure: BaseException | None = None
        self._state = seed
        self._stop = threading.Event()
        self._began = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Transfers:
        self._started = time.monotonic()
        self._thread.start()
        assert self._began.wait(60), "no transfer succeeded"
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        self.seconds = time.monotonic() - self._started
        if self.failure is not None:
            raise self.failure

    def rate(self) -> float:
        return self.done / self.seconds

    async def _run(self) -> None:
        try:
            async with slackwater.aconnect(self.url) as db:
                await asyncio.gather(*(self._work(db) for _ in range(self.workers)))
        except BaseException as error:
            self.failure = error
            self._began.set()

    async def _work(self, db: slackwater.AsyncDatabase) -> None:
        while not self._stop.is_set():
            try:
                await db.run(self._transfer)
            except SlackwaterError:  # a node under load: the transfer did or did not happen, the sum is the same
                await asyncio.sleep(0.05)
                continue
            self.done += 1
            self._began.set()

    async def _transfer(self, tx: slackwater.AsyncTransaction) -> None:
        a, b = self._pick(), self._pick()
        if a == b:
            return
        from_row, to_row = await tx.get(*a), await tx.get(*b)
        assert from_row is not None
        assert to_row is not None
        amount = 1 + self._next(10)
        await tx.upsert(a[0], [{**from_row, "balance": from_row["balance"] - amount}])
        await tx.upsert(b[0], [{**to_row, "balance": to_row["balance"] + amount}])

    def _pick(self) -> tuple[str, int]:
        return self.tables[self._next(len(self.tables))], self._next(self.accounts)

    def _next(self, bound: int) -> int:
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (self._state >> 33) % bound


def make_accounts(db: slackwater.Database, *tables: str, accounts: int) -> None:
    for table in tables:
        db.create_table(table, {"id": "int8", "balance": "int8"}, primary_key=["id"])
        db.upsert(table, [{"id": i, "balance": START} for i in range(accounts)])
