"""The list-append checker agrees with brute force over every serial order."""

from __future__ import annotations

import random
from collections import Counter

from slackwater.sim.checkers import ListOp, ListTxn, OperationOutcome, check_list_append
from tests.property import checkers_brute as brute

HISTORIES = 14_000
KEYS = [b"x", b"y"]


def history(rng: random.Random) -> tuple[list[ListTxn], dict[bytes, tuple[int, ...]]]:
    """Transactions run one after another, some on an old snapshot (weak isolation), then perhaps spoiled."""
    weakness = rng.choice([0.0, 0.4, 0.8])
    slack = rng.choice([6, 40])
    states: list[dict[bytes, tuple[int, ...]]] = [{}]
    txns, element = [], 0
    for at in range(rng.randint(3, 6)):
        outcome = rng.choices([OperationOutcome.OK, OperationOutcome.UNKNOWN, OperationOutcome.FAILED], [8, 2, 1])[0]
        happens = outcome is OperationOutcome.OK or (outcome is OperationOutcome.UNKNOWN and rng.random() < 0.5)
        base = rng.choice(states) if rng.random() < weakness else states[-1]
        view, mine, ops = dict(base), [], []
        for _ in range(rng.randint(1, 4)):
            key = rng.choice(KEYS)
            if rng.random() < 0.5:
                element += 1
                ops.append(ListOp(key, element))
                view[key] = (*view.get(key, ()), element)
                mine.append((key, element))
            else:
                ops.append(ListOp(key, None, view.get(key, ())))
        if happens:
            after = dict(states[-1])
            for key, appended in mine:
                there = list(after.get(key, ()))
                # A dirty write: another transaction's append slips in behind this one.
                there.insert(len(there) - (bool(there) and rng.random() < weakness / 6), appended)
                after[key] = tuple(there)
            states.append(after)
        begin = at * 4 - rng.randint(0, slack)
        end = at * 4 + rng.randint(0, slack)
        txns.append(
            ListTxn(
                txn_id=at,
                client=at % 2,
                invoked_ns=begin,
                returned_ns=None if outcome is OperationOutcome.UNKNOWN else end,
                outcome=outcome,
                ops=tuple(ops),
            )
        )
    txns = [spoil(rng, txn, element) if rng.random() < 0.12 else txn for txn in txns]
    rng.shuffle(txns)
    return txns, states[-1]


def spoil(rng: random.Random, txn: ListTxn, top: int) -> ListTxn:
    fields = {name: getattr(txn, name) for name in txn.__struct_fields__}
    trick = rng.randint(0, 3)
    if trick == 0:
        fields["outcome"], fields["returned_ns"] = OperationOutcome.FAILED, txn.invoked_ns + 3
    elif trick == 1:
        fields["ops"] = tuple(spoil_read(rng, op, top) if op.elements is not None else op for op in txn.ops)
    elif trick == 2 and txn.returned_ns is not None:
        shift = rng.choice([-12, 12])
        fields["invoked_ns"] += shift
        fields["returned_ns"] += shift
    elif txn.outcome is OperationOutcome.OK:
        fields["outcome"], fields["returned_ns"] = OperationOutcome.UNKNOWN, None
    return ListTxn(**fields)


def spoil_read(rng: random.Random, op: ListOp, top: int) -> ListOp:
    elements = list(op.elements or ())
    trick = rng.randint(0, 3)
    if trick == 0 and elements:
        elements.pop(rng.randrange(len(elements)))
    elif trick == 1:
        rng.shuffle(elements)
    elif trick == 2 and elements:
        elements.append(rng.choice(elements))
    else:
        elements.append(rng.randint(1, top + 1))
    return ListOp(op.key, None, tuple(elements))


def spoil_final(rng: random.Random, final: dict[bytes, tuple[int, ...]]) -> dict[bytes, tuple[int, ...]]:
    if rng.random() < 0.75:
        return final
    key = rng.choice(KEYS)
    elements = list(final.get(key, ()))
    if elements and rng.random() < 0.7:
        elements.pop(rng.randrange(len(elements)))
    else:
        elements.append(rng.randint(1, 8))
    return {**final, key: tuple(elements)}


def test_agrees_with_brute_force():
    verdicts: Counter[tuple[str, bool]] = Counter()
    kinds: Counter[str] = Counter()
    for seed in range(HISTORIES):
        rng = random.Random(seed)
        txns, lists = history(rng)
        final = spoil_final(rng, lists) if seed % 3 == 0 else None
        strict = seed % 3 == 1
        expected = brute.list_append_ok(txns, final, strict=strict)
        found = check_list_append(txns, final=final, strict=strict)
        assert (not found) == expected, (seed, txns, final, strict, [str(v) for v in found])
        verdicts[("final" if final is not None else "strict" if strict else "keys", expected)] += 1
        kinds.update(violation.kind for violation in found)
    assert len(verdicts) == 6, verdicts
    assert min(verdicts.values()) > HISTORIES // 15, verdicts
    wanted = {"G0", "G1a", "G1b", "G1c", "G-single", "G2", "internal", "incompatible-order", "duplicate-append",
              "phantom-append", "lost-append", "dirty-append", "partial-commit", "stale-read", "write-order",
              "reads-go-back", "append-order", "G-single-realtime"}  # fmt: skip
    assert not wanted - kinds.keys(), wanted - kinds.keys()
