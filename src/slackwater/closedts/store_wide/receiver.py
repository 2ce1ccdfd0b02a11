"""What followers make of heartbeats under the store-wide scheme.

Per store   closed timestamp, epoch, number of its last heartbeat, and the set of ranges it said are quiesced, with the index
            of each. A gap in the numbers or another epoch resets all of that: ranges may have acted unseen.
Per replica what it was told with an index, and the *confirmed* timestamp, which it has reached (`closedts.records`).

A read at t, on a replica that has applied index i, under the lease it knows:

    1. t <= confirmed                                                     serve
    2. t <= a closed timestamp it was told, with MLAI <= i                serve; it is confirmed from now on
    3. the range is quiesced, with MLAI <= i, and the lease is held by that store, in the epoch it reported, and is live:
       t <= the store's closed timestamp                                  serve; it is confirmed from now on

What was not asked for before the epoch changed is not usable in hindsight (3): whether the range was quiet under a
valid lease at the time is not known any more. What was confirmed stays (I-09).

A follower that lacks what it needs says so (`lacking`), and its node wakes the leaseholder: the range is named again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.closedts.records import Promise, Records
from slackwater.errors import ProtocolError, invariant
from slackwater.hooks import probe
from slackwater.model.descriptors import Epoch, LeaseAppliedIndex
from slackwater.protocol.closedts.heartbeat import WAKE_RANGES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.model.descriptors import Lease
    from slackwater.model.ids import NodeId, RangeId
    from slackwater.protocol.closedts.heartbeat import Heartbeat

LACKING_MAX = 4_096
"""Ranges remembered to be woken."""
assert LACKING_MAX >= WAKE_RANGES_MAX, "what is remembered fills a request"


class _Store:
    """What one store has said."""

    __slots__ = ("closed", "epoch", "named", "quiesced", "seq", "token")

    def __init__(self) -> None:
        self.token = 0
        self.epoch = Epoch(0)
        self.seq = 0
        self.closed = MIN
        self.quiesced: dict[RangeId, LeaseAppliedIndex] = {}
        self.named: dict[RangeId, int] = {}
        """The heartbeat that named a range last, quiesced or not."""


class HeartbeatReceiver:
    """All heartbeats that reach one node."""

    def __init__(self, records: Records, *, live_epoch: Callable[[NodeId], Epoch]) -> None:
        self._records = records
        self._live_epoch = live_epoch
        self._stores: dict[NodeId, _Store] = {}
        self._tokens = 0
        self.resets = 0
        """Times that what a store had said was discarded: a gap, or another epoch."""
        self.lacking: dict[RangeId, None] = {}
        """Ranges for which a replica here was asked and knew too little."""

    def attach(self, node: NodeId) -> int:
        """A connection to `node` begins; every older one of the same node is a zombie from now on."""
        store = self._stores.setdefault(node, _Store())
        self._tokens += 1
        assert store.token < self._tokens, "connections are numbered once"
        store.token = self._tokens
        return self._tokens

    def detach(self, node: NodeId, token: int) -> None:
        """The connection ended. What it said stays true."""
        store = self._stores.get(node)
        if store is not None and store.token == token:
            store.token = 0

    def had(self, node: NodeId) -> tuple[Epoch, int]:
        """The epoch and number of the last heartbeat of a store; zeros: none."""
        store = self._stores.get(node)
        return (Epoch(0), 0) if store is None else (store.epoch, store.seq)

    def receive(self, token: int, beat: Heartbeat) -> bool:
        """Take a heartbeat; False: it came over a connection that was replaced since."""
        store = self._stores.get(beat.sender)
        if store is None or store.token != token:
            probe("closedts.zombie_stream")
            return False
        if self._takes_back(store, beat):
            raise ProtocolError(
                f"n{beat.sender} takes back what it had closed: what it says of closed timestamps is not believed",
                closed=beat.closed, before=store.closed,
            )  # fmt: skip
        self.take(beat)
        return True

    def _takes_back(self, store: _Store, beat: Heartbeat) -> bool:
        """Whether a heartbeat goes on from the last one and closes less (I-09)."""
        return (beat.epoch, beat.after) == (store.epoch, store.seq) and beat.closed < store.closed

    def take(self, beat: Heartbeat) -> None:
        """What a heartbeat says is known from now on."""
        store = self._stores.setdefault(beat.sender, _Store())
        if (beat.epoch, beat.after) != (store.epoch, store.seq):
            probe("closedts.heartbeat_reset")
            self.resets += 1
            store.quiesced.clear()
            store.named.clear()
        invariant(not self._takes_back(store, beat), "I-09", closed=beat.closed, before=store.closed)
        store.epoch, store.seq, store.closed = beat.epoch, beat.seq, beat.closed
        for range_id in beat.awake:
            store.quiesced.pop(range_id, None)
        for range_id, mlai, quiesced, own in beat.ranges:
            self._records.keep(range_id, Promise(mlai, own or beat.closed))
            store.named[range_id] = beat.seq
            if quiesced:
                store.quiesced[range_id] = mlai
            else:
                store.quiesced.pop(range_id, None)

    def forget_stores(self) -> None:
        """The scheme is no longer listened to: ranges may act unseen. What replicas were promised is kept."""
        self._stores.clear()
        self.lacking.clear()

    def closed_for(self, range_id: RangeId, applied: LeaseAppliedIndex, lease: Lease) -> Timestamp:
        """What is closed for a replica that has applied that far and knows that lease. MIN for a replica not watched."""
        record = self._records.get(range_id)
        if record is None:
            return MIN
        confirmed = record.use(applied)
        if not lease.epoch:
            return confirmed  # the scheme has no words for a lease that ends by itself
        store = self._stores.get(lease.holder)
        if store is None or store.epoch != lease.epoch:
            self._lacks(range_id)
            return confirmed
        mlai = store.quiesced.get(range_id)
        if mlai is None:
            if store.seq - store.named.get(range_id, 0) > 1:
                self._lacks(range_id)
            return confirmed
        assert range_id in store.named, "a range is taken for quiet only after a heartbeat has named it"
        if store.closed <= confirmed or mlai > applied:
            return confirmed
        if self._live_epoch(lease.holder) != lease.epoch:
            probe("closedts.quiesced_lease_not_live")
            return confirmed
        assert mlai <= applied, "a promise is used once its index is applied (I-12)"
        assert store.closed > confirmed, "what was served stays closed (I-09)"
        record.served = store.closed
        return record.served

    def _lacks(self, range_id: RangeId) -> None:
        if len(self.lacking) < LACKING_MAX:
            self.lacking[range_id] = None
            assert len(self.lacking) <= LACKING_MAX, "ranges to be woken are bounded"

    def waiting_for(self, range_id: RangeId, applied: LeaseAppliedIndex) -> Promise | None:
        """What would be closed, were more applied."""
        record = self._records.get(range_id)
        return min((p for p in record.steps if p.lai > applied), default=None) if record is not None else None

    def status(self, node: NodeId) -> str:
        """One line for logs and scripts."""
        store = self._stores.get(node)
        if store is None:
            return f"n{node} unknown"
        quiesced = " ".join(f"r{r}@{lai}" for r, lai in sorted(store.quiesced.items()))
        return f"n{node} epoch={store.epoch} #{store.seq} closed={store.closed} quiesced=[{quiesced}]"
