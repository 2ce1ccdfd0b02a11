"""Budgets of rows and bytes, and merged results."""

from __future__ import annotations

from slackwater.protocol.range import requests as rq
from slackwater.routing.merge import Budget, join, merge, resume_of, stopped_at, unread


def test_budget_counts_rows_and_bytes() -> None:
    budget = Budget(max_keys=3, max_bytes=0)
    assert budget.left() == (3, 0)
    budget.use(rq.Rows([b"a", b"b"], [b"", b""]))
    assert budget.left() == (1, 0)
    budget.use(rq.Number(10))
    assert not budget.spent
    budget.use(rq.Versions([b"c"], [1], [b""]))
    assert budget.spent
    by_bytes = Budget(max_keys=0, max_bytes=4)
    by_bytes.use(rq.Rows([b"a"], [b"12"]))
    assert by_bytes.left() == (0, 1)
    by_bytes.use(rq.Rows([b"b"], [b""]))
    assert by_bytes.spent


def test_rows_behind_an_early_stop_are_dropped() -> None:
    first = rq.Rows([b"a"], [b"1"], resume=b"b")
    second = rq.Rows([b"m"], [b"2"])
    assert join([first, second]) == rq.Rows([b"a"], [b"1"], resume=b"b")
    assert merge(rq.ReverseScan(b"a", b"z"), [first, second]) == rq.Rows([b"m", b"a"], [b"2", b"1"], resume=b"b")


def test_versions_counts_and_others_are_joined() -> None:
    a, b = rq.Versions([b"a"], [3], [b"x"]), rq.Versions([b"b"], [4], [b"y"], resume=b"c")
    assert join([a, b]) == rq.Versions([b"a", b"b"], [3, 4], [b"x", b"y"], resume=b"c")
    assert a == rq.Versions([b"a"], [3], [b"x"]), "joining must not change its pieces"
    assert join([rq.Number(2), rq.Number(3)]) == rq.Number(5)
    assert join([rq.Done(), rq.Done()]) == rq.Done()


def test_what_was_not_read_is_marked() -> None:
    scan, back = rq.Scan(b"a", b"z"), rq.ReverseScan(b"a", b"z")
    assert unread(scan, home=b"") == b"a"
    assert unread(back, home=b"") == b"z"
    assert stopped_at(None, scan, b"a") == rq.Rows([], [], b"a")
    assert stopped_at(rq.Rows([b"b"], [b""], b"c"), scan, b"m") == rq.Rows([b"b"], [b""], b"c")
    assert stopped_at(rq.Rows([b"b"], [b""]), scan, b"m") == rq.Rows([b"b"], [b""], b"m")
    assert resume_of(rq.Done()) is None
