import datetime as dt
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from slackwater.codec.keys import KeyType, decode_key, encode_key
from slackwater.codec.keys_arrow import encode_keys
from slackwater.errors import DecodeError, UsageError
from slackwater.model.kinds import ColumnKind

INT, STRING, DECIMAL, FLOAT = (
    KeyType(k) for k in (ColumnKind.INT, ColumnKind.STRING, ColumnKind.DECIMAL, ColumnKind.FLOAT)
)


@pytest.mark.parametrize(
    ("value", "key_type", "expected"),
    [
        (1, INT, "20 80 00 00 00 00 00 00 01"),
        (-1, INT, "20 7f ff ff ff ff ff ff ff"),
        (1, KeyType(ColumnKind.INT, descending=True), "df 7f ff ff ff ff ff ff fe"),
        (None, INT, "05"),
        (None, KeyType(ColumnKind.INT, nulls_last=True), "f5"),
        (None, KeyType(ColumnKind.INT, descending=True), "fa"),
        (True, KeyType(ColumnKind.BOOL), "10 01"),
        ("a\0b", STRING, "40 61 00 ff 62 00 01"),
        (b"", KeyType(ColumnKind.BYTES), "48 00 01"),
        (-0.0, FLOAT, "28 80 00 00 00 00 00 00 00"),
        (math.nan, FLOAT, "28 ff f8 00 00 00 00 00 00"),
        (-math.nan, FLOAT, "28 ff f8 00 00 00 00 00 00"),
        (Decimal(0), DECIMAL, "30 02"),
        (Decimal("123.40"), DECIMAL, "30 03 80 00 00 03 0d 23 00"),
        (Decimal(-1), DECIMAL, "30 01 7f ff ff fe f4 ff"),
        (dt.date(1970, 1, 2), KeyType(ColumnKind.DATE), "50 80 00 00 01"),
    ],
)
def test_the_bytes_are_as_documented(value, key_type, expected):
    assert encode_key([value], [key_type]).hex(" ") == expected


def test_equal_values_have_equal_keys():
    for a, b in [("1.0", "1.00"), ("100", "1E+2"), ("0", "-0.000"), ("0.010", "1E-2")]:
        assert encode_key([Decimal(a)], [DECIMAL]) == encode_key([Decimal(b)], [DECIMAL])


def test_a_prefix_of_a_tuple_is_a_prefix_of_its_key():
    assert encode_key([1, "a"], [INT, STRING]).startswith(encode_key([1], [INT, STRING]))


@pytest.mark.parametrize(
    ("value", "key_type"),
    [
        (True, INT),
        (1 << 63, INT),
        ("1", INT),
        (1.5, DECIMAL),
        (Decimal("Infinity"), DECIMAL),
        (Decimal("1E+9999999999"), DECIMAL),
        (Decimal("1" * 10_001), DECIMAL),
        ("\ud800", STRING),
        (b"x", KeyType(ColumnKind.UUID)),
    ],
)
def test_values_that_have_no_key(value, key_type):
    with pytest.raises(UsageError):
        encode_key([value], [key_type])


def test_json_has_no_order():
    with pytest.raises(UsageError):
        KeyType(ColumnKind.JSON)


@pytest.mark.parametrize(
    ("hexadecimal", "key_type"),
    [
        ("", INT),
        ("40", INT),
        ("20 80", INT),
        ("20 80 00 00 00 00 00 00 01 00", INT),
        ("10 02", KeyType(ColumnKind.BOOL)),
        ("40 61", STRING),
        ("40 61 00", STRING),
        ("40 61 00 02", STRING),
        ("40 ff 00 01", STRING),
        ("28 7f ff ff ff ff ff ff ff", FLOAT),
        ("28 ff f8 00 00 00 00 00 01", FLOAT),
        ("30", DECIMAL),
        ("30 04", DECIMAL),
        ("30 03 80 00 00 01 00", DECIMAL),
        ("30 03 80 00 00 01 01 00", DECIMAL),
        ("30 03 80 00 00 01 02 00", DECIMAL),
        ("30 03 80 00 00 01 66 00", DECIMAL),
        ("30 03 80 00 00 01 0b 01 00", DECIMAL),
        ("50 00 00 00 00", KeyType(ColumnKind.DATE)),
        ("58 00 00 00 00 00 00 00 00", KeyType(ColumnKind.TIMESTAMP)),
        ("60 00", KeyType(ColumnKind.UUID)),
    ],
)
def test_bytes_that_are_no_key(hexadecimal, key_type):
    with pytest.raises(DecodeError):
        decode_key(bytes.fromhex(hexadecimal), [key_type])


def test_vectorised_keys_need_one_array_per_column():
    with pytest.raises(UsageError):
        encode_keys(b"", [INT, INT], [pa.array([1])])
    assert encode_keys(b"p", [INT], [pa.array([], pa.int64())]) == []


def test_vectorized_keys_of_numpy_arrays_and_of_chunks():
    days = np.array(["1970-01-01", "2026-11-15"], dtype="datetime64[D]")
    numbers = np.array([3, -3])
    expected = [
        encode_key([n, d], [INT, KeyType(ColumnKind.DATE)])
        for n, d in zip(numbers.tolist(), days.tolist(), strict=True)
    ]
    assert encode_keys(b"", [INT, KeyType(ColumnKind.DATE)], [numbers, days]) == expected
    assert encode_keys(b"", [INT], [pa.chunked_array([[3], [-3]])]) == encode_keys(b"", [INT], [numbers])
    with pytest.raises(UsageError):
        encode_keys(b"", [INT], [np.array(["x"])])
    with pytest.raises(UsageError):
        encode_keys(b"", [DECIMAL], [np.array([1])])
