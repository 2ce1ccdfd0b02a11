"""Bank, ring and long fork agree with brute force."""

from __future__ import annotations

import random
from itertools import permutations

from slackwater.sim.checkers import (
    ObservedVersion,
    OperationOutcome,
    Read,
    ScanOp,
    TxnOp,
    VersionHistory,
    check_bank,
    check_bank_versions,
    check_long_fork,
    check_ring,
)

HISTORIES = 10_000


def reader(
    number: int, seen: dict[bytes, bytes | None], *, scan: bool = False, outcome: OperationOutcome = OperationOutcome.OK
) -> TxnOp:
    """A transaction that read these keys, one by one or by a scan over all of them."""
    rows = tuple(sorted((key, value) for key, value in seen.items() if value is not None))
    return TxnOp(
        txn_id=number,
        client=1,
        invoked_ns=number,
        returned_ns=None if outcome is OperationOutcome.UNKNOWN else number + 1,
        outcome=outcome,
        reads=() if scan else tuple(Read(key, value) for key, value in seen.items()),
        scans=(ScanOp(b"\x00", b"\xff", rows),) if scan else (),
    )


# --- bank ----------------------------------------------------------------------------------------------------------

ACCOUNTS = [b"a", b"b", b"c"]
HEALTHY = {(a, b, c) for a in range(-40, 71) for b in range(-40, 71) for c in range(-40, 71) if a + b + c == 30}


def bank(rng: random.Random) -> list[dict[bytes, int]]:
    """The states of a bank under transfers, with now and then a lost update."""
    states = [dict.fromkeys(ACCOUNTS, 10)]
    for _ in range(rng.randint(1, 5)):
        source, target = rng.sample(ACCOUNTS, 2)
        amount = rng.randint(1, 5)
        after = {**states[-1], source: states[-1][source] - amount, target: states[-1][target] + amount}
        if rng.random() < 0.1:
            after[target] = states[0][target] + amount
        states.append(after)
    return states


def test_bank_agrees_with_brute_force():
    """Readers that mix states: flagged exactly when they are no state's total, never when they are a healthy state."""
    verdicts = {True: 0, False: 0}
    for seed in range(HISTORIES):
        rng = random.Random(seed)
        states = bank(rng)
        one = rng.choice(states)
        seen = {key: (rng.choice(states) if rng.random() < 0.2 else one)[key] for key in ACCOUNTS}
        raw = {key: b"%d" % amount for key, amount in seen.items()}
        found = check_bank([reader(1, raw, scan=rng.random() < 0.5)], accounts=ACCOUNTS, total=30, overdraft=True)
        healthy = tuple(seen.values()) in HEALTHY
        assert (not found) == healthy, (seed, seen)
        verdicts[healthy] += 1
    assert min(verdicts.values()) > HISTORIES // 20, verdicts


def test_bank_versions_agree_with_reading_every_instant():
    verdicts = {True: 0, False: 0}
    for seed in range(HISTORIES):
        rng = random.Random(seed)
        states = bank(rng)
        table: dict[bytes, list[ObservedVersion]] = {key: [] for key in ACCOUNTS}
        for ts, state in enumerate(states, start=1):
            for key in ACCOUNTS:
                if ts == 1 or state[key] != states[ts - 2][key]:
                    late = ts > 1 and rng.random() < 0.02
                    table[key].append(ObservedVersion(2 * ts + late, b"%d" % state[key]))
        versions = VersionHistory.of(table, loaded_upto=2)
        healthy = all(
            sum(int(versions.value_at(key, ts=ts) or 0) for key in ACCOUNTS) == 30
            for ts in range(2, 2 * len(states) + 3)
        )
        assert (not check_bank_versions(versions, accounts=ACCOUNTS, total=30)) == healthy, (seed, versions)
        verdicts[healthy] += 1
    assert min(verdicts.values()) > HISTORIES // 20, verdicts


# --- ring ----------------------------------------------------------------------------------------------------------


def rings(keys: list[bytes]) -> list[dict[bytes, bytes]]:
    """Every ring through all keys."""
    first, *others = keys
    found = []
    for order in permutations(others):
        path = [first, *order]
        found.append({key: path[(at + 1) % len(path)] for at, key in enumerate(path)})
    return found


ALL_RINGS = {size: rings([b"%d" % at for at in range(size)]) for size in (1, 2, 3, 4, 5)}


def test_ring_agrees_with_the_list_of_all_rings():
    verdicts = {True: 0, False: 0}
    for seed in range(HISTORIES):
        rng = random.Random(seed)
        size = rng.randint(1, 5)
        keys = [b"%d" % at for at in range(size)]
        pointers: dict[bytes, bytes | None] = dict(rng.choice(ALL_RINGS[size]))
        for _ in range(rng.choice([0, 1, 2])):
            if rng.random() < 0.4:  # exchange two pointers: a permutation still, but maybe two rings
                one, other = rng.choice(keys), rng.choice(keys)
                pointers[one], pointers[other] = pointers[other], pointers[one]
            else:
                pointers[rng.choice(keys)] = rng.choice([*keys, None, b"astray"])
        found = check_ring([reader(1, pointers, scan=rng.random() < 0.5)], keys=keys)
        assert (not found) == (pointers in ALL_RINGS[size]), (seed, pointers, found)
        verdicts[not found] += 1
    assert min(verdicts.values()) > HISTORIES // 10, verdicts


# --- long fork -----------------------------------------------------------------------------------------------------


def test_long_fork_agrees_with_every_order_of_the_writes():
    verdicts = {True: 0, False: 0}
    keys = [b"p", b"q", b"r", b"s"]
    for seed in range(HISTORIES):
        rng = random.Random(seed)
        order = rng.sample(keys, len(keys))
        views = []
        for _ in range(rng.randint(1, 4)):
            view = set(order[: rng.randint(0, len(order))])
            if rng.random() < 0.2:
                view ^= {rng.choice(keys)}
            views.append(view)
        txns = [
            reader(at, {key: b"1" if key in view else None for key in keys}, scan=rng.random() < 0.5)
            for at, view in enumerate(views)
        ]
        healthy = any(
            all(view == set(attempt[: len(view)]) for view in views) for attempt in permutations(keys)
        )  # each reader saw a beginning of one order
        found = check_long_fork(txns, groups=[keys])
        assert (not found) == healthy, (seed, views, found)
        verdicts[healthy] += 1
    assert min(verdicts.values()) > HISTORIES // 20, verdicts
