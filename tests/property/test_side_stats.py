"""What lies right of a key is known at any time from a count of the past and what was applied since, or is said not to be."""

from __future__ import annotations

import msgspec
from hypothesis import event, given, settings
from hypothesis import strategies as st

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.errors import SlackwaterError
from slackwater.model.txns import Resolution, TxnStatus
from slackwater.protocol.log.commands import Command
from slackwater.protocol.range.requests import (
    Delete,
    DeleteRange,
    EndTxn,
    Put,
    PutRows,
    ResolveIntents,
)
from slackwater.replica.apply import ApplyOutcome, ApplyVerdict
from slackwater.replica.side_stats import SideStats
from slackwater.replica.state import add_stats
from slackwater.runtime.seam import Family
from slackwater.storage.batch import WriteBatch
from slackwater.storage.stats import recompute
from tests.unit.replica.test_evaluate import Bench, txn

KEYS = [bytes([letter]) for letter in b"bcdmnop"]
KEY = st.sampled_from(KEYS)
VALUE = st.binary(min_size=1, max_size=3)
STEP = st.one_of(
    st.tuples(st.just("put"), KEY, VALUE),
    st.tuples(st.just("delete"), KEY, VALUE),
    st.tuples(st.just("rows"), st.sets(KEY, min_size=1, max_size=4), VALUE),
    st.tuples(st.just("delete range"), KEY, VALUE),
    st.tuples(st.just("intent"), KEY, VALUE),
    st.tuples(st.just("commit"), KEY, VALUE),
    st.tuples(st.just("abort"), KEY, VALUE),
    st.tuples(st.just("one phase"), KEY, VALUE),
)
STEPS = st.lists(st.tuples(STEP, st.booleans()), max_size=12)


def do(bench: Bench, kind: str, key, value: bytes):
    writer = txn("other")
    match kind:
        case "put":
            return bench.run(Put(key, value))
        case "delete":
            return bench.run(Delete(key))
        case "rows":
            return bench.run(PutRows(sorted(key), [value] * len(key)))
        case "delete range":
            return bench.run(DeleteRange(key, key + b"\x00\x00"))
        case "intent":
            return bench.run(Put(key, value), txn=msgspec.structs.replace(writer, write_ts=Timestamp(bench.now)))
        case "commit":
            outcome = Resolution(writer.txn_id, 0, TxnStatus.COMMITTED, Timestamp(bench.now))
            return bench.run(ResolveIntents(outcome, spans=((b"b", b"z"),)))
        case "abort":
            return bench.run(ResolveIntents(Resolution(writer.txn_id, 0, TxnStatus.ABORTED), keys=(key,)))
        case _:
            one = txn(f"one {bench.now}", write=bench.now)
            return bench.run(Put(key, value), EndTxn(commit=True, lock_keys=(key,), one_phase=True), txn=one)


@settings(max_examples=300)
@given(STEPS, STEPS, st.sampled_from([b"bb", b"d", b"h", b"p", b"pp"]), st.integers(0, 12))
def test_what_is_told_of_a_side_is_what_it_holds(before, after, at, counted_after) -> None:
    bench, side, dividable = Bench(), None, True

    def step(kind, key, value, applies) -> None:
        nonlocal dividable
        try:
            evaluation = do(bench if applies else Bench(bench.state), kind, key, value)
        except SlackwaterError:
            return
        if applies:
            bench.state = msgspec.structs.replace(bench.state, stats=add_stats(bench.state.stats, evaluation.stats))
        if side is not None:
            effects = evaluation.effects
            command = Command(b"c", 5, 1, MIN, MIN, effects.encode() if len(effects) else b"", evaluation.stats)
            side.applied([ApplyOutcome(command, ApplyVerdict.ACCEPTED if applies else ApplyVerdict.STALE_INDEX)])
            written = {stored[:-8] for stored in effects.writes[0]} | set(effects.writes[1])
            dividable &= not applies or len({key >= at for key in written}) < 2

    for (kind, key, value), _ in before:
        step(kind, key, value, True)
    side = SideStats(bench.state, at)
    counted = recompute(bench.engine, at, side.end)
    for number, ((kind, key, value), applies) in enumerate(after):
        if number == counted_after:
            assert side.now(bench.state) is None
            side.counted = counted
        step(kind, key, value, applies)
    side.counted = counted
    told = side.now(bench.state)
    event(f"told: {told is not None}")
    assert (told is not None) is dividable
    assert told is None or told == tuple(recompute(bench.engine, at, side.end))


def test_nothing_is_told_of_another_range_than_was_counted() -> None:
    bench = Bench()
    side = SideStats(bench.state, b"m")
    side.counted = recompute(bench.engine, b"m", side.end)
    assert side.now(msgspec.structs.replace(bench.state, stats=(0,) * 8)) == (0,) * 8
    grown = msgspec.structs.replace(bench.state.descriptor, generation=5)
    assert side.now(msgspec.structs.replace(bench.state, descriptor=grown, stats=(0,) * 8)) is None


def test_a_span_that_is_cleared_cannot_be_divided() -> None:
    bench, batch = Bench(), WriteBatch()
    side = SideStats(bench.state, b"m")
    side.counted = recompute(bench.engine, b"m", side.end)
    batch.delete_range(Family.DATA, b"n", b"o")
    side.applied([ApplyOutcome(Command(b"c", 5, 1, MIN, MIN, batch.encode(), ()), ApplyVerdict.ACCEPTED)])
    assert side.lost
    assert side.now(msgspec.structs.replace(bench.state, stats=(0,) * 8)) is None
