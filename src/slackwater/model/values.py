"""Python values and their physical form: the one place that says what a column accepts.

    Python value ──physical()──► int | float | bytes ──► keys.py, rows.py
                 ◄──logical()───                     ◄──

The physical form is what both codecs write: an integer for integers, booleans, dates (days), timestamps (µs) and
decimals (unscaled); a float for floats; bytes for text, bytes and uuid. `physical` raises `UsageError` on what a caller
got wrong; `logical` raises `DecodeError` on what stored bytes got wrong. Nothing is rounded or truncated on the way: a
value that does not fit is refused, because a store that changes values silently cannot be verified.
"""

from __future__ import annotations

import binascii
import datetime as dt
import re
from decimal import Context, Decimal, InvalidOperation
from typing import Any

from slackwater.errors import DecodeError, UsageError
from slackwater.model.kinds import DECIMAL_PRECISION_MAX, INSTANTS, INTEGERS, TEXTS, ColumnType, Kind

Physical = int | float | bytes

_MICROSECOND = dt.timedelta(microseconds=1)
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

DAY_MIN = dt.date.min.toordinal() - _EPOCH_DAY
DAY_MAX = dt.date.max.toordinal() - _EPOCH_DAY
INSTANT_US_MIN = (dt.datetime.min - _EPOCH) // _MICROSECOND
INSTANT_US_MAX = (dt.datetime.max - _EPOCH) // _MICROSECOND
FLOAT_EXACT_INT_MAX = 1 << 53
"""Every integer up to this magnitude is a double."""

_UUID_HEX = re.compile(r"[0-9a-fA-F]{32}")
# One digit more than any decimal column holds: to build a Decimal from its unscaled integer is then exact.
_EXACT = Context(prec=DECIMAL_PRECISION_MAX + 1)


def physical(ctype: ColumnType, value: object) -> Physical:
    """The stored form of a Python value, which must not be None."""
    kind = ctype.kind
    if kind in INTEGERS:
        return _integer(value, bits=INTEGERS[kind])
    if kind is Kind.BOOL:
        if not isinstance(value, bool):
            raise _mismatch(ctype, value)
        return int(value)
    if kind is Kind.FLOAT:
        return _float(value)
    if kind is Kind.DECIMAL:
        return unscaled(value, precision=ctype.precision, scale=ctype.scale)
    return _other(ctype, value)


def _other(ctype: ColumnType, value: object) -> Physical:
    kind = ctype.kind
    if kind in TEXTS and isinstance(value, str):
        return text_bytes(value)
    if kind is Kind.BYTES and isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if kind is Kind.DATE and isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return value.toordinal() - _EPOCH_DAY
    if kind in INSTANTS and isinstance(value, dt.datetime):
        return instant_us(value, aware=kind is Kind.TIMESTAMPTZ)
    if kind is Kind.UUID:
        return uuid_bytes(value)
    raise _mismatch(ctype, value)


def logical(ctype: ColumnType, stored: Any) -> Any:
    """The Python value of a stored form; `DecodeError` when no such value exists."""
    kind = ctype.kind
    if kind in TEXTS:
        try:
            return stored.decode()
        except UnicodeDecodeError:
            raise DecodeError("text is not valid UTF-8") from None
    if kind is Kind.DATE:
        if not DAY_MIN <= stored <= DAY_MAX:
            raise DecodeError("date is outside the years 1 to 9999", days=stored)
        return dt.date.fromordinal(stored + _EPOCH_DAY)
    if kind in INSTANTS:
        if not INSTANT_US_MIN <= stored <= INSTANT_US_MAX:
            raise DecodeError("timestamp is outside the years 1 to 9999", microseconds=stored)
        return (_EPOCH_UTC if kind is Kind.TIMESTAMPTZ else _EPOCH) + dt.timedelta(microseconds=stored)
    if kind is Kind.BOOL:
        if stored not in (0, 1):
            raise DecodeError("a boolean is 0 or 1", stored=stored)
        return bool(stored)
    if kind is Kind.DECIMAL:
        if abs(stored) >= 10**ctype.precision:
            raise DecodeError(f"value does not fit {ctype}", unscaled=stored)
        return Decimal(stored).scaleb(-ctype.scale, _EXACT)
    return stored


def unscaled(value: object, *, precision: int, scale: int) -> int:
    """The integer `value * 10**scale`, exactly; refuses what does not fit."""
    if isinstance(value, bool) or not isinstance(value, Decimal | int):
        raise UsageError(f"decimal({precision},{scale}) takes decimal.Decimal or int", got=type(value).__name__)
    number = Decimal(value)
    if not number.is_finite() or (number and number.adjusted() >= precision - scale):
        raise UsageError(f"value does not fit decimal({precision},{scale}); widen the column", value=str(value)[:80])
    sign, digits, exponent = number.as_tuple()
    magnitude = int("".join(map(str, digits)) or "0")
    shift = int(exponent) + scale
    if shift >= 0 or not magnitude:
        whole, rest = magnitude * 10 ** max(0, shift) if magnitude else 0, 0
    else:
        whole, rest = divmod(magnitude, 10 ** min(-shift, len(digits) + 1))
    if rest:
        raise UsageError(
            f"value has more than {scale} digits after the point; round it to decimal({precision},{scale})",
            value=str(value)[:80],
        )
    return -whole if sign else whole


def text_bytes(value: str) -> bytes:
    """UTF-8; refuses lone surrogates, which have none."""
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise UsageError("text holds a lone surrogate, which has no UTF-8 form; clean it first") from None


def instant_us(value: dt.datetime, *, aware: bool) -> int:
    """Microseconds since 1970; `timestamptz` takes aware datetimes, `timestamp` naive ones."""
    if (value.tzinfo is not None) != aware:
        need = "one with a time zone" if aware else "one without a time zone"
        raise UsageError(f"{'timestamptz' if aware else 'timestamp'} takes a datetime, {need}", value=str(value))
    us = (value - (_EPOCH_UTC if aware else _EPOCH)) // _MICROSECOND
    if not INSTANT_US_MIN <= us <= INSTANT_US_MAX:  # an offset can push an aware datetime outside when told in UTC
        raise UsageError("timestamp is outside the years 1 to 9999 in UTC", value=str(value))
    return us


def uuid_bytes(value: object) -> bytes:
    """16 bytes, from themselves, from a `uuid.UUID`, or from its text."""
    raw = getattr(value, "bytes", value)
    if isinstance(raw, bytes) and len(raw) == 16:
        return raw
    if isinstance(raw, str) and _UUID_HEX.fullmatch(raw.replace("-", "")):
        return binascii.unhexlify(raw.replace("-", ""))
    raise UsageError("uuid takes 16 bytes, a uuid.UUID or 32 hexadecimal digits", got=repr(value)[:80])


def parse_default(ctype: ColumnType, value: object) -> object:
    """A default that went through a text or msgpack message and back, as the Python value it was."""
    if not isinstance(value, str) or ctype.kind in TEXTS:
        return value
    try:
        if ctype.kind is Kind.UUID:
            return binascii.a2b_base64(value) if len(value) == 24 else uuid_bytes(value)
        if ctype.kind is Kind.DECIMAL:
            return Decimal(value)
        if ctype.kind is Kind.DATE:
            return dt.date.fromisoformat(value)
        if ctype.kind in INSTANTS:
            return dt.datetime.fromisoformat(value)
        if ctype.kind is Kind.BYTES:
            return binascii.a2b_base64(value)
    except (ValueError, InvalidOperation, binascii.Error):
        pass
    raise UsageError(f"cannot read the default {value!r} as {ctype}")


def _integer(value: object, *, bits: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"a {bits}-bit integer column takes int", got=type(value).__name__)
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise UsageError(f"value does not fit {bits} bits; use a wider type", value=value)
    return value


def _float(value: object) -> float:
    if isinstance(value, float):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= FLOAT_EXACT_INT_MAX:
        return float(value)
    raise UsageError("float takes a float, or an int up to 2^53", got=repr(value)[:80])


def _mismatch(ctype: ColumnType, value: object) -> UsageError:
    return UsageError(f"a {ctype} column does not take {type(value).__name__}", value=repr(value)[:80])
