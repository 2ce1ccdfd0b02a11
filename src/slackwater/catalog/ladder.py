"""From a table and a change to the versions that lead there, and back again. Pure.

A change climbs: each step is one version of the descriptor, published when no node uses the version before the present one
(I-29), so that any two neighbors are used together and no others. Some steps have work to be done before the next one.

    create index    delete-only ─ write-only ─ backfilling [backfill, validate] ─ public
    drop index      write-only ─ delete-only ─ gone
    add check       write-only ─ backfilling [validate] ─ public                  set not null is the same with `c is not null`
    drop check      write-only ─ gone                                             drop not null too
    drop column     (held: NULL is allowed, and still refused to writers) ─ gone  `held` only where the column is NOT NULL
    rename table    renamed ─ freed: the old name may be used again
    truncate        closed: takes no rows ─ emptied: rows under new index ids ─ public: takes rows again
    drop table      dropping: takes no rows ─ dropped
    add column, rename column, set type        one step

Changes of one step each that are asked for together are one version (`folded`): columns meet by id, so what two neighbors make of
each other's rows does not depend on how many columns differ.

A column that becomes or was NOT NULL passes through "nullable, with a check": a reader of the one neighbor never meets a NULL
that its version rules out, and going back needs no look at the rows.

The way back from any step, when the job is cancelled or has failed, is a ladder too: an index that was being built goes down, one
that was being dropped goes up again, with the backfill that this takes once writers have left entries out.

`check_change` refuses what cannot be done; `steps` and `way_back` say the way; `next_record` makes the record of a step. A step's
record is made from the present descriptor whatever else happened to the table meanwhile, and elements are found by name.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from slackwater.catalog import definition
from slackwater.catalog.definition import next_version
from slackwater.errors import UsageError, invariant
from slackwater.model.conditions import renamed_condition
from slackwater.model.indexes import Check, ElementState, Index, find_index
from slackwater.model.schema import shown_constant
from slackwater.protocol.client import schema as to
from slackwater.protocol.client.calls import IndexSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.catalog.records import TableRecord
    from slackwater.model.schema import Column
    from slackwater.model.tables import TableDescriptor
    from slackwater.protocol.client.schema import Change

replace = msgspec.structs.replace


class Rung(enum.Enum):
    """Where a change stands; the first five are those of `ElementState`."""

    DELETE_ONLY = "delete-only"
    WRITE_ONLY = "write-only"
    BACKFILLING = "backfilling"
    PUBLIC = "public"
    GONE = "gone"
    HELD = "held"
    RENAMED = "renamed"
    FREED = "freed"
    CLOSED = "closed"
    EMPTIED = "emptied"
    DROPPING = "dropping"
    DROPPED = "dropped"


class Work(enum.Enum):
    """What is done after a version was published and before the next one is."""

    NONE = ""
    BACKFILL = "backfill"
    VALIDATE = "validate"


class Step(msgspec.Struct, frozen=True):
    """One version on the way."""

    rung: Rung
    work: Work = Work.NONE


_UP = (Step(Rung.DELETE_ONLY), Step(Rung.WRITE_ONLY), Step(Rung.BACKFILLING, Work.BACKFILL), Step(Rung.PUBLIC))
_DOWN = (Step(Rung.WRITE_ONLY), Step(Rung.DELETE_ONLY), Step(Rung.GONE))
_REQUIRE = (Step(Rung.WRITE_ONLY), Step(Rung.BACKFILLING, Work.VALIDATE), Step(Rung.PUBLIC))
_RELAX = (Step(Rung.WRITE_ONLY), Step(Rung.GONE))
_BACK_DOWN = {
    Rung.DELETE_ONLY: _DOWN[2:],
    Rung.WRITE_ONLY: _DOWN[1:],
    Rung.BACKFILLING: _DOWN[1:],
}
_BACK_UP = {Rung.WRITE_ONLY: _UP[3:], Rung.DELETE_ONLY: _UP[1:], Rung.BACKFILLING: _UP[3:]}
_GONE, _PUBLIC = (Step(Rung.GONE),), (Step(Rung.PUBLIC),)
assert {step.rung for step in _UP[:-1]} == _BACK_DOWN.keys(), "there is a way down from every rung of the way up"
assert {step.rung for step in _DOWN[:-1]} <= _BACK_UP.keys(), "there is a way up from every rung of the way down"
assert all(way[-1].rung is Rung.PUBLIC for way in (_UP, _REQUIRE, *_BACK_UP.values())), "a way up ends in public"
assert all(way[-1].rung is Rung.GONE for way in (_DOWN, _RELAX, *_BACK_DOWN.values())), (
    "a way down ends with nothing left"
)
assert all(way[-1].work is Work.NONE for way in (_UP, _DOWN, _REQUIRE, _RELAX, *_BACK_UP.values())), (
    "work is done between two versions: behind the last one no version would wait for it"
)


def steps(change: Change, now: TableDescriptor) -> tuple[Step, ...]:
    """The way up, for a change that `check_change` lets pass."""
    match change:
        case to.CreateIndex():
            return _UP
        case to.DropIndex():
            return _DOWN
        case to.SetNotNull() | to.AddCheck():
            return _REQUIRE
        case to.DropNotNull() | to.DropCheck():
            return _RELAX
        case to.DropColumn(name):
            column = now.schema.column(name)
            held = not column.nullable and column.default is None
            return (Step(Rung.HELD), Step(Rung.GONE)) if held else (Step(Rung.GONE),)
        case to.RenameTable():
            return (Step(Rung.RENAMED), Step(Rung.FREED))
        case to.TruncateTable():
            return (Step(Rung.CLOSED), Step(Rung.EMPTIED), Step(Rung.PUBLIC))
        case to.DropTable():
            return (Step(Rung.DROPPING), Step(Rung.DROPPED))
        case _:
            return (Step(Rung.PUBLIC),)


def folded(changes: Sequence[Change], now: TableDescriptor) -> tuple[int, TableRecord | None]:
    """How many of the changes, from the first on, make the next version together, and that version.

    Those of one step each do, up to the first one that takes several; none does while other changes of the table are under way.
    """
    if now.mutations:
        return 0, None
    one_step, table = 0, now
    while one_step < len(changes) and len(steps(changes[one_step], table)) == 1:
        table = projected(changes[one_step], table)
        one_step += 1
    assert table.version == now.version + one_step, "a change that is folded would be a version by itself"
    return one_step, definition.renumbered(table, now.version + 1) if one_step else None


def way_back(change: Change, at: Rung | None) -> tuple[Step, ...]:
    """The steps that undo a change of which `at` was published last; none when nothing was."""
    if at is None:
        return ()
    match change:
        case to.CreateIndex():
            return _BACK_DOWN.get(at, ())
        case to.DropIndex():
            return _BACK_UP.get(at, ())
        case to.SetNotNull() | to.AddCheck():
            return _GONE if at in (Rung.WRITE_ONLY, Rung.BACKFILLING) else ()
        case to.DropNotNull() | to.DropCheck():
            return _PUBLIC if at is Rung.WRITE_ONLY else ()
        case to.DropColumn() if at is Rung.HELD:
            return _PUBLIC
        case to.RenameTable() if at is Rung.RENAMED:
            return (Step(Rung.GONE), Step(Rung.FREED))
        case to.TruncateTable() if at in (Rung.CLOSED, Rung.EMPTIED):
            return _PUBLIC  # as it was; or, once it is empty, as it is: there is no way back from there
        case _:
            return ()


def way_down(at: Rung | None) -> tuple[Step, ...]:
    """The steps that remove an index which stands at a rung."""
    return () if at is None else _BACK_DOWN.get(at, _DOWN)


# --- records ---------------------------------------------------------------------------------------------------------


def next_record(change: Change, rung: Rung, now: TableDescriptor) -> TableRecord:
    """The next version of the table, in which the change stands at `rung`."""
    match change:
        case to.CreateIndex() | to.DropIndex():
            return _index_record(change, rung, now)
        case to.AddCheck() | to.DropCheck():
            return _check_record(change, rung, now)
        case to.SetNotNull(name) | to.DropNotNull(name):
            return _null_record(now, now.schema.column(name), rung)
        case to.AddColumn(spec):
            return definition.with_column(now, spec)
        case to.DropColumn(name):
            return _drop_column_record(now, name, rung)
        case to.RenameColumn(name, new):
            return _renamed_column(now, definition.check_renamed_column(now, name, new), new)
        case to.SetType(name, new_type):
            wide = replace(definition.check_wider(now, name, new_type), type=new_type)
            return next_version(now, columns=_with(now, wide))
        case to.RenameTable(new):
            return next_version(now, name=new) if rung is Rung.RENAMED else next_version(now)
        case to.TruncateTable():
            return _truncate_record(now, rung)
        case to.DropTable():
            return definition.dropping(now, now.mutations) if rung is Rung.DROPPING else definition.dropped(now)


def named_back(now: TableDescriptor, old: str) -> TableRecord:
    """The table with its former name again, when a renaming is undone."""
    return next_version(now, name=old)


def _index_record(change: to.CreateIndex | to.DropIndex, rung: Rung, now: TableDescriptor) -> TableRecord:
    if isinstance(change, to.CreateIndex) and not any(index.name == change.index for index in now.indexes):
        new = _new_index(change, now)
        invariant(rung is Rung.DELETE_ONLY, "I-29", index=change.index, rung=rung.value)
        return next_version(now, indexes=(*now.indexes, new), next_index_id=now.next_index_id + 1)
    found = find_index(now.indexes, change.index, table=now.name)
    others = tuple(index for index in now.indexes if index.id != found.id)
    assert len(others) + 1 == len(now.indexes), "one index moves, and the others stay"
    if rung is Rung.GONE:
        invariant(found.state is ElementState.DELETE_ONLY, "I-29", index=found.name, state=found.state.value)
        return next_version(now, indexes=others)
    moved = replace(found, state=ElementState(rung.value))
    _neighbors(found.state, moved.state, found.name)
    return next_version(now, indexes=tuple(sorted((*others, moved), key=lambda index: index.id)))


def _new_index(change: to.CreateIndex, now: TableDescriptor) -> Index:
    """An index at the foot of the ladder."""
    spec = IndexSpec(change.index, change.columns, change.unique, change.storing)
    return definition.new_index(now.schema, now.indexes, now.next_index_id, spec, state=ElementState.DELETE_ONLY)


_RUNGS = [ElementState.DELETE_ONLY, ElementState.WRITE_ONLY, ElementState.BACKFILLING, ElementState.PUBLIC]
assert [state.value for state in _RUNGS] == [step.rung.value for step in _UP], (
    "states of elements are the rungs of the way up"
)


def _neighbors(old: ElementState, new: ElementState, name: str) -> None:
    """Two states may be used at the same time: what the one adds the other removes, and both keep what either reads (I-29)."""
    written = {ElementState.WRITE_ONLY, ElementState.BACKFILLING}
    fine = (
        {old, new} <= written
        or abs(_RUNGS.index(old) - _RUNGS.index(new)) == 1
        or {old, new} == {ElementState.WRITE_ONLY, ElementState.PUBLIC}
        or (old is ElementState.BACKFILLING and new is ElementState.DELETE_ONLY)
    )
    invariant(fine, "I-29", element=name, old=old.value, new=new.value)


def _check_record(change: to.AddCheck | to.DropCheck, rung: Rung, now: TableDescriptor) -> TableRecord:
    if isinstance(change, to.DropCheck):
        return next_version(now, checks=_moved(now, definition.find_check(now, change.check), rung))
    found = next((check for check in now.checks if check.name == change.check), None)
    if found is None:
        invariant(rung is Rung.WRITE_ONLY, "I-29", check=change.check, rung=rung.value)
        columns = definition.check_new_check(now, change.check, change.condition)
        found = Check(now.next_index_id, change.check, columns, change.condition, ElementState.WRITE_ONLY)
        return next_version(now, checks=(*now.checks, found), next_index_id=now.next_index_id + 1)
    return next_version(now, checks=_moved(now, found, rung))


def _moved(now: TableDescriptor, found: Check, rung: Rung) -> tuple[Check, ...]:
    if rung is Rung.GONE:
        others = tuple(check for check in now.checks if check.id != found.id)
        assert len(others) + 1 == len(now.checks), "one check goes"
        return others
    moved = replace(found, state=ElementState(rung.value))
    _neighbors(found.state, moved.state, found.name)
    assert any(check.id == moved.id for check in now.checks), "a check that is there is moved"
    return tuple(moved if check.id == found.id else check for check in now.checks)


def _null_record(now: TableDescriptor, column: Column, rung: Rung) -> TableRecord:
    """NOT NULL on its way in or out: nullable with a check, and the check becomes part of the column or goes."""
    name = definition.not_null_name(column)
    found = next((check for check in now.checks if check.name == name), None)
    open_column = _with(now, replace(column, nullable=True))
    if found is None:
        new = Check(now.next_index_id, name, (column.id,), _not_null_text(column), ElementState.WRITE_ONLY)
        invariant(rung in (Rung.WRITE_ONLY, Rung.HELD), "I-29", column=column.name, rung=rung.value)
        return next_version(now, columns=open_column, checks=(*now.checks, new), next_index_id=now.next_index_id + 1)
    assert found.column_ids == (column.id,), "what stands for NOT NULL is about its own column"
    if rung is Rung.PUBLIC:
        closed = _with(now, replace(column, nullable=False))
        return next_version(now, columns=closed, checks=_moved(now, found, Rung.GONE))
    return next_version(now, columns=open_column, checks=_moved(now, found, rung))


def _not_null_text(column: Column) -> str:
    return '"' + column.name.replace('"', '""') + '" is not null'


def _drop_column_record(now: TableDescriptor, name: str, rung: Rung) -> TableRecord:
    column = now.schema.column(name)
    if rung is not Rung.GONE:
        return _null_record(now, column, rung)
    definition.check_droppable_column(now, name)
    held = definition.not_null_name(column)
    checks = tuple(check for check in now.checks if check.name != held)
    return next_version(now, columns=tuple(c for c in now.schema.columns if c.id != column.id), checks=checks)


def _renamed_column(now: TableDescriptor, column: Column, new: str) -> TableRecord:
    checks = tuple(replace(check, text=renamed_condition(check.text, column.name, new)) for check in now.checks)
    return next_version(now, columns=_with(now, replace(column, name=new)), checks=checks)


def _truncate_record(now: TableDescriptor, rung: Rung) -> TableRecord:
    if rung is not Rung.EMPTIED:
        return next_version(now, read_only=rung is Rung.CLOSED)
    assert now.read_only, "rows go only while no node writes any (I-29)"
    first = now.next_index_id
    indexes = tuple(replace(index, id=first + 1 + at) for at, index in enumerate(now.indexes))
    assert all(first < index.id <= first + len(indexes) for index in indexes), "ids of indexes are never used again"
    return next_version(now, index_id=first, indexes=indexes, next_index_id=first + 1 + len(indexes))


def _with(now: TableDescriptor, changed: Column) -> tuple[Column, ...]:
    assert any(column.id == changed.id for column in now.schema.columns), "a column that is there is changed"
    return tuple(changed if column.id == changed.id else column for column in now.schema.columns)


# --- refusals and words ----------------------------------------------------------------------------------------------


def check_change(change: Change, now: TableDescriptor) -> None:
    """Refuse a change that cannot be made to a table that looks like this, in one sentence."""
    match change:
        case to.CreateIndex():
            _new_index(change, now)
        case to.DropIndex(name):
            _check_public(find_index(now.indexes, name, table=now.name).state, f"index {name}", now)
        case to.AddColumn(spec):
            definition.check_new_column(now, spec)
        case to.DropColumn(name):
            definition.check_droppable_column(now, name)
        case to.RenameColumn(name, new):
            definition.check_renamed_column(now, name, new)
        case to.RenameTable(new):
            definition.check_renamed_table(now, new)
        case to.SetNotNull(name):
            definition.check_nullable(now, name)
        case to.DropNotNull(name):
            definition.check_not_nullable(now, name)
        case to.AddCheck(name, condition):
            definition.check_new_check(now, name, condition)
        case to.DropCheck(name):
            _check_public(definition.find_check(now, name).state, f"check {name}", now)
        case to.SetType(name, new_type):
            definition.check_wider(now, name, new_type)
        case to.TruncateTable():
            definition.check_index_ids(now.name, now.next_index_id, 1 + len(now.indexes))


def _check_public(state: ElementState, what: str, now: TableDescriptor) -> None:
    if state is not ElementState.PUBLIC:
        raise UsageError(f"{what} of table {now.name} is {state.value}: a change of it is under way; cancel that job")


def elements(change: Change) -> frozenset[str]:
    """What a change makes, removes or renames; a second change of the same has to wait until the first has ended."""
    match change:
        case to.CreateIndex(name) | to.DropIndex(name):
            return frozenset((f"index {name}",))
        case to.AddCheck(name) | to.DropCheck(name):
            return frozenset((f"check {name}",))
        case to.AddColumn(spec):
            return frozenset((f"column {spec.name}",))
        case to.RenameColumn(name, new):
            return frozenset((f"column {name}", f"column {new}"))
        case to.DropColumn(name) | to.SetNotNull(name) | to.DropNotNull(name) | to.SetType(name):
            return frozenset((f"column {name}",))
        case to.RenameTable() | to.TruncateTable() | to.DropTable():
            return frozenset(("table",))


def projected(change: Change, now: TableDescriptor) -> TableDescriptor:
    """The table as it will be after a change: what a change that waits for it is checked against."""
    for step in steps(change, now):
        now = next_record(change, step.rung, now).at(now.modified)
    return now


def describe(change: Change, table: str) -> str:
    """A change in one line, for people."""
    match change:
        case to.CreateIndex():
            unique = "unique " if change.unique else ""
            columns = ", ".join(part.column + (" desc" if part.descending else "") for part in change.columns)
            storing = f" storing ({', '.join(change.storing)})" if change.storing else ""
            return f"create {unique}index {change.index} on {table} ({columns}){storing}"
        case to.DropIndex(name):
            return f"drop index {name} of {table}"
        case to.AddColumn(spec):
            null = "" if spec.nullable else " not null"
            default = (
                f" default {spec.function or shown_constant(spec.type, spec.default)}"
                if spec.function or spec.default is not None
                else ""
            )
            return f"alter table {table} add column {spec.name} {spec.type}{null}{default}"
        case to.RenameColumn(name, new):
            return f"alter table {table} rename column {name} to {new}"
        case to.RenameTable(new):
            return f"alter table {table} rename to {new}"
        case to.AddCheck(name, condition):
            return f"alter table {table} add check {name} ({condition})"
        case to.DropCheck(name):
            return f"alter table {table} drop check {name}"
        case to.SetType(name, new_type):
            return f"alter table {table} set type of column {name} to {new_type}"
        case to.TruncateTable():
            return f"truncate table {table}"
        case to.DropTable():
            return f"drop table {table}"
        case to.DropColumn(name) | to.SetNotNull(name) | to.DropNotNull(name):
            what = {to.DropColumn: "drop column", to.SetNotNull: "set not null", to.DropNotNull: "drop not null"}
            return f"alter table {table} {what[type(change)]} {name}"
