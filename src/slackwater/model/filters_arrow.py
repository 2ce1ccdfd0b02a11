"""Predicates on whole columns.

A predicate is bound once to its column: the literal is brought to the column's own type by exact arithmetic, which may
change the operator (`x < 2.5` on integers is `x < 3`) or settle the answer for all rows (`x = 2.5` is never true).
Binding raises `UsageError` for a literal that cannot be compared with the column. Applying gives one boolean per row,
false where the column is NULL.
"""

from __future__ import annotations

import math
import operator
import sys
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pac

from slackwater.errors import UsageError
from slackwater.model.arrow import arrow_type
from slackwater.model.keys_arrow import fixed_values, sortable_floats
from slackwater.model.kinds import INTEGERS, Kind
from slackwater.model.predicates import Op, literals
from slackwater.model.values import logical, physical

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slackwater.model.kinds import ColumnType
    from slackwater.model.predicates import Predicate
    from slackwater.model.schema import Column

    Mask = np.ndarray[Any, Any]
    Bound = Callable[[Any], Mask]

pc: Any = pac
_KERNELS = {
    Op.EQ: "equal",
    Op.NE: "not_equal",
    Op.LT: "less",
    Op.LE: "less_equal",
    Op.GT: "greater",
    Op.GE: "greater_equal",
}
_OPERATORS: dict[Op, Any] = {
    Op.EQ: operator.eq,
    Op.NE: operator.ne,
    Op.LT: operator.lt,
    Op.LE: operator.le,
    Op.GT: operator.gt,
    Op.GE: operator.ge,
}


def bind(predicate: Predicate, column: Column) -> Bound:
    """A function from the column's Arrow array to the rows that satisfy the predicate."""
    op, ctype = predicate.op, column.type
    if op is Op.IS_NULL:
        return lambda array: np.asarray(array.is_null())
    if op is Op.IS_NOT_NULL:
        return lambda array: np.asarray(array.is_valid())
    try:
        if op is Op.IN:
            return _bind_in(ctype, literals(predicate))
        if predicate.literal is None:
            return _never
        return _bind_one(ctype, op, predicate.literal)
    except UsageError as error:
        raise UsageError(f"predicate on column {column.name}: {error}") from None


def _bind_one(ctype: ColumnType, op: Op, literal: object) -> Bound:
    if ctype.kind in INTEGERS or ctype.kind is Kind.DECIMAL:
        return _bind_exact(ctype, op, literal)
    if ctype.kind is Kind.FLOAT:
        return _bind_float(op, literal)
    return _kernel(ctype, op, logical(ctype, physical(ctype, literal)))


def _kernel(ctype: ColumnType, op: Op, literal: object) -> Bound:
    compare = getattr(pc, _KERNELS[op])
    scalar = pa.scalar(literal, arrow_type(ctype))
    return lambda array: _mask(compare(array, scalar))


def _mask(found: Any) -> Mask:
    filled = found.fill_null(False) if found.null_count else found  # noqa: FBT003 - Arrow's signature
    return np.asarray(filled.to_numpy(zero_copy_only=False), dtype=bool)


def _never(array: Any) -> Mask:
    return np.zeros(len(array), dtype=bool)


def _unless_null(array: Any) -> Mask:
    return np.asarray(array.is_valid())


def _bind_in(ctype: ColumnType, values: Sequence[object]) -> Bound:
    """One pass over the column however long the list is; literals that no value can equal are left out."""
    if ctype.kind is Kind.FLOAT:
        wanted = sortable_floats(np.array([f for v in values if (f := _as_float(v)) is not None], dtype=np.float64))
        return lambda array: np.isin(sortable_floats(fixed_values(array, "<f8")), wanted) & _unless_null(array)
    if ctype.kind in INTEGERS or ctype.kind is Kind.DECIMAL:
        low, high = _limits(ctype)
        scaled = [n * 10**ctype.scale for v in values if isinstance(n := _number(v), Fraction)]
        stored: list[Any] = [int(n) for n in scaled if n.denominator == 1 and low <= n <= high]
    else:
        stored = [physical(ctype, v) for v in values]
    chosen = pa.array([logical(ctype, s) for s in stored], arrow_type(ctype))
    return lambda array: _mask(pc.is_in(array, value_set=chosen))


def _as_float(literal: object) -> float | None:
    """The double that equals the literal, if there is one."""
    number = _number(literal)
    if isinstance(number, float):
        return number
    try:
        nearest = float(number)
    except OverflowError:
        return None
    return nearest if Fraction(nearest) == number else None


def _limits(ctype: ColumnType) -> tuple[int, int]:
    """The lowest and highest stored integer of an integer or decimal type."""
    if ctype.kind is Kind.DECIMAL:
        return 1 - 10**ctype.precision, 10**ctype.precision - 1
    half = 1 << INTEGERS[ctype.kind] - 1
    return -half, half - 1


def _number(literal: object) -> Fraction | float:
    """An exact fraction, or an infinity or NaN."""
    if isinstance(literal, bool) or not isinstance(literal, int | float | Decimal):
        raise UsageError("compare a numeric column with a number", got=type(literal).__name__)
    if isinstance(literal, float | Decimal) and not math.isfinite(literal):
        return float(literal)
    return Fraction(literal)


def _bind_exact(ctype: ColumnType, op: Op, literal: object) -> Bound:
    """Integers and decimals: compare unscaled integers."""
    number = _number(literal)
    if isinstance(number, float):  # NaN is above everything, as infinity is
        satisfied = (Op.GT, Op.GE, Op.NE) if number < 0 else (Op.LT, Op.LE, Op.NE)
        return _unless_null if op in satisfied else _never
    scaled = number * 10**ctype.scale
    low, high = math.floor(scaled), math.ceil(scaled)
    if low != high and op in (Op.EQ, Op.NE):
        return _never if op is Op.EQ else _unless_null
    bound = high if op in (Op.LT, Op.GE) else low
    lowest, highest = _limits(ctype)
    if not lowest <= bound <= highest:  # every value lies on one side of the literal
        return _unless_null if _OPERATORS[op](0, bound) else _never
    return _kernel(ctype, op, logical(ctype, bound))


def _bind_float(op: Op, literal: object) -> Bound:
    exact = _as_float(literal)
    if exact is not None:
        return _float_kernel(op, exact)
    if op in (Op.EQ, Op.NE):
        return _never if op is Op.EQ else _unless_null
    return _float_kernel(Op.LE if op in (Op.LT, Op.LE) else Op.GT, _double_below(Fraction(_number(literal))))


def _double_below(number: Fraction) -> float:
    """The largest double below a number that no double equals."""
    try:
        nearest = float(number)
    except OverflowError:
        return sys.float_info.max if number > 0 else -math.inf
    return nearest if Fraction(nearest) < number else math.nextafter(nearest, -math.inf)


def _float_kernel(op: Op, literal: float) -> Bound:
    bound = sortable_floats(np.array([literal], dtype=np.float64))[0]
    compare = _OPERATORS[op]

    def mask(array: Any) -> Mask:
        found: Mask = compare(sortable_floats(fixed_values(array, "<f8")), bound)
        return found & np.asarray(array.is_valid()) if array.null_count else found

    return mask
