"""The planner of index writes: every state of the ladder, unique values, checks."""

from __future__ import annotations

import pytest

from slackwater.catalog.planning import WritePlanner, needs_old
from slackwater.clock.timestamp import Timestamp
from slackwater.codec.index_entries import IndexCodec
from slackwater.codec.rows import RowCodec
from slackwater.errors import ConditionFailed, ConstraintViolation, DamagedRow, NotNullViolation, UniqueViolation
from slackwater.model.indexes import Check, ElementState, Index
from slackwater.model.kinds import INT, STRING
from slackwater.model.schema import Column, KeyColumn, TableSchema
from slackwater.model.tables import TableDescriptor
from slackwater.protocol.client.calls import WriteKind
from tests.table_helpers import entries_of

UPSERT, INSERT, DELETE = WriteKind.UPSERT, WriteKind.INSERT, WriteKind.DELETE
SCHEMA = TableSchema(
    7,
    "users",
    1,
    (Column(1, "id", INT, nullable=False), Column(2, "email", STRING), Column(3, "name", STRING)),
    (KeyColumn(1),),
)
CODEC = RowCodec(SCHEMA)
WRITTEN = [ElementState.WRITE_ONLY, ElementState.BACKFILLING, ElementState.VALIDATED, ElementState.PUBLIC]
FEW_OR_MANY = pytest.mark.parametrize("beside", [0, 40], ids=["one by one", "as a block"])


def table(*indexes: Index, checks: tuple[Check, ...] = ()) -> TableDescriptor:
    return TableDescriptor(SCHEMA, Timestamp(1), 4, indexes=indexes, checks=checks)


def by_name(state: ElementState = ElementState.PUBLIC) -> Index:
    return Index(2, "by_name", (KeyColumn(3),), state=state)


def by_email(state: ElementState = ElementState.PUBLIC) -> Index:
    return Index(3, "by_email", (KeyColumn(2),), unique=True, state=state)


def row(row_id: int, email: str | None = None, name: str | None = None) -> dict[str, object]:
    return {"id": row_id, "email": email, "name": name}


class Store:
    """The keys and values of one table, written by plans."""

    def __init__(self, *indexes: Index, checks: tuple[Check, ...] = ()) -> None:
        self.data: dict[bytes, bytes] = {}
        self.move(*indexes, checks=checks)

    def move(self, *indexes: Index, checks: tuple[Check, ...] = ()) -> None:
        """Another version of the table."""
        self.table = table(*indexes, checks=checks)
        self.planner = WritePlanner(self.table, [SCHEMA])

    def write(self, kind: WriteKind, *rows: dict[str, object]) -> tuple[int, int]:
        """Write rows; how many puts and deletes beside those of the rows."""
        pairs = sorted(CODEC.encode(r) for r in rows)
        keys = [key for key, _ in pairs]
        begun = self.planner.begin(kind, keys, [] if kind is DELETE else [value for _, value in pairs])
        found = {key: self.data.get(key) for key in begun.reads()}
        found |= {key: self.data.get(key) for key in begun.further_reads(found)}
        planned = begun.plan(found)
        assert not set(planned.puts) & set(planned.deletes)
        self.data.update(planned.puts)
        for key in planned.deletes:
            self.data.pop(key, None)
        return len(planned.puts) - (0 if kind is DELETE else len(keys)), len(planned.deletes) - (
            len(keys) if kind is DELETE else 0
        )

    def entries(self, index: Index) -> dict[bytes, bytes]:
        prefix = IndexCodec(SCHEMA, index).codec.prefix
        return {key: value for key, value in self.data.items() if key.startswith(prefix)}

    def wanted(self, index: Index) -> dict[bytes, bytes]:
        rows = {key: value for key, value in self.data.items() if key.startswith(CODEC.prefix)}
        return dict(zip(*entries_of(self.table, index, list(rows), list(rows.values())), strict=True))


def others(count: int) -> list[dict[str, object]]:
    return [row(1000 + n, f"m{n}@x", f"n{n}") for n in range(count)]


def test_what_has_to_be_read() -> None:
    plain, indexed = table(), table(by_name())
    assert [needs_old(plain, kind) for kind in WriteKind] == [False] * 3
    assert needs_old(indexed, UPSERT)
    assert needs_old(indexed, DELETE)
    assert not needs_old(indexed, INSERT)
    assert not needs_old(table(checks=(Check(2, "c", (1,), "id > 0"),)), UPSERT)
    key, value = CODEC.encode(row(1, "a", "n"))
    assert WritePlanner(indexed).begin(UPSERT, [key], [value]).reads() == [key]
    unique = WritePlanner(table(by_email())).begin(UPSERT, [key], [value])
    assert len(unique.reads()) == 2
    assert unique.reads()[0] == key


@FEW_OR_MANY
@pytest.mark.parametrize("state", list(ElementState))
def test_every_kind_of_write_in_every_state_of_an_index(state: ElementState, beside: int) -> None:
    index = by_name(state)
    store = Store(index)
    written = int(state.written)
    more = others(beside)
    assert store.write(INSERT, row(1, "a", "ada"), *more) == (written * (1 + beside), 0)
    changed = store.write(UPSERT, row(1, "b", "ada"), *more)
    assert changed == (0, 0), "what does not change is not written, in no state"
    assert store.write(UPSERT, row(1, "b", "bea"), *more)[1] == 1
    if written:
        assert store.entries(index) == store.wanted(index)
    else:
        assert store.entries(index) == {}
    store.write(DELETE, row(1), *more)
    assert store.data == {}
    assert store.write(DELETE, row(1)) == (0, 0)


BUILT = [ElementState.WRITE_ONLY, ElementState.BACKFILLING, ElementState.VALIDATED]


@pytest.mark.parametrize("state", BUILT)
def test_an_entry_that_does_not_change_is_left_to_the_backfill_and_one_that_changes_leaves_a_trace(
    state: ElementState,
) -> None:
    # pitfall 50: the backfill reads every row after this state was published, so also one that is written as it was
    for index in (by_name(state), by_email(state)):
        store = Store()
        store.write(INSERT, row(1, "a", "ada"))
        store.move(index)
        assert store.write(UPSERT, row(1, "a", "ada")) == (0, 0)
        assert store.entries(index) == {}
        assert store.write(UPSERT, row(1, "b", "bea")) == (1, 1), (
            "the old entry is deleted, although it was never there"
        )
        assert store.entries(index) == store.wanted(index)
        assert store.write(UPSERT, row(1, "b", "bea")) == (0, 0)
        assert store.entries(index) == store.wanted(index)


@FEW_OR_MANY
@pytest.mark.parametrize("state", BUILT)
@pytest.mark.parametrize("filled", [1, 2])
def test_rows_that_had_one_value_leave_the_entry_to_the_one_that_keeps_it(
    state: ElementState, filled: int, beside: int
) -> None:
    store = Store()
    store.write(INSERT, row(1, "a"), row(2, "a"))  # from before the index
    index = by_email(state)
    key, value = IndexCodec(SCHEMA, index).entry(row(filled, "a"))
    store.data[key] = value  # the backfill has come as far as one of them
    for keeper, leaver in ((1, 2), (2, 1)):
        again = Store()
        again.data = dict(store.data)
        again.move(index)
        again.write(UPSERT, row(keeper, "a"), row(leaver, "b"), *others(beside))
        assert again.entries(index) == again.wanted(index)


def test_a_delete_only_writer_removes_what_a_write_only_writer_put() -> None:
    store = Store(by_name(ElementState.WRITE_ONLY))
    store.write(INSERT, row(1, "a", "ada"), row(2, "b", "bea"))
    store.move(by_name(ElementState.DELETE_ONLY))
    assert store.write(UPSERT, row(1, "a", "eve")) == (0, 1)
    assert store.write(UPSERT, row(2, "z", "bea")) == (0, 0)  # its entry stays right
    assert len(store.entries(by_name())) == 1
    store.write(DELETE, row(2))
    assert store.entries(by_name()) == {}


@FEW_OR_MANY
@pytest.mark.parametrize("state", WRITTEN)
@pytest.mark.parametrize("kind", [UPSERT, INSERT])
def test_a_unique_value_is_had_by_one_row(kind: WriteKind, state: ElementState, beside: int) -> None:
    store = Store(by_email(state))
    store.write(kind, row(1, "a", "ada"), row(2, None), row(3, None))
    before = dict(store.data)
    with pytest.raises(UniqueViolation, match=r"unique index by_email of table users: another row .*email='a'") as one:
        store.write(kind, row(4, "a"), *others(beside))
    assert one.value.sqlstate == "23505"
    assert one.value.facts == {"index": "by_email", "values": {"email": "a"}}
    with pytest.raises(UniqueViolation, match="two rows of this write"):
        store.write(kind, row(5, "q"), row(6, "q"), *others(beside))
    assert store.data == before
    store.write(UPSERT, row(1, "a", "anna"))
    store.write(UPSERT, row(1, "b"))
    store.write(kind, row(7, "a"))


@FEW_OR_MANY
def test_rows_of_one_write_may_exchange_unique_values(beside: int) -> None:
    index = by_email()
    store = Store(index)
    store.write(UPSERT, row(1, "a"), row(2, "b"))
    store.write(UPSERT, row(1, "b"), row(2, "a"), *others(beside))
    assert store.entries(index) == store.wanted(index)
    store.write(UPSERT, row(1, "c"), row(3, "b"), *others(beside))
    assert store.entries(index) == store.wanted(index)


@pytest.mark.parametrize("state", [s for s in ElementState if not s.public])
def test_an_entry_of_another_row_is_not_deleted_while_a_unique_index_is_built(state: ElementState) -> None:
    store = Store()
    store.write(INSERT, row(1, "a"), row(2, "a"))  # from before the index
    index = by_email(ElementState.BACKFILLING)
    key, value = IndexCodec(SCHEMA, index).entry(row(1, "a"))
    store.data[key] = value  # the backfill has come as far as row 1
    store.move(by_email(state))
    store.write(DELETE, row(2))
    assert store.entries(index) == {key: value}
    store.write(UPSERT, row(1, "b"))
    assert key not in store.data


def test_an_insert_refuses_rows_that_are_there() -> None:
    store = Store(by_name())
    store.write(INSERT, row(1, "a", "ada"))
    with pytest.raises(ConditionFailed) as failed:
        store.write(INSERT, row(1, "b", "bea"))
    assert failed.value.facts["key"] == CODEC.key([1])
    assert not isinstance(failed.value, UniqueViolation)


@FEW_OR_MANY
@pytest.mark.parametrize("state", list(ElementState))
def test_checks_hold_for_writes_from_write_only_on(state: ElementState, beside: int) -> None:
    checks = (Check(2, "short", (3,), "name in ('x', 'y')", state), Check(3, "named", (2,), "email is not null", state))
    store = Store(checks=checks)
    more = [row(100 + n, "e", "x") for n in range(beside)]
    if not state.written:
        store.write(UPSERT, row(1, None, "zzz"), *more)
        return
    with pytest.raises(ConstraintViolation, match=r"check short \(name in") as broken:
        store.write(UPSERT, row(1, "e", "zzz"), *more)
    assert (broken.value.sqlstate, broken.value.facts["key"]) == ("23514", {"id": 1})
    with pytest.raises(NotNullViolation) as missing:
        store.write(INSERT, row(1, None, "x"), *more)
    assert missing.value.sqlstate == "23502"
    store.write(UPSERT, row(1, "e", None), *more)  # a comparison with NULL is unknown, and passes
    store.write(DELETE, row(1))


def test_a_damaged_old_row_is_named() -> None:
    store = Store(by_name())
    store.data[CODEC.key([1])] = b"\x01\x01\x00\x00\x00broken"
    with pytest.raises(DamagedRow):
        store.write(UPSERT, row(1, "a", "ada"))
