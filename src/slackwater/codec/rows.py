"""Rows as bytes: one value per row, with every column in it.

    value = format:1  version:4  null bitmap:⌈n/8⌉  fixed section  ends:4·k  tail
            ├───────────────────── known width per version ─────────────────┤├ text and bytes, one after the other ┤

    format    0x01
    version   the table descriptor's version that wrote the row (little-endian, as everything in the value)
    bitmap    bit i is set when column i, in schema order, is NULL; spare bits are zero
    fixed     the fixed-width columns in schema order, unaligned; a NULL is all zero bits
    ends      for each variable-width column, where it ends in the tail (a NULL has no bytes)
    tail      ends exactly where the last column does

Primary-key columns are in the value too, so that a scan never decodes keys. All places up to the tail are functions of
the version alone: `rows_arrow.py` turns a block of values into Arrow with a handful of numpy operations per column.
This module is the same codec one row at a time: for point reads and writes, and as the oracle of the vectorized one.

A reader's schema may be another version: columns meet by id (see `schema.py`).
"""

from __future__ import annotations

import struct
from functools import partial
from itertools import accumulate
from operator import add
from typing import TYPE_CHECKING, Any

from slackwater.codec.keys import KeyType, decode_key, element_encoder, stored_encoder
from slackwater.codec.layout import split_table_key, table_prefix
from slackwater.codec.retype import widen
from slackwater.errors import DecodeError, EntryTooLarge, UsageError, VersionUnknown
from slackwater.model.kinds import VARIABLE, ColumnKind
from slackwater.model.values import load_as_is, loader, not_utf8, storer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from slackwater.model.schema import Column, TableSchema
    from slackwater.model.values import Physical

    _ColumnPlan = tuple[str, int | None, Callable[[Any], Any] | None]
    """(name, place, how the field there becomes a value); with no place, how all fields do."""
    _Plan = tuple["RowLayout", list[_ColumnPlan]]

FORMAT = 0x01
HEADER_BYTES = 5
VALUE_BYTES_MAX = 1 << 28

_CODES = {
    ColumnKind.INT2: "h",
    ColumnKind.INT4: "i",
    ColumnKind.INT: "q",
    ColumnKind.BOOL: "B",
    ColumnKind.FLOAT: "d",
    ColumnKind.DECIMAL: "16s",
    ColumnKind.DATE: "i",
    ColumnKind.TIMESTAMP: "q",
    ColumnKind.TIMESTAMPTZ: "q",
    ColumnKind.UUID: "16s",
}


def row_bytes_max(entry_bytes_max: int) -> int:
    """Bytes of the key and the value of one row: it travels in one log entry, with what else belongs to its command."""
    return entry_bytes_max - entry_bytes_max // 16


def check_sizes(table: str, keys: Sequence[bytes], values: Sequence[bytes], *, limit: int) -> None:
    """Refuse rows over the bound."""
    size = max(map(add, map(len, keys), map(len, values)), default=0)
    if size > limit:
        raise row_too_large(table, size, limit=limit)


def row_too_large(table: str, size: int, *, limit: int) -> EntryTooLarge:
    """The error for a row over the bound."""
    return EntryTooLarge(
        f"a row of table {table} has {size} bytes, and a row has at most {limit}, because it is one entry of the log; keep "
        "large objects in pieces, in rows of their own, or raise log.entry_bytes_max",
        size=size,
        limit=limit,
    )


class RowLayout:
    """Where everything is in the values of one schema version."""

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.bitmap_bytes = (len(schema.columns) + 7) // 8
        self.fixed = [i for i, c in enumerate(schema.columns) if c.type.kind not in VARIABLE]
        self.variable = [i for i, c in enumerate(schema.columns) if c.type.kind in VARIABLE]
        self.offsets: dict[int, int] = {}
        at = HEADER_BYTES + self.bitmap_bytes
        for i in self.fixed:
            self.offsets[i] = at
            at += schema.columns[i].type.width
        self.ends_at = at
        self.width = at + 4 * len(self.variable)
        """Bytes before the tail."""
        codes = "".join(_CODES[schema.columns[i].type.kind] for i in self.fixed)
        self.struct = struct.Struct(f"<BI{self.bitmap_bytes}s{codes}{len(self.variable)}I")
        self.not_null = sum(1 << i for i, c in enumerate(schema.columns) if not c.nullable)
        self.header = struct.pack("<BI", FORMAT, schema.version)
        kinds = [schema.columns[i].type.kind for i in self.fixed]
        self._wide = [place for place, kind in enumerate(kinds) if kind is ColumnKind.DECIMAL]
        self._zeros = [
            (i, bytes(16) if kind is ColumnKind.UUID else 0) for i, kind in zip(self.fixed, kinds, strict=True)
        ]
        self._no_nulls = bytes(self.bitmap_bytes)

    def pack(self, stored: Sequence[Physical | None]) -> bytes:
        """The value of one row, from the stored forms of its columns in schema order."""
        fields: list[Any] = [zero if (field := stored[i]) is None else field for i, zero in self._zeros]
        for i in self._wide:
            fields[i] = fields[i].to_bytes(16, "little", signed=True)
        tail: list[Any] = [stored[i] or b"" for i in self.variable]
        ends = list(accumulate(map(len, tail)))
        if ends and self.width + ends[-1] > VALUE_BYTES_MAX:
            raise EntryTooLarge(
                "a row is too large; keep large objects in pieces", size=ends[-1], limit=VALUE_BYTES_MAX
            )
        bitmap = self._no_nulls
        if None in stored:
            bitmap = sum(1 << i for i, s in enumerate(stored) if s is None).to_bytes(self.bitmap_bytes, "little")
        return b"".join((self.struct.pack(FORMAT, self.schema.version, bitmap, *fields, *ends), *tail))

    def unpack(self, value: bytes) -> list[Physical | None]:
        """The stored forms of a row's columns, in schema order."""
        if len(value) < self.width:
            raise DecodeError("a row is shorter than its fixed section", size=len(value), need=self.width)
        if len(value) > VALUE_BYTES_MAX:
            raise DecodeError("a row is larger than any that is written", size=len(value), limit=VALUE_BYTES_MAX)
        _, _, bitmap, *fields = self.struct.unpack_from(value)
        for i in self._wide:
            fields[i] = int.from_bytes(fields[i], "little", signed=True)
        stored: list[Physical | None] = [None] * len(self.schema.columns)
        for i, field in zip(self.fixed, fields, strict=False):
            stored[i] = field
        begin = self.width
        for i, end in zip(self.variable, fields[len(self.fixed) :], strict=True):
            end += self.width
            if not begin <= end <= len(value):
                raise DecodeError("a row's tail offsets are out of order or out of bounds")
            stored[i] = value[begin:end]
            begin = end
        if begin != len(value):
            raise DecodeError("a row does not end where its last column does", size=len(value), end=begin)
        if bitmap != self._no_nulls:
            self._forget_nulls(stored, int.from_bytes(bitmap, "little"))
        return stored

    def _forget_nulls(self, stored: list[Physical | None], nulls: int) -> None:
        if nulls >> len(stored):
            raise DecodeError("a row's null bitmap has bits beyond its columns")
        if nulls & self.not_null:
            raise DecodeError("a row has NULL in a NOT NULL column")
        for i in range(len(stored)):
            if nulls >> i & 1:
                if i not in self.offsets and stored[i]:
                    raise DecodeError("a NULL has bytes in the tail")
                stored[i] = None


def version_of(value: bytes) -> int:
    """The descriptor version that wrote a value."""
    if len(value) < HEADER_BYTES:
        raise DecodeError("a row is shorter than its header", size=len(value))
    if value[0] != FORMAT:
        raise DecodeError("unknown row format; a newer release may have written it", format=value[0])
    return int.from_bytes(value[1:HEADER_BYTES], "little")


def key_types(schema: TableSchema) -> list[KeyType]:
    """How the primary key's columns are encoded."""
    return [KeyType(c.type.kind, descending) for c, descending in schema.key_columns()]


def unknown_version(version: int, table: str) -> VersionUnknown:
    """The error for a value whose schema the reader was not given."""
    return VersionUnknown(
        "a row was written under a descriptor version that the reader was not given", version=version, table=table
    )


def missing_default(column: Column) -> DecodeError:
    """The error for a row older than a NOT NULL column that has no default."""
    return DecodeError(
        f"a row is older than the NOT NULL column {column.name}, which has no default; backfill the column first"
    )


class RowCodec:
    """Encodes rows of one schema version; decodes those of any version given."""

    def __init__(self, schema: TableSchema, versions: Mapping[int, TableSchema] | None = None) -> None:
        self.schema = schema
        self.layout = RowLayout(schema)
        self.prefix = table_prefix(schema.table_id, schema.index_id)
        self.key_types = key_types(schema)
        self._names = [c.name for c in schema.columns]
        # what a function makes was put in before: a row that still lacks it is refused, or NULL
        self._defaults = [None if c.function else c.default for c in schema.columns]
        self.generated = tuple(c for c in schema.columns if c.function)
        """Columns whose values clients make when a row leaves them out."""
        self._storers = [storer(c.type) for c in schema.columns]
        self._elements = [element_encoder(t) for t in self.key_types]
        columns = [c.type for c, _ in schema.key_columns()]
        self._stored_elements = list(map(stored_encoder, self.key_types, columns))
        self._loaders = [loader(c.type) for c in schema.columns]
        self._places = {c.name: i for i, c in enumerate(schema.columns)}
        self._key_places = [self._places[c.name] for c, _ in schema.key_columns()]
        self.key_names = [c.name for c, _ in schema.key_columns()]
        self._versions = dict(versions or {}) | {schema.version: schema}
        self._readers: dict[int, _Plan] = {}

    def encode(self, row: Mapping[str, object]) -> tuple[bytes, bytes]:
        """(key, value) of a row. Columns left out take their default."""
        if not row.keys() <= self._places.keys():
            self.schema.column(min(row.keys() - self._places.keys()))  # raises, with the names there are
        values = list(map(row.get, self._names, self._defaults))
        try:
            stored = [None if v is None else store(v) for store, v in zip(self._storers, values, strict=True)]
        except UsageError:
            raise self._refusal(values) from None
        if None in stored:
            self._check_not_null(stored)
        return self.key_of(stored), self.layout.pack(stored)

    def key(self, values: Sequence[object]) -> bytes:
        """The key of a row from its primary-key values in key order; fewer values make a prefix to seek with."""
        if len(values) > len(self._elements):
            raise UsageError("more values than key columns", values=len(values), columns=len(self._elements))
        return self.prefix + b"".join([encode(v) for encode, v in zip(self._elements, values, strict=False)])

    def key_of(self, stored: Sequence[Physical | None]) -> bytes:
        """The key of a row from the stored forms of its columns in schema order."""
        places = zip(self._stored_elements, self._key_places, strict=True)
        return self.prefix + b"".join([encode(stored[place]) for encode, place in places])

    def show_key(self, key: bytes) -> str:
        """The primary key of a row, for people."""
        return ", ".join(f"{name}={value!r}" for name, value in self.decode_key(key).items())

    def decode_key(self, key: bytes) -> dict[str, Any]:
        """The primary-key columns that a key holds."""
        table_id, index_id, rest = split_table_key(key)
        if (table_id, index_id) != (self.schema.table_id, self.schema.index_id):
            raise DecodeError("the key belongs to another index", table_id=table_id, index_id=index_id)
        return dict(zip(self.key_names, decode_key(rest, self.key_types), strict=True))

    def decode(self, value: bytes) -> dict[str, Any]:
        """The row that a value holds, as this codec's schema sees it."""
        version = version_of(value)
        layout, readers = self._readers.get(version) or self._plan(version)
        stored = layout.unpack(value)
        row: dict[str, Any] = {}
        try:
            for name, place, load in readers:  # a call for each column is what decoding a row would cost most
                field = stored if place is None else stored[place]
                row[name] = field if field is None or load is None else load(field)
        except UnicodeDecodeError:
            raise not_utf8() from None
        return row

    def checked(self, value: bytes) -> list[Physical | None]:
        """The stored forms in a value of this very version; `DecodeError` unless each is of a value that its column has."""
        if value[:HEADER_BYTES] != self.layout.header:
            raise unknown_version(version_of(value), self.schema.name)
        stored = self.layout.unpack(value)
        try:
            for load, field in zip(self._loaders, stored, strict=True):
                if load is not load_as_is and field is not None:
                    load(field)
        except UnicodeDecodeError:
            raise not_utf8() from None
        return stored

    def encode_batch(self, batch: pa.RecordBatch) -> tuple[list[bytes], list[bytes]]:
        """(keys, values) of a whole batch, vectorized; columns left out take their default."""
        from slackwater.codec.encode_arrow import encode_batch  # pyarrow only when it is used

        return encode_batch(self, batch)

    def _plan(self, version: int) -> _Plan:
        """How to read the values of one version, worked out once."""
        schema = self._versions.get(version)
        if schema is None:
            raise unknown_version(version, self.schema.name)
        written = {c.id: (i, c) for i, c in enumerate(schema.columns)}
        plan = RowLayout(schema), [_column_plan(c, written.get(c.id)) for c in self.schema.columns]
        self._readers[version] = plan
        return plan

    def _refusal(self, values: list[Any]) -> UsageError:
        """The error of the first column that does not take its value."""
        for column, store, value in zip(self.schema.columns, self._storers, values, strict=True):
            try:
                if value is not None:
                    store(value)
            except UsageError as error:
                return UsageError(f"column {column.name}: {error}")
        return UsageError("a row does not fit its table", table=self.schema.name)

    def _check_not_null(self, stored: list[Physical | None]) -> None:
        for column, field in zip(self.schema.columns, stored, strict=True):
            if field is None and not column.nullable:
                raise UsageError(f"column {column.name} of table {self.schema.name} is NOT NULL; give it a value")


def _column_plan(column: Column, found: tuple[int, Column] | None) -> _ColumnPlan:
    """How one column is read; most are, as they were written, by place."""
    if found is None or found[1].type != column.type or (found[1].nullable and not column.nullable):
        return column.name, None, _reader(column, found)
    load = loader(column.type)
    return column.name, found[0], None if load is load_as_is else load


def _reader(column: Column, found: tuple[int, Column] | None) -> Callable[[list[Physical | None]], Any]:
    """A function from a row's stored forms to one column's value, as the reader's schema has it."""
    if found is None:
        if column.default is None and not column.nullable:
            return partial(_refuse, column)
        return lambda _: column.default
    index, written = found
    load_written, load = loader(written.type), loader(column.type)

    def read(stored: list[Physical | None]) -> Any:
        field = stored[index]
        if field is None:
            if not column.nullable:
                raise DecodeError(f"a row has NULL in the NOT NULL column {column.name}")
            return None
        return load(field)

    def read_widened(stored: list[Physical | None]) -> Any:
        if (field := stored[index]) is None:
            return read(stored)
        load_written(field)  # what was written must hold before it is widened
        return load(widen(field, old=written.type, new=column.type))

    return read if written.type == column.type else read_widened


def _refuse(column: Column, _: list[Physical | None]) -> Any:
    raise missing_default(column)
