"""Versions as rows: Arrow record batches with the columns of the table and what happened to them.

    _op         insert | update | delete with before-images; without them nobody knows whether a row was there: upsert | delete
    _commit_ts  the commit timestamp, the 64-bit integer it is everywhere
    _txn        the transaction, where the serving replica knew it
    _version    the descriptor version in force at the commit timestamp
    _before     with `befores`: the row before, NULL when there was none
    id, name …  the row after; of a deletion only its primary key

The schema as of the event. A table's descriptor changes while its feed runs. Every event is decoded with the version that
was in force *at its commit timestamp* (`Timeline`), whatever version wrote the bytes: columns meet by id, as on every read
path. A block that spans a schema change comes out as one batch per version:

    timeline      v1 from 0            v2 from 30 (column added)
    changes       a@10  b@40  a@50  c@20
    batches       v1: a@10 c@20        v2: b@40 a@50          each key's order is kept, because versions ascend with time

There is no Python object per row on the way: values go through `codec.rows_arrow.BlockDecoder`, deletions become NULLs by one
`take` with gaps, and their key columns are put in by mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.compute as pac

from slackwater.clock.timestamp import Timestamp, show
from slackwater.codec.arrow import arrow_type
from slackwater.codec.damage import damaged_row, first_damaged
from slackwater.codec.key_columns import key_columns
from slackwater.codec.layout import split_table_key
from slackwater.codec.rows_arrow import BlockDecoder
from slackwater.errors import DecodeError, UsageError
from slackwater.model.reserved import BEFORE, COMMIT_TS, FEED_COLUMNS, OP, TXN, VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from slackwater.model.changes import Changes
    from slackwater.model.schema import TableSchema

    Array = np.ndarray[Any, Any]

pa: Any = pyarrow
pc: Any = pac
OPS = ("delete", "upsert", "insert", "update")
_DELETE, _UPSERT, _INSERT, _UPDATE = range(4)
TABLE_PREFIX_BYTES = 7
VERSIONS_MAX = 10_000
"""Descriptor versions of one table that a feed keeps; older ones can be forgotten below its frontier."""


class Timeline:
    """Which descriptor version of one table was in force when."""

    def __init__(self, versions: Sequence[tuple[Timestamp, TableSchema]], *, older: Iterable[TableSchema] = ()) -> None:
        """(in force from, schema), ascending, each until the next; `older` ones may still have written what is read."""
        if not versions:
            raise UsageError("a timeline needs at least one schema")
        self._from: list[Timestamp] = []
        self.schemas: list[TableSchema] = []
        self.written = {schema.version: schema for schema in older}
        """Every version whose bytes can be decoded."""
        for since, schema in versions:
            self.add(since, schema)

    def add(self, since: Timestamp, schema: TableSchema) -> None:
        """The table changes: from `since` on, this schema is in force."""
        if self.schemas:
            last = self.schemas[-1]
            if since <= self._from[-1] or schema.version <= last.version or schema.table_id != last.table_id:
                raise UsageError("schemas of one table come in order of time and version", version=schema.version)
        if len(self.schemas) >= VERSIONS_MAX:
            raise UsageError("forget older schemas first", limit=VERSIONS_MAX)
        self._from.append(since)
        self.schemas.append(schema)
        self.written[schema.version] = schema

    def at(self, ts: Timestamp) -> TableSchema:
        """The schema in force at `ts`."""
        return self.schemas[int(self.places([ts])[0])]

    def places(self, timestamps: Sequence[int]) -> Array:
        """For each timestamp, the index of its schema."""
        found = np.searchsorted(np.array(self._from, np.int64), np.array(timestamps, np.int64), side="right") - 1
        if len(found) and found.min() < 0:
            raise DecodeError("an event is older than the first schema known", ts=show(Timestamp(min(timestamps))))
        return found


def check_followable(schema: TableSchema) -> None:
    """Refuse a table that has columns of the names that a feed adds; made before such names were refused."""
    taken = [column.name for column in schema.columns if column.name in FEED_COLUMNS]
    if taken:
        raise UsageError(
            f"no change feed can follow table {schema.name}: it has {', '.join(taken)}, which every feed adds as its own"
            f" ({', '.join(FEED_COLUMNS)}); create a table without such names, copy the rows there and follow that one",
            table=schema.name,
        )


class Envelopes(NamedTuple):
    """Rows of one table under one schema."""

    schema: TableSchema
    batch: Any
    """A `pyarrow.RecordBatch`."""


class Enveloper:
    """Turns blocks of one table's changes into record batches."""

    def __init__(self, timeline: Timeline, *, befores: bool = False, txn_ids: bool = True) -> None:
        self.timeline = timeline
        self._befores = befores
        self._txn_ids = txn_ids
        self._decoders: dict[tuple[int, int], BlockDecoder] = {}

    def batches(self, changes: Changes) -> list[Envelopes]:
        """One batch per schema version in force, oldest version first."""
        if not len(changes):
            return []
        first, last = self.timeline.places([min(changes.timestamps), max(changes.timestamps)]).tolist()
        if first == last:
            schema = self.timeline.schemas[first]
            return [Envelopes(schema, self._batch(changes, schema))]
        places = self.timeline.places(changes.timestamps)
        out = []
        for place in np.unique(places):
            schema = self.timeline.schemas[int(place)]
            part = changes.pick(np.flatnonzero(places == place).tolist())
            out.append(Envelopes(schema, self._batch(part, schema)))
        return out

    def under(self, changes: Changes, schema: TableSchema) -> Envelopes:
        """One batch under one schema, whenever the rows were committed: for a table as of one instant."""
        return Envelopes(schema, self._batch(changes, schema))

    def schema(self, schema: TableSchema) -> Any:
        """The Arrow schema of the batches of one version."""
        check_followable(schema)
        keys = {column.name for column, _ in schema.key_columns()}
        rows = [pa.field(c.name, arrow_type(c.type), nullable=c.name not in keys) for c in schema.columns]
        fields = [pa.field(OP, pa.string(), nullable=False), pa.field(COMMIT_TS, pa.int64(), nullable=False)]
        if self._txn_ids:
            fields.append(pa.field(TXN, pa.binary()))
        fields.append(pa.field(VERSION, pa.int64(), nullable=False))
        if self._befores:
            fields.append(pa.field(BEFORE, _struct_type(schema)))
        return pa.schema([*fields, *rows])

    def _batch(self, changes: Changes, schema: TableSchema) -> Any:
        """One batch; when a row cannot be decoded, the error with its key and commit."""
        try:
            return self._decoded(changes, schema)
        except DecodeError as error:
            decode = BlockDecoder(schema, self.timeline.written).decode
            for values in (changes.values, changes.befores or []):
                present = [at for at, value in enumerate(values) if value]
                found = first_damaged(decode, [values[at] for at in present])
                if found is not None:
                    at, why = present[found[0]], found[1]
                    ts = Timestamp(changes.timestamps[at])
                    raise damaged_row(schema, changes.keys[at], why, committed=ts) from error
            raise

    def _decoded(self, changes: Changes, schema: TableSchema) -> Any:
        size = len(changes)
        live = _present(changes.values)
        columns = self._spread(changes.values, live, schema)
        had = None
        if self._befores:
            if changes.befores is None:
                raise UsageError("the range feed was not asked for before-images; register with befores")
            had = _present(changes.befores)
        if not live.all():
            gone = np.flatnonzero(~live)
            found = key_columns([changes.keys[i] for i in gone.tolist()], schema)
            for name, array in found.items():
                columns[name] = pc.replace_with_mask(columns[name], pa.array(~live), array)
        arrays = [_ops(live, had), pa.array(changes.timestamps, pa.int64())]
        if self._txn_ids:
            arrays.append(_txns(changes.txn_ids, size))
        arrays.append(pa.repeat(pa.scalar(schema.version, pa.int64()), size))
        if self._befores and changes.befores is not None and had is not None:
            before = self._spread(changes.befores, had, schema)
            arrays.append(
                pa.StructArray.from_arrays(list(before.values()), fields=_fields(schema), mask=pa.array(~had))
            )
        return pa.RecordBatch.from_arrays([*arrays, *columns.values()], schema=self.schema(schema))

    def _spread(self, values: Sequence[bytes], present: Array, schema: TableSchema) -> dict[str, Any]:
        """The columns of the present values, with NULLs in the place of the others."""
        name = schema.version, len(self.timeline.written)  # a decoder knows the versions there were when it was made
        decoder = self._decoders.get(name)
        if decoder is None:
            decoder = self._decoders[name] = BlockDecoder(schema, self.timeline.written)
        if present.all():
            batch = decoder.decode(values)
            return dict(zip(batch.schema.names, batch.columns, strict=True))
        batch = decoder.decode([value for value in values if value])
        places = pa.array(np.cumsum(present) - 1, mask=~present)
        return {name: column.take(places) for name, column in zip(batch.schema.names, batch.columns, strict=True)}


def by_table(changes: Changes) -> dict[tuple[int, int], Changes]:
    """Blocks of one index each, by (table id, index id); keys of no table are left out."""
    keys = changes.keys
    if not keys:
        return {}
    # Whatever lies between two keys of one index is of that index.
    if min(keys)[:TABLE_PREFIX_BYTES] == max(keys)[:TABLE_PREFIX_BYTES] and _is_table(keys[0]):
        return {split_table_key(keys[0])[:2]: changes}
    prefixes = {key[:TABLE_PREFIX_BYTES] for key in keys}
    places: dict[bytes, list[int]] = {prefix: [] for prefix in sorted(prefixes) if _is_table(prefix)}
    for at, key in enumerate(keys):
        if (found := places.get(key[:TABLE_PREFIX_BYTES])) is not None:
            found.append(at)
    return {split_table_key(prefix)[:2]: changes.pick(found) for prefix, found in places.items()}


def _is_table(key: bytes) -> bool:
    try:
        split_table_key(key)
    except DecodeError:
        return False
    return True


def _present(values: Sequence[bytes]) -> Array:
    return np.fromiter(map(len, values), np.int64, len(values)) > 0


def _ops(live: Array, had: Array | None) -> Any:
    codes = np.where(live, _UPSERT if had is None else np.where(had, _UPDATE, _INSERT), _DELETE)
    return pa.array(OPS).take(pa.array(codes))


def _txns(txn_ids: list[bytes] | None, size: int) -> Any:
    if txn_ids is None:
        return pa.nulls(size, pa.binary())
    ids = pa.array(txn_ids, pa.binary())
    return pc.if_else(pc.equal(pc.binary_length(ids), 0), pa.scalar(None, pa.binary()), ids)


def _fields(schema: TableSchema) -> list[Any]:
    return [pa.field(c.name, arrow_type(c.type)) for c in schema.columns]


def _struct_type(schema: TableSchema) -> Any:
    return pa.struct(_fields(schema))
