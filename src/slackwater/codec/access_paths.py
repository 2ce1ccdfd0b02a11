"""Which index a scan reads, and how: by the conditions, the columns and the order that are wanted. Pure.

    users  primary key id                        scan("users", where=[("city", "=", "oslo")], columns=["id", "age"])
    by_city on (city, age desc)                    equality on city fixes a prefix; id, city and age are in the entries: covering
    by_email on (email), unique                    nothing narrows it

A path is an index with the span of its keys that can satisfy the conditions. If entries have every column that is wanted it is
*covering*: the scan reads nothing else. Otherwise entries are joined with their rows, in batches.

The best path is the cheapest by a rule that needs no statistics: of every leading column that is fixed by an equality 1 row in
100 is left, of a unique key that is fixed wholly one, of a column that is bounded at both ends 1 in 30, at one end 1 in 3. A
row found by an entry costs 20 rows that are read in order; sorting costs half a row. With a limit, and the order that is
wanted, no more than the limit is read. So a bound at one end does not make a scan jump through the table, unless the limit is
small; `index=` overrules all of it.

`primary` is always one of the paths. Only public indexes are: those of the version of the table that holds at the time read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from slackwater.codec.layout import show_key
from slackwater.codec.narrow import narrow
from slackwater.errors import UsageError
from slackwater.model.indexes import PRIMARY, find_index, index_schema
from slackwater.model.predicates import Op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.codec.narrow import Narrowed
    from slackwater.model.indexes import Index
    from slackwater.model.predicates import Predicate
    from slackwater.model.schema import TableSchema
    from slackwater.model.spans import Span
    from slackwater.model.tables import TableDescriptor

ROWS = 1_000_000.0
"""Rows that a table is taken to have."""
EQUAL, BOTH_ENDS, ONE_END = 0.01, 1 / 30, 1 / 3
JOINED_ROW, SORTED_ROW = 20.0, 0.5
RESIDUAL = 10.0
"""Rows read for one that satisfies conditions which do not narrow."""

Order = tuple[tuple[str, bool], ...]
"""(column, whether descending)."""


class AccessPath(NamedTuple):
    """One way to read what is wanted."""

    table: TableSchema
    secondary: Index | None
    schema: TableSchema
    """Of what is scanned: the table, or the entries of the index."""
    narrowed: Narrowed
    covering: bool
    ordered: bool
    """Whether rows come in the order that is wanted."""
    cost: float

    @property
    def name(self) -> str:
        """What the index is called."""
        return PRIMARY if self.secondary is None else self.secondary.name

    @property
    def span(self) -> Span | None:
        """The keys to read; None: no row can satisfy the conditions."""
        return self.narrowed.span

    @property
    def joins(self) -> bool:
        """Whether entries have to be joined with their rows."""
        return not self.covering

    def why(self) -> str:
        """One line for people: what narrows it, whether it covers, and whether it sorts."""
        keys = [column.name for column, _ in self.schema.key_columns()]
        parts = []
        if self.narrowed.equal:
            parts.append(f"equality on {', '.join(keys[: self.narrowed.equal])}")
        if self.narrowed.bounds:
            parts.append(f"range on {keys[self.narrowed.equal]}")
        parts = parts or ["every key"]
        parts.append("covering" if self.covering else "joined with rows")
        parts.append("in the order wanted" if self.ordered else "sorted afterwards")
        return ", ".join(parts)


def choose_path(
    table: TableDescriptor,
    predicates: Sequence[Predicate],
    columns: Sequence[str] | None,
    *,
    order: Order = (),
    limit: int = 0,
    index: str | None = None,
) -> AccessPath:
    """The cheapest path; with `index`, the one by that index."""
    if index == PRIMARY or (index is None and not table.indexes):
        return _path(table.schema, None, predicates, columns, order, limit)
    if index is None:
        found = paths(table, predicates, columns, order=order, limit=limit)
        return min(found, key=lambda path: path.cost)  # of equals the first: the primary one, or the older index
    named = find_index(table.indexes, index, table=table.name)
    if not named.state.public:
        raise UsageError(f"index {index} of table {table.name} is {named.state.value}: it cannot be read", index=index)
    return _path(table.schema, named, predicates, columns, order, limit)


def paths(
    table: TableDescriptor,
    predicates: Sequence[Predicate],
    columns: Sequence[str] | None,
    *,
    order: Order = (),
    limit: int = 0,
) -> list[AccessPath]:
    """Every path, the primary one first."""
    indexes: list[Index | None] = [None, *(one for one in table.indexes if one.state.public)]
    return [_path(table.schema, one, predicates, columns, order, limit) for one in indexes]


def _path(
    table: TableSchema,
    secondary: Index | None,
    predicates: Sequence[Predicate],
    columns: Sequence[str] | None,
    order: Order,
    limit: int,
) -> AccessPath:
    schema = table if secondary is None else index_schema(table, secondary)
    own = None if secondary is None or not secondary.unique else len(secondary.columns)
    found = narrow(schema, predicates, columns=own)
    wanted = {column.name for column in table.columns} if columns is None else set(columns)
    wanted |= {predicate.column for predicate in predicates} | {name for name, _ in order}
    covering = wanted <= {column.name for column in schema.columns}
    ordered = not order or _gives(schema, predicates, found.equal, order)
    whole_key = len(table.primary_key) if secondary is None else own
    rows = _rows(found, unique=whole_key is not None and found.equal >= whole_key)
    if limit and ordered:
        narrowing = {column.name for column, _ in schema.key_columns()[: found.equal + bool(found.bounds)]}
        residual = any(predicate.column not in narrowing or predicate.op is Op.NE for predicate in predicates)
        rows = min(rows, limit * (RESIDUAL if residual else 1.0))
    cost = rows * (1.0 if covering else JOINED_ROW) + (0.0 if ordered else rows * SORTED_ROW)
    return AccessPath(table, secondary, schema, found, covering, ordered, cost)


def _rows(found: Narrowed, *, unique: bool) -> float:
    """About how many rows a span has."""
    if found.span is None:
        return 0.0
    if unique:
        return 1.0
    share = EQUAL**found.equal * (1.0, ONE_END, BOTH_ENDS)[found.bounds]
    return max(1.0, ROWS * share)


def _gives(schema: TableSchema, predicates: Sequence[Predicate], equal: int, order: Order) -> bool:
    """Whether keys in order are rows in this order: columns that an equality fixes may stand anywhere, or nowhere."""
    keys = [(column.name, descending) for column, descending in schema.key_columns()]
    fixed = {name for name, _ in keys[:equal]} | {p.column for p in predicates if p.op in (Op.EQ, Op.IS_NULL)}
    wanted = [part for part in order if part[0] not in fixed]
    given = [part for part in keys[equal:] if part[0] not in fixed]
    return wanted == given[: len(wanted)] or (len(wanted) > len(given) and wanted[: len(given)] == given)


class ScanExplanation(NamedTuple):
    """How a scan would be carried out."""

    table: str
    index_name: str
    """`primary`, or the secondary index."""
    spans: tuple[str, ...]
    """The keys read, for people; none: no row can satisfy the conditions."""
    covering: bool
    """Whether the index has everything that is wanted; otherwise its entries are joined with their rows."""
    sorted_after: bool
    """Whether rows have to be sorted, because the index does not give the order that is wanted."""
    filters: tuple[str, ...]
    """Conditions that do not narrow the span; they are evaluated on what is read."""
    why: str
    others: tuple[str, ...]
    """The other indexes that could have been read, and what speaks for and against them."""

    def __str__(self) -> str:
        read = "read" if self.covering else "read and join with rows"
        lines = [f"{self.table}: {read} {self.index_name} ({self.why})", *(f"  span {span}" for span in self.spans)]
        lines += [f"  filter {one}" for one in self.filters]
        lines += ["  sort"] if self.sorted_after else []
        return "\n".join([*lines, *(f"  not {one}" for one in self.others)])


def explain(
    table: TableDescriptor,
    chosen: AccessPath,
    predicates: Sequence[Predicate],
    columns: Sequence[str] | None,
    *,
    order: Order = (),
    limit: int = 0,
) -> ScanExplanation:
    """What `choose_path` chose, in words."""
    keys = [column.name for column, _ in chosen.schema.key_columns()]
    used = keys[: chosen.narrowed.equal + bool(chosen.narrowed.bounds)]
    others = [path for path in paths(table, predicates, columns, order=order, limit=limit) if path.name != chosen.name]
    span = chosen.span
    return ScanExplanation(
        table.name,
        chosen.name,
        () if span is None else (f"{show_key(span.start)} to {show_key(span.end)}",),
        chosen.covering,
        not chosen.ordered,
        tuple(f"{p.column} {p.op.value}" for p in predicates if p.column not in used),
        chosen.why(),
        tuple(f"{path.name} ({path.why()})" for path in others),
    )
