"""A workload whose sum never changes: money moves between the rows of two tables, one transaction a transfer.

The customers are a process of their own, with a client of their own, as they would be in life:

    test      with Transfers(url, "left", "right", accounts=5000) as moving:
                  moving.done, moving.rate()
    process   python -m tests.spark.transfers URL STATUS left right --accounts 5000 --workers 24
              writes {"done": …, "failed": …} to STATUS a few times a second, and ends with SIGTERM

Every transfer takes from a row of one table and gives to a row of the other: what one table lost is what the other gained, at
every timestamp. A transfer whose answer was lost did or did not happen; the sum is the same, and it is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import slackwater
from slackwater.errors import SlackwaterError

START = 1_000
AMOUNT_MAX = 10
BEGIN_S, END_S = 60.0, 60.0
TELL_S = 0.2
PATIENCE_S = 20.0


class Transfers:
    """The workload, while a block lasts; `rate()` tells how fast it went since `mark()`."""

    def __init__(self, url: str, *tables: str, accounts: int, workers: int = 24) -> None:
        self.total = START * accounts * len(tables)
        self._directory = tempfile.TemporaryDirectory(prefix="transfers-")
        self._status = Path(self._directory.name) / "status"
        self._command = [sys.executable, "-m", "tests.spark.transfers", url, str(self._status), *tables]
        self._command += ["--accounts", str(accounts), "--workers", str(workers)]

    def __enter__(self) -> Transfers:
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + BEGIN_S
        while not self.done:
            assert time.monotonic() < deadline, "no transfer succeeded"
            time.sleep(TELL_S)
        self.mark()
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.terminate()
        try:
            _, said = self._process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _, said = self._process.communicate()
            raise
        finally:
            self._end = (self.done, time.monotonic())
            self._directory.cleanup()
        assert self._process.returncode == 0, said[-4000:]

    @property
    def done(self) -> int:
        """Acknowledged transfers, as of a moment ago."""
        assert self._process.poll() in (None, 0), self._process.communicate()[1][-4000:]
        return json.loads(self._status.read_text())["done"] if self._status.exists() else 0

    def mark(self) -> None:
        """Count from here."""
        self._from = (self.done, time.monotonic())

    def rate(self) -> float:
        """Acknowledged transfers a second since `mark`."""
        done, at = self.done, time.monotonic()
        return (done - self._from[0]) / (at - self._from[1])


class Workers:
    """Clients that move money one transaction after the other."""

    def __init__(self, db: slackwater.AsyncDatabase, tables: list[str], accounts: int) -> None:
        self._db = db
        self._tables = tables
        self._accounts = accounts
        self.stopping = asyncio.Event()
        self.done = 0
        self.failed: dict[str, int] = {}

    async def work(self, number: int) -> None:
        """One client, until told to stop; a fault makes it wait a little and move something else."""
        choose = random.Random(number)
        while not self.stopping.is_set():
            try:
                await self._transfer(choose)
            except (SlackwaterError, TimeoutError) as error:
                name = type(error).__name__
                self.failed[name] = self.failed.get(name, 0) + 1
                await asyncio.sleep(0.05)
            else:
                self.done += 1

    async def _transfer(self, choose: random.Random) -> None:
        payer, payee = choose.sample(self._tables, 2)
        giver, taker = choose.randrange(self._accounts), choose.randrange(self._accounts)
        amount = choose.randint(1, AMOUNT_MAX)

        async def move(tx: slackwater.AsyncTransaction) -> None:
            one, two = await asyncio.gather(tx.get(payer, giver), tx.get(payee, taker))
            assert one is not None
            assert two is not None
            await tx.upsert(payer, [{**one, "balance": one["balance"] - amount}])
            await tx.upsert(payee, [{**two, "balance": two["balance"] + amount}])

        await self._db.run(move)


async def main(options: argparse.Namespace) -> None:
    """Move money until SIGTERM."""
    status = Path(options.status)
    async with slackwater.aconnect(options.url, timeout=PATIENCE_S) as db:
        workers = Workers(db, options.tables, options.accounts)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, workers.stopping.set)

        async def tell() -> None:
            while True:
                aside = status.with_suffix(".new")
                aside.write_text(json.dumps({"done": workers.done, "failed": workers.failed}))
                aside.rename(status)
                await asyncio.sleep(TELL_S)

        telling = asyncio.create_task(tell())
        await asyncio.gather(*(workers.work(number) for number in range(options.workers)))
        telling.cancel()


def make_accounts(db: slackwater.Database, *tables: str, accounts: int) -> None:
    """Tables with the same balance in every row."""
    for table in tables:
        db.create_table(table, {"id": "int8", "balance": "int8"}, primary_key=["id"])
        db.upsert(table, [{"id": i, "balance": START} for i in range(accounts)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("status")
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--accounts", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    asyncio.run(main(parser.parse_args()))
