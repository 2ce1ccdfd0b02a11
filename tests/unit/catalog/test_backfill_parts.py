"""Parts of a backfill beside what was read ahead: a range that was divided meanwhile, merged, or not."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from slackwater.catalog.backfill import as_read
from slackwater.catalog.filling import Filled, ReadRun
from slackwater.clock.timestamp import Timestamp
from slackwater.model.spans import Span, SpanSet


def key(number: int) -> bytes:
    return b"%03d" % number


def run(upto: int) -> ReadRun:
    task: Any = None
    return ReadRun(task, Timestamp(1), Filled(key(upto), 1), None)


def spans(*pairs: tuple[int, int]) -> list[Span]:
    return [Span(key(low), key(high)) for low, high in pairs]


def test_a_run_that_was_read_is_not_read_again_because_its_range_was_divided() -> None:
    parts = spans((0, 10), (10, 20), (30, 40))
    assert as_read(parts, {}) == parts
    assert as_read(parts, {key(0): run(5), key(30): run(40)}) == parts
    assert as_read(parts, {key(0): run(15)}) == spans((0, 15), (15, 20), (30, 40))
    assert as_read(parts, {key(0): run(20)}) == spans((0, 20), (30, 40))
    assert as_read(spans((0, 10), (10, 12)), {key(0): run(18)}) == spans((0, 18)), (
        "a run may go beyond the parts of a round"
    )
    assert as_read(spans((0, 40)), {key(0): run(15)}) == spans((0, 40)), "ranges were merged"


@given(st.sets(st.integers(1, 99), max_size=6), st.sets(st.integers(1, 99), max_size=6), st.integers(1, 8))
def test_no_row_is_in_two_parts_and_none_of_a_round_is_left_out(before: set[int], after: set[int], most: int) -> None:
    """Runs were read from the beginnings of some parts; then ranges were divided and merged anyhow."""
    cuts = [0, *sorted(before), 100]
    ahead = {key(low): run(high) for low, high in pairwise(cuts)}
    now = [0, *sorted(after), 100]
    parts = spans(*pairwise(now))[:most]
    found = as_read(parts, ahead)
    assert all(one.end <= other.start for one, other in pairwise(found))
    covered = SpanSet(found)
    assert not list(SpanSet(parts).subtract(covered)), "all of the parts"
    for part in found:
        if part.start in ahead:
            assert ahead[part.start].filled.upto <= part.end
