"""The gateway of a node: one object per topic, and the table of methods they serve."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.catalog.planning import WritePlanners
from slackwater.clock.timestamp import Timestamp, show, us_of
from slackwater.codec.layout import schema_span, table_span
from slackwater.codec.row_checks import RowCheckers
from slackwater.errors import ClockError, SchemaChanged, UnavailableError, UsageError
from slackwater.gateway.changes import ChangeFeeds
from slackwater.gateway.index_reads import IndexReads
from slackwater.gateway.jobs import JobService
from slackwater.gateway.partitions import Partitions
from slackwater.gateway.protections import ProtectionService
from slackwater.gateway.rows import RowService
from slackwater.gateway.scans import Scans, present_header
from slackwater.gateway.schema import SchemaService
from slackwater.gateway.staging import Staging
from slackwater.gateway.tables import TableService
from slackwater.gateway.times import Times
from slackwater.gateway.txns import Txns
from slackwater.hooks import probe
from slackwater.model.system_tables import is_system
from slackwater.protocol.client import calls

if TYPE_CHECKING:
    from slackwater.catalog import TableCatalog
    from slackwater.catalog.leases import DescriptorLease
    from slackwater.gateway.context import CallContext
    from slackwater.gateway.node import GatewayNode
    from slackwater.model.spans import Span
    from slackwater.model.tables import TableHistory
    from slackwater.protocol.range.requests import Header
    from slackwater.runtime.deadline import Deadline
    from slackwater.runtime.rpc.server import RpcServer
    from slackwater.txn.kv import KV

FLOOR_WAIT_S_MAX = 5.0
"""How far the floor of a session may lie beyond what this node's clock may follow at once."""


class Gateway:
    """Serves clients on one node. What every topic needs is here."""

    def __init__(self, node: GatewayNode) -> None:
        self.node = node
        self.checkers = RowCheckers(node.settings)
        self.planners = WritePlanners()
        self.tables = TableService(self)
        self.rows = RowService(self)
        self.scans = Scans(self)
        self.index_reads = IndexReads(self)
        self.txns = Txns(self)
        self.times = Times(self)
        self.partitions = Partitions(self)
        self.staging = Staging(self)
        self.change_feeds = ChangeFeeds(self)
        self.jobs = JobService(self)
        self.protections = ProtectionService(self)
        self.schema = SchemaService(self)

    def serve(self, server: RpcServer) -> None:
        """Answer clients that come by a connection."""
        server.handle(calls.CREATE_TABLE, self.tables.create)
        server.handle(calls.DROP_TABLE, self.tables.drop)
        server.handle(calls.FIND_TABLE, self.tables.find)
        server.handle(calls.LIST_TABLES, self.tables.all)
        server.handle(calls.WRITE, self.rows.write, at_once=self.rows.write_at_once)
        server.handle(calls.GET_ROWS, self.rows.get, at_once=self.rows.get_at_once)
        server.handle_stream(calls.SCAN, self.scans.scan)
        server.handle_stream(calls.READ_CHANGES, self.scans.changes)
        server.handle(calls.TXN_SCAN, self.txns.scan)
        server.handle(calls.COMMIT, self.txns.commit)
        server.handle(calls.ROLLBACK, self.txns.rollback)
        server.handle(calls.RESTART, self.txns.restart)
        server.handle(calls.SETTLE, self.txns.settle)
        server.handle(calls.SNAPSHOT, self.times.snapshot)
        server.handle(calls.FOLLOWER_READ, self.times.follower_read_timestamp)
        server.handle(calls.RESOLVED, self.times.resolved)
        server.handle(calls.CLOSE, self.times.close)
        server.handle(calls.FRONTIER, self.times.frontier)
        server.handle(calls.PARTITIONS, self.partitions.partitions)
        server.handle_sync(calls.CLUSTER, self._on_cluster)
        self.index_reads.serve(server)
        self.staging.serve(server)
        self.change_feeds.serve(server)
        self.jobs.serve(server)
        self.protections.serve(server)
        self.schema.serve(server)

    def _on_cluster(self, request: calls.AskCluster, context: CallContext) -> calls.ClusterReply:
        node = self.node
        own = node.book.own or node.descriptor
        nodes = list(node.book.nodes.values())
        return calls.ClusterReply(node.cluster_id, own, nodes, node.clock.now(), self.row_bytes_max)

    # --- what the topics share

    @property
    def row_bytes_max(self) -> int:
        """Bytes of the key and the value of one row."""
        return self.checkers.bytes_max

    @property
    def catalog(self) -> TableCatalog:
        """The tables."""
        return self.node.catalog

    @property
    def kv(self) -> KV:
        """Rows and transactions."""
        return self.node.kv

    async def reach(self, floor: Timestamp) -> None:
        """Return once this node's clock is above a session's floor: what is read at `now` from then on is not below it.

        Most often it is: messages carry clocks. A floor that the clock may not follow, because it is too far ahead, is
        waited for; one that would take too long is refused.
        """
        clock = self.node.clock
        if floor <= clock.latest:
            return
        probe("gateway.floor_ahead")
        excess_s = (us_of(floor) - us_of(clock.physical()) - clock.max_offset_us) / 1e6
        if excess_s > FLOOR_WAIT_S_MAX:
            raise ClockError(
                f"the session was told of {show(floor)}, far beyond this node's clock; check the clocks of both",
                floor=floor,
                now=clock.physical(),
            )
        while excess_s >= 0:
            probe("gateway.floor_waited")
            await self.node.runtime.clock.sleep(excess_s + 1e-6)
            excess_s = (us_of(floor) - us_of(clock.physical()) - clock.max_offset_us) / 1e6
        clock.update(floor)

    def deadline(self, context: CallContext) -> Deadline:
        """When everything done for a client's request must have ended."""
        return context.deadline(default_s=self.node.settings["routing.send_timeout"])

    async def current(self, table_id: int, version: int) -> TableHistory:
        """A table whose newest version is the one that a client used."""
        history = await self.catalog.find_id(table_id, version=version)
        latest = history.latest
        if latest.dropped or latest.version != version:
            what = "was dropped" if latest.dropped else "has a newer version"
            raise SchemaChanged(f"table {latest.name} {what}; look it up again", table_id=table_id, version=version)
        return history

    async def present_header(self, table_id: int, version: int, policy: calls.ReadPolicy) -> Header:
        """The header of a read of the present by an index of one version, which holds at the timestamp of the header.

        The version is leased while the timestamp is chosen. A version under which entries of the index are no longer written is
        published after every lease on this one is gone (I-29), so at a later timestamp.
        """
        latest = (await self.current(table_id, version)).latest
        if is_system(table_id) or latest.read_only or latest.dropping:
            return present_header(self.node, policy)  # no rows are written: what its indexes have stays
        lease = await self.writable(table_id, version)
        header = present_header(self.node, policy)
        lease.give_back()
        if header.ts >= lease.deadline:
            raise UnavailableError("this node has not renewed its liveness record for too long; ask another node")
        return header

    def holds(self, table_id: int, version: int) -> bool:
        """Whether a version is the newest that this node knows, without asking; any is, for a reader that names none."""
        if not version:
            return True
        known = self.node.catalog.known(table_id)
        return known is not None and known.latest.version == version and not known.latest.dropped

    def known(self, table_id: int) -> TableHistory | None:
        """A table, dropped or not, if this node knows it without asking."""
        return self.node.catalog.known(table_id)

    async def writable(self, table_id: int, version: int) -> DescriptorLease:
        """The lease by which rows may be written in the version that a client used (I-30), taken.

        Its `table` says what to check rows by, and its `deadline` is the timestamp below which they are committed. The caller
        gives it back when the write has ended: `give_back` if the outcome is known and in the past, `give_back_after` with the
        deadline if it is not known.
        """
        return await self.catalog.leases.take(table_id, version)

    def check_inside(self, table_id: int, start: bytes, end: bytes) -> None:
        """Refuse a span that does not lie inside a table, by its keys alone: whether the table exists does not matter.

        A read brings what it takes to decode the rows, so it needs no catalog, and no leaseholder of one.
        """
        tables, whole = self.catalog.tables, table_span(table_id)
        if not whole.start <= start < end <= whole.end:
            known = tables.by_id(table_id)
            name = table_id if known is None else known.latest.name
            raise UsageError(f"the span does not lie inside table {name}", start=start, end=end)

    async def spans_of(self, names: tuple[str, ...]) -> list[Span]:
        """The rows of some tables; of all when none is named."""
        if not names:
            found = await self.catalog.names()
        else:
            found = [await self.catalog.find(name) for name in names]
        return [schema_span(history.latest.schema) for history in found]
