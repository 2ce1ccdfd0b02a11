"""Leases on versions of tables, kept in `system.lease`: acquiring, releasing, and deleting those that dead nodes have left.

    acquire    a transaction of its own, at L < F: read the newest version, write the row; (L < SC) a change at SC that follows
               sees the row, (L > SC) the version of SC is read, (L == SC) the timestamp cache decides who goes first
    release    once a newer version is known and no write by the old one may still commit
    abandoned  rows of epochs that have ended are deleted by every node at T > Q + catalog.lease.abandoned_duration

What may be in the store and is not in the book (`_doubtful`): a row whose insert was ambiguous, or whose deletion was. It is
deleted before, or together with, the next insert for that table. Every deletion reads the row first: one that arrives late, after
the row was written anew, then fails instead of deleting what its node relies on (pitfall 47).

A node that holds up a change because it cannot delete its rows ends its own epoch (`give_up`): others delete them then. It goes
on under a new epoch, without leases, for it cannot write them either (pitfall 45).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from slackwater.catalog.leases import DescriptorLease, LeaseBook, abandoned_after
from slackwater.clock.timestamp import MAX, MIN
from slackwater.errors import AmbiguousResult, SchemaChanged, SlackwaterError, UnavailableError
from slackwater.hooks import probe
from slackwater.model.system_tables import LEASE, check_not_system, is_system
from slackwater.replica.driver.liveness import liveness_key
from slackwater.runtime.sync import CancelledError, Event, Lock, timeout
from slackwater.settings import describe
from slackwater.txn.system_rows import SystemRows

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from slackwater.catalog.driver import TableCatalog
    from slackwater.clock.hlc import HybridClock
    from slackwater.model.descriptors import Epoch, Liveness
    from slackwater.model.ids import NodeId
    from slackwater.model.tables import TableDescriptor
    from slackwater.runtime.seam import Runtime
    from slackwater.settings import Settings
    from slackwater.txn import KV, Transaction

ACQUIRE_TIMEOUT_S = 5.0
"""One acquisition; a write that needs it has a deadline of its own."""
RELEASE_TIMEOUT_S = 2.0
assert RELEASE_TIMEOUT_S <= ACQUIRE_TIMEOUT_S, "a write that waits for a lease outlasts a release under way"
assert describe("catalog.lease.duration").default > ACQUIRE_TIMEOUT_S, (
    "a lease is acquired before the epoch that it hangs on runs out"
)
assert describe("catalog.poll_interval").default < describe("catalog.lease.duration").default, (
    "a node hears of a new version before its lease on the old one would end"
)
assert describe("catalog.lease.abandoned_duration").default >= describe("catalog.lease.duration").default, (
    "a lease that was left behind counts for as long as its node may have relied on it (I-30)"
)
REAPED_AT_ONCE = 1_000
"""Rows that one look for abandoned leases reads at a time."""
AFTER_MAX = 4096
"""Ended epochs whose successors are remembered; one that is forgotten is only waited for again."""
ROWS = SystemRows(LEASE)


class EpochView(Protocol):
    """What leases need of liveness; `NodeLiveness` is one."""

    def get(self, node: NodeId, /) -> Liveness | None:
        """The newest known record of a node."""
        ...

    async def refresh(self) -> None:
        """Read every record."""
        ...

    async def end_epoch(self, record: Liveness, /) -> Liveness:
        """Raise the epoch of an expired node."""
        ...


class DescriptorLeases:
    """The leases of one node."""

    def __init__(
        self,
        catalog: TableCatalog,
        kv: KV,
        *,
        node_id: NodeId,
        liveness: EpochView,
        give_up: Callable[[], Awaitable[None]],
        abandoned_s: Callable[[Transaction], Awaitable[float]],
        clock: HybridClock,
        runtime: Runtime,
        settings: Settings,
    ) -> None:
        self.book = LeaseBook()
        self._catalog = catalog
        self._kv = kv
        self._node_id = node_id
        self._liveness = liveness
        self._give_up = give_up
        self._abandoned_s = abandoned_s
        self._clock = clock
        self._runtime = runtime
        self._settings = settings
        self._locks: dict[int, Lock] = {}
        self._doubtful: dict[tuple[int, int], Epoch] = {}
        """Rows of this node that may be in the store though the book has no lease for them, and the epoch they name."""
        self._stuck_since_ns: int | None = None
        """Since when rows that should be deleted could not be."""
        self._after: dict[tuple[NodeId, Epoch], Liveness] = {}
        """The first record seen of each node after an epoch under which it left leases."""
        self._wanted: set[tuple[int, int]] = set()
        """Versions of tables that a change waits for: leases on them are looked at more often."""
        self._nudged = Event()
        self.acquired = 0
        self.released = 0
        self.reaped = 0

    # --- using

    def find(self, table_id: int, version: int) -> DescriptorLease | None:
        """The lease by which rows of this version may be written now, without waiting; its caller takes it."""
        lease = self.book.newest.get(table_id)
        if lease is None or lease.version != version or lease.term is not self.book.term:
            return None
        assert lease.table.table_id == table_id, "a lease is found under its own table (I-29)"
        return lease

    async def take(self, table_id: int, version: int) -> DescriptorLease:
        """The lease by which rows of this version may be written, taken: the caller gives it back when its write has ended."""
        lease = self.find(table_id, version)
        if lease is None or lease.deadline <= self._clock.peek():
            lease = await self._acquired(table_id, version)
        if lease.version != version:
            raise SchemaChanged(
                f"table {lease.table.name} has a newer version; look it up again", table_id=table_id, version=version
            )
        assert lease.deadline > MIN, "what is written by a lease is written below its deadline (I-30)"
        return lease.take()

    async def _acquired(self, table_id: int, version: int) -> DescriptorLease:
        if is_system(table_id) and (known := self._catalog.tables.by_id(table_id)) is not None:
            check_not_system(known.latest.name, what="write to")
        async with self._lock(table_id):
            lease = self.book.usable(table_id)
            if lease is not None and lease.version >= version and lease.deadline > self._clock.peek():
                return lease  # another write that waited for the same turn has acquired it
            try:
                async with timeout(ACQUIRE_TIMEOUT_S):
                    return await self._acquire(table_id)
            except (
                AmbiguousResult,
                TimeoutError,
            ) as error:  # what is in doubt is the row of the lease, no row of the table
                raise UnavailableError(
                    f"n{self._node_id} could not acquire a lease on the table in time, so nothing was written; try again",
                    table_id=table_id,
                ) from error

    # --- acquiring and releasing; the caller has the lock of the table

    async def _acquire(self, table_id: int) -> DescriptorLease:
        """Write the row of a lease on the newest version, in a transaction of its own."""
        await self._catalog.following()  # no lease before this node hears of new versions (pitfall 44)
        term = self.book.term
        if term is None or term.frontier <= self._clock.peek():
            raise UnavailableError(
                f"n{self._node_id} has not renewed its liveness record for too long to write to tables; ask another node"
            )
        assert term.epoch > 0, "epochs begin at 1"
        tried: set[tuple[int, int]] = set()

        async def work(txn: Transaction) -> int:
            txn.deadline = term.frontier  # L < expiration + catalog.lease.duration
            now = await self._catalog.latest_in(txn, table_id)
            check_writable(now)
            for old in sorted(key for key in self._doubtful if key[0] == table_id and key[1] != now.version):
                assert not self.book.holds(old), "the row of a lease that is held is not deleted (I-29)"
                await self._delete_row(txn, old)
            tried.add((table_id, now.version))
            row = {"desc_id": table_id, "version": now.version, "expiration": MAX, "node_id": self._node_id}
            await ROWS.put(txn, row | {"epoch": term.epoch})
            return now.version

        try:
            version = await self._kv.run(work, timeout=ACQUIRE_TIMEOUT_S)
            history = await self._catalog.find_id(table_id, version=version)
            table = next(known for known in history.versions if known.version == version)
        except (SlackwaterError, CancelledError):
            self._doubtful |= {key: term.epoch for key in sorted(tried) if not self.book.holds(key)}
            raise
        for key in [key for key in self._doubtful if key[0] == table_id]:
            del self._doubtful[key]
        self.acquired += 1
        lease = self.book.add(table, term, since=self._clock.peek())
        assert lease.term is term, "a lease hangs on the epoch that its row names"
        assert lease.version == version, "a lease is on the version that its row names"
        assert self.book.holds((table_id, version)), "the row of a lease that was acquired is in the book"
        if self._is_old(lease):  # a newer version was heard of meanwhile
            probe("catalog.lease_old_at_once")
            self.nudge()
        return lease

    async def _release(self, lease: DescriptorLease) -> None:
        async with self._lock(lease.table.table_id):
            if self.book.retire(lease, now=self._clock.peek()):
                self._doubtful[lease.key] = lease.term.epoch
                await self._delete([lease.key])
            else:
                probe("catalog.old_lease_in_use")
                lease.unused = self.nudge  # a table that is always written to is never found unused by chance

    async def _delete(self, keys: Iterable[tuple[int, int]]) -> None:
        """Delete rows of this node."""
        gone = sorted(keys)
        assert not any(self.book.holds(key) for key in gone), "the row of a lease that is held is not deleted (I-29)"

        async def work(txn: Transaction) -> None:
            for key in gone:
                await self._delete_row(txn, key)

        await self._kv.run(work, timeout=RELEASE_TIMEOUT_S)
        for key in gone:
            self._doubtful.pop(key, None)
        self.released += len(gone)

    async def _delete_row(self, txn: Transaction, key: tuple[int, int]) -> None:
        place = (*key, MAX, self._node_id)
        if await ROWS.get(txn, *place) is not None:  # the read is what makes a late deletion fail
            await ROWS.delete(txn, *place)

    def _lock(self, table_id: int) -> Lock:
        return self._locks.setdefault(table_id, Lock())

    def _is_old(self, lease: DescriptorLease) -> bool:
        """Whether a newer version of its table is known here."""
        known = self._catalog.tables.by_id(lease.table.table_id)
        return known is not None and known.latest.version > lease.version

    # --- in the background

    def nudge(self) -> None:
        """Something may be to be released: look now."""
        self._nudged.set()

    def want_gone(self, table_id: int, version: int) -> None:
        """A change waits for the leases on a version: delete those that dead nodes have left as soon as that is safe."""
        self._wanted.add((table_id, version))
        self.nudge()

    async def run(self) -> None:
        """Keep the leases in order for as long as the node lives."""
        looked_ns = self._runtime.clock.monotonic_ns()
        while True:
            with suppress(TimeoutError):
                async with timeout(self._settings["catalog.poll_interval"]):
                    await self._nudged.wait()
            self._nudged.clear()
            await self.sweep()
            for key in sorted(self._wanted):
                with suppress(SlackwaterError, TimeoutError):
                    if not await self.reap(*key):
                        self._wanted.discard(key)
            now_ns = self._runtime.clock.monotonic_ns()
            assert now_ns >= looked_ns, "the monotonic clock does not go back"
            if now_ns - looked_ns >= self._settings["catalog.lease.abandoned_duration"] * 1e9:
                looked_ns = now_ns
                self.book.tick()
                with suppress(SlackwaterError, TimeoutError):
                    await self.reap()

    async def sweep(self) -> None:
        """Move on to newer versions, and delete the rows of leases that are not needed any more."""
        for lease in [lease for lease in self.book.held() if self._is_old(lease)]:
            await self._move_on(lease)
            with suppress(SlackwaterError, TimeoutError):
                await self._release(lease)
        for table_id in sorted({key[0] for key in self._doubtful}):
            async with self._lock(table_id):
                probe("catalog.doubtful_lease")
                with suppress(SlackwaterError, TimeoutError):
                    await self._delete([key for key in self._doubtful if key[0] == table_id])
        await self._judge()

    async def _move_on(self, lease: DescriptorLease) -> None:
        """Have new writes use the newest version; it is acquired at once if the old one is in use."""
        if self.book.newest.get(lease.table.table_id) is not lease:
            return
        if not lease.idle:
            with suppress(SlackwaterError, TimeoutError):
                await self._acquired(lease.table.table_id, lease.version + 1)
        self.book.supersede(lease)
        assert self.book.newest.get(lease.table.table_id) is not lease, "new writes do not take a lease that is let go"

    async def _judge(self) -> None:
        """End this node's epoch when it has not been able to delete its rows for as long as a lease lasts.

        Rows of epochs that have ended are deleted by others.
        """
        now_ns = self._runtime.clock.monotonic_ns()
        assert self._stuck_since_ns is None or self._stuck_since_ns <= now_ns, "the monotonic clock does not go back"
        if self.book.term is None or self.book.term.epoch not in self._doubtful.values():
            self._stuck_since_ns = None
        elif self._stuck_since_ns is None:
            self._stuck_since_ns = now_ns
        elif now_ns - self._stuck_since_ns >= self._settings["catalog.lease.duration"] * 1e9:
            probe("catalog.leases_given_up")
            self._stuck_since_ns = now_ns
            with suppress(SlackwaterError):  # then the record expires: it is not renewed any more
                await self._give_up()

    async def close(self) -> None:
        """Delete every row that no write needs any more: this node is about to stop."""
        for lease in self.book.held():
            self.book.supersede(lease)
            with suppress(SlackwaterError, TimeoutError):
                await self._release(lease)
            assert self.book.newest.get(lease.table.table_id) is not lease, (
                "no write takes a lease of a node that stops"
            )

    # --- leases that others have left

    async def reap(self, table_id: int | None = None, version: int | None = None) -> int:
        """Delete rows whose node has lost the epoch they hang on, of one version of a table or of all; returns rows seen."""
        seen = 0
        prefix = () if table_id is None else (table_id,) if version is None else (table_id, version)
        start, end = ROWS.span(*prefix).start, ROWS.span(*prefix).end
        while True:
            found = await self._kv.scan(start, end, max_keys=REAPED_AT_ONCE)
            seen += len(found.values)
            for value in found.values:
                await self._look_at(ROWS.codec.decode(value))
            if found.resume is None:
                return seen
            start = found.resume

    async def _look_at(self, row: dict[str, Any]) -> None:
        record = self._liveness.get(row["node_id"])
        if record is None:
            probe("catalog.lease_of_a_stranger")
            await self._liveness.refresh()
            record = self._liveness.get(row["node_id"])
        if record is not None and record.epoch == row["epoch"] and not record.live_at(self._clock.peek()):
            await self._catalog.following()
            history = self._catalog.tables.by_id(row["desc_id"])
            if history is None or history.latest.version <= row["version"]:
                return  # nothing waits for it
            probe("catalog.lease_of_the_dead")
            record = await self._liveness.end_epoch(record)
        if record is None or record.epoch > row["epoch"]:
            await self._reap_row(row, None if record is None else self._first_after(record, row["epoch"]))

    async def _reap_row(self, row: dict[str, Any], known: Liveness | None) -> None:
        place = (row["desc_id"], row["version"], row["expiration"], row["node_id"])
        assert known is None or known.epoch > row["epoch"], "the lease of an epoch that lasts is not deleted (I-29)"

        async def work(txn: Transaction) -> bool:
            found = await ROWS.get(txn, *place)
            if found is None or found["epoch"] != row["epoch"]:
                return False
            if known is None:
                if await txn.get(liveness_key(row["node_id"])) is not None:
                    return False
            elif txn.state.read_ts <= abandoned_after(known, abandoned_s=await self._abandoned_s(txn)):
                return False
            await ROWS.delete(txn, *place)
            return True

        if await self._kv.run(work, timeout=RELEASE_TIMEOUT_S):
            probe("catalog.lease_reaped")
            self.reaped += 1

    def record_of(self, node: NodeId) -> Liveness | None:
        """What is known of the node that holds a lease."""
        return self._liveness.get(node)

    def _first_after(self, record: Liveness, epoch: Epoch) -> Liveness:
        """The first record seen of a node after this epoch: by a later one, T would move on and never come to pass."""
        first = self._after.setdefault((record.node_id, epoch), record)
        assert first.epoch > epoch, "the record is of a later epoch than the lease"
        if len(self._after) > AFTER_MAX:
            del self._after[next(iter(self._after))]
        assert len(self._after) <= AFTER_MAX, "records that are remembered are bounded"
        return first

    def status(self) -> str:
        """One line for logs and scripts."""
        return f"{self.book.status()} acquired={self.acquired} released={self.released} reaped={self.reaped}"


def check_writable(table: TableDescriptor) -> None:
    """Raise `SchemaChanged` unless a table takes rows."""
    if table.dropped or table.dropping or table.read_only:
        what = "is being emptied; try again"
        if table.dropped or table.dropping:
            what = "was dropped" if table.dropped else "is being dropped and takes no more rows"
        raise SchemaChanged(f"table {table.name} {what}", table_id=table.table_id, version=table.version)


def show_lease(row: dict[str, Any]) -> str:
    """`n3 (version 4)`."""
    return f"n{row['node_id']} (version {row['version']})"
