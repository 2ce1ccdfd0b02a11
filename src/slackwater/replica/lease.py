"""The state of a lease at an instant, and the next lease that may be asked for.

    ──────────── VALID ────────────┬── STASIS ──┬──────── EXPIRED ────────►  time
                       end - max_offset        end

In stasis the holder serves nothing: another node's clock may already be past the end. After the end any node with a replica
may ask for the next lease; for an epoch-based one it first ends the epoch in the holder's liveness record, so that the
end can no longer move (I-07). A record that is not known is neither live nor dead: *unknown ⇒ do not declare dead*.

A lease or record that lasts no longer than the clocks' error is in stasis from its first instant: its holder would take it
again and again, and never serve. So each lasts at least `lasts_s`, whatever the settings say.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import LOGICAL_BITS, MAX, MIN, Timestamp, add_seconds
from slackwater.model.descriptors import Epoch, Lease, LeaseSequence, Liveness

if TYPE_CHECKING:
    from slackwater.model.ids import NodeId

USABLE_S_MIN = 0.5
"""Of every lease and liveness record, at least so much comes before its stasis: time to write, to close and to renew."""


class LeaseState(enum.Enum):
    """What a lease is worth at an instant."""

    VALID = "valid"
    STASIS = "stasis"
    EXPIRED = "expired"
    UNKNOWN = "unknown"
    NONE = "none"


def lasts_s(wanted_s: float, *, max_offset_us: int) -> float:
    """Seconds that a lease or liveness record lasts when its setting asks for `wanted_s`: at least half of it is of use."""
    assert wanted_s >= 0, "durations are not negative"
    assert max_offset_us >= 0, "durations are not negative"
    offset_s = max_offset_us / 1e6
    return max(wanted_s, 2 * offset_s, offset_s + USABLE_S_MIN)


def lease_end(lease: Lease, liveness: Liveness | None) -> Timestamp | None:
    """When the lease ends as far as is known; None when that is not known."""
    if not lease.epoch:  # expiration-based
        return lease.expiration
    if liveness is None or liveness.epoch < lease.epoch:
        return None
    # A higher epoch ended this lease; when it ended is not recorded, but every later lease starts after that.
    return liveness.expiration if liveness.epoch == lease.epoch else MIN


def lease_state(lease: Lease, liveness: Liveness | None, *, now: Timestamp, max_offset_us: int) -> LeaseState:
    """What the lease is worth at `now`; `liveness` is the holder's record."""
    if lease.holder == 0:
        return LeaseState.NONE
    end = lease_end(lease, liveness)
    if end is None:
        return LeaseState.UNKNOWN
    if now >= end:
        return LeaseState.EXPIRED
    return LeaseState.STASIS if now >= end - (max_offset_us << LOGICAL_BITS) else LeaseState.VALID


def usable_until(lease: Lease, liveness: Liveness | None, *, max_offset_us: int) -> Timestamp:
    """The first instant at which the holder may no longer serve."""
    assert max_offset_us >= 0, "a bound on skew is not negative"
    end = lease_end(lease, liveness)
    return MIN if end is None else Timestamp(max(MIN, end - (max_offset_us << LOGICAL_BITS)))


def next_expiration_lease(held: Lease, node: NodeId, *, now: Timestamp, duration_s: float, life: int = 0) -> Lease:
    """The expiration-based lease that `node`, in this life of its process, may request after `held`."""
    assert duration_s > 0, "a lease lasts"
    same = (held.holder, held.life) == (node, life)
    start = now if same else Timestamp(max(now, held.expiration + 1))
    assert same or start > held.expiration, "leases of different holders do not overlap (I-07)"
    lease = Lease(node, LeaseSequence(held.sequence + 1), start, Epoch(0), add_seconds(start, duration_s), life)
    assert lease.start < lease.expiration, "a lease lasts"
    return lease


def next_epoch_lease(
    held: Lease, node: NodeId, epoch: Epoch, *, now: Timestamp, ended_at: Timestamp, life: int = 0
) -> Lease:
    """The epoch-based lease that `node` may request; `ended_at` is the last instant the old holder may have served."""
    assert epoch > 0, "epoch 0 means a lease that expires"
    start = Timestamp(min(MAX - 1, max(now, ended_at + 1)))
    assert start >= min(now, MAX - 1), "a lease begins no earlier than it is asked for"
    return Lease(node, LeaseSequence(held.sequence + 1), start, epoch, life=life)
