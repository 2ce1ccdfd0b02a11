"""The way into the log: a task that flushes the proposal buffer, one append at a time.

    submit(proposal) ─► buffer ─► flush ─► append ─► (the tail sees it) ─► tell_outcome ─► the waiter

While one append is under way, everything evaluated meanwhile gathers in the buffer and leaves as one entry: group commit
for free. An append whose entry the tail has shown need not be answered: it is given up a moment later, so that an answer that
was lost does not hold the range up until `log.append_timeout`.

An append with an unknown outcome is repeated with the same bytes until the entry is seen, or cannot apply any more because
the lease has changed (pitfall 54: unknown is neither failure nor success). Under the max-write-age scheme it is not repeated
for longer than a write may be old: then an empty command with a higher index takes its place, so that it can no longer apply
wherever it turns up.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from slackwater.errors import AppendUnknown, NotLeaseholder, Overloaded, SlackwaterError
from slackwater.hooks import probe, tap
from slackwater.protocol.log.commands import COMMAND_ID_BYTES, ComplaintTrigger
from slackwater.replica.apply import ApplyVerdict
from slackwater.runtime.later import Later
from slackwater.runtime.sync import CancelledError, Event, current_task, get_running_loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.clock.timestamp import Timestamp
    from slackwater.replica.apply import ApplyOutcome
    from slackwater.replica.driver.context import HasState, ReplicaContext
    from slackwater.replica.propose import Flight, Proposal, ProposalBuffer
    from slackwater.replica.state import RangeState
    from slackwater.runtime.sync import Task, TimerHandle


ANSWER_GRACE_S = 0.1
"""How long the answer to an append may come after its entry was applied; most come before."""
APPEND_BACKOFF_S = 0.01
APPEND_BACKOFF_MAX_S = 1.0
assert APPEND_BACKOFF_S <= APPEND_BACKOFF_MAX_S, "pauses grow"


class Waiter(Later["RangeState"]):
    """Tells the outcome of one command, the state in which it applied: first to what is kept for it, then to its caller.

    An error says that it never will apply, or that its outcome is unknown. The caller may be cancelled while the command
    lives on.
    """

    __slots__ = ()


class Pipeline:
    """Carries proposals of one replica into the log and their outcomes back."""

    def __init__(
        self,
        context: ReplicaContext,
        buffer: ProposalBuffer[Waiter],
        *,
        of: HasState,
        targets: Callable[[], tuple[Timestamp, Timestamp]],
        patience_s: Callable[[], float] = lambda: math.inf,
        gathering: Callable[[], bool] = lambda: False,
    ) -> None:
        """`patience_s`: how long an entry may be under way before an empty command pushes it out.

        `gathering`: whether writes that came in this turn of the loop are about to be begun.
        """
        self.buffer = buffer
        self._context = context
        self._of = of
        self._targets = targets
        self._patience_s = patience_s
        self._gathering = gathering
        self._dirty = Event()
        self._task: Task[None] | None = None
        self._under_way: Flight[Waiter] | None = None
        self._given_up: Flight[Waiter] | None = None
        """What was under way when its answer was given up."""
        self._grace: TimerHandle | None = None
        """Ends the wait for the answer to the append that is under way; set when its entry was seen."""

    def submit(self, proposal: Proposal[Waiter]) -> None:
        """Insert an evaluated proposal. Its waiter is told when the command is decided."""
        self.buffer.insert(proposal)
        self._dirty.set()

    async def run(self) -> None:
        """Flush for as long as the replica lives."""
        self._task = current_task()
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            while self.buffer.buffered:
                if self._gathering():  # what came in the same turn as this leaves in the same entry
                    await self._context.runtime.clock.sleep(0)
                target, limit = self._targets()
                closed = self.buffer.assigned_closed
                flight = self.buffer.flush(close_target=target, close_limit=limit)
                assert self.buffer.assigned_closed >= closed, "what commands close never goes back (I-09)"
                if flight is not None:
                    tap("propose.flushed", self._context, self._of.state, flight, closed)
                    await self._append(flight)

    async def _append(self, flight: Flight[Waiter]) -> None:
        assert flight.lease_sequence <= self.buffer.sequence, "a flight belongs to this lease or to an earlier one"
        pause, failed_ns = APPEND_BACKOFF_S, 0
        range_id, payload, pushing = self.buffer.range_id, flight.payload, False
        while not self._decided(flight):
            try:
                if payload:
                    await self._answered(flight, payload)
            except AppendUnknown:
                probe("propose.append_unknown")
            except Overloaded:
                probe("propose.log_overloaded")
            except SlackwaterError as error:
                if pushing:  # said of the empty command: what it was to push out may still appear, so it is tried again
                    await self._context.runtime.clock.sleep(pause)
                    continue
                # The log says that the entry never will appear, so these proposals are certain not to apply.
                for proposal in self.buffer.withdraw(flight):
                    fail(proposal, error)
                return
            else:
                if not pushing:
                    return
                payload = (
                    b""  # what was pushed out is decided when the empty command applies, if it did not come before that
                )
            if not pushing and (patience_s := self._patience_s()) < math.inf:
                failed_ns = failed_ns or self._context.runtime.clock.monotonic_ns()
                if self._overdue(flight, failed_ns, patience_s):
                    probe("propose.pushed_out")
                    payload, pushing = self.buffer.push_out(self._context.runtime.rng.bytes(COMMAND_ID_BYTES)), True
            await self._context.runtime.clock.sleep(pause)
            pause = min(2 * pause, APPEND_BACKOFF_MAX_S)
        # Decided without being settled: a late entry of this node's former life used up the indexes. Wherever this one
        # may still turn up in the log, it is refused there.
        for proposal in self.buffer.withdraw(flight):
            probe("propose.index_taken")
            fail(
                proposal,
                NotLeaseholder(
                    "another command took this one's index",
                    range_id=range_id,
                    hint=self._of.state.lease.holder,
                    reason=ApplyVerdict.STALE_INDEX.value,
                ),
            )

    async def _answered(self, flight: Flight[Waiter], payload: bytes) -> None:
        """Append; `AppendUnknown` also when the entry was applied and its answer does not come."""
        assert self._under_way is None, "one append of a range is under way at a time (I-05)"
        self._under_way = flight
        try:
            await self._context.log.append(self.buffer.range_id, [payload])
        except CancelledError:
            if self._given_up is not flight or (self._task is not None and self._task.uncancel()):
                raise  # the replica ends
            probe("propose.seen_unanswered")
            raise AppendUnknown("the entry was applied before the append was answered") from None
        finally:
            self._under_way = self._given_up = None
            if self._grace is not None:
                self._grace.cancel()
                self._grace = None

    def _applied(self) -> None:
        """Something was applied: the answer to an append that is decided by it is waited for a moment longer, no more."""
        flight = self._under_way
        if flight is not None and self._grace is None and self._decided(flight):
            self._grace = get_running_loop().call_later(ANSWER_GRACE_S, self._give_up, flight)

    def _give_up(self, flight: Flight[Waiter]) -> None:
        """The entry was applied and its answer does not come: wake the task that waits for it."""
        if self._under_way is flight and self._task is not None:
            self._given_up = flight
            self._task.cancel()

    def _overdue(self, flight: Flight[Waiter], since_ns: int, patience_s: float) -> bool:
        """Whether an entry of the lease in force has been under way for longer than its writes may be old."""
        if flight.lease_sequence != self.buffer.sequence:
            return False
        return self._context.runtime.clock.monotonic_ns() - since_ns > patience_s * 1e9

    def _decided(self, flight: Flight[Waiter]) -> bool:
        state = self._of.state
        return state.lease.sequence != flight.lease_sequence or state.lai >= flight.last_lai

    def tell_outcome(self, outcome: ApplyOutcome, state: RangeState) -> None:
        """A command was decided at apply: tell its waiter, if it is ours. Complaints have none: they go to the store."""
        if outcome.verdict is ApplyVerdict.NOTED and isinstance(outcome.command.trigger, ComplaintTrigger):
            self._context.on_complaint(outcome.command.trigger)
            return
        assert outcome.verdict is not ApplyVerdict.ACCEPTED or outcome.command.lease_sequence <= state.lease.sequence, (
            "I-08"
        )
        proposal = self.buffer.take_decided(outcome.command.command_id)
        self._applied()
        if proposal is None:
            return
        if outcome.verdict is ApplyVerdict.ACCEPTED:
            assert proposal.lai == outcome.command.lai, "a command applies under the index that it was given (I-05)"
            assert proposal.lease_sequence == outcome.command.lease_sequence, (
                "a command applies under its own lease (I-08)"
            )
            proposal.waiter.settle(state)  # once: `take_decided` has handed it out, and does so once
            return
        fail(
            proposal,
            NotLeaseholder(
                f"the command was refused at apply: {outcome.verdict.value}",
                range_id=self.buffer.range_id,
                hint=state.lease.holder,
                reason=outcome.verdict.value,
            ),
        )

    def lease_changed(self, state: RangeState) -> None:
        """Another lease is in force: what was proposed under the old one can never apply."""
        assert state.descriptor.range_id == self.buffer.range_id, "a pipeline serves one range"
        self._applied()
        dead = self.buffer.start_lease(sequence=state.lease.sequence, lai=state.lai, closed=state.closed)
        assert not self.buffer.in_flight, "nothing of the former lease is waited for"
        for proposal in dead:
            fail(
                proposal,
                NotLeaseholder(
                    "the lease changed before the command applied",
                    range_id=self.buffer.range_id,
                    hint=state.lease.holder,
                    reason="lease changed",
                ),
            )

    def stop(self, error: SlackwaterError) -> None:
        """The replica ends: callers that wait are told `error`, which says that the outcome is unknown."""
        for proposal in self.buffer.start_lease(
            sequence=self.buffer.sequence, lai=self.buffer.assigned_lai, closed=self.buffer.assigned_closed
        ):
            fail(proposal, error)
        assert not self.buffer.in_flight, "no caller waits for a replica that has ended"


def fail(proposal: Proposal[Waiter], error: SlackwaterError) -> None:
    """Tell a waiter that its command failed. The proposal was taken out of the buffer, so it is told once."""
    proposal.waiter.settle(None, error)
