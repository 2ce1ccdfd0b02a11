"""Planted bugs of change feeds: timestamps resolved too early, changes lost, repeated or out of order."""

from __future__ import annotations

from slackwater.sim.mutants.patch import BODY, Patch
from slackwater.sim.scenario import PlantedBug, plant

_REGISTRATION = "slackwater.feeds.registration:Registration"
_CHANGES = "slackwater.gateway.changes"

plant(
    PlantedBug(
        "M10",
        "resolved = closed, ignoring unresolved intents",
        play="feeds",
        expected=("I-23",),
        patches=(
            Patch(
                "slackwater.feeds.resolved:ResolvedTimestamp.advance",
                "self.closed if oldest is None else Timestamp(min(self.closed, oldest - 1))",
                "self.closed",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "M11",
        "a missing record is taken for an abort by a follower that lags",
        play="feeds_lag",
        expected=("I-22", "I-23"),
        patches=(Patch("slackwater.feeds.resolved:ResolvedTimestamp.pushed", "not ambiguous", "True"),),
    )
)
plant(
    PlantedBug(
        "M12",
        "a feed resumes one tick late",
        play="feeds",
        expected=("I-25",),
        patches=(
            Patch(
                "slackwater.feeds.frontier:Frontier.resume_points",
                "list(self.entries())",
                "[Progress(span, Timestamp(ts + 1)) for span, ts in self.entries()]",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "M13",
        "a resumed initial scan skips what was not scanned",
        play="feeds",
        expected=("I-22", "I-25"),
        patches=(
            Patch(
                "slackwater.feeds.frontier:frontier_from",
                "return frontier",
                """
if token.scan_ts and token.ahead:
    frontier.forward_all(min(ts for _, _, ts in token.ahead))
return frontier
""",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "M14",
        "done is reported before the sink has everything",
        play="feeds",
        expected=("I-25",),
        patches=(Patch("slackwater.changefeed.sink:Sink.flush", BODY, "return"),),
    )
)
plant(
    PlantedBug(
        "M15",
        "a retried block is emitted behind its successor",
        play="feeds",
        expected=("I-24",),
        patches=(
            Patch(
                "slackwater.changefeed.sink:Sink._run",
                "await self._runtime.clock.sleep(backoff.next())",
                """
self._blocks.rotate(-1)
await self._runtime.clock.sleep(backoff.next())
""",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "M16",
        "resolved timestamps overtake events",
        # Not in `feeds_tight`: a consumer cut off there resumes after a timestamp that overtook, and misses the events (I-22).
        play="feeds",
        expected=("I-23",),
        patches=(
            Patch(f"{_REGISTRATION}.resolve", "self._out and isinstance(self._out[-1][0], Resolved)", "False"),
            Patch(
                f"{_REGISTRATION}.resolve",
                "self._append(Resolved(ts))",
                """
self._out.appendleft((Resolved(ts), EVENT_SIZE_MIN))
self._charge(EVENT_SIZE_MIN)
""",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "M17",
        "events are dropped when a slow consumer's buffer is full",
        play="feeds_tight",
        expected=("I-22",),
        patches=(Patch(f"{_REGISTRATION}._overflow", BODY, "return"),),
    )
)
plant(
    PlantedBug(
        "M18",
        "a feed from just below the GC threshold misses a deletion",
        play="feeds_gc",
        expected=("I-22", "I-17"),
        patches=(
            Patch(
                "slackwater.feeds.rangefeed:RangeFeed._too_old",
                "registration.after >= floor",
                "registration.after >= floor - 1",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "X-FEED-COLLECTED",
        "a replica that catches up applies a commit and its collection together, and its feed tells of neither",
        play="feeds_behind",
        expected=("I-22", "I-25"),  # a consumer that came back names the second
        patches=(Patch("slackwater.feeds.attached:_collects", BODY, "return False"),),
    )
)
plant(
    PlantedBug(
        "X-TOKEN-AHEAD",
        "a feed's token goes on behind the highest rows handed out, not from `resolved`",
        play="feeds_tables",
        expected=("I-25",),
        patches=(
            Patch(
                f"{_CHANGES}:TableFeed.items",
                "self._token(self._frontier.resolved, scan_ts=self._scan_ts)",
                "position",
            ),
            Patch(
                f"{_CHANGES}:TableFeed.items",
                "self._token(resolved, scan_ts=scan_ts)",
                "position",
            ),
            Patch(
                f"{_CHANGES}:TableFeed._checkpoint",
                "self._token(resolved)",
                "position or self._token(resolved)",
            ),
        ),
    )
)
