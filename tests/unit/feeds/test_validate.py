"""Validators notice what they are for, and nothing else."""

import pytest

from slackwater.clock.timestamp import Timestamp
from slackwater.feeds.validate import BREACHES_MAX, Validators, fingerprint
from slackwater.model.spans import Span
from slackwater.protocol.feeds.events import Changes, Ended, EndReason, Resolved

SPAN = Span(b"a", b"z")
LEFT, RIGHT = Span(b"a", b"m"), Span(b"m", b"z")


def put(key, ts, value=b"v", before=None):
    return Changes([key], [ts], [value], None if before is None else [before])


def resolved(ts):
    return Resolved(Timestamp(ts))


def rules(events, **options):
    validators = Validators([SPAN], **options)
    for event in events:
        if event == "restart":
            validators.restarted()
        else:
            validators.event(event, SPAN)
    return sorted({b.rule for b in validators.breaches})


GOOD = [put(b"a", 5), put(b"b", 3), resolved(4), put(b"a", 6), resolved(6), Ended(EndReason.CANCELED, Timestamp(6))]


@pytest.mark.parametrize(
    ("events", "broken"),
    [
        (GOOD, []),
        ([*GOOD, "restart", put(b"b", 3), put(b"a", 6), resolved(5), put(b"a", 7), resolved(9)], []),
        ([put(b"a", 5), put(b"a", 4)], ["I-24"]),
        ([put(b"a", 5), put(b"a", 5, b"other")], ["I-24"]),
        ([put(b"a", 5), resolved(6), put(b"b", 6)], ["I-23"]),
        ([put(b"a", 5), resolved(6), put(b"a", 5)], []),
        ([resolved(6), resolved(5)], ["I-23"]),
        ([resolved(6), "restart", resolved(5), put(b"b", 6)], ["I-23"]),
        ([put(b"zz", 5)], ["I-22"]),
        ([put(b"a", 5, b"x", b""), put(b"a", 6, b"y", b"x"), put(b"a", 7, b"", b"y"), put(b"a", 8, b"z", b"")], []),
        ([put(b"a", 5, b"x", b""), put(b"a", 6, b"y", b"w")], ["I-22"]),
    ],
)
def test_rules(events, broken):
    assert rules(events) == broken


def test_versions_are_read_again():
    source = {(b"a", 5): b"v"}
    assert rules([put(b"a", 5)], read=lambda k, ts: source.get((k, ts))) == []
    assert rules([put(b"a", 6)], read=lambda k, ts: source.get((k, ts))) == ["I-22"]


def test_the_rebuilt_table_is_compared_at_every_resolved_timestamp():
    tables = {4: [(b"b", b"v")], 6: [(b"a", b"v"), (b"b", b"v")]}
    assert rules(GOOD, table_at=lambda ts: tables[ts]) == []
    tables[6] = [(b"a", b"v")]
    assert rules(GOOD, table_at=lambda ts: tables[ts]) == ["I-22"]


def test_a_base_and_a_comparison_that_comes_later():
    validators = Validators([SPAN], after=Timestamp(2), base=[(b"q", b"old")])
    validators.event(put(b"a", 5), SPAN)
    validators.event(resolved(7), SPAN)
    assert validators.fingerprints.digests == {7: fingerprint([(b"a", b"v"), (b"q", b"old")])}
    validators.fingerprints.compare(Timestamp(7), [(b"a", b"v"), (b"q", b"old")])
    assert validators.breaches == []
    validators.fingerprints.compare(Timestamp(7), [(b"a", b"v")])
    assert "I-22" in str(validators.breaches[0])


def test_spans_resolve_on_their_own_and_the_whole_is_their_minimum():
    validators = Validators([LEFT, RIGHT])
    validators.event(resolved(9), LEFT)
    validators.event(put(b"x", 5), RIGHT)
    validators.event(resolved(7), RIGHT)
    assert list(validators.fingerprints.digests) == [7]
    assert validators.breaches == []
    validators.event(put(b"b", 9), LEFT)
    assert [b.rule for b in validators.breaches] == ["I-23"]


def test_the_first_breaches_are_kept():
    validators = Validators([SPAN])
    for _ in range(2 * BREACHES_MAX):
        validators.event(put(b"zz", 5), SPAN)
    assert len(validators.breaches) == BREACHES_MAX
