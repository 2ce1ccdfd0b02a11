"""The max-write-age scheme, alive: a loop that proposes empty commands on ranges that write nothing.

All that followers need to know travels in commands, so there is nothing to send and nothing to follow; every led range costs
one log entry per `closed_timestamp.empty_command_interval` instead.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN
from slackwater.closedts.closable import Refusal
from slackwater.closedts.kinds import Scheme
from slackwater.closedts.max_write_age.ages import WriteAges
from slackwater.closedts.policy import write_age_s
from slackwater.hooks import probe

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.clock.timestamp import Timestamp
    from slackwater.closedts.closable import Closable
    from slackwater.closedts.policy import ClosingPolicy, Terms
    from slackwater.closedts.publisher import NodeParts, Ranges
    from slackwater.closedts.records import Promise
    from slackwater.model.descriptors import Lease, LeaseAppliedIndex
    from slackwater.model.ids import RangeId
    from slackwater.protocol.closedts.frontier import CannotClose

PROPOSED_PER_STEP = 64
"""Empty commands proposed in one step of the loop."""


class MaxWriteAge:
    """One node's end of the max-write-age scheme. Satisfies `ClosingScheme`."""

    scheme = Scheme.MAX_WRITE_AGE

    def __init__(self, parts: NodeParts) -> None:
        self.ages = WriteAges()
        self.on = False
        self.refusals: Counter[CannotClose] = Counter()
        self.empty_commands = 0
        self._parts = parts
        self._ranges: dict[RangeId, Closable] = {}
        self._refused: dict[RangeId, Refusal] = {}

    def start(self, ranges: Ranges, look: Callable[[], None]) -> None:
        """Begin to look for ranges that write nothing, whenever the scheme runs."""
        self._parts.scope.spawn(self._keep_proposing(), name="empty commands")

    def run(self, *, on: bool) -> None:
        """Publish from now on, or rest."""
        self.on = on

    async def _keep_proposing(self) -> None:
        clock = self._parts.runtime.clock
        while True:
            await clock.sleep(self._parts.settings["closed_timestamp.empty_command_interval"])
            for number, (range_id, closable) in enumerate(list(self._ranges.items()) if self.on else [], 1):
                if self._ranges.get(range_id) is closable:
                    self._propose(range_id, closable)
                if number % PROPOSED_PER_STEP == 0:
                    await clock.sleep(0)

    def _propose(self, range_id: RangeId, closable: Closable) -> None:
        """An empty command of the present, unless something was written lately or the range is not led here."""
        now, interval_s = self._parts.clock.physical(), self._parts.settings["closed_timestamp.empty_command_interval"]
        if not closable.closes_by(Scheme.MAX_WRITE_AGE) or not self.ages.due(range_id, now, interval_s):
            return
        refused = closable.propose_empty()
        if refused is None:
            probe("closedts.empty_command")
            self.empty_commands += 1
            self._refused.pop(range_id, None)
            self.ages.proposed(range_id, now)
            assert not self.ages.due(range_id, now, interval_s), "an empty command counts as a write"
            return
        self.refusals[refused] += 1
        known = self._refused.get(range_id)
        if known is None or known.reason is not refused:
            self._refused[range_id] = Refusal(refused, now)

    # --- replicas ----------------------------------------------------------------------------------------------------

    def add(self, range_id: RangeId, closable: Closable) -> None:
        """A replica appeared here."""
        assert range_id not in self._ranges, "a range has one replica on a node"
        self._ranges[range_id] = closable

    def remove(self, range_id: RangeId) -> None:
        """A replica is gone from here."""
        self._ranges.pop(range_id, None)
        self._refused.pop(range_id, None)
        self.ages.forget(range_id)

    def touch(self, range_id: RangeId) -> Timestamp:
        """Nothing is promised beside the log."""
        return MIN

    def touch_all(self) -> None:
        """Ranges are asked at every turn."""

    def promised(self, range_id: RangeId) -> Timestamp:
        """Nothing is promised beside the log."""
        return MIN

    def floor(self, range_id: RangeId) -> Timestamp:
        """No write is older than the highest proposed one less the age."""
        closable = self._ranges.get(range_id)
        if not self.on or closable is None or not closable.closes_by(Scheme.MAX_WRITE_AGE):
            return MIN
        return self._bound(range_id, closable, closable.policy(), self._parts.clock.physical(), self._parts.terms())

    def _bound(
        self, range_id: RangeId, closable: Closable, policy: ClosingPolicy, now: Timestamp, terms: Terms
    ) -> Timestamp:
        age_s = write_age_s(policy, terms)
        return self.ages.bound(range_id, lease_start=closable.lease_start(), now=now, age_s=age_s)

    def proposed(self, range_id: RangeId, ts: Timestamp) -> None:
        """A command that writes at `ts` or above is on its way to the log."""
        self.ages.proposed(range_id, ts)

    def carried(self, range_id: RangeId, policy: ClosingPolicy, now: Timestamp, terms: Terms) -> Timestamp:
        """Commands carry the bound that holds once they are applied."""
        closable = self._ranges.get(range_id)
        return MIN if closable is None else self._bound(range_id, closable, policy, now, terms)

    def refusal(self, range_id: RangeId) -> Refusal | None:
        """Why no empty command could be proposed."""
        return self._refused.get(range_id) if self.on else None

    def closed_for(self, range_id: RangeId, applied: LeaseAppliedIndex, lease: Lease) -> Timestamp:
        """All that is closed is in the applied state."""
        return MIN

    def waiting_for(self, range_id: RangeId, applied: LeaseAppliedIndex) -> Promise | None:
        """Nothing is promised beside the log."""
        return None

    def status(self) -> str:
        """One line for logs and scripts."""
        return f"n{self._parts.node_id} empty-commands={self.empty_commands} ranges={len(self._ranges)}"
