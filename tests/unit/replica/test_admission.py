"""What is refused before anything waits for it: timestamps that no honest clock and no lead can explain."""

from __future__ import annotations

import pytest

from slackwater.clock.timestamp import Timestamp, add_seconds, from_us
from slackwater.errors import ClockError
from slackwater.model.ids import RangeId
from slackwater.model.txns import Txn
from slackwater.protocol.range import requests
from slackwater.replica.admission import check_future, latest_timestamp

NOW = from_us(1_000_000_000)
R = RangeId(7)


def txn(read: Timestamp, write: Timestamp) -> Txn:
    return Txn(b"t" * 16, b"\x04a", read, 0, read, write, add_seconds(read, 100), 1)


def test_the_latest_timestamp_is_what_is_read_or_written_not_how_far_a_reader_is_uncertain() -> None:
    early, late = add_seconds(NOW, -1), add_seconds(NOW, 1)
    get = requests.Get(b"\x04a")
    assert latest_timestamp(requests.Batch(requests.Header(R, ts=early, uncertainty_limit=late), [get])) == early
    assert latest_timestamp(requests.Batch(requests.Header(R, txn=txn(early, late)), [get])) == late
    refresh = requests.Refresh(b"\x04a", b"\x04b", early, late)
    assert latest_timestamp(requests.Batch(requests.Header(R), [get, refresh])) == late


def test_a_little_of_the_future_is_served_and_more_is_refused() -> None:
    check_future(add_seconds(NOW, 1.2), now=NOW, ahead_s=1.2)
    with pytest.raises(ClockError):
        check_future(add_seconds(NOW, 1.3), now=NOW, ahead_s=1.2)
