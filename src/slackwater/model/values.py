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
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import partial
from typing import TYPE_CHECKING, Any

from slackwater.errors import DecodeError, UsageError
from slackwater.model.kinds import DECIMAL_PRECISION_MAX, INSTANTS, INTEGERS, TEXTS, ColumnKind, ColumnType

if TYPE_CHECKING:
    from collections.abc import Callable

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
    return storer(ctype)(value)


def logical(ctype: ColumnType, stored: Any) -> Any:
    """The Python value of a stored form; `DecodeError` when no such value exists."""
    try:
        return loader(ctype)(stored)
    except UnicodeDecodeError:
        raise not_utf8() from None


def storer(ctype: ColumnType) -> Callable[[Any], Physical]:
    """`physical` for one type: the question of the type is asked once, not for every value."""
    kind = ctype.kind
    if kind in INTEGERS:
        return _int_storer(INTEGERS[kind])
    if kind is ColumnKind.DECIMAL:
        return _decimal_storer(ctype)
    if kind in INSTANTS:
        return partial(instant_us, aware=kind is ColumnKind.TIMESTAMPTZ)
    if kind in TEXTS:
        return text_bytes
    storers: dict[ColumnKind, Callable[[Any], Physical]] = {
        ColumnKind.BOOL: _store_bool,
        ColumnKind.FLOAT: _store_float,
        ColumnKind.BYTES: _store_bytes,
        ColumnKind.DATE: _store_date,
        ColumnKind.UUID: uuid_bytes,
    }
    return storers[kind]


def loader(ctype: ColumnType) -> Callable[[Any], Any]:
    """`logical` for one type. That of texts is `bytes.decode` itself: its `UnicodeDecodeError` is for the caller to translate."""
    kind = ctype.kind
    if kind is ColumnKind.DECIMAL:
        return _decimal_loader(ctype)
    if kind in INSTANTS:
        return partial(_load_instant, epoch=_EPOCH_UTC if kind is ColumnKind.TIMESTAMPTZ else _EPOCH)
    if kind in TEXTS:
        return bytes.decode
    loaders: dict[ColumnKind, Callable[[Any], Any]] = {ColumnKind.BOOL: _load_bool, ColumnKind.DATE: _load_date}
    return loaders.get(kind, load_as_is)


def _decimal_storer(ctype: ColumnType) -> Callable[[Any], Physical]:
    # quantize refuses a result of more digits than the context has, and the trap refuses to drop any: our very rules.
    exact = Context(prec=ctype.precision, traps=[Inexact, InvalidOperation])
    step = Decimal(1).scaleb(-ctype.scale)

    def store(value: Any) -> int:
        if type(value) is not Decimal:
            if isinstance(value, bool) or not isinstance(value, Decimal | int):
                raise UsageError(f"{ctype} takes decimal.Decimal or int", got=type(value).__name__)
            value = Decimal(value)
        try:
            return int(value.quantize(step, context=exact).scaleb(ctype.scale, _EXACT))
        except Inexact:
            raise UsageError(
                f"value has more than {ctype.scale} digits after the point; round it to {ctype}", value=str(value)[:80]
            ) from None
        except (InvalidOperation, ValueError, OverflowError):  # NaN and infinity are refused here too
            raise UsageError(f"value does not fit {ctype}; widen the column", value=str(value)[:80]) from None

    return store


def _decimal_loader(ctype: ColumnType) -> Callable[[Any], Any]:
    limit = 10**ctype.precision

    def load(stored: int) -> Decimal:
        if not -limit < stored < limit:
            raise DecodeError(f"value does not fit {ctype}", unscaled=stored)
        return Decimal(stored).scaleb(-ctype.scale, _EXACT)

    return load


def _int_storer(bits: int) -> Callable[[Any], Physical]:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def store(value: Any) -> int:
        if type(value) is int and low <= value <= high:
            return value
        if isinstance(value, bool) or not isinstance(value, int):
            raise UsageError(f"a {bits}-bit integer column takes int", got=type(value).__name__)
        if not low <= value <= high:
            raise UsageError(f"value does not fit {bits} bits; use a wider type", value=value)
        return int(value)

    return store


def _store_bool(value: Any) -> int:
    if value is not True and value is not False:
        raise _mismatch("bool", value)
    return int(value)


def _store_float(value: Any) -> float:
    if isinstance(value, float):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= FLOAT_EXACT_INT_MAX:
        return float(value)
    raise UsageError("float takes a float, or an int up to 2^53", got=repr(value)[:80])


def _store_bytes(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise _mismatch("bytes", value)


def _store_date(value: Any) -> int:
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        return value.toordinal() - _EPOCH_DAY
    raise _mismatch("date", value)


def load_as_is(stored: Any) -> Any:
    """The loader of types whose stored form is their value; a decoder that sees it need not call it."""
    return stored


def not_utf8() -> DecodeError:
    """The error for a stored text that is none."""
    return DecodeError("text is not valid UTF-8")


def _load_date(stored: int) -> dt.date:
    if not DAY_MIN <= stored <= DAY_MAX:
        raise DecodeError("date is outside the years 1 to 9999", days=stored)
    return dt.date.fromordinal(stored + _EPOCH_DAY)


def _load_instant(stored: int, *, epoch: dt.datetime) -> dt.datetime:
    if not INSTANT_US_MIN <= stored <= INSTANT_US_MAX:
        raise DecodeError("timestamp is outside the years 1 to 9999", microseconds=stored)
    return epoch + dt.timedelta(microseconds=stored)


def _load_bool(stored: int) -> bool:
    if stored not in (0, 1):
        raise DecodeError("a boolean is 0 or 1", stored=stored)
    return bool(stored)


def text_bytes(value: Any) -> bytes:
    """UTF-8; refuses lone surrogates, which have none."""
    if not isinstance(value, str):
        raise _mismatch("string", value)
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise UsageError("text holds a lone surrogate, which has no UTF-8 form; clean it first") from None


def instant_us(value: Any, *, aware: bool) -> int:
    """Microseconds since 1970; `timestamptz` takes aware datetimes, `timestamp` naive ones."""
    if not isinstance(value, dt.datetime):
        raise _mismatch("timestamptz" if aware else "timestamp", value)
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
        if ctype.kind is ColumnKind.UUID:
            return binascii.a2b_base64(value) if len(value) == 24 else uuid_bytes(value)
        if ctype.kind is ColumnKind.DECIMAL:
            return Decimal(value)
        if ctype.kind is ColumnKind.FLOAT:
            return float(value)
        if ctype.kind is ColumnKind.DATE:
            return dt.date.fromisoformat(value)
        if ctype.kind in INSTANTS:
            return dt.datetime.fromisoformat(value)
        if ctype.kind is ColumnKind.BYTES:
            return binascii.a2b_base64(value)
    except (ValueError, InvalidOperation, binascii.Error):
        pass
    raise UsageError(f"cannot read the default {value!r} as {ctype}")


def _mismatch(kind: str, value: object) -> UsageError:
    return UsageError(f"a {kind} column does not take {type(value).__name__}", value=repr(value)[:80])
