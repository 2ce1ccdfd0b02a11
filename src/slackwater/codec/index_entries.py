"""Encodes the entries of a secondary index from rows of its table, and finds the rows that entries name. Pure.

    row    {id: 7, email: "ada@x", name: "ada"}                 table t, primary key id
      │ IndexCodec.entry, .entries (many rows: dicts or a record batch)
      ▼
    unique index on email     /t/2/"ada@x"       {email, id}         two rows of one value meet at one key
                              /t/2/NULL/7        {email, id}         NULLs are not equal: the primary key keeps them apart
    index on name desc        /t/3/~"ada"/7      {name, id, …}       the primary key keeps rows of one value apart
      │ IndexCodec.row_key, .row_keys
      ▼
    /t/1/7                    the row

An entry's value is a row of `index_schema`, with every column of its key and the stored ones, under the table's version that
wrote it. So entries are decoded, scanned and filtered like rows, also those of older versions of the table.

Keys are prefix-free within one index: an entry with NULL among a unique index's own columns differs from one without at the
element of that NULL, before either ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slackwater.codec.rows import RowCodec
from slackwater.model.indexes import index_schema, index_schemas

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from slackwater.model.indexes import Index
    from slackwater.model.schema import TableSchema

    Entries = tuple[list[bytes], list[bytes]]


class IndexCodec:
    """Entries of one index, under one version of its table; decodes those of any version given."""

    def __init__(self, table: TableSchema, index: Index, schemas: Iterable[TableSchema] = ()) -> None:
        self.index = index
        self.schema = index_schema(table, index)
        """The schema of the entries."""
        self.codec = RowCodec(self.schema, {s.version: s for s in index_schemas(schemas, index)})
        self._rows = RowCodec(table)
        self.names = [column.name for column in self.schema.columns]
        """The columns of the table that entries have."""
        self._own = self.codec.key_names[: len(index.columns)]
        self._row_key_names = self._rows.key_names

    def entry(self, row: Mapping[str, object]) -> tuple[bytes, bytes]:
        """(key, value) of the entry of one row."""
        key, value = self.codec.encode({name: row[name] for name in self.names})
        if not self.index.unique:
            return key, value
        own = [row[name] for name in self._own]
        return (key if None in own else self.codec.key(own)), value

    def entries(self, rows: Sequence[Mapping[str, object]] | pa.RecordBatch) -> Entries:
        """(keys, values) of the entries of many rows, in the order of the rows."""
        if isinstance(rows, list | tuple):
            pairs = [self.entry(row) for row in rows]
            return [key for key, _ in pairs], [value for _, value in pairs]
        return self._of_batch(rows)

    def _of_batch(self, batch: Any) -> Entries:
        """The same for a record batch with the table's columns, without a Python object for each value."""
        keys, values = self.codec.encode_batch(batch.select(self.names))
        if not self.index.unique or not keys:
            return keys, values
        from slackwater.codec.keys_arrow import encode_keys  # pyarrow only when it is used

        own = [batch.column(name) for name in self._own]
        short = encode_keys(self.codec.prefix, self.codec.key_types[: len(own)], own)
        if not any(column.null_count for column in own):
            return short, values
        nulls = [any(found) for found in zip(*(column.is_null().to_pylist() for column in own), strict=True)]
        return [key if null else brief for key, brief, null in zip(keys, short, nulls, strict=True)], values

    def entry_arrays(self, batch: pa.RecordBatch) -> tuple[Any, Any]:
        """(keys, values) of the entries of a batch with at least the columns of `names`, as binary arrays."""
        import pyarrow.compute as pac

        from slackwater.codec.encode_arrow import encode_arrays
        from slackwater.codec.keys_arrow import encode_key_array

        pc: Any = pac
        keys, values = encode_arrays(self.codec, batch.select(self.names))
        if not self.index.unique:
            return keys, values
        own = [batch.column(name) for name in self._own]
        brief = encode_key_array(self.codec.prefix, self.codec.key_types[: len(own)], own)
        for column in own:
            if column.null_count:
                brief = pc.if_else(column.is_null(), keys, brief)
        return brief, values

    def is_shared(self, row: Mapping[str, object]) -> bool:
        """Whether another row with the same values would have the same key: a unique index, and no NULL."""
        return self.index.unique and all(row[name] is not None for name in self._own)

    def key(self, values: Sequence[object]) -> bytes:
        """The key of a unique index's entry, from the values of its own columns; of other indexes, or fewer values, a prefix."""
        return self.codec.key(values)

    def row_key(self, value: bytes) -> bytes:
        """The key of the row that an entry names, from the entry's value."""
        entry = self.codec.decode(value)
        return self._rows.key([entry[name] for name in self._row_key_names])

    def row_keys(self, batch: pa.RecordBatch) -> list[bytes]:
        """The keys of the rows that entries name, from a batch with the columns of the primary key."""
        from slackwater.codec.keys_arrow import encode_keys

        if not batch.num_rows:
            return []
        return encode_keys(
            self._rows.prefix, self._rows.key_types, [batch.column(name) for name in self._row_key_names]
        )

    def values_of(self, row: Mapping[str, object]) -> dict[str, object]:
        """A row's values of the index's own columns, for messages."""
        return {name: row[name] for name in self._own}
