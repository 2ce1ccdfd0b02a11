"""The sender: a batch over any number of ranges, answered as if there were one.

    send(requests, header)
      │ all in one cached range?  ── yes ──► try its replicas in turn (Route) ──► answer
      │ no                                       │ every replica tried: pause, look the range up again
      ▼                                          │ RangeMismatch: learn what the replica knows, divide again
    divide ── limits? ── no ──► all shares at once ──► merge
                      └─ yes ─► range after range, in the direction of the scan

The header's `range_id`, `generation` and `deadline_ms` are filled in here. A transaction's sequence numbers stay what
they would be in the undivided batch, or lower within it: never equal to those of the next batch.

A read without transaction and timestamp gets its timestamp from the leaseholder; if it turns out to need two ranges,
the sender picks one timestamp for all of them first, with an uncertainty interval, since two leaseholders' clocks
differ.

After `send` failed for a batch that was divided, the error carries `partial=True` if some of its shares were or may
have been executed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec import structs

from slackwater.clock.timestamp import MIN, add_seconds
from slackwater.closedts.policy import LEAD_MAX_S, longest_lead_s, terms_of
from slackwater.errors import (
    AmbiguousResult,
    ConnectionLost,
    NotLeaseholder,
    Overloaded,
    RangeMismatch,
    SlackwaterError,
    UsageError,
    invariant,
)
from slackwater.hooks import buggify, probe
from slackwater.model.descriptors import FIRST_RANGE
from slackwater.model.ids import NodeId, RangeId
from slackwater.protocol.range.bulk import BULK_BYTES_DEFAULT
from slackwater.protocol.range.requests import BATCH_REQUESTS_MAX, Batch, BatchResult, Get, Header, ReverseScan
from slackwater.protocol.range.served import Why, explained
from slackwater.routing import outcome
from slackwater.routing.answers import why_not_believed
from slackwater.routing.call import AllReplicasTried, Call
from slackwater.routing.choose import Candidate, order
from slackwater.routing.directory import Directory
from slackwater.routing.facts import descriptors_of, hint_of
from slackwater.routing.merge import Budget, combine, join, merge_division, resume_of, stopped_at, unread
from slackwater.routing.nodes import UNKNOWN, NodeHealth, NodeTable, NodeView
from slackwater.routing.parallel import in_parallel
from slackwater.routing.range_cache import NO_NODE, RangeCache
from slackwater.routing.refusals import FollowerRefusals
from slackwater.routing.route import Route
from slackwater.routing.split import POINTS, SPANS, Division, divide, fits, lowest, take
from slackwater.runtime.deadline import Deadline
from slackwater.runtime.retry import RetryBudget, RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from slackwater.clock.hlc import HybridClock
    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.protocol.range.requests import Request, Result
    from slackwater.routing.transport import Transport
    from slackwater.runtime.later import Later
    from slackwater.runtime.seam import Runtime, TaskScope
    from slackwater.settings import Settings

__all__ = ["NO_RANGE", "RangeSender", "crosses_ranges"]

NO_RANGE = RangeId(0)
"""For headers handed to `send`, which fills the range in."""
NOT_CLOSED_THERE = frozenset({Why.NOT_CLOSED, Why.WAITED})
"""A follower that said so will say it again until more is closed."""


def _never_at_once(_batch: Batch, _now: Timestamp | None) -> None:
    """The short way of a sender with no replica in its process: there is none."""


class RangeSender:
    """Sends batches to the ranges that hold their keys. One per node or client; owned by `scope`."""

    def __init__(
        self,
        *,
        transport: Transport,
        runtime: Runtime,
        scope: TaskScope,
        clock: HybridClock,
        settings: Settings,
        first_range: Callable[[], Awaitable[RangeDescriptor]],
        node_id: NodeId = NO_NODE,
        locality: tuple[tuple[str, str], ...] = (),
        view: Callable[[NodeId], NodeView] = lambda _: UNKNOWN,
        at_once: Callable[[Batch, Timestamp | None], BatchResult | Later[BatchResult] | None] = _never_at_once,
        old_enough: Callable[[RangeDescriptor], Timestamp] = lambda _: MIN,
    ) -> None:
        """`old_enough` is the timestamp that followers of a range have very likely closed; MIN: none."""
        self._transport = transport
        self._runtime = runtime
        self._scope = scope
        self._hybrid = clock
        self._settings = settings
        self._node_id = node_id
        self._locality = locality
        self._view = view
        self.at_once = at_once
        """Answers a batch for a range that is `here` in this very step, or begins to; None: it has to wait (`send`)."""
        self.cache = RangeCache(entries_max=int(settings["routing.range_cache_entries"]))
        self.nodes = NodeTable()
        self._old_enough = old_enough
        self._refusals = FollowerRefusals()
        self.directory = Directory(self.cache, first_range=first_range, ask=self._send_range)

    # --- for callers

    async def send(
        self,
        requests: Sequence[Request],
        header: Header,
        *,
        timeout: float | None = None,
        at: bytes = b"",
        repeatable: bool = False,
    ) -> BatchResult:
        """Have the batch executed; results in the order of the requests.

        `at` is a key of the range that keyless requests are meant for. `repeatable` vouches that executing the batch
        more than once does no harm and that it need not be atomic (bulk loads).
        """
        if not requests:
            return BatchResult([])
        if len(requests) > BATCH_REQUESTS_MAX:
            raise UsageError(
                "the batch has too many requests; divide it", count=len(requests), limit=BATCH_REQUESTS_MAX
            )
        if buggify("routing.forget_cache"):
            self.cache.clear()
        home = at or (header.txn.anchor if header.txn is not None else b"")
        return await self._run(requests, header, self.new_call(timeout=timeout, home=home, repeatable=repeatable))

    def new_call(self, *, timeout: float | None, home: bytes = b"", repeatable: bool = False) -> Call:
        """Bounds for a piece of work that starts now."""
        seconds = self._settings["routing.send_timeout"] if timeout is None else timeout
        clock = self._runtime.clock
        deadline = Deadline(clock, seconds=seconds)
        return Call(clock, self._runtime.rng, self._settings, deadline=deadline, home=home, repeatable=repeatable)

    def budget(self, *, timeout: float | None, tries_max: int) -> RetryBudget:
        """Time and tries for a caller that sends a batch again when its answer says so; without `timeout`, that of one batch."""
        settings = self._settings
        policy = RetryPolicy(tries_max, settings["routing.backoff_min"], settings["routing.backoff_max"])
        seconds = settings["routing.send_timeout"] if timeout is None else timeout
        return RetryBudget(self._runtime.clock, self._runtime.rng, policy, seconds=seconds)

    async def range_of(self, key: bytes, *, timeout: float | None = None) -> RangeDescriptor:
        """The range that holds `key`, as far as is known."""
        known = self.directory.known(key)
        return known if known is not None else await self.directory.locate(key, self.new_call(timeout=timeout))

    async def ranges_of(self, start: bytes, end: bytes, *, timeout: float | None = None) -> list[RangeDescriptor]:
        """The ranges that hold `[start, end)`, in key order, as far as is known."""
        call = self.new_call(timeout=timeout)
        found = []
        while start < end:
            found.append(await self.directory.locate(start, call))
            start = found[-1].end
        return found

    def here(self, first: bytes, last: bytes) -> RangeDescriptor | None:
        """The range that holds both keys, if that is known without asking and a replica of it is on this node."""
        found = self.cache.lookup(first)  # should the replica here be newer, it refuses, and `send` looks again
        if found is None or last >= found.end or self._node_id not in found.replicas or buggify("routing.not_here"):
            return None
        return found

    def nearest(self, descriptor: RangeDescriptor) -> list[NodeId]:
        """The replicas of a range in the order in which a reader that needs no lease should try them."""
        return self._in_order(descriptor, by_follower=True)

    def furthest(self) -> Timestamp:
        """The highest timestamp that a sound node can have read, written or closed at.

        Its clock may be ahead, its policy lead, and its range be closed up to where a lease begins that waits for another's end.
        """
        settings = self._settings
        lead_s = max(LEAD_MAX_S, longest_lead_s(terms_of(settings)))
        lease_s = max(settings["lease.duration"], settings["liveness.duration"])
        return add_seconds(self._hybrid.peek(), 2 * self._hybrid.max_offset_us / 1e6 + max(lead_s, lease_s))

    # --- division

    async def _run(self, requests: Sequence[Request], header: Header, call: Call) -> BatchResult:
        """Send a batch wherever it belongs, again and again until it is answered or the call gives up."""
        while True:
            first = await self._first(requests[0], call)
            if fits(requests, first, home=call.home):
                try:
                    return await self._send_range(first, requests, header, call)
                except RangeMismatch as error:
                    await self._learn(first, error, requests[0], call)
                except AllReplicasTried:
                    await self._look_again(first, call)
                continue
            header = self._spread(requests, header, call)
            if not (header.max_keys or header.max_bytes) and outcome.bulk(requests):
                header = structs.replace(header, max_bytes=BULK_BYTES_DEFAULT)  # a whole table fits no memory
            if header.max_keys or header.max_bytes:
                return await self._in_turn(requests, header, call)
            division = await self._divide(requests, call)
            if len(division.shares) > 1:
                return await self._all_at_once(requests, header, division, call)
            await call.next_round(pause=True)  # the ranges changed while they were looked up

    async def _first(self, request: Request, call: Call) -> RangeDescriptor:
        if isinstance(request, ReverseScan):
            return await self.directory.locate(request.end, call, below=True)
        return await self.directory.locate(lowest(request, home=call.home), call)

    def _spread(self, requests: Sequence[Request], header: Header, call: Call) -> Header:
        """The header for a batch that needs several ranges, or the error that it may not have them."""
        if outcome.atomic(requests, header) and not call.repeatable:
            raise UsageError(
                "the batch touches several ranges and would not be atomic; use a transaction", crosses_ranges=True
            )
        if header.txn is None and header.ts == MIN and outcome.read_only(requests):
            now = self._hybrid.now()
            limit = add_seconds(now, self._hybrid.max_offset_us / 1e6)
            return structs.replace(header, ts=now, uncertainty_limit=limit)
        return header

    async def _divide(self, requests: Sequence[Request], call: Call) -> Division:
        talk = divide(requests, home=call.home)
        try:
            key = next(talk)
            while True:
                key = talk.send(await self.directory.locate(key, call))
        except StopIteration as done:
            division: Division = done.value
            return division

    async def _all_at_once(
        self, requests: Sequence[Request], header: Header, division: Division, call: Call
    ) -> BatchResult:
        works = [
            partial(self._run, share.requests, _shifted(header, share.first_index), call.fork())
            for share in division.shares
        ]
        limit = int(self._settings["routing.fanout"])
        outcomes = await in_parallel(self._scope, works, limit=limit, name="share")
        answers = [o for o in outcomes if isinstance(o, BatchResult)]
        if len(answers) == len(outcomes):
            return merge_division(requests, division, answers)
        errors = [o for o in outcomes if isinstance(o, SlackwaterError)]
        error = outcome.worst(errors)
        if answers or len(errors) > 1:
            error.facts["partial"] = True
        raise error

    async def _in_turn(self, requests: Sequence[Request], header: Header, call: Call) -> BatchResult:
        """A limited batch: request after request, range after range, until the limit is reached."""
        budget = Budget(max_keys=header.max_keys, max_bytes=header.max_bytes)
        answers: list[BatchResult] = []
        results: list[Result] = []
        for index, request in enumerate(requests):
            results.append(await self._walk(request, _shifted(header, index), budget, answers, call))
        if not answers:  # cannot be: the first request is always sent
            raise UsageError("a limited batch needs at least one request")
        return combine(results, answers)

    async def _walk(
        self, request: Request, header: Header, budget: Budget, answers: list[BatchResult], call: Call
    ) -> Result:
        """One request of a limited batch, piece by piece in the direction of its scan."""
        if type(request) not in SPANS:
            unlimited = structs.replace(header, max_keys=0, max_bytes=0)
            answers.append(await self._run([request], unlimited, call.fork()))
            return answers[-1].results[0]
        pieces: list[Result] = []
        rest: Request | None = request
        while rest is not None and not budget.spent:
            piece, rest = take(rest, await self._first(rest, call), home=call.home)
            max_keys, max_bytes = budget.left()
            limited = structs.replace(header, max_keys=max_keys, max_bytes=max_bytes)
            answers.append(await self._run([piece], limited, call.fork()))
            pieces.append(answers[-1].results[0])
            budget.use(pieces[-1])
            if resume_of(pieces[-1]) is not None:
                break
        result = join(pieces) if pieces else None
        if rest is None and result is not None:
            return result
        return stopped_at(result, request, unread(rest or request, home=call.home))

    # --- one range

    async def _learn(self, wrong: RangeDescriptor, error: RangeMismatch, request: Request, call: Call) -> None:
        """A replica refused `wrong` and said what it knows instead."""
        probe("routing.range_mismatch")
        call.last = error
        known = descriptors_of(error)
        key = lowest(request, home=call.home)
        if known and not any(d.contains(key) for d in known) and type(request) not in SPANS | POINTS:
            known += await self._ask_about(key, known[0], call)
        call.tell(wrong, known)
        news = self.directory.learn(wrong, known)
        await call.next_round(pause=not news)

    async def _ask_about(self, key: bytes, near: RangeDescriptor, call: Call) -> list[RangeDescriptor]:
        """The range of `key`, as the replicas of a range beside it know. A request without a key could not ask that."""
        try:
            await self._send_range(near, [Get(key)], Header(NO_RANGE), call.fork())
        except RangeMismatch as error:
            probe("routing.asked_neighbour")
            return descriptors_of(error)
        except (AllReplicasTried, SlackwaterError):
            return []
        return []

    async def _look_again(self, descriptor: RangeDescriptor, call: Call) -> None:
        """Pause after no replica has answered, and find out whether the range has moved."""
        await call.next_round(pause=True)
        if not call.looks_again:
            return
        if descriptor.range_id == FIRST_RANGE:
            self.directory.forget_first_range()
        else:
            await self.directory.refresh(descriptor, call)

    async def _send_range(
        self, descriptor: RangeDescriptor, requests: Sequence[Request], header: Header, call: Call
    ) -> BatchResult:
        """One round over the replicas of one range."""
        header = self._by_age(descriptor, requests, header)
        route = self._route(descriptor, by_follower=self._by_follower(descriptor, requests, header, call))
        harmless = call.repeatable or outcome.repeatable(requests)
        while (node_id := route.next()) is not None:
            call.check()
            batch = Batch(_addressed(header, descriptor, route, call), list(requests))
            started_ns = self._runtime.clock.monotonic_ns()
            try:
                answer = await self._answer(node_id, batch)
            except NotLeaseholder as error:
                self._heard(node_id, started_ns)
                if batch.header.follower_ok:
                    self._follower_refused(descriptor, error, header, call)
                self._refused(descriptor, node_id, error, route, call)
            except SlackwaterError as error:
                self._failed(descriptor, node_id, error, started_ns)
                if outcome.lost(error) and not harmless:
                    raise outcome.ambiguous(error) from error
                if isinstance(error, Overloaded):
                    call.last = error
                    break
                if not outcome.should_try_next_replica(error) and not (
                    outcome.lost(error) and isinstance(error, AmbiguousResult)
                ):
                    raise
                if batch.header.follower_ok:
                    call.why = call.why or outcome.why_no_follower(error, header)
                call.last = error
            else:
                self._heard(node_id, started_ns)
                if not answer.by_follower:  # a follower's answer says nothing about the lease (pitfall 22)
                    self.cache.learn_leaseholder(descriptor, node_id)
                if not answer.served:
                    return answer
                why = outcome.why_leaseholder(requests, header, call.why)
                return structs.replace(answer, served=tuple(explained(served, why) for served in answer.served))
        raise AllReplicasTried

    async def _answer(self, node_id: NodeId, batch: Batch) -> BatchResult:
        """A node's answer; one of another node that no sound node gives counts as lost."""
        answer = await self._transport.batch(node_id, batch)
        if node_id == self._node_id:
            invariant(len(answer.results) == len(batch.requests), "A-results", asked=len(batch.requests), node=node_id)
            return answer
        if not why_not_believed(batch.requests, answer, upto=self._hybrid.peek()):
            return answer  # nearly always: few answers are of the future
        if why := why_not_believed(batch.requests, answer, upto=self.furthest()):
            probe("routing.answer_not_believed")
            raise ConnectionLost(f"what n{node_id} answered is not believed: {why}", node_id=node_id)
        return answer

    def _by_age(self, descriptor: RangeDescriptor, requests: Sequence[Request], header: Header) -> Header:
        """A plain read that is older than its range's followers are behind goes to the nearest replica by itself."""
        if header.follower_ok or header.leader_only or header.ts == MIN or header.txn is not None:
            return header
        asked = structs.replace(header, follower_ok=True)
        needed = max(header.ts, header.uncertainty_limit)
        if not outcome.follower_may_serve(requests, asked) or needed > self._old_enough(descriptor):
            return header
        probe("routing.by_age")
        return asked

    def _by_follower(
        self, descriptor: RangeDescriptor, requests: Sequence[Request], header: Header, call: Call
    ) -> bool:
        """Whether a follower is asked: not again, where one has just refused the like (pitfall 21)."""
        if not outcome.follower_may_serve(requests, header):
            return False
        if header.nearest_only or header.ts == MIN:
            return True
        now_ns = self._runtime.clock.monotonic_ns()
        if not header.wait_ms and self._refusals.expected(descriptor.range_id, header.ts, now_ns):
            call.why = call.why or Why.NOT_CLOSED
        if call.why in NOT_CLOSED_THERE:
            probe("routing.follower_spared")
            return False
        return True

    def _follower_refused(self, descriptor: RangeDescriptor, error: NotLeaseholder, header: Header, call: Call) -> None:
        why = outcome.why_no_follower(error, header)
        call.why = call.why or why
        if header.ts != MIN and why in NOT_CLOSED_THERE:
            tick_ns = int(self._settings["closed_timestamp.side_transport_interval"] * 1e9)
            until_ns = self._runtime.clock.monotonic_ns() + tick_ns
            self._refusals.refused(descriptor.range_id, header.ts, until_ns=until_ns)

    def _route(self, descriptor: RangeDescriptor, *, by_follower: bool) -> Route:
        leaseholder = self.cache.leaseholder(descriptor.range_id)
        candidates = partial(self._in_order, descriptor, by_follower=by_follower)
        if by_follower or not leaseholder or buggify("routing.try_other_replica_first"):
            return Route(candidates, by_follower=by_follower)
        if self._view(leaseholder).health is NodeHealth.DEAD:
            return Route(candidates, by_follower=by_follower)
        return Route(candidates, by_follower=by_follower, first=leaseholder)

    def _in_order(self, descriptor: RangeDescriptor, *, by_follower: bool) -> list[NodeId]:
        now_ns = self._runtime.clock.monotonic_ns()
        return order(
            [
                Candidate(n, self._view(n), self.nodes.latency_us(n), self.nodes.suspect(n, now_ns=now_ns))
                for n in descriptor.replicas
            ],
            leaseholder=NO_NODE
            if buggify("routing.any_replica_first")
            else self.cache.leaseholder(descriptor.range_id),
            by_follower=by_follower,
            here=self._node_id,
            locality=self._locality,
            rng=self._runtime.rng,
        )

    def _refused(
        self, descriptor: RangeDescriptor, node_id: NodeId, error: NotLeaseholder, route: Route, call: Call
    ) -> None:
        call.last = error
        self.cache.forget_leaseholder(descriptor.range_id, node_id)
        hint = hint_of(error)
        if hint not in (0, node_id):
            self.cache.learn_leaseholder(descriptor, hint)
        route.refused(node_id, hint=hint or self.cache.leaseholder(descriptor.range_id))

    def _failed(self, descriptor: RangeDescriptor, node_id: NodeId, error: SlackwaterError, started_ns: int) -> None:
        """Keep what the failure says about the node; a lost connection also says that its lease may move."""
        if outcome.should_try_next_replica(error):
            self.nodes.failed(node_id, now_ns=self._runtime.clock.monotonic_ns())
            self.cache.forget_leaseholder(descriptor.range_id, node_id)
        else:
            self._heard(node_id, started_ns)

    def _heard(self, node_id: NodeId, started_ns: int) -> None:
        self.nodes.answered(node_id, took_ns=self._runtime.clock.monotonic_ns() - started_ns)


def crosses_ranges(error: SlackwaterError) -> bool:
    """Whether a batch was refused because it must be atomic and needs more than one range. Nothing was sent."""
    return isinstance(error, UsageError) and error.facts.get("crosses_ranges") is True


def _shifted(header: Header, by: int) -> Header:
    """The header of a share whose first request had index `by`."""
    if header.txn is None or by == 0:
        return header
    return structs.replace(header, txn=structs.replace(header.txn, sequence=header.txn.sequence + by))


def _addressed(header: Header, descriptor: RangeDescriptor, route: Route, call: Call) -> Header:
    return structs.replace(
        header,
        range_id=descriptor.range_id,
        generation=descriptor.generation,
        deadline_ms=call.deadline.remaining_ms(),
        follower_ok=header.follower_ok and route.by_follower,
    )
