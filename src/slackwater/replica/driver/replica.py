"""One replica of one range, alive: it waits, proposes, tails and applies. All decisions are in the pure files beside it.

    execute(batch)
      │ lease held? ── no ──► acquire it, or NotLeaseholder with a hint
      │ latches ───── wait for earlier conflicting requests
      │ evaluate ──── check and act in one step, no await: lease, bounds, floors, read, decide
      │ propose ───── Pipeline ──► log.append ──► tail ──► apply ──► engine.write
      ▼ result ◄── the waiter is told; latches are released ◄────────────┘

A request that is cancelled after it proposed keeps its latches until the command is decided: it may still apply. A caller
gets its result or a definite error; `AmbiguousResult` only when the replica itself ends before the command is decided.
"""

from __future__ import annotations

from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import LOGICAL_BITS, MAX, MIN, Timestamp, seconds_between
from slackwater.closedts.tracker import BucketTracker
from slackwater.errors import (
    AmbiguousResult,
    ClockError,
    ConnectionLost,
    DamageError,
    RangeMismatch,
    ReadWithinUncertainty,
    SlackwaterError,
    StorageError,
    UnavailableError,
)
from slackwater.hooks import probe, tap
from slackwater.protocol.log.commands import COMMAND_ID_BYTES, LeaseTrigger, decode_packet
from slackwater.protocol.range import requests as rq
from slackwater.replica import admission, declare
from slackwater.replica.apply import Absorbed, Created, Digested, LeaseChanged, apply_packet, digest_in, merge_in
from slackwater.replica.driver.checksums import Checksums
from slackwater.replica.driver.closing import Closing
from slackwater.replica.driver.leasing import Leasing
from slackwater.replica.driver.pipeline import Pipeline, Waiter
from slackwater.replica.driver.reading import follower_read, lease_info, read_bulk, served_here
from slackwater.replica.driver.waiting import Waiters, as_known, deadline_of
from slackwater.replica.evaluate import Evaluation, View, evaluate
from slackwater.replica.latches import Latch, LatchManager, RequestId
from slackwater.replica.load import LoadMeter
from slackwater.replica.propose import Proposal, ProposalBuffer
from slackwater.replica.tscache import TimestampCache
from slackwater.storage.batch import WriteBatch
from slackwater.storage.stats import recompute_now

if TYPE_CHECKING:
    from slackwater.log.contract import Entry
    from slackwater.model.ids import NodeId, Position
    from slackwater.protocol.log.commands import Packet
    from slackwater.protocol.range.requests import Batch, BatchResult
    from slackwater.protocol.range.served import Served
    from slackwater.replica.apply import Aftermath, Applied
    from slackwater.replica.driver.context import Context, Gone, ReplicaFollower
    from slackwater.replica.state import RangeState
    from slackwater.runtime.deadline import Deadline
    from slackwater.runtime.seam import TaskScope

LATCH_WAIT_S_MAX = 60.0
NO_LATCH = RequestId(0)
PUSH_ROUNDS_MAX = 16
APPLY_RUN_BYTES_MAX = 4 << 20
"""Entries are applied together up to about this many bytes of payload, in one engine batch."""
TAIL_AGAIN_S = 0.05
"""Pause before a broken log reader is opened again."""
SPLIT_READS_BYTES_MAX = 1 << 20
"""Of served reads that the right half takes over exactly; the rest raise its floor."""


class Replica:
    """A replica and, while it holds the lease, the leaseholder of its range."""

    def __init__(self, context: Context, state: RangeState, scope: TaskScope, *, continued: bool = False) -> None:
        """`continued`: the right half of a split, which goes on under the lease of the left."""
        self.context = context
        self.state = state
        self.failure: BaseException | None = None
        self.checksums = Checksums(context, scope)
        self.load = LoadMeter(now_ns=context.runtime.clock.monotonic_ns())
        self._scope = scope
        self._next_request = 0
        self._latches = LatchManager()
        self._granted: Waiters[RequestId] = Waiters()
        self._records: Waiters[bytes] = Waiters()
        self._applied: Waiters[str] = Waiters()
        self.retired = self.stopped = self.halted = False
        self.follower: ReplicaFollower | None = None
        """Whoever follows this replica now, such as its change feed."""
        self.tscache = TimestampCache(low_water=Timestamp(max(state.read_floor, state.closed)))
        self.leasing = Leasing(context, state=lambda: self.state, continued=continued)
        self.closing = Closing(self)
        buffer: ProposalBuffer[Waiter] = ProposalBuffer(
            state.descriptor.range_id, BucketTracker(), entry_bytes_max=int(context.settings["log.entry_bytes_max"])
        )
        buffer.start_lease(sequence=state.lease.sequence, lai=state.lai, closed=state.closed)
        self.pipeline = Pipeline(context, buffer, state=lambda: self.state, targets=self.closing.targets)

    def start(self) -> None:
        """Begin to tail the log and to flush proposals."""
        self._scope.spawn(self._tail(), name="tail")
        self._scope.spawn(self.pipeline.run(), name="flush")

    async def stop(self) -> None:
        """End the replica's tasks. Whoever still waits is told that the outcome is unknown, and nobody is served any more."""
        self.stopped = True
        await self._scope.close()
        self.pipeline.stop(
            AmbiguousResult("the replica stopped before the command was decided; find out what became of it")
        )
        self._granted.tell_all()
        self._records.tell_all()
        self._applied.tell_all()
        self.leasing.changed.tell_all()

    def quarantine(self, reason: str) -> None:
        """Stop applying and serving: this replica differs from the others. Its store fetches it anew."""
        if self.failure is None and not self.retired and not self.stopped:
            self._fail(UnavailableError(f"quarantined: {reason}"))

    def suspend(self, error: DamageError) -> None:
        """Serve nothing more: what this replica applied cannot be read here (I-34). It applies on until `halt`."""
        tap("replica.quarantined", self, error)
        self.failure = error

    def halt(self) -> None:
        """End a suspended replica: it applies nothing more and can be replaced."""
        if isinstance(self.failure, DamageError) and not (self.halted or self.retired):
            self._fail(self.failure)

    def reached(self) -> Timestamp:
        """At or above everything this replica has closed or served as leaseholder; ahead of the clock, in lead ranges."""
        return Timestamp(max(self.pipeline.buffer.assigned_closed, self.tscache.highest, self.closing.promised()))

    def retire(self, why: Gone) -> None:
        """The range is gone from this store: apply and serve nothing more, from this very step on."""
        self.retired = True
        self.dismiss(why)

    def dismiss(self, why: Gone, detail: str = "") -> None:
        """Tell whoever follows that this was the last word."""
        follower, self.follower = self.follower, None
        if follower is not None:
            follower.gone(why, detail)

    # --- executing -------------------------------------------------------------------------------------------------

    async def execute(self, batch: Batch) -> BatchResult:
        """Answer a batch, as leaseholder or, where the timestamp is closed here, as follower."""
        self._check_alive()
        admission.check_size(batch)
        if (latest := admission.latest_timestamp(batch)) > (now := self.context.clock.peek()):
            admission.check_future(latest, now=now, ahead_s=self.closing.future_s())
        if self.load.wants_key() and (span := declare.bounds(batch)) is not None:
            self.load.sample(span.start)
        deadline = deadline_of(batch, self.context.runtime.clock)
        if len(batch.requests) == 1 and isinstance(batch.requests[0], rq.LeaseInfo):
            if batch.requests[0].by_holder:
                await self.leasing.hold(within_s=deadline.remaining())
            return lease_info(self)
        if batch.requests and isinstance(batch.requests[0], rq.QueryResolved):
            self._check_bounds(batch)
            return await self.closing.query_resolved(batch)
        if batch.header.follower_ok and await self.closing.may_serve(batch):
            self._check_alive()
            self._check_bounds(batch)
            return await follower_read(self, batch)
        for _ in range(PUSH_ROUNDS_MAX):
            await self.leasing.hold(within_s=deadline.remaining())
            result, parked = await self._execute_surely(batch, deadline)
            if parked is None or not await self._records.wait(parked, seconds=declare.push_wait_s(batch)):
                return result
        return result

    async def _execute_surely(self, batch: Batch, deadline: Deadline) -> tuple[BatchResult, bytes | None]:
        """Execute; where this node chooses the timestamp, not below what others may have been told already.

        A version in the future of this clock may have been acknowledged by a node whose clock is ahead. Instead of reading
        in the future, the batch waits until that is the past here: at most the maximum offset, however many there are.
        """
        header, clock = batch.header, self.context.clock
        if header.txn is not None or header.ts != MIN:
            return await self._execute_once(batch, MIN, deadline)
        limit = Timestamp(clock.peek() + (clock.max_offset_us << LOGICAL_BITS))
        while True:
            try:
                return await self._execute_once(batch, limit, deadline)
            except ReadWithinUncertainty as error:
                existing = error.facts.get("existing")
                if not isinstance(existing, int):
                    raise
                probe("replica.read_waits_for_future")
                while (now := clock.peek()) <= existing:
                    await self.context.runtime.clock.sleep(seconds_between(now, Timestamp(existing)) + 1e-6)

    async def _execute_once(
        self, batch: Batch, upto: Timestamp, deadline: Deadline
    ) -> tuple[BatchResult, bytes | None]:
        """Latch, evaluate, propose, wait. The second value names a transaction whose record a push has to wait for."""
        read_at = declare.read_ts_of(batch, self.context.clock.now())
        latch, granted = self._latch(batch, read_at)
        if not granted:
            await self._wait_for(latch, deadline)
        try:
            right_stats = await self._prepare(batch) if rq.Split in map(type, batch.requests) else ()
            evaluation = self._evaluate(batch, read_at, right_stats, upto)
            if evaluation.read_only:
                frozen = None if evaluation.bulk is None else self.context.engine.snapshot()
                self._unlatch(latch)
                latch = NO_LATCH
                if evaluation.bulk is not None and frozen is not None:
                    evaluation.results = await read_bulk(self.context, evaluation.bulk, frozen)
                header = batch.header
                served = served_here(self, evaluation.ts) if header.follower_ok or header.ts else ()
                answer = self._answer(evaluation, self.state, served)
                tap("replica.read_served", self, batch, read_at, answer)
                return answer, evaluation.parked
            waiter = self._propose(evaluation)
        except BaseException:
            self._unlatch(latch)
            raise
        # From here on the latch belongs to the command, not to this task: a cancelled caller must not let others in.
        waiter.when_decided(lambda _: self._command_decided(latch, evaluation.records))
        return self._answer(evaluation, await waiter.wait()), None

    def _answer(self, evaluation: Evaluation, state: RangeState, served: tuple[Served, ...] = ()) -> BatchResult:
        now = self.context.clock.now() if evaluation.finishers else MIN
        return evaluation.result(state, self.context.node_id, now=now, served=served)

    def _latch(self, batch: Batch, read_at: Timestamp) -> tuple[RequestId, bool]:
        """Queue for everything the batch will touch; whether it may go ahead at once."""
        txn = batch.header.txn
        # Without a transaction, reads move up with the batch's own writes, so they must wait for every write before them.
        top = MAX if txn is None and declare.writes_versions(batch) else read_at
        spans = declare.latches(batch, read_at=top, write_at=txn.write_ts if txn else read_at)
        if not spans:
            return NO_LATCH, True
        self._next_request += 1
        request = RequestId(self._next_request)
        return request, isinstance(self._latches.acquire(request, spans), Latch)

    async def _wait_for(self, request: RequestId, deadline: Deadline) -> None:
        """Wait for latches that others hold; they are given up if that takes too long."""
        probe("replica.latch_wait")
        granted = False
        try:
            granted = await self._granted.wait(request, seconds=deadline.pause(LATCH_WAIT_S_MAX))
        finally:
            if not granted:
                self._wake(self._latches.cancel(request))
        if not granted:
            raise UnavailableError("waited too long behind other requests on the same keys; nothing was done")

    def _unlatch(self, request: RequestId) -> None:
        if request != NO_LATCH:
            self._wake(self._latches.cancel(request))

    def _command_decided(self, latch: RequestId, records: tuple[bytes, ...]) -> None:
        self._unlatch(latch)
        for txn_id in records:
            self._records.tell(txn_id)

    def _wake(self, granted: list[RequestId]) -> None:
        for request in granted:
            self._granted.tell(request)

    async def _prepare(self, batch: Batch) -> tuple[int, ...]:
        """Long computation a request needs, off the loop, while its latches are held: the statistics of a right half."""
        for request in batch.requests:
            if isinstance(request, rq.Split):
                self._check_bounds(batch)
                end = self.state.descriptor.end
                return tuple(await self.context.runtime.offload(recompute_now, self.context.engine, request.at, end))
        return ()

    def _evaluate(
        self, batch: Batch, read_at: Timestamp, right_stats: tuple[int, ...], uncertain_upto: Timestamp
    ) -> Evaluation:
        """Check and act: no await between here and `_propose`."""
        self._check_alive()
        self.context.trusted()
        now = self.context.clock.now()
        lease_end = self.leasing.check(now)
        tap("replica.serving", self, now)
        self._check_bounds(batch)
        self.closing.catch_up()
        view = View(
            reader=self.context.engine,
            state=self.state,
            now=now,
            read_at=read_at,
            floor=self.pipeline.buffer.floor,
            lease_end=lease_end,
            tscache=self.tscache,
            txn_expiration_s=self.context.settings["txn.expiration"],
            right_stats=right_stats,
            neighbors=self.context.hooks,
            furthest=self.closing.furthest,
            uncertain_upto=uncertain_upto,
            resolve_bytes_max=int(self.context.settings["log.entry_bytes_max"]) // 4,
        )
        evaluation = evaluate(batch, view)
        if isinstance(evaluation.transfer_to, int):
            evaluation.trigger = self.leasing.transfer(evaluation.transfer_to, served=self.tscache.highest)
        return evaluation

    def _propose(self, evaluation: Evaluation) -> Waiter:
        self.closing.waking()
        if evaluation.close_at:
            self.closing.closing_at(evaluation.close_at)
        proposal = Proposal(
            command_id=self.context.runtime.rng.bytes(COMMAND_ID_BYTES),
            lease_sequence=self.state.lease.sequence,
            min_write_ts=evaluation.min_write_ts,
            effects=evaluation.effects.encode() if len(evaluation.effects) else b"",
            stats=evaluation.stats,
            trigger=evaluation.trigger,
            generation=evaluation.generation,
            waiter=(waiter := Waiter()),
        )
        self.pipeline.submit(proposal)
        if isinstance(evaluation.trigger, LeaseTrigger):
            self.leasing.transferring_to = evaluation.trigger.lease.holder
            waiter.when_decided(self._transfer_decided)
        return waiter

    def _transfer_decided(self, error: SlackwaterError | None) -> None:
        if error is not None and not isinstance(error, AmbiguousResult):  # unknown: perhaps it is another's (I-07)
            self.leasing.transferring_to = None

    def extend_lease(self) -> None:
        """Prolong an expiration-based lease in time; called by the store now and then."""
        extension = None if self.failure else self.leasing.extension()
        if extension is not None:
            self._propose(Evaluation(trigger=extension))

    async def release_lease(self) -> None:
        """End this node's expiration-based lease now: whoever comes next, or this node after a restart, need not wait."""
        trigger = None if self.failure else self.leasing.release(served=self.tscache.highest)
        if trigger is not None:
            await self._propose(Evaluation(trigger=trigger)).wait()

    async def give_lease(self, to: NodeId) -> None:
        """Transfer the lease, also of a suspended replica; returns once that is applied here."""
        trigger = self.leasing.transfer(to, served=self.reached())
        await self._propose(Evaluation(trigger=trigger)).wait()

    # --- applying --------------------------------------------------------------------------------------------------

    async def _tail(self) -> None:
        """Apply the log for as long as the replica lives. What must not be gone on from quarantines this range only."""
        try:
            while True:
                try:
                    await self._tail_once()
                except (ConnectionLost, StorageError) as error:
                    if isinstance(error, DamageError) and self.failure is None:
                        self.context.hooks.read_failed(self.state.descriptor.range_id, error)
                    # The reader broke, or the disk refused: nothing of the entry was applied, so read it again. Whoever
                    # waits for a command goes on waiting; the node answers nothing new that would need this entry.
                    probe("replica.tail_again")
                await self.context.runtime.clock.sleep(TAIL_AGAIN_S)
        except Exception as error:  # also a bug: it would be met again after a restart, and the other ranges go on
            self._fail(as_known(error, doing=f"applying r{self.state.descriptor.range_id}"))

    def _fail(self, error: SlackwaterError) -> None:
        probe("replica.quarantined")
        tap("replica.quarantined", self, error)
        self.failure, self.halted = error, True
        self._applied.tell("applied")  # a neighbour may wait for what will not come
        self.pipeline.stop(AmbiguousResult("the replica failed before the command was decided", cause=str(error)))
        self.context.hooks.replica_failed(self.state.descriptor.range_id, error)

    async def _tail_once(self) -> None:
        async with aclosing(
            self.context.log.tail(self.state.descriptor.range_id, after=self.state.position)  # type: ignore[type-var]
        ) as batches:
            async for entries in batches:
                await self._apply(entries)

    async def _apply(self, entries: list[Entry]) -> None:
        run: list[tuple[Position, Packet]] = []
        size = 0
        for position, payload in entries:
            packet = decode_packet(payload)
            if merge_in(packet) is not None:
                self._apply_run(run)
                run, size = [], 0
                await self._await_right_side(position, packet)
            run.append((position, packet))
            size += len(payload)
            # A digest is of the state right here, whatever else arrived with it.
            if size >= APPLY_RUN_BYTES_MAX or digest_in(packet):
                self._apply_run(run)
                run, size = [], 0
        self._apply_run(run)

    async def _await_right_side(self, position: Position, packet: Packet) -> None:
        """The right side's data must be here up to its freeze before this range may claim it.

        Only for a merge that will be accepted: after an aborted one the right side may have gone elsewhere.
        """
        if self.retired:
            return
        for event in apply_packet(self.state, position, packet).aftermath:
            if isinstance(event, Absorbed):
                await self.context.hooks.wait_applied(event.descriptor.range_id, event.position)

    def _apply_run(self, run: list[tuple[Position, Packet]]) -> None:
        """Apply entries in one engine batch, then tell everybody. Cannot be interleaved."""
        if not run or self.retired or self.halted:
            return
        state, whole = self.state, WriteBatch()
        done: list[tuple[RangeState, Applied, Position]] = []
        for position, packet in run:
            applied = apply_packet(state, position, packet)
            done.append((state, applied, position))
            state = applied.state
            if len(run) > 1:  # listeners get each entry's own batch, so a run is gathered in another one
                whole.extend(applied.batch)
            else:
                whole = applied.batch
        for before, applied, _ in done:
            if before.descriptor.generation != applied.state.descriptor.generation:
                self.context.hooks.generation_changed(whole, before.descriptor, applied.state.descriptor)
        self.closing.check(applied for _, applied, _ in done)
        self.context.write(whole)
        for before, applied, position in done:
            self.state = applied.state
            if self.context.listener is not None:
                self.context.listener.applied(before, applied.state, applied.batch, applied.outcomes, position)
            for outcome in applied.outcomes:
                self.pipeline.settle(outcome, applied.state)
            for event in applied.aftermath:
                self._follow_up(event)
        if self.follower is not None:
            self.follower.applied(done, whole)
        self._applied.tell("applied")
        self.closing.applied()
        if self.context.node_id not in self.state.descriptor.replicas:
            self.context.hooks.replica_removed(self.state.descriptor.range_id)

    def _follow_up(self, event: Aftermath) -> None:
        match event:
            case LeaseChanged():
                self._lease_changed()
            case Created(state):
                right = state.descriptor
                reads = self.tscache.summary(bytes_max=SPLIT_READS_BYTES_MAX, start=right.start, end=right.end)
                self.context.hooks.replica_created(state, reads, continued=not self.leasing.former)
            case Absorbed(descriptor):
                self.tscache.raise_floor(self.state.read_floor)
                self.context.hooks.replica_absorbed(descriptor, self.state.descriptor.range_id)
            case Digested(checksum_id):
                self.checksums.compute(checksum_id, self.state)

    def _lease_changed(self) -> None:
        lease = self.state.lease
        self.pipeline.lease_changed(self.state)
        if lease.holder == self.context.node_id:
            # The lease may start a little ahead of this clock; everything stamped from now on lies above it.
            # (If it is too far ahead to follow, the lease is of no use until this clock gets there: Leasing.check.)
            with suppress(ClockError):
                self.context.clock.update(lease.start)
            self.tscache.raise_floor(Timestamp(max(lease.start, self.state.read_floor)))
        self.leasing.applied()
        self.closing.waking()

    async def wait_applied(self, position: Position, *, seconds: float) -> bool:
        """Wait until this replica has applied up to `position`; False when the time ran out."""
        deadline = self.context.runtime.clock.monotonic_ns() + int(seconds * 1e9)
        while self.state.position < position:
            left = (deadline - self.context.runtime.clock.monotonic_ns()) / 1e9
            if left <= 0 or self.failure is not None or not await self._applied.wait("applied", seconds=left):
                return self.state.position >= position
        return True

    # --- checks ----------------------------------------------------------------------------------------------------

    def _check_alive(self) -> None:
        if self.retired:
            raise RangeMismatch("this range is no longer here; look it up again", descriptors=[])
        if self.failure is not None or self.stopped:
            why = "stopping" if self.stopped else "quarantined"
            raise UnavailableError(f"this replica is {why}; ask another one", cause=str(self.failure or why))

    def _check_bounds(self, batch: Batch) -> None:
        admission.check_bounds(batch, self.state.descriptor)

    def status(self) -> str:
        """One line for logs, scripts, console and simulator."""
        failed = f" QUARANTINED: {self.failure}" if self.failure else ""
        return f"{self.state.status()} {self.pipeline.buffer.status()}{failed}"
