"""Whole columns read under another type: the vectorized twin of `retype.py`."""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pac

from slackwater.codec.arrow import arrow_type
from slackwater.codec.keys_arrow import fixed_values
from slackwater.codec.retype import check_retype, unfit
from slackwater.model.kinds import DECIMAL_PRECISION_MAX, INTEGERS, ColumnKind, ColumnType
from slackwater.model.values import FLOAT_EXACT_INT_MAX

pc: Any = pac
INT_DIGITS_MAX = 19
_WIDE = Context(prec=2 * DECIMAL_PRECISION_MAX)


def widen_array(array: Any, *, old: ColumnType, new: ColumnType) -> Any:
    """`array`, of the Arrow type of `old`, as that of `new`; a `DecodeError` when a value does not fit."""
    target = arrow_type(new)
    if array.null_count == len(array):  # NULL is NULL under every type
        return pa.nulls(len(array), target)
    check_retype(old=old, new=new)
    if array.type == target:
        return array
    try:
        if old.kind in INTEGERS and new.kind is ColumnKind.DECIMAL:
            return _ints_to_decimals(array, new)
        if old.kind in INTEGERS and new.kind is ColumnKind.FLOAT:
            values = fixed_values(array.cast(pa.int64()), "<i8")
            # not np.abs: the lowest integer has no positive twin
            if len(values) and (int(values.min()) < -FLOAT_EXACT_INT_MAX or int(values.max()) > FLOAT_EXACT_INT_MAX):
                raise unfit(new, int(values[np.argmax(np.abs(values.astype(np.float64)))]))
        return array.cast(target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise unfit(new, str(error)) from None


def _ints_to_decimals(array: Any, new: ColumnType) -> Any:
    if INT_DIGITS_MAX + new.scale <= DECIMAL_PRECISION_MAX:
        return array.cast(pa.int64()).cast(pa.decimal128(INT_DIGITS_MAX + new.scale, new.scale)).cast(arrow_type(new))
    # More digits than Arrow's own cast can pass through: rare, so value by value.
    shift = Decimal(1).scaleb(-new.scale)
    widened = [None if v is None else Decimal(v).quantize(shift, context=_WIDE) for v in array.to_pylist()]
    return pa.array(widened, arrow_type(new))
