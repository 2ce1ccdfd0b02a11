"""What feeds deliver, against V (I-22 … I-25).

    I-22   whenever a consumer is told that everything up to r has arrived: the versions delivered in (after, r] are exactly
           those of V, and the table rebuilt from them is the table of V at r
    I-23   nothing new at or below a resolved timestamp; it never goes back; checked by the consumer's validators, by the
           feed's own assertions, and against V as it grows: a version that is first applied at or below what a live
           replica has resolved could never be delivered
    I-24   per key, first deliveries ascend, and repeats are equal: the consumer's validators
    I-25   changes after a restart fit those before it, and what was said to be flushed was: the same comparison with V
           for a consumer with a sink, over all its lives. What its feed sent within one life is checked before the sink: a
           late event there is the feed's (I-23), one that only the sink brings late is the consumer's

V is what any replica applied first, so it has every version that a feed may have resolved past.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.layout import split_version
from slackwater.runtime.seam import Family
from slackwater.sim.oracles.following import decided
from slackwater.sim.oracles.replication import _Watcher
from slackwater.sim.scenarios.cluster_plan import KV_SPAN

if TYPE_CHECKING:
    from slackwater.model.spans import Span
    from slackwater.sim.oracles.witness import ApplyEvent
    from slackwater.sim.scenarios.feeds_work import Seen
    from slackwater.sim.world import World

SHOWN_MAX = 3


class FeedHistory(_Watcher):
    """I-22 to I-25."""

    name = "I-22"

    def __init__(self) -> None:
        self._times: list[tuple[int, bytes]] = []
        """(ts, key) of every version, in order."""
        self._values: dict[tuple[bytes, int], bytes] = {}
        self.last = MIN
        """The newest version so far."""

    def attach(self, world: World) -> None:
        """Watch applies, and feeds that break a rule of their own."""
        super().attach(world)
        world.facts["feed history"] = self
        world.taps["feeds.broken"] = lambda _, error: world.loop.fail(error)

    def applied(self, event: ApplyEvent) -> None:
        """Take the versions of an entry that is new."""
        if not event.first:
            return
        for stored, value in event.batch.writes[Family.DATA].items():
            if value is None or not KV_SPAN[0] <= stored < KV_SPAN[1]:
                continue
            key, ts = split_version(stored)
            if (key, ts) not in self._values:
                self._values[key, ts] = value
                insort(self._times, (ts, key))
                self.last = Timestamp(max(self.last, ts))

    # --- what consumers ask for ----------------------------------------------------------------------------------------

    def look(self, seen: Seen, *, last: bool = False) -> None:
        """A consumer has come to a checkpoint: what the one before it claimed is compared, with the last one its own too.

        One checkpoint late, because what is late is told apart from what never comes: an event that follows the timestamp
        that should have followed it breaks I-23, one that is missing breaks I-22. One that says "flushed" is taken at its
        word at once: a change that arrives later was not (I-25).
        """
        for breach in seen.arrived.breaches if seen.arrived is not None else ():
            self.world.violated(breach.rule, "feed", f"{seen.name} was sent: {breach}")
        for breach in seen.validators.breaches:
            # Behind a sink it is the consumer who claims: an event that comes later had not been flushed. What the feed
            # itself sent too late was found above.
            rule = "I-25" if seen.flushes and breach.rule == "I-23" else breach.rule
            self.world.violated(rule, "feed", f"{seen.name}: {breach}")
        upto = seen.resolved if last or seen.flushes else seen.claimed
        if upto > max(seen.checked, seen.after):
            self.compare(seen, after=Timestamp(max(seen.checked, seen.after)), upto=upto)
            seen.checked = upto
        seen.claimed = seen.resolved

    def scanned(self, seen: Seen, scan_ts: Timestamp) -> None:
        """An initial scan is complete: what it handed out is the table as of then."""
        rows: dict[bytes, bytes] = {}
        newest: dict[bytes, int] = {}
        for ts, key in self._times[: bisect_right(self._times, (scan_ts, b"\xff"))]:
            rows[key], newest[key] = self._values[key, ts], ts
        expected = {key: value for key, value in rows.items() if value}
        found = dict(seen.validators.mirror.table_at(scan_ts))
        if found != expected:
            differing = sorted(
                k
                for k in found.keys() | expected.keys()
                if found.get(k) != expected.get(k)
                and found.get(k) not in decided(self.world, k, after=newest.get(k, MIN), upto=scan_ts)
            )
        if found != expected and differing:
            text = f"{seen.name}: the initial scan at {scan_ts} differs from the table in {differing[:SHOWN_MAX]!r}"
            self.world.violated("I-25", "scan", text, keys=len(differing))

    def compare(self, seen: Seen, *, after: Timestamp, upto: Timestamp, span: Span | None = None) -> None:
        """The versions delivered in (after, upto] are those of V."""
        low, high = bisect_right(self._times, (after, b"\xff")), bisect_right(self._times, (upto, b"\xff"))
        expected = {(key, ts) for ts, key in self._times[low:high] if span is None or key in span}
        mirror = seen.validators.mirror.versions
        delivered = {
            (key, int(ts)): value for key, times in mirror.items() for ts, value in times.items() if after < ts <= upto
        }
        rule = "I-25" if seen.flushes else "I-22"
        missing = sorted(expected - delivered.keys())
        if missing:
            text = f"{seen.name} resolved {upto} without {missing[:SHOWN_MAX]!r}"
            self.world.violated(rule, "gap", text, missing=len(missing), after=after)
        for (key, ts), value in delivered.items():
            if self._values.get((key, ts)) != value:
                self.world.violated(
                    rule, "invented", f"{seen.name} got {key!r} at {ts} with a value that was never committed"
                )
