"""Changes of a feed by the schema of their time: which version of a table holds when, and batches of one version each.

A table's descriptor changes while its feed runs. Every event is shown by the version that was in force *at its commit
timestamp* (`Timeline`), whatever version wrote the bytes: columns meet by id, as on every read path. A block that spans a
schema change comes out as one batch per version (`codec.changes_arrow` makes it, and says what its columns are):

    timeline      v1 from 0            v2 from 30 (column added)
    changes       a@10  b@40  a@50  c@20
    batches       v1: a@10 c@20        v2: b@40 a@50          each key's order is kept, because versions ascend with time
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from slackwater.clock.timestamp import Timestamp, show
from slackwater.codec.arrow import arrow_fields
from slackwater.codec.bulk_arrow import unpack
from slackwater.codec.changes_arrow import ChangeDecoder, change_schema, rows_of
from slackwater.codec.damage import damaged_row, first_damaged
from slackwater.codec.layout import split_table_key
from slackwater.codec.rows_arrow import BlockDecoder
from slackwater.errors import DecodeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from slackwater.model.changes import Changes, InitialPage
    from slackwater.model.schema import TableSchema

    Array = np.ndarray[Any, Any]

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
        self._decoders: dict[tuple[int, int], ChangeDecoder] = {}

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

    def initial(self, page: InitialPage) -> list[Envelopes]:
        """The batches of a table as of one instant that came as columns."""
        schema = self.timeline.written.get(page.version)
        if schema is None:
            raise DecodeError("rows came by a version of the table that was not sent before", version=page.version)
        decoder = self._decoder(schema)
        batches = unpack(page.blocks, arrow_fields(schema.columns), page.patches)
        return [Envelopes(schema, decoder.present_at(batch, page.ts)) for batch in batches if batch.num_rows]

    def schema(self, schema: TableSchema) -> Any:
        """The Arrow schema of the batches of one version."""
        return change_schema(schema, befores=self._befores, txn_ids=self._txn_ids)

    def _batch(self, changes: Changes, schema: TableSchema) -> Any:
        """One batch; when a row cannot be decoded, the error with its key and commit."""
        try:
            return self._decoder(schema).decode(rows_of(changes))
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

    def _decoder(self, schema: TableSchema) -> ChangeDecoder:
        name = schema.version, len(self.timeline.written)  # a decoder knows the versions there were when it was made
        found = self._decoders.get(name)
        if found is None:
            found = self._decoders[name] = ChangeDecoder(
                schema, self.timeline.written, befores=self._befores, txn_ids=self._txn_ids
            )
        return found


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
