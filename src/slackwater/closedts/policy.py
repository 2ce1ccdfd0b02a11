"""How far a range closes: the one formula per policy, and where a range's policy comes from.

    ────────┬───────────────────────────────┬───────────────────────────┬────────► time
       now − target_duration               now                     now + lead
            LAG: history is shared                            LEAD: the present is shared

LAG    Followers serve what is older than `closed_timestamp.target_duration`; writers feel nothing unless they are slower
       than that. A duration of 0 means off, never "no lag" (pitfall 15).
LEAD   A table that is read everywhere at *present* time: its writers write into the future and wait for it (commit wait),
       so that by the time the present gets there, every replica knows that nothing will change. The lead must cover the
       clock skew a reader may add, and the slower of the two ways in which a closed timestamp travels:

           lead = max_offset + slack + max(1.5 · rtt + apply            a command: to the log and on to the followers
                                           0.5 · rtt + interval + send)  the side transport: one tick late, one way

OFF    Nothing is closed.

A policy is a *name*, not a number: `ClosingPolicy(LAG)` follows the cluster's setting as it changes, so changing the setting
moves no range from one group of the side transport to another. A span may have its own duration, and a lead has the
round trip it was made for, in steps: neighbors in the same group then close the same timestamp, which is what makes
an idle tick cheap. The step is left only when the round trip is clearly outside of it, or ranges would flap.

Targets have logical part zero: "what is 50.5 − 5?" never needs an answer, and the bytes are saved.

    I-11  a published closed timestamp is at most the policy's target

Being wrong about a round trip or about skew costs a follower read that is sent to the leaseholder. It never costs a
wrong answer: the target says how far a range *wants* to close; the tracker and the lease say how far it may.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING

import msgspec

from slackwater.clock.timestamp import LOGICAL_BITS, MIN, Timestamp, add_seconds, floor
from slackwater.closedts.kinds import Scheme, scheme_of
from slackwater.config.zones import PolicyKind
from slackwater.errors import UsageError
from slackwater.settings import describe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from slackwater.model.ids import NodeId
    from slackwater.settings import Settings

SLACK_S = 0.025
"""Part of every lead: timers and queues are late by a little."""
APPLY_S = 0.020
"""From the log to the applied state of a follower, besides the way there."""
SEND_S = 0.010
"""From a tick of the side transport to its message being on the way."""
RTT_STEP_S = 0.020
"""Leads are made for round trips in steps of this much."""
RTT_STEPS_MAX = 16
LEAD_MAX_S = 5.0
"""Of `closed_timestamp.lead`, which may have been changed at a peer and not yet here."""
HYSTERESIS = 0.2
"""A step is left when the round trip is outside of it by this part of a step."""
assert describe("closed_timestamp.lead").safe[1] <= LEAD_MAX_S, "no lead that can be set is longer"
assert RTT_STEP_S * RTT_STEPS_MAX <= LEAD_MAX_S, "the longest round trip is shorter than the longest lead"
assert describe("closed_timestamp.side_transport_interval").default < (
    describe("closed_timestamp.target_duration").default
), "a range that lags is closed again before it has fallen behind by its lag"
assert describe("closed_timestamp.empty_command_interval").default < (
    describe("closed_timestamp.max_write_age").default
), "an idle range writes an empty command before its last write is as old as a write may be"
SPANS_MAX = 100_000
assert 0 < HYSTERESIS < 1, "a step is left before the next one is reached twice"
LEASE_GAP_S = 0.1
"""Of a lease's last part, nothing is closed: writes that go above what is closed need a place."""
_GAP = round(LEASE_GAP_S * 1_000_000) << LOGICAL_BITS
assert _GAP > 0, "some part of every lease is left to writes"


class ClosingPolicy(msgspec.Struct, frozen=True, array_like=True):
    """Which timestamps a range closes. Equal policies close equal timestamps."""

    kind: PolicyKind = PolicyKind.LAG
    duration_ms: int = 0
    """Of a lag, when the span has its own; 0: the cluster's."""
    rtt_step: int = 0
    """Of a lead: the step of the round trip to the furthest follower."""

    def status(self) -> str:
        """One word for logs and scripts."""
        if self.kind is PolicyKind.LAG:
            return f"lag={self.duration_ms}ms" if self.duration_ms else "lag"
        return f"lead@{self.rtt_step}" if self.kind is PolicyKind.LEAD else "off"


class Terms(msgspec.Struct, frozen=True):
    """The cluster's settings that policies are made of, all in seconds."""

    target_duration_s: float = 3.0
    max_offset_s: float = 0.5
    interval_s: float = 0.2
    lead_override_s: float = 0.0
    """Replaces the computed lead when it is not zero."""
    max_write_age_s: float = 10.0
    """Of the max-write-age scheme."""
    empty_interval_s: float = 1.0
    scheme: Scheme = Scheme.LOG_DRIVEN


def terms_of(settings: Settings) -> Terms:
    """The settings as they are now."""
    return Terms(
        target_duration_s=settings["closed_timestamp.target_duration"],
        max_offset_s=settings["clock.max_offset"],
        interval_s=settings["closed_timestamp.side_transport_interval"],
        lead_override_s=settings["closed_timestamp.lead"],
        max_write_age_s=settings["closed_timestamp.max_write_age"],
        empty_interval_s=settings["closed_timestamp.empty_command_interval"],
        scheme=scheme_of(settings["closed_timestamp.scheme"]),
    )


def write_age_s(policy: ClosingPolicy, terms: Terms) -> float:
    """How old a write may be under the max-write-age scheme: the zone's own lag, or the cluster's age; 0: nothing is closed."""
    if policy.kind is not PolicyKind.LAG or not (policy.duration_ms or terms.target_duration_s):
        return 0.0
    age_s = policy.duration_ms / 1000 or terms.max_write_age_s
    assert age_s > 0, "0 would mean that nothing is closed"
    return age_s


def longest_lead_s(terms: Terms) -> float:
    """No range is closed further ahead of its leaseholder's wall clock than this."""
    longest = lead_s(RTT_STEPS_MAX - 1, terms)
    assert longest >= lead_s(0, terms), "the longest way takes the longest lead"
    return longest


def closable_upto(lease_end: Timestamp) -> Timestamp:
    """The last timestamp that may be closed under a lease that can be used until `lease_end`.

    The gap leaves room for writes: they go above what is closed and below the end of the lease. Without it, a lead that is
    longer than what is left of the lease would close every timestamp there is to write at (pitfall 7).
    """
    assert lease_end >= 0, "the end of a lease is a timestamp"
    upto = Timestamp(max(MIN, lease_end - _GAP - 1))
    assert upto < lease_end or upto == MIN, "some part of every lease is left to writes (I-11)"
    return upto


def lead_s(rtt_step: int, terms: Terms) -> float:
    """How far ahead of now a range must close for present-time reads on replicas that far away."""
    assert 0 <= rtt_step < RTT_STEPS_MAX, "a step of the round trip"
    if terms.lead_override_s:
        return terms.lead_override_s
    assert terms.max_offset_s >= 0, "durations are not negative"
    assert terms.interval_s >= 0, "durations are not negative"
    rtt = (rtt_step + 0.5) * RTT_STEP_S
    command = 1.5 * rtt + APPLY_S
    side_transport = 0.5 * rtt + terms.interval_s + SEND_S
    lead = terms.max_offset_s + SLACK_S + max(command, side_transport)
    assert lead > terms.max_offset_s + rtt / 2, "a lead covers the clocks' difference and the way to the follower"
    return lead


def target(policy: ClosingPolicy, now: Timestamp, terms: Terms) -> Timestamp | None:
    """What the policy wants closed at `now`; None: nothing."""
    ahead_s = distance_s(policy, terms)
    return None if ahead_s is None else floor(add_seconds(now, ahead_s))


def distance_s(policy: ClosingPolicy, terms: Terms) -> float | None:
    """How far ahead of now, negative for behind, the policy wants closed; None: nothing."""
    if policy.kind is PolicyKind.LAG:
        lag = policy.duration_ms / 1000 or terms.target_duration_s
        assert lag >= 0, "a lag closes nothing of the future"
        return -lag if lag > 0 else None
    return lead_s(policy.rtt_step, terms) if policy.kind is PolicyKind.LEAD else None


def rtt_step(rtt_s: float, *, before: int | None = None) -> int:
    """The step that a measured round trip belongs to; `before` is kept unless the measurement is clearly outside."""
    step = min(int(max(rtt_s, 0.0) / RTT_STEP_S), RTT_STEPS_MAX - 1)
    if before is None or step == before:
        return step
    assert 0 <= step < RTT_STEPS_MAX, "a step of the round trip"
    margin = HYSTERESIS * RTT_STEP_S
    low, high = before * RTT_STEP_S - margin, (before + 1) * RTT_STEP_S + margin
    assert 0 <= before < RTT_STEPS_MAX, "the step before was one, too"
    return before if low <= rtt_s <= high else step


def follower_read_timestamp(
    now: Timestamp, terms: Terms, *, slack_s: float, policies: Sequence[ClosingPolicy] = (ClosingPolicy(),)
) -> Timestamp:
    """A timestamp that every follower of ranges with these policies has very likely closed.

    lag    target + one tick + slack ago; under the other schemes, what they need on top
    lead   now: a lead is made for that; less, if the setting made it shorter than the way to the followers takes
    off    there is none: `UsageError`
    """
    chosen = min(_served_by_followers(policy, now, terms, slack_s) for policy in policies)
    assert chosen <= now, "followers are not asked about the future"
    return chosen


def _served_by_followers(policy: ClosingPolicy, now: Timestamp, terms: Terms, slack_s: float) -> Timestamp:
    assert slack_s >= 0, "slack makes a read older, never younger than what followers have closed"
    if policy.kind is PolicyKind.LEAD:
        computed = msgspec.structs.replace(terms, lead_override_s=0.0)
        short_s = lead_s(policy.rtt_step, computed) - terms.max_offset_s - lead_s(policy.rtt_step, terms)
        return now if short_s <= 0 else floor(add_seconds(now, -short_s))
    lag_s = policy.duration_ms / 1000 or terms.target_duration_s
    if policy.kind is PolicyKind.OFF:
        raise UsageError("closing is off for this span (policy off), so followers serve no reads of it")
    if lag_s <= 0:
        raise UsageError("closing is off (closed_timestamp.target_duration = 0), so followers serve no reads")
    return floor(add_seconds(now, -(_behind_s(policy, lag_s, terms) + slack_s)))


def _behind_s(policy: ClosingPolicy, lag_s: float, terms: Terms) -> float:
    """How far behind now followers of a range with a lag are, by the scheme that closes it."""
    assert lag_s > 0, "a range with a lag closes"
    if terms.scheme is Scheme.MAX_WRITE_AGE:
        return write_age_s(policy, terms) + terms.empty_interval_s
    # A heartbeat of the store-wide scheme closes what the one before it aimed at.
    return lag_s + terms.interval_s * (2 if terms.scheme is Scheme.STORE_WIDE else 1)


def old_enough(policy: ClosingPolicy, now: Timestamp, terms: Terms, *, slack_s: float) -> Timestamp:
    """As `follower_read_timestamp` for one policy; MIN where nothing closes."""
    lag_s = policy.duration_ms / 1000 or terms.target_duration_s
    off = policy.kind is PolicyKind.OFF or (policy.kind is PolicyKind.LAG and lag_s <= 0)
    return MIN if off else _served_by_followers(policy, now, terms, slack_s)


class SpanPolicies:
    """Which policy holds where: disjoint spans, and a default between them."""

    def __init__(
        self, spans: Sequence[tuple[bytes, bytes, ClosingPolicy]] = (), *, default: ClosingPolicy | None = None
    ) -> None:
        if len(spans) > SPANS_MAX:
            raise UsageError("too many spans have a policy of their own; give neighbors one span", limit=SPANS_MAX)
        self._spans = sorted(spans, key=lambda span: span[0])
        self._starts = [start for start, _, _ in self._spans]
        for (_, end, _), (start, _, _) in zip(self._spans, self._spans[1:], strict=False):
            if start < end:
                raise UsageError("two spans with a policy overlap; split them first", start=start, end=end)
        self.default = default or ClosingPolicy()
        self._default_configured = default is not None

    def of(self, start: bytes, end: bytes, terms: Terms) -> ClosingPolicy:
        """The policy of a range: where several hold, the one that promises least."""
        found, gaps = self._meeting(start, end)
        assert found or gaps, "a span meets policies, or lies between them"
        if gaps:
            found.append(self.default)
        assert found, "every span has a policy, if only the default"
        return min(found, key=lambda policy: _promise_s(policy, terms))

    def configured(self, start: bytes, end: bytes) -> bool:
        """Whether all of a span has a policy that was given to it, not just the one that all have from the start."""
        return self._default_configured or not self._meeting(start, end)[1]

    def _meeting(self, start: bytes, end: bytes) -> tuple[list[ClosingPolicy], bool]:
        """The policies of spans that meet this one, and whether some of it lies between them."""
        first = max(bisect_right(self._starts, start) - 1, 0)
        found: list[ClosingPolicy] = []
        covered, gaps = start, False
        for low, high, policy in self._spans[first:]:
            if low >= end:
                break
            if high <= start:
                continue
            gaps = gaps or low > covered
            found.append(policy)
            covered = high
        return found, gaps or covered < end


class PolicyBook:
    """The policies in force on one node; replaced as a whole when the span configuration or a round trip changes.

    A lead is made for the followers a range has: the span's policy names the step of the furthest node there is, and a
    range whose followers are all nearer takes the step of the furthest of them. At most `RTT_STEPS_MAX` groups of the
    side transport come of it. A follower that was not measured yet counts as the furthest.
    """

    def __init__(self) -> None:
        self.spans = SpanPolicies()
        self.steps: Mapping[NodeId, int] = {}
        self.version = 0

    def replace(self, spans: SpanPolicies, *, steps: Mapping[NodeId, int] | None = None) -> None:
        """Replace the policies. The caller also has every range asked anew (`Sender.touch_all`)."""
        self.spans = spans
        self.steps = steps or {}
        assert all(0 <= step < RTT_STEPS_MAX for step in self.steps.values()), "steps of round trips"
        self.version += 1

    def of(self, start: bytes, end: bytes, terms: Terms, *, followers: Iterable[NodeId]) -> ClosingPolicy:
        """The policy of a range that is led here and followed there."""
        policy = self.spans.of(start, end, terms)
        if policy.kind is not PolicyKind.LEAD:
            return policy
        far = [self.steps.get(node, policy.rtt_step) for node in followers]
        assert all(0 <= step < RTT_STEPS_MAX for step in far), "steps of round trips"
        return ClosingPolicy(PolicyKind.LEAD, 0, max(far, default=0))


def _promise_s(policy: ClosingPolicy, terms: Terms) -> float:
    """How much a policy promises: the distance of its target from now, in seconds."""
    if policy.kind is PolicyKind.LEAD:
        return lead_s(policy.rtt_step, terms)
    lag = policy.duration_ms / 1000 or terms.target_duration_s
    return -lag if policy.kind is PolicyKind.LAG and lag > 0 else -math.inf
