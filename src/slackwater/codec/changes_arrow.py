"""Changes of rows as record batches: the one decoder and the one row schema, for feeds, reads of an interval, files and Spark.

    _op         insert | update | delete; where it is not known whether a row was there before: upsert | delete
    _commit_ts  the commit timestamp, the 64-bit integer it is everywhere
    _txn        the transaction, where the serving replica knew it
    _version    the version of the table that the row is shown by
    _before     with `befores`: the row before, NULL when there was none
    id, name …  the row after; of a deletion only its primary key

Two ways lead here. A feed pushes versions as they commit, and the consumer's side decodes them (`codec.envelope`, which shows
each by the version of its commit). A read of an interval finds them in the store, and the replica decodes them
(`storage.changes`), all by the one version that the reader asked for. The result is the same:

    values   a1   b2   -    c3         as stored, by whichever version; empty: the row was deleted
    befores  -    b1   d1   -          what each replaced, where it was asked for
                        └── its primary key is all there is of the row after: decoded from the key, put into the gap by mask

No Python object per row is made: values go through `rows_arrow.BlockDecoder` as one block, and gaps are a `take` with NULL
places. Spark's names for the same facts (`_change_type` and so on) are given by `spark.change_rows`, and nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.compute as pac

from slackwater.codec.arrow import arrow_type
from slackwater.codec.key_columns import key_columns
from slackwater.codec.rows_arrow import BlockDecoder
from slackwater.errors import UsageError
from slackwater.model.reserved import BEFORE, COMMIT_TS, FEED_COLUMNS, OP, TXN, VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slackwater.model.changes import Changes
    from slackwater.model.schema import Column, TableSchema

    Array = np.ndarray[Any, Any]

pa: Any = pyarrow
pc: Any = pac

OPS = ("delete", "upsert", "insert", "update")
_DELETE, _UPSERT, _INSERT, _UPDATE = range(4)


class ChangeRows(NamedTuple):
    """Some changes in order; row i has `values[i]`, empty where the row was deleted."""

    values: list[bytes]
    timestamps: Array | list[int]
    gone: list[bytes]
    """The keys of the rows that were deleted, in order."""
    had: Array | None = None
    """Whether a row was there before; None: not known."""
    befores: list[bytes] | None = None
    """What each replaced, empty where there was nothing; None: not asked for."""
    txn_ids: list[bytes] | None = None


def rows_of(changes: Changes) -> ChangeRows:
    """A block of a feed, for the decoder."""
    keys, values, befores = changes.keys, changes.values, changes.befores
    gone = [key for key, value in zip(keys, values, strict=True) if not value] if b"" in values else []
    had = None if befores is None else present(befores)
    return ChangeRows(values, changes.timestamps, gone, had, befores, changes.txn_ids)


class ChangeDecoder:
    """Turns changes of one table into record batches by one version of it."""

    def __init__(
        self,
        table: TableSchema,
        written: Mapping[int, TableSchema],
        *,
        columns: Sequence[str] | None = None,
        befores: bool = False,
        txn_ids: bool = True,
    ) -> None:
        """`written` are the versions that may have written the bytes."""
        self.schema = change_schema(table, columns, befores=befores, txn_ids=txn_ids)
        self._table = table
        self._columns = _chosen(table, columns)
        self._befores = befores
        self._txn_ids = txn_ids
        self._rows = BlockDecoder(table, dict(written), [column.name for column in self._columns])

    def decode(self, changes: ChangeRows) -> Any:
        """One record batch."""
        size = len(changes.values)
        live = present(changes.values)
        columns = self._spread(changes.values, live)
        if changes.gone:
            found, missing = key_columns(changes.gone, self._table), pa.array(~live)
            for at, column in enumerate(self._columns):
                if column.name in found:
                    columns[at] = pc.replace_with_mask(columns[at], missing, found[column.name])
        arrays = [_ops(live, changes.had), pa.array(changes.timestamps, pa.int64())]
        if self._txn_ids:
            arrays.append(_txns(changes.txn_ids, size))
        arrays.append(pa.repeat(pa.scalar(self._table.version, pa.int64()), size))
        if self._befores:
            arrays.append(self._before(changes))
        return pa.RecordBatch.from_arrays([*arrays, *columns], schema=self.schema)

    def present_at(self, rows: Any, ts: int) -> Any:
        """A record batch of rows, which a scan decoded by this version, as what was there at a timestamp: nothing before it."""
        size = rows.num_rows
        op = OPS[_INSERT if self._befores else _UPSERT]
        arrays = [pa.repeat(pa.scalar(op), size), pa.repeat(pa.scalar(ts, pa.int64()), size)]
        if self._txn_ids:
            arrays.append(pa.nulls(size, pa.binary()))
        arrays.append(pa.repeat(pa.scalar(self._table.version, pa.int64()), size))
        if self._befores:
            arrays.append(pa.nulls(size, self.schema.field(BEFORE).type))
        return pa.RecordBatch.from_arrays([*arrays, *rows.columns], schema=self.schema)

    def _before(self, changes: ChangeRows) -> Any:
        if changes.befores is None or changes.had is None:
            raise UsageError("these changes come without what they replaced; ask for before-images")
        fields = [pa.field(c.name, arrow_type(c.type)) for c in self._columns]
        if not fields:
            return pa.nulls(len(changes.values), pa.struct([]))
        arrays = self._spread(changes.befores, changes.had)
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(~changes.had))

    def _spread(self, values: Sequence[bytes], there: Array) -> list[Any]:
        """The columns of the values that are there, with NULLs in the place of the others."""
        if there.all():
            return list(self._rows.decode(values).columns)
        found = self._rows.decode([value for value in values if value])
        places = pa.array(np.cumsum(there) - 1, pa.int64(), mask=~there)
        return [column.take(places) for column in found.columns]


def change_schema(
    table: TableSchema, columns: Sequence[str] | None = None, *, befores: bool = False, txn_ids: bool = True
) -> Any:
    """The Arrow schema of changes by one version of a table, with all of its columns or some."""
    check_followable(table)
    keys = {column.id for column, _ in table.key_columns()}
    chosen = _chosen(table, columns)
    fields = [pa.field(OP, pa.string(), nullable=False), pa.field(COMMIT_TS, pa.int64(), nullable=False)]
    if txn_ids:
        fields.append(pa.field(TXN, pa.binary()))
    fields.append(pa.field(VERSION, pa.int64(), nullable=False))
    if befores:
        fields.append(pa.field(BEFORE, pa.struct([pa.field(c.name, arrow_type(c.type)) for c in chosen])))
    return pa.schema([*fields, *(pa.field(c.name, arrow_type(c.type), nullable=c.id not in keys) for c in chosen)])


def check_followable(schema: TableSchema) -> None:
    """Refuse a table that has columns of the names that changes add; made before such names were refused."""
    taken = [column.name for column in schema.columns if column.name in FEED_COLUMNS]
    if taken:
        raise UsageError(
            f"no change feed can follow table {schema.name}: it has {', '.join(taken)}, which every feed adds as its own"
            f" ({', '.join(FEED_COLUMNS)}); create a table without such names, copy the rows there and follow that one",
            table=schema.name,
        )


def present(values: Sequence[bytes]) -> Array:
    """Which values are not empty."""
    return np.fromiter(map(len, values), np.int64, len(values)) > 0


def _chosen(table: TableSchema, columns: Sequence[str] | None) -> list[Column]:
    return list(table.columns) if columns is None else [table.column(name) for name in columns]


def _ops(live: Array, had: Array | None) -> Any:
    codes = np.where(live, _UPSERT if had is None else np.where(had, _UPDATE, _INSERT), _DELETE)
    return pa.array(OPS).take(pa.array(codes))


def _txns(txn_ids: list[bytes] | None, size: int) -> Any:
    if txn_ids is None:
        return pa.nulls(size, pa.binary())
    ids = pa.array(txn_ids, pa.binary())
    return pc.if_else(pc.equal(pc.binary_length(ids), 0), pa.scalar(None, pa.binary()), ids)
