"""The register checker agrees with brute force over every linearization."""

from __future__ import annotations

import random

from slackwater.sim.checkers import OperationOutcome, OpKind, RegisterOp, check_registers
from tests.property import checkers_brute as brute

HISTORIES = 12_000
VALUES = [None, b"1", b"2", b"3"]


def history(rng: random.Random) -> list[RegisterOp]:
    """A real execution (each operation takes effect somewhere inside its interval), then perhaps spoiled."""
    count = rng.randint(2, 7)
    spans = [(start, start + rng.randint(0, 8)) for start in (rng.randint(0, 16) for _ in range(count))]
    points = sorted((rng.randint(*span), at) for at, span in enumerate(spans))
    state, ops = None, {}
    for _, at in points:
        kind = rng.choice([OpKind.READ, OpKind.READ, OpKind.WRITE, OpKind.CAS])
        outcome = rng.choices([OperationOutcome.OK, OperationOutcome.UNKNOWN, OperationOutcome.FAILED], [8, 2, 1])[0]
        happens = outcome is OperationOutcome.OK or (outcome is OperationOutcome.UNKNOWN and rng.random() < 0.5)
        value, expected, swapped = rng.choice(VALUES), rng.choice(VALUES), True
        if kind is OpKind.READ:
            value = state
        elif kind is OpKind.CAS and expected != state:
            if outcome is OperationOutcome.OK:
                value, swapped = state, False
        elif happens:
            state = value
        begin, end = spans[at]
        ops[at] = RegisterOp(
            op_id=at, client=at % 3, key=b"k", kind=kind, invoked_ns=begin, outcome=outcome, swapped=swapped,
            returned_ns=None if outcome is OperationOutcome.UNKNOWN else end, value=value,
            expected=expected if kind is OpKind.CAS else None,
        )  # fmt: skip
    return [spoil(rng, op) if rng.random() < 0.12 else op for op in ops.values()]


def spoil(rng: random.Random, op: RegisterOp) -> RegisterOp:
    fields = {name: getattr(op, name) for name in op.__struct_fields__}
    if rng.random() < 0.7:
        fields["value"] = rng.choice(VALUES)
    elif op.returned_ns is not None:
        fields["invoked_ns"] += 9
        fields["returned_ns"] += 9
    return RegisterOp(**fields)


def test_agrees_with_brute_force():
    verdicts = {True: 0, False: 0}
    for seed in range(HISTORIES):
        ops = history(random.Random(seed))
        expected = brute.linearizable(ops, None)
        found = check_registers(ops)
        assert (not found) == expected, (seed, ops, found)
        verdicts[expected] += 1
    assert min(verdicts.values()) > HISTORIES // 10, verdicts


def test_a_window_said_to_be_impossible_from_any_value_is_so():
    """The evidence stands on its own: brute force rejects the window from every starting value."""
    judged = 0
    for seed in range(4_000):
        ops = history(random.Random(seed))
        for violation in check_registers(ops):
            if violation.evidence.get("from_any"):
                judged += 1
                end = violation.evidence["culprit"].returned_ns
                window = [op for op in violation.evidence["window"] if op.invoked_ns <= end]
                # An operation still in flight when the window closes may or may not have taken effect by then.
                assert not any(brute.linearizable([_open(op, end) for op in window], start) for start in VALUES), seed
    assert judged > 100


def _open(op: RegisterOp, end: int) -> RegisterOp:
    if op.returned_ns is None or op.returned_ns <= end or op.kind is OpKind.READ or not op.swapped:
        return op
    fields = {name: getattr(op, name) for name in op.__struct_fields__}
    return RegisterOp(**{**fields, "returned_ns": None, "outcome": OperationOutcome.UNKNOWN})


def test_long_histories_with_many_unknown_outcomes_stay_small():
    """Twenty clients' worth of unknown writes do not blow the configurations up, and a real execution passes."""
    rng = random.Random(7)
    state, ops = None, []
    for at in range(6_000):
        kind = rng.choice([OpKind.READ, OpKind.WRITE])
        unknown = kind is OpKind.WRITE and rng.random() < 0.1
        value = b"%d" % at if kind is OpKind.WRITE else state
        if kind is OpKind.WRITE and (not unknown or rng.random() < 0.5):
            state = value
        ops.append(
            RegisterOp(
                op_id=at,
                client=at % 20,
                key=b"k",
                kind=kind,
                invoked_ns=at - rng.randint(0, 5),
                value=value,
                returned_ns=None if unknown else at + rng.randint(0, 5),
                outcome=OperationOutcome.UNKNOWN if unknown else OperationOutcome.OK,
            )
        )
    assert check_registers(ops, configurations_max=20_000) == []


def unique_history(rng: random.Random) -> list[RegisterOp]:
    """As `history`, but every put has a value of its own; reads and swaps may be spoiled to name another one."""
    count = rng.randint(2, 8)
    spans = [(start, start + rng.randint(0, 8)) for start in (rng.randint(0, 16) for _ in range(count))]
    points = sorted((rng.randint(*span), at) for at, span in enumerate(spans))
    state, ops, put = None, {}, [None]
    for _, at in points:
        kind = rng.choice([OpKind.READ, OpKind.READ, OpKind.WRITE, OpKind.CAS])
        outcome = rng.choices([OperationOutcome.OK, OperationOutcome.UNKNOWN, OperationOutcome.FAILED], [8, 2, 1])[0]
        happens = outcome is OperationOutcome.OK or (outcome is OperationOutcome.UNKNOWN and rng.random() < 0.5)
        value, expected, swapped = b"%d" % at, rng.choice([state, state, *put]), True
        if kind is OpKind.READ:
            value = state if rng.random() < 0.9 else rng.choice(put)
        elif kind is OpKind.CAS and expected != state and rng.random() < 0.9:
            if outcome is OperationOutcome.OK:
                value, swapped = state, False
        elif happens:
            state = value
            put.append(value)
        late = 9 if rng.random() < 0.15 else 0
        begin, end = spans[at]
        ops[at] = RegisterOp(
            op_id=at, client=at % 3, key=b"k", kind=kind, invoked_ns=begin + late, outcome=outcome, swapped=swapped,
            returned_ns=None if outcome is OperationOutcome.UNKNOWN else end + late, value=value,
            expected=expected if kind is OpKind.CAS else None,
        )  # fmt: skip
    return list(ops.values())


def test_zones_agree_with_brute_force_where_values_differ():
    verdicts = {True: 0, False: 0}
    for seed in range(HISTORIES):
        ops = unique_history(random.Random(seed))
        expected = brute.linearizable(ops, None)
        assert (not check_registers(ops)) == expected, (seed, ops)
        found = check_registers(ops, configurations_max=0)  # the search gives up at once
        assert (not found) == expected, (seed, ops, found)
        assert all(violation.conclusive for violation in found)
        verdicts[expected] += 1
    assert min(verdicts.values()) > HISTORIES // 10, verdicts


def test_fifty_operations_at_once_are_judged():
    """Seed 550720786: while a clock is beyond its bound, whatever happens in 14 s counts as concurrent."""
    ops = [
        RegisterOp(
            op_id=at, client=at % 5, key=b"k", kind=kind, invoked_ns=0, returned_ns=100, outcome=OperationOutcome.OK,
            value=b"%d" % (at // 2),
        )
        for at in range(50)
        for kind in [OpKind.READ if at % 2 else OpKind.WRITE]
    ]  # fmt: skip
    assert check_registers(ops) == []
    late = RegisterOp(
        op_id=99,
        client=1,
        key=b"k",
        kind=OpKind.READ,
        invoked_ns=200,
        returned_ns=210,
        outcome=OperationOutcome.OK,
        value=None,
    )
    (violation,) = check_registers([*ops, late])
    assert (violation.kind, violation.conclusive) == ("not-linearizable", True)
