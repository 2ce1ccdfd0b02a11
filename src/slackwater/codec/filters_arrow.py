"""Predicates on whole columns.

A predicate is bound once to its column: the literal is brought to the column's own type by exact arithmetic, which may
change the operator (`x < 2.5` on integers is `x <= 2`) or settle the answer for all rows (`x = 2.5` is never true).

An integer or decimal column is compared by its stored integers. A literal becomes the *interval* of stored integers that
equal it, and every operator is a bound on one of its ends:

    stored     … 3      4      5      6 …           x <  literal   is   stored <= low - 1
    low, high           └ equal ┘                   x >  literal   is   stored >= high + 1

For an exact literal the interval holds one integer, or none (then low = high + 1). For a float it holds those whose nearest
double is that float (`predicates.py` tells why): one for `price = 0.05`, many where integers lie closer than doubles do.

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

from slackwater.codec.arrow import arrow_type
from slackwater.codec.keys_arrow import fixed_values, sortable_floats
from slackwater.errors import UsageError
from slackwater.model.kinds import INTEGERS, ColumnKind
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
EXPONENT_MAX = 1_000
"""Digits of a decimal literal: exact arithmetic with more of them would cost more than any answer is worth."""
BEYOND = 1e39
"""Above every value of an integer or decimal column."""
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
    if ctype.kind in INTEGERS or ctype.kind is ColumnKind.DECIMAL:
        return _bind_exact(ctype, op, literal)
    if ctype.kind is ColumnKind.FLOAT:
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
    if ctype.kind is ColumnKind.FLOAT:
        wanted = sortable_floats(np.array([f for v in values if (f := _as_float(v)) is not None], dtype=np.float64))
        return lambda array: np.isin(sortable_floats(fixed_values(array, "<f8")), wanted) & _unless_null(array)
    if ctype.kind in INTEGERS or ctype.kind is ColumnKind.DECIMAL:
        return _bind_in_exact(ctype, values)
    chosen = pa.array([logical(ctype, physical(ctype, v)) for v in values], arrow_type(ctype))
    return lambda array: _mask(pc.is_in(array, value_set=chosen))


def _bind_in_exact(ctype: ColumnType, values: Sequence[object]) -> Bound:
    lowest, highest = _limits(ctype)
    points: list[Any] = []
    wide: list[Bound] = []
    for value in values:
        low, high = _interval(ctype, _number(value))
        if low == high and lowest <= low <= highest:
            points.append(low)
        elif low < high:
            wide.append(_between(ctype, low, high))
    chosen = pa.array([logical(ctype, point) for point in points], arrow_type(ctype))

    def mask(array: Any) -> Mask:
        found = _mask(pc.is_in(array, value_set=chosen))
        for one in wide:
            found |= one(array)
        return found

    return mask


def _as_float(literal: object) -> float | None:
    """The double nearest to the literal; None for one that lies beyond all of them."""
    number = _number(literal)
    try:
        return float(number)
    except OverflowError:
        return None


def _limits(ctype: ColumnType) -> tuple[int, int]:
    """The lowest and highest stored integer of an integer or decimal type."""
    if ctype.kind is ColumnKind.DECIMAL:
        return 1 - 10**ctype.precision, 10**ctype.precision - 1
    half = 1 << INTEGERS[ctype.kind] - 1
    return -half, half - 1


def _number(literal: object) -> Fraction | float:
    """A float as it is; any other number as an exact fraction, or as an infinity or NaN."""
    if isinstance(literal, bool) or not isinstance(literal, int | float | Decimal):
        raise UsageError("compare a numeric column with a number", got=type(literal).__name__)
    if isinstance(literal, float):
        return literal
    if isinstance(literal, Decimal):
        if not literal.is_finite():
            return math.nan if literal.is_nan() else math.copysign(math.inf, literal)
        if abs(literal.adjusted()) > EXPONENT_MAX or len(literal.as_tuple().digits) > EXPONENT_MAX:
            raise UsageError(f"a number to compare with has at most {EXPONENT_MAX} digits", got=str(literal)[:40])
    return Fraction(literal)


def _bind_exact(ctype: ColumnType, op: Op, literal: object) -> Bound:
    """Integers and decimals: compare stored integers with the ends of an interval."""
    number = _number(literal)
    if isinstance(number, float) and not abs(number) < BEYOND:  # NaN is above everything, as infinity is
        satisfied = (Op.GT, Op.GE, Op.NE) if number < 0 else (Op.LT, Op.LE, Op.NE)
        return _unless_null if op in satisfied else _never
    low, high = _interval(ctype, number)
    match op:
        case Op.LT:
            return _at_most(ctype, low - 1)
        case Op.LE:
            return _at_most(ctype, high)
        case Op.GT:
            return _at_least(ctype, high + 1)
        case Op.GE:
            return _at_least(ctype, low)
    equal = _between(ctype, low, high)
    if op is Op.EQ:
        return equal
    return lambda array: ~equal(array) & _unless_null(array)


def _interval(ctype: ColumnType, number: Fraction | float) -> tuple[int, int]:
    """The lowest and highest stored integer that equal a number; `(n + 1, n)` when it lies between n and n + 1."""
    unit = 10**ctype.scale
    if isinstance(number, Fraction):
        return math.ceil(number * unit), math.floor(number * unit)
    if not abs(number) < BEYOND:
        return 1, 0
    exact = Fraction(number)
    below = (exact + Fraction(math.nextafter(number, -math.inf))) / 2
    above = (exact + Fraction(math.nextafter(number, math.inf))) / 2
    low, high = math.ceil(below * unit), math.floor(above * unit)
    if Fraction(low, unit) == below and low / unit < number:  # halfway, and rounded away
        low += 1
    if Fraction(high, unit) == above and high / unit > number:
        high -= 1
    return low, high


def _between(ctype: ColumnType, low: int, high: int) -> Bound:
    if low > high:
        return _never
    lowest, highest = _limits(ctype)
    if low == high:
        return _kernel(ctype, Op.EQ, logical(ctype, low)) if lowest <= low <= highest else _never
    first, last = _at_least(ctype, low), _at_most(ctype, high)
    return lambda array: first(array) & last(array)


def _at_least(ctype: ColumnType, bound: int) -> Bound:
    lowest, highest = _limits(ctype)
    if not lowest < bound <= highest:  # every value lies on one side
        return _unless_null if bound <= lowest else _never
    return _kernel(ctype, Op.GE, logical(ctype, bound))


def _at_most(ctype: ColumnType, bound: int) -> Bound:
    lowest, highest = _limits(ctype)
    if not lowest <= bound < highest:
        return _unless_null if bound >= highest else _never
    return _kernel(ctype, Op.LE, logical(ctype, bound))


def _bind_float(op: Op, literal: object) -> Bound:
    nearest = _as_float(literal)
    if nearest is not None:
        return _float_kernel(op, nearest)
    if op in (Op.EQ, Op.NE):
        return _never if op is Op.EQ else _unless_null
    return _float_kernel(Op.LE if op in (Op.LT, Op.LE) else Op.GT, _double_below(Fraction(_number(literal))))


def _double_below(number: Fraction) -> float:
    """The largest double below a number that lies beyond all of them."""
    return sys.float_info.max if number > 0 else -math.inf


def _float_kernel(op: Op, literal: float) -> Bound:
    bound = sortable_floats(np.array([literal], dtype=np.float64))[0]
    compare = _OPERATORS[op]

    def mask(array: Any) -> Mask:
        found: Mask = compare(sortable_floats(fixed_values(array, "<f8")), bound)
        return found & np.asarray(array.is_valid()) if array.null_count else found

    return mask
