"""What replicas here were promised and may not be able to use yet: one record per replica, shared by all schemes.

A promise (index, ts) may be used once the replica has applied the index (I-12), and stays true for ever. So the best
answer is the highest ts over all promises ever made with an index at or below the applied one, whichever scheme or node
made them. A record is what was answered before, plus a short staircase of promises that wait for their index:

    ts  ▲               ┌── (9, 140)        applied 7: 120 may be used, and is remembered as `served`
        │        ┌──────┘
        │   ┌────┘ (6, 120)                 a promise at or below another one in both is not worth keeping
        └───┴──────────────► index

    I-09  `served` never goes back. A replica that is replaced by a snapshot hands its record on (`carry`), and one whose node
          stops leaves what it was answered on disk (`recall`)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.hooks import probe

if TYPE_CHECKING:
    from slackwater.model.descriptors import LeaseAppliedIndex
    from slackwater.model.ids import RangeId

STEPS_MAX = 4
"""Promises of one range that wait for their index, besides those in the streams' tables."""
assert STEPS_MAX >= 2, "the promise that becomes usable first is kept, and the newest"


class Promise(NamedTuple):
    """Usable by a replica that has applied `lai`."""

    lai: LeaseAppliedIndex
    ts: Timestamp


class Record:
    """What one replica here was promised by messages that have been replaced since."""

    __slots__ = ("dropped", "served", "steps")

    def __init__(self) -> None:
        self.served = MIN
        self.steps: list[Promise] = []
        self.dropped = 0

    def keep(self, promise: Promise) -> None:
        """Remember a promise whose index may not be applied yet."""
        if promise.ts <= self.served or any(s.lai <= promise.lai and s.ts >= promise.ts for s in self.steps):
            return
        kept = [s for s in self.steps if not (promise.lai <= s.lai and promise.ts >= s.ts)]
        if len(kept) >= STEPS_MAX:
            # Keep the one that becomes usable first and the newest; giving up one between costs freshness only.
            probe("closedts.promise_dropped")
            self.dropped += 1
            kept.pop(-1 if promise.lai > kept[-1].lai else 1)
            assert kept[0] == self.steps[0] or promise.lai <= self.steps[0].lai, "what becomes usable first is kept"
        assert all(s.lai != promise.lai for s in kept), "of two promises for one index the higher is kept"
        self.steps = sorted([*kept, promise])
        assert len(self.steps) <= STEPS_MAX + 1, "promises that wait are bounded"
        assert all(a.lai < b.lai and a.ts < b.ts for a, b in zip(self.steps, self.steps[1:], strict=False)), (
            "a later index promises more"
        )

    def use(self, applied: LeaseAppliedIndex) -> Timestamp:
        """The highest kept promise that may be used; those no longer needed are forgotten."""
        while self.steps and self.steps[0].lai <= applied:
            self.served = max(self.served, self.steps.pop(0).ts)
        assert not self.steps or self.steps[0].lai > applied, "what may be used was used"
        return self.served


class Records(dict["RangeId", Record]):
    """The records of one node's replicas."""

    def watch(self, range_id: RangeId) -> None:
        """Keep promises for a replica that appeared here."""
        self.setdefault(range_id, Record())

    def forget(self, range_id: RangeId) -> None:
        """The replica is gone; another one may come with less applied."""
        self.pop(range_id, None)

    def carry(self, range_id: RangeId, applied: LeaseAppliedIndex) -> None:
        """The replica is about to be replaced: what it was answered holds for the next one once that has applied as much."""
        record = self.get(range_id)
        if record is not None:
            served, record.served = record.served, MIN
            assert served >= MIN, "what was answered is a timestamp"
            record.keep(Promise(applied, served))
            assert record.steps or not served, "what was answered waits for the next replica (I-09)"

    def keep(self, range_id: RangeId, promise: Promise) -> None:
        """Remember a promise for a replica that is here; others need none."""
        record = self.get(range_id)
        if record is not None:
            record.keep(promise)
