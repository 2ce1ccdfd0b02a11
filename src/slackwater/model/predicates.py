"""Simple predicates that a scan pushes into the decode: column op literal, joined by AND.

SQL's rules: a comparison with NULL is not true, so such a row does not survive; floats compare as their keys do (NaN
equals NaN and is above everything, -0.0 equals 0.0); text compares by its UTF-8 bytes. Numbers compare as in Spark and in
PostgreSQL:

    column     literal        compared as
    int        int, Decimal   exact values: `id > Decimal("2.5")`
    decimal    int, Decimal   exact values: `price < Decimal("1.005")` on decimal(10,2)
    float      any number     doubles: the literal becomes the nearest one, so `ratio = Decimal("0.1")` finds 0.1
    int        float          doubles: each value becomes the nearest one, so `price = 0.05` finds 0.05, which is no double
    decimal    float          (and `id = 9007199254740992.0` finds 9007199254740993 too)

`filters_arrow.py` evaluates them on whole columns.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from slackwater.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

IN_LIST_MAX = 10_000


class Op(enum.Enum):
    """What a predicate asks."""

    EQ = "="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="
    IS_NULL = "is null"
    IS_NOT_NULL = "is not null"
    IN = "in"


_SPELLINGS = {"==": "=", "<>": "!="}


class Predicate(msgspec.Struct, frozen=True):
    """One condition. `literal` is a Python value of the column's type, a sequence of them for `in`, or unused."""

    column: str
    op: Op
    literal: object = None

    def __post_init__(self) -> None:
        if self.op is Op.IN:
            if not isinstance(self.literal, list | tuple | set | frozenset):
                raise UsageError("`in` takes a list of values", column=self.column)
            if len(self.literal) > IN_LIST_MAX:
                raise UsageError(
                    f"`in` takes at most {IN_LIST_MAX} values; join with a table instead", column=self.column
                )


def predicate(column: str, op: str, literal: object = None) -> Predicate:
    """A predicate from the operator's text, such as `predicate("id", ">=", 10)`."""
    try:
        return Predicate(column, Op(_SPELLINGS.get(op, op.lower())), literal)
    except ValueError:
        raise UsageError(f"unknown operator {op!r}; use one of {', '.join(o.value for o in Op)}") from None


def literals(found: Predicate) -> Sequence[object]:
    """The values of an `in` list without NULL, which never makes a row match."""
    values = found.literal
    assert isinstance(values, list | tuple | set | frozenset)
    return [v for v in values if v is not None]
