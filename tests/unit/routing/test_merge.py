"""Budgets of rows and bytes, and merged results."""

from __future__ import annotations

from slackwater.protocol.range import requests
from slackwater.routing.merge import Budget, join, merge, resume_of, stopped_at, unread


def test_budget_counts_rows_and_bytes() -> None:
    budget = Budget(max_keys=3, max_bytes=0)
    assert budget.left() == (3, 0)
    budget.use(requests.Rows([b"a", b"b"], [b"", b""]))
    assert budget.left() == (1, 0)
    budget.use(requests.Number(10))
    assert not budget.spent
    budget.use(requests.Versions([b"c"], [1], [b""]))
    assert budget.spent
    by_bytes = Budget(max_keys=0, max_bytes=4)
    by_bytes.use(requests.Rows([b"a"], [b"12"]))
    assert by_bytes.left() == (0, 1)
    by_bytes.use(requests.Rows([b"b"], [b""]))
    assert by_bytes.spent


def test_rows_behind_an_early_stop_are_dropped() -> None:
    first = requests.Rows([b"a"], [b"1"], resume=b"b")
    second = requests.Rows([b"m"], [b"2"])
    assert join([first, second]) == requests.Rows([b"a"], [b"1"], resume=b"b")
    assert merge(requests.ReverseScan(b"a", b"z"), [first, second]) == requests.Rows(
        [b"m", b"a"], [b"2", b"1"], resume=b"b"
    )


def test_versions_counts_and_others_are_joined() -> None:
    a, b = requests.Versions([b"a"], [3], [b"x"]), requests.Versions([b"b"], [4], [b"y"], resume=b"c")
    assert join([a, b]) == requests.Versions([b"a", b"b"], [3, 4], [b"x", b"y"], resume=b"c")
    assert a == requests.Versions([b"a"], [3], [b"x"]), "joining must not change its pieces"
    assert join([requests.Number(2), requests.Number(3)]) == requests.Number(5)
    assert join([requests.Done(), requests.Done()]) == requests.Done()


def test_what_was_not_read_is_marked() -> None:
    scan, back = requests.Scan(b"a", b"z"), requests.ReverseScan(b"a", b"z")
    assert unread(scan, home=b"") == b"a"
    assert unread(back, home=b"") == b"z"
    assert stopped_at(None, scan, b"a") == requests.Rows([], [], b"a")
    assert stopped_at(requests.Rows([b"b"], [b""], b"c"), scan, b"m") == requests.Rows([b"b"], [b""], b"c")
    assert stopped_at(requests.Rows([b"b"], [b""]), scan, b"m") == requests.Rows([b"b"], [b""], b"m")
    assert resume_of(requests.Done()) is None
