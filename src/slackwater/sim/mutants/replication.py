"""Planted bugs of replication and storage: commands applied twice, late or never; copies and streams that are not whole."""

from __future__ import annotations

from slackwater.sim.faults import FaultKind
from slackwater.sim.mutants.patch import BODY, Patch
from slackwater.sim.scenario import PlantedBug, plant

plant(
    PlantedBug(
        "M30",
        "acknowledge a write although the log did not say that it is durable: it is lost if its node dies now",
        play="leases",
        expected=("I-03",),
        faults=frozenset({FaultKind.LOG_LOST, FaultKind.LOG_CUT, FaultKind.CRASH, FaultKind.KILL}),
        settings={"log.append_timeout": 0.1},
        # The entry is appended again as always, and latches and the tracker hold until it is decided, so nothing else goes
        # wrong: what was acknowledged is lost only if this node dies, or loses its lease, before the entry is in the log.
        patches=(
            Patch(
                "slackwater.replica.driver.pipeline:Pipeline._append",
                'probe("propose.append_unknown")',
                """
probe("propose.append_unknown")
for proposal in flight.proposals:
    if proposal.waiter._tell is not None:
        proposal.waiter._value = self._of.state
        proposal.waiter._told()
""",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "X-DOUBLE-APPLY",
        "a command that stands in the log twice is applied twice",
        play="cluster",
        # The second copy writes where the first did, and where that is closed by now it is refused (I-10).
        expected=("I-05", "I-10"),
        faults=frozenset({FaultKind.LOG_UNKNOWN, FaultKind.LOG_DUPLICATE, FaultKind.LOG_LATE}),
        patches=(
            Patch("slackwater.replica.apply:verdict", "command.lai <= state.lai", "False"),
            Patch(
                "slackwater.replica.apply:apply_packet", "command.lai <= state.lai and command.lai != NO_LAI", "False"
            ),
        ),
    )
)
plant(
    PlantedBug(
        "X-LATE-APPEND",
        "a late append of a former leaseholder is applied under the next lease, if only its index is fresh",
        play="late",
        expected=("I-08",),
        patches=(
            Patch(
                "slackwater.replica.apply:verdict",
                "ApplyVerdict.WRONG_LEASE",
                "ApplyVerdict.ACCEPTED if command.trigger is None and command.lai > state.lai else ApplyVerdict.WRONG_LEASE",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "X-STOP-UNFLUSHED",
        "a node that stops does not make durable what it applied",
        play="cluster",
        expected=("I-31",),
        faults=frozenset({FaultKind.STOP}),
        patches=(
            Patch(
                "slackwater.replica.driver.store:Store.stop",
                """
self._tell_followers()
await self._note_promises()
await self.context.engine.flush()
""",
                "pass",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "X-SHORT-READ",
        "take the end of a stream for the end of the data, without a look at what follows",
        play="standard",
        expected=("I-34",),
        faults=frozenset({FaultKind.DISK_SHORT, FaultKind.DISK_ROT}),
        patches=(Patch("slackwater.storage.whole:prove_end", BODY, "return"),),
    )
)
plant(
    PlantedBug(
        "X-TWO-SNAPSHOTS",
        "let a second snapshot of the same keys in while the first is being flushed",
        play="snapshots",
        # The first replica holds less than its statistics say (I-34), which is seen as soon as it is looked at; and what the one
        # of two was promised the other does not know (I-09).
        expected=("I-34", "I-02", "I-03", "I-06", "I-09"),
        patches=(
            Patch(
                "slackwater.replica.driver.store:Store.install_snapshot",
                "await self.context.engine.flush()",
                """
self._installing.pop(state.descriptor.range_id, None)
await self.context.engine.flush()
""",
            ),
            Patch(
                "slackwater.replica.driver.store:Store.install_snapshot",
                'assert state.descriptor.range_id not in self.replicas, "room was made for it"',
                "pass",
            ),
            Patch(
                "slackwater.replica.driver.store:Store._add",
                'assert range_id not in self.replicas, "a store has one replica of a range"',
                "pass",
            ),
            *(
                Patch(add, 'assert range_id not in self._ranges, "a range has one replica on a node"', "pass")
                for add in (
                    "slackwater.closedts.log_driven.sender:Sender.add",
                    "slackwater.closedts.store_wide.sender:Sender.add",
                    "slackwater.closedts.max_write_age.driver:MaxWriteAge.add",
                )
            ),
        ),
    )
)
plant(
    PlantedBug(
        "X-INDEX-LEFTOVER",
        "the index of ranges keeps the entry of a range that was merged away",
        play="standard",
        expected=("I-31",),
        patches=(
            Patch(
                "slackwater.server.meta:plan",
                "requests += [Delete(r.key) for r in others if new.start < r.descriptor.end < new.end]",
                "pass",
            ),
        ),
    )
)
