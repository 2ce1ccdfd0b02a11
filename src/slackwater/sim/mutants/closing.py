"""Planted bugs of closing: what is promised closed although something may still be written there, or is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.closedts.records import Record
from slackwater.sim.mutants.patch import Patch
from slackwater.sim.scenario import PlantedBug, plant

if TYPE_CHECKING:
    from slackwater.closedts.log_driven.receiver import Receiver, _Stream
    from slackwater.protocol.closedts.update import Update
    from slackwater.replica.propose import Flight, ProposalBuffer

_BUFFER = "slackwater.replica.propose:ProposalBuffer"
_RECEIVER = "slackwater.closedts.log_driven.receiver:Receiver"


def repropose(buffer: ProposalBuffer[object], flight: Flight[object]) -> None:
    """M05: queue the undecided proposals of a flight again, and keep the closed timestamp that it had for each of them."""
    kept = vars(buffer).setdefault("kept_closed", {})
    for proposal in flight.proposals:
        if proposal.command_id in buffer._waiting:
            kept[proposal.command_id] = flight.closed
            buffer._buffered.append(proposal)


def believe_last(receiver: Receiver, stream: _Stream, update: Update) -> None:
    """M04: forget what other messages promised to the ranges that this one names."""
    for range_id, _, _ in update.members:
        if range_id in receiver.records:
            receiver.records[range_id] = Record()
        for other in receiver._streams.values():
            if other is not stream:
                other.members.pop(range_id, None)


_BELIEVE_LAST = """
stream.groups = dict(update.groups)
from slackwater.sim.mutants.closing import believe_last
believe_last(self, stream, update)
"""

plant(
    PlantedBug(
        "M01",
        "the start of a lease closes timestamps even while the range is frozen by a merge",
        play="frontier",
        expected=("I-09", "I-10"),
        patches=(
            Patch(
                "slackwater.replica.apply:_pull",
                "state.closed if state.frozen else max(state.closed, lease.start)",
                "max(state.closed, lease.start)",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "M02",
        "assume that nothing is evaluating when a lease is proposed",
        play="frontier",
        expected=("I-10",),
        patches=(
            Patch(
                f"{_BUFFER}.flush",
                "self.close(target=close_target, limit=close_limit, leaving=leaving)",
                """
from slackwater.protocol.log.commands import LeaseExtension, LeaseTrigger
if any(isinstance(p.trigger, LeaseTrigger | LeaseExtension) for p in chosen):
    self.tracker.leave(leaving)
    self.assigned_closed = Timestamp(max(before, min(close_target, close_limit)))
else:
    self.close(target=close_target, limit=close_limit, leaving=leaving)
""",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "M03",
        "close up to the last instant of the lease",
        play="frontier",
        expected=("I-11", "I-08"),
        patches=(
            Patch("slackwater.replica.driver.leasing:Leasing.usable_until", "self._context.clock.max_offset_us", "0"),
            Patch("slackwater.replica.driver.store:Store.node_lease", "clock.max_offset_us << LOGICAL_BITS", "0"),
        ),
    )
)
plant(
    PlantedBug(
        "M04",
        "believe the side-transport update that came last, although its index is older",
        play="frontier",
        expected=("I-09",),
        patches=(
            Patch(f"{_RECEIVER}.receive", "stream.groups = dict(update.groups)", _BELIEVE_LAST),
            Patch(f"{_RECEIVER}._delta", "stream.groups = dict(update.groups)", _BELIEVE_LAST),
        ),
    )
)
plant(
    PlantedBug(
        "M05",
        "send a command again under a new index with its old closed timestamp",
        play="resend",
        # What is sent again still writes where it did, below what was closed since: either may be seen first.
        expected=("I-09", "I-10"),
        patches=(
            Patch(
                "slackwater.replica.driver.pipeline:Pipeline._append",
                'probe("propose.append_unknown")',
                """
probe("propose.append_unknown")
if all(p.trigger is None for p in flight.proposals):
    from slackwater.sim.mutants.closing import repropose
    repropose(self.buffer, flight)
    return
""",
            ),
            Patch(
                f"{_BUFFER}._command", "closed", "vars(self).get('kept_closed', {}).get(proposal.command_id) or closed"
            ),
        ),
    )
)
plant(
    PlantedBug(
        "M06",
        "trust a promise before its index is applied",
        play="frontier",
        expected=("I-12", "I-15"),
        patches=(
            Patch(f"{_RECEIVER}.closed_for", "lai <= applied", "True"),
            Patch(f"{_RECEIVER}.closed_for", "index > applied or best < record.served", "False"),
        ),
    )
)
plant(
    PlantedBug(
        "M07",
        "untrack a proposal before it has its index",
        play="frontier",
        expected=("I-10",),
        patches=(
            Patch(
                f"{_BUFFER}.insert",
                "proposal.token = self.tracker.track(proposal.min_write_ts)",
                "self.tracker.untrack(self.tracker.track(proposal.min_write_ts))",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "M09",
        "the right half of a split starts with nothing closed; a merge keeps the right side's",
        play="frontier",
        expected=("I-09", "I-10"),
        patches=(
            Patch("slackwater.replica.apply:_split", "state.closed", "MIN"),
            Patch("slackwater.replica.apply:_merge", "state.closed", "max(state.closed, frozen.closed)"),
        ),
    )
)
plant(
    PlantedBug(
        "X-FORMER-LEASE",
        "the side transport closes under the lease of the replica's former life",
        play="refetch",
        expected=("I-10", "I-09"),
        patches=(
            Patch(
                "slackwater.replica.driver.closing:Closing._hindered",
                "use = replica.leasing.use(self._context.clock.peek())",
                """
use = replica.leasing.use(self._context.clock.peek())
if use is LeaseUse.FORMER:
    use = LeaseUse.USABLE
""",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "X-CLOSED-FORGOTTEN",
        "a node does not write down what its replicas were promised",
        play="refetch",
        expected=("I-09",),
        patches=(
            Patch(
                "slackwater.replica.driver.store:Store._note_promises",
                "await promises.note(self.context.engine, self.replicas, lambda: clock.sleep(0))",
                "None",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "X-RECOVER-UNRESOLVED",
        "recovery takes what is closed for complete, whatever transactions have intents there",
        play="feeds",
        expected=("I-37",),
        patches=(
            Patch(
                "slackwater.server.recovery.plan:_options",
                "known = resolve(copy.reader, start, end, closed=copy.closed, fate=fate)",
                "known = resolve(copy.reader, start, start, closed=copy.closed, fate=fate)",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "M08",
        "the store-wide scheme lets a command write at the very timestamp that the next heartbeat closes",
        play="store_wide",
        expected=("I-10", "I-11"),
        patches=(
            Patch(
                "slackwater.closedts.store_wide.sender:Sender.floor",
                "self.mpt.cur",
                "self.mpt.cur - 1",
            ),
            # The range's own bound would refuse as well: two guards, and both have to be broken.
            Patch("slackwater.replica.closing:try_close", "lowest <= ts", "lowest < ts"),
        ),
    )
)
plant(
    PlantedBug(
        "X-UNNAMED",
        "a quiet range proposes a command, and the next heartbeat does not name it",
        play="store_wide",
        expected=("I-10", "I-11", "I-09", "I-12"),
        patches=(
            Patch(
                "slackwater.closedts.store_wide.sender:Sender.touch",
                "lai = self._quiet.pop(range_id, None)",
                "return promised",
            ),
        ),
    )
)
