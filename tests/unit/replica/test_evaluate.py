"""Evaluation: where a batch reads and writes, and what it leaves behind."""

from __future__ import annotations

import msgspec
import pytest

from slackwater.clock.timestamp import MAX, MIN, Timestamp
from slackwater.errors import (
    BelowGcThreshold,
    ConditionFailed,
    ConflictError,
    NotLeaseholder,
    ReadWithinUncertainty,
    RetryableError,
    TransactionAborted,
    UnavailableError,
    UsageError,
)
from slackwater.model.descriptors import Lease, RangeDescriptor
from slackwater.model.txns import Intent, Resolution, Txn, TxnStatus
from slackwater.protocol.log.commands import FreezeTrigger, GcTrigger, MergeTrigger, SplitTrigger
from slackwater.protocol.range.requests import (
    AbortMerge,
    Barrier,
    Batch,
    ChangeReplicas,
    Committed,
    ComputeChecksum,
    ConditionalPut,
    Delete,
    EndTxn,
    Export,
    FillRows,
    ForgetLocks,
    GcTxnRecords,
    Get,
    Header,
    Increment,
    Merge,
    Number,
    PushTxn,
    Put,
    QueryTxn,
    Refresh,
    Request,
    ResolveIntents,
    Rows,
    Scan,
    Split,
    Subsume,
    SubsumeResult,
    Thaw,
    Value,
)
from slackwater.replica import declare, records
from slackwater.replica.evaluate import View, evaluate
from slackwater.replica.evaluation import NO_RULES, LeftSide, RetentionRules
from slackwater.replica.state import RangeState
from slackwater.replica.tscache import TimestampCache
from slackwater.storage import reads
from slackwater.storage.memory import MemoryEngine

STATE = RangeState(
    RangeDescriptor(7, b"a", b"z", (1, 2), 4), lease=Lease(1, 5, Timestamp(50), epoch=1), closed=Timestamp(60)
)


class Bench:
    """One range on a memory engine; `run` evaluates a batch and writes its effects."""

    def __init__(self, state: RangeState = STATE) -> None:
        self.engine = MemoryEngine()
        self.state = state
        self.cache = TimestampCache()
        self.now = 100
        self.left = LeftSide()
        self.others: dict[int, RangeState] = {}
        self.prepared: tuple[int, ...] = (1,) * 8
        self.retention: RetentionRules = NO_RULES

    def left_of(self, descriptor: RangeDescriptor) -> LeftSide:
        return self.left

    def state_of(self, range_id: int) -> RangeState | None:
        return self.others.get(range_id)

    def check_record(self, key: bytes, value: bytes) -> None:
        if value == b"garbage":
            raise UsageError("this is no record")

    def node_known(self, node_id: int) -> bool:
        return node_id < 10

    def evaluate(
        self,
        *requests: Request,
        txn: Txn | None = None,
        ts: int = 0,
        limit: int = 0,
        max_keys: int = 0,
        lease_end: int = MAX,
        decided: tuple[Resolution, ...] = (),
    ):
        self.now += 1
        batch = Batch(
            Header(
                7, ts=Timestamp(ts), txn=txn, uncertainty_limit=Timestamp(limit), max_keys=max_keys, decided=decided
            ),
            list(requests),
        )
        view = View(
            reader=self.engine,
            state=self.state,
            now=Timestamp(self.now),
            read_at=declare.read_ts_of(batch, Timestamp(self.now)),
            floor=Timestamp(self.state.closed + 1),
            lease_end=Timestamp(lease_end),
            tscache=self.cache,
            txn_expiration_s=5.0,
            prepared=self.prepared,
            retention=self.retention,
            neighbors=self,
            furthest=lambda: Timestamp(10_000),
        )
        return evaluate(batch, view)

    def run(self, *requests: Request, **options):
        evaluation = self.evaluate(*requests, **options)
        self.engine.write(evaluation.effects)
        return evaluation

    def value(self, key: bytes, ts: int = 1 << 40) -> bytes | None:
        return reads.get(self.engine, key, ts=Timestamp(ts)).value


def txn(
    name: str = "t",
    *,
    start: int = 90,
    read: int = 90,
    write: int = 90,
    limit: int = 90,
    sequence: int = 1,
    epoch: int = 0,
) -> Txn:
    return Txn(
        name.encode().ljust(16, b"."),
        b"k",
        Timestamp(start),
        epoch,
        Timestamp(read),
        Timestamp(write),
        Timestamp(limit),
        sequence,
    )


def test_a_write_goes_above_what_was_read() -> None:
    bench = Bench()
    bench.run(Get(b"k"), ts=500)
    written = bench.run(Put(b"k", b"v"))
    assert written.ts == 501
    assert written.min_write_ts == 501


def test_a_write_goes_above_what_is_closed_the_lease_start_and_the_read_floor() -> None:
    for field in ("closed", "read_floor"):
        bench = Bench(msgspec.structs.replace(STATE, **{field: Timestamp(900)}))
        assert bench.run(Put(b"k", b"v")).ts == 901
    late = Bench(msgspec.structs.replace(STATE, lease=Lease(1, 5, Timestamp(800), epoch=1)))
    assert late.run(Put(b"k", b"v")).ts == 801


def test_a_write_goes_above_a_newer_version_and_a_transaction_is_told() -> None:
    bench = Bench()
    bench.run(Put(b"k", b"v"), ts=700)
    assert bench.run(Put(b"k", b"w")).ts == 701
    moved = bench.run(Put(b"k", b"x"), txn=txn())
    assert moved.txn_write_ts == 702
    assert bench.value(b"k", 701) == b"w"


def test_a_batch_is_atomic_and_reads_its_own_writes() -> None:
    bench = Bench()
    done = bench.run(Put(b"k", b"1"), Get(b"k"), Increment(b"n", 5), Increment(b"n", 2), Scan(b"a", b"l"))
    assert done.results[1] == Value(b"1", done.ts)
    assert done.results[3] == Number(7)
    assert done.results[4].keys == [b"k"]
    with pytest.raises(ConditionFailed):
        bench.run(Put(b"k", b"2"), ConditionalPut(b"x", b"v", b"not there"))
    assert bench.value(b"k") == b"1"


def test_a_failed_condition_counts_as_a_read() -> None:
    bench = Bench()
    bench.run(Put(b"k", b"1"))
    bench.now = 400
    with pytest.raises(ConditionFailed) as failed:
        bench.run(ConditionalPut(b"k", b"2", b"0"))
    assert failed.value.facts["actual"] == b"1"
    assert bench.run(Put(b"k", b"3"), ts=300).ts > 400


def test_intents_of_others_are_in_the_way_and_own_ones_are_read() -> None:
    bench = Bench()
    mine = txn()
    bench.run(Put(b"k", b"v"), txn=mine)
    assert bench.run(Get(b"k"), txn=txn(sequence=2)).results == [Value(b"v", Timestamp(90))]
    for request in (Get(b"k"), Put(b"k", b"w"), Scan(b"a", b"z")):
        with pytest.raises(ConflictError) as conflict:
            bench.run(request)
        assert [i.txn_id for i in conflict.value.facts["intents"]] == [mine.txn_id]


def test_a_commit_with_its_own_writes_resolves_the_intents_that_came_here_and_names_those_elsewhere() -> None:
    bench = Bench()
    bench.run(Put(b"merged", b"w"), txn=txn())
    locks = (b"\xfeelsewhere", b"merged")
    end = EndTxn(commit=True, lock_keys=locks, one_phase=True)
    done = bench.run(Put(b"k", b"v"), end, txn=txn(sequence=5))
    assert done.results[-1] == Committed(TxnStatus.COMMITTED, Timestamp(90), left_keys=locks[:1])
    assert (bench.value(b"k"), bench.value(b"merged")) == (b"v", b"w")
    record = records.read_record(bench.engine, anchor=b"k", txn_id=txn().txn_id)
    assert record is not None
    assert (record.status, record.resolved, record.lock_keys) == (TxnStatus.COMMITTED, False, locks[:1])
    again = bench.run(Put(b"k", b"v"), end, txn=txn(sequence=5))
    assert again.read_only
    assert again.results[-1] == done.results[-1]


def test_uncertainty() -> None:
    bench = Bench()
    bench.run(Put(b"k", b"v"), ts=95)
    with pytest.raises(ReadWithinUncertainty):
        bench.run(Get(b"k"), txn=txn(limit=99))
    assert bench.run(Get(b"k"), txn=txn(limit=94)).results == [Value(None)]


def test_one_phase_commit_writes_versions_and_a_record_but_no_intents() -> None:
    bench = Bench()
    done = bench.run(Put(b"k", b"v"), EndTxn(commit=True, lock_keys=(b"k",), one_phase=True), txn=txn())
    assert done.results[-1] == Committed(TxnStatus.COMMITTED, Timestamp(90), resolved=True)
    assert bench.value(b"k") == b"v"
    record = records.read_record(bench.engine, anchor=b"k", txn_id=txn().txn_id)
    assert record is not None
    assert (record.status, record.resolved) == (TxnStatus.COMMITTED, True)
    again = bench.run(Put(b"k", b"v"), EndTxn(commit=True, lock_keys=(b"k",), one_phase=True), txn=txn())
    assert again.read_only
    assert again.results[-1] == done.results[-1]


def test_one_phase_commit_that_had_to_move_needs_a_refresh_unless_it_read_nothing() -> None:
    bench = Bench()
    bench.run(Get(b"k"), ts=200)
    with pytest.raises(RetryableError) as moved:
        bench.run(Put(b"k", b"v"), EndTxn(commit=True, lock_keys=(b"k",), one_phase=True), txn=txn())
    assert moved.value.facts["push_to"] == 201
    blind = EndTxn(commit=True, lock_keys=(b"k",), one_phase=True, can_forward=True)
    assert bench.run(Put(b"k", b"v"), blind, txn=txn()).results[-1].commit_ts == 201


def test_end_txn_resolves_what_is_here_and_remembers_the_rest() -> None:
    bench = Bench()
    bench.run(Put(b"k", b"v"), txn=txn())
    bench.run(EndTxn(commit=True, lock_keys=(b"k", b"zz")), txn=txn())
    assert bench.value(b"k") == b"v"
    record = records.read_record(bench.engine, anchor=b"k", txn_id=txn().txn_id)
    assert record is not None
    assert (record.lock_keys, record.resolved) == ((b"zz",), False)
    bench.run(ForgetLocks(txn().txn_id, b"k"))
    forgotten = records.read_record(bench.engine, anchor=b"k", txn_id=txn().txn_id)
    assert forgotten is not None
    assert forgotten.resolved


def test_a_pushed_and_aborted_transaction_cannot_commit() -> None:
    bench = Bench()
    bench.run(Put(b"k", b"v"), txn=txn())
    intent = Intent(b"k", txn().txn_id, b"k", Timestamp(90), 0, Timestamp(90))
    pushed = bench.run(PushTxn(intent, Timestamp(10), b"p" * 16, Timestamp(90), abort=True))
    assert pushed.results[0].resolution.status is TxnStatus.ABORTED
    with pytest.raises(TransactionAborted):
        bench.run(EndTxn(commit=True, lock_keys=(b"k",)), txn=txn())
    bench.run(ResolveIntents(Resolution(txn().txn_id, 0, TxnStatus.ABORTED), keys=(b"k",)))
    assert bench.value(b"k") is None
    assert bench.run(Put(b"k", b"w")).ts > 0


def test_a_younger_pusher_is_parked() -> None:
    bench = Bench()
    intent = Intent(b"k", txn().txn_id, b"k", Timestamp(90), 0, Timestamp(90))
    parked = bench.run(PushTxn(intent, Timestamp(99), b"p" * 16, Timestamp(90), abort=True))
    assert parked.parked == txn().txn_id
    assert parked.read_only


def test_refresh_fails_where_something_was_written_and_protects_what_it_covers() -> None:
    bench = Bench()
    bench.run(Put(b"k", b"v"), ts=95)
    with pytest.raises(RetryableError):
        bench.run(Refresh(b"a", b"z", Timestamp(90), Timestamp(99)), txn=txn())
    bench.run(Refresh(b"a", b"z", Timestamp(95), Timestamp(300)), txn=txn())
    assert bench.run(Put(b"q", b"v")).ts == 301


def test_refresh_names_the_intents_in_its_window() -> None:
    bench = Bench()
    bench.run(Put(b"k", b"v"), txn=txn(read=95, write=95))
    other = txn("other")
    with pytest.raises(ConflictError) as met:
        bench.run(Refresh(b"a", b"z", Timestamp(90), Timestamp(99)), txn=other)
    (intent,) = met.value.facts["intents"]
    assert (intent.key, intent.ts) == (b"k", 95)
    bench.run(Refresh(b"a", b"z", Timestamp(90), Timestamp(94)), txn=other)
    bench.run(Refresh(b"a", b"z", Timestamp(90), Timestamp(99)), txn=txn())


def test_refresh_sees_a_commit_whose_intent_the_read_passed_by() -> None:
    """The reader knew that the writer commits above it, and did not wait for the intent (seed 36 of `refetch`, I-18)."""
    bench = Bench()
    writer, reader = txn("w", read=100, write=100), txn("r", read=110, write=110, limit=110)
    bench.run(Put(b"k", b"new"), txn=writer)
    known = (Resolution(writer.txn_id, writer.epoch, TxnStatus.COMMITTED, Timestamp(150)),)
    assert bench.run(Get(b"k"), txn=reader, decided=known).results == [Value(None, MIN)]
    with pytest.raises(RetryableError, match="restart it"):
        bench.run(Refresh(b"k", b"l", Timestamp(110), Timestamp(160)), txn=reader, decided=known)
    bench.run(Refresh(b"k", b"l", Timestamp(110), Timestamp(149)), txn=reader, decided=known)
    with pytest.raises(ConflictError):
        bench.run(Refresh(b"k", b"l", Timestamp(110), Timestamp(160)), txn=reader)


def test_limits_end_a_scan_and_what_lies_beyond_was_not_read() -> None:
    bench = Bench()
    for key in (b"b", b"c", b"d"):
        bench.run(Put(key, b"v"))
    bench.now = 200
    done = bench.run(Scan(b"a", b"z"), Scan(b"a", b"z"), max_keys=2)
    assert done.results[0] == Rows([b"b", b"c"], [b"v", b"v"], b"d")
    assert done.results[1] == Rows([], [], b"a")
    assert bench.run(Put(b"c", b"w"), ts=150).ts == 202
    assert bench.run(Put(b"d", b"w"), ts=150).ts == 150


def test_nothing_is_served_at_the_end_of_the_lease() -> None:
    bench = Bench()
    for request in (Get(b"k"), Put(b"k", b"v")):
        with pytest.raises(NotLeaseholder):
            bench.run(request, ts=500, lease_end=500)
    assert bench.run(Get(b"k"), ts=499, lease_end=500).results == [Value(None)]


def test_history_below_the_threshold_is_refused() -> None:
    bench = Bench(msgspec.structs.replace(STATE, gc_threshold=Timestamp(70)))
    with pytest.raises(BelowGcThreshold):
        bench.run(Get(b"k"), ts=70)
    with pytest.raises(BelowGcThreshold):
        bench.run(Export(b"a", b"z", Timestamp(69), Timestamp(80)))
    bench.run(Get(b"k"), ts=71)


def test_entries_are_filled_in_where_nothing_was_written_since_and_history_is_whole() -> None:
    bench = Bench(msgspec.structs.replace(STATE, gc_threshold=Timestamp(70)))
    bench.run(Put(b"b", b"old"))
    above = Timestamp(bench.now)
    bench.run(Put(b"c", b"new"))
    bench.run(Delete(b"d"))
    keys = [b"a", b"b", b"c", b"d", b"e"]
    done = bench.run(FillRows(keys, [b"1", b"2", b"3", b"4", b"5"], above))
    assert done.results == [Rows([b"c", b"d"], [])]
    assert [bench.value(key) for key in keys] == [b"1", b"2", b"new", None, b"5"]
    assert done.min_write_ts > above
    again = bench.run(FillRows(keys, [b"1", b"2", b"3", b"4", b"5"], above))
    assert again.read_only, "what is there is not written twice"
    shared = bench.run(FillRows([b"b", b"f"], [b"another row's", b"6"], Timestamp(bench.now), alone=True))
    assert shared.results == [Rows([b"b"], [])]
    assert bench.value(b"b") == b"2"
    bench.run(Put(b"g", b"pending"), txn=txn())
    with pytest.raises(ConflictError):
        bench.run(FillRows([b"f", b"g"], [b"6", b"7"], above))
    with pytest.raises(BelowGcThreshold):
        bench.run(FillRows([b"h"], [b"8"], Timestamp(69)))
    with pytest.raises(UsageError):
        bench.run(FillRows([b"h"], [b"8"], above), txn=txn())


def test_a_frozen_range_answers_nobody_but_the_thaw() -> None:
    bench = Bench(msgspec.structs.replace(STATE, frozen=FreezeTrigger(3, 9)))
    for request in (Get(b"k"), Put(b"k", b"v"), Barrier()):
        with pytest.raises(UnavailableError):
            bench.run(request)
    with pytest.raises(UsageError):
        bench.run(Thaw(9))
    for seen in ((0, 0), (8, 9), (10, 12)):
        bench.left = LeftSide(None, seen)
        with pytest.raises(UnavailableError):  # whatever the caller was told, it was not seen to happen here
            bench.run(Thaw(10))
    bench.left = LeftSide(None, (9, 10))
    assert bench.run(Thaw(10)).trigger is not None
    assert bench.run(Thaw()).trigger is not None


def test_a_freeze_needs_the_left_side_here_as_it_was_named() -> None:
    bench = Bench()
    left = RangeDescriptor(3, b"A", b"a", (2, 1), 9)
    for known in (LeftSide(), LeftSide(None, (8, 9)), LeftSide(msgspec.structs.replace(left, generation=8))):
        bench.left = known
        with pytest.raises(UnavailableError):
            bench.run(Subsume(3, 9))
    bench.left = LeftSide(msgspec.structs.replace(left, replicas=(1, 3)))
    with pytest.raises(UsageError):
        bench.run(Subsume(3, 9))
    bench.left = LeftSide(left)
    evaluation = bench.run(Subsume(3, 9))
    assert evaluation.trigger == FreezeTrigger(3, 9)
    applied = msgspec.structs.replace(bench.state, frozen=FreezeTrigger(3, 9))
    answer = evaluation.result(applied, 1, now=Timestamp(5_000)).results[0]
    assert isinstance(answer, SubsumeResult)
    assert answer.read_floor == 5_000, "reads went on until the freeze applied"


def test_split_and_merge_triggers() -> None:
    bench = Bench()
    split = bench.run(Split(b"m", 9))
    assert isinstance(split.trigger, SplitTrigger)
    assert (split.trigger.left.end, split.trigger.right.start, split.generation) == (b"m", b"m", 4)
    for at in (b"a", b"z", b"A"):
        with pytest.raises(UsageError):
            bench.run(Split(at, 9))
    right = RangeDescriptor(9, b"z", b"zz", (1, 2), 6)
    frozen = SubsumeResult(3, 3, MIN, MIN, 4, MIN, MIN, ())
    bench.others[9] = RangeState(right, position=3, lai=3, frozen=FreezeTrigger(7, 4), stats=())
    merge = bench.run(Merge(right, frozen))
    assert isinstance(merge.trigger, MergeTrigger)
    assert (merge.trigger.merged.end, merge.trigger.merged.generation) == (b"zz", 7)
    with pytest.raises(UsageError):
        bench.run(Merge(msgspec.structs.replace(right, replicas=(1, 3)), frozen))
    with pytest.raises(UnavailableError):
        bench.run(Merge(right, msgspec.structs.replace(frozen, freeze_generation=3)))


def test_a_merge_that_the_right_side_here_does_not_bear_out_is_refused() -> None:
    """What would fail at apply, or leave an unusable range, never enters the log."""
    right = RangeDescriptor(9, b"z", b"zz", (1, 2), 6)
    frozen = SubsumeResult(3, 3, Timestamp(20), Timestamp(30), 4, Timestamp(5), Timestamp(6), (1, 2))
    state = RangeState(
        right, position=3, lai=3, closed=Timestamp(20), read_floor=Timestamp(25), frozen=FreezeTrigger(7, 4),
        gc_threshold=Timestamp(5), txn_floor=Timestamp(6), stats=(1, 2),
    )  # fmt: skip
    change = msgspec.structs.replace

    def outcome(here: RangeState | None, named: RangeDescriptor = right, said: SubsumeResult = frozen) -> type:
        bench = Bench()
        bench.others = {9: here} if here is not None else {}
        try:
            assert bench.run(Merge(named, said)).trigger is not None
        except (UsageError, UnavailableError) as error:
            return type(error)
        return type(None)

    assert outcome(state) is type(None)
    assert outcome(change(state, position=9)) is type(None), "leases may move while a range is frozen"
    for lagging in (None, change(state, position=2)):
        assert outcome(lagging) is UnavailableError
    for wrong in (
        change(state, frozen=None),
        change(state, frozen=FreezeTrigger(8, 4)),
        change(state, frozen=FreezeTrigger(7, 3)),
        change(state, descriptor=change(right, generation=7)),
        change(state, stats=(1, 3)),
        change(state, gc_threshold=Timestamp(4)),
        change(state, txn_floor=Timestamp(4)),
        change(state, closed=Timestamp(21)),
        change(state, read_floor=Timestamp(31)),
    ):
        assert outcome(wrong) is UsageError, wrong
    for forged in (change(frozen, closed=MAX), change(frozen, read_floor=MAX), change(frozen, gc_threshold=MAX)):
        assert outcome(state, said=forged) is UsageError


def test_changes_of_a_range_that_no_honest_node_asks_for_are_refused() -> None:
    bench = Bench()
    bench.others[12] = RangeState(RangeDescriptor(12, b"zz", b"zzz", (1, 2), 2))
    for request in (
        Split(b"m", 12),
        Split(b"m", 1),
        Split(b"m", 0),
        AbortMerge(5),
        AbortMerge(1 << 60),
        ChangeReplicas((), 4),
        ChangeReplicas((1, 1), 4),
        ChangeReplicas(tuple(range(1, 99)), 4),
        ChangeReplicas((2,), 4),
        GcTxnRecords(MAX),
        ComputeChecksum(b""),
        ComputeChecksum(b"x" * 1000),
    ):
        with pytest.raises(UsageError):
            bench.run(request)
    with pytest.raises(UnavailableError):
        bench.run(ChangeReplicas((1, 2, 77), 4))
    assert bench.run(AbortMerge(4)).trigger is not None


def test_collecting_records_raises_the_floor() -> None:
    bench = Bench()
    bench.run(Put(b"k", b"v"), EndTxn(commit=True, lock_keys=(b"k",), one_phase=True), txn=txn())
    for before in (90, 95):  # began at 90, ended at 101: its end counts too
        kept = bench.evaluate(GcTxnRecords(Timestamp(before)))
        assert kept.results == [Number(0)]
        assert kept.trigger is None
    bench.now = 200
    collected = bench.run(GcTxnRecords(Timestamp(150)))
    assert collected.results == [Number(1)]
    assert collected.trigger == GcTrigger(txn_floor=Timestamp(150))
    assert records.read_record(bench.engine, anchor=b"k", txn_id=txn().txn_id) is None


def test_writing_one_key_twice_in_a_batch_keeps_the_last_and_counts_it_once() -> None:
    from slackwater.storage.stats import Stats, recompute

    bench = Bench()
    total = Stats(*bench.run(Put(b"k", b"older")).stats)
    for requests in ((Put(b"k", b"one"), Put(b"k", b"twotwo")), (Put(b"k", b"x"), Delete(b"k"))):
        total = total.plus(Stats(*bench.run(*requests).stats))
        assert total == recompute(bench.engine, b"a", b"z")
    assert bench.value(b"k") is None


def test_large_intents_are_resolved_in_commands_that_fit_a_log_entry() -> None:
    bench = Bench()
    keys = tuple(b"k%02d" % i for i in range(10))
    large = b"x" * (100 << 10)
    for sequence, key in enumerate(keys, 1):
        bench.run(Put(key, large), txn=txn(sequence=sequence))
    ended = bench.run(EndTxn(commit=True, lock_keys=keys), txn=txn(sequence=11))
    sizes = [sum(map(len, filter(None, family.values()))) for family in ended.effects.writes]
    assert sum(sizes) < 4 * len(large)
    outcome = Resolution(txn().txn_id, 0, TxnStatus.COMMITTED, ended.results[0].commit_ts)
    rounds = [bench.run(ResolveIntents(outcome, keys=keys)).results[0] for _ in range(4)]
    assert [r.more for r in rounds] == [True, True, False, False]
    assert [r.number for r in rounds] == [3, 3, 1, 0]
    assert all(bench.value(key) == large for key in keys)


def test_a_span_of_large_intents_is_left_in_the_record_until_it_is_done() -> None:
    bench = Bench()
    large = b"x" * (200 << 10)
    for sequence in range(1, 5):
        bench.run(Put(b"k%d" % sequence, large), txn=txn(sequence=sequence))
    span = (b"k", b"l")
    ended = bench.run(EndTxn(commit=True, lock_spans=(span,)), txn=txn(sequence=9))
    record = bench.run(QueryTxn(txn().txn_id, b"k")).results[0].record
    assert record.lock_spans == (span,)
    assert not record.resolved
    outcome = Resolution(txn().txn_id, 0, TxnStatus.COMMITTED, ended.results[0].commit_ts)
    assert bench.run(ResolveIntents(outcome, spans=(span,))).results[0] == Number(2, more=False)


def test_an_intent_that_is_named_by_key_and_by_span_is_resolved_and_counted_once() -> None:
    """Seed 499017865 (I-34): the statistics counted it twice, and were wrong for ever after."""
    bench, mine = Bench(), txn()
    written = bench.run(Put(b"k", b"v"), Put(b"m", b"v"), txn=mine)
    outcome = Resolution(mine.txn_id, 0, TxnStatus.ABORTED)
    gone = bench.run(ResolveIntents(outcome, keys=(b"k", b"k"), spans=((b"a", b"l"), (b"j", b"z"))))
    assert gone.results[0] == Number(2, more=False)
    assert [a + b for a, b in zip(written.stats, gone.stats, strict=True)] == [0] * len(gone.stats)
