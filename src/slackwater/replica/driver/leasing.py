"""Getting, keeping and giving away the lease of one replica.

    acquire    propose a RequestLease straight to the log: no lease is needed for it, the sequence it replaces guards it
    extend     the holder of an expiration-based lease prolongs it through the proposal buffer, like any command
    transfer   a command with the next lease in it; from its proposal on, the old holder serves nothing (I-07)

Everything done under a lease asks one question first, `Leasing.use`: serving, proposing, extending, releasing and handing
over, and closing timestamps without a command, whether for an idle range or ahead of time (I-10). A lease that was found on
disk or in a snapshot answers FORMER: commands proposed under it may still be ahead in the log, unapplied and unknown here.

At most one acquisition is under way per replica; all requests that need the lease wait for that one.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN, Timestamp, add_seconds, seconds_between
from slackwater.errors import (
    AppendUnknown,
    NotLeaseholder,
    Overloaded,
    SlackwaterError,
    UnavailableError,
    UsageError,
)
from slackwater.hooks import probe
from slackwater.model.descriptors import FIRST_RANGE, Lease, LeaseSequence
from slackwater.protocol.log.commands import (
    COMMAND_ID_BYTES,
    NO_LAI,
    Command,
    LeaseExtension,
    LeaseTrigger,
    Packet,
    encode_packet,
)
from slackwater.replica.driver.waiting import NO_HURRY_S, Waiters
from slackwater.replica.lease import (
    LeaseState,
    lasts_s,
    lease_state,
    next_epoch_lease,
    next_expiration_lease,
    usable_until,
)
from slackwater.runtime.sync import timeout
from slackwater.settings import describe

if TYPE_CHECKING:
    from slackwater.model.descriptors import Liveness
    from slackwater.model.ids import NodeId
    from slackwater.replica.driver.context import HasState, ReplicaContext

APPEND_ATTEMPTS_MAX = 8
EXTEND_AFTER = 0.25
"""The part of the usable time of an expiration-based lease after which it is extended. All nodes' liveness hangs on range 1,
so its lease is short: several extensions may be late before it ends."""
assert 0 < EXTEND_AFTER < 1, "a lease is extended while it is usable"
assert describe("lease.acquire_timeout").default > describe("lease.duration").default, (
    "a request outlasts the lease of a holder that has gone"
)

_NOT_OVER = (LeaseState.VALID, LeaseState.STASIS, LeaseState.UNKNOWN)
"""States of a lease that another node holds in which no other node may ask for it."""
assert LeaseState.EXPIRED not in _NOT_OVER, "a lease that has ended may be asked for"


class LeaseUse(enum.Enum):
    """Whether this node may act under the lease of a replica now, and if not, why."""

    USABLE = "this node holds the lease"
    ELSEWHERE = "the lease is held by another node"
    UNHELD = "no node holds the lease"
    MOVING = "the lease is being transferred"
    ENDING = "this node's lease is about to end or has ended"
    FORMER = "this node held the lease in a former life and must acquire it anew"
    NOT_BEGUN = "this node's lease starts in the future of its clock"


class Leasing:
    """The lease of one replica, as this node sees it."""

    def __init__(self, context: ReplicaContext, of: HasState, *, continued: bool = False) -> None:
        self._context = context
        self._of = of
        self._acquiring = False
        self.changed: Waiters[str] = Waiters()
        self.transferring_to: NodeId | None = None
        lease = of.state.lease
        # A lease found on disk or in a snapshot was this node's in a former life, or before its replica was replaced. What
        # was served under it is forgotten, and what was applied may not be here yet: it must be acquired anew, which
        # puts a command behind everything in the log. (The right half of a split goes on under its lease: `continued`.)
        mine = lease.holder == context.node_id
        self._former = lease.sequence if mine and not continued else None
        self._until = MIN
        self._until_of: tuple[Lease | None, Liveness | None] = (None, None)

    @property
    def by_expiration(self) -> bool:
        """Whether this range's leases are expiration-based."""
        return self._of.state.descriptor.range_id == FIRST_RANGE

    @property
    def duration_s(self) -> float:
        """Seconds that an expiration-based lease lasts."""
        return lasts_s(self._context.settings["lease.duration"], max_offset_us=self._context.clock.max_offset_us)

    def status(self, now: Timestamp) -> LeaseState:
        """What the current lease is worth."""
        lease = self._of.state.lease
        return lease_state(lease, self._record(lease, now), now=now, max_offset_us=self._context.clock.max_offset_us)

    def usable_until(self, now: Timestamp) -> Timestamp:
        """The first instant at which this node may no longer serve under the current lease; MIN: it may not now."""
        lease = self._of.state.lease
        record = self._record(lease, now)
        if (
            self._until_of[0] is not lease or self._until_of[1] is not record
        ):  # worked out once for each lease and record
            self._until = usable_until(lease, record, max_offset_us=self._context.clock.max_offset_us)
            self._until_of = lease, record
        return self._until

    def use(self, now: Timestamp) -> LeaseUse:
        """Whether this node may act under the current lease at `now`."""
        return self._use(self._of.state.lease, self.usable_until(now), now)

    def _use(self, lease: Lease, until: Timestamp, now: Timestamp) -> LeaseUse:
        if lease.holder != self._context.node_id:
            return LeaseUse.ELSEWHERE if lease.holder else LeaseUse.UNHELD
        if self.transferring_to is not None:
            return LeaseUse.MOVING
        if now >= until:
            return LeaseUse.ENDING
        if self.former:
            return LeaseUse.FORMER
        return LeaseUse.NOT_BEGUN if now < lease.start else LeaseUse.USABLE

    @property
    def former(self) -> bool:
        """Whether the current lease is of this node but of another life, its replica's or its process's: not of use here."""
        lease = self._of.state.lease
        strange = lease.holder == self._context.node_id and lease.life not in (0, self._context.life)
        return strange or lease.sequence == self._former

    def check(self, now: Timestamp) -> Timestamp:
        """Raise unless this node holds the lease now and may serve under it; returns until when (see `usable_until`)."""
        until = self.usable_until(now)
        use = self._use(self._of.state.lease, until, now)
        if use is not LeaseUse.USABLE:
            raise self._unusable(use)
        return until

    def _unusable(self, use: LeaseUse) -> NotLeaseholder:
        hints = {
            LeaseUse.ELSEWHERE: self._of.state.lease.holder,
            LeaseUse.MOVING: self.transferring_to or 0,
            LeaseUse.NOT_BEGUN: self._context.node_id,
        }
        return self.elsewhere(use.value, hints.get(use, 0))

    async def hold(self, *, within_s: float = NO_HURRY_S) -> None:
        """Return once this node may serve under the lease; raise `NotLeaseholder` when another one may.

        Waits no longer than `within_s`, or the setting: a request that waited for the lease in vain was not begun.
        """
        now = self._context.clock.now()
        use = self.use(now)
        if use in (LeaseUse.USABLE, LeaseUse.NOT_BEGUN):
            return
        if (use is LeaseUse.ELSEWHERE and self.status(now) in _NOT_OVER) or self.transferring_to is not None:
            raise self._unusable(use if self.transferring_to is None else LeaseUse.MOVING)
        seconds = min(within_s, self._context.settings["lease.acquire_timeout"])
        if self._acquiring:
            await self.changed.wait("lease", seconds=seconds)
        else:
            await self._acquire(seconds)
        self.check(self._context.clock.now())

    async def _acquire(self, seconds: float) -> None:
        self._context.trusted()
        self._check_entitled()
        assert not self._acquiring, "a lease is asked for once at a time"
        self._acquiring = True
        probe("lease.acquire")
        try:
            async with timeout(seconds):
                await self._request(await self._next())
        except TimeoutError:
            raise self.elsewhere("the lease could not be acquired in time", 0) from None
        finally:
            self._acquiring = False
            self.changed.tell("lease")

    async def _next(self) -> Lease:
        """The lease this node may ask for now."""
        held, own = self._of.state.lease, self._check_entitled()
        node, clock = self._context.node_id, self._context.clock
        if own is None:
            return next_expiration_lease(
                held, node, now=clock.now(), duration_s=self.duration_s, life=self._context.life
            )
        if held.holder == node and held.epoch == own.epoch:
            # Of the former life of the replica only: this process held it, and knows how far all that was served goes.
            await self._context.pass_by(self._context.hooks.reached())
        if held.holder not in {0, node}:
            record = self._context.liveness.get(held.holder)
            if record is None:
                raise self.elsewhere("the liveness of the lease's holder is not known", held.holder)
            if record.epoch == held.epoch:
                probe("lease.end_epoch")
                await self._context.liveness.end_epoch(record)
        # Another node that ended the old epoch did so at a clock reading past its expiration. The old holder served nothing in
        # the last moments before that, so now() is above all of it, however far this clock is behind. A holder that ended its
        # epoch itself served until it did so, by its own clock.
        record = self._context.liveness.get(held.holder)
        ended_at = record.ended_at if record is not None and record.epoch > held.epoch else MIN
        return next_epoch_lease(held, node, own.epoch, now=clock.now(), ended_at=ended_at, life=self._context.life)

    def _check_entitled(self) -> Liveness | None:
        """Raise unless this node may ask for the lease now; the record it stands on, where leases stand on records."""
        held = self._of.state.lease
        if self.by_expiration:
            if self.former and self.status(self._context.clock.now()) is not LeaseState.EXPIRED:
                # Something was served under it, up to a time that is not known; nothing was at or above its end.
                raise self.elsewhere("the lease of this node's former life has not ended yet", 0)
            return None
        own = self._context.liveness.own()
        if own is None:
            raise self.elsewhere("this node has no live liveness record", 0)
        if held.holder == self._context.node_id and held.epoch == own.epoch and not self.former:
            raise self.elsewhere("this node's liveness is being renewed", 0)
        return own

    async def _request(self, lease: Lease) -> None:
        assert lease.holder == self._context.node_id, "a node asks for leases for itself"
        before = LeaseSequence(lease.sequence - 1)
        command = Command(
            command_id=self._context.runtime.rng.bytes(COMMAND_ID_BYTES),
            lease_sequence=before,
            lai=NO_LAI,
            closed=MIN,
            min_write_ts=MIN,
            trigger=LeaseTrigger(lease),
        )
        range_id = self._of.state.descriptor.range_id
        payload = encode_packet(Packet(range_id, [command]))
        for _ in range(APPEND_ATTEMPTS_MAX):
            if self._of.state.lease.sequence != before:
                return
            try:
                await self._context.log.append(range_id, [payload])
                break
            except (AppendUnknown, Overloaded):
                await self._context.runtime.clock.sleep(0.05)
        while self._of.state.lease.sequence == before:
            await self.changed.wait("applied", seconds=1.0)

    def extension(self) -> LeaseExtension | None:
        """The extension this holder should propose now, if EXTEND_AFTER of the usable part of its lease is over."""
        lease, now = self._of.state.lease, self._context.clock.now()
        if lease.by_epoch or self.use(now) is not LeaseUse.USABLE:
            return None
        stasis_s = self._context.clock.max_offset_us / 1e6
        if seconds_between(now, lease.expiration) > self.duration_s - EXTEND_AFTER * (self.duration_s - stasis_s):
            return None
        try:
            self._context.trusted()
        except SlackwaterError:
            probe("lease.not_extended")  # this node can be of no use with it: let it end
            return None
        assert not lease.by_epoch, "only an expiration-based lease is extended"
        assert seconds_between(now, lease.expiration) <= self.duration_s, "an extension never shortens a lease (I-07)"
        return LeaseExtension(add_seconds(now, self.duration_s))

    def transfer(self, to: NodeId, *, served: Timestamp, life: int = 0) -> LeaseTrigger:
        """The trigger that hands the lease to `to`. Serving stops when it is proposed: see `transferring_to`.

        `served` is at or above every read that was noted here; it may be in the future. `life` is what the target's process
        says of itself: a node that was started again a moment ago has no use for a lease of its former life, and nor has
        any other node until that lease has ended.
        """
        state, now = self._of.state, self._context.clock.now()
        if to not in state.descriptor.replicas:
            raise UsageError(
                f"n{to} has no replica of r{state.descriptor.range_id}; add one first",
                replicas=state.descriptor.replicas,
            )
        record = self._context.liveness.get(to)
        if self.by_expiration:
            lease = Lease(
                to,
                LeaseSequence(state.lease.sequence + 1),
                now,
                expiration=add_seconds(now, self.duration_s),
                life=life or (0 if record is None else record.life),
            )
        else:
            if record is None or not record.live_at(now) or record.draining:
                raise UnavailableError(f"n{to} is not known to be live and taking leases")
            if life not in (0, record.life):
                probe("leases.target_started_again")
                raise UnavailableError(f"n{to} was started again and has not renewed its liveness record yet")
            lease = Lease(to, LeaseSequence(state.lease.sequence + 1), now, epoch=record.epoch, life=record.life)
        # Everything this node served as leaseholder: the new holder writes above that. What it has closed, however far in
        # the future, is in the applied state once the command is: its own closed timestamp is at or above that.
        assert lease.sequence == state.lease.sequence + 1, "lease sequences count up by one (I-07)"
        assert lease.holder in state.descriptor.replicas, "only a node with a replica holds the lease"
        assert lease.by_epoch != self.by_expiration, (
            "the first range's lease expires by itself, the others' end with an epoch"
        )
        return LeaseTrigger(lease, read_floor=Timestamp(max(now, served)))

    def release(self, *, served: Timestamp) -> LeaseTrigger | None:
        """The trigger that ends this node's own expiration-based lease; serving stops when it is proposed."""
        held, now = self._of.state.lease, self._context.clock.now()
        if held.by_epoch or self.use(now) is not LeaseUse.USABLE:
            return None
        sequence = LeaseSequence(held.sequence + 1)
        lease = Lease(held.holder, sequence, now, expiration=Timestamp(now + 1), life=held.life)
        assert lease.start < lease.expiration, "a released lease ends after it began"
        assert lease.sequence == held.sequence + 1, "lease sequences count up by one (I-07)"
        assert lease.holder == self._context.node_id, "a node releases its own lease"
        return LeaseTrigger(lease, read_floor=Timestamp(max(now, served)))

    def abandon(self) -> None:
        """Treat the lease as one of a former life: commands under it are undecided, and nothing may be evaluated beside them.

        It must be acquired anew, which puts a command behind everything in the log. That holds for a transfer or a release
        that was under way as well: its outcome is not waited for any more, and where no other node can take the lease, a
        node that went on waiting would never serve again.
        """
        lease = self._of.state.lease
        if lease.holder == self._context.node_id:
            self._former, self.transferring_to = lease.sequence, None
            assert self.former, "a lease that was given up is not used (I-07)"

    def applied(self) -> None:
        """The lease in the applied state changed."""
        self.transferring_to = None
        self.changed.tell("applied")
        self.changed.tell("lease")

    def _record(self, lease: Lease, now: Timestamp) -> Liveness | None:
        if not lease.epoch:  # expiration-based
            return None
        view = self._context.liveness
        # A node trusts its own record only while its heartbeats succeed.
        return view.own(now) if lease.holder == self._context.node_id else view.get(lease.holder)

    def elsewhere(self, reason: str, hint: int, **facts: object) -> NotLeaseholder:
        """The refusal that sends the caller to another replica."""
        return NotLeaseholder(reason, range_id=self._of.state.descriptor.range_id, hint=hint, reason=reason, **facts)
