"""The classic anomalies, each written out by hand and caught under its own name."""

from __future__ import annotations

import msgspec
import pytest

from slackwater.errors import UsageError
from slackwater.sim.checkers import (
    ListOp,
    ListTxn,
    ObservedVersion,
    OperationOutcome,
    OpKind,
    Read,
    RegisterOp,
    ScanOp,
    TxnOp,
    VersionHistory,
    Violation,
    WriteOp,
    check_bank,
    check_intervals,
    check_list_append,
    check_long_fork,
    check_registers,
    check_ring,
)

OK, FAILED, UNKNOWN = OperationOutcome.OK, OperationOutcome.FAILED, OperationOutcome.UNKNOWN


def txn(number, reads=None, writes=None, *, when=(0, 100), outcome=OK, **more) -> TxnOp:
    """All at the same time unless told otherwise, so that real time says nothing."""
    return TxnOp(
        txn_id=number,
        client=number,
        invoked_ns=when[0],
        returned_ns=None if outcome is UNKNOWN else when[1],
        outcome=outcome,
        reads=tuple(Read(key, value) for key, value in (reads or {}).items()),
        writes=tuple(WriteOp(key, value) for key, value in (writes or {}).items()),
        **more,
    )


def lists(number, *ops, when=(0, 100), outcome=OK) -> ListTxn:
    """`("x", 1)` appends 1, `("x", [1])` reads."""
    made = tuple(
        ListOp(key.encode(), None, tuple(what)) if isinstance(what, list) else ListOp(key.encode(), what)
        for key, what in ops
    )
    returned = None if outcome is UNKNOWN else when[1]
    return ListTxn(txn_id=number, client=number, invoked_ns=when[0], returned_ns=returned, outcome=outcome, ops=made)


def versions(loaded_upto=1, **keys) -> VersionHistory:
    """`a={1: b"0", 5: b"1"}`."""
    return VersionHistory.of(
        {key.encode(): [ObservedVersion(ts, value) for ts, value in held.items()] for key, held in keys.items()},
        loaded_upto=loaded_upto,
    )


def names(found: list[Violation]) -> set[str]:
    for violation in found:
        assert len(violation.summary) > 40, "a paragraph for a person"
        msgspec.json.encode(violation)  # fit for the artifact
    return {f"{violation.oracle} {violation.kind}" for violation in found}


# --- against V -----------------------------------------------------------------------------------------------------


def test_lost_update():
    """Both read the balance 10, both add to it; the second overwrites the first."""
    one = txn(1, {b"a": b"10"}, {b"a": b"11"}, commit_ts=5)
    two = txn(2, {b"a": b"10"}, {b"a": b"12"}, commit_ts=6)
    found = check_intervals([one, two], versions(a={1: b"10", 5: b"11", 6: b"12"}))
    assert names(found) == {"I-18 read-moved"}
    assert found[0].evidence["txn"] == two
    assert found[0].evidence["holds"] == [(1, 5)]


def test_write_skew():
    """Each takes one doctor off call after seeing that the other is on."""
    one = txn(1, {b"a": b"on", b"b": b"on"}, {b"a": b"off"}, commit_ts=5)
    two = txn(2, {b"a": b"on", b"b": b"on"}, {b"b": b"off"}, commit_ts=6)
    assert names(check_intervals([one, two], versions(a={1: b"on", 5: b"off"}, b={1: b"on", 6: b"off"}))) == {
        "I-18 read-moved"
    }


def test_write_skew_through_a_phantom():
    """The same with scans: each inserts where the other's scan saw nothing."""
    scan = (ScanOp(b"a", b"c", ()),)
    one = txn(1, writes={b"a": b"1"}, commit_ts=5, scans=scan)
    two = txn(2, writes={b"b": b"1"}, commit_ts=6, scans=scan)
    assert names(check_intervals([one, two], versions(a={5: b"1"}, b={6: b"1"}))) == {"I-18 read-moved"}


def test_dirty_read():
    aborted = txn(1, writes={b"a": b"1"}, outcome=FAILED)
    found = check_intervals([aborted, txn(2, {b"a": b"1"})], versions(a={1: b"0"}))
    assert names(found) == {"I-18 dirty-read"}
    assert "failed" in found[0].summary


def test_read_skew_has_no_common_timestamp():
    move = txn(1, writes={b"a": b"1", b"b": b"1"}, commit_ts=5)
    skewed = txn(2, {b"a": b"0", b"b": b"1"})
    found = check_intervals([move, skewed], versions(a={1: b"0", 5: b"1"}, b={1: b"0", 5: b"1"}))
    assert names(found) == {"I-18 no-common-timestamp"}


def test_fuzzy_read():
    """One transaction reads a key twice and sees two values."""
    fuzzy = TxnOp(
        txn_id=2,
        client=2,
        invoked_ns=0,
        returned_ns=100,
        outcome=OK,
        reads=(Read(b"a", b"0"), Read(b"a", b"1")),
    )
    found = check_intervals([txn(1, writes={b"a": b"1"}, commit_ts=5), fuzzy], versions(a={1: b"0", 5: b"1"}))
    assert names(found) == {"I-18 no-common-timestamp"}


def test_stale_read_and_its_historical_twin():
    write = txn(1, writes={b"a": b"1"}, commit_ts=5, when=(0, 10))
    stale = txn(2, {b"a": b"0"}, when=(20, 30))
    held = versions(a={1: b"0", 5: b"1"})
    assert names(check_intervals([write, stale], held)) == {"I-19 stale-read"}
    asked_for_the_past = txn(2, {b"a": b"0"}, when=(20, 30), historical=True, read_ts=4)
    assert check_intervals([write, asked_for_the_past], held) == []


def test_wrong_snapshot():
    write = txn(1, writes={b"a": b"1"}, commit_ts=5)
    reader = txn(2, {b"a": b"0"}, historical=True, read_ts=7)
    assert names(check_intervals([write, reader], versions(a={1: b"0", 5: b"1"}))) == {"I-15 wrong-snapshot"}


def test_commit_order_against_real_time():
    first = txn(1, writes={b"a": b"1"}, commit_ts=9, when=(0, 10))
    second = txn(2, writes={b"a": b"2"}, commit_ts=5, when=(20, 30))
    assert names(check_intervals([first, second], versions(a={5: b"2", 9: b"1"}))) == {"I-19 write-order"}


@pytest.mark.parametrize("outcome", [OK, UNKNOWN])
def test_partial_commit(outcome):
    half = txn(1, writes={b"a": b"1", b"b": b"2"}, outcome=outcome)
    expected = {"I-20 partial-commit"} | ({"I-03 lost-write"} if outcome is OK else set())
    assert names(check_intervals([half], versions(a={5: b"1"}))) == expected


def test_unknown_may_be_all_or_nothing():
    unknown = txn(1, writes={b"a": b"1", b"b": b"2"}, outcome=UNKNOWN)
    assert check_intervals([unknown], versions(a={5: b"1"}, b={5: b"2"})) == []
    assert check_intervals([unknown], versions()) == []


def test_unknown_that_took_effect_is_judged_on_its_reads():
    unknown = txn(1, {b"b": b"old"}, {b"a": b"1"}, outcome=UNKNOWN)
    other = txn(2, writes={b"b": b"new"}, commit_ts=3)
    assert names(check_intervals([unknown, other], versions(a={5: b"1"}, b={1: b"old", 3: b"new"}))) == {
        "I-18 read-moved"
    }


def test_resurrected_failed_write():
    failed = txn(1, writes={b"a": b"1"}, outcome=FAILED)
    assert names(check_intervals([failed], versions(a={5: b"1"}))) == {"I-20 failed-write-visible"}


def test_lost_acknowledged_write():
    assert names(check_intervals([txn(1, writes={b"a": b"1"}, commit_ts=5)], versions())) == {"I-03 lost-write"}


def test_unclaimed_version():
    assert names(check_intervals([], versions(a={5: b"1"}))) == {"I-20 unclaimed-version"}
    assert check_intervals([], versions(a={1: b"1"})) == [], "loaded before the run"


def test_a_tag_of_another_transaction_is_no_claim():
    held = VersionHistory.of({b"a": [ObservedVersion(5, b"1", txn_id=9)]})
    found = check_intervals([txn(1, writes={b"a": b"1"}, commit_ts=5)], held)
    assert names(found) == {"I-03 lost-write", "I-20 unclaimed-version"}


def test_a_tag_tells_whose_delete_it_is():
    held = VersionHistory.of({b"a": [ObservedVersion(5, None, txn_id=1)]})
    found = check_intervals([txn(1, writes={b"a": None}, outcome=FAILED)], held)
    assert names(found) == {"I-20 failed-write-visible"}


def test_repeated_values_still_need_one_instant():
    """`a` is p before 5 and from 9 on, `b` is p from 5 to 9 only: the two touch but never overlap."""
    writers = [
        txn(1, writes={b"a": b"q", b"b": b"p"}, commit_ts=5),
        txn(2, writes={b"a": b"p", b"b": b"q"}, commit_ts=9),
    ]
    held = versions(a={1: b"p", 5: b"q", 9: b"p"}, b={5: b"p", 9: b"q"})
    assert names(check_intervals([*writers, txn(3, {b"b": b"p", b"a": b"p"})], held)) == {"I-18 no-common-timestamp"}
    assert check_intervals([*writers, txn(3, {b"b": b"q", b"a": b"p"})], held) == []


def test_split_commit():
    torn = txn(1, writes={b"a": b"1", b"b": b"2"})
    assert names(check_intervals([torn], versions(a={5: b"1"}, b={6: b"2"}))) == {"I-18 split-commit"}


def test_own_writes_are_read_back():
    blind = TxnOp(
        txn_id=1, client=1, invoked_ns=0, returned_ns=9, outcome=OK, commit_ts=5,
        reads=(Read(b"a", b"0", after=1),), writes=(WriteOp(b"a", b"1"),),
    )  # fmt: skip
    assert names(check_intervals([blind], versions(a={1: b"0", 5: b"1"}))) == {"I-18 internal"}


def test_circular_flow_at_one_timestamp():
    """Each saw the other's write, and both committed at 5: the timestamps alone would allow it."""
    one = txn(1, {b"b": b"2"}, {b"a": b"1"}, commit_ts=5)
    two = txn(2, {b"a": b"1"}, {b"b": b"2"}, commit_ts=5)
    assert names(check_intervals([one, two], versions(a={5: b"1"}, b={5: b"2"}))) == {"I-18 G1c"}


def test_repeated_values_are_judged_leniently_but_exactly_when_told():
    """Three writers of the same value: with commit timestamps each finds its own; without, none is accused."""
    held = versions(a={2: b"same", 5: b"same", 8: b"same"})
    told = [txn(at, writes={b"a": b"same"}, commit_ts=3 * at - 1) for at in (1, 2, 3)]
    assert check_intervals(told, held) == []
    untold = [txn(at, writes={b"a": b"same"}, outcome=UNKNOWN) for at in (1, 2, 3)]
    assert check_intervals(untold, held) == []
    assert names(check_intervals([*told, txn(4, writes={b"a": b"same"}, commit_ts=8)], held)) == {"I-03 lost-write"}


# --- list-append ---------------------------------------------------------------------------------------------------

CASES = {
    "G0": [lists(1, ("x", 1), ("y", 1)), lists(2, ("x", 2), ("y", 2)), lists(3, ("x", [1, 2]), ("y", [2, 1]))],
    "G1a": [lists(1, ("x", 1), outcome=FAILED), lists(2, ("x", [1]))],
    "G1b": [lists(1, ("x", 1), ("x", 2)), lists(2, ("x", [1])), lists(3, ("x", [1, 2]))],
    "G1c": [lists(1, ("x", 1), ("y", [1])), lists(2, ("y", 1), ("x", [1]))],
    "G-single": [lists(1, ("x", [1]), ("y", [])), lists(2, ("x", 1), ("y", 1)), lists(3, ("y", [1]))],
    "G2": [lists(1, ("x", []), ("y", 1)), lists(2, ("y", []), ("x", 1))],
    "incompatible-order": [lists(1, ("x", 1)), lists(2, ("x", 2)), lists(3, ("x", [1])), lists(4, ("x", [2]))],
    "internal": [lists(1, ("x", 1), ("x", []))],
    "duplicate-append": [lists(1, ("x", 1)), lists(2, ("x", [1, 1]))],
    "phantom-append": [lists(1, ("x", [7]))],
    "append-order": [lists(1, ("x", 1), ("x", 2)), lists(2, ("x", [2, 1]))],
}


@pytest.mark.parametrize("kind", CASES)
def test_list_append_classes(kind):
    assert f"I-18 {kind}" in names(check_list_append(CASES[kind]))


@pytest.mark.parametrize("kind", ["G0", "G1a", "G1c", "G-single", "G2", "internal", "phantom-append"])
def test_list_append_classes_are_pure(kind):
    assert names(check_list_append(CASES[kind])) == {f"I-18 {kind}"}


def test_list_lost_update_is_g_single():
    """Both read the empty list and append; a later read shows both."""
    history = [lists(1, ("x", []), ("x", 1)), lists(2, ("x", []), ("x", 2)), lists(3, ("x", [1, 2]))]
    found = check_list_append(history)
    assert names(found) == {"I-18 G-single"}
    assert found[0].evidence["cycle"] in ([[2, "rw", 1], [1, "ww", 2]], [[1, "ww", 2], [2, "rw", 1]])


def test_list_fuzzy_read_is_internal_and_g_single():
    history = [lists(1, ("x", 1)), lists(2, ("x", []), ("x", [1]))]
    assert names(check_list_append(history)) == {"I-18 internal", "I-18 G-single"}


def test_list_long_fork_is_g2():
    history = [lists(1, ("x", 1)), lists(2, ("y", 1)), lists(3, ("x", [1]), ("y", [])), lists(4, ("x", []), ("y", [1]))]
    assert names(check_list_append(history)) == {"I-18 G2"}


def test_list_stale_read_is_a_matter_of_real_time():
    history = [lists(1, ("x", 1), when=(0, 10)), lists(2, ("x", []), when=(20, 30))]
    assert names(check_list_append(history)) == {"I-19 stale-read"}
    assert check_list_append([history[0], lists(2, ("x", []), when=(5, 30))]) == []


def test_list_reads_go_back():
    history = [
        lists(1, ("x", 1), when=(0, 100)),
        lists(2, ("x", [1]), when=(5, 10)),
        lists(3, ("x", []), when=(20, 30)),
    ]
    assert names(check_list_append(history)) == {"I-19 reads-go-back"}


def test_causal_reverse_is_only_a_strict_violation():
    """No shared key is out of order, but a reader sees the later write without the earlier."""
    history = [
        lists(1, ("x", 1), when=(0, 10)),
        lists(2, ("y", 1), when=(20, 30)),
        lists(3, ("x", []), ("y", [1]), when=(5, 40)),
    ]
    assert check_list_append(history) == []
    assert names(check_list_append(history, strict=True)) == {"I-19 G-single-realtime"}


def test_final_lists():
    history = [
        lists(1, ("x", 1)),
        lists(2, ("x", 2), outcome=FAILED),
        lists(3, ("x", 3), ("y", 3), outcome=UNKNOWN),
    ]
    assert check_list_append(history, final={b"x": [1, 3], b"y": [3]}) == []
    assert check_list_append(history, final={b"x": [1]}) == []
    assert names(check_list_append(history, final={b"x": []})) == {"I-03 lost-append"}
    assert names(check_list_append(history, final={b"x": [1, 2]})) == {"I-20 dirty-append"}
    assert names(check_list_append(history, final={b"x": [1, 3]})) == {"I-20 partial-commit"}
    assert names(check_list_append(history, final={b"x": [1, 9]})) == {"I-20 phantom-append"}


def test_elements_must_be_unique():
    with pytest.raises(UsageError):
        check_list_append([lists(1, ("x", 1)), lists(2, ("x", 1))])


# --- registers -----------------------------------------------------------------------------------------------------


def op(number, kind, value, when, *, outcome=OK, **more) -> RegisterOp:
    returned = None if outcome is UNKNOWN else when[1]
    return RegisterOp(
        op_id=number, client=number, key=b"k", kind=kind, invoked_ns=when[0], returned_ns=returned,
        outcome=outcome, value=value, **more,
    )  # fmt: skip


READ, WRITE, CAS = OpKind.READ, OpKind.WRITE, OpKind.CAS


def test_register_stale_read_and_its_shortest_window():
    early = [op(at, WRITE, b"%d" % at, (10 * at, 10 * at + 5)) for at in range(20)]
    late = [op(98, WRITE, b"98", (980, 985)), op(99, READ, b"3", (990, 995))]
    found = check_registers([*early, *late])
    assert names(found) == {"I-19 not-linearizable"}
    assert [shown.op_id for shown in found[0].evidence["window"]] == [98, 99]
    assert found[0].evidence["from_any"]


def test_register_reads_flip():
    """Two sequential reads during one write may not see new and then old."""
    write = op(1, WRITE, b"1", (0, 100))
    assert check_registers([write, op(2, READ, None, (10, 20)), op(3, READ, b"1", (30, 40))]) == []
    flip = check_registers([write, op(2, READ, b"1", (10, 20)), op(3, READ, None, (30, 40))])
    assert names(flip) == {"I-19 not-linearizable"}


def test_register_unknown_write_may_surface_late_but_not_sink_again():
    unknown = op(1, WRITE, b"1", (0, 0), outcome=UNKNOWN)
    late = [op(2, READ, None, (10, 20)), op(3, READ, b"1", (1000, 1001))]
    assert check_registers([unknown, *late]) == []
    assert names(check_registers([unknown, *late, op(4, READ, None, (2000, 2001))])) == {"I-19 not-linearizable"}


def test_register_swaps():
    base = op(1, WRITE, b"1", (0, 5))
    assert check_registers([base, op(2, CAS, b"2", (10, 15), expected=b"1"), op(3, READ, b"2", (20, 25))]) == []
    both = [op(2, CAS, b"2", (10, 15), expected=b"1"), op(3, CAS, b"3", (10, 15), expected=b"1")]
    assert names(check_registers([base, *both])) == {"I-19 not-linearizable"}
    refused = op(2, CAS, b"1", (10, 15), expected=b"1", swapped=False)
    assert names(check_registers([base, refused])) == {"I-19 refused-match"}


def test_register_values_from_nowhere():
    failed = op(1, WRITE, b"1", (0, 5), outcome=FAILED)
    assert names(check_registers([failed, op(2, READ, b"1", (10, 15))])) == {"I-20 failed-write-visible"}
    assert names(check_registers([op(2, READ, b"9", (10, 15))])) == {"I-19 thin-air-value"}
    assert check_registers([op(2, READ, b"9", (10, 15))], initial={b"k": b"9"}) == []


def test_register_bound_is_said_aloud():
    crowd = [op(at, WRITE, b"%d" % at, (0, 100)) for at in range(12)]
    seen = op(99, READ, b"3", (200, 201))
    assert check_registers([*crowd, seen], configurations_max=100) == [], "no search is needed where values differ"
    found = check_registers([*crowd, op(12, WRITE, b"3", (0, 100)), seen], configurations_max=100)
    assert names(found) == {"I-19 undecided"}
    assert not found[0].conclusive


# --- bank, ring, long fork -----------------------------------------------------------------------------------------


def test_bank():
    accounts = [b"a", b"b"]
    assert check_bank([txn(1, {b"a": b"4", b"b": b"6"})], accounts=accounts, total=10) == []
    assert names(check_bank([txn(1, {b"a": b"4", b"b": b"7"})], accounts=accounts, total=10)) == {"I-18 wrong-total"}
    assert names(check_bank([txn(1, {b"a": b"-1", b"b": b"11"})], accounts=accounts, total=10)) == {"I-18 overdraft"}
    missing = txn(1, scans=(ScanOp(b"a", b"c", ((b"a", b"10"),)),))
    assert names(check_bank([missing], accounts=accounts, total=10)) == {"I-18 missing-account"}
    partial = txn(1, {b"a": b"4"})
    assert check_bank([partial, txn(2, {b"a": b"0", b"b": b"0"}, outcome=UNKNOWN)], accounts=accounts, total=10) == []


def test_ring():
    keys = [b"a", b"b", b"c", b"d"]
    assert check_ring([txn(1, {b"a": b"c", b"c": b"b", b"b": b"d", b"d": b"a"})], keys=keys) == []
    split = txn(1, {b"a": b"b", b"b": b"a", b"c": b"d", b"d": b"c"})
    assert names(check_ring([split], keys=keys)) == {"I-18 ring-split"}
    tail = txn(1, {b"a": b"b", b"b": b"c", b"c": b"b", b"d": b"a"})
    assert names(check_ring([tail], keys=keys)) == {"I-18 ring-tail"}
    broken = txn(1, {b"a": b"b", b"b": None, b"c": b"d", b"d": b"a"})
    assert names(check_ring([broken], keys=keys)) == {"I-18 ring-broken"}


def test_long_fork():
    one, other = txn(1, {b"x": b"1", b"y": None}), txn(2, {b"x": None, b"y": b"1"})
    assert names(check_long_fork([one, other], groups=[[b"x", b"y"]])) == {"I-18 long-fork"}
    assert check_long_fork([one, txn(2, {b"x": b"1", b"y": b"1"})], groups=[[b"x", b"y"]]) == []
    changed = [one, txn(2, {b"x": b"2", b"y": None})]
    assert names(check_long_fork(changed, groups=[[b"x", b"y"]])) == {"I-18 value-changed"}
