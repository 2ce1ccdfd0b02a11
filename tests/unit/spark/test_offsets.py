"""Offsets and the ends of micro-batches, against a plain list of versions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.clock.timestamp import LOGICAL_MAX, from_us, us_of
from slackwater.errors import UsageError
from slackwater.spark.offsets import Offset, batch_end, check_table, decode, limited_end


def test_offsets_survive_json() -> None:
    for offset in (Offset(104, 1, from_us(1 << 50, 7)), Offset(1, 2, 0, snapshot=True)):
        assert decode(offset.encode()) == offset
    assert Offset(104, 1, (1 << 62) + 1).encode()["resolved"] == str((1 << 62) + 1)


@pytest.mark.parametrize("found", [{}, {"v": 1}, {"v": 1, "table": "x", "schema": 1, "resolved": "1"}, {"offset": 3}])
def test_a_foreign_offset_is_refused(found: dict) -> None:
    with pytest.raises(UsageError, match="use a new checkpoint"):
        decode(found)


def test_an_offset_of_another_release_or_table_is_refused() -> None:
    with pytest.raises(UsageError, match="another release"):
        decode(Offset(1, 1, 1).encode() | {"v": 2})
    with pytest.raises(UsageError, match="dropped and made again"):
        check_table(Offset(1, 1, 1), table=2, schema=1, name="t")
    with pytest.raises(UsageError, match="newer schema"):
        check_table(Offset(1, 3, 1), table=1, schema=2, name="t")
    check_table(Offset(1, 1, 1), table=1, schema=2, name="t")


@given(st.integers(0, 1 << 40), st.integers(0, LOGICAL_MAX))
def test_a_batch_ends_where_a_microsecond_does(us: int, logical: int) -> None:
    resolved = from_us(us, logical)
    end = batch_end(resolved)
    assert end <= resolved
    assert end == 0 or us_of(end) < us_of(end + 1)
    assert resolved - end <= LOGICAL_MAX + 1


@given(
    st.lists(st.tuples(st.integers(1, 4_000_000), st.integers(0, 3)), max_size=60),
    st.integers(1, 12),
    st.integers(4_000_001, 9_000_000),
)
def test_limited_batches_cover_everything_once_and_split_no_microsecond(
    commits: list[tuple[int, int]], rows: int, latest_us: int
) -> None:
    versions = np.array(sorted(from_us(us, logical) for us, logical in commits), dtype=np.int64)

    def between(after: int, upto: int) -> np.ndarray:
        return versions[(versions > after) & (versions <= upto)][::-1]

    latest = batch_end(from_us(latest_us))
    after, seen, newest = 0, [], -1
    while after < latest:
        end = limited_end(between, after=after, upto=latest, rows=rows)
        assert after < end <= latest
        batch = sorted(between(after, end).tolist())
        if batch:
            assert us_of(batch[0]) > newest, "a microsecond was split"
            newest = us_of(batch[-1])
            assert len(batch) <= rows or us_of(batch[0]) == us_of(batch[-1]), "over the limit without need"
        seen += batch
        after = end
    assert seen == versions.tolist()
