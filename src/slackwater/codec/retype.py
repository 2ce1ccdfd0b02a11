"""A value written under one column type, read under another.

    int2 → int4 → int          always
    int* → decimal(p,s)        when the value fits
    int* → float               up to 2^53, where every integer is a double
    int* → string              decimal digits
    decimal(p,s) → wider       more digits on either side, never fewer
    date → timestamp           midnight
    json → string              the text

Everything here loses nothing. A pair that is not listed, or a value that does not fit, is a `DecodeError` on the row
that shows it: the table must be rewritten by a schema change, not guessed at by a reader. `retype_arrow.py` does whole
columns and is tested against this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.errors import DecodeError
from slackwater.model.kinds import INTEGERS, ColumnKind, ColumnType
from slackwater.model.schema import can_retype
from slackwater.model.values import FLOAT_EXACT_INT_MAX

if TYPE_CHECKING:
    from slackwater.model.values import Physical

DAY_US = 86_400_000_000


def widen(stored: Physical, *, old: ColumnType, new: ColumnType) -> Physical:
    """The stored form under `new` of a stored form under `old`."""
    check_retype(old=old, new=new)
    if isinstance(stored, int):
        return _widen_int(stored, old=old, new=new)
    return stored


def check_retype(*, old: ColumnType, new: ColumnType) -> None:
    """Refuse a pair of types between which values could be lost."""
    if not can_retype(old, new):
        raise DecodeError(f"{old} cannot be read as {new} without loss; rewrite the column with a schema change")


def _widen_int(stored: int, *, old: ColumnType, new: ColumnType) -> Physical:
    if new.kind is ColumnKind.FLOAT:
        if abs(stored) > FLOAT_EXACT_INT_MAX:
            raise unfit(new, stored)
        return float(stored)
    if new.kind is ColumnKind.DECIMAL:
        widened: int = stored * 10 ** (new.scale - old.scale)
        if abs(widened) >= 10**new.precision:
            raise unfit(new, stored)
        return widened
    if new.kind is ColumnKind.STRING and old.kind in INTEGERS:
        return str(stored).encode()
    if new.kind is ColumnKind.TIMESTAMP and old.kind is ColumnKind.DATE:
        return stored * DAY_US
    return stored


def unfit(new: ColumnType, value: object) -> DecodeError:
    """The error for a value that the new type cannot hold."""
    return DecodeError(f"a stored value does not fit the column's new type {new}; rewrite the column", value=value)
