"""Schema changes, as clients ask for them: what is to change, a plan of it, and the job that does it.

    db.change_table   owner, operators   one or several changes of one table; answers with the job of each, or only the plan
    db.define_in_txn  all clients, owner make a table, or change or drop one, inside a transaction
    db.plan_change    all clients        what a change would do: steps, rows to write, who holds which version, what blocks it
    db.leases         all clients        which nodes write by which versions of tables, and what waits for them

A change is data: it is the payload of its job (`catalog.schema_changes`), and `catalog.ladder` says which steps it takes. Names
are those that hold when the change is asked for, with the changes that wait before it taken as done.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.model.ids import Small
from slackwater.model.jobs import Job
from slackwater.model.kinds import ColumnType
from slackwater.model.tables import TableHistory
from slackwater.protocol.client.calls import ColumnSpec, CreateTable, KeySpec, TxnHandle, Write
from slackwater.runtime.access import CLIENTS
from slackwater.runtime.rpc.method import HEAVY, Method

CHANGES_MAX = 16
"""Changes that one message asks for."""


class CreateIndex(msgspec.Struct, frozen=True, tag_field="kind", tag="create index"):
    """Build a secondary index."""

    index: str
    columns: tuple[KeySpec, ...]
    unique: bool = False
    storing: tuple[str, ...] = ()


class DropIndex(msgspec.Struct, frozen=True, tag_field="kind", tag="drop index"):
    """Remove a secondary index."""

    index: str


class AddColumn(msgspec.Struct, frozen=True, tag_field="kind", tag="add column"):
    """Add a column; rows that are there take its default, or NULL, when they are read."""

    column: ColumnSpec


class DropColumn(msgspec.Struct, frozen=True, tag_field="kind", tag="drop column"):
    """Remove a column."""

    column: str


class RenameColumn(msgspec.Struct, frozen=True, tag_field="kind", tag="rename column"):
    """Call a column something else."""

    column: str
    to: str


class RenameTable(msgspec.Struct, frozen=True, tag_field="kind", tag="rename table"):
    """Call the table something else."""

    to: str


class SetNotNull(msgspec.Struct, frozen=True, tag_field="kind", tag="set not null"):
    """Forbid NULL in a column; the rows that are there are checked first."""

    column: str


class DropNotNull(msgspec.Struct, frozen=True, tag_field="kind", tag="drop not null"):
    """Allow NULL in a column."""

    column: str


class AddCheck(msgspec.Struct, frozen=True, tag_field="kind", tag="add check"):
    """Require a condition of every row (`model.conditions`); the rows that are there are checked first."""

    check: str
    condition: str


class DropCheck(msgspec.Struct, frozen=True, tag_field="kind", tag="drop check"):
    """Require a condition no longer."""

    check: str


class SetType(msgspec.Struct, frozen=True, tag_field="kind", tag="set type"):
    """Widen the type of a column."""

    column: str
    type: ColumnType


class TruncateTable(msgspec.Struct, frozen=True, tag_field="kind", tag="truncate"):
    """Remove all rows; they can still be read as of a time before."""


class DropTable(msgspec.Struct, frozen=True, tag_field="kind", tag="drop table"):
    """Drop the table; its rows can still be read as of a time before. It takes no other change beside it."""


Change: TypeAlias = (
    CreateIndex
    | DropIndex
    | AddColumn
    | DropColumn
    | RenameColumn
    | RenameTable
    | SetNotNull
    | DropNotNull
    | AddCheck
    | DropCheck
    | SetType
    | TruncateTable
    | DropTable
)


class ChangeTable(msgspec.Struct, frozen=True):
    """Change a table: all of these, in this order, or none is begun."""

    table: str
    changes: tuple[Change, ...]
    name: str = ""
    """Makes asking repeatable: the jobs of the first time are the answer to the second."""


class ChangeReply(msgspec.Struct, frozen=True):
    """The jobs of the changes, in order, and the table as it is now."""

    jobs: list[Job]
    table: TableHistory


class DefineInTxn(msgspec.Struct, frozen=True):
    """Make a table (`create`), or change or drop one (`table`, `changes`), inside a transaction: it happens when that commits."""

    txn: bytes
    create: CreateTable | None = None
    table: str = ""
    changes: tuple[Change, ...] = ()
    before: tuple[Write, ...] = ()
    opens: bool = False


class DefinedInTxn(msgspec.Struct, frozen=True):
    """The table as the transaction sees it from now on."""

    table: TableHistory
    mark: TxnHandle


class PlanChange(msgspec.Struct, frozen=True):
    """What would `ChangeTable` do."""

    table: str
    changes: tuple[Change, ...]


class PlannedStep(msgspec.Struct, frozen=True):
    """One version of the table on the way."""

    says: str
    work: str = ""
    """What is done between this version and the next: nothing, `backfill` or `validate`."""


class LeaseHolder(msgspec.Struct, frozen=True):
    """A node that uses a version of a table now: one row of `system.lease`, and what is known of its node."""

    node: Small
    version: Small
    epoch: Small = 0
    table: str = ""
    table_id: Small = 0
    newest: Small = 0
    """The newest version of the table. The one after it is published when no node holds an older one than this."""
    since: Timestamp = MIN
    """When the row was written."""
    age_s: float = 0.0
    until: Timestamp = MIN
    """Writes by the lease commit below this; moves on while the node is live, and the row is not deleted by others before."""
    says: str = ""
    """What it is kept for, in words."""

    @property
    def in_the_way(self) -> bool:
        """Whether the next version of the table waits for it."""
        return self.version < self.newest


class PlannedChange(msgspec.Struct, frozen=True):
    """What one change would do."""

    description: str
    steps: list[PlannedStep]
    rows_to_read: int = 0
    rows_to_write: int = 0


class PlanReply(msgspec.Struct, frozen=True):
    """A dry run: nothing was changed."""

    table: str
    version: Small
    changes: list[PlannedChange]
    holders: list[LeaseHolder] = []
    """Which nodes use which version: a step waits until those of the version before the present one are gone."""
    blocked_by: list[str] = []
    """Changes that are under way or wait, and nodes that hold an old version: this one begins after them."""
    at: Timestamp = MIN


class WaitingChange(msgspec.Struct, frozen=True):
    """A change of a table that has not ended, and what it waits for now."""

    table: str
    description: str
    job: Small = 0
    waits_for: list[str] = []
    """Empty when it waits for nothing: it is being worked on."""


class AskLeases(msgspec.Struct, frozen=True):
    """Which nodes hold which versions, of one table or of all."""

    table: str = ""
    floor: Timestamp = MIN


class LeasesReply(msgspec.Struct, frozen=True):
    """Leases by table, version and node, and the changes that have not ended."""

    leases: list[LeaseHolder]
    waiting: list[WaitingChange]
    at: Timestamp


CHANGE_TABLE: Method[ChangeTable, ChangeReply] = Method(
    "db.change_table", ChangeTable, ChangeReply, callers=CLIENTS, weight=HEAVY
)
PLAN_CHANGE: Method[PlanChange, PlanReply] = Method("db.plan_change", PlanChange, PlanReply, callers=CLIENTS)
LEASES: Method[AskLeases, LeasesReply] = Method("db.leases", AskLeases, LeasesReply, callers=CLIENTS)
DEFINE_IN_TXN: Method[DefineInTxn, DefinedInTxn] = Method(
    "db.define_in_txn", DefineInTxn, DefinedInTxn, callers=CLIENTS
)
