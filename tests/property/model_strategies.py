"""Hypothesis strategies for the model: values of every type, schemas, and later versions of them."""

from __future__ import annotations

import datetime as dt
from decimal import Context, Decimal

from hypothesis import strategies as st

from slackwater.model import kinds
from slackwater.model.kinds import INTEGERS, ColumnKind, ColumnType, decimal_type
from slackwater.model.schema import Column, KeyColumn, TableSchema, can_retype

EXACT = Context(prec=50)  # the default context would round what decimal(38, s) holds
text = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ["", "\0", "a\0", "a\0b", "ÿ", "\U0001f600"]
)
binary = st.binary(max_size=12) | st.sampled_from([b"", b"\0", b"\0\0", b"\xff", b"\0\xff", b"\0\x01"])
decimal_types = st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: decimal_type(p, s)))
PLAIN = [kinds.INT2, kinds.INT4, kinds.INT, kinds.BOOL, kinds.FLOAT, kinds.STRING, kinds.JSON, kinds.BYTES, kinds.DATE,
         kinds.TIMESTAMP, kinds.TIMESTAMPTZ, kinds.UUID]  # fmt: skip
column_types = st.sampled_from(PLAIN) | decimal_types


def integers(bits: int):
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    return st.integers(low, high) | st.sampled_from([low, -1, 0, 1, high]) | st.integers(-5, 5)


def values(ctype: ColumnType):
    """Python values of a type, as decoding gives them."""
    kind = ctype.kind
    if kind in INTEGERS:
        return integers(INTEGERS[kind])
    if kind is ColumnKind.DECIMAL:
        limit = 10**ctype.precision - 1
        return (st.integers(-limit, limit) | st.sampled_from([-limit, 0, limit])).map(
            lambda n: Decimal(n).scaleb(-ctype.scale, EXACT)
        )
    return {
        ColumnKind.BOOL: st.booleans(),
        ColumnKind.FLOAT: st.floats(),
        ColumnKind.STRING: text,
        ColumnKind.JSON: text,
        ColumnKind.BYTES: binary,
        ColumnKind.DATE: st.dates(),
        ColumnKind.TIMESTAMP: st.datetimes(),
        ColumnKind.TIMESTAMPTZ: st.datetimes(timezones=st.just(dt.UTC)),
        ColumnKind.UUID: st.binary(min_size=16, max_size=16),
    }[kind]


@st.composite
def schemas(draw, *, columns_max: int = 10):
    """A table with any columns; the first one or two are its primary key."""
    types = draw(st.lists(column_types, min_size=0, max_size=columns_max))
    key_types = draw(st.lists(column_types.filter(lambda t: t.kind is not ColumnKind.JSON), min_size=1, max_size=2))
    columns = [Column(i + 1, f"k{i + 1}", t, nullable=False) for i, t in enumerate(key_types)]
    keys = tuple(KeyColumn(c.id, draw(st.booleans())) for c in columns)
    for i, ctype in enumerate(types, len(columns) + 1):
        columns.append(draw(column(i, ctype)))
    shuffled = draw(st.permutations(columns))
    return TableSchema(9, "t", 1, tuple(shuffled), keys)


@st.composite
def column(draw, column_id: int, ctype: ColumnType | None = None):
    ctype = draw(column_types) if ctype is None else ctype
    default = draw(st.none() | values(ctype).filter(lambda value: value == value))  # NaN is refused
    nullable = default is None or draw(st.booleans())
    return Column(column_id, f"c{column_id}", ctype, nullable, default)


def wider_types(ctype: ColumnType):
    """Types that values of `ctype` may be read as, itself among them."""
    widened = [
        t
        for t in [*PLAIN, decimal_type(38, 0), decimal_type(38, 10), decimal_type(38, 30), decimal_type(9, 2)]
        if can_retype(ctype, t)
    ]
    return st.sampled_from([ctype, *widened])


@st.composite
def next_version(draw, schema: TableSchema):
    """The table after columns were added, dropped, renamed, re-typed and re-ordered."""
    keys = {k.column_id for k in schema.primary_key}
    columns = []
    for old in schema.columns:
        if old.id in keys:
            columns.append(old)
        elif draw(st.booleans()):
            renamed = draw(st.sampled_from([old.name, f"r{old.id}"]))
            columns.append(
                Column(old.id, renamed, draw(wider_types(old.type)), nullable=draw(st.booleans()) or old.nullable)
            )
    top = max(c.id for c in schema.columns)
    columns += [draw(column(top + 1 + i)) for i in range(draw(st.integers(0, 3)))]
    return TableSchema(
        schema.table_id, schema.name, schema.version + 1, tuple(draw(st.permutations(columns))), schema.primary_key
    )


def rows(schema: TableSchema, *, max_size: int = 12):
    """Lists of rows with every column."""
    fields = {c.name: (st.none() | values(c.type)) if c.nullable else values(c.type) for c in schema.columns}
    return st.lists(st.fixed_dictionaries(fields), min_size=0, max_size=max_size)


def exact(value: object) -> object:
    """Comparable by representation: NaN equals itself, -0.0 differs from 0.0, 1.0 from 1.00, True from 1."""
    if isinstance(value, dict):
        return {k: exact(v) for k, v in value.items()}
    if isinstance(value, dt.datetime):
        return (value.replace(tzinfo=None), value.tzinfo is not None)
    return (type(value).__name__, repr(value))
