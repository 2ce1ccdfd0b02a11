"""Leases on versions of tables, as one node holds them. Pure.

A node uses a version of a table for writes only while it holds a lease on it: a row of `system.lease`. The next version but one
is not published before every such row is gone, so a lease keeps the version it names among the two that may be in use (I-29).

    node, epoch E     heartbeat ──► record {E, expiration P, lease_ms}      F = P + lease_ms, the *frontier* of the epoch
    lease on (t, v)   taken by a write ──► commits below F, or not at all ──► given back
                      v+1 is heard of ──► new writes take v+1; once the last user of v has given it back, its row is deleted

    Term              one epoch of the node and its frontier, which moves on with every heartbeat and never back
    DescriptorLease   (table, version) → descriptor, term, how often it was taken and given back
    LeaseBook         all of them; `newest` is what new writes take

A lease does not expire by itself: its row says `expiration = MAX`. What expires is the epoch it hangs on. When the node loses the
epoch, the frontier stays where it was, so writes under the lease end there, and other nodes delete the row after that
(`abandoned_after`). Acquired anew, the lease hangs on the present epoch, and its users go on: had the version been replaced twice
meanwhile, it could not have been acquired.

A write whose outcome is not known may still commit, below the deadline that it was sent with. So it gives its lease back for a
later time (`give_back_after`), and the row is not deleted before that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.catalog.planning import is_plain
from slackwater.clock.timestamp import MIN, Timestamp, add_seconds
from slackwater.errors import invariant

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.model.descriptors import Epoch, Liveness
    from slackwater.model.tables import TableDescriptor


class Term:
    """One epoch of this node, and the timestamp below which writes under its leases commit."""

    __slots__ = ("epoch", "frontier")

    def __init__(self, epoch: Epoch) -> None:
        self.epoch = epoch
        self.frontier = MIN

    def renewed(self, record: Liveness) -> None:
        """A heartbeat of this epoch was written: the frontier moves on, never back (I-30)."""
        assert record.epoch == self.epoch, "a term is one epoch"
        assert self.epoch > 0, "epochs begin at 1"
        self.frontier = max(self.frontier, record.promised_upto)


class DescriptorLease:
    """The right of this node to write by one version of a table, and the count of those who do."""

    __slots__ = (
        "given", "idle", "lingers_upto", "plain", "since", "table", "taken", "taken_before", "term", "unused", "version",
    )  # fmt: skip

    def __init__(self, table: TableDescriptor, term: Term, since: Timestamp) -> None:
        assert table.version > 0, "versions begin at 1"
        self.table = table
        self.plain = is_plain(table)
        """Whether writes by it need no planning."""
        self.version = table.version
        self.term = term
        self.since = since
        self.taken = 0
        self.given = 0
        self.lingers_upto = MIN
        """Writes of unknown outcome may commit below this."""
        self.taken_before = 0
        self.idle = False
        """Whether it was not taken for a while (`LeaseBook.tick`)."""
        self.unused: Callable[[], None] | None = None
        """Called once, when the last user has given back a lease that is wanted gone."""

    @property
    def deadline(self) -> Timestamp:
        """Commit timestamps of writes by this lease lie below this."""
        return self.term.frontier

    @property
    def key(self) -> tuple[int, int]:
        """The table and the version."""
        return self.table.table_id, self.version

    def take(self) -> DescriptorLease:
        """Count one more user, who gives it back."""
        self.taken += 1
        return self

    def give_back(self) -> None:
        """Count one user less: what it wrote is committed and in the past, or never will be."""
        self.given += 1
        assert self.given <= self.taken, "a lease is given back once for each time it was taken"
        if self.unused is not None and self.given == self.taken:
            unused, self.unused = self.unused, None
            unused()

    def give_back_after(self, deadline: Timestamp) -> None:
        """Count one user less, whose write may still commit below `deadline`."""
        self.lingers_upto = max(self.lingers_upto, deadline)
        self.give_back()

    def in_use(self, now: Timestamp) -> bool:
        """Whether a write by it may still commit."""
        assert self.given <= self.taken, "a lease is given back once for each time it was taken"
        return self.taken != self.given or now <= self.lingers_upto

    def status(self) -> str:
        """One line for logs and scripts."""
        name, users = self.table.name, self.taken - self.given
        return f"{name}@{self.version} epoch={self.term.epoch} until={self.term.frontier} users={users}"


class LeaseBook:
    """Every lease of one node."""

    def __init__(self) -> None:
        self.term: Term | None = None
        """The node's present epoch; None before its first heartbeat."""
        self.newest: dict[int, DescriptorLease] = {}
        """The lease that new writes to a table take."""
        self._held: dict[tuple[int, int], DescriptorLease] = {}

    def renewed(self, record: Liveness) -> None:
        """The node's own record was written, in this epoch or in a new one."""
        if self.term is None or record.epoch > self.term.epoch:
            self.term = Term(record.epoch)
        assert self.term.epoch >= record.epoch, "the epoch of a node only moves up (I-07)"
        if record.epoch == self.term.epoch:
            self.term.renewed(record)

    def add(self, table: TableDescriptor, term: Term, *, since: Timestamp) -> DescriptorLease:
        """A lease was acquired, for the first time or anew."""
        lease = self._held.get((table.table_id, table.version))
        if lease is None:
            lease = self._held[table.table_id, table.version] = DescriptorLease(table, term, since)
        invariant(lease.term.epoch <= term.epoch, "I-29", lease=lease.status(), epoch=term.epoch)
        lease.term = term
        newest = self.newest.get(table.table_id)
        if newest is None or newest.version <= table.version:
            self.newest[table.table_id] = lease
        assert self.newest[table.table_id].version >= table.version, "new writes take the newest version"
        assert lease.key in self._held, "a lease that is used is held"
        return lease

    def usable(self, table_id: int) -> DescriptorLease | None:
        """The newest lease on a table, if it hangs on the node's present epoch."""
        lease = self.newest.get(table_id)
        return lease if lease is not None and lease.term is self.term else None

    def supersede(self, lease: DescriptorLease) -> None:
        """Have no new writes take this lease."""
        if self.newest.get(lease.table.table_id) is lease:
            del self.newest[lease.table.table_id]

    def retire(self, lease: DescriptorLease, *, now: Timestamp) -> bool:
        """Forget a lease so that its row can be deleted; False while a write by it may still commit."""
        if lease.in_use(now):
            return False
        self.supersede(lease)
        assert lease.taken == lease.given, "a lease that writes use is not retired (I-30)"
        self._held.pop(lease.key, None)
        assert self.newest.get(lease.table.table_id) is not lease, "no write takes a lease that is let go (I-30)"
        return True

    def held(self, table_id: int | None = None) -> list[DescriptorLease]:
        """Every lease, or those on one table, in order."""
        return [lease for key, lease in sorted(self._held.items()) if table_id in (None, key[0])]

    def holds(self, key: tuple[int, int]) -> bool:
        """Whether there is a lease on this table and version."""
        return key in self._held

    def tick(self) -> None:
        """Note which leases were not taken since the last tick."""
        for lease in self._held.values():
            lease.idle = lease.taken == lease.taken_before == lease.given
            lease.taken_before = lease.taken

    def status(self) -> str:
        """One line for logs and scripts."""
        return "leases " + (", ".join(lease.status() for lease in self.held()) or "none")


def abandoned_after(record: Liveness, *, abandoned_s: float) -> Timestamp:
    """The timestamp after which leases of epochs before the record's are deleted: T > Q + `abandoned_s`, Q its expiration.

    Of all records seen of later epochs, the one with the lowest expiration serves, so that T comes to pass. It lies above every
    frontier of earlier epochs if Q is at or above their expirations. A node that stops ends its epoch with an earlier
    expiration than others know; what it had promised is in the record too, and counts.
    """
    assert abandoned_s >= 0, "a lease counts for as long as was promised, at least"
    return max(add_seconds(record.expiration, abandoned_s), record.relied_upto)
