"""The sending side of the store-wide scheme: heartbeats, and which ranges they have to name.

    quiet ── touch: a request is about to be evaluated ──► active ── heartbeat: try_close(closed) ──► named
      ▲                                                      ▲                                          │
      └──────────── nothing evaluating or in flight ─────────┼──────────────────────────────────────────┤
                                                             └──── still in flight: named again next time

The contract with followers (quiescence): between two heartbeats no command is proposed for a range that the next one does
not name. So a range leaves the quiet set *before* it proposes (`touch`), and the next heartbeat names it: with its last
assigned index and closed, or, when it cannot close (frozen, lease moving …), as awake. A store that stops sending (`stop`)
leaves a gap in the numbers behind, because what it proposes afterwards is named by no heartbeat.

What is closed is decided by the minimum proposal timestamp (`mpt`); that no command of a range lies at or below it, and that
the lease reaches so far, is asked of the range when it is named (I-10, I-11). Missed heartbeats are merged into the next
one from those that are kept; who is further behind gets a gap.
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import pairwise
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MAX, MIN, Timestamp
from slackwater.closedts.closable import PARKED, Refusal
from slackwater.closedts.kinds import Scheme
from slackwater.closedts.policy import ClosingPolicy, target
from slackwater.closedts.store_wide.mpt import CountedTracker, MinProposal
from slackwater.hooks import probe, tap
from slackwater.model.descriptors import Epoch, LeaseAppliedIndex
from slackwater.protocol.closedts.frontier import CannotClose
from slackwater.protocol.closedts.heartbeat import Entry, Heartbeat

if TYPE_CHECKING:
    from slackwater.closedts.closable import Closable, NodeLease
    from slackwater.closedts.policy import Terms
    from slackwater.closedts.tracker import Tracker
    from slackwater.model.ids import NodeId, RangeId

HEARTBEATS_KEPT = 50
"""Heartbeats that a follower may have missed before the next one starts anew."""
assert HEARTBEATS_KEPT >= 2, "a follower that missed one is told both in one"
NAMED_PER_BEAT_MAX = 8_192
"""Ranges asked for one heartbeat; a bound on the time that it holds the loop."""

PLAIN = ClosingPolicy()
"""The only policy there is under this scheme: the cluster's lag."""


class Sender:
    """The leased ranges of one store, and what heartbeats said about them."""

    def __init__(self, node_id: NodeId, incarnation: int) -> None:
        """`incarnation` is above every number that a former life of this node has used."""
        self.node_id = node_id
        self.on = False
        self.mpt = MinProposal()
        self.seq = incarnation
        """Of the last heartbeat."""
        self.refusals: Counter[CannotClose] = Counter()
        self._ranges: dict[RangeId, Closable] = {}
        self._active: dict[RangeId, None] = {}
        self._quiet: dict[RangeId, LeaseAppliedIndex] = {}
        self._told_quiet: set[RangeId] = set()
        """Those that followers take for quiet, by what heartbeats said last of them."""
        self._named: dict[RangeId, tuple[LeaseAppliedIndex, Timestamp]] = {}
        self._refused: dict[RangeId, Refusal] = {}
        self._epoch = Epoch(0)
        self._kept: deque[Heartbeat] = deque(maxlen=HEARTBEATS_KEPT)

    # --- ranges ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Close by heartbeats from now on: every range of this store is active until it has been named."""
        if self.on:
            return
        assert not self._kept, "heartbeats of a former run are not told on"
        assert not self._quiet, "no range is quiet before it was named"
        self.on, self.mpt = True, MinProposal()
        for closable in self._ranges.values():
            closable.count_by(self._counted)
        self._active = dict.fromkeys(self._ranges)

    def stop(self) -> None:
        """No more heartbeats. What was promised stays promised; the gap tells followers that ranges act unseen since."""
        if not self.on:
            return
        self.on = False
        for range_id in list(self._quiet):
            self.touch(range_id)
        for range_id, closable in self._ranges.items():
            closable.forward(self.promised(range_id))
            closable.count_by(None)
        self._active.clear()
        self._told_quiet.clear()
        assert not self._quiet, "without heartbeats no range goes on closing"
        self._kept.clear()
        self.seq += 1

    def _counted(self, inner: Tracker) -> Tracker:
        return CountedTracker(inner, self.mpt)

    def add(self, range_id: RangeId, closable: Closable) -> None:
        """A replica appeared here."""
        assert range_id not in self._ranges, "a range has one replica on a node"
        self._ranges[range_id] = closable
        self._active[range_id] = None
        if self.on:
            closable.count_by(self._counted)

    def remove(self, range_id: RangeId) -> None:
        """A replica is gone from here; followers are told that it is quiet no more."""
        closable = self._ranges.pop(range_id, None)
        if closable is not None and self.on:
            closable.count_by(None)
        self.touch(range_id)
        if not self.on:
            self._named.pop(range_id, None)  # no heartbeat will ask for it

    def touch(self, range_id: RangeId) -> Timestamp:
        """A command is about to be proposed: the next heartbeat names the range. Returns what has been promised for it."""
        promised = self.promised(range_id)
        lai = self._quiet.pop(range_id, None)
        if lai is not None:
            self._named[range_id] = (lai, promised)
        if self.on:
            self._active[range_id] = None
        assert range_id not in self._quiet, "a range that acts is not taken for quiet (I-11)"
        return promised

    def touch_all(self) -> None:
        """Policies or schemes changed."""
        for range_id in self._ranges:
            self.touch(range_id)

    def promised(self, range_id: RangeId) -> Timestamp:
        """What heartbeats have closed for a range."""
        if range_id in self._quiet:
            return self.mpt.last
        named = self._named.get(range_id)
        return MIN if named is None else named[1]

    def floor(self, range_id: RangeId) -> Timestamp:
        """New commands write above this, in every range that heartbeats close: the next ones close it."""
        return self.mpt.cur if self.on and self.closes(range_id) else MIN

    # --- heartbeats --------------------------------------------------------------------------------------------------

    def heartbeat(self, now: Timestamp, terms: Terms, lease: NodeLease | None) -> Heartbeat | None:
        """The next heartbeat; None without a lease to rely on: heartbeats cease, and nothing is closed."""
        wanted = target(PLAIN, now, terms)
        if not self.on or lease is None or wanted is None:
            self.refusals[CannotClose.NO_VALID_LEASE if wanted else CannotClose.POLICY_OFF] += 1
            return None
        before, self._epoch = self._epoch, lease.epoch
        if before != lease.epoch:
            # Leases of the former epoch are over: each range has to show its lease again before it is closed.
            self.touch_all()
            self._kept.clear()
        closed = self.mpt.heartbeat(Timestamp(min(wanted, lease.upto)))
        if closed == MIN:
            return None  # the first one after a start: there is a `cur` now, and at the next there will be a `last`
        ranges: list[Entry] = []
        active = list(self._active)
        self._active = dict.fromkeys(active[NAMED_PER_BEAT_MAX:])
        for range_id in active[:NAMED_PER_BEAT_MAX]:
            self._name(range_id, closed, now, ranges)
        awake = [range_id for range_id in active if range_id in self._told_quiet and range_id not in self._quiet]
        assert len(ranges) <= NAMED_PER_BEAT_MAX, "a heartbeat is bounded"
        self._told_quiet.difference_update(awake)
        self.seq += 1
        beat = Heartbeat(self.node_id, lease.epoch, self.seq, self.seq - 1, closed, ranges, awake)
        assert not beat.problem(MAX), "what is sent would be believed"
        assert not self._kept or self._kept[-1].seq == beat.after, "no heartbeat is left out"
        assert not self._kept or self._kept[-1].closed <= closed, "what a store closes never goes back (I-09)"
        assert not {e.range_id for e in ranges if e.quiesced} & set(awake), "a range is told as quiet, or as awake"
        self._kept.append(beat)
        tap("closedts.published", self, now, terms, lease)
        return beat

    def _name(self, range_id: RangeId, closed: Timestamp, now: Timestamp, ranges: list[Entry]) -> None:
        answer = self._ask(range_id, closed)
        if isinstance(answer, CannotClose):
            self.refusals[answer] += 1
            if answer not in PARKED:
                self._active[range_id] = None
            known = self._refused.get(range_id)
            if range_id in self._ranges and (known is None or known.reason is not answer):
                self._refused[range_id] = Refusal(answer, now)
            return
        lai, quiet = answer
        self._refused.pop(range_id, None)
        ranges.append(Entry(range_id, lai, quiet))
        self._named[range_id] = (lai, closed)
        if quiet:
            self._quiet[range_id] = lai
            assert range_id not in self._active, "a quiet range is not asked until it is touched"
            self._told_quiet.add(range_id)
        else:
            self._active[range_id] = None
            self._told_quiet.discard(range_id)

    def _ask(self, range_id: RangeId, closed: Timestamp) -> tuple[LeaseAppliedIndex, bool] | CannotClose:
        closable = self._ranges.get(range_id)
        if closable is None:
            self._named.pop(range_id, None)
            self._refused.pop(range_id, None)
            return CannotClose.REPLICA_GONE
        closable.forward(self.promised(range_id))
        if not closable.closes_by(Scheme.STORE_WIDE):
            return CannotClose.OTHER_SCHEME
        answer = closable.try_close(closed, in_flight=True)
        if isinstance(answer, CannotClose):
            return answer
        if answer.epoch != self._epoch:
            return CannotClose.NO_VALID_LEASE
        return answer.lai, answer.quiet

    def after(self, seq: int | None) -> list[Heartbeat]:
        """What a follower that has had everything up to `seq` is sent now: one heartbeat, with all that it missed in it."""
        if not self._kept or seq == self.seq:
            return []
        newest = self._kept[-1]
        assert newest.seq == self.seq, "the last heartbeat is kept"
        if seq is None or seq < self._kept[0].after or seq > newest.seq:
            probe("closedts.heartbeat_gap")
            return [newest]
        missed = [beat for beat in self._kept if beat.seq > seq]
        return [merged(missed, after=seq)] if missed else []

    # --- looking -----------------------------------------------------------------------------------------------------

    def closes(self, range_id: RangeId) -> bool:
        """Whether heartbeats are to close a range with a replica here, led here or elsewhere; other ranges are never named."""
        closable = self._ranges.get(range_id)
        return closable is not None and closable.closes_by(Scheme.STORE_WIDE)

    def refusal(self, range_id: RangeId) -> Refusal | None:
        """Why a range could not be closed when it was last asked."""
        return self._refused.get(range_id) if self.on else None

    def promises(self) -> list[tuple[RangeId, LeaseAppliedIndex, Timestamp, ClosingPolicy]]:
        """What heartbeats have said about every range so far: range, index, timestamp, policy."""
        quiet = [(range_id, lai, self.mpt.last, PLAIN) for range_id, lai in self._quiet.items()]
        return quiet + [(r, lai, ts, PLAIN) for r, (lai, ts) in self._named.items() if r not in self._quiet]

    def status(self) -> str:
        """One line for logs and scripts."""
        return f"n{self.node_id} #{self.seq} {self.mpt.status()} quiet={len(self._quiet)} active={len(self._active)}"


def merged(missed: list[Heartbeat], *, after: int) -> Heartbeat:
    """One heartbeat that says what all of them said, in order, to a follower that has had everything up to `after`."""
    newest = missed[-1]
    assert all(a.seq == b.after for a, b in pairwise(missed)), "no heartbeat between is left out"
    if len(missed) == 1 and newest.after == after:
        return newest
    probe("closedts.heartbeats_merged")
    ranges: dict[RangeId, Entry] = {}
    awake: dict[RangeId, None] = {}
    for beat in missed:
        for range_id in beat.awake:
            awake[range_id] = None
            former = ranges.get(range_id)
            if former is not None:
                # What it was told holds still, but the closed timestamps to come do not.
                ranges[range_id] = former._replace(quiesced=False)
        for entry in beat.ranges:
            awake.pop(entry.range_id, None)
            ranges[entry.range_id] = entry._replace(closed=entry.closed or beat.closed)
    entries = [e._replace(closed=MIN) if e.quiesced or e.closed == newest.closed else e for e in ranges.values()]
    assert all(e.closed <= newest.closed for e in entries), "an older heartbeat closed no more (I-09)"
    assert newest.seq > after, "a heartbeat follows those it stands for"
    assert not any(e.quiesced and e.range_id in awake for e in entries), "a range that woke is not told as quiet"
    return Heartbeat(newest.sender, newest.epoch, newest.seq, after, newest.closed, entries, list(awake))
