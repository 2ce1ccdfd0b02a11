"""A feed over many ranges, killed after any step and restored from its token: the union of its deliveries has no gap.

The model of a driver: an initial scan at one timestamp, span by span, then changes span by span; a token after every step.
"""

from __future__ import annotations

from itertools import pairwise

from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.feeds.frontier import Frontier, Progress, decode_token, frontier_from, token_of
from slackwater.feeds.validate import Validators
from slackwater.model.spans import Span
from slackwater.protocol.feeds.events import Changes, Resolved
from slackwater.sim.mutants import applied

WHOLE = Span(b"\x01", b"\x09")
SCAN = Timestamp(10)
END = Timestamp(20)
QUICK = settings(max_examples=2000, database=None, phases=[Phase.generate])

versions = st.sets(st.tuples(st.integers(1, 8), st.integers(1, int(END))), max_size=25)
steps = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 6), st.booleans(), st.booleans()), max_size=25)
stories = st.tuples(versions, st.sets(st.integers(2, 8), max_size=3), steps)


def table_at(history, ts):
    rows = {bytes([key]): at for key, at in sorted(history, key=lambda v: v[1]) if at <= ts}
    return sorted((key, b"v%d" % at) for key, at in rows.items())


def deliver(history, progress: Progress, to: int) -> tuple[Changes, Timestamp]:
    """What a range has to say of a span: the table as of the scan, or every version in (after, to]."""
    span, after = progress
    keys = [k for k in range(1, 9) if bytes([k]) in span]
    if after < SCAN:
        to = SCAN
        found = [(k, max(at for key, at in history if key == k and at <= SCAN)) for k in keys
                 if any(key == k and at <= SCAN for key, at in history)]  # fmt: skip
    else:
        found = sorted((k, at) for k, at in history if k in keys and after < at <= to)
    return Changes(
        [bytes([k]) for k, _ in found], [at for _, at in found], [b"v%d" % at for _, at in found]
    ), Timestamp(to)


def consume(story) -> Validators:
    history, cuts, steps = story
    bounds = [1, *sorted(cuts), 9]
    ranges = [Span(bytes([a]), bytes([b])) for a, b in pairwise(bounds)]
    frontier = Frontier([WHOLE])
    validators = Validators([WHOLE], table_at=lambda ts: table_at(history, ts))
    scan_ts = SCAN
    for which, further, killed, split in [*steps, *((i, 99, False, False) for i in range(40))]:
        if killed:
            frontier = frontier_from(decode_token(token_of(frontier, scan_ts=scan_ts).encode()), [WHOLE])
            validators.restarted()
        points = [
            Progress(part, ts)
            for span, ts in frontier.resume_points()
            for r in (ranges if not split else [WHOLE])
            if (part := span.intersect(r)) is not None
        ]
        progress = points[which % len(points)]
        changes, upto = deliver(history, progress, min(int(progress.ts) + further, END))
        validators.event(changes, progress.span)
        if frontier.forward(progress.span, upto) and frontier.resolved >= SCAN:
            scan_ts = MIN
        validators.event(Resolved(upto), progress.span)
    assert frontier.resolved == END
    return validators


@settings(max_examples=100)
@given(stories)
def test_no_gap_whenever_it_is_killed(story) -> None:
    validators = consume(story)
    assert not validators.breaches, validators.breaches
    assert list(validators.mirror.table_at(END)) == table_at(story[0], END)


def test_the_planted_bugs_of_resuming_are_found() -> None:
    for bug in ("M12", "M13"):
        with applied([bug]):
            try:
                found = find(stories, lambda story: bool(broken(story)), settings=QUICK)
            except NoSuchExample:
                raise AssertionError(f"{bug} survives") from None
        assert not broken(found), "without the bug the same story is fine"


def broken(story) -> list:
    try:
        return consume(story).breaches
    except AssertionError as error:
        return [error]
