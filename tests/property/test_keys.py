import contextlib
import math
from decimal import Decimal
from functools import cmp_to_key

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slackwater.clock import MAX, MIN
from slackwater.codec.arrow import arrow_type
from slackwater.codec.keys import TAGS, KeyType, decode_key, encode_key, escape, unescape
from slackwater.codec.keys_arrow import encode_keys
from slackwater.codec.layout import meta, meta_after, prefix_span, split_version, table_span, tables_between, versioned
from slackwater.errors import DecodeError, UsageError
from slackwater.model.kinds import INTEGERS, ColumnKind, ColumnType, decimal_type
from tests.property.model_strategies import values

wide_decimals = st.decimals(allow_nan=False, allow_infinity=False) | st.decimals("-2", "2", places=3) | st.sampled_from(
    [Decimal("1.0"), Decimal("1.00"), Decimal(100), Decimal("1E+2"), Decimal("-0"), Decimal("0E+9"), Decimal("1E-7")]
)  # fmt: skip


def key_values(kind: ColumnKind):
    return wide_decimals if kind is ColumnKind.DECIMAL else values(ColumnType(kind))


key_types = st.builds(KeyType, st.sampled_from(list(TAGS)), st.booleans(), st.booleans())


@st.composite
def two_tuples(draw):
    types = draw(st.lists(key_types, min_size=1, max_size=3))
    make = st.tuples(*(st.none() | key_values(t.kind) for t in types))
    first, second = draw(make), draw(make)
    shared = draw(st.integers(0, len(types)))  # a common beginning makes the later elements decide
    return types, first, first[:shared] + second[shared:]


def compare_values(a, b, kind):
    if kind is ColumnKind.FLOAT:
        a, b = ((math.isnan(v), 0.0 if math.isnan(v) else v) for v in (a, b))
    elif kind is ColumnKind.STRING:
        a, b = a.encode(), b.encode()
    return (a > b) - (a < b)


def compare(a, b, types):
    """The oracle: element by element, NULL where the type says, descending turned round."""
    for x, y, t in zip(a, b, types, strict=True):
        if x is None or y is None:
            found = (y is None) - (x is None) if not t.nulls_last else (x is None) - (y is None)
        else:
            found = compare_values(x, y, t.kind)
        if found:
            return -found if t.descending else found
    return 0


@settings(max_examples=600)
@given(two_tuples())
def test_bytes_sort_like_the_tuples(case):
    types, a, b = case
    x, y = encode_key(a, types), encode_key(b, types)
    assert (x > y) - (x < y) == compare(a, b, types)
    assert x == y or not (x.startswith(y) or y.startswith(x)), "no key is a prefix of another"


@given(two_tuples(), st.integers(MIN, MAX), st.integers(MIN, MAX))
def test_versions_keep_the_order_of_keys_and_put_the_newest_first(case, t1, t2):
    types, a, b = case
    x, y = encode_key(a, types), encode_key(b, types)
    v, w = versioned(x, t1), versioned(y, t2)
    assert split_version(v) == (x, t1)
    assert (v < w) == ((x, -t1) < (y, -t2))


@given(two_tuples())
def test_decode_gives_back_what_was_encoded(case):
    types, a, _ = case
    decoded = decode_key(encode_key(a, types), types)
    assert compare(a, decoded, types) == 0
    assert encode_key(decoded, types) == encode_key(a, types)


@settings(max_examples=300)
@given(st.lists(key_types, min_size=1, max_size=3), st.binary(max_size=40))
def test_arbitrary_bytes_decode_or_raise_one_error(types, data):
    try:
        decoded = decode_key(data, types)
    except DecodeError:
        return
    assert encode_key(decoded, types) == data, "decode accepts only what encode writes"


@settings(max_examples=300)
@given(two_tuples(), st.data())
def test_damaged_keys_decode_or_raise_one_error(case, data):
    types, a, _ = case
    key = bytearray(encode_key(a, types))
    at = data.draw(st.integers(0, len(key) - 1))
    key[at] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(key)))
    for damaged in (bytes(key), bytes(key[:cut]), bytes(key) + b"\0"):
        with contextlib.suppress(DecodeError):
            assert encode_key(decode_key(damaged, types), types) == damaged


@given(st.lists(st.integers(-(10**9), 10**9).map(lambda n: Decimal(n).scaleb(-(n % 13))), max_size=30))
def test_decimals_sort_by_value(numbers):
    types = [KeyType(ColumnKind.DECIMAL)]
    assert sorted(numbers, key=lambda n: encode_key([n], types)) == sorted(numbers)


@given(st.binary(max_size=20), st.binary(max_size=20))
@example(b"a", b"a\0")
@example(b"a\0", b"a\1")
def test_escaping_keeps_order_and_is_prefix_free(a, b):
    assert (escape(a) < escape(b)) == (a < b)
    assert a == b or not escape(b).startswith(escape(a))
    assert unescape(b"x" + escape(a) + escape(b), 1) == (a, len(escape(a)) + 1)


@given(st.sets(st.binary(min_size=1, max_size=6), min_size=1), st.binary(max_size=6))
def test_the_first_meta_key_after_a_key_is_its_range(ends, key):
    above = [e for e in ends if e > key]
    found = sorted(m for m in map(meta, ends) if m in meta_after(key))
    assert found[:1] == [meta(min(above))] if above else not found


@given(st.binary(max_size=6).filter(lambda p: not p or p.strip(b"\xff")), st.binary(max_size=6))
def test_prefix_spans_hold_exactly_what_starts_so(prefix, key):
    if key < b"\xff":
        assert (key in prefix_span(prefix)) == key.startswith(prefix)


@st.composite
def columns(draw):
    types = draw(st.lists(key_types, min_size=1, max_size=3))
    stored = [decimal_type(20, 5) if t.kind is ColumnKind.DECIMAL else ColumnType(t.kind) for t in types]
    size = draw(st.integers(0, 8))
    nulls = draw(st.booleans())
    lists = [
        draw(st.lists((st.none() | values(c)) if nulls else values(c), min_size=size, max_size=size)) for c in stored
    ]
    return types, stored, lists, draw(st.integers(0, size))


@settings(max_examples=300)
@given(columns(), st.binary(max_size=7))
def test_vectorised_keys_equal_those_made_one_by_one(case, prefix):
    types, stored, lists, skip = case
    arrays = [pa.array(v, arrow_type(c))[skip:] for v, c in zip(lists, stored, strict=True)]
    expected = [prefix + encode_key(row, types) for row in list(zip(*lists, strict=True))[skip:]]
    assert encode_keys(prefix, types, arrays) == expected


@given(st.sampled_from([k for k in TAGS if k in INTEGERS]), values(ColumnType(ColumnKind.INT2)))
def test_integer_widths_share_their_keys(kind, value):
    assert encode_key([value], [KeyType(kind)]) == encode_key([value], [KeyType(ColumnKind.INT)])


def test_sorting_a_mixed_bag():
    types = [KeyType(ColumnKind.FLOAT)]
    floats = [math.nan, math.inf, 1e300, 1.0, 5e-324, 0.0, -0.0, -5e-324, -1.0, -math.inf, None]
    ordered = sorted(floats, key=lambda f: encode_key([f], types))
    oracle = sorted(floats, key=cmp_to_key(lambda a, b: compare([a], [b], types)))
    assert list(map(repr, ordered)) == list(map(repr, oracle))


def test_more_values_than_columns_are_refused():
    with pytest.raises(UsageError):
        encode_key([1, 2], [KeyType(ColumnKind.INT)])


table_ids = st.integers(0, 3) | st.integers(0, (1 << 32) - 1) | st.sampled_from([(1 << 32) - 1, 1 << 24, 255, 256])
bounds = st.binary(max_size=8) | st.builds(lambda t, more: table_span(t).start + more, table_ids, st.binary(max_size=3))


@given(table_ids, bounds, bounds)
def test_a_table_with_keys_in_a_span_is_among_those_between(table_id, one, other):
    start, end = sorted((one, other))
    first, last = tables_between(start, end)
    span = table_span(table_id)
    if max(start, span.start) < min(end, span.end):
        assert first <= table_id <= last
    inside = table_span(100)
    assert tables_between(inside.start + b"\x00\x01", inside.end) == (100, 101), "as few as the bounds name"
