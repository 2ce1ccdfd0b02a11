"""From predicates on the columns of a key to the span of keys that can satisfy them: of a table, or of a secondary index.

    primary key (region, id desc)       where region = 'eu' and id >= 10

    prefix 'eu'  ─────[══════════════════)─────   equality on leading columns fixes a prefix
    range on id        ▲ ≥ 10, and descending: the *last* keys are the smallest ids

Leading columns with an equality make a prefix; the first column without one may narrow it by its bounds; columns after
cannot narrow any more. The span holds *at least* every row that satisfies the predicates: they are all evaluated on the
rows as well, so narrowing is only ever about reading less. A literal that the column cannot hold exactly (`id > 2.5`)
narrows nothing. In a secondary index, whose keys may hold NULL, `is null` counts as an equality, `is not null` as a bound. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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


class Narrowed(NamedTuple):
    """A span of keys, and what made it that narrow."""

    span: Span | None
    """None: no key can satisfy the predicates."""
    equal: int = 0
    """Leading columns of the key that are fixed."""
    bounds: int = 0
    """Ends at which the next column is bounded: 0, 1 or 2."""


def narrowed(schema: TableSchema, predicates: Sequence[Predicate]) -> Span | None:
    """The part of a table's primary index that rows satisfying all predicates lie in; None: there are none."""
    return narrow(schema, predicates).span


def narrow(schema: TableSchema, predicates: Sequence[Predicate], *, columns: int | None = None) -> Narrowed:
    """The part of an index that rows satisfying all predicates lie in, by the first `columns` of its key (all, without it).

    The keys of a unique index end behind its own columns, mostly: columns after those must not narrow it.
    """
    whole = schema_span(schema)
    if not predicates:
        return Narrowed(whole)
    codec = RowCodec(schema)
    prefix: list[object] = []
    for column, descending in schema.key_columns()[:columns]:
        found = [p for p in predicates if p.column == column.name and _exact(column, p, nulls=schema.secondary)]
        equal = next((p for p in found if p.op in (Op.EQ, Op.IS_NULL)), None)
        if equal is None:
            span = _bounded(codec, prefix, found, whole, descending=descending)
            lower, upper = (any(p.op in ops for p in found) for ops in ((*_LOWER, Op.IS_NOT_NULL), _UPPER))
            return Narrowed(span, len(prefix), int(lower) + int(upper))
        prefix.append(equal.literal)
    key = codec.key(prefix)
    return Narrowed(Span(key, prefix_end(key)), len(prefix))


def _bounded(
    codec: RowCodec, prefix: list[object], found: Sequence[Predicate], whole: Span, *, descending: bool
) -> Span | None:
    """The prefix, cut by bounds on the next column."""
    key = codec.key(prefix)
    start, end = (key, prefix_end(key)) if prefix else (whole.start, whole.end)
    for predicate in found:
        if predicate.op is Op.IS_NOT_NULL:
            null = codec.key([*prefix, None])
            start, end = (start, min(end, null)) if descending else (max(start, prefix_end(null)), end)
            continue
        op = _MIRRORED.get(predicate.op, predicate.op) if descending else predicate.op
        at = codec.key([*prefix, predicate.literal]) if op in _LOWER or op in _UPPER else b""
        if op in _LOWER:
            start = max(start, prefix_end(at) if op is Op.GT else at)
        elif op in _UPPER:
            end = min(end, prefix_end(at) if op is Op.LE else at)
    return Span(start, end) if start < end else None


def _exact(column: Column, predicate: Predicate, *, nulls: bool) -> bool:
    """Whether the column can hold the literal as it is, so that keys compare as values do."""
    if predicate.op in (Op.IS_NULL, Op.IS_NOT_NULL):
        return nulls
    if predicate.op not in (Op.EQ, *_LOWER, *_UPPER) or predicate.literal is None:
        return False
    try:
        physical(column.type, predicate.literal)
    except UsageError:
        return False
    return True
