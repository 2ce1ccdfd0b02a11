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
This module is the same codec one row at a time: for point reads and writes, and as the oracle of the vectorised one.

A reader's schema may be another version: columns meet by id (see `schema.py`).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from slackwater.errors import DecodeError, EntryTooLarge, UsageError
from slackwater.model.keys import KeyType, decode_key, encode_key
from slackwater.model.kinds import VARIABLE, Kind
from slackwater.model.layout import split_table_key, table_prefix
from slackwater.model.retype import widen
from slackwater.model.values import logical, physical

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from slackwater.model.schema import Column, TableSchema
    from slackwater.model.values import Physical

FORMAT = 0x01
HEADER_BYTES = 5
VALUE_BYTES_MAX = 1 << 28

_CODES = {
    Kind.INT2: "h",
    Kind.INT4: "i",
    Kind.INT: "q",
    Kind.BOOL: "B",
    Kind.FLOAT: "d",
    Kind.DECIMAL: "16s",
    Kind.DATE: "i",
    Kind.TIMESTAMP: "q",
    Kind.TIMESTAMPTZ: "q",
    Kind.UUID: "16s",
}
_ZEROS: dict[str, Physical] = {"d": 0.0, "16s": bytes(16)}


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
        self.codes = [_CODES[schema.columns[i].type.kind] for i in self.fixed]
        self.struct = struct.Struct(f"<BI{self.bitmap_bytes}s{''.join(self.codes)}{len(self.variable)}I")
        self.not_null = sum(1 << i for i, c in enumerate(schema.columns) if not c.nullable)
        self.header = struct.pack("<BI", FORMAT, schema.version)

    def pack(self, stored: Sequence[Physical | None]) -> bytes:
        """The value of one row, from the stored forms of its columns in schema order."""
        nulls = sum(1 << i for i, s in enumerate(stored) if s is None)
        fields: list[Any] = []
        for i, code in zip(self.fixed, self.codes, strict=True):
            fields.append(_fixed_field(stored[i], code))
        tail: list[bytes] = []
        end = 0
        for i in self.variable:
            raw: Any = stored[i] or b""
            tail.append(raw)
            end += len(raw)
            fields.append(end)
        if self.width + end > VALUE_BYTES_MAX:
            raise EntryTooLarge(
                "a row is too large; keep large objects in pieces", size=self.width + end, limit=VALUE_BYTES_MAX
            )
        head = self.struct.pack(FORMAT, self.schema.version, nulls.to_bytes(self.bitmap_bytes, "little"), *fields)
        return head + b"".join(tail)

    def unpack(self, value: bytes) -> list[Physical | None]:
        """The stored forms of a row's columns, in schema order."""
        if len(value) < self.width:
            raise DecodeError("a row is shorter than its fixed section", size=len(value), need=self.width)
        _, _, bitmap, *fields = self.struct.unpack_from(value)
        nulls = int.from_bytes(bitmap, "little")
        if nulls >> len(self.schema.columns):
            raise DecodeError("a row's null bitmap has bits beyond its columns")
        if nulls & self.not_null:
            raise DecodeError("a row has NULL in a NOT NULL column")
        stored: list[Physical | None] = [None] * len(self.schema.columns)
        for i, code, field in zip(self.fixed, self.codes, fields, strict=False):
            if not nulls >> i & 1:
                stored[i] = field if code != "16s" else _wide_field(field, self.schema.columns[i].type.kind)
        begin = self.width
        for i, end in zip(self.variable, fields[len(self.fixed) :], strict=True):
            if not begin <= self.width + end <= len(value):
                raise DecodeError("a row's tail offsets are out of order or out of bounds")
            if not nulls >> i & 1:
                stored[i] = value[begin : self.width + end]
            elif begin != self.width + end:
                raise DecodeError("a NULL has bytes in the tail")
            begin = self.width + end
        if begin != len(value):
            raise DecodeError("a row does not end where its last column does", size=len(value), end=begin)
        return stored


def _fixed_field(stored: Physical | None, code: str) -> Physical:
    if stored is None:
        return _ZEROS.get(code, 0)
    if code == "16s" and isinstance(stored, int):
        return stored.to_bytes(16, "little", signed=True)
    return stored


def _wide_field(field: bytes, kind: Kind) -> Physical:
    return field if kind is Kind.UUID else int.from_bytes(field, "little", signed=True)


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


def unknown_version(version: int, table: str) -> DecodeError:
    """The error for a value whose schema the reader was not given."""
    return DecodeError(
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
        self._key_names = [c.name for c, _ in schema.key_columns()]
        self._versions = dict(versions or {}) | {schema.version: schema}
        self._layouts = {schema.version: self.layout}

    def encode(self, row: Mapping[str, object]) -> tuple[bytes, bytes]:
        """(key, value) of a row. Columns left out take their default."""
        if unknown := row.keys() - set(self._names):
            raise UsageError(
                f"table {self.schema.name} has no column {min(unknown)!r}; its columns are {', '.join(self._names)}"
            )
        values = {c.name: row.get(c.name, c.default) for c in self.schema.columns}
        stored = [self._stored(c, values[c.name]) for c in self.schema.columns]
        return self.key([values[n] for n in self._key_names]), self.layout.pack(stored)

    def key(self, values: Sequence[object]) -> bytes:
        """The key of a row from its primary-key values in key order; fewer values make a prefix to seek with."""
        return self.prefix + encode_key(values, self.key_types)

    def decode_key(self, key: bytes) -> dict[str, Any]:
        """The primary-key columns that a key holds."""
        table_id, index_id, rest = split_table_key(key)
        if (table_id, index_id) != (self.schema.table_id, self.schema.index_id):
            raise DecodeError("the key belongs to another index", table_id=table_id, index_id=index_id)
        return dict(zip(self._key_names, decode_key(rest, self.key_types), strict=True))

    def decode(self, value: bytes) -> dict[str, Any]:
        """The row that a value holds, as this codec's schema sees it."""
        layout = self._layout(version_of(value))
        stored = layout.unpack(value)
        found = {c.id: (c, s) for c, s in zip(layout.schema.columns, stored, strict=True)}
        return {c.name: self._read(c, found.get(c.id)) for c in self.schema.columns}

    def encode_batch(self, batch: pa.RecordBatch) -> tuple[list[bytes], list[bytes]]:
        """(keys, values) of a whole batch, vectorised; columns left out take their default."""
        from slackwater.model.encode_arrow import encode_batch  # pyarrow only when it is used

        return encode_batch(self, batch)

    def _layout(self, version: int) -> RowLayout:
        layout = self._layouts.get(version)
        if layout is None:
            schema = self._versions.get(version)
            if schema is None:
                raise unknown_version(version, self.schema.name)
            layout = self._layouts[version] = RowLayout(schema)
        return layout

    def _stored(self, column: Column, value: object) -> Physical | None:
        if value is not None:
            try:
                return physical(column.type, value)
            except UsageError as error:
                raise UsageError(f"column {column.name}: {error}") from None
        if not column.nullable:
            raise UsageError(f"column {column.name} of table {self.schema.name} is NOT NULL; give it a value")
        return None

    def _read(self, column: Column, found: tuple[Column, Physical | None] | None) -> Any:
        if found is None:
            if column.default is None and not column.nullable:
                raise missing_default(column)
            return column.default
        written, stored = found
        if stored is None:
            if not column.nullable:
                raise DecodeError(f"a row has NULL in the NOT NULL column {column.name}")
            return None
        if written.type != column.type:
            logical(written.type, stored)  # what was written must hold before it is widened
            stored = widen(stored, old=written.type, new=column.type)
        return logical(column.type, stored)
