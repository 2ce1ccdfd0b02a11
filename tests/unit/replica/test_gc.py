"""Collecting history in a range: what a leaseholder allows, what is kept, and what changes of the range do to it."""

from __future__ import annotations

import msgspec
import pytest

from slackwater.clock.timestamp import MAX, Timestamp
from slackwater.errors import BelowGcThreshold, RetryableError, UsageError
from slackwater.model.protection import Kept
from slackwater.model.retention import KEPT_MAX, Decision, Retained, decide, joined, readable
from slackwater.protocol.log.commands import GcTrigger
from slackwater.protocol.range.requests import (
    Delete,
    Export,
    GcSpan,
    GcVersions,
    Get,
    Number,
    Put,
    RaiseGcThreshold,
    Refresh,
    Request,
    Scan,
)
from slackwater.replica import evaluate_gc
from slackwater.replica.evaluation import Permit
from slackwater.replica.state import decode_state, encode_state
from slackwater.runtime.seam import Family
from slackwater.storage.stats import Stats, recompute
from tests.unit.replica.test_evaluate import STATE, Bench, txn

WHOLE = (STATE.descriptor.start, STATE.descriptor.end)


def kept(ts: int, start: bytes = WHOLE[0], end: bytes = WHOLE[1], *, after: bool = False) -> Kept:
    return Kept(start, end, Timestamp(ts), after)


class Rules:
    """What a leaseholder knows."""

    def __init__(self, target: int, *protections: Kept, dropped: int = 0) -> None:
        self.target = Timestamp(target)
        self.protections = protections
        self.dropped = Timestamp(dropped)

    def permit(self, state: object) -> Permit:
        return Permit(self.target, self.protections)

    def dropped_at(self, start: bytes, end: bytes) -> Timestamp:
        return self.dropped


class Collecting(Bench):
    """A leaseholder that applies what it evaluates."""

    def __init__(self, rules: Rules) -> None:
        super().__init__(
            msgspec.structs.replace(
                STATE, closed=Timestamp(0), lease=msgspec.structs.replace(STATE.lease, start=Timestamp(0))
            )
        )
        self.rules = rules
        self.now = 100

    def put(self, key: bytes, *times: int) -> None:
        for ts in times:
            done = super().run(Put(key, b"v%d" % ts), ts=ts) if ts > 0 else super().run(Delete(key), ts=-ts)
            assert done.ts == abs(ts)

    def run(self, *requests: Request, **options):
        request = requests[0]
        self.retention = self.rules
        if isinstance(request, GcSpan):
            self.prepared = evaluate_gc.prepare_span(
                self.engine, self.state, request, self.rules.dropped_at(request.start, request.end)
            )
        done = super().run(*requests, **options)
        if isinstance(done.trigger, GcTrigger):
            self.state = msgspec.structs.replace(
                self.state, gc_threshold=done.trigger.gc_threshold, kept=done.trigger.kept
            )
        return done

    def times(self, key: bytes) -> list[int]:
        return [ts for ts, _ in evaluate_gc.gc.versions_of(self.engine, key)]


def test_a_threshold_above_what_the_rules_allow_is_refused_whoever_asks() -> None:
    bench = Collecting(Rules(60))
    for threshold in (61, 99, MAX):
        with pytest.raises(UsageError, match="above what"):
            bench.run(RaiseGcThreshold(Timestamp(threshold)))
    assert bench.run(RaiseGcThreshold(Timestamp(60))).trigger == GcTrigger(gc_threshold=Timestamp(60), kept=())
    assert bench.run(RaiseGcThreshold(Timestamp(40))).trigger is None


def test_without_rules_nothing_is_collected() -> None:
    with pytest.raises(RetryableError, match="not known"):
        Bench().run(RaiseGcThreshold(Timestamp(1)))


def test_an_instant_that_is_kept_is_read_below_the_threshold_and_the_error_names_the_earliest_time() -> None:
    bench = Collecting(Rules(60, kept(30, b"c", b"f")))
    bench.put(b"d", 10, 20, 40, 50)
    bench.put(b"k", 10, 20, 40, 50)
    bench.run(RaiseGcThreshold(Timestamp(60)))
    assert bench.run(Get(b"d"), ts=30).results[0].value == b"v20"
    assert bench.run(Scan(b"c", b"f"), ts=30).results[0].values == [b"v20"]
    for request, ts in ((Get(b"d"), 31), (Get(b"k"), 30), (Scan(b"c", b"g"), 30)):
        with pytest.raises(BelowGcThreshold, match="earliest readable time") as told:
            bench.run(request, ts=ts)
        assert told.value.facts["earliest"] == 61
    going = GcVersions(((b"d", (Timestamp(40), Timestamp(10))), (b"k", (Timestamp(40), Timestamp(20), Timestamp(10)))))
    assert bench.run(going).results == [Number(5)]
    assert bench.times(b"d") == [50, 20]
    assert bench.times(b"k") == [50]
    assert bench.run(Get(b"d"), ts=30).results[0].value == b"v20"


def test_what_no_protection_needs_any_more_is_let_go_by_a_command_of_its_own() -> None:
    bench = Collecting(Rules(60, kept(30)))
    bench.put(b"d", 20, 50)
    bench.run(RaiseGcThreshold(Timestamp(60)))
    with pytest.raises(UsageError, match="kept instant"):
        bench.run(GcVersions(((b"d", (Timestamp(20),)),)))
    bench.rules.protections = ()
    assert bench.run(RaiseGcThreshold(Timestamp(60))).trigger == GcTrigger(gc_threshold=Timestamp(60), kept=())
    with pytest.raises(BelowGcThreshold):
        bench.run(Get(b"d"), ts=30)
    assert bench.run(GcVersions(((b"d", (Timestamp(20),)),))).results == [Number(1)]


def test_everything_after_a_timestamp_stays_in_the_part_that_is_protected() -> None:
    bench = Collecting(Rules(60, kept(30, b"c", b"f", after=True)))
    bench.put(b"d", 10, 20, 40, 50)
    bench.run(RaiseGcThreshold(Timestamp(60)))
    for ts in (30, 45, 60):
        bench.run(Get(b"d"), ts=ts)
    bench.run(Export(b"c", b"f", Timestamp(30), Timestamp(80)))
    for after, end in ((29, b"f"), (30, b"g")):
        with pytest.raises(BelowGcThreshold, match="part of this window"):
            bench.run(Export(b"c", end, Timestamp(after), Timestamp(80)))
    bench.run(GcVersions(((b"d", (Timestamp(10),)),)))
    with pytest.raises(UsageError):
        bench.run(GcVersions(((b"d", (Timestamp(20),)),)))


def test_a_protection_after_a_timestamp_of_a_whole_range_stops_the_threshold_itself() -> None:
    bench = Collecting(Rules(60, kept(30, after=True)))
    with pytest.raises(UsageError):
        bench.run(RaiseGcThreshold(Timestamp(30)))
    assert bench.run(RaiseGcThreshold(Timestamp(29))).trigger == GcTrigger(gc_threshold=Timestamp(29), kept=())


def test_more_protections_than_are_remembered_hold_the_threshold_back() -> None:
    many = [kept(ts, b"c", b"f") for ts in range(10, 10 + KEPT_MAX + 5)]
    found = decide(Retained(*WHOLE, Timestamp(0)), many, target=Timestamp(500))
    assert found.threshold == 10 + KEPT_MAX - 1
    assert len(found.kept) == KEPT_MAX


def test_history_that_is_gone_is_not_promised() -> None:
    now = Retained(*WHOLE, Timestamp(50))
    assert decide(now, [kept(40), kept(55, b"c", b"f")], target=Timestamp(60)) == Decision(
        Timestamp(60), (kept(55, b"c", b"f"),)
    )


def test_history_younger_than_the_target_is_not_let_go_with_a_protection() -> None:
    now = Retained(*WHOLE, Timestamp(50), (kept(20, b"c", b"f", after=True), kept(45, b"k", b"m")))
    found = decide(now, [], target=Timestamp(40))
    assert found == Decision(Timestamp(50), (kept(41, b"c", b"f", after=True), kept(45, b"k", b"m")))
    assert decide(now, [], target=Timestamp(50)) == Decision(Timestamp(50), ())


def test_a_merge_loses_no_history_of_either_side() -> None:
    left = Retained(b"a", b"m", Timestamp(60), (kept(30, b"a", b"c"),))
    right = Retained(b"m", b"z", Timestamp(40), (kept(20, b"n", b"p"),))
    both = joined(left, right)
    assert both.threshold == 60
    for start, end, ts, there in (
        *((b"a", b"c", 30, True), (b"a", b"d", 30, False), (b"n", b"p", 20, True), (b"m", b"z", 41, True)),
        *((b"m", b"z", 40, False), (b"l", b"n", 50, False), (b"a", b"z", 61, True)),
    ):
        assert readable(both.threshold, both.kept, start, end, ts=Timestamp(ts)) is there


def test_what_is_kept_survives_encoding() -> None:
    state = msgspec.structs.replace(STATE, kept=(kept(30, after=True), kept(12, b"c", b"f")))
    assert decode_state(encode_state(state)) == state


def test_a_span_in_which_nothing_stays_goes_by_one_tombstone_with_its_numbers() -> None:
    bench = Collecting(Rules(60))
    for i in range(50):
        bench.put(b"d%02d" % i, 10, 20, -30)
    bench.put(b"e", 10)
    bench.state = msgspec.structs.replace(bench.state, stats=tuple(recompute(bench.engine, *WHOLE)))
    for early in (0, 20):  # before the threshold, and while something is live at it
        bench.state = msgspec.structs.replace(bench.state, gc_threshold=Timestamp(early))
        with pytest.raises(UsageError, match="has to stay"):
            bench.run(GcSpan(b"d", b"e"))
    bench.run(RaiseGcThreshold(Timestamp(60)))
    with pytest.raises(UsageError, match="has to stay"):
        bench.run(GcSpan(b"d", b"f"))
    before = recompute(bench.engine, *WHOLE)
    done = bench.run(GcSpan(b"d", b"e"))
    assert done.results == [Number(150)]
    assert done.effects.ranges[Family.DATA] == [(b"d", b"e")]
    assert done.generation == STATE.descriptor.generation
    assert before.plus(Stats(*done.stats)) == recompute(bench.engine, *WHOLE)


def test_a_span_with_an_intent_stays() -> None:
    bench = Collecting(Rules(60))
    bench.put(b"d", 10, -30)
    bench.now = 200
    bench.run(Put(b"d1", b"v"), txn=txn(start=200, read=200, write=200, limit=200))
    bench.state = msgspec.structs.replace(bench.state, gc_threshold=Timestamp(60))
    with pytest.raises(UsageError, match="has to stay"):
        bench.run(GcSpan(b"d", b"e"))


def test_rows_of_a_dropped_table_go_once_the_threshold_has_passed_the_drop_and_nothing_keeps_them() -> None:
    bench = Collecting(Rules(60, dropped=50))
    bench.put(b"d", 10, 20)
    bench.state = msgspec.structs.replace(bench.state, gc_threshold=Timestamp(49))
    for state in (
        bench.state,
        msgspec.structs.replace(bench.state, gc_threshold=Timestamp(60), kept=(kept(30, b"d", b"d1"),)),
    ):
        bench.state = state
        with pytest.raises(UsageError, match="has to stay"):
            bench.run(GcSpan(b"d", b"e"))
    bench.state = msgspec.structs.replace(bench.state, kept=())
    assert bench.run(GcSpan(b"d", b"e")).results == [Number(2)]
    assert bench.times(b"d") == []


@pytest.mark.parametrize(
    "request_",
    [
        GcVersions(((b"d", (Timestamp(20),)),)),
        GcVersions(((b"d", (Timestamp(10),)), (b"d", (Timestamp(10),)))),
        GcVersions(((b"zz", (Timestamp(10),)),)),
        GcVersions(((b"x", (Timestamp(30), Timestamp(10))),)),
        GcVersions(vanishing=((b"x", (Timestamp(30),)),)),
    ],
    ids=["visible", "twice", "outside", "vanishes unnamed", "uncovers"],
)
def test_what_the_rule_does_not_allow_is_refused_and_nothing_goes(request_: GcVersions) -> None:
    bench = Collecting(Rules(60))
    bench.put(b"d", 10, 20)
    bench.put(b"x", 10, -30)
    bench.run(RaiseGcThreshold(Timestamp(60)))
    with pytest.raises(UsageError):
        bench.run(request_)
    assert (bench.times(b"d"), bench.times(b"x")) == ([20, 10], [30, 10])


def test_a_refresh_that_reaches_below_what_is_complete_restarts_its_transaction() -> None:
    """A deletion in the window may be collected: that nothing is found there would be taken for no change."""
    bench = Collecting(Rules(60))
    bench.put(b"d", 10, -50)
    bench.run(RaiseGcThreshold(Timestamp(60)))
    bench.run(GcVersions(vanishing=((b"d", (Timestamp(50), Timestamp(10))),)))
    with pytest.raises(RetryableError, match="older than what is kept"):
        bench.run(Refresh(b"d", b"e", Timestamp(40), Timestamp(90)), txn=txn(read=90))
    bench.run(Refresh(b"d", b"e", Timestamp(60), Timestamp(90)), txn=txn(read=90))


def test_a_span_may_begin_at_a_key_that_ends_like_a_bound_as_that_of_row_0_does() -> None:
    bench = Collecting(Rules(60))
    for key in (b"d\x00", b"d\x90"):  # rows 0 and 144 of a table by number: neither begins with the other
        bench.put(key, 10, -20)
    bench.put(b"e\x90", 10)
    bench.run(RaiseGcThreshold(Timestamp(60)))
    assert bench.run(GcSpan(b"d\x00", b"e\x00")).results == [Number(4)]
    assert [bench.times(key) for key in (b"d\x00", b"d\x90", b"e\x90")] == [[], [], [10]]
