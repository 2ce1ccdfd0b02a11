"""The bank: money moves between accounts and is never made or lost (I-18).

Every transfer keeps the total, so every transaction that saw *all* accounts must have seen the total, whatever else was
going on. A wrong total is a read that mixes two moments (read skew) or an update built on an old balance (lost update).

The total alone is a weak test of a snapshot (two errors may cancel) but needs nothing but the read itself: it works on
real processes too, where V is not known. With V known, `check_bank_versions` asks the same at every instant at which
any account changed, seen by a client or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.sim.checkers.claims import name
from slackwater.sim.checkers.history import OperationOutcome
from slackwater.sim.checkers.violation import Violation, show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from slackwater.sim.checkers.history import TxnOp, Value, VersionHistory


def check_bank(
    txns: Iterable[TxnOp],
    *,
    accounts: Sequence[bytes],
    total: int,
    decode: Callable[[bytes], int] = int,
    overdraft: bool = False,
) -> list[Violation]:
    """Judge every acknowledged transaction that saw all accounts; `overdraft` allows balances below zero."""
    found = []
    wanted = set(accounts)
    for txn in txns:
        if txn.outcome is not OperationOutcome.OK:
            continue
        seen = txn.seen()
        if wanted <= seen.keys() or any(
            scan.after == 0 and _covers(scan.start, scan.end, accounts) for scan in txn.scans
        ):
            balances = {account: seen.get(account) for account in accounts}
            problem = _problem(balances, total, decode, overdraft=overdraft)
            if problem is not None:
                text = f"{name(txn)} saw all {len(accounts)} accounts of the bank and {problem[1]}."
                found.append(
                    Violation(
                        "I-18", problem[0], text, {"txn": txn, "total": total, "balances": list(balances.items())}
                    )
                )
    return found


def check_bank_versions(
    versions: VersionHistory, *, accounts: Sequence[bytes], total: int, decode: Callable[[bytes], int] = int
) -> list[Violation]:
    """Judge V itself: from `loaded_upto` on, the total is right at every instant. Reports the first wrong one."""
    wanted = set(accounts)
    events = [(v.ts, row.key, v.value) for row in versions.keys if row.key in wanted for v in row.versions]
    events.sort(key=lambda event: event[0])
    balances = dict.fromkeys(accounts, 0)
    running = 0
    for at, (ts, account, value) in enumerate(events):
        amount = 0 if value is None else decode(value)
        running += amount - balances[account]
        balances[account] = amount
        settled = at + 1 == len(events) or events[at + 1][0] > ts
        if settled and ts >= versions.loaded_upto and running != total:
            changed = [key for when, key, _ in events if when == ts]
            text = (
                f"from timestamp {ts} on the bank holds {running} and not {total}; what changed there is "
                f"{', '.join(show(key) for key in changed)}."
            )
            return [
                Violation("I-18", "wrong-total", text, {"ts": ts, "held": running, "total": total, "changed": changed})
            ]
    return []


def _covers(start: bytes, end: bytes, accounts: Sequence[bytes]) -> bool:
    return bool(accounts) and start <= min(accounts) and max(accounts) < end


def _problem(
    balances: Mapping[bytes, Value], total: int, decode: Callable[[bytes], int], *, overdraft: bool
) -> tuple[str, str] | None:
    missing = [account for account, value in balances.items() if value is None]
    if missing:
        return "missing-account", f"found no account {', '.join(show(account) for account in missing)}"
    amounts = {account: decode(value) for account, value in balances.items() if value is not None}
    held = sum(amounts.values())
    if held != total:
        return (
            "wrong-total",
            f"found {held} in all where {total} must be: the read mixes moments, or an update was lost",
        )
    below = [account for account, amount in amounts.items() if amount < 0]
    if below and not overdraft:
        return (
            "overdraft",
            f"found {', '.join(show(account) for account in below)} below zero, which no transfer allows",
        )
    return None
