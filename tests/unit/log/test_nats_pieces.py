"""The parts of the NATS log that need no server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("nats")

from slackwater.errors import AppendUnknown, EntryTooLarge, LogError, ProtocolError, UsageError
from slackwater.log import blocks
from slackwater.log import nats_wire as wire
from slackwater.log.nats_checks import stream_problems
from slackwater.log.nats_publish import _acknowledged, split
from slackwater.model.ids import RangeId


def test_positions_follow_the_stream_and_the_place_in_the_block():
    entries = wire.entries(17, blocks.encode([b"a", b"b"]))
    assert entries == [(17 << 10, b"a"), (17 << 10 | 1, b"b")]
    assert wire.last_position(17, blocks.encode([b"a", b"b"])) == entries[-1].position
    assert wire.sequence_of(entries[-1].position) == 17
    assert wire.position(17, wire.PAYLOADS_PER_MESSAGE_MAX - 1) < wire.position(18, 0)
    with pytest.raises(LogError, match="damaged"):
        wire.entries(17, b"not a block, but long enough for a header")


@pytest.mark.parametrize(("sequence", "count"), [(17, 0), (17, wire.PAYLOADS_PER_MESSAGE_MAX + 1), (0, 1)])
def test_a_message_whose_entries_have_no_positions_is_damage_and_no_assertion(sequence, count):
    header = bytearray(blocks.encode([b""] * (count or 1)))
    header[4:8] = count.to_bytes(4, "little")
    for read in (wire.entries, wire.last_position):
        with pytest.raises(LogError, match="damaged"):
            read(sequence, bytes(header))


def test_subjects():
    assert wire.range_of("orders", wire.entry_subject("orders", RangeId(12))) == 12
    assert wire.range_of("orders", wire.trim_subject("orders", RangeId(12))) is None
    assert wire.range_of("orders", "other.e.12") is None
    assert wire.range_of("orders", "orders.e.x") is None


@pytest.mark.parametrize("name", ["", "a.b", "a b", "a*", "a>", "ä", "a/b", "a\n"])
def test_bad_stream_names(name):
    with pytest.raises(UsageError):
        wire.check_stream_name(name)


def test_reply_subjects():
    assert wire.delivered("$JS.ACK.s.c.1.17.3.1700000000.0") == (17, 3)
    assert wire.delivered("$JS.ACK.hub.acc.s.c.1.17.3.1700000000.0.x") == (17, 3)
    for reply in ("", "$JS.ACK.s.c", "$JS.ACK.s.c.1.x.3.1700000000.0"):
        with pytest.raises(ProtocolError):
            wire.delivered(reply)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=3000))
def test_split_keeps_everything_in_order_and_in_bounds(sizes):
    payloads = [b"x" * size for size in sizes]
    parts = split(payloads, 300)
    assert [payload for part in parts for payload in part] == payloads
    for part in parts:
        assert 1 <= len(part) <= wire.PAYLOADS_PER_MESSAGE_MAX
        assert len(part) == 1 or sum(len(p) + 4 for p in part) <= 300 + 4


def test_what_an_answer_means():
    assert _acknowledged(b'{"stream":"s","seq":17}') == 17
    assert _acknowledged(b'{"stream":"s","seq":17,"duplicate":true}') == 17
    with pytest.raises(EntryTooLarge):
        _acknowledged(b'{"error":{"code":400,"err_code":10054,"description":"message size exceeds maximum allowed"}}')
    for answer in (b"", b"[]", b"{}", b'{"error":{"err_code":10077}}', b'{"stream":"s","seq":0,"duplicate":true}'):
        with pytest.raises(AppendUnknown):
            _acknowledged(answer)


def test_guarded_writes():
    assert wire.stored(b'{"seq":3}', conflicts=(10071,))
    assert not wire.stored(b'{"error":{"err_code":10071}}', conflicts=(10071,))
    with pytest.raises(LogError):
        wire.stored(b'{"error":{"err_code":1}}', conflicts=(10071,))
    with pytest.raises(ProtocolError):
        wire.stored(b"?", conflicts=())


def test_our_own_configuration_has_no_problems_and_every_lossy_change_has_one():
    good = wire.stream_config("s", replicas=3, incarnation="x")
    assert stream_problems(good, replicas=3) == []
    assert stream_problems({**good, "max_bytes": 1 << 30}, replicas=3) == []  # full means refused, not forgotten
    for change in (
        {"storage": "memory"},
        {"num_replicas": 1},
        {"retention": "workqueue"},
        {"max_age": 1},
        {"no_ack": True},
        {"max_msgs_per_subject": 1},
        {"max_msgs": 1, "discard": "old"},
        {"mirror": {"name": "x"}},
        {"sources": [{"name": "x"}]},
        {"subject_transform": {"src": ">", "dest": ">"}},
        {"persist_mode": "async"},
        {"sealed": True},
    ):
        assert len(stream_problems({**good, **change}, replicas=3)) == 1, change
