"""Everything one replica has to do with closed timestamps.

    as leaseholder   how far a flush may close; whether an idle range may close without a command; and, before anything is
                     evaluated, what the side transport has promised on this range's behalf meanwhile
    as follower      what is closed here: the applied state's value, or a promise of the side transport whose index is
                     applied (I-12); reads at or below it need no lease, others may wait a little

A promise made for an idle range is only looked up when the range wakes: `enter` before evaluation, `waking` when something
is about to be proposed that was not evaluated. A command is proposed in the step in which it was evaluated, so nothing is
promised in between.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from slackwater.clock.timestamp import LOGICAL_BITS, MIN, Timestamp, add_seconds, seconds_between
from slackwater.closedts.kinds import DEFAULT, Scheme, closing_schemes
from slackwater.closedts.negotiate import ResolvedSpan, resolve
from slackwater.closedts.policy import (
    ClosingPolicy,
    closable_upto,
    distance_s,
    longest_lead_s,
    target,
    terms_of,
    write_age_s,
)
from slackwater.closedts.store_wide.mpt import CountedTracker
from slackwater.closedts.waiting import Gate, gate
from slackwater.config.zones import SYSTEM_SPAN, PolicyKind
from slackwater.errors import InvariantViolation, TooStale, UsageError
from slackwater.hooks import probe, tap
from slackwater.model.descriptors import LeaseAppliedIndex
from slackwater.protocol.closedts.frontier import CannotClose, ReplicaFrontier
from slackwater.protocol.range import requests
from slackwater.protocol.range.served import Why
from slackwater.replica import declare
from slackwater.replica.apply import ApplyVerdict
from slackwater.replica.closing import try_close
from slackwater.replica.driver.leasing import LeaseUse
from slackwater.replica.evaluation import Evaluation
from slackwater.replica.fates import fates
from slackwater.settings import describe
from slackwater.storage.stats import Stats

if TYPE_CHECKING:
    from slackwater.closedts.closable import Closed, CountedBy
    from slackwater.model.ids import Position
    from slackwater.protocol.range.requests import Batch, BatchResult
    from slackwater.replica.apply import Applied
    from slackwater.replica.driver.replica import Replica
    from slackwater.replica.state import RangeState
    from slackwater.runtime.seam import EngineSnapshot, Reader


INTENTS_INLINE_MAX = 4096
"""Intents of a range that are looked at on the loop."""
DECIDED_S = 0.5
"""How long it is remembered that all of many intents are decided: much shorter than records of transactions are kept."""
assert describe("txn.record_retention").safe[0] > DECIDED_S, "readers find the records by which intents were decided"


class _Decided(NamedTuple):
    """A span in which every intent was of a decided transaction."""

    start: bytes
    end: bytes
    written: int
    """`Replica.intents_written` then: as long as that stands, there are only fewer intents."""
    until_ns: int

    def still(self, spans: list[tuple[bytes, bytes]], *, written: int, now_ns: int) -> bool:
        """Whether it is known of all these spans now."""
        assert written >= self.written, "writes of intents are only counted up"
        if written != self.written or now_ns >= self.until_ns:
            return False
        return all(self.start <= start and end <= self.end for start, end in spans)


def _resolve_all(reader: Reader, spans: list[tuple[bytes, bytes]], closed: Timestamp) -> list[ResolvedSpan]:
    fate = fates(reader)
    return [resolve(reader, start, end, closed=closed, fate=fate) for start, end in spans]


def _resolve_frozen(frozen: EngineSnapshot, spans: list[tuple[bytes, bytes]], closed: Timestamp) -> list[ResolvedSpan]:
    with frozen:
        return _resolve_all(frozen, spans, closed)


_REST = ClosingPolicy(PolicyKind.OFF)
# A lease that has not begun begins with time alone: nothing else would have its range asked again.
_HINDRANCES = {LeaseUse.MOVING: CannotClose.LEASE_MOVING, LeaseUse.NOT_BEGUN: CannotClose.LEASE_MOVING}
assert LeaseUse.USABLE not in _HINDRANCES, "a lease that can be used hinders no closing"


class Closing:
    """The closing side of one replica. Satisfies `Closable`."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._context = replica.context
        self._policy = ClosingPolicy()
        self._configured = False
        self._policy_of: tuple[int, int, int] = (-1, -1, -1)
        self._reach: int | None = None
        """How far from now the policy wants closed, as a difference of timestamps; None: nothing."""
        self._lease_end = self._closable_upto = MIN
        self._at = MIN
        """What a request asked to have closed at once."""
        self._asked_ns = 0
        self._decided: _Decided | None = None

    # --- leaseholder -------------------------------------------------------------------------------------------------

    def policy(self) -> ClosingPolicy:
        """What this range should close: as the span configuration says, or nothing while it rests (`closedts.activation`)."""
        given = self.given_policy()
        return given if self._active() else _REST

    def _active(self) -> bool:
        """Whether this range is to close at all, as far as this node knows."""
        transport, descriptor = self._context.transport, self._replica.state.descriptor
        if transport is None or transport.always or descriptor.start < SYSTEM_SPAN.end:
            return True
        return transport.active(descriptor.range_id, configured=self._configured)

    def given_policy(self) -> ClosingPolicy:
        """What the span configuration wants of this range; looked up again when that, the range or a setting changes."""
        descriptor, book, settings = self._replica.state.descriptor, self._context.policies, self._context.settings
        known = (book.version, descriptor.generation, settings.changes)
        if known != self._policy_of:
            followers = [node for node in descriptor.replicas if node != self._context.node_id]
            terms = terms_of(settings)
            self._policy = book.of(descriptor.start, descriptor.end, terms, followers=followers)
            ahead_s = distance_s(self._policy, terms)
            self._reach = None if ahead_s is None else round(ahead_s * 1_000_000) << LOGICAL_BITS
            self._configured = book.spans.configured(descriptor.start, descriptor.end)
            self._policy_of = known
        return self._policy

    def future_s(self) -> float:
        """How far ahead of this node's clock a timestamp may lie: a clock that is ahead, and the longest lead on top."""
        terms = terms_of(self._context.settings)
        return terms.max_offset_s + longest_lead_s(terms)

    def furthest(self) -> Timestamp:
        """Above every timestamp that another leaseholder may have served: its clock may be ahead, and its callers' too."""
        return add_seconds(self._context.clock.peek(), 2 * self.future_s())

    def promised(self) -> Timestamp:
        """What the side transport has promised on this range's behalf."""
        transport = self._context.transport
        return MIN if transport is None else transport.promised(self._replica.state.descriptor.range_id)

    def targets(self) -> tuple[Timestamp, Timestamp]:
        """How far the policy and the lease let a flush close."""
        replica, transport, clock = self._replica, self._context.transport, self._context.clock
        if replica.state.frozen is not None:
            return MIN, MIN  # a frozen range closes nothing (I-10)
        physical = clock.physical()
        lease_end = replica.leasing.usable_until(Timestamp(max(physical, clock.latest)))
        if transport is None or transport.plain:
            self.given_policy()
            wanted = MIN if self._reach is None or not self._active() else Timestamp(max(MIN, physical + self._reach))
        else:
            wanted = transport.carried(replica.state.descriptor.range_id, self, physical)
        if not (wanted or self._at):
            return MIN, MIN
        if lease_end != self._lease_end:  # moves with each renewal, not with each flush
            self._lease_end, self._closable_upto = lease_end, closable_upto(lease_end)
        return Timestamp(max(wanted, self._at)), self._closable_upto

    def closes_by(self, scheme: Scheme) -> bool:
        """Whether that scheme is to close this range now."""
        transport = self._context.transport
        run = DEFAULT if transport is None else transport.running
        if run == DEFAULT:
            return scheme is Scheme.LOG_DRIVEN
        return scheme in closing_schemes(run, self.policy(), by_epoch=not self._replica.leasing.by_expiration)

    def lease_start(self) -> Timestamp:
        """When the lease in force began."""
        return self._replica.state.lease.start

    def count_by(self, counted: CountedBy | None) -> None:
        """Have every write counted from its evaluation until it has its index; None: no longer."""
        buffer = self._replica.pipeline.buffer
        if isinstance(buffer.tracker, CountedTracker):
            buffer.tracker = buffer.tracker.release()
        if counted is not None:
            buffer.tracker = counted(buffer.tracker)
        assert isinstance(buffer.tracker, CountedTracker) == (counted is not None), (
            "writes are counted once, or not at all"
        )

    def propose_empty(self) -> CannotClose | None:
        """Hand a command that changes nothing to the log, or say why not."""
        replica = self._replica
        if (hindered := self._hindered()) is not None:
            return hindered
        if replica.state.frozen is not None:
            return CannotClose.MERGE_IN_PROGRESS
        if replica.pipeline.buffer.in_flight:
            return CannotClose.PROPOSALS_IN_FLIGHT  # a command is on its way: it carries what an empty one would
        replica.propose(Evaluation())
        return None

    def patience_s(self) -> float:
        """How long an entry may be on its way to the log before an empty command pushes it out.

        A frozen range closes nothing, and refuses empty commands: its entries are repeated until they are decided.
        """
        if self._replica.state.frozen is not None or not self.closes_by(Scheme.MAX_WRITE_AGE):
            return math.inf
        return write_age_s(self.policy(), terms_of(self._context.settings)) or math.inf

    def _hindered(self) -> CannotClose | None:
        """Why nothing can be closed here, whatever the timestamp."""
        replica = self._replica
        if replica.retired or replica.failure is not None or replica.stopped:
            return CannotClose.REPLICA_GONE
        use = replica.leasing.use(self._context.clock.peek())
        return None if use is LeaseUse.USABLE else _HINDRANCES.get(use, CannotClose.NO_VALID_LEASE)

    def try_close(self, ts: Timestamp, *, in_flight: bool = False) -> Closed | CannotClose:
        """Promise that nothing will be written at or below `ts` any more, or say why not."""
        replica = self._replica
        upto = closable_upto(replica.leasing.usable_until(self._context.clock.peek()))
        return try_close(
            ts,
            state=replica.state,
            buffer=replica.pipeline.buffer,
            hindered=self._hindered(),
            upto=upto,
            in_flight=in_flight,
        )

    def forward(self, ts: Timestamp) -> None:
        """`ts` was promised on this range's behalf."""
        buffer = self._replica.pipeline.buffer
        if ts > buffer.assigned_closed:
            buffer.close(target=ts, limit=ts)
            assert buffer.assigned_closed >= ts, "what was promised on this range's behalf is kept (I-11)"

    def enter(self) -> Timestamp:
        """A request that may write is about to be evaluated: the range is idle no more. The lowest timestamp it may write at.

        It lies above what was promised while the range was idle, and above what schemes need to promise next.
        """
        transport, buffer = self._context.transport, self._replica.pipeline.buffer
        if transport is None:
            return buffer.floor
        range_id = self._replica.state.descriptor.range_id
        if (promised := transport.touch(range_id)) > buffer.assigned_closed:
            self.forward(promised)
        return buffer.floor if transport.plain else Timestamp(max(buffer.floor, transport.floor(range_id) + 1))

    def waking(self, write_ts: Timestamp = MIN) -> None:
        """The range is idle no more: a command is about to be proposed, perhaps one that writes; or its lease changed."""
        transport = self._context.transport
        if transport is not None:
            replica = self._replica
            promised = transport.touch(replica.state.descriptor.range_id)
            if promised > replica.pipeline.buffer.assigned_closed:
                self.forward(promised)
            if write_ts and not transport.plain:
                transport.proposed(replica.state.descriptor.range_id, write_ts)

    def wanted(self) -> None:
        """A read or a feed here needs closed timestamps of this range."""
        if (transport := self._context.transport) is not None:
            transport.want(self._replica.state.descriptor.range_id)

    def closing_at(self, ts: Timestamp) -> None:
        """Let the next flush close `ts`, whatever the policy says."""
        self._at = Timestamp(max(self._at, min(ts, self._context.clock.now())))
        self._context.closing.closes += 1
        self._asked_ns = self._asked_ns or self._context.runtime.clock.monotonic_ns()

    # --- follower ----------------------------------------------------------------------------------------------------

    def closed(self) -> Timestamp:
        """What a follower read may be served at, here and now."""
        state, transport = self._replica.state, self._context.transport
        if transport is None:
            return state.closed
        believed = Timestamp(max(state.closed, transport.closed_for(state.descriptor.range_id, state.lai, state.lease)))
        tap("closedts.believed", self._replica, believed)
        assert believed >= state.closed, "a promise never lowers what the log has closed (I-09)"
        return believed

    def check(self, run: list[tuple[RangeState, Applied, Position]]) -> None:
        """Before writing what is about to be applied: nothing of it lies at or below what may have been served (I-10).

        The applied state's own closed timestamp is part of the acceptance rule; this is about promises of the side
        transport, which are no part of the replicated state. A violation quarantines this replica and nothing else.
        """
        closed = self.closed()
        for _, applied, _ in run:
            for command, verdict in applied.outcomes:
                if verdict is ApplyVerdict.ACCEPTED and 0 < command.min_write_ts <= closed:
                    facts: dict[str, object] = {"write": command.min_write_ts, "lai": command.lai, "promised": closed}
                    raise InvariantViolation("I-10", facts)

    def applied(self) -> None:
        """Something was applied: reads may have waited for it."""
        transport = self._context.transport
        if self._asked_ns and self._replica.state.closed >= self._at:
            self._context.closing.close_ns += self._context.runtime.clock.monotonic_ns() - self._asked_ns
            self._asked_ns = 0
        if transport is not None and self._replica.state.descriptor.range_id in transport.awaited:
            transport.advanced(self._replica.state.descriptor.range_id, self.closed())

    async def may_serve(self, batch: Batch) -> bool:
        """Whether this replica may answer without the lease, after waiting as long as the batch allows for it.

        A read that insists on the nearest replica is not sent on: `TooStale`, unless the lease is here.
        """
        if not all(isinstance(r, requests.FOLLOWER_READS) for r in batch.requests):
            return False
        self.wanted()
        header, required = batch.header, declare.required_frontier(batch)
        verdict = gate(required=required, closed=self.closed(), wait_ms=header.wait_ms)
        transport = self._context.transport
        if verdict is Gate.WAIT and transport is not None and not self._leads():
            self._context.closing.waited += 1
            await transport.wait_closed(
                self._replica.state.descriptor.range_id, required, seconds=header.wait_ms / 1000
            )
        if verdict is not Gate.SERVE:
            verdict = gate(required=required, closed=self.closed(), wait_ms=0, nearest_only=header.nearest_only)
        if verdict is Gate.SERVE:
            self._context.closing.served += 1
            return True
        self._context.closing.refused += 1
        tap("replica.follower_refused", self._replica, batch)
        if verdict is Gate.FAIL and not self._leads():
            raise self._too_stale(required, Why.WAITED if header.wait_ms else Why.NOT_CLOSED)
        return False

    def _leads(self) -> bool:
        return self._replica.state.lease.holder == self._context.node_id

    def _too_stale(self, required: Timestamp, why: Why) -> TooStale:
        range_id, closed = self._replica.state.descriptor.range_id, self.closed()
        return TooStale(
            f"n{self._context.node_id}, the nearest replica, cannot serve the read of r{range_id}: {why.value}; "
            "read an older timestamp, wait for longer, or allow others",
            why=why.value,
            behind_s=seconds_between(closed, required),
        )

    async def query_resolved(self, batch: Batch) -> BatchResult:
        """How far this replica can be read without meeting an intent in the way.

        Closed first, then the engine (pitfall 16), in one step; where there are many intents, on a thread.
        """
        self.wanted()
        closed = self.closed()
        if not all(isinstance(request, requests.QueryResolved) for request in batch.requests):
            raise UsageError("QueryResolved is asked on its own: nothing else in the batch")
        spans = [(r.start, r.end) for r in batch.requests if isinstance(r, requests.QueryResolved)]
        answers = await self._resolved(spans, closed)
        results: list[requests.Result] = []
        for request, found in zip(batch.requests, answers, strict=True):
            assert found.ts <= found.closed, "nothing is resolved above what is closed (I-23)"
            tap("closedts.resolved", self._replica, request, found)
            results.append(requests.ResolvedResult(found.ts, found.closed, found.held_by))
        return requests.BatchResult(results, served_by=self._context.node_id, by_follower=True)

    async def _resolved(self, spans: list[tuple[bytes, bytes]], closed: Timestamp) -> list[ResolvedSpan]:
        """How far spans are resolved; to be called in the step in which `closed` was read.

        That all of many intents are decided is remembered for a moment: beside a large commit it is asked for often.
        """
        replica, clock = self._replica, self._context.runtime.clock
        stats, written = replica.state.stats, replica.intents_written
        if not stats or Stats(*stats).intents <= INTENTS_INLINE_MAX:
            return _resolve_all(self._context.engine, spans, closed)
        known = self._decided
        if known is not None and known.still(spans, written=written, now_ns=clock.monotonic_ns()):
            probe("closing.known_as_decided")
            return [ResolvedSpan(closed, closed, final=True) for _ in spans]
        until_ns = clock.monotonic_ns() + int(DECIDED_S * 1e9)
        frozen = self._context.engine.snapshot()
        answers = await self._context.runtime.offload(_resolve_frozen, frozen, spans, closed)
        for (start, end), found in zip(spans, answers, strict=True):
            if found.final:
                self._decided = _Decided(start, end, written, until_ns)
        return answers

    async def frontier(self) -> ReplicaFrontier:
        """What `explain` says; many intents are looked at on a thread."""
        descriptor = self._replica.state.descriptor
        (found,) = await self._resolved([(descriptor.start, descriptor.end)], self.closed())
        return self.explain(found)

    def explain(self, found: ResolvedSpan | None = None) -> ReplicaFrontier:
        """How far this replica is closed and resolved, as `found` says, and what holds it back."""
        state, transport, engine = self._replica.state, self._context.transport, self._context.engine
        descriptor = state.descriptor
        if found is None:
            found = resolve(engine, descriptor.start, descriptor.end, closed=self.closed(), fate=fates(engine))
        closed = found.closed
        assert found.ts <= closed, "nothing is resolved above what is closed (I-23)"
        offer = refusal = None
        if transport is not None:
            offer = transport.waiting_for(descriptor.range_id, state.lai)
            refusal = transport.refusal(descriptor.range_id)
        reason = refusal.reason if refusal else None
        if reason is CannotClose.POLICY_OFF and self.given_policy().kind is not PolicyKind.OFF and not self._active():
            reason = CannotClose.AT_REST
        buffer = self._replica.pipeline.buffer
        record = self._context.liveness.get(state.lease.holder)
        ended = record is not None and not record.live_at(self._context.clock.peek())
        return ReplicaFrontier(
            range_id=descriptor.range_id,
            node_id=self._context.node_id,
            leaseholder=state.lease.holder,
            applied=state.lai,
            closed=closed,
            resolved=found.ts,
            held_by=found.held_by,
            offered_ts=offer.ts if offer else MIN,
            offered_lai=offer.lai if offer else LeaseAppliedIndex(0),
            refusal=reason.value if reason else "",
            refused_since=refusal.since if refusal else MIN,
            start=descriptor.start,
            end=descriptor.end,
            policy=self.given_policy().status(),
            target=target(self.policy(), self._context.clock.physical(), terms_of(self._context.settings)) or MIN,
            evaluating=buffer.tracker.lower_bound() or MIN,
            in_flight=buffer.in_flight,
            frozen=state.frozen is not None,
            leaseholder_ended=record.expiration if record is not None and ended else MIN,
            failure=str(self._replica.failure) if self._replica.failure else "",
        )
