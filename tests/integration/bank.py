"""The bank on a real cluster: transfers and audits from many clients at once, all of it written down and judged.

A transfer takes money from one account and gives it to another, and writes a ledger row of its own, all in one
transaction. An audit reads every account in one transaction. Every value says which transaction wrote it, so that after
the run the whole version history V (read with `Export`) can be matched with what the clients were told:

    check_bank            every audit saw the whole total                                              I-18
    check_bank_versions   the total was right at every instant, seen or not                             I-18
    check_intervals       every transaction's reads were current at its commit timestamp; everything
                          acknowledged is there, nothing failed is, unknown ones are all or nothing;
                          real time and version order agree on every key                    I-03 I-18 I-19 I-20
    the ledger            one row per acknowledged transfer, and the balances are its sum

Time is this process's monotonic clock: all clients run here, so it is true time.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MAX, MIN
from slackwater.codec.layout import kv
from slackwater.errors import AmbiguousResult, SlackwaterError
from slackwater.protocol.range.requests import Export, Header
from slackwater.protocol.range.requests import Versions as ExportedVersions
from slackwater.routing.sender import NO_RANGE
from slackwater.sim.checkers import (
    ObservedVersion,
    OperationOutcome,
    Recorder,
    VersionHistory,
    check_bank,
    check_bank_versions,
    check_intervals,
)

if TYPE_CHECKING:
    from slackwater.server.remote import Remote
    from slackwater.sim.checkers import TxnPen

FIRST_BALANCE = 100
EXPORT_ROWS = 2_000
PROGRESS_S = 120.0
LEDGER = b"ledger/"
ACCOUNT = b"account/"


def account(number: int) -> bytes:
    return kv(ACCOUNT + b"%04d" % number)


def ledger_key(number: int) -> bytes:
    return kv(LEDGER + b"%08d" % number)


def balance_of(value: bytes) -> int:
    return int(value.partition(b"|")[0])


class Bank:
    """Accounts, their clients, and the record of what happened."""

    def __init__(self, *, accounts: int, seed: int) -> None:
        self.accounts = [account(n) for n in range(accounts)]
        self.total = FIRST_BALANCE * accounts
        self.recorder = Recorder(time.monotonic_ns)
        self.random = random.Random(seed)
        self.stopping = asyncio.Event()
        self.loaded_upto = 0
        self.errors: dict[str, int] = {}
        self.done = 0
        self.pauses: list[float] = []
        """Seconds between one commit, of whichever client, and the next."""
        self._last = 0.0

    async def load(self, remote: Remote) -> None:
        """Give every account its first money."""

        async def fill(txn):
            for key in self.accounts:
                await txn.put(key, b"%d|load" % FIRST_BALANCE)
            return txn

        self.loaded_upto = int((await remote.kv.run(fill)).commit_ts)

    async def client(self, remote: Remote, number: int, *, timeout: float) -> None:
        """Transfer and audit until told to stop."""
        while not self.stopping.is_set():
            pen = self.recorder.txn(client=number)
            work = self.audit if self.random.random() < 0.2 else self.transfer
            try:
                txn = await remote.kv.run(lambda txn, work=work, pen=pen: work(txn, pen), timeout=timeout)
            except AmbiguousResult as error:
                pen.unknown()
                self._count(error)
            except SlackwaterError as error:
                pen.failed()
                self._count(error)
                await asyncio.sleep(0.05)
            else:
                pen.ok(commit_ts=int(txn.commit_ts) or None)
                self._committed()

    async def progress(self, transactions: int) -> None:
        """Wait until so many more transactions have committed: a healthy cluster serves its clients."""
        wanted = self.done + transactions
        async with asyncio.timeout(PROGRESS_S):
            while self.done < wanted:
                await asyncio.sleep(0.05)

    def _committed(self) -> None:
        now = time.monotonic()
        if self.done:
            self.pauses.append(now - self._last)
        self._last = now
        self.done += 1

    def _count(self, error: SlackwaterError) -> None:
        name = type(error).__name__
        self.errors[name] = self.errors.get(name, 0) + 1

    async def transfer(self, txn, pen: TxnPen):
        pen.restart()
        source, target = self.random.sample(self.accounts, 2)
        seen = {}
        for key in (source, target):
            value = await txn.get(key)
            pen.read(key, value)
            seen[key] = balance_of(value)
        amount = self.random.randint(0, min(10, seen[source]))
        for key, balance in ((source, seen[source] - amount), (target, seen[target] + amount)):
            await self._put(txn, pen, key, b"%d|%d" % (balance, pen.number))
        where = b"%d>%d" % (self.accounts.index(source), self.accounts.index(target))
        await self._put(txn, pen, ledger_key(pen.number), b"%d|%d|%s" % (amount, pen.number, where))
        return txn

    async def audit(self, txn, pen: TxnPen):
        pen.restart()
        start, end = self.accounts[0], kv(ACCOUNT + b"~")
        rows = await txn.scan(start, end)
        pen.scan(start=start, end=end, rows=zip(rows.keys, rows.values, strict=True))
        return txn

    @staticmethod
    async def _put(txn, pen: TxnPen, key: bytes, value: bytes) -> None:
        pen.write(key, value)
        await txn.put(key, value)

    # --- judging

    async def versions(self, remote: Remote) -> VersionHistory:
        """Every version of every key of the bank, and no intent left over."""
        found: dict[bytes, list[ObservedVersion]] = {}
        start, end = self.accounts[0], kv(LEDGER + b"~")
        upto = remote.clock.now()
        while start is not None:
            header = Header(NO_RANGE, ts=upto, max_keys=EXPORT_ROWS)
            answer = await remote.kv._send([Export(start, end, MIN, upto)], header, timeout=60.0)
            (page,) = answer.results
            assert isinstance(page, ExportedVersions)
            for key, ts, value in zip(page.keys, page.timestamps, page.values, strict=True):
                found.setdefault(key, []).append(ObservedVersion(ts, value or None))
            start = page.resume
        return VersionHistory.of(found, loaded_upto=self.loaded_upto)

    def judge(self, versions: VersionHistory) -> list[str]:
        """What is wrong with the run; empty when nothing is."""
        txns = self.recorder.history().txns
        found = check_bank(txns, accounts=self.accounts, total=self.total, decode=balance_of)
        found += check_bank_versions(versions, accounts=self.accounts, total=self.total, decode=balance_of)
        found += check_intervals(txns, versions)
        return [str(violation) for violation in found] + self._judge_ledger(txns, versions)

    def _judge_ledger(self, txns, versions: VersionHistory) -> list[str]:
        """The plain reading of the promise, without any checker: rows are there exactly once, and add up."""
        problems = []
        rows = {row.key: row.versions for row in versions.keys if row.key.startswith(kv(LEDGER)[:-2])}
        balances = [FIRST_BALANCE] * len(self.accounts)
        for key, history in rows.items():
            if len(history) != 1:
                problems.append(f"{key!r} was written {len(history)} times")
            amount, _, where = history[-1].value.split(b"|")
            source, target = map(int, where.split(b">"))
            balances[source] -= int(amount)
            balances[target] += int(amount)
        for txn in txns:
            wrote = [w.key for w in txn.writes if w.key.startswith(kv(LEDGER)[:-2])]
            if txn.outcome is OperationOutcome.OK and any(key not in rows for key in wrote):
                problems.append(f"acknowledged transfer {txn.txn_id} is not in the ledger")
            if txn.outcome is OperationOutcome.FAILED and any(key in rows for key in wrote):
                problems.append(f"failed transfer {txn.txn_id} is in the ledger")
        for key, expected in zip(self.accounts, balances, strict=True):
            held = balance_of(versions.value_at(key, ts=MAX))
            if held != expected:
                problems.append(f"{key!r} holds {held}, the ledger says {expected}")
        return problems

    def summary(self) -> str:
        """One line for people."""
        txns = self.recorder.history().txns
        counts = {o.value: sum(t.outcome is o for t in txns) for o in OperationOutcome}
        longest = " ".join(f"{pause:.1f}" for pause in sorted(self.pauses, reverse=True)[:8])
        return f"bank txns={len(txns)} {counts} errors={self.errors} longest pauses {longest} s"
