"""All replicas on one node, over one engine.

load        every RangeState in the engine becomes a replica that tails its log from the applied position
execute     a batch goes to its replica, or `RangeMismatch` when that is not here
split       a replica appears in the same engine batch in which its left side shrank
merge       a replica disappears in the same engine batch in which its left side grew
snapshot    a replica is sent as a stream of blocks, and installed from one
flush       makes applied state durable now and then; only *durable* positions may be reported for trimming (pitfall 59)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import LOGICAL_BITS, MIN, Timestamp
from slackwater.closedts.closable import NodeLease
from slackwater.closedts.policy import PolicyBook, closable_upto
from slackwater.errors import (
    DamageError,
    LogTrimmed,
    NotLeaseholder,
    RangeMismatch,
    SlackwaterError,
    StorageError,
    UnavailableError,
)
from slackwater.hooks import probe, tap
from slackwater.model.descriptors import Epoch
from slackwater.model.ids import NodeId, Position, RangeId
from slackwater.replica import declare
from slackwater.replica.driver import promises
from slackwater.replica.driver.context import DetachReason, ReplicaContext
from slackwater.replica.driver.damage import DamageLog, check_received, end_damaged, read_failed
from slackwater.replica.driver.merged_ranges import MergedRanges
from slackwater.replica.driver.neighbours import Neighbours, seen_key
from slackwater.replica.driver.replica import Replica
from slackwater.replica.driver.stored import stored_states
from slackwater.replica.driver.together import Together
from slackwater.replica.driver.waiting import Waiters
from slackwater.replica.lease import lasts_s
from slackwater.replica.snapshot import SnapshotReceiver, check_whole, clear, send_parts
from slackwater.replica.together import may_join
from slackwater.runtime.later import Later
from slackwater.runtime.seam import Family
from slackwater.storage.batch import WriteBatch
from slackwater.storage.columns.shelf import Shelf

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from slackwater.clock import HybridClock
    from slackwater.closedts.publisher import Publisher
    from slackwater.log.contract import OrderedLog
    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.protocol.node.snapshots import SnapshotPart
    from slackwater.protocol.range.requests import Batch, BatchResult
    from slackwater.replica.driver.context import ApplyListener, LivenessView
    from slackwater.replica.evaluation import LeftSide
    from slackwater.replica.read_summary import ReadSummary
    from slackwater.replica.state import RangeState
    from slackwater.runtime.seam import Engine, Runtime, TaskHandle, TaskScope
    from slackwater.settings import Settings

NEIGHBOUR_WAIT_S = 1.0
NEIGHBOUR_WAITS_MAX = 60
"""A merge waits this long for the right side to catch up here; then the merged range is fetched whole."""
MISSING_WAITS_MAX = 5
"""… and this long for one that is not here at all and not on its way. Nothing of the left side is applied meanwhile."""
assert MISSING_WAITS_MAX < NEIGHBOUR_WAITS_MAX, "a neighbor that is missing is waited for less than one that is late"
DESCRIPTORS_HINTED_MAX = 16
assert DESCRIPTORS_HINTED_MAX >= 2, "a caller is told of both halves of a split"
FLUSH_AGAIN_S = 0.5
"""How soon a store that refused is tried again: its node leads nothing meanwhile."""


class Store:
    """The replicas of one node. Implements `StoreHooks` for them."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        runtime: Runtime,
        clock: HybridClock,
        settings: Settings,
        engine: Engine,
        log: OrderedLog,
        liveness: LivenessView,
        scope: TaskScope,
        listener: ApplyListener | None = None,
        on_trimmed: Callable[[RangeState], None] | None = None,
        transport: Publisher | None = None,
        trusted: Callable[[], None] = lambda: None,
        policies: PolicyBook | None = None,
        on_damaged: Callable[[Replica], None] = Replica.halt,
        check_record: Callable[[bytes, bytes], None] = lambda key, value: None,
        life: int = 0,
    ) -> None:
        self.replicas: dict[RangeId, Replica] = {}
        self.durable: dict[RangeId, Position] = {}
        self.quarantined: dict[RangeId, str] = {}
        self._scope = scope
        self._on_trimmed = on_trimmed
        self.on_damaged = on_damaged
        self.damage = DamageLog()
        self._arrived: Waiters[RangeId] = Waiters()
        self.merged = MergedRanges(engine)
        self._beside = Neighbours(self.replicas, engine)
        self._flusher: TaskHandle[None] | None = None
        self._installing: dict[RangeId, RangeDescriptor] = {}
        self._stopping = self._ending = False
        self._reached = MIN
        self.check_record = check_record
        self.context = ReplicaContext(
            node_id=node_id,
            runtime=runtime,
            clock=clock,
            settings=settings,
            engine=engine,
            log=log,
            liveness=liveness,
            hooks=self,
            listener=listener,
            transport=transport,
            trusted=trusted,
            policies=policies or PolicyBook(),
            columns=Shelf(engine.files),
            life=life,
        )
        self._together = Together(self.context, self.at_once)

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Load every replica from the engine and set it going."""
        assert not self.replicas, "a store is started once"
        forgotten = WriteBatch()
        self.context.columns.load(self.context.engine, forgotten)
        if len(forgotten):
            self.context.engine.write(forgotten)
        for state in stored_states(self.context.engine):
            self.durable[state.descriptor.range_id] = state.position
            replica = self._add(state)
            if self.context.node_id not in state.descriptor.replicas:
                # It was removed, and the node ended before its store did the same.
                self.remove(replica.state.descriptor.range_id)
        self.merged.load(self.replicas.keys())
        assert self.durable.keys() == self.replicas.keys(), (
            "every replica that was loaded is durable up to where it begins"
        )
        if self.context.transport is not None:
            promises.recall(self.context.engine, self.context.transport)
        self._scope.spawn(self._keep_leases(), name="leases")
        self._flusher = self._scope.spawn(self._keep_flushing(), name="flusher")
        if self.context.transport is not None:
            self.context.transport.start(self)

    def _add(self, state: RangeState, *, continued: bool = False) -> Replica:
        range_id = state.descriptor.range_id
        replica = Replica(self.context, state, self._scope.child(f"r{range_id}"), continued=continued)
        assert range_id not in self.replicas, "a store has one replica of a range"
        self.replicas[range_id] = replica
        if self.context.transport is not None:
            self.context.transport.add(range_id, replica.closing)
        replica.start()
        self._arrived.tell(range_id)
        return replica

    def _drop(self, range_id: RangeId, why: DetachReason, *, refetched: bool = False) -> None:
        """Forget a replica at once; its tasks end soon, and it writes no more. `refetched`: a newer one takes its place."""
        if not refetched:
            tap("store.dropped", self, range_id)
        replica = self.replicas.pop(range_id, None)
        self.durable.pop(range_id, None)
        self.quarantined.pop(range_id, None)
        if replica is not None:
            self._reached = Timestamp(max(self._reached, replica.reached()))
            replica.retire(why)
            if self.context.transport is not None and refetched:
                self.context.transport.replace(range_id, replica.state.lai)
            elif self.context.transport is not None:
                self.context.transport.remove(range_id)
            self._scope.spawn(replica.stop(), name=f"stop r{range_id}")

    async def stop(self) -> None:
        """End every replica and make what they applied durable.

        One that has not been stopped yet may still split, and what it makes has to be stopped as well. A snapshot that is
        being installed is given up: whatever it wrote after the last flush would be lost.
        """
        self._stopping = True
        while running := [replica for replica in self.replicas.values() if not replica.stopped]:
            await running[0].stop()
        if self._flusher is not None:
            self._flusher.cancel()  # it has subscribers write what they remember: nothing is written behind the last flush
        self._tell_followers()
        await self._note_promises()
        await self.context.engine.flush()

    # --- serving -----------------------------------------------------------------------------------------------------

    def at_once(
        self, batch: Batch, now: Timestamp | None = None, of: Sequence[Batch] | None = None
    ) -> BatchResult | Later[BatchResult] | None:
        """Answer a batch in this very step, or begin to; None: it has to wait for something, and nothing was done.

        A lone write that meets others under way is begun at the end of this turn of the loop; what it is told may be that None.
        `now` is a reading of this node's clock that the caller has taken in this very step. `of` is given at the end of a turn:
        what a combined batch is made of, or nothing.
        """
        replica = self.replicas.get(batch.header.range_id)
        if replica is None:
            raise self._not_here(batch)
        if of is None and (replica.executor.under_way or self.context.gathering):
            if may_join(batch) and self._together.has_room_for(batch, replica):
                return self._together.take(batch)
            if self._together.make_way(batch):
                now = None  # others were served by a later reading: the clock is read again (I-01)
        try:
            return replica.executor.at_once(batch, now, of or ())
        except (RangeMismatch, StorageError) as error:
            raise self._explained(error, batch) from error

    async def execute(self, batch: Batch) -> BatchResult:
        """Answer a batch from the replica it names: at once if nothing is in the way, else after waiting for that."""
        begun = self.at_once(batch)
        answer = await begun.wait() if isinstance(begun, Later) else begun
        return await self.execute_waiting(batch) if answer is None else answer

    async def execute_waiting(self, batch: Batch) -> BatchResult:
        """The long way, for a batch that could not be answered at once."""
        replica = self.replicas.get(batch.header.range_id)
        if replica is None:
            raise self._not_here(batch)
        try:
            return await replica.executor.execute(batch)
        except (RangeMismatch, StorageError) as error:
            raise self._explained(error, batch) from error

    def _explained(self, error: RangeMismatch | StorageError, batch: Batch) -> SlackwaterError:
        """What the caller is told of an error that its replica knows only half of."""
        if isinstance(error, StorageError):
            return self.read_failed(batch.header.range_id, error)
        # After a split or merge the neighbour is here too: say so, and the caller needs no second lookup.
        return RangeMismatch(error.message, descriptors=self._overlapping(batch))

    def _not_here(self, batch: Batch) -> RangeMismatch | NotLeaseholder:
        """Say what is here instead; or, when nothing is, only that another replica should be asked.

        A replica may be named before it has been filled. That says nothing about the descriptor the caller used.
        """
        range_id, known = batch.header.range_id, self._overlapping(batch)
        message = f"n{self.context.node_id} has no replica of r{range_id}"
        if known:
            return RangeMismatch(message, descriptors=known)
        return NotLeaseholder(message, range_id=range_id, hint=0, reason="no replica")

    def _overlapping(self, batch: Batch) -> list[RangeDescriptor]:
        span = declare.bounds(batch)
        known = [r.state.descriptor for r in self.replicas.values()]
        if span is None:
            return [d for d in known if d.range_id == batch.header.range_id]
        return [d for d in known if d.start < span.end and span.start < d.end][:DESCRIPTORS_HINTED_MAX]

    def descriptor_of(self, range_id: RangeId) -> RangeDescriptor | None:
        """What the replica here says of its range, or None."""
        replica = self.replicas.get(range_id)
        return None if replica is None else replica.state.descriptor

    def holding(self, key: bytes) -> Replica | None:
        """The replica here whose range holds `key`."""
        for replica in self.replicas.values():
            if replica.state.descriptor.contains(key):
                return replica
        return None

    async def _keep_leases(self) -> None:
        """Extend expiration-based leases in time."""
        while True:
            for replica in list(self.replicas.values()):
                if replica.leasing.by_expiration:
                    replica.extend_lease()
            offset_us, wanted_s = self.context.clock.max_offset_us, self.context.settings["lease.duration"]
            await self.context.runtime.clock.sleep(lasts_s(wanted_s, max_offset_us=offset_us) / 16)

    async def _keep_flushing(self) -> None:
        while True:
            pause, failing = (
                self.context.settings["store.flush_interval"],
                self.context.writes.failing_since_ns is not None,
            )
            await self.context.runtime.clock.sleep(min(pause, FLUSH_AGAIN_S) if failing else pause)
            if failing or self.replicas:
                await self.flush()

    async def flush(self) -> None:
        """Make everything applied so far durable; afterwards these positions may be trimmed."""
        applied = [(range_id, replica, replica.state.position) for range_id, replica in self.replicas.items()]
        columns = self.context.columns
        retired = columns.flushing()
        try:
            self._tell_followers()
            await self._note_promises()
            await self.context.engine.flush()
        except StorageError as error:
            probe("store.flush_failed")
            columns.flushed(retired, durable=False)
            self.context.writes.failed(error, now_ns=self.context.runtime.clock.monotonic_ns(), flushing=True)
            if isinstance(error, DamageError):
                self.unwritable(error)
            return
        self.context.writes.worked(flushed=True)
        columns.flushed(retired, durable=True)
        tap("store.flushed", self)
        for range_id, replica, position in applied:
            if self.replicas.get(range_id) is replica:  # or another one took its place meanwhile, from a snapshot
                self.durable[range_id] = max(position, self.durable.get(range_id, position))
                assert self.durable[range_id] <= replica.state.position, "nothing is durable that was not applied"

    async def _note_promises(self) -> None:
        """Write down what the side transport has promised, for the next start and for recovery."""
        clock = self.context.runtime.clock
        await promises.note(self.context.engine, self.replicas, lambda: clock.sleep(0))
        tap("store.noted", self)

    def _tell_followers(self) -> None:
        for replica in self.replicas.values():
            if replica.apply_subscriber is not None:
                replica.apply_subscriber.flushing()

    # --- hooks -------------------------------------------------------------------------------------------------------

    def replica_created(self, state: RangeState, reads: ReadSummary, *, continued: bool) -> None:
        """A split made a new range, here too; its state is already in the engine."""
        assert state.position == 0, "the log of a new range has not been read"
        assert state.lai == 0, "indexes of a new range begin anew (I-05)"
        self._add(state, continued=continued).tscache.apply_summary(reads)

    def replica_absorbed(self, right: RangeDescriptor, into: RangeId) -> None:
        """A merge ended the range `right`; its state is already gone from the engine."""
        assert into != right.range_id, "a range does not absorb itself"
        self._drop(right.range_id, DetachReason.ABSORBED)
        assert self.replicas[into].state.descriptor.covers(right.start, right.end), "the left side has the keys"
        self.merged.record(right.range_id, into=into, at=self.replicas[into].state.position)

    def replica_removed(self, range_id: RangeId) -> None:
        """The range no longer counts this replica."""
        self.remove(range_id)

    def generation_changed(self, batch: WriteBatch, before: RangeDescriptor, after: RangeDescriptor) -> None:
        """Note, for the ranges to the right, that the one beside them went on from one generation to the next."""
        self._beside.generation_changed(batch, before, after)

    def left_of(self, descriptor: RangeDescriptor) -> LeftSide:
        """What this store has applied of the range that ends where the given one begins."""
        return self._beside.left_of(descriptor)

    def state_of(self, range_id: RangeId) -> RangeState | None:
        """The applied state of the replica here of a range; None: there is none."""
        replica = self.replicas.get(range_id)
        return replica.state if replica is not None else None

    def node_known(self, node_id: NodeId) -> bool:
        """Whether there is a liveness record of a node, as far as this store has heard."""
        return node_id == self.context.node_id or self.context.liveness.get(node_id) is not None

    async def wait_applied(self, range_id: RangeId, position: Position) -> None:
        """Return once this store's replica of the range has applied up to `position`; `UnavailableError` if it cannot."""
        missing = 0
        for _ in range(NEIGHBOUR_WAITS_MAX):
            replica = self.replicas.get(range_id)
            if replica is None:
                probe("store.wait_for_neighbour")
                missing += range_id not in self._installing
                if missing > MISSING_WAITS_MAX:
                    break
                await self._arrived.wait(range_id, seconds=NEIGHBOUR_WAIT_S)
                continue
            applied = await replica.wait_applied(position, seconds=NEIGHBOUR_WAIT_S)
            if replica.failure is not None:
                break  # however far it came: what it holds may differ from the others', and would be the merged range's (I-34)
            if applied:
                assert replica.state.position >= position, "the right side of a merge is here up to its freeze"
                return
        probe("store.neighbour_missing")
        raise UnavailableError(f"r{range_id} is not here to be merged; a snapshot of the merged range is needed")

    def replica_failed(self, range_id: RangeId, error: BaseException) -> None:
        """A replica met something it must not go on from: keep it apart, and fetch a snapshot if that can help."""
        self.quarantined[range_id] = str(error)
        replica = self.replicas.get(range_id)
        if replica is not None:
            replica.dismiss(DetachReason.FAILED, str(error))
        fetch = isinstance(error, LogTrimmed | UnavailableError | DamageError)
        if fetch and replica is not None and self._on_trimmed is not None:
            self._on_trimmed(replica.state)

    def read_failed(self, range_id: RangeId, error: StorageError) -> SlackwaterError:
        """Quarantine a replica that cannot be read here; returns the refusal that sends its reader to another one."""
        return read_failed(self, range_id, error)

    def unwritable(self, error: DamageError) -> None:
        """Give everything up and end the node, once: the store takes no more writes."""
        if not self._ending:
            self._ending = True
            self._scope.spawn(end_damaged(self, error), name="end damaged")

    def reached(self) -> Timestamp:
        """At or above everything that replicas which are no longer here had closed or served."""
        return self._reached

    def horizon(self) -> Timestamp:
        """At or above everything this process has closed or served, in the future of its clock where ranges lead."""
        return Timestamp(max([self._reached, *(r.reached() for r in self.replicas.values())]))

    # --- closed timestamps (`closedts.log_driven.driver.Ranges`) ----------------------------------------------------------------

    def node_lease(self) -> NodeLease | None:
        """The epoch this node's leases hang on, while it may be relied on."""
        clock, own = self.context.clock, self.context.liveness.own()
        if own is None:
            return None
        assert own.node_id == self.context.node_id, "a node relies on its own record"
        upto = closable_upto(Timestamp(own.expiration - (clock.max_offset_us << LOGICAL_BITS)))
        assert upto < own.expiration, "closing stays inside the lease (I-11)"
        return NodeLease(own.epoch, upto) if clock.peek() <= upto else None

    def live_epoch(self, node: NodeId) -> Epoch:
        """The epoch in which a node is known to be live now; 0: it is not, or that is not known."""
        view = self.context.liveness
        record = view.own() if node == self.context.node_id else view.get(node)
        live = record is not None and record.live_at(self.context.clock.peek())
        return record.epoch if record is not None and live else Epoch(0)

    def leaseholder(self, range_id: RangeId) -> NodeId:
        """The node that holds the lease of a range that is here, as far as is known; 0: none."""
        replica = self.replicas.get(range_id)
        return NodeId(0) if replica is None else replica.state.lease.holder

    def closed(self, range_id: RangeId) -> Timestamp:
        """What a follower read of this range may be served at, here and now."""
        replica = self.replicas.get(range_id)
        return MIN if replica is None else replica.closing.closed()

    def peers(self) -> set[NodeId]:
        """Nodes that share a range with this one."""
        return {n for r in self.replicas.values() for n in r.state.descriptor.replicas} - {self.context.node_id}

    # --- snapshots ---------------------------------------------------------------------------------------------------

    async def send_snapshot(self, range_id: RangeId) -> AsyncIterator[SnapshotPart]:
        """One range at one applied position, as a stream."""
        replica = self.replicas.get(range_id)
        if replica is None or replica.failure is not None:
            raise RangeMismatch(f"n{self.context.node_id} has no healthy replica of r{range_id}", descriptors=[])
        # Taken in one step: state and data belong to the same position.
        state, frozen = replica.state, self.context.engine.snapshot(once=True)
        assert state.descriptor.range_id == range_id, "the range that was asked for"
        try:
            await self.context.runtime.offload(check_whole, frozen, state)
            for part in send_parts(frozen, state):
                yield part
        except StorageError as error:
            self.damage.refused += 1
            raise self.read_failed(range_id, error) from error
        finally:
            frozen.close()

    async def install_snapshot(
        self, parts: AsyncIterator[SnapshotPart], *, wanted: RangeId | None = None
    ) -> RangeState:
        """Replace or create a replica from a stream. Refused while another local range still covers its keys.

        With `wanted`, only a stream of that range is taken.

        Its keys are taken from the first part on until the replica is there: another stream of the same keys, let in
        while this one is flushed, would wipe out what it wrote.
        """
        receiver = SnapshotReceiver(wanted)
        taken: RangeId | None = None
        try:
            async for part in parts:
                self._check_running()
                batch = receiver.take(part)
                if taken is None and receiver.state is not None:
                    self._make_room(receiver.state)
                    taken = receiver.state.descriptor.range_id
                    self._installing[taken] = receiver.state.descriptor
                if receiver.state is not None and receiver.complete:
                    await check_received(self.damage, self.context, receiver.state)
                self.context.write(batch)
            state = receiver.state
            if state is None or not receiver.complete:
                raise StorageError("a snapshot stream ended early; ask for it again")
            assert taken == state.descriptor.range_id, "the keys that were taken are those that are installed"
            await self.context.engine.flush()
            self._check_running()
            self.durable[state.descriptor.range_id] = state.position
            assert self.context.node_id in state.descriptor.replicas, (
                "a replica that its range does not count is not installed"
            )
            tap("store.installed", self, state)
            assert state.descriptor.range_id not in self.replicas, "room was made for it"
            self._add(state)
            return state
        finally:
            if taken is not None:
                self._installing.pop(taken, None)
                self._forget(taken)

    def _forget(self, range_id: RangeId) -> None:
        """A snapshot broke off: there is no replica that could go on with what the one before it was promised."""
        if range_id not in self.replicas and self.context.transport is not None:
            tap("store.dropped", self, range_id)
            self.context.transport.remove(range_id)

    def _check_running(self) -> None:
        if self._stopping:
            raise UnavailableError(
                f"n{self.context.node_id} is stopping and installs no more snapshots; ask another node"
            )

    def _make_room(self, incoming: RangeState) -> None:
        """Drop local replicas that the incoming range replaces; refuse if one of them is not older."""
        new = incoming.descriptor
        if self.context.node_id not in new.replicas:
            raise RangeMismatch(f"r{new.range_id} does not count n{self.context.node_id}", descriptors=[new])
        for other in self._installing.values():
            if other.range_id == new.range_id or (other.start < new.end and new.start < other.end):
                raise StorageError(f"a snapshot of r{other.range_id} is being installed already", wanted=new.range_id)
        for replica in list(self.replicas.values()):
            old = replica.state.descriptor
            if old.end <= new.start or new.end <= old.start:
                continue
            same = old.range_id == new.range_id
            # Never back, not even where the replica has failed: reads were served up to there.
            here, failed = replica.state.position, replica.failure is not None
            if same and (incoming.position < here or (incoming.position == here and not failed)):
                raise StorageError(f"the replica of r{new.range_id} here is already as new as the snapshot")
            # What has failed for good never splits or merges by itself: it goes, even if only a part of it is replaced.
            replaced = new.covers(old.start, old.end) or replica.failure is not None or self._left_behind(replica, new)
            if not same and not (replaced and old.generation < new.generation):
                probe("store.snapshot_overlaps")
                raise StorageError(
                    f"r{old.range_id} here still covers keys of r{new.range_id}; it will split or merge first"
                )
        batch, replaced_here = WriteBatch(), list[RangeId]()
        for replica in list(self.replicas.values()):
            old = replica.state.descriptor
            if old.range_id == new.range_id or not (old.end <= new.start or new.end <= old.start):
                replaced_here.append(old.range_id)
                clear(batch, old)
        self.context.write(batch)  # a store that cannot be written keeps what it has
        for range_id in replaced_here:
            self._drop(range_id, DetachReason.REPLACED, refetched=range_id == new.range_id)
        assert all(
            d.end <= new.start or new.end <= d.start for d in (r.state.descriptor for r in self.replicas.values())
        ), "room was made"

    def _left_behind(self, replica: Replica, new: RangeDescriptor) -> bool:
        """Whether a frozen replica waits here for a merge that will not come.

        A range keeps its first key for life. So one whose first key is in a newer range has been absorbed; and if the
        left side here has failed, or went past the merge by a snapshot, no range will absorb what is left of it here.
        """
        old, frozen = replica.state.descriptor, replica.state.frozen
        if frozen is None or not new.contains(old.start):
            return False
        left = self.replicas.get(frozen.left_id)
        probe("store.left_behind")
        return (
            left is None
            or left.failure is not None
            or frozen.left_id == new.range_id
            or left.state.descriptor.generation > frozen.left_generation
        )

    def remove(self, range_id: RangeId) -> None:
        """Remove a replica that its range no longer counts."""
        replica = self.replicas.get(range_id)
        if replica is None:
            return
        probe("store.replica_removed")
        self._drop(range_id, DetachReason.REMOVED)
        batch = WriteBatch()
        clear(batch, replica.state.descriptor)
        batch.delete(Family.LOCAL, seen_key(range_id))
        self.context.write(batch)

    def status(self) -> str:
        """One line per replica."""
        return "\n".join(self.replicas[r].status() for r in sorted(self.replicas))
