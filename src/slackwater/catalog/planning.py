"""Plans what a write of rows means for a table's secondary indexes and checks. Pure: reads are asked for, not made.

    rows of a client ──► WritePlanner.begin ──► RowWrites.reads: keys to read in the transaction, old rows and unique values
                                                    │ further_reads: only where a unique index is not complete yet
                                                    ▼ what was found
                                                RowWrites.plan ──► Planned: puts and deletes of rows and entries,
                                                                   or one error and nothing

One planner serves single rows, transactions, bulk blocks and staged writes. A few rows are planned one by one, many as record
batches (`codec.index_entries`); both give the same plan, which `tests/property/test_planning.py` holds.

What an index gets, by its state (`model.indexes`; the version that the writer uses decides):

    state          a row is deleted       a row is inserted    a row is updated
    delete-only    its entry is deleted   -                    its entry is deleted if it changes; none is put
    write-only,    its entry is deleted   its entry is put     the old entry is deleted if its key changes, the new one is put;
    backfilling,                                               what does not change is not written, *also where there is none*:
    validated,                                                 the backfill puts what the old row had and the new one has
    public                                                     (pitfall 50)

So an update reads the row that it replaces, an insert does not have to, and a table without indexes reads nothing at all.

Unique values are held apart by reading: the entry of each new value is read in the transaction that writes it, so of two that
write one value at the same time one is retried and then finds the other's. A value that another row of the same write gives up
is free. While a unique index is not complete, two rows may still have one value, and the entry may be either's: an entry is
then deleted only by the row that it names. Where there is none, a row that goes leaves a deletion: a backfill that read the row
before finds it, and puts no entry (`catalog.bulk_fill`).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from slackwater.codec.damage import decode_row
from slackwater.codec.index_entries import IndexCodec
from slackwater.codec.row_checks import ONE_BY_ONE_MAX
from slackwater.codec.rows import RowCodec
from slackwater.errors import (
    ConditionFailed,
    ConstraintViolation,
    DecodeError,
    NotNullViolation,
    UniqueViolation,
)
from slackwater.model.conditions import bind_condition, condition_holds
from slackwater.model.predicates import Op
from slackwater.protocol.client.calls import WriteKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from slackwater.model.indexes import Check, Index
    from slackwater.model.predicates import Predicate
    from slackwater.model.schema import TableSchema
    from slackwater.model.tables import TableDescriptor, TableHistory

    Found = Mapping[bytes, bytes | None]
    """What the reads of a write found, by key; None where there is nothing."""

PLANNERS_KEPT_MAX = 1024


class Planned(NamedTuple):
    """The writes of one request: rows and entries together. No key is in both."""

    puts: dict[bytes, bytes]
    deletes: list[bytes]


def is_plain(table: TableDescriptor) -> bool:
    """Whether writes of a table's rows need no planning: it has neither indexes nor checks."""
    return not (table.indexes or table.checks)


def needs_old(table: TableDescriptor, kind: WriteKind) -> bool:
    """Whether a write has to read the rows that it replaces or deletes."""
    return bool(table.indexes) and kind is not WriteKind.INSERT


class WritePlanner:
    """Plans writes to one table, by one version of its descriptor; rows may be of any version in `schemas`."""

    def __init__(self, table: TableDescriptor, schemas: Iterable[TableSchema] = ()) -> None:
        self.table = table
        self.schemas = tuple(schemas)
        self._by_version = {schema.version: schema for schema in self.schemas}
        self._codec = RowCodec(table.schema, self._by_version)
        self.indexes = [IndexCodec(table.schema, index, self.schemas) for index in table.indexes]
        assert all(index.id > table.schema.index_id for index in table.indexes), (
            "entries lie above the rows that they are of: ids of indexes are given out after the id of the rows"
        )

    def begin(self, kind: WriteKind, keys: Sequence[bytes], values: Sequence[bytes]) -> RowWrites:
        """The plan of one write; what is wrong with its rows by themselves is said here."""
        return RowWrites(self, kind, keys, values)

    def rows_of(self, keys: Sequence[bytes], values: Sequence[bytes]) -> Any:
        """Rows as this version of the table sees them: a list of dicts when they are few, else a record batch."""
        if len(values) <= ONE_BY_ONE_MAX:
            return [decode_row(self._codec, key, value) for key, value in zip(keys, values, strict=True)]
        try:
            return self._batch(values)
        except DecodeError:
            for key, value in zip(keys, values, strict=True):
                decode_row(self._codec, key, value)  # says which one
            raise

    def _batch(self, values: Sequence[bytes]) -> Any:
        from slackwater.codec.rows_arrow import BlockDecoder  # pyarrow only when it is used

        batch = BlockDecoder(self.table.schema, self._by_version).decode(values)
        assert batch.num_rows == len(values), "every row is decoded"
        return batch

    # --- checks

    @cached_property
    def _checks(self) -> list[tuple[Check, tuple[Predicate, ...]]]:
        written = [check for check in self.table.checks if check.state.written]
        return [(check, bind_condition(self.table.schema, check.text)) for check in written]

    def check(self, keys: Sequence[bytes], rows: Any) -> None:
        """Refuse rows (of `rows_of`) that make a check false."""
        for check, condition in self._checks:
            number = self._first_violation(condition, rows)
            if number is None:
                continue
            of_null = len(condition) == 1 and condition[0].op is Op.IS_NOT_NULL
            kind = NotNullViolation if of_null else ConstraintViolation
            raise kind(
                f"a row of table {self.table.name} does not satisfy check {check.name} ({check.text}); nothing was written",
                check=check.name,
                key=self._codec.decode_key(keys[number]),
            )

    def _first_violation(self, condition: tuple[Predicate, ...], rows: Any) -> int | None:
        """The number of the first row that makes a condition false."""
        if isinstance(rows, list):
            return next((number for number, row in enumerate(rows) if not condition_holds(condition, row)), None)
        from slackwater.codec.conditions_arrow import violations  # pyarrow only when it is used

        return next(iter(violations(self.table.schema, condition, rows)), None)


class RowWrites:
    """One write on its way from rows to a plan."""

    def __init__(self, planner: WritePlanner, kind: WriteKind, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        assert kind is WriteKind.DELETE or len(keys) == len(values), "a value for every row"
        self._planner = planner
        self._table = planner.table
        self._kind = kind
        self._keys = keys
        self._values = values
        self._writing = kind is not WriteKind.DELETE
        new = planner.rows_of(keys, values) if self._writing else []
        if self._writing:
            planner.check(keys, new)
        assert not self._writing or len(new) == len(keys), "every row that is written was decoded"
        self._after = [_Side(keys, *codec.entries(new)) if self._writing else _NOTHING for codec in planner.indexes]
        self._before: list[_Side] | None = None

    def reads(self) -> list[bytes]:
        """The keys that the transaction has to read before `plan`: rows, then entries."""
        kind = self._kind
        wanted = list(self._keys) if kind is WriteKind.INSERT or needs_old(self._table, kind) else []
        for codec, after in zip(self._planner.indexes, self._after, strict=True):
            if codec.index.unique and codec.index.state.written:
                wanted += after.keys
        assert self._table.indexes or kind is WriteKind.INSERT or not wanted, "a table without indexes reads nothing"
        return wanted

    def further_reads(self, found: Found) -> list[bytes]:
        """What else has to be read, now that the old rows are known: entries that may be another row's."""
        wanted: dict[bytes, None] = {}
        for codec, before in zip(self._planner.indexes, self._old(found), strict=True):
            if _may_be_anothers(codec.index):
                wanted.update(dict.fromkeys(before.keys))
        return [key for key in wanted if key not in found]

    def plan(self, found: Found) -> Planned:
        """Every write that belongs to these rows; an error if one breaks a rule of the table, and then nothing is written."""
        if self._kind is WriteKind.INSERT:
            _check_new(self._keys, found)
        puts = dict(zip(self._keys, self._values, strict=True)) if self._writing else {}
        deletes = [] if self._writing else list(self._keys)
        for codec, before, after in zip(self._planner.indexes, self._old(found), self._after, strict=True):
            if codec.index.unique and codec.index.state.written:
                self._check_unique(codec, before, after, found)
            _plan_entries(codec, before, after, found, puts, deletes)
        assert puts.keys().isdisjoint(deletes), "what is written is not deleted"
        assert self._writing or not puts, "a deletion writes nothing"
        assert not self._writing or puts.keys() >= set(self._keys), "every row is written"
        return Planned(puts, deletes)

    def _old(self, found: Found) -> list[_Side]:
        """The entries of the rows that are there, index by index."""
        if self._before is None:
            keys = [] if self._kind is WriteKind.INSERT else [key for key in self._keys if found.get(key) is not None]
            rows = self._planner.rows_of(keys, [found[key] or b"" for key in keys])
            self._before = [_Side(keys, *codec.entries(rows)) if keys else _NOTHING for codec in self._planner.indexes]
        return self._before

    def _check_unique(self, codec: IndexCodec, before: _Side, after: _Side, found: Found) -> None:
        """Refuse values that two rows of the write have, or that a row has which keeps them."""
        if len(after.by_key) != len(after.keys):
            seen: set[bytes] = set()
            for key, value in zip(after.keys, after.values, strict=True):
                if key in seen:
                    raise self._violation(codec, value, "two rows of this write have the same values")
                seen.add(key)
        for key, value, row in zip(after.keys, after.values, after.rows, strict=True):
            entry = found.get(key)
            if entry is None:
                continue
            owner = codec.row_key(entry)
            if owner != row and (key, owner) not in before.owned:
                raise self._violation(codec, value, "another row has these values")

    def _violation(self, codec: IndexCodec, entry: bytes, why: str) -> UniqueViolation:
        values = codec.values_of(codec.codec.decode(entry))
        shown = ", ".join(f"{name}={value!r}" for name, value in values.items())
        return UniqueViolation(
            f"unique index {codec.index.name} of table {self._table.name}: {why} ({shown}); nothing was written",
            index=codec.index.name,
            values=values,
        )


def _plan_entries(
    codec: IndexCodec, before: _Side, after: _Side, found: Found, puts: dict[bytes, bytes], deletes: list[bytes]
) -> None:
    """Add the writes to one index, by its state."""
    index, old, new = codec.index, before.by_key, after.by_key
    if index.state.written:
        # Where old rows share a key, which of them its entry names is not known: it is written.
        unchanged = old if len(old) == len(before.keys) else {}
        puts.update((key, value) for key, value in new.items() if unchanged.get(key) != value)
        gone = [key for key in old if key not in new]
    else:
        gone = [key for key, value in old.items() if new.get(key) != value]
    if _may_be_anothers(index):
        gone = [key for key in gone if _is_own_or_none(codec, key, found.get(key), before)]
    assert new.keys().isdisjoint(gone) or not index.state.written, "an entry that is put is not deleted"
    deletes += gone


def _may_be_anothers(index: Index) -> bool:
    """Whether an entry may be that of another row with the same values: the index is unique, and not known to be so yet."""
    return index.unique and not index.state.public


def _is_own_or_none(codec: IndexCodec, key: bytes, entry: bytes | None, side: _Side) -> bool:
    """Whether no entry is there, or one that names one of the rows that have its key."""
    return entry is None or (key, codec.row_key(entry)) in side.owned


def _check_new(keys: Sequence[bytes], found: Found) -> None:
    for key in keys:
        if (actual := found.get(key)) is not None:
            raise ConditionFailed("the key has a value already", key=key, actual=actual)


class _Side:
    """The entries of rows, before or after a write, in the order of the rows."""

    def __init__(self, rows: Sequence[bytes], keys: list[bytes], values: list[bytes]) -> None:
        assert len(rows) == len(keys) == len(values), "every row has one entry"
        self.rows = rows
        self.keys = keys
        self.values = values
        self.by_key = dict(zip(keys, values, strict=True))

    @cached_property
    def owned(self) -> set[tuple[bytes, bytes]]:
        """(key of an entry, key of its row)."""
        return set(zip(self.keys, self.rows, strict=True))


_NOTHING = _Side([], [], [])


class WritePlanners:
    """Keeps one `WritePlanner` per version of each table in use."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], WritePlanner] = {}

    def of(self, history: TableHistory, table: TableDescriptor) -> WritePlanner:
        """The planner for one version of a table."""
        name = (table.table_id, table.version)
        planner = self._kept.get(name)
        if planner is None or len(planner.schemas) != len(history.versions):
            if len(self._kept) >= PLANNERS_KEPT_MAX:
                self._kept.clear()
            planner = self._kept[name] = WritePlanner(table, history.schemas())
        assert len(self._kept) <= PLANNERS_KEPT_MAX, "planners that are kept are bounded"
        assert planner.table.version == table.version, "a write is planned by the version that it names (I-30)"
        return planner
