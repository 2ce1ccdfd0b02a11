r"""Tuples as byte strings that sort like the tuples.

    element = tag payload                  descending: every byte of the element complemented

    tag 0x05   NULL, sorting first         tag 0xf5   NULL, sorting last
    tag 0x10   bool        0 | 1
    tag 0x20   int         8 bytes big-endian, sign bit flipped (all integer widths: widening a column keeps its keys)
    tag 0x28   float       8 bytes: IEEE bits, all flipped when negative, else the sign bit flipped
    tag 0x30   decimal     class (01 neg, 02 zero, 03 pos) exponent:4 (digit-pair + 1)… 00  [complemented when negative]
    tag 0x40   string      UTF-8, 00 → 00 ff, ended by 00 01
    tag 0x48   bytes       likewise
    tag 0x50   date        4 bytes, sign flipped
    tag 0x58   timestamp   8 bytes, sign flipped          tag 0x5a   timestamptz likewise
    tag 0x60   uuid        16 bytes

Rules
    order        encode(a) < encode(b) exactly when a < b; equal values have equal keys: -0.0 is 0.0, 1.0 is 1.00,
                 every NaN is one NaN, above all numbers, as in PostgreSQL. Strings sort by their UTF-8 bytes.
    prefix-free  an element's end follows from its own bytes, so no element is a prefix of another, and neither is
                 a tuple of one shape of another of that shape. Complementing bytes keeps this and turns the order
                 around: that is all descending takes, and it moves NULL to the other end, as SQL wants.
    canonical    decode accepts only what encode could have written; everything else is a DecodeError.

Decoding needs the types, which the index's schema gives. `keys_arrow.py` does whole columns at once.
"""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from slackwater.errors import DecodeError, UsageError
from slackwater.model.kinds import INTEGERS, ColumnKind, ColumnType
from slackwater.model.values import loader, logical, storer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NULL_FIRST = 0x05
NULL_LAST = 0xF5
TAGS = {
    ColumnKind.BOOL: 0x10,
    ColumnKind.INT2: 0x20,
    ColumnKind.INT4: 0x20,
    ColumnKind.INT: 0x20,
    ColumnKind.FLOAT: 0x28,
    ColumnKind.DECIMAL: 0x30,
    ColumnKind.STRING: 0x40,
    ColumnKind.BYTES: 0x48,
    ColumnKind.DATE: 0x50,
    ColumnKind.TIMESTAMP: 0x58,
    ColumnKind.TIMESTAMPTZ: 0x5A,
    ColumnKind.UUID: 0x60,
}
WIDTHS = {
    ColumnKind.BOOL: 1,
    ColumnKind.INT2: 8,
    ColumnKind.INT4: 8,
    ColumnKind.INT: 8,
    ColumnKind.FLOAT: 8,
    ColumnKind.DATE: 4,
    ColumnKind.TIMESTAMP: 8,
    ColumnKind.TIMESTAMPTZ: 8,
    ColumnKind.UUID: 16,
}
"""Payload bytes of the kinds whose payload never varies."""
TERMINATOR = b"\x00\x01"
EXPONENT_LIMIT = 1 << 30
DECIMAL_DIGITS_MAX = 10_000

_COMPLEMENT = bytes(255 - i for i in range(256))
_SIGN = 1 << 63
_MASK = (1 << 64) - 1
_NEGATIVE, _ZERO, _POSITIVE = 1, 2, 3


class KeyType(msgspec.Struct, frozen=True):
    """How one element of a key is encoded."""

    kind: ColumnKind
    descending: bool = False
    nulls_last: bool = False

    def __post_init__(self) -> None:
        if self.kind not in TAGS:
            raise UsageError(f"{self.kind.value} has no order and cannot be in a key")

    @property
    def null(self) -> int:
        """The tag of NULL, before any complement."""
        return NULL_LAST if self.nulls_last else NULL_FIRST


def encode_key(values: Sequence[object], types: Sequence[KeyType]) -> bytes:
    """The key of a tuple; also of a prefix of one (fewer values than types), to seek with."""
    if len(values) > len(types):
        raise UsageError("more values than key columns", values=len(values), columns=len(types))
    return b"".join(map(encode_element, values, types))


def encode_element(value: object, key_type: KeyType) -> bytes:
    """One element with its tag."""
    return element_encoder(key_type)(value)


def element_encoder(key_type: KeyType) -> Callable[[object], bytes]:
    """`encode_element` for one type: the question of the type is asked once, not for every key."""
    kind, payload = key_type.kind, _payload_encoder(key_type.kind)
    if kind is ColumnKind.DECIMAL:
        return _tagged(key_type, payload)
    store = storer(ColumnType(ColumnKind.INT if kind in INTEGERS else kind))
    return _tagged(key_type, lambda value: payload(store(value)))


def stored_encoder(key_type: KeyType, column: ColumnType) -> Callable[[Any], bytes]:
    """`element_encoder` for the stored forms of one column's values, as `model.values.physical` makes them."""
    payload = _payload_encoder(key_type.kind)
    if key_type.kind is not ColumnKind.DECIMAL:
        return _tagged(key_type, payload)
    load = loader(column)
    return _tagged(key_type, lambda stored: payload(load(stored)))


def _tagged(key_type: KeyType, payload: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Elements of one type, NULL among them, from what `payload` makes of a value."""
    tag, null = bytes([TAGS[key_type.kind]]), bytes([key_type.null])
    if not key_type.descending:
        return lambda value: null if value is None else tag + payload(value)
    null = null.translate(_COMPLEMENT)
    return lambda value: null if value is None else (tag + payload(value)).translate(_COMPLEMENT)


def decode_key(data: bytes, types: Sequence[KeyType], *, offset: int = 0) -> tuple[Any, ...]:
    """The tuple that a key holds; the key must end where the last element does."""
    values = []
    for key_type in types:
        value, offset = decode_element(data, offset, key_type)
        values.append(value)
    if offset != len(data):
        raise DecodeError("bytes after the end of a key", offset=offset, size=len(data))
    return tuple(values)


def decode_element(data: bytes, offset: int, key_type: KeyType) -> tuple[Any, int]:
    """(value, offset behind it) of the element at `offset`."""
    if key_type.descending:
        value, size = decode_element(
            data[offset:].translate(_COMPLEMENT), 0, KeyType(key_type.kind, nulls_last=key_type.nulls_last)
        )
        return value, offset + size
    if offset >= len(data):
        raise DecodeError("a key ends before its last element", size=len(data))
    tag, kind = data[offset], key_type.kind
    if tag == key_type.null:
        return None, offset + 1
    if tag != TAGS[kind]:
        raise DecodeError(f"expected a key element of type {kind.value}", tag=tag, offset=offset)
    if kind is ColumnKind.DECIMAL:
        return _decode_decimal(data, offset + 1)
    if kind in WIDTHS:
        end = offset + 1 + WIDTHS[kind]
        if end > len(data):
            raise DecodeError(f"a key ends inside a {kind.value}", size=len(data))
        return _decode_fixed(data[offset + 1 : end], kind), end
    raw, end = unescape(data, offset + 1)
    return logical(ColumnType(kind), raw), end


def escape(raw: bytes) -> bytes:
    """Bytes that sort like `raw`, end by themselves, and are a prefix of no other such bytes."""
    return raw.replace(b"\x00", b"\x00\xff") + TERMINATOR


def unescape(data: bytes, offset: int) -> tuple[bytes, int]:
    """(raw bytes, offset behind the terminator)."""
    at = offset
    while True:
        at = data.find(b"\x00", at)
        if at < 0 or at + 1 >= len(data):
            raise DecodeError("a key ends inside a string", size=len(data))
        if data[at + 1] == 0x01:
            return data[offset:at].replace(b"\x00\xff", b"\x00"), at + 2
        if data[at + 1] != 0xFF:
            raise DecodeError("broken escape in a key", offset=at)
        at += 2


def _payload_encoder(kind: ColumnKind) -> Callable[[Any], bytes]:
    """The payload of a stored form; of a decimal, whose column's scale is no part of a key, of its value."""
    if kind is ColumnKind.DECIMAL:
        return _encode_decimal
    if kind is ColumnKind.FLOAT:
        return _encode_float
    if kind is ColumnKind.UUID:
        return bytes
    if kind not in WIDTHS:
        return escape
    if kind is ColumnKind.BOOL:
        return lambda stored: bytes([stored])
    width = WIDTHS[kind]
    bias = 1 << 8 * width - 1
    return lambda stored: (stored + bias).to_bytes(width, "big")


def _decode_fixed(raw: bytes, kind: ColumnKind) -> Any:
    if kind is ColumnKind.UUID:
        return raw
    if kind is ColumnKind.FLOAT:
        return _decode_float(raw)
    stored = int.from_bytes(raw, "big")
    if kind is not ColumnKind.BOOL:
        stored -= 1 << 8 * len(raw) - 1
    return stored if kind in INTEGERS else logical(ColumnType(kind), stored)


def _encode_float(value: float) -> bytes:
    value = math.nan if math.isnan(value) else value + 0.0  # one NaN, and -0.0 + 0.0 is 0.0
    (bits,) = struct.unpack(">Q", struct.pack(">d", abs(value) if math.isnan(value) else value))
    return int(bits ^ _MASK if bits & _SIGN else bits ^ _SIGN).to_bytes(8, "big")


def _decode_float(raw: bytes) -> float:
    bits = int.from_bytes(raw, "big")
    value: float = struct.unpack(">d", (bits ^ _SIGN if bits & _SIGN else bits ^ _MASK).to_bytes(8, "big"))[0]
    if _encode_float(value) != raw:
        raise DecodeError("a float in a key is not canonical", bits=bits)
    return value


def _encode_decimal(value: object) -> bytes:
    if isinstance(value, bool) or not isinstance(value, Decimal | int):
        raise UsageError("a decimal key takes decimal.Decimal or int", got=type(value).__name__)
    number = Decimal(value)
    if not number.is_finite():
        raise UsageError("NaN and infinity have no place in a decimal key", value=str(value))
    if not number:
        return bytes([_ZERO])
    sign, digits, _ = number.as_tuple()
    exponent = number.adjusted() + 1  # the value is 0.DIGITS * 10**exponent
    text = "".join(map(str, digits)).rstrip("0")
    if abs(exponent) >= EXPONENT_LIMIT or len(text) > DECIMAL_DIGITS_MAX:
        raise UsageError("decimal has too many digits for a key", digits=len(text), exponent=exponent)
    text += "0" * (len(text) % 2)
    body = (
        (exponent + (1 << 31)).to_bytes(4, "big")
        + bytes(int(text[i : i + 2]) + 1 for i in range(0, len(text), 2))
        + b"\x00"
    )
    if sign:
        return bytes([_NEGATIVE]) + body.translate(_COMPLEMENT)
    return bytes([_POSITIVE]) + body


def _decode_decimal(data: bytes, offset: int) -> tuple[Decimal, int]:
    sign_class = data[offset] if offset < len(data) else 0
    if sign_class == _ZERO:
        return Decimal(0), offset + 1
    if sign_class not in (_NEGATIVE, _POSITIVE):
        raise DecodeError("broken decimal in a key", offset=offset)
    negative = sign_class == _NEGATIVE
    digits_at = offset + 5
    end = data.find(b"\xff" if negative else b"\x00", digits_at)
    if end <= digits_at or end - digits_at > DECIMAL_DIGITS_MAX // 2:
        raise DecodeError("a decimal in a key has no digits or no end", offset=offset)
    body = data[offset + 1 : end].translate(_COMPLEMENT) if negative else data[offset + 1 : end]
    exponent = int.from_bytes(body[:4], "big") - (1 << 31)
    pairs = body[4:]
    if max(pairs) > 100 or pairs[0] < 11 or pairs[-1] == 1 or abs(exponent) >= EXPONENT_LIMIT:
        raise DecodeError("a decimal in a key is not canonical", offset=offset)
    text = "".join(f"{p - 1:02d}" for p in pairs).rstrip("0")
    digits = tuple(map(int, text))
    return Decimal((int(negative), digits, exponent - len(digits))), end + 1
