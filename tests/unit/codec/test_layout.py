import pytest

from slackwater.clock import MAX, MIN
from slackwater.codec import layout
from slackwater.errors import DecodeError, UsageError
from slackwater.model.spans import Span


def test_regions_are_in_order_and_apart():
    keys = [
        layout.range_local(1, b"lease"),
        layout.meta(b"\x05abc"),
        layout.system("liveness", b"n1"),
        layout.kv(b"a"),
        layout.table_prefix(1),
    ]
    assert keys == sorted(keys)
    assert len({k[:1] for k in keys}) == len(keys)
    assert all(layout.KEY_MIN <= k < layout.KEY_MAX for k in keys)


def test_table_spans():
    inside = layout.table_prefix(5, 1) + b"\x20\x80"
    assert inside in layout.table_span(5, 1)
    assert inside in layout.table_span(5)
    assert inside not in layout.table_span(5, 2)
    assert inside not in layout.table_span(6)
    assert layout.table_span(5).end == layout.table_span(6).start
    assert layout.split_table_key(inside) == (5, 1, b"\x20\x80")


def test_prefix_end():
    assert layout.prefix_end(b"a") == b"b"
    assert layout.prefix_end(b"a\xff\xff") == b"b"
    assert layout.prefix_end(b"") == layout.KEY_MAX
    with pytest.raises(UsageError):
        layout.prefix_end(b"\xff\xff")


def test_local_state_of_a_key():
    span = Span(b"b", b"d")
    assert layout.anchored(b"b", b"txn") in layout.anchored_span(span)
    assert layout.anchored(b"c\x00\xff", b"") in layout.anchored_span(span)
    assert layout.anchored(b"d", b"") not in layout.anchored_span(span)
    assert layout.anchored(b"a\xff", b"zzz") not in layout.anchored_span(span)


def test_meta_keys_find_the_range_of_a_key():
    ends = [b"\x05", b"\x05\x00\x00", b"\x05a", layout.KEY_MAX]
    metas = sorted(map(layout.meta, ends))
    for key, end in {
        b"\x04": b"\x05",
        b"\x05": b"\x05\x00\x00",
        b"\x05\x00": b"\x05\x00\x00",
        b"\x05a": layout.KEY_MAX,
    }.items():
        first = next(m for m in metas if m in layout.meta_after(key))
        assert first == layout.meta(end)


def test_versions_sort_newest_first():
    key = layout.kv(b"a")
    versions = [layout.versioned(key, ts) for ts in (MAX, 100, 99, MIN)]
    assert versions == sorted(versions)
    assert [layout.split_version(v)[1] for v in versions] == [MAX, 100, 99, MIN]
    for broken in (b"", b"1234567", b"k" + bytes(8)):
        with pytest.raises(DecodeError):
            layout.split_version(broken)


def test_keys_for_people():
    assert layout.show_key(layout.table_span(5).start) == "/table/5"
    assert layout.show_key(layout.table_prefix(5, 1)) == "/table/5/1"
    assert layout.show_key(layout.table_prefix(5, 1) + b"\x20") == "/table/5/1/20"
    assert layout.show_key(layout.KEY_MAX) == "/max"
    assert layout.show_key(b"\x09\x01") == "/0901"
    assert layout.show_key(layout.kv(b"a")).startswith("/kv/")


def test_keys_outside_the_map_are_refused():
    assert layout.check_key(layout.kv(b"")) == b"\x04\x00\x01"
    for key in (b"", b"\x00", layout.KEY_MAX):
        with pytest.raises(UsageError):
            layout.check_key(key)
    for key in (b"", b"\x04", b"\x05\x00"):
        with pytest.raises(DecodeError):
            layout.split_table_key(key)
