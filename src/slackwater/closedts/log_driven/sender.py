"""Closes idle ranges: the sending side of the side transport.

A busy range closes timestamps with its commands. An idle one has none, and must not be woken just to say that nothing
happened. So a node closes the idle ranges it leases together, once per tick, and tells its peers in one small message.

Idle costs nothing. A range is asked (`try_close`) only when something happened to it since the last tick; afterwards it
is a *standing member* of its policy's group and moves with the group, on this side as on the other:

    touched ──► dirty ── tick: try_close(target) ──► closed ──► standing member ── touch ──► dirty …
                  ▲                      └─ refused: CannotClose, counted ─┘ asked again, or parked until touched

What makes that sound
    1. A request that may write calls `touch` *before* it looks at its floor, in the same step, and writes above what
       `touch` returns: everything the group has closed for this range so far (I-10, I-11).
    2. A dirty range never moves with its group. At the next tick it is asked, or leaves the set.
    3. Epoch leases are checked once per node: members were admitted under this node's epoch, no group moves past the
       end of that epoch less the gap, and a change of epoch makes every member dirty (I-07).
       A lease with its own expiration stands on its own feet: its range is asked at every tick.
    4. What was promised on behalf of a range is handed to it (`forward`) when it leaves the set, touched or not.
    5. Groups never move back (I-09), also not when the policy's target does.

Asking is bounded per tick, in order of touching; those not reached stay dirty, and busy ranges, which close with their
commands anyway, cannot crowd out the others: a range that refused goes to the end of the queue.

Streams. Updates are numbered. The last `UPDATES_KEPT` are kept; a stream that is further behind, or new, gets a full
message. Worked examples: `tests/scripts/closedts/side_transport_*`.
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import islice
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MAX, MIN, Timestamp
from slackwater.closedts.closable import PARKED, Closed, Refusal
from slackwater.closedts.kinds import Scheme
from slackwater.closedts.policy import ClosingPolicy, Terms, target
from slackwater.errors import UsageError, invariant
from slackwater.hooks import buggify, probe, tap
from slackwater.model.descriptors import Epoch, LeaseAppliedIndex
from slackwater.protocol.closedts.frontier import CannotClose
from slackwater.protocol.closedts.update import GroupId, Member, Update

if TYPE_CHECKING:
    from slackwater.closedts.closable import Closable, NodeLease
    from slackwater.model.ids import NodeId, RangeId

UPDATES_KEPT = 50
"""Updates a stream may be behind before it gets a full message instead."""
assert UPDATES_KEPT >= 2, "a stream that is one update behind gets that update"
ASKED_PER_TICK_MAX = 8_192
"""Ranges asked in one tick; a bound on the time that one tick holds the loop."""
GROUPS_MAX = 64
"""Different policies in use on one node."""
RANGES_MAX = 1_000_000
assert ASKED_PER_TICK_MAX <= RANGES_MAX, "a tick asks no more ranges than there can be"


class _Group:
    """Ranges that close the same timestamps."""

    __slots__ = ("aim", "id", "members", "off", "policy", "ts")

    def __init__(self, group_id: GroupId, policy: ClosingPolicy) -> None:
        self.id = group_id
        self.policy = policy
        self.ts = MIN  # published
        self.aim = MIN  # of the tick under way
        self.off = False  # the policy wants nothing closed
        self.members = 0


class Sender:
    """The leased ranges of one node, and what was said about them."""

    def __init__(self, node_id: NodeId, incarnation: int) -> None:
        self.node_id = node_id
        self.incarnation = incarnation
        self.seq = 1
        """Of the last update; the first one is 2, so that 0 can mean nothing to a receiver."""
        self.refusals: Counter[CannotClose] = Counter()
        self._ranges: dict[RangeId, Closable] = {}
        self._dirty: dict[RangeId, None] = {}
        self._members: dict[RangeId, tuple[LeaseAppliedIndex, _Group]] = {}
        self._refused: dict[RangeId, Refusal] = {}
        self._groups: dict[ClosingPolicy, _Group] = {}
        self._groups_made = 0
        self._epoch = Epoch(0)
        self._terms: Terms | None = None
        self._kept: deque[Update] = deque(maxlen=UPDATES_KEPT)
        self.scheme = Scheme.LOG_DRIVEN
        """Which one this node has heard is the cluster's. Told with every update, whether or not it closes anything."""

    # --- what ranges say ---------------------------------------------------------------------------------------------

    def add(self, range_id: RangeId, closable: Closable) -> None:
        """A replica appeared here. It is asked at the next tick, leased or not."""
        if len(self._ranges) >= RANGES_MAX:
            raise UsageError("too many ranges on one node", limit=RANGES_MAX)
        assert range_id not in self._ranges, "a range has one replica on a node"
        self._ranges[range_id] = closable
        self._dirty[range_id] = None

    def remove(self, range_id: RangeId) -> None:
        """A replica is gone from here. What was promised for its range stays promised."""
        self._ranges.pop(range_id, None)
        self._dirty[range_id] = None

    def touch(self, range_id: RangeId) -> Timestamp:
        """Something happens to a range: it stands still until asked again. Returns what has been promised for it."""
        self._dirty[range_id] = None
        member = self._members.get(range_id)
        return MIN if member is None else member[1].ts

    def touch_all(self) -> None:
        """Policies changed: ask every range again."""
        self._dirty.update(dict.fromkeys(self._ranges))

    # --- the tick ----------------------------------------------------------------------------------------------------

    def tick(self, now: Timestamp, terms: Terms, lease: NodeLease | None) -> Update:
        """Close what can be closed; the update for streams that are up to date."""
        removed: list[RangeId] = []
        added: list[RangeId] = []
        if lease is None:
            # Nothing moves: groups hang on the epoch. Members keep what they were promised.
            self.refusals[CannotClose.NO_VALID_LEASE] += 1
        else:
            if (lease.epoch, terms) != (self._epoch, self._terms):
                self._epoch, self._terms = lease.epoch, terms
                self.touch_all()
            for group in self._groups.values():
                self._aim(group, now, terms, lease)
            limit = 1 if buggify("closedts.ask_one_per_tick") else ASKED_PER_TICK_MAX
            dirty = list(self._dirty)
            # Not reached in this tick: they must not move with their group.
            for range_id in dirty[limit:]:
                self._leave(range_id, removed)
            # A new dict: one that has held many keys is slow to walk for ever after.
            self._dirty = dict.fromkeys(dirty[limit:])
            self._ask(dirty[:limit], now, terms, lease, added, removed)
            assert all(range_id not in self._members for range_id in dirty[limit:]), (
                "what was not asked does not move (I-11)"
            )
            self._move()
            tap("closedts.published", self, now, terms, lease)
        return self._publish(added, removed)

    def _aim(self, group: _Group, now: Timestamp, terms: Terms, lease: NodeLease) -> None:
        wanted = target(group.policy, now, terms)
        group.off = wanted is None
        group.aim = group.ts if wanted is None else Timestamp(max(group.ts, min(wanted, lease.upto)))
        assert group.aim >= group.ts, "what is published never moves back (I-09)"

    def _ask(
        self,
        asked: list[RangeId],
        now: Timestamp,
        terms: Terms,
        lease: NodeLease,
        added: list[RangeId],
        removed: list[RangeId],
    ) -> None:
        """Ask ranges; those that cannot stand on their own are dirty again, at the end of the queue."""
        for range_id in asked:
            answer = self._ask_one(range_id, now, terms, lease)
            if isinstance(answer, CannotClose):
                self._leave(range_id, removed)
                self._refuse(range_id, answer, now)
                if answer not in PARKED:
                    self._dirty[range_id] = None
                continue
            group, closed = answer
            self._refused.pop(range_id, None)
            if self._join(range_id, closed.lai, group):
                added.append(range_id)
            if not closed.epoch:
                self._dirty[range_id] = None

    def _ask_one(
        self, range_id: RangeId, now: Timestamp, terms: Terms, lease: NodeLease
    ) -> tuple[_Group, Closed] | CannotClose:
        closable = self._ranges.get(range_id)
        if closable is None:
            return CannotClose.REPLICA_GONE
        member = self._members.get(range_id)
        if member is not None:
            closable.forward(member[1].ts)  # it may be about to join a group that is behind
        if not closable.closes_by(Scheme.LOG_DRIVEN):
            return CannotClose.OTHER_SCHEME
        policy = closable.policy()
        group = self._groups.get(policy) or self._make(policy, now, terms, lease)
        if isinstance(group, CannotClose):
            return group
        if group.off:
            return CannotClose.POLICY_OFF
        closed = closable.try_close(group.aim)
        if isinstance(closed, CannotClose):
            return closed
        if closed.epoch not in {0, self._epoch}:
            return CannotClose.NO_VALID_LEASE
        assert group.policy == policy, "a range joins the group of its own policy"
        return group, closed

    def _make(self, policy: ClosingPolicy, now: Timestamp, terms: Terms, lease: NodeLease) -> _Group | CannotClose:
        group = _Group(self._groups_made + 1, policy)
        self._aim(group, now, terms, lease)
        if group.off:
            return CannotClose.POLICY_OFF
        if len(self._groups) >= GROUPS_MAX:
            probe("closedts.too_many_policies")
            return CannotClose.TOO_MANY_POLICIES
        self._groups_made += 1
        self._groups[policy] = group
        assert all(g.id < group.id for p, g in self._groups.items() if p != policy), "groups are numbered once"
        return group

    def _join(self, range_id: RangeId, lai: LeaseAppliedIndex, group: _Group) -> bool:
        """Make a range a standing member; False when streams know it as exactly that already."""
        before = self._members.get(range_id)
        if before is not None:
            if before == (lai, group):
                return False
            before[1].members -= 1
            assert before[1].members >= 0, "a member leaves a group once"
        self._members[range_id] = (lai, group)
        group.members += 1
        assert group.members <= len(self._members), "members are counted once"
        return True

    def _leave(self, range_id: RangeId, removed: list[RangeId]) -> None:
        member = self._members.pop(range_id, None)
        if member is None:
            return
        group = member[1]
        group.members -= 1
        assert group.members >= 0, "a member leaves a group once"
        removed.append(range_id)
        closable = self._ranges.get(range_id)
        if closable is not None:
            closable.forward(group.ts)

    def _refuse(self, range_id: RangeId, reason: CannotClose, now: Timestamp) -> None:
        assert range_id not in self._members, "a range that refuses does not move with a group (I-11)"
        self.refusals[reason] += 1
        if range_id not in self._ranges:
            self._refused.pop(range_id, None)
            return
        before = self._refused.get(range_id)
        if before is None or before.reason is not reason:
            self._refused[range_id] = Refusal(reason, now)

    def _move(self) -> None:
        """Everything is decided: the groups reach their aims."""
        for policy in [p for p, group in self._groups.items() if not group.members]:
            del self._groups[policy]
        assert len(self._groups) <= GROUPS_MAX, "groups are bounded"
        for group in self._groups.values():
            invariant(group.aim >= group.ts, "I-09", aim=group.aim, published=group.ts)
            assert group.members > 0, "a group without members was dropped"
            group.ts = group.aim

    # --- streams -----------------------------------------------------------------------------------------------------

    def _publish(self, added: list[RangeId], removed: list[RangeId]) -> Update:
        self.seq += 1
        members = [(r, self._members[r][0], self._members[r][1].id) for r in added]
        assert len(set(added)) == len(added), "a member is named once in an update"
        assert not set(removed) & set(added), "a range leaves a group or joins one, not both in one update"
        assert all(range_id not in self._members for range_id in removed), "what left is no member"
        update = self._update(full=False, removed=removed, members=members)
        assert not self._kept or self._kept[-1].seq + 1 == update.seq, "updates are numbered without a gap"
        self._kept.append(update)
        return update

    def _update(self, *, full: bool, removed: list[RangeId], members: list[Member]) -> Update:
        update = Update(
            self.node_id,
            self.incarnation,
            self.seq,
            full=full,
            groups=self._group_times(),
            removed=removed,
            members=members,
            scheme=int(self.scheme),
        )
        assert not update.problem(MAX), "what is sent would be believed"
        return update

    def _group_times(self) -> list[tuple[GroupId, Timestamp]]:
        return [(group.id, group.ts) for group in self._groups.values()]

    def full(self) -> Update:
        """Everything, for a stream that knows nothing."""
        members = [(range_id, lai, group.id) for range_id, (lai, group) in self._members.items()]
        assert len(members) == sum(group.members for group in self._groups.values()), "members are counted once"
        return self._update(full=True, removed=[], members=members)

    def after(self, seq: int | None) -> list[Update]:
        """What a stream that has sent `seq` (None: nothing yet) has to send now."""
        if seq == self.seq:
            return []
        if seq is None or not self._kept or seq < self._kept[0].seq - 1 or seq > self.seq:
            probe("closedts.full_update")
            return [self.full()]
        assert self._kept[-1].seq == self.seq, "the last update is kept"
        updates = list(islice(reversed(self._kept), self.seq - seq))[::-1]
        assert updates[0].seq == seq + 1, "no update is left out"
        return updates

    # --- looking -----------------------------------------------------------------------------------------------------

    def refusal(self, range_id: RangeId) -> Refusal | None:
        """Why a range did not close at the last tick at which it was asked."""
        return self._refused.get(range_id)

    def promises(self) -> list[tuple[RangeId, LeaseAppliedIndex, Timestamp, ClosingPolicy]]:
        """What streams were told about every standing member: range, index, timestamp, and under which policy."""
        return [(r, lai, group.ts, group.policy) for r, (lai, group) in self._members.items()]

    def promised(self, range_id: RangeId) -> Timestamp:
        """What streams were told is closed for a standing member."""
        member = self._members.get(range_id)
        return MIN if member is None else member[1].ts

    def status(self) -> str:
        """One line for logs and scripts."""
        groups = " ".join(f"g{g.id}({g.policy.status()})={g.ts}/{g.members}" for g in self._groups.values())
        return f"n{self.node_id} #{self.seq} {groups or 'no groups'} dirty={len(self._dirty)}"
