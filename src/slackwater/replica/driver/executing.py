"""How a replica answers batches: in the step in which they come, or after waiting for what is in the way.

    at_once   latches free? lease usable? not in the future? ── no ──► None: nothing was done, the long way
                │ one step, no await
                ├─ read    evaluate ──► the answer
                └─ write   evaluate ──► propose ──► a `Later`, told when the command is decided

    execute   a follower may serve? ── yes ──► without the lease
                │ lease held? ── no ──► acquire it, or NotLeaseholder with a hint
                │ latches ───── wait for earlier conflicting requests
                │ evaluate ──── the same step as above
                ▼ propose ───── wait for the command to be decided

Both ways do the same thing in the same function (`_evaluate`, which checks everything, and `replica.propose`); the long one
waits before it where the short one gives up. What does not wait needs no latch while it is evaluated, since nothing else can
come between; a write keeps its latches until its command is decided.

Nearly every request meets nothing and takes the short way: no task, no timer, and each check once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from slackwater.clock.timestamp import LOGICAL_BITS, MAX, MIN, Timestamp, seconds_between
from slackwater.errors import NotLeaseholder, ReadWithinUncertainty, SlackwaterError, UnavailableError
from slackwater.hooks import buggify, probe, tap
from slackwater.protocol.range import requests
from slackwater.protocol.range.bulk import BULK
from slackwater.replica import admission, declare
from slackwater.replica.driver.halves import counted_half
from slackwater.replica.driver.reading import bulk_snapshot, follower_read, lease_info, read_bulk, served_here
from slackwater.replica.driver.waiting import NO_HURRY_S, Waiters, deadline_of
from slackwater.replica.evaluate import HANDLERS, Evaluation, View, evaluate
from slackwater.replica.evaluate_gc import prepare_span
from slackwater.replica.latches import Latch, LatchManager, RequestId
from slackwater.replica.together import EndEach
from slackwater.storage.stats import recompute_now

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.protocol.range.requests import Batch, BatchResult
    from slackwater.protocol.range.served import Served
    from slackwater.replica.driver.replica import Replica
    from slackwater.replica.latches import LatchSpan
    from slackwater.replica.state import RangeState
    from slackwater.runtime.deadline import Deadline
    from slackwater.runtime.later import Later

LATCH_WAIT_S_MAX = 60.0
NO_LATCH = RequestId(0)
PUSH_ROUNDS_MAX = 16
assert LATCH_WAIT_S_MAX <= NO_HURRY_S, "a batch without a deadline waits as long for latches as any"
PREPARED = frozenset({requests.Split, requests.GcSpan})
"""Requests, alone in their batch, that need a long computation before they are evaluated."""

AT_ONCE = frozenset(
    {
        requests.Get, requests.Scan, requests.ReverseScan, requests.Refresh, requests.QueryTxn,
        *requests.VERSION_WRITES, requests.EndTxn, requests.HeartbeatTxn,
        requests.ResolveIntents, requests.ForgetLocks, EndEach,
    }
)  # fmt: skip
"""Requests that wait for nothing but the lease, latches and the log. The others read for long, park, or change the range."""
NO_POINT_WORK = frozenset({*BULK, requests.FillRows})
assert AT_ONCE.isdisjoint(PREPARED), "what needs a long computation is not done at once"
assert {*declare.WHOLE_RANGE, *declare.COLLECTING} >= PREPARED, "what is prepared is alone in its batch"
assert HANDLERS.keys() >= AT_ONCE, "what is done at once is evaluated"
assert HANDLERS.keys() >= PREPARED, "what is prepared is evaluated"
assert AT_ONCE.isdisjoint(declare.WHOLE_RANGE), "a change of the range itself waits for all that is under way"


class Executor:
    """Executes the requests of one replica: latches, evaluation, and waiting for latches and for transaction records."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._context = replica.context
        self._next_request = 0
        self._latches = LatchManager()
        self.under_way = self._latches.inside
        """Requests here that hold latches or wait for them."""
        self._granted: Waiters[RequestId] = Waiters()
        self._records: Waiters[bytes] = Waiters()

    def tell_all(self) -> None:
        """The replica ends: wake all that wait here."""
        self._granted.tell_all()
        self._records.tell_all()

    # --- the short way -----------------------------------------------------------------------------------------------

    def touches(self, key: bytes) -> bool:
        """Whether a request under way here has a latch that may be on this key, or waits for one."""
        return self._latches.may_touch(key)

    def at_once(
        self, batch: Batch, now: Timestamp | None = None, of: Sequence[Batch] = ()
    ) -> BatchResult | Later[BatchResult] | None:
        """Answer in this very step, or begin the command that is the answer; None: something has to be waited for.

        `now` is a reading that a caller on this node has taken in this very step; `of` are the lone writes of a combined batch,
        which is begun only if it will be written in the past of this clock: the time of one is not for the others to wait for.
        """
        if batch.header.follower_ok or not AT_ONCE.issuperset(map(type, batch.requests)):
            return None
        context = self._context
        now = context.clock.now() if now is None else now
        if _resolves_in_bulk(batch) and context.bulk_gate.read(context.runtime.clock.monotonic_ns()):
            return None
        if (
            batch.requests
            and type(batch.requests[0]) is requests.FillRows
            and context.bulk_gate.busy(context.runtime.clock.monotonic_ns())
        ):
            return None
        if admission.latest_timestamp(batch) > now or buggify("replica.the_long_way"):
            return None
        admission.check_size(batch)
        read_at, chosen = declare.read_ts_of(batch, now), self._chosen(batch)
        latch, read_only = NO_LATCH, declare.is_read_only(batch)
        if not read_only:
            if (latch := self._latch_free(self._touched(batch, read_at))) == NO_LATCH:
                return None
        elif self.under_way and not self._latches.passes(self._touched(batch, read_at)):
            return None
        try:
            upto = self._uncertain_upto(now) if chosen else MIN
            evaluation = self._evaluate(batch, now, read_at, (), upto, read_only=read_only)
            if of and evaluation.ts > now:
                self._unlatch(latch)
                return None
            self._metered(*(of or (batch,)))
            if not evaluation.read_only:
                return self._begin(evaluation, latch)
            answer = self._read_answer(batch, read_at, evaluation, self._replica.state)
        except BaseException as error:
            self._unlatch(latch)
            if isinstance(error, NotLeaseholder) or (chosen and isinstance(error, ReadWithinUncertainty)):
                return None  # a lease to be acquired, or a time to be waited for
            self._metered(*(() if of else (batch,)))  # each of them is yet to be begun by itself
            raise
        self._unlatch(latch)
        return answer

    def _latch_free(self, spans: list[LatchSpan]) -> RequestId:
        """Take latches on all that a batch will touch, if no other request is in the way."""
        self._next_request += 1
        request = RequestId(self._next_request)
        assert request != NO_LATCH, "requests are numbered from 1"
        return request if self._latches.acquire_free(request, spans) else NO_LATCH

    # --- the long way ------------------------------------------------------------------------------------------------

    async def execute(self, batch: Batch) -> BatchResult:
        """Answer a batch, as leaseholder or, where the timestamp is closed here, as follower."""
        replica, context = self._replica, self._context
        replica.check_alive()
        admission.check_size(batch)
        if (latest := admission.latest_timestamp(batch)) > (now := context.clock.peek()):
            admission.check_future(latest, now=now, ahead_s=replica.closing.future_s())
        if not (batch.requests and type(batch.requests[0]) in declare.COLLECTING):
            self._metered(batch)  # collecting is no load: it pauses for load, and would pause for itself
        deadline = deadline_of(batch, context.runtime.clock)
        if len(batch.requests) == 1 and isinstance(batch.requests[0], requests.LeaseInfo):
            if batch.requests[0].by_holder:
                await replica.leasing.hold(within_s=deadline.remaining())
            return lease_info(replica)
        if batch.requests and isinstance(batch.requests[0], requests.QueryResolved):
            replica.check_bounds(batch)
            return await replica.closing.query_resolved(batch)
        if batch.header.follower_ok and await replica.closing.may_serve(batch):
            replica.check_alive()
            replica.check_bounds(batch)
            return await follower_read(replica, batch)
        if _resolves_in_bulk(batch):
            awaited = replica.apply_subscriber is not None or _is_awaited(batch)
            async with context.bulk_gate.after_reads(context.runtime.clock, awaited=awaited):
                return await self._execute_led(batch, deadline)
        if batch.requests and type(batch.requests[0]) is requests.FillRows:
            async with context.bulk_gate.filling(context.runtime.clock):
                return await self._execute_led(batch, deadline)
        if batch.requests and type(batch.requests[0]) is requests.Split:
            await replica.leasing.hold(within_s=deadline.remaining())
            async with counted_half(replica, batch.requests[0]):
                return await self._execute_led(batch, deadline)
        return await self._execute_led(batch, deadline)

    async def _execute_led(self, batch: Batch, deadline: Deadline) -> BatchResult:
        """Answer as leaseholder; a push that has to wait for a record is tried again when that has changed."""
        replica = self._replica
        for _ in range(PUSH_ROUNDS_MAX):
            await replica.leasing.hold(within_s=deadline.remaining())
            result, parked = await self._execute_surely(batch, deadline)
            if parked is None or not await self._records.wait(parked, seconds=declare.push_wait_s(batch)):
                return result
        return result

    def _metered(self, *batches: Batch) -> None:
        """Count batches as load of the range, and as point work unless they read, fill or resolve in bulk."""
        load = self._replica.load
        for batch in batches:
            if not batch.requests or not (type(batch.requests[0]) in NO_POINT_WORK or _resolves_in_bulk(batch)):
                self._context.bulk_gate.point()
            if load.wants_key() and (span := declare.bounds(batch)) is not None:
                load.sample(span.start)

    def _chosen(self, batch: Batch) -> bool:
        """Whether this node chooses the batch's timestamp."""
        return batch.header.txn is None and batch.header.ts == MIN

    def _uncertain_upto(self, now: Timestamp) -> Timestamp:
        """What a node whose clock is ahead of this one may have told others by now."""
        assert self._context.clock.max_offset_us >= 0, "a bound on skew is not negative"
        return Timestamp(now + (self._context.clock.max_offset_us << LOGICAL_BITS))

    async def _execute_surely(self, batch: Batch, deadline: Deadline) -> tuple[BatchResult, bytes | None]:
        """Execute; where this node chooses the timestamp, not below what others may have been told already.

        A version in the future of this clock may have been acknowledged by a node whose clock is ahead. Instead of reading
        in the future, the batch waits until that is the past here: at most the maximum offset, however many there are.
        """
        if not self._chosen(batch):
            return await self._execute_once(batch, MIN, deadline)
        clock = self._context.clock
        limit = self._uncertain_upto(clock.peek())
        while True:
            try:
                return await self._execute_once(batch, limit, deadline)
            except ReadWithinUncertainty as error:
                existing = error.facts.get("existing")
                if not isinstance(existing, int):
                    raise
                probe("replica.read_waits_for_future")
                while (now := clock.peek()) <= existing:
                    await self._context.runtime.clock.sleep(seconds_between(now, Timestamp(existing)) + 1e-6)

    async def _execute_once(
        self, batch: Batch, upto: Timestamp, deadline: Deadline
    ) -> tuple[BatchResult, bytes | None]:
        """Latch, evaluate, propose, wait. The second value names a transaction whose record a push has to wait for."""
        read_at = declare.read_ts_of(batch, self._context.clock.now())
        latch, granted = self._latch(batch, read_at)
        if not granted:
            await self._wait_for(latch, deadline)
        try:
            prepared = await self._prepare(batch) if type(batch.requests[0]) in PREPARED else ()
            now, read_only = self._context.clock.now(), declare.is_read_only(batch)
            evaluation = self._evaluate(batch, now, read_at, prepared, upto, read_only=read_only)
            if evaluation.read_only:
                frozen, state = (
                    None if evaluation.bulk is None else bulk_snapshot(self._replica),
                    self._replica.state,
                )
                self._unlatch(latch)
                latch = NO_LATCH
                if evaluation.bulk is not None and frozen is not None:
                    evaluation.results = await read_bulk(self._context, evaluation.bulk, frozen)
                return self._read_answer(batch, read_at, evaluation, state), evaluation.parked
            command = self._begin(evaluation, latch)
        except BaseException:
            self._unlatch(latch)
            raise
        return await command.wait(), None

    def _latch(self, batch: Batch, read_at: Timestamp) -> tuple[RequestId, bool]:
        """Queue for everything the batch will touch; whether it may go ahead at once."""
        spans = self._touched(batch, read_at)
        if not spans:
            return NO_LATCH, True
        self._next_request += 1
        request = RequestId(self._next_request)
        assert request != NO_LATCH, "requests are numbered from 1"
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

    async def _prepare(self, batch: Batch) -> tuple[int, ...]:
        """Long computation a request needs, off the loop, while its latches are held."""
        context, state, request = self._context, self._replica.state, batch.requests[0]
        self._replica.check_bounds(batch)
        if isinstance(request, requests.GcSpan):
            dropped_at = context.retention.dropped_at(request.start, request.end)
            return await context.runtime.offload(prepare_span, context.engine, state, request, dropped_at)
        assert isinstance(request, requests.Split), request
        half = self._replica.counted
        counted = None if half is None or half.at != request.at else half.now(state)
        if counted is not None:
            return counted
        probe("replica.split_counts_latched")
        return tuple(await context.runtime.offload(recompute_now, context.engine, request.at, state.descriptor.end))

    # --- what both ways do -------------------------------------------------------------------------------------------

    def _touched(self, batch: Batch, read_at: Timestamp) -> list[LatchSpan]:
        """What the batch needs latches on."""
        txn = batch.header.txn
        # Without a transaction, reads move up with the batch's own writes, so they must wait for every write before them.
        top = MAX if txn is None and declare.writes_versions(batch) else read_at
        return declare.latches(batch, read_at=top, write_at=txn.write_ts if txn else read_at)

    def _unlatch(self, request: RequestId) -> None:
        if request != NO_LATCH:
            self._wake(self._latches.cancel(request))

    def _wake(self, granted: list[RequestId]) -> None:
        for request in granted:
            self._granted.tell(request)

    def _evaluate(
        self,
        batch: Batch,
        now: Timestamp,
        read_at: Timestamp,
        prepared: tuple[int, ...],
        uncertain_upto: Timestamp,
        *,
        read_only: bool,
    ) -> Evaluation:
        """Check and act: no await between here and `Replica.propose`."""
        replica, context = self._replica, self._context
        replica.check_alive()
        context.trusted()
        lease_end = replica.leasing.check(now)
        tap("replica.serving", replica, now)
        admission.check_bounds(batch, replica.state.descriptor)
        floor = replica.pipeline.buffer.floor if read_only else replica.closing.enter()
        view = View(
            reader=context.engine,
            state=replica.state,
            now=now,
            read_at=read_at,
            floor=floor,
            lease_end=lease_end,
            tscache=replica.tscache,
            txn_expiration_s=context.settings["txn.expiration"],
            prepared=prepared,
            retention=context.retention,
            neighbors=context.hooks,
            furthest=replica.closing.furthest,
            uncertain_upto=uncertain_upto,
            resolve_bytes_max=int(context.settings["log.entry_bytes_max"]) // 4,
        )
        assert lease_end > 0, "a usable lease has an end"
        evaluation = evaluate(batch, view)
        assert not evaluation.min_write_ts or evaluation.min_write_ts < lease_end, (
            "nothing is written at or above the end of the lease (I-07)"
        )
        if (wanted := evaluation.transfer_to) is not None:
            served = replica.tscache.highest
            evaluation.trigger = replica.leasing.transfer(wanted.to, served=served, life=wanted.life)
        return evaluation

    def _read_answer(self, batch: Batch, read_at: Timestamp, evaluation: Evaluation, state: RangeState) -> BatchResult:
        """The answer to a read that was done on `state`, which may be older than the present one."""
        header = batch.header
        served = served_here(self._replica, evaluation.ts) if header.follower_ok or header.ts else ()
        answer = self._answer(evaluation, self._replica.state, served)
        tap("replica.read_served", self._replica, batch, read_at, answer, state)
        return answer

    def _begin(self, evaluation: Evaluation, latch: RequestId) -> Later[BatchResult]:
        """Hand a command to the log. From here on the latch is the command's: a cancelled caller must not let others in."""
        # What is evaluated here has entered (`Closing.enter`), unless all it asked for was to read; then nothing is proposed.
        waiter = self._replica.propose(
            evaluation,
            entered=True,
            when_settled=partial(self._command_decided, latch, evaluation.records),
            made=partial(self._answer, evaluation),
        )
        return cast("Later[BatchResult]", waiter)

    def _command_decided(self, latch: RequestId, records: tuple[bytes, ...], error: SlackwaterError | None) -> None:
        if latch != NO_LATCH:
            self._wake(self._latches.release(latch))
        for txn_id in records:
            self._records.tell(txn_id)

    def _answer(self, evaluation: Evaluation, state: RangeState, served: tuple[Served, ...] = ()) -> BatchResult:
        now = self._context.clock.now() if evaluation.finishers else MIN
        return evaluation.result(state, self._context.node_id, now=now, served=served)


def _resolves_in_bulk(batch: Batch) -> bool:
    """Whether a batch resolves the intents of spans: those of a large commit (`txn.resolving`)."""
    if requests.ResolveIntents not in map(type, batch.requests):
        return False
    return any(isinstance(request, requests.ResolveIntents) and bool(request.spans) for request in batch.requests)


def _is_awaited(batch: Batch) -> bool:
    """Whether a change feed, which may be another node's, waits for what a batch resolves."""
    return any(isinstance(request, requests.ResolveIntents) and request.awaited for request in batch.requests)
