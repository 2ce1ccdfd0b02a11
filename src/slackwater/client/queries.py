"""A scan planned before anything is sent: which index, which keys, what to decode, and what is done with the rows.

where, columns, order ──► AccessPath (`codec.access_paths`) ──► span, and a plan for what is scanned
│ the index has all that is wanted      one `ScanPlan`, of the table or of the entries
└ it has not                            two: of the entries, and of the rows that they name
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from slackwater.client.arguments import names_of
from slackwater.client.definitions import key_specs
from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.access_paths import choose_path, explain
from slackwater.codec.bulk_arrow import plan_schema
from slackwater.codec.filters_arrow import bind
from slackwater.codec.keys import KeyType
from slackwater.codec.keys_arrow import encode_keys
from slackwater.codec.layout import split_table_key
from slackwater.errors import UsageError
from slackwater.model.indexes import PRIMARY, index_schemas
from slackwater.model.kinds import ColumnKind
from slackwater.model.predicates import Predicate, predicate
from slackwater.model.scan_plan import ScanPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.codec.access_paths import AccessPath, Order, ScanExplanation
    from slackwater.model.schema import TableSchema
    from slackwater.model.spans import Span
    from slackwater.model.tables import TableDescriptor, TableHistory


class Query(NamedTuple):
    """A planned scan: what to read, how, and the schema of its result."""

    history: TableHistory
    plan: ScanPlan
    """Of what is scanned: rows, or entries of an index."""
    span: Span | None
    """None: no row can satisfy the predicates."""
    schema: Any
    """The Arrow schema of the batches that come."""
    limit: int = 0
    path: AccessPath | None = None
    rows: ScanPlan | None = None
    """Of the rows that entries are joined with; None: what is scanned has all that is wanted."""
    sort: Order = ()
    """How rows have to be sorted when all have come."""
    top: int = 0
    """How many of the sorted rows are wanted; 0: all."""
    wanted: tuple[str, ...] | None = None
    """The columns that are wanted, where sorting takes more; None: those that come."""

    def finish(self, table: Any) -> Any:
        """What was asked for, of all that has come."""
        if self.sort and table.num_rows:
            columns = [table.column(name).combine_chunks() for name, _ in self.sort]
            by_name = {column.name: column for column in self.plan_of_rows.schema().columns}
            types = [KeyType(by_name[name].type.kind, descending) for name, descending in self.sort]
            keys = encode_keys(b"", types, columns)
            table = table.take(sorted(range(len(keys)), key=keys.__getitem__)[: self.top or None])
        return table if self.wanted is None else table.select(self.wanted)

    @property
    def plan_of_rows(self) -> ScanPlan:
        """The plan that decides which columns come."""
        return self.plan if self.rows is None else self.rows

    def check_streams(self) -> None:
        """Refuse to hand out rows as they come, if they have to be sorted first."""
        if self.sort:
            columns = ", ".join(name for name, _ in self.sort)
            raise UsageError(f"no index gives rows in the order of {columns}, and batches are not sorted; use scan()")


def query(
    history: TableHistory,
    *,
    at: Timestamp = MIN,
    columns: Sequence[str] | None = None,
    where: Sequence[Any] = (),
    limit: int | None = None,
    within: Span | None = None,
    index: str | None = None,
    order: str | Sequence[str] = (),
) -> Query:
    """Check and prepare a scan; everything wrong with it is said here, before anything is sent."""
    read = history.latest if at == MIN else history.readable_at(at)
    _check_limit(limit)
    predicates, names = predicates_of(read.schema, where), columns_of(read.schema, columns)
    if within is not None:
        index = index_within(read, within)
    sort = order_of(read.schema, order)
    path = choose_path(read, predicates, names, order=sort, limit=limit or 0, index=_index_name(index))
    sort = () if path.ordered else sort
    span = path.span if within is None or path.span is None else path.span.intersect(within)
    if limit == 0:
        span = None
    needed = names if names is None else (*names, *(name for name, _ in sort if name not in names))
    wanted = None if needed == names else names
    plan, rows = _plans(history, read, path, predicates, needed)
    stop = 0 if sort else limit or 0
    schema = plan_schema(plan if rows is None else rows)
    return Query(history, plan, span, schema, stop, path, rows, sort, (limit or 0) if sort else 0, wanted)


def explained(history: TableHistory, **asked: Any) -> ScanExplanation:
    """How `query` would carry out a scan, and why."""
    at = asked.get("at", MIN)
    read = history.latest if at == MIN else history.readable_at(at)
    made = query(history, **asked)
    assert made.path is not None
    predicates = predicates_of(read.schema, asked.get("where", ()))
    names = columns_of(read.schema, asked.get("columns"))
    order = order_of(read.schema, asked.get("order", ()))
    return explain(read, made.path, predicates, names, order=order, limit=asked.get("limit") or 0)


def index_within(table: TableDescriptor, span: Span) -> str:
    """The index that a span of a table's keys lies in."""
    _, index_id, _ = split_table_key(span.start)
    found = next((index.name for index in table.indexes if index.id == index_id), None)
    return found or PRIMARY


def _plans(
    history: TableHistory,
    read: TableDescriptor,
    path: AccessPath,
    predicates: tuple[Predicate, ...],
    columns: tuple[str, ...] | None,
) -> tuple[ScanPlan, ScanPlan | None]:
    """The plan of what is scanned, and of the rows that it is joined with, if it is."""
    if path.secondary is None:
        return ScanPlan(history.schemas(), read.version, columns, predicates), None
    schemas = index_schemas(history.schemas(), path.secondary)
    if path.covering:
        # the order of the table's columns, not that of the entries'
        shown = columns or tuple(column.name for column in read.schema.columns)
        return ScanPlan(schemas, read.version, shown, predicates), None
    there = {column.name for column in path.schema.columns}
    decided = tuple(one for one in predicates if one.column in there)
    left = tuple(one for one in predicates if one.column not in there)
    keys = tuple(column.name for column, _ in read.schema.key_columns())
    return ScanPlan(schemas, read.version, keys, decided), ScanPlan(history.schemas(), read.version, columns, left)


def order_of(schema: TableSchema, order: str | Sequence[str]) -> Order:
    """The order that is wanted: names of columns, each possibly followed by ` desc`."""
    if not order:
        return ()
    parts = tuple((part.column, part.descending) for part in key_specs(order))
    for name, _ in parts:
        if schema.column(name).type.kind is ColumnKind.JSON:
            raise UsageError(f"column {name} is json, which has no order", order=name)
    if len({name for name, _ in parts}) != len(parts):
        raise UsageError("the order names a column twice", order=order)
    return parts


def _index_name(index: object) -> str | None:
    if index is None or isinstance(index, str):
        return index
    raise UsageError(f"an index is named by its name, or {PRIMARY!r}", index=index)


def _check_limit(limit: object) -> None:
    if limit is None or (isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0):
        return
    raise UsageError("a limit is a number of rows, not negative", limit=limit)


def columns_of(schema: TableSchema, columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Checked names of columns, in the order asked for."""
    if columns is None:
        return None
    if isinstance(columns, str):
        raise UsageError("columns are a list of names", columns=columns)
    names = names_of(columns, "columns")
    for name in names:
        schema.column(name)
    if len(set(names)) != len(names):
        raise UsageError("a column is asked for twice", columns=names)
    if not names:
        raise UsageError("ask for at least one column, or leave `columns` out for all")
    return names


def predicates_of(schema: TableSchema, where: Sequence[Any]) -> tuple[Predicate, ...]:
    """`[("id", ">=", 10), …]` as predicates that their columns can be compared with."""
    if isinstance(where, tuple) and len(where) in (2, 3) and isinstance(where[0], str):
        where = [where]
    if not isinstance(where, list | tuple):
        raise UsageError("where is a list of conditions, such as [('id', '>=', 10)]", got=where)
    found = []
    for condition in where:
        if isinstance(condition, Predicate):
            made = condition
        else:
            if not isinstance(condition, tuple | list) or not 2 <= len(condition) <= 3:
                raise UsageError("a condition is (column, operator, value), such as ('id', '>=', 10)", got=condition)
            made = predicate(*condition)
        bind(made, schema.column(made.column))
        found.append(made)
    return tuple(found)
