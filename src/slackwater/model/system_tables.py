"""Tables of the system's own: `system.jobs` and its like. Their ids are fixed and their schemas stand here. Pure.

    id   table                           what its rows are                             written by
     1   system.jobs                     one durable job each                          jobs/
     2   system.protected_ts_meta        one row: version and totals of the next two   protect/
     3   system.protected_ts_timestamps  one protected timestamp each                  protect/
     4   system.protected_ts_spans       one span of one of them each                  protect/
     5   system.lease                    one node's lease on one version of a table    catalog/
     6   system.descriptor               one version of one table each                 a view of catalog/'s records
     7   system.zones                    one zone's configuration each                 a view of config/'s records
     8   system.settings                 one setting of the whole cluster each         a view of config/'s records
  9-12   kept for users, members of roles and grants
    99   the last id that is kept for tables of the system; users' tables begin at 100

They are read like any table (`db.scan("system.jobs")`, feeds, Spark) and written by nodes alone, through `txn.system_rows`. No
record says that they exist: every node has their schemas in its catalog from the first moment, before it has read anything, and
an older cluster has them as soon as its nodes run a version that names them here. So there is nothing to create at bootstrap, no
step of an upgrade that can be cut off, and no time at which a node knows `system.jobs` and cannot read it.

A *view* has no rows of its own. Its rows are the records under the system's own keys, which nodes read before they have a catalog
and which are kept longer than any table's history; gateways decode them for reads at any time (`gateway.system_views`). So each
thing is stored once. A view has no feed and no protections of its own: the records are in the zone of the system's keys.

To add a table: one line in `SYSTEM_TABLES`, with the next id. To change one: another schema of the same id with the next version,
behind the one that is there, and columns with new ids; rows say which version wrote them, and columns meet by id. An id, of a
table or of a column, is never used again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN
from slackwater.errors import UsageError
from slackwater.model.kinds import BOOL, BYTES, FLOAT, INT, INT4, JSON, STRING, TIMESTAMPTZ, UUID, ColumnType
from slackwater.model.schema import Column, KeyColumn, TableSchema
from slackwater.model.tables import TableDescriptor

if TYPE_CHECKING:
    from collections.abc import Mapping

FIRST_USER_TABLE_ID = 100
"""Lower ids are kept for the tables named here."""
PREFIX = "system."
NOT_NULL = "not null"


def _table(
    table_id: int, name: str, columns: Mapping[str, tuple[ColumnType, str]], key: tuple[str, ...], *, version: int = 1
) -> TableSchema:
    """A schema whose columns are numbered in the order given; key columns are NOT NULL."""
    made = tuple(
        Column(i, column, kind, nullable=column not in key and not rule)
        for i, (column, (kind, rule)) in enumerate(columns.items(), 1)
    )
    ids = {column.name: column.id for column in made}
    return TableSchema(table_id, PREFIX + name, version, made, tuple(KeyColumn(ids[part]) for part in key))


JOBS = _table(
    1,
    "jobs",
    {
        "id": (INT, NOT_NULL),
        "type": (STRING, NOT_NULL),
        "description": (STRING, NOT_NULL),
        "creator": (STRING, NOT_NULL),
        "status": (STRING, NOT_NULL),
        "payload": (JSON, NOT_NULL),
        "checkpoint": (JSON, NOT_NULL),
        "fraction": (FLOAT, NOT_NULL),
        "progress": (STRING, NOT_NULL),
        "claimed_by": (STRING, ""),
        "claim_epoch": (INT, NOT_NULL),
        "claim_expires": (TIMESTAMPTZ, ""),
        "claim_number": (INT, NOT_NULL),
        "created": (TIMESTAMPTZ, NOT_NULL),
        "started": (TIMESTAMPTZ, ""),
        "finished": (TIMESTAMPTZ, ""),
        "next_attempt": (TIMESTAMPTZ, ""),
        "attempts": (INT4, NOT_NULL),
        "error": (STRING, ""),
        "ending": (STRING, ""),
        "owns": (JSON, NOT_NULL),
        "name": (STRING, ""),
    },
    key=("id",),
)

PROTECTED_TS_META = _table(
    2,
    "protected_ts_meta",
    {
        "_exists": (BOOL, NOT_NULL),
        "version": (INT, NOT_NULL),
        "rows": (INT, NOT_NULL),
        "spans": (INT, NOT_NULL),
    },
    key=("_exists",),
)
PROTECTED_TS_TIMESTAMPS = _table(
    3,
    "protected_ts_timestamps",
    {
        "id": (UUID, NOT_NULL),
        "ts": (INT, NOT_NULL),
        "mode": (STRING, NOT_NULL),
        "meta_type": (STRING, NOT_NULL),
        "meta": (BYTES, ""),
        "expires": (INT, ""),
        "created": (INT, NOT_NULL),
        "user": (STRING, NOT_NULL),
    },
    key=("id",),
)
PROTECTED_TS_SPANS = _table(
    4,
    "protected_ts_spans",
    {"id": (UUID, NOT_NULL), "key": (BYTES, NOT_NULL), "end_key": (BYTES, NOT_NULL)},
    key=("id", "key", "end_key"),
)

LEASE = _table(
    5,
    "lease",
    {
        "desc_id": (INT, NOT_NULL),
        "version": (INT, NOT_NULL),
        "expiration": (INT, NOT_NULL),
        "node_id": (INT, NOT_NULL),
        "epoch": (INT, NOT_NULL),
    },
    key=("desc_id", "version", "expiration", "node_id"),
)

DESCRIPTOR = _table(
    6,
    "descriptor",
    {
        "id": (INT, NOT_NULL),
        "version": (INT, NOT_NULL),
        "name": (STRING, NOT_NULL),
        "modified": (INT, NOT_NULL),
        "owner": (STRING, NOT_NULL),
        "dropped": (BOOL, NOT_NULL),
        "descriptor": (JSON, NOT_NULL),
    },
    key=("id", "version"),
)
ZONES = _table(
    7,
    "zones",
    {
        "start": (BYTES, NOT_NULL),
        "end_key": (BYTES, NOT_NULL),
        "replicas": (INT, ""),
        "policy": (STRING, ""),
        "duration_ms": (INT, ""),
        "gc_ttl_s": (FLOAT, ""),
        "written": (INT, NOT_NULL),
    },
    key=("start",),
)
CLUSTER_SETTINGS = _table(
    8, "settings", {"name": (STRING, NOT_NULL), "value": (FLOAT, NOT_NULL), "written": (INT, NOT_NULL)}, key=("name",)
)
VIEWS = frozenset(schema.table_id for schema in (DESCRIPTOR, ZONES, CLUSTER_SETTINGS))
"""Ids of the tables whose rows are decoded from the system's records."""

SYSTEM_TABLES: tuple[TableSchema, ...] = (
    JOBS,
    PROTECTED_TS_META,
    PROTECTED_TS_TIMESTAMPS,
    PROTECTED_TS_SPANS,
    LEASE,
    DESCRIPTOR,
    ZONES,
    CLUSTER_SETTINGS,
)
"""Every version of every table of the system, oldest first."""


def system_descriptors() -> list[TableDescriptor]:
    """The descriptors that every node knows from the beginning; they hold at every time."""
    return [TableDescriptor(s, MIN, next_column_id=max(c.id for c in s.columns) + 1) for s in SYSTEM_TABLES]


def is_system(table_id: int) -> bool:
    """Whether an id is one of the system's own tables, or kept for one."""
    return table_id < FIRST_USER_TABLE_ID


def is_system_name(name: str) -> bool:
    """Whether a name is kept for tables of the system."""
    return name.casefold().startswith(PREFIX)


def check_not_system(name: str, *, what: str) -> None:
    """Refuse to create, drop, alter or write (`what`) a table whose name is the system's."""
    if is_system_name(name):
        raise UsageError(
            f"cannot {what} {name}: names that begin with {PREFIX} belong to tables of the system, which users may only read",
            table=name,
        )


def check_not_view(table_id: int, name: str, *, what: str) -> None:
    """Refuse what takes rows of its own (`what`) to a view of the system's records."""
    if table_id in VIEWS:
        raise UsageError(
            f"{name} is a view of the system's records and cannot be {what}; read it at a time", table=name
        )
