"""Planted bugs of garbage collection: bounds, copies and leases that are not looked at."""

from __future__ import annotations

from slackwater.sim.mutants.patch import BODY, Patch
from slackwater.sim.scenario import PlantedBug, plant

plant(
    PlantedBug(
        "M19",
        "a span that was found empty before a split is cleared after it, whichever range writes there now",
        play="collecting",
        expected=("I-26",),
        patches=(
            Patch(
                "slackwater.replica.evaluate_gc:prepare_span",
                BODY,
                "return tuple(gc.check_clear(engine, request.start, request.end, stretches=None) or ())",
            ),
            Patch(
                "slackwater.replica.admission:check_bounds",
                "not descriptor.covers(span.start, span.end)",
                "not descriptor.covers(span.start, span.end) and type(batch.requests[0]) is not requests.GcSpan",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "M20",
        "garbage is collected by the present clock and whichever protections were read some time ago",
        play="collecting",
        expected=("I-26", "I-27"),
        settings={"protected_timestamp.refresh_interval": 20.0, "gc.slack": 0.5},
        patches=(
            Patch(
                "slackwater.server.retention:NodeRetention.permit",
                "add_seconds(Timestamp(min(read_at, zones.read_at)), -back_s)",
                "add_seconds(Timestamp(max(read_at, zones.read_at, state.closed)), -back_s)",
            ),
            Patch("slackwater.server.retention:NodeRetention.permit", "read_at <= needed", "read_at == MIN"),
            Patch("slackwater.server.queues.gc:GcRun._freshen", BODY, "return"),
        ),
    )
)
plant(
    PlantedBug(
        "M23",
        "a range with a protection from before its lease began is not collected at all",
        play="collecting",
        expected=("I-28",),
        patches=(
            Patch(
                "slackwater.server.retention:NodeRetention.permit",
                "read_at <= needed",
                "min([read_at, *(record.ts for record in records)]) <= needed",
            ),
        ),
    )
)
