"""The ladders of schema changes: golden scripts of each, what is refused, and that any two neighbors are safe together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from slackwater.catalog import definition, ladder
from slackwater.catalog.ladder import Rung, next_record, projected, steps, way_back
from slackwater.client.definitions import column_specs, key_specs, type_of_text
from slackwater.clock.timestamp import Timestamp
from slackwater.errors import InvariantViolation, UsageError
from slackwater.model.indexes import ElementState
from slackwater.protocol.client import schema as to
from slackwater.protocol.client.calls import ColumnSpec
from tests import golden

if TYPE_CHECKING:
    from pathlib import Path

    from slackwater.model.tables import TableDescriptor
    from slackwater.protocol.client.schema import Change

T = Timestamp(1 << 20)


def table(primary_key: str = "id", **columns: str) -> TableDescriptor:
    return definition.first_version(7, "t", column_specs(columns), key_specs(primary_key)).at(T)


def change_of(words: tuple[str, ...]) -> Change:
    """A change from the words of a script."""
    match words:
        case ("create-index", name, *rest):
            storing = [w.removeprefix("storing=") for w in rest if w.startswith("storing=")]
            columns = [w for w in rest if not w.startswith("storing=") and w != "unique"]
            return to.CreateIndex(name, key_specs(columns), "unique" in rest, tuple(storing))
        case ("drop-index", name):
            return to.DropIndex(name)
        case ("add-column", name, kind, *rest):
            default = dict(w.split("=", 1) for w in rest).get("default")
            nullable = not kind.endswith(" not null")
            ctype = type_of_text(kind.removesuffix(" not null"))
            value = int(default) if default is not None and default.isdigit() else default
            return to.AddColumn(ColumnSpec(name, ctype, nullable=nullable, default=value))
        case ("set-type", name, kind):
            return to.SetType(name, type_of_text(kind))
        case ("truncate",):
            return to.TruncateTable()
        case (verb, *rest):
            kinds: dict[str, type] = {
                "drop-column": to.DropColumn,
                "rename-column": to.RenameColumn,
                "rename-table": to.RenameTable,
                "set-not-null": to.SetNotNull,
                "drop-not-null": to.DropNotNull,
                "add-check": to.AddCheck,
                "drop-check": to.DropCheck,
            }
            made: Change = kinds[verb](*rest)
            return made
        case _:
            raise UsageError("say a change")


def shown(now: TableDescriptor) -> str:
    """One version in one line."""
    parts = [
        f"{c.name}#{c.id} {c.type}{'' if c.nullable else ' not null'}{'' if c.default is None else f' = {c.default!r}'}"
        for c in now.schema.columns
    ]
    parts += [f"index {i.name}#{i.id} {i.state.value}{' unique' if i.unique else ''}" for i in now.indexes]
    parts += [f"check {c.name}#{c.id} ({c.text}) {c.state.value}" for c in now.checks]
    rows = f" rows#{now.schema.index_id}" if now.schema.index_id != 1 else ""
    return f"v{now.version} {now.name}{rows}{' takes no rows' if now.read_only else ''}: {'; '.join(parts)}"


class Script:
    """Climbs ladders."""

    def __init__(self) -> None:
        self.now = table(id="int")

    def do_table(self, *columns: str, key: str = "id") -> str:
        self.now = table(key, **dict(c.split(":", 1) for c in columns))
        return shown(self.now)

    def do_up(self, *words: str, upto: str = "", **options: str) -> str:
        """Climb all of it, or up to a rung."""
        change = change_of((*words, *(f"{name}={value}" for name, value in options.items())))
        ladder.check_change(change, self.now)
        lines = [ladder.describe(change, self.now.name)]
        for step in steps(change, self.now):
            self.now = next_record(change, step.rung, self.now).at(T)
            lines.append(f"{step.rung.value:<12}{f'[{step.work.value}] ' if step.work.value else ''}{shown(self.now)}")
            if step.rung.value == upto:
                break
        return "\n".join(lines)

    def do_back(self, *words: str, at: str) -> str:
        """Go back from a rung."""
        change, lines = change_of(words), []
        for step in way_back(change, Rung(at)):
            self.now = next_record(change, step.rung, self.now).at(T)
            lines.append(f"{step.rung.value:<12}{f'[{step.work.value}] ' if step.work.value else ''}{shown(self.now)}")
        return "\n".join(lines) or "nothing to undo"


@pytest.mark.parametrize("path", golden.scripts("catalog"), ids=lambda p: p.stem)
def test_script(path: Path) -> None:
    golden.check(path, Script())


CHANGES: list[Change] = [
    to.CreateIndex("i", key_specs(["a"])),
    to.DropIndex("old"),
    to.AddColumn(ColumnSpec("n", type_of_text("int"), nullable=False, default=5)),
    to.DropColumn("d"),
    to.DropColumn("e"),
    to.RenameColumn("a", "z"),
    to.RenameTable("u"),
    to.SetNotNull("a"),
    to.DropNotNull("d"),
    to.AddCheck("positive", "d >= 0"),
    to.DropCheck("kept"),
    to.SetType("c", type_of_text("int8")),
    to.TruncateTable(),
]


def start() -> TableDescriptor:
    now = table(id="int", a="int", b="string", c="int4", d="int not null", e="string")
    now = projected(to.CreateIndex("old", key_specs(["b"])), now)
    return projected(to.AddCheck("kept", "c >= 0"), now)


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: type(c).__name__)
def test_every_way_back_ends_where_it_began(change: Change) -> None:
    """From any rung: what the change made is gone, what it took away is there again, and ids are not used again."""
    first = start()
    ladder.check_change(change, first)
    way = steps(change, first)
    for reached in range(1, len(way)):
        now = first
        for step in way[:reached]:
            now = next_record(change, step.rung, now).at(T)
        for step in way_back(change, way[reached - 1].rung):
            if isinstance(change, to.RenameTable) and step.rung is Rung.GONE:
                after = ladder.named_back(now, first.name).at(T)
            else:
                after = next_record(change, step.rung, now).at(T)
            _check_pair(now, after)
            _check_pair(after, now)
            now = after
        assert now.schema.columns == first.schema.columns
        assert now.checks == first.checks
        assert (now.name, now.read_only) == (first.name, False)
        if way[reached - 1].rung is not Rung.EMPTIED:  # the one rung without a way back
            assert now.indexes == first.indexes
            assert now.schema.index_id == 1
        assert now.next_index_id >= first.next_index_id
        assert now.version > first.version
    assert len(way) == 1 or not way_back(change, None)


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: type(c).__name__)
def test_neighbors_are_safe_together(change: Change) -> None:
    """No version lets a writer write what its neighbor cannot read, keep or find (I-29)."""
    before, way = start(), steps(change, start())
    for step in way:
        after = next_record(change, step.rung, before).at(T)
        for old, new in ((before, after), (after, before)):
            _check_pair(old, new)
        before = after


def _check_pair(writer: TableDescriptor, reader: TableDescriptor) -> None:
    """Rows and entries of one version, used by the other."""
    if writer.schema.index_id != reader.schema.index_id:
        assert writer.read_only, "rows would be written where the other does not look"
        return
    written = {index.id: index.state for index in writer.indexes}
    for index in reader.indexes:
        if index.state is ElementState.PUBLIC:
            assert written[index.id].written, "a reader uses an index that the writer does not keep"
        if index.state.written:
            assert index.id in written, "entries that one adds would not be removed by the other"
    columns = {column.id: column for column in writer.schema.columns}
    enforced = {c.column_ids[0] for c in writer.checks if definition.is_not_null(c.name) and c.state.written}
    for column in reader.schema.columns:
        theirs = columns.get(column.id)
        if not column.nullable and theirs is None:
            assert column.default is not None, "a reader misses a value that the writer does not write"
        if not column.nullable and theirs is not None:
            assert not theirs.nullable or column.id in enforced, "a reader meets NULL in a NOT NULL column"


def test_an_index_never_skips_a_rung() -> None:
    change = to.CreateIndex("i", key_specs(["a"]))
    now = next_record(change, Rung.DELETE_ONLY, table(id="int", a="int")).at(T)
    with pytest.raises(InvariantViolation, match="I-29"):
        next_record(change, Rung.BACKFILLING, now)
    with pytest.raises(InvariantViolation, match="I-29"):
        next_record(change, Rung.PUBLIC, now)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("create-index old a", "has an index 'old' already"),
        ("create-index i nope", "has no column 'nope'"),
        ("create-index i j", "is json, which has no order"),
        ("create-index i a a", "names a column twice"),
        ("create-index 1st a", "an index's name"),
        ("drop-index nope", "no index 'nope'; its indexes: old"),
        ("add-column a int", "has a column 'a' already"),
        ("add-column _op int", "is reserved"),
        ("add-column n int_not_null", "need a default"),
        ("add-column n int default=x", "int column does not take str|cannot read the default"),
        ("drop-column id", "part of the primary key"),
        ("drop-column b", "used by index old"),
        ("drop-column c", "used by check kept"),
        ("drop-column nope", "no column 'nope'"),
        ("rename-column a b", "has a column 'b' already"),
        ("rename-column a _version", "is reserved"),
        ("rename-table t", "called that already"),
        ("rename-table 1t", "a table's name"),
        ("set-not-null d", "NOT NULL already"),
        ("drop-not-null a", "may be NULL already"),
        ("drop-not-null id", "part of the primary key"),
        ("add-check kept a>0", "has a check 'kept' already"),
        ("add-check k nope>0", "no column 'nope'"),
        ("add-check k a", "ends where an operator"),
        ("drop-check nope", "no check 'nope'; its checks: kept"),
        ("set-type a int2", "types can only be widened"),
        ("set-type a float", "types can only be widened"),
        ("set-type b string", "is string already"),
        ("set-type c string", "used by check kept"),
        ("set-type id string", "part of the primary key"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_sentence(words: str, why: str) -> None:
    now = start()
    now = projected(to.AddColumn(ColumnSpec("j", type_of_text("json"))), now)
    with pytest.raises(UsageError, match=why):
        ladder.check_change(change_of(tuple(w.replace("_not_null", " not null") for w in words.split())), now)


def test_an_index_under_way_is_not_dropped() -> None:
    now = table(id="int", a="int")
    change = to.CreateIndex("i", key_specs(["a"]))
    for step in steps(change, now)[:-1]:
        now = next_record(change, step.rung, now).at(T)
        with pytest.raises(UsageError, match="under way; cancel that job"):
            ladder.check_change(to.DropIndex("i"), now)
        with pytest.raises(UsageError, match="used by index i"):
            ladder.check_change(to.DropColumn("a"), now)
