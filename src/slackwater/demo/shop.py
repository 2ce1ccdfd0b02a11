"""The shop: its tables, its customers, and what must hold of them at every timestamp.

`python -m slackwater.demo.shop URL --acks FILE` is the customers: a process of its own that buys until SIGTERM. A purchase
that was acknowledged is appended to FILE, so that the demo can look for every one of them at the end.

    acks file: one purchase a line    A <order> <amount>     acknowledged: must be there
                                      M <order> <amount>     the answer was lost for good: may be there
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow

import slackwater
from slackwater.errors import AmbiguousResult, SlackwaterError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.client import AsyncDatabase, Database

pa: Any = pyarrow

WALLETS = 150_000
TILLS = 50_000
WALLET_START = 10_000
TILL_START = 100
REGIONS = ("eu", "us", "ap")
TABLES = ("wallets", "tills", "orders")
MONEY = WALLETS * WALLET_START + TILLS * TILL_START
LOAD_ROWS = 25_000
AMOUNT_MAX = 50
PATIENCE_S = 20.0
PAUSE_S = 0.2


class Books(NamedTuple):
    """What one consistent look at the shop found."""

    wallets: int
    tills: int
    orders: int
    number: int

    @property
    def off(self) -> int:
        """How much money appeared (or is missing, negative)."""
        return self.wallets + self.tills - MONEY

    @property
    def orders_off(self) -> int:
        """How much the tills hold that no order explains."""
        return self.tills - TILLS * TILL_START - self.orders

    @property
    def balanced(self) -> bool:
        """Whether both rules hold."""
        return self.off == 0 and self.orders_off == 0


def create(db: Database) -> None:
    """The three empty tables."""
    db.create_table(
        "wallets",
        {"id": "int8", "owner": "text not null", "region": "text not null", "balance": "int8 not null"},
        primary_key=["id"],
    )
    db.create_table("tills", {"id": "int8", "region": "text not null", "balance": "int8 not null"}, primary_key=["id"])
    db.create_table(
        "orders",
        {"id": "int8", "wallet": "int8 not null", "till": "int8 not null", "amount": "int8 not null"},
        primary_key=["id"],
    )


def stock(db: Database, tick: Any = None) -> int:
    """Fill wallets and tills; returns how many rows. `tick` is called with the rows written so far."""
    done = 0
    for start in range(0, WALLETS, LOAD_ROWS):
        ids = range(start, min(start + LOAD_ROWS, WALLETS))
        table = {
            "id": pa.array(ids, pa.int64()),
            "owner": pa.array([f"customer-{n:06d}" for n in ids]),
            "region": pa.array([REGIONS[n % len(REGIONS)] for n in ids]),
            "balance": pa.array([WALLET_START] * len(ids), pa.int64()),
        }
        db.upsert("wallets", pa.table(table))
        done += len(ids)
        if tick is not None:
            tick(done)
    ids = range(TILLS)
    table = {
        "id": pa.array(ids, pa.int64()),
        "region": pa.array([REGIONS[n % len(REGIONS)] for n in ids]),
        "balance": pa.array([TILL_START] * TILLS, pa.int64()),
    }
    db.upsert("tills", pa.table(table))
    if tick is not None:
        tick(done + TILLS)
    return done + TILLS


def count(wallets: Any, tills: Any, orders: Any) -> Books:
    """The books of three Arrow tables."""
    from pyarrow import compute

    pc: Any = compute
    return Books(
        wallets=pc.sum(wallets["balance"]).as_py() or 0,
        tills=pc.sum(tills["balance"]).as_py() or 0,
        orders=pc.sum(orders["amount"]).as_py() or 0,
        number=orders.num_rows,
    )


def read_acks(path: Path) -> tuple[dict[int, int], dict[int, int]]:
    """Acknowledged purchases, and those whose outcome is unknown: order to amount."""
    kinds: dict[str, dict[int, int]] = {"A": {}, "M": {}}
    text = path.read_text()
    for line in text[: text.rfind("\n") + 1].splitlines():  # the last one may still be being written
        kind, order, amount = line.split()
        kinds[kind][int(order)] = int(amount)
    return kinds["A"], kinds["M"]


# --- the customers --------------------------------------------------------------------------------------------------


class Customers:
    """People who buy, one transaction after the other, until told to stop."""

    def __init__(self, db: AsyncDatabase, acks: Path, *, seed: int) -> None:
        self._db = db
        self._acks = acks.open("a", buffering=1)
        self._seed = seed
        self._next = 0
        self.stopping = asyncio.Event()
        self.done = 0
        self.maybe = 0
        self.retried = 0
        self.failed: dict[str, int] = {}

    async def shop(self, customer: int) -> None:
        """One customer: buys, notes it, buys again. A fault makes them wait and try something else."""
        choose = random.Random(self._seed * 1000 + customer)
        while not self.stopping.is_set():
            self._next += 1
            order = self._next
            amount = choose.randint(1, AMOUNT_MAX)
            wallet, till = choose.randrange(WALLETS), choose.randrange(TILLS)
            try:
                await asyncio.wait_for(self._buy(order, wallet, till, amount), PATIENCE_S)
            except (AmbiguousResult, TimeoutError):
                self._acks.write(f"M {order} {amount}\n")
                self.maybe += 1
            except SlackwaterError as error:
                self.failed[type(error).__name__] = self.failed.get(type(error).__name__, 0) + 1
                await asyncio.sleep(PAUSE_S)
            else:
                self._acks.write(f"A {order} {amount}\n")
                self.done += 1

    async def _buy(self, order: int, wallet: int, till: int, amount: int) -> None:
        tries = 0

        async def purchase(tx: Any) -> None:
            nonlocal tries
            tries += 1
            payer, shop = await asyncio.gather(tx.get("wallets", wallet), tx.get("tills", till))
            await asyncio.gather(
                tx.upsert("wallets", [{**payer, "balance": payer["balance"] - amount}]),
                tx.upsert("tills", [{**shop, "balance": shop["balance"] + amount}]),
                tx.insert("orders", [{"id": order, "wallet": wallet, "till": till, "amount": amount}]),
            )

        await self._db.run(purchase)
        self.retried += tries - 1


async def _customers(arguments: argparse.Namespace) -> int:
    async with slackwater.aconnect(arguments.url, timeout=PATIENCE_S) as db:
        people = Customers(db, Path(arguments.acks), seed=arguments.seed)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, people.stopping.set)
        began = time.monotonic()
        shopping = [asyncio.ensure_future(people.shop(n)) for n in range(arguments.customers)]
        try:
            await asyncio.gather(*shopping)
        finally:
            for one in shopping:
                one.cancel()
                with contextlib.suppress(asyncio.CancelledError, SlackwaterError):
                    await one
        took = time.monotonic() - began
    said = {"done": people.done, "maybe": people.maybe, "retried": people.retried, "failed": people.failed}
    print(json.dumps({**said, "seconds": round(took, 1)}), flush=True)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The customers' process."""
    parser = argparse.ArgumentParser(prog="python -m slackwater.demo.shop", description="Buy until SIGTERM.")
    parser.add_argument("url")
    parser.add_argument("--acks", required=True)
    parser.add_argument("--customers", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    return asyncio.run(_customers(parser.parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
