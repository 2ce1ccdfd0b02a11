"""Evaluating garbage collection: the threshold first, through the log; deletions afterwards (pitfall 18).

    RaiseGcThreshold   how far, and what is kept below: decided here, by what this leaseholder knows
    GcVersions         single versions, each held against the range's threshold and what it keeps
    GcSpan             a span in which nothing stays; checked off the loop, while its latch is held, by `prepare_span`

A request to collect was computed earlier, perhaps before a split (pitfall 36). It is held against the range as it is now, and
its command carries the range's generation: where that has changed before it applies, it does nothing.

What may be collected (seed 003). `Permit.target` is the time of the older of two readings, the protections and the zone
configuration, less the time to live and the maximum clock offset: nothing at or below it can be protected any more by a
transaction that was not seen. Both must be known, and the protections must have been read after the lease began and after
the configuration was written; otherwise there is no permit, and nothing is collected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.errors import UsageError
from slackwater.hooks import probe, tap
from slackwater.model.retention import decide, entries, stretches
from slackwater.protocol.log.commands import GcTrigger
from slackwater.protocol.range import requests
from slackwater.replica.state import VERSIONS
from slackwater.runtime.seam import Family
from slackwater.storage import gc
from slackwater.storage.versions import suffix, tail_key

if TYPE_CHECKING:
    from slackwater.model.retention import Stretch
    from slackwater.protocol.range.requests import Result
    from slackwater.replica.evaluation import Work
    from slackwater.replica.state import RangeState
    from slackwater.runtime.seam import Engine

GC_VERSIONS_MAX = 5_000
"""Deletions in one command."""


def raise_threshold(work: Work, request: requests.RaiseGcThreshold) -> Result:
    """Refuse reads at or below a timestamp from now on, but for what protections keep."""
    state = work.view.state
    permit = work.view.retention.permit(state)
    allowed = decide(state.retained, permit.protections, target=permit.target)
    if request.threshold > allowed.threshold:
        raise UsageError(
            "the threshold lies above what time to live and protections allow; nothing was changed",
            threshold=request.threshold,
            allowed=allowed.threshold,
        )
    threshold = Timestamp(max(state.gc_threshold, request.threshold))
    tap("gc.raising", state, work.view.retention, threshold)
    kept = entries(state.retained, permit.protections, target=permit.target, threshold=threshold)
    if (threshold, kept) != (state.gc_threshold, state.kept):
        assert threshold <= max(allowed.threshold, state.gc_threshold), "no more goes than the rule allows (I-26)"
        work.evaluation.trigger = GcTrigger(gc_threshold=threshold, kept=kept)
        work.evaluation.generation = state.descriptor.generation
    return requests.Done()


def gc_versions(work: Work, request: requests.GcVersions) -> Result:
    """Remove single versions below the threshold, which must have been raised before."""
    state = work.view.state
    points = [gc.GcPoint(key, tuple(times)) for key, times in request.keys]
    points += [gc.GcPoint(key, tuple(times), vanishing=True) for key, times in request.vanishing]
    if len({point.key for point in points}) < len(points):
        raise UsageError("a key is named twice; name it once with all its versions that are to go")
    if sum(len(point.timestamps) for point in points) > GC_VERSIONS_MAX:
        raise UsageError(f"at most {GC_VERSIONS_MAX} versions are collected at once; divide the request")
    collected = gc.collect_keys(work.reader, work.effects, points, stretches=_stretches(state))
    assert 0 <= collected.versions <= GC_VERSIONS_MAX, "no more versions go than were named"
    assert collected.stats.live_bytes == collected.stats.live_keys == 0, "what is collected was not live (I-26)"
    assert collected.stats.intents == 0, "an intent is never collected (I-26)"
    work.evaluation.add_stats(collected.stats)
    work.evaluation.generation = state.descriptor.generation
    return requests.Number(collected.versions)


def gc_span(work: Work, request: requests.GcSpan) -> Result:
    """Remove a span of which nothing has to stay. Its numbers were found by `prepare_span`, under the same latches."""
    found = work.view.prepared
    if not found:
        raise UsageError("something in this span has to stay; collect it version by version", start=request.start)
    probe("gc.span")
    if request.start[-1:] == b"\x00" and gc.versions_of(work.reader, request.start[:-1]):
        raise UsageError("a span to collect begins at a key, not between a key and its versions", start=request.start)
    work.effects.delete_range(Family.DATA, request.start, request.end)
    tail = tail_key(request.start, request.end)
    if tail is not None and tail >= request.start:
        for ts, _ in gc.versions_of(work.reader, tail):  # they sort at or after the end
            work.effects.delete(Family.DATA, tail + suffix(ts))
    assert found[VERSIONS] >= 0, "versions are counted"
    work.evaluation.add_stats(tuple(-n for n in found))
    work.evaluation.generation = work.view.state.descriptor.generation
    return requests.Number(found[VERSIONS])


def prepare_span(engine: Engine, state: RangeState, request: requests.GcSpan, dropped_at: Timestamp) -> tuple[int, ...]:
    """The statistics of a span that may go as a whole; empty when it may not. Long: to be called off the loop.

    Of a dropped table everything may go once no read can reach it any more: when the threshold has passed the drop, and
    no protection keeps anything of it.
    """
    inside = stretches(state.gc_threshold, state.kept, request.start, request.end)
    plain = all(s.floor == state.gc_threshold and not s.instants for s in inside)
    dropped = MIN < dropped_at <= state.gc_threshold and plain
    stats = gc.check_clear(engine, request.start, request.end, stretches=None if dropped else inside)
    return () if stats is None else tuple(stats)


def _stretches(state: RangeState) -> list[Stretch]:
    return stretches(state.gc_threshold, state.kept, state.descriptor.start, state.descriptor.end)
