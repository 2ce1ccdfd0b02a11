"""One replica of one range, alive: it waits, proposes, tails and applies. All decisions are in the pure files beside it.

    executor (`executing`)
      │ evaluate ──── check and act in one step, no await: lease, bounds, floors, read, decide
      │ propose ───── Pipeline ──► log.append ──► tail ──► apply ──► engine.write
      ▼ result ◄── the waiter is told; latches are released ◄────────────┘

A request that is cancelled after it proposed keeps its latches until the command is decided: it may still apply. A caller
gets its result or a definite error; `AmbiguousResult` only when the replica itself ends before the command is decided.
"""

from __future__ import annotations

from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import Timestamp
from slackwater.closedts.tracker import BucketTracker
from slackwater.errors import (
    AmbiguousResult,
    ClockError,
    ConnectionLost,
    DamageError,
    RangeMismatch,
    SlackwaterError,
    StorageError,
    UnavailableError,
)
from slackwater.hooks import buggify, probe, tap
from slackwater.protocol.log.commands import COMMAND_ID_BYTES, LeaseTrigger, decode_packet
from slackwater.replica import admission
from slackwater.replica.apply import Absorbed, Created, Digested, LeaseChanged, apply_packet, pauses_in
from slackwater.replica.driver.checksums import Checksums
from slackwater.replica.driver.closing import Closing
from slackwater.replica.driver.executing import Executor
from slackwater.replica.driver.leasing import Leasing
from slackwater.replica.driver.pipeline import Pipeline, Waiter
from slackwater.replica.driver.waiting import Waiters, as_known
from slackwater.replica.evaluate import Evaluation
from slackwater.replica.load import LoadMeter
from slackwater.replica.propose import Proposal, ProposalBuffer
from slackwater.replica.state import VERSIONS, fewer_versions
from slackwater.replica.tscache import TimestampCache
from slackwater.runtime.seam import Family
from slackwater.settings import describe
from slackwater.storage.batch import WriteBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.log.contract import Entry
    from slackwater.model.ids import NodeId, Position
    from slackwater.protocol.log.commands import Packet
    from slackwater.protocol.range.requests import Batch
    from slackwater.replica.apply import Aftermath, Applied
    from slackwater.replica.driver.context import ApplySubscriber, DetachReason, ReplicaContext
    from slackwater.replica.side_stats import SideStats
    from slackwater.replica.state import RangeState
    from slackwater.runtime.seam import TaskScope

APPLY_RUN_BYTES_MAX = 256 << 10
"""Entries are applied together up to this many bytes of payload, in one engine batch and one step: a few milliseconds."""
TAIL_AGAIN_S = 0.05
"""Pause before a broken log reader is opened again."""
SPLIT_READS_BYTES_MAX = 1 << 20
"""Of served reads that the right half takes over exactly; the rest raise its floor."""
assert describe("log.entry_bytes_max").default >= APPLY_RUN_BYTES_MAX, (
    "a step takes no longer than the largest entry, which is one"
)


class Replica:
    """A replica and, while it holds the lease, the leaseholder of its range."""

    def __init__(
        self, context: ReplicaContext, state: RangeState, scope: TaskScope, *, continued: bool = False
    ) -> None:
        """`continued`: the right half of a split, which goes on under the lease of the left."""
        self.context = context
        self.state = state
        self.failure: BaseException | None = None
        self.deleted = 0
        """Versions that went since this replica's files were compacted."""
        self.counted: SideStats | None = None
        """What a split will make the right half of, while it is counted."""
        self.checksums = Checksums(context, scope)
        self.load = LoadMeter(now_ns=context.runtime.clock.monotonic_ns())
        self._scope = scope
        self._applied: Waiters[str] = Waiters()
        self.retired = self.stopped = self.halted = False
        self.intents_written = 0
        """Goes up whenever there may be intents that were not here before: applied writes of some, a merge."""
        self.apply_subscriber: ApplySubscriber | None = None
        """Is told of everything that applies here, such as the range's change feed."""
        self.tscache = TimestampCache(
            low_water=Timestamp(max(state.read_floor, state.closed)),
            bytes_max=int(context.settings["replica.tscache_bytes_max"]),
        )
        self.leasing = Leasing(context, self, continued=continued)
        self.closing = Closing(self)
        self.executor = Executor(self)
        buffer: ProposalBuffer[Waiter] = ProposalBuffer(
            state.descriptor.range_id, BucketTracker(), entry_bytes_max=int(context.settings["log.entry_bytes_max"])
        )
        buffer.start_lease(sequence=state.lease.sequence, lai=state.lai, closed=state.closed)
        self.pipeline = Pipeline(
            context,
            buffer,
            of=self,
            targets=self.closing.targets,
            patience_s=self.closing.patience_s,
            gathering=lambda: context.gathering,
        )

    def start(self) -> None:
        """Begin to tail the log and to flush proposals."""
        self._scope.spawn(self._tail(), name="tail")
        self._scope.spawn(self.pipeline.run(), name="flush")

    async def stop(self) -> None:
        """End the replica's tasks and serve nothing more; callers that still wait are told that the outcome is unknown."""
        self.stopped = True
        await self._scope.close()
        self.pipeline.stop(
            AmbiguousResult("the replica stopped before the command was decided; find out what became of it")
        )
        self.executor.tell_all()
        self._applied.tell_all()
        self.leasing.changed.tell_all()

    def quarantine(self, reason: str) -> None:
        """Stop applying and serving: this replica differs from the others. Its store fetches it anew."""
        if self.failure is None and not self.retired and not self.stopped:
            self._fail(UnavailableError(f"quarantined: {reason}"))

    def suspend(self, error: DamageError) -> None:
        """Serve nothing more: what this replica applied cannot be read here (I-34). It applies on until `halt`."""
        assert not self.retired, "a replica that is gone serves nothing anyway"
        tap("replica.quarantined", self, error)
        self.failure = error

    def halt(self) -> None:
        """End a suspended replica: it applies nothing more and can be replaced."""
        if isinstance(self.failure, DamageError) and not (self.halted or self.retired):
            self._fail(self.failure)

    def reached(self) -> Timestamp:
        """At or above everything this replica has closed or served as leaseholder; ahead of the clock, in lead ranges."""
        return Timestamp(max(self.pipeline.buffer.assigned_closed, self.tscache.highest, self.closing.promised()))

    def retire(self, why: DetachReason) -> None:
        """The range is gone from this store: apply and serve nothing more, from this very step on."""
        assert not self.retired, "a replica goes once"
        self.retired = True
        self.dismiss(why)

    def dismiss(self, why: DetachReason, detail: str = "") -> None:
        """Tell the subscriber that this was the last word."""
        subscriber, self.apply_subscriber = self.apply_subscriber, None
        if subscriber is not None:
            subscriber.gone(why, detail)

    # --- proposing -------------------------------------------------------------------------------------------------

    def propose(
        self,
        evaluation: Evaluation,
        *,
        entered: bool = False,
        when_settled: Callable[[SlackwaterError | None], None] | None = None,
        made: Callable[[RangeState], object] | None = None,
    ) -> Waiter:
        """Hand what was evaluated, in this very step, to the log; the waiter is told what became of it.

        `entered`: `Closing.enter` was called in this step. The others are of the waiter: see `Later`.
        """
        if not entered or not (self.context.transport is None or self.context.transport.plain):
            self.closing.waking(evaluation.min_write_ts)
        if evaluation.close_at:
            self.closing.closing_at(evaluation.close_at)
        waiter, effects = Waiter(when_settled=when_settled, made=made), evaluation.effects
        proposal = Proposal(
            command_id=self.context.runtime.rng.bytes(COMMAND_ID_BYTES),
            lease_sequence=self.state.lease.sequence,
            min_write_ts=evaluation.min_write_ts,
            effects=effects.encode() if any(effects.writes) or any(effects.ranges) else b"",
            stats=evaluation.stats,
            trigger=evaluation.trigger,
            generation=evaluation.generation,
            waiter=waiter,
        )
        self.pipeline.submit(proposal)
        if isinstance(evaluation.trigger, LeaseTrigger):
            self.leasing.transferring_to = evaluation.trigger.lease.holder
            waiter.when_settled(self._transfer_decided)
        return waiter

    def _transfer_decided(self, error: SlackwaterError | None) -> None:
        if error is not None and not isinstance(error, AmbiguousResult):  # unknown: perhaps it is another's (I-07)
            self.leasing.transferring_to = None

    def extend_lease(self) -> None:
        """Prolong an expiration-based lease in time; called by the store now and then."""
        extension = None if self.failure else self.leasing.extension()
        if extension is not None:
            self.propose(Evaluation(trigger=extension))

    async def release_lease(self) -> None:
        """End this node's expiration-based lease now, so that the next holder, or this node after a restart, need not wait."""
        trigger = None if self.failure else self.leasing.release(served=self.tscache.highest)
        if trigger is not None:
            await self.propose(Evaluation(trigger=trigger)).wait()

    async def give_lease(self, to: NodeId, *, life: int) -> None:
        """Transfer the lease, also of a suspended replica; returns once that is applied here."""
        trigger = self.leasing.transfer(to, served=self.reached(), life=life)
        await self.propose(Evaluation(trigger=trigger)).wait()

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
                    # The reader broke, or the disk refused: nothing of the entry was applied, so read it again. Callers
                    # that wait for a command go on waiting; the node answers nothing new that would need this entry.
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
        """Apply what was read, in steps between which the loop serves others: a follower that catches up has megabytes."""
        run: list[tuple[Position, Packet]] = []
        size = 0
        for position, payload in entries:
            packet = decode_packet(payload)
            merge, digest = pauses_in(packet)
            if merge is not None:
                self._apply_run(run)
                run, size = [], 0
                await self._await_right_side(position, packet)
            if run and (size + len(payload) > APPLY_RUN_BYTES_MAX or buggify("replica.short_steps")):
                self._apply_run(run)
                run, size = [], 0
                await self.context.runtime.clock.sleep(0)
            run.append((position, packet))
            size += len(payload)
            if digest:  # of the state right here, whatever else arrived with it
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
        """Apply entries in one engine batch, then tell all who listen. Cannot be interleaved."""
        if not run or self.retired or self.halted:
            return
        state = self.state
        done: list[tuple[RangeState, Applied, Position]] = []
        for position, packet in run:
            applied = apply_packet(state, position, packet)
            done.append((state, applied, position))
            state = applied.state
        assert state.descriptor.range_id == self.state.descriptor.range_id, "a replica applies its own range's log"
        whole = done[0][1].batch if len(done) == 1 else _gathered(done)
        for before, applied, _ in done:
            if before.descriptor.generation != applied.state.descriptor.generation:
                self.context.hooks.generation_changed(whole, before.descriptor, applied.state.descriptor)
        self.closing.check(done)
        assert state.position == run[-1][0], "the state is that of the last entry (I-06)"
        assert len(done) == len(run), "every entry is applied"
        assert not state.stats or state.stats[VERSIONS] >= 0, "a range holds no fewer than no versions (I-34)"
        fewer = fewer_versions(done[0][0], state)
        self.deleted += fewer
        self.context.write(whole, collects=fewer > 0)
        self.intents_written += _brings_intents(whole)
        for before, applied, position in done:
            self.state = applied.state
            if self.counted is not None:
                self.counted.applied(applied.outcomes)
            if self.context.listener is not None:
                self.context.listener.applied(before, applied.state, applied.batch, applied.outcomes, position)
            for outcome in applied.outcomes:
                self.pipeline.tell_outcome(outcome, applied.state)
            for event in applied.aftermath:
                self._follow_up(event)
        if self.apply_subscriber is not None:
            self.apply_subscriber.applied(done, whole)
        assert self.state is state, "the replica is where its store is"
        assert self.state.closed >= done[0][0].closed, "closing only moves up (I-09)"
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
                assert self.state.descriptor.end == right.start, "the halves of a split meet"
                reads = self.tscache.summary(bytes_max=SPLIT_READS_BYTES_MAX, start=right.start, end=right.end)
                self.context.hooks.replica_created(state, reads, continued=not self.leasing.former)
                if self.context.transport is not None:
                    self.context.transport.divided(self.state.descriptor.range_id, right.range_id)
            case Absorbed(descriptor):
                self.intents_written += 1
                self.tscache.raise_floor(self.state.read_floor)
                self.context.hooks.replica_absorbed(descriptor, self.state.descriptor.range_id)
            case Digested(checksum_id):
                self.checksums.compute(checksum_id, self.state)

    def _lease_changed(self) -> None:
        assert self.state.lease.sequence >= self.pipeline.buffer.sequence, "leases follow each other (I-07)"
        lease = self.state.lease
        self.pipeline.lease_changed(self.state)
        assert self.pipeline.buffer.sequence == lease.sequence, (
            "what is proposed next goes under the lease that holds now (I-08)"
        )
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

    def check_alive(self) -> None:
        """Raise unless this replica serves."""
        if self.retired:
            raise RangeMismatch("this range is no longer here; look it up again", descriptors=[])
        if self.failure is not None or self.stopped:
            why = "stopping" if self.stopped else "quarantined"
            raise UnavailableError(f"this replica is {why}; ask another one", cause=str(self.failure or why))

    def check_bounds(self, batch: Batch) -> None:
        """Refuse a batch that does not lie inside the range."""
        admission.check_bounds(batch, self.state.descriptor)

    def status(self) -> str:
        """One line for logs, scripts, console and simulator."""
        failed = f" QUARANTINED: {self.failure}" if self.failure else ""
        return f"{self.state.status()} {self.pipeline.buffer.status()}{failed}"


def _brings_intents(batch: WriteBatch) -> bool:
    """Whether a batch writes intents, and does not only remove some."""
    locks = batch.writes[Family.LOCK]
    return len(locks) > list(locks.values()).count(None)


def _gathered(done: list[tuple[RangeState, Applied, Position]]) -> WriteBatch:
    """The writes of several entries in one batch of its own: listeners get those of each entry."""
    whole = WriteBatch()
    for _, applied, _ in done:
        whole.extend(applied.batch)
    return whole
