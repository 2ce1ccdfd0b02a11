"""From predicates on the primary key to the span of keys that can satisfy them.

    primary key (region, id desc)       where region = 'eu' and id >= 10

    prefix 'eu'  ─────[══════════════════)─────   equality on leading columns fixes a prefix
    range on id        ▲ ≥ 10, and descending: the *last* keys are the smallest ids

Leading columns with an equality make a prefix; the first column without one may narrow it by its bounds; what comes after
cannot narrow any more. The span holds *at least* every row that satisfies the predicates: they are all evaluated on the
rows as well, so narrowing is only ever about reading less. A literal that the column cannot hold exactly (`id > 2.5`)
narrows nothing. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.codec.layout import prefix_end, schema_span
from slackwater.codec.rows import RowCodec
from slackwater.errors import UsageError
from slackwater.model.predicates import Op, Predicate
from slackwater.model.spans import Span
from slackwater.model.values import physical

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.model.schema import Column, TableSchema

_LOWER = (Op.GT, Op.GE)
_UPPER = (Op.LT, Op.LE)
_MIRRORED = {Op.GT: Op.LT, Op.GE: Op.LE, Op.LT: Op.GT, Op.LE: Op.GE}


def narrowed(schema: TableSchema, predicates: Sequence[Predicate]) -> Span | None:
    """The part of a table's primary index that rows satisfying all predicates lie in; None: there are none."""
    whole = schema_span(schema)
    if not predicates:
        return whole
    codec = RowCodec(schema)
    prefix: list[object] = []
    for column, descending in schema.key_columns():
        found = [p for p in predicates if p.column == column.name and _exact(column, p)]
        equal = next((p for p in found if p.op is Op.EQ), None)
        if equal is None:
            return _bounded(codec, prefix, found, whole, descending=descending)
        prefix.append(equal.literal)
    key = codec.key(prefix)
    return Span(key, prefix_end(key))


def _bounded(
    codec: RowCodec, prefix: list[object], found: Sequence[Predicate], whole: Span, *, descending: bool
) -> Span | None:
    """The prefix, cut by bounds on the next column."""
    key = codec.key(prefix)
    start, end = (key, prefix_end(key)) if prefix else (whole.start, whole.end)
    for predicate in found:
        op = _MIRRORED.get(predicate.op, predicate.op) if descending else predicate.op
        at = codec.key([*prefix, predicate.literal]) if op in _LOWER or op in _UPPER else b""
        if op in _LOWER:
            start = max(start, prefix_end(at) if op is Op.GT else at)
        elif op in _UPPER:
            end = min(end, prefix_end(at) if op is Op.LE else at)
    return Span(start, end) if start < end else None


def _exact(column: Column, predicate: Predicate) -> bool:
    """Whether the column can hold the literal as it is, so that keys compare as values do."""
    if predicate.op not in (Op.EQ, *_LOWER, *_UPPER) or predicate.literal is None:
        return False
    try:
        physical(column.type, predicate.literal)
    except UsageError:
        return False
    return True
