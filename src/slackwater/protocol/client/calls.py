"""The native protocol: what a client asks a gateway, which is any node of the cluster.

    client                                   gateway (a node)
    Database ── Method, over RPC ──────────► server/gateway ── catalog, KV, RangeSender, Staleness ──► ranges
       │  rows as keys and values, encoded here by `RowCodec`
       └◄ rows as Arrow IPC, made where they are stored, passed on as they are

Rows travel in the form that is cheapest for who has least to spare, the servers: a writer encodes its rows itself, with the
table's schema, vectorized; a scan is decoded and filtered on the replica that holds the rows and is never touched again
before it reaches the application (`protocol.range.bulk`). Point reads return stored values, decoded by the client.

The gateway trusts nothing that it can check: keys must be sorted, unique and inside the table, values must name the
version they say they have. A client that knows an older version of the table than its gateway gets `SchemaChanged`,
learns the new one and encodes again.

    about          tables     db.create_table db.drop_table db.tables db.table
                   rows       db.write db.get db.scan
                   txns       db.txn_scan db.commit db.rollback db.restart db.settle
                   time       db.snapshot db.resolved db.close db.frontier
                   parallel   db.partitions db.read_changes
                   changes    db.changes (`native_changes`)
                   cluster    db.cluster

An empty `txn` means no transaction; a timestamp of `MIN` means now. Interval ends are in the names. A transaction's first
message, whatever it is, opens it (`opens`) under an id that the client chose; until one was answered, all of them say so.
"""

from __future__ import annotations

import enum

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.model.descriptors import NodeDescriptor
from slackwater.model.ids import Natural, Small, TableId
from slackwater.model.jobs import Job
from slackwater.model.kinds import ColumnType
from slackwater.model.patches import Patch
from slackwater.model.tables import TableHistory
from slackwater.runtime.access import CLIENTS
from slackwater.runtime.rpc.method import HEAVY, Method, StreamMethod

# --- tables ----------------------------------------------------------------------------------------------------------


class ColumnSpec(msgspec.Struct, frozen=True):
    """A column to be: ids are given out by the catalog."""

    name: str
    type: ColumnType
    nullable: bool = True
    default: object = None
    function: str = ""
    """A function in the place of a constant default (`model.schema.DEFAULT_FUNCTIONS`)."""


class KeySpec(msgspec.Struct, frozen=True):
    """One column of a primary key to be."""

    column: str
    descending: bool = False


class IndexSpec(msgspec.Struct, frozen=True):
    """A secondary index to be."""

    name: str
    columns: tuple[KeySpec, ...]
    unique: bool = False
    storing: tuple[str, ...] = ()
    """Columns that entries carry beside the key."""


class CreateTable(msgspec.Struct, frozen=True):
    """Make a table. A gateway of an older release makes it without `indexes`: the caller looks at the answer."""

    name: str
    columns: tuple[ColumnSpec, ...]
    primary_key: tuple[KeySpec, ...]
    indexes: tuple[IndexSpec, ...] = ()


class DropTableByName(msgspec.Struct, frozen=True):
    """Drop a table."""

    name: str


class FindTable(msgspec.Struct, frozen=True):
    """A table by name, as of a time, or by id."""

    name: str = ""
    table_id: Small = 0
    at: Timestamp = MIN
    floor: Timestamp = MIN
    """Of the present: with every version up to here."""


class ListTables(msgspec.Struct, frozen=True):
    """Every table there is, or was at a time."""

    at: Timestamp = MIN
    floor: Timestamp = MIN


class TableReply(msgspec.Struct, frozen=True):
    """One table with its history."""

    table: TableHistory


class TablesReply(msgspec.Struct, frozen=True):
    """Tables by name."""

    tables: list[TableHistory]


# --- rows ------------------------------------------------------------------------------------------------------------


class WriteKind(enum.Enum):
    """What happens to a row."""

    UPSERT = "upsert"
    INSERT = "insert"
    DELETE = "delete"


class Write(msgspec.Struct, frozen=True):
    """Rows of one table: sorted, unique keys, and their values unless they are deleted.

    Without `bulk` all of them are written at one timestamp or none is. `txn` names an open transaction; `txn_id` is what
    a write without one is known by, should its answer be lost (`Settle`).
    """

    table_id: TableId
    version: Small
    kind: WriteKind
    keys: list[bytes]
    values: list[bytes]
    txn: bytes = b""
    txn_id: bytes = b""
    bulk: bool = False
    before: tuple[Write, ...] = ()
    """In a transaction: writes that the client held back, and that come first."""
    opens: bool = False


class WriteReply(msgspec.Struct, frozen=True):
    """How many rows were written, and when; in a transaction, how that stands."""

    rows: int
    ts: Timestamp
    mark: TxnHandle | None = None


class ReadPolicy(msgspec.Struct, frozen=True):
    """When and where to read. At `MIN`, now: from the leaseholder, or with `follower_ok` from any replica that has it closed."""

    at: Timestamp = MIN
    follower_ok: bool = False
    wait_ms: Small = 0
    """How long a follower may wait for the timestamp to close before the leaseholder is asked."""
    nearest_only: bool = False
    """Fail rather than ask the leaseholder."""
    floor: Timestamp = MIN
    """The session's floor: a read of the present is above it, whatever the gateway's clock says."""


class GetRows(msgspec.Struct, frozen=True):
    """The values of some keys, in order."""

    table_id: TableId
    keys: list[bytes]
    policy: ReadPolicy = ReadPolicy()
    txn: bytes = b""
    before: tuple[Write, ...] = ()
    opens: bool = False
    also: tuple[TableKeys, ...] = ()
    """In a transaction: keys of other tables, answered after these."""
    version: Small = 0
    """Of the present, or in a transaction: the version that the reader reads by, which must still hold; 0: any."""


class TableKeys(msgspec.Struct, frozen=True):
    """Keys of one table, and the version that the reader reads by; 0: any."""

    table_id: TableId
    keys: list[bytes]
    version: Small = 0


class RangeRead(msgspec.Struct, frozen=True):
    """Which replica answered a part of a read, when that was, and why it was not a follower."""

    range_id: Natural
    timestamp: Timestamp
    node: Small
    by_follower: bool
    lag_s: float
    """How old what was read was when it was read."""
    why: str = ""
    """Why the leaseholder had to be asked, where a follower would have done (`served.Why`)."""
    closed_lag_s: float = 0.0
    """How far that replica's closed timestamp was behind its clock."""


class RowsReply(msgspec.Struct, frozen=True):
    """Values as stored; None where there is no row."""

    values: list[bytes | None]
    ts: Timestamp
    reads: list[RangeRead] = []
    mark: TxnHandle | None = None


class ScanTable(msgspec.Struct, frozen=True):
    """Rows of `[start, end)` of a table at one timestamp, in key order, by an encoded `bulk.ScanPlan`.

    `version` is the newest version of the table that the client knows; it counts for reads of the present only.
    """

    table_id: TableId
    version: Small
    plan: bytes
    start: bytes
    end: bytes
    policy: ReadPolicy = ReadPolicy()
    limit: Small = 0
    """Stop soon after this many rows; 0: all."""
    patches: bool = False
    """Whether the client merges changed rows into blocks itself, as clients do that know `ScanPage.patches`."""


class ScanPage(msgspec.Struct, frozen=True):
    """A piece of a scan: Arrow IPC messages without their schema (`protocol.range.bulk`).

    `resume` is where to go on at `ts`, should the stream break; None: this was the last page.
    """

    blocks: list[memoryview]
    rows: int
    ts: Timestamp
    resume: bytes | None
    reads: list[RangeRead] = []
    patches: list[Patch] = []


# --- transactions ------------------------------------------------------------------------------------------------------


class TxnHandle(msgspec.Struct, frozen=True):
    """How a transaction is known to the ranges: enough for any gateway to find out what became of it."""

    txn_id: bytes
    anchor: bytes
    start: Timestamp
    epoch: Natural
    write_ts: Timestamp
    exact: bool = False
    """Whether a gateway told the id; otherwise only the name in it, which its client chose, says which one is meant."""


class TxnReply(msgspec.Struct, frozen=True):
    """How a transaction of this gateway stands."""

    mark: TxnHandle


class TxnScan(msgspec.Struct, frozen=True):
    """Rows of `[start, end)` as a transaction sees them, its own writes included; at most `max_rows`."""

    txn: bytes
    table_id: TableId
    start: bytes
    end: bytes
    max_rows: Small
    before: tuple[Write, ...] = ()
    opens: bool = False
    floor: Timestamp = MIN
    version: Small = 0
    """The version that the reader reads by, which its transaction has throughout; 0: any."""


class TxnRows(msgspec.Struct, frozen=True):
    """Values as stored, in key order; `resume` is the next start."""

    values: list[bytes]
    resume: bytes | None
    mark: TxnHandle


class EndClientTxn(msgspec.Struct, frozen=True):
    """Commit, roll back or restart a transaction of this gateway."""

    txn: bytes
    before: tuple[Write, ...] = ()
    opens: bool = False


class CommitReply(msgspec.Struct, frozen=True):
    """When a transaction committed."""

    ts: Timestamp
    jobs: list[Job] = []
    """Of schema changes that began with it."""


class Settle(msgspec.Struct, frozen=True):
    """What became of a transaction whose gateway did not answer? If it has not committed, it never will."""

    mark: TxnHandle


class Settled(msgspec.Struct, frozen=True):
    """Whether it committed, and when."""

    committed: bool
    ts: Timestamp


# --- time --------------------------------------------------------------------------------------------------------------


class ChooseSnapshot(msgspec.Struct, frozen=True):
    """One timestamp for reads of these tables (all, when none is named).

    exactly one form  at            that timestamp
                      max_staleness the freshest that needs no waiting, at most that many seconds old
                      min_timestamp the freshest that needs no waiting, at or after that
    none of them      the freshest that needs no waiting, at or after the session's floor
    """

    tables: tuple[str, ...] = ()
    at: Timestamp = MIN
    max_staleness: float | None = None
    min_timestamp: Timestamp = MIN
    nearest_only: bool = False
    seen: Timestamp = MIN
    """What this session has negotiated before: it does not travel back."""
    floor: Timestamp = MIN
    """With none of the forms: the session's floor."""


class SnapshotReply(msgspec.Struct, frozen=True):
    """The timestamp, whether nearby replicas can serve it at once, and the tables as they were then."""

    ts: Timestamp
    by_followers: bool
    now: Timestamp
    tables: list[TableHistory]


class OfTables(msgspec.Struct, frozen=True):
    """About some tables; for `db.close`, also what to close (`MIN`: now, and above the session's floor)."""

    tables: tuple[str, ...]
    at: Timestamp = MIN
    floor: Timestamp = MIN


class TimestampReply(msgspec.Struct, frozen=True):
    """A timestamp."""

    ts: Timestamp


class FrontierRow(msgspec.Struct, frozen=True):
    """How far one replica of one range is closed and resolved, and what holds it back."""

    table: str
    range_id: Natural
    start: bytes
    end: bytes
    node: Small
    leads: bool
    closed: Timestamp
    resolved: Timestamp
    closed_lag_s: float
    resolved_lag_s: float
    reason: str


class FrontierReply(msgspec.Struct, frozen=True):
    """Rows by range, then by node; nodes that did not answer are missing from `rows` and named."""

    rows: list[FrontierRow]
    unreachable: list[int]
    now: Timestamp


# --- parallel reads ----------------------------------------------------------------------------------------------------


class ReplicaPlace(msgspec.Struct, frozen=True):
    """A node that holds a copy."""

    node: Small
    address: str
    locality: tuple[tuple[str, str], ...] = ()


class Partition(msgspec.Struct, frozen=True):
    """A part of a table that one task reads. Plain data: it can be pickled and read by another process.

    The places are where the rows were when the partition was made; a read goes where they are. The history is what it takes to
    read the rows at any timestamp up to `known_upto`, so that such a read asks no catalog: the nearest replica alone serves it.
    """

    table: str
    table_id: TableId
    start: bytes
    end: bytes
    replicas: tuple[ReplicaPlace, ...] = ()
    history: TableHistory | None = None
    """Every version of the table that holds at or below `known_upto`. Filled in by the client: an answer tells it once."""
    known_upto: Timestamp = MIN


class GetPartitions(msgspec.Struct, frozen=True):
    """Parts of a table that cover it, in key order: one a range, or about `count`."""

    table_id: TableId
    at: Timestamp
    count: Small = 0
    start: bytes = b""
    end: bytes = b""
    """A span of keys inside the table, of one of its indexes; empty: all rows. A gateway of an older release divides all rows."""


class PartitionsReply(msgspec.Struct, frozen=True):
    """In key order, without gaps; and the table, with every version that holds at or below `known_upto`."""

    partitions: list[Partition]
    table: TableHistory
    known_upto: Timestamp


class ReadChanges(msgspec.Struct, frozen=True):
    """Every change in `[start, end)` with after < commit timestamp <= upto, as Arrow (`codec.changes_arrow`)."""

    table_id: TableId
    plan: bytes
    start: bytes
    end: bytes
    after: Timestamp
    upto: Timestamp
    diff: bool = False
    """Whether each update comes with the row before it."""
    policy: ReadPolicy = ReadPolicy()
    """Its timestamp does not count: `upto` does."""


# --- cluster -----------------------------------------------------------------------------------------------------------


class AskCluster(msgspec.Struct, frozen=True):
    """Asks a node for the cluster it belongs to and the nodes it knows."""


class ClusterReply(msgspec.Struct, frozen=True):
    """The node that answers, and every node it knows."""

    cluster_id: str
    node: NodeDescriptor
    nodes: list[NodeDescriptor]
    now: Timestamp
    row_bytes_max: int = 0
    """Bytes of the key and the value of one row, as far as this node knows; 0: it does not say."""


class NativeOk(msgspec.Struct, frozen=True):
    """Acknowledges a request that has nothing to return."""


CREATE_TABLE: Method[CreateTable, TableReply] = Method(
    "db.create_table", CreateTable, TableReply, callers=CLIENTS, weight=HEAVY
)
DROP_TABLE: Method[DropTableByName, TableReply] = Method(
    "db.drop_table", DropTableByName, TableReply, callers=CLIENTS, weight=HEAVY
)
FIND_TABLE: Method[FindTable, TableReply] = Method("db.table", FindTable, TableReply, callers=CLIENTS)
LIST_TABLES: Method[ListTables, TablesReply] = Method("db.tables", ListTables, TablesReply, callers=CLIENTS)
WRITE: Method[Write, WriteReply] = Method("db.write", Write, WriteReply, callers=CLIENTS)
GET_ROWS: Method[GetRows, RowsReply] = Method("db.get", GetRows, RowsReply, callers=CLIENTS)
SCAN: StreamMethod[ScanTable, ScanPage] = StreamMethod("db.scan", ScanTable, ScanPage, callers=CLIENTS)
TXN_SCAN: Method[TxnScan, TxnRows] = Method("db.txn_scan", TxnScan, TxnRows, callers=CLIENTS)
COMMIT: Method[EndClientTxn, CommitReply] = Method("db.commit", EndClientTxn, CommitReply, callers=CLIENTS)
ROLLBACK: Method[EndClientTxn, NativeOk] = Method("db.rollback", EndClientTxn, NativeOk, callers=CLIENTS)
RESTART: Method[EndClientTxn, TxnReply] = Method("db.restart", EndClientTxn, TxnReply, callers=CLIENTS)
SETTLE: Method[Settle, Settled] = Method("db.settle", Settle, Settled, callers=CLIENTS)
SNAPSHOT: Method[ChooseSnapshot, SnapshotReply] = Method("db.snapshot", ChooseSnapshot, SnapshotReply, callers=CLIENTS)
FOLLOWER_READ: Method[OfTables, TimestampReply] = Method(
    "db.follower_read_timestamp", OfTables, TimestampReply, callers=CLIENTS
)
RESOLVED: Method[OfTables, TimestampReply] = Method("db.resolved", OfTables, TimestampReply, callers=CLIENTS)
CLOSE: Method[OfTables, TimestampReply] = Method("db.close", OfTables, TimestampReply, callers=CLIENTS)
FRONTIER: Method[OfTables, FrontierReply] = Method("db.frontier", OfTables, FrontierReply, callers=CLIENTS)
PARTITIONS: Method[GetPartitions, PartitionsReply] = Method(
    "db.partitions", GetPartitions, PartitionsReply, callers=CLIENTS
)
READ_CHANGES: StreamMethod[ReadChanges, ScanPage] = StreamMethod(
    "db.read_changes", ReadChanges, ScanPage, callers=CLIENTS
)
CLUSTER: Method[AskCluster, ClusterReply] = Method("db.cluster", AskCluster, ClusterReply, callers=CLIENTS)
