"""Versions to be collected are checked against the range like any other keys (pitfall 36).

Found by the frontier play: versions chosen before a split were collected in a range that no longer held them, and a
neighbor lost live data on every replica.
"""

from __future__ import annotations

from slackwater.clock.timestamp import Timestamp
from slackwater.model.ids import RangeId
from slackwater.model.spans import Span
from slackwater.protocol.range import requests
from slackwater.replica import declare


def test_collected_keys_count_as_addressed() -> None:
    batch = requests.Batch(
        requests.Header(RangeId(7)), [requests.GcVersions(((b"d", (Timestamp(5),)),), ((b"b", ()), (b"p", ())))]
    )
    assert declare.bounds(batch) == Span(b"b", b"p\x00")
    span = requests.Batch(requests.Header(RangeId(7)), [requests.GcSpan(b"b", b"q")])
    assert declare.bounds(span) == Span(b"b", b"q")
