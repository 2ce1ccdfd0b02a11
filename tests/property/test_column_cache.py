"""Scans that take kept blocks where they can give what scans without a cache give, whatever is written in between."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.bulk_arrow import plan_schema, unpack
from slackwater.codec.layout import schema_span
from slackwater.codec.rows import RowCodec
from slackwater.errors import ConflictError, SlackwaterError
from slackwater.model.txns import Txn
from slackwater.protocol.range.bulk import ScanArrow, ScanPlan
from slackwater.replica.evaluate_bulk import BulkRead, BulkReads
from slackwater.runtime.seam import Family
from slackwater.storage import writes
from slackwater.storage.column_cache import ColumnCache
from slackwater.storage.memory import MemoryEngine
from slackwater.storage.versions import suffix
from tests.property.test_bulk import versions_of

KEYS = 300
TOP = 1_000
KEY = st.integers(0, KEYS - 1)
STAMP = st.integers(1, TOP)
BOUND = st.one_of(st.none(), st.tuples(KEY, st.booleans()))
READ = st.tuples(
    st.just("read"),
    BOUND,
    BOUND,
    STAMP,
    st.sampled_from([0, 1, 7]),
    st.sampled_from([0, 200, 2_000, 8_000]),
    st.integers(1, 2),
)
WRITE = st.tuples(st.just("write"), st.lists(st.tuples(KEY, STAMP, st.booleans()), min_size=1, max_size=3))
MEANWHILE = st.tuples(st.just("meanwhile"), READ, WRITE)
CLEAR = st.tuples(st.just("clear"), KEY, KEY)
INTENT = st.tuples(st.just("intent"), KEY, STAMP)
STEPS = st.lists(st.one_of(READ, READ, WRITE, MEANWHILE, CLEAR, INTENT), min_size=1, max_size=40)


class Twins:
    """One engine, read with and without a cache."""

    def __init__(self, *, by_name, room):
        self.schemas = versions_of(by_name=by_name)
        self.codec = RowCodec(self.schemas[0], {s.version: s for s in self.schemas})
        self.engine = MemoryEngine()
        self.cache = ColumnCache(room)
        self.write([(n, 1 + n % 5, False) for n in range(KEYS)])

    def row(self, number, ts):
        return self.codec.encode({"id": number, "name": "x" * (number % 3), "score": float(ts)})

    def write(self, changes):
        batch = self.engine.batch()
        for number, ts, deleted in changes:
            key, value = self.row(number, ts)
            batch.put(Family.DATA, key + suffix(Timestamp(ts)), b"" if deleted else value)
        self.commit(batch)

    def commit(self, batch):
        self.cache.written(batch)
        self.engine.write(batch)

    def key(self, bound, otherwise):
        """A bound at a key, or just behind one: versions of a key that a bound extends sort around it."""
        if bound is None:
            return otherwise
        number, behind = bound
        return self.row(number, 1)[0] + (b"\x00" if behind else b"")

    def intent(self, number, ts):
        key, value = self.row(number, ts)
        batch, at = self.engine.batch(), Timestamp(ts)
        try:
            writes.put(self.engine, batch, key, value, ts=at, txn=Txn(b"t" * 16, key, at, 0, at, at, MIN, 1))
        except SlackwaterError:  # a newer version is there
            return
        self.commit(batch)

    def clear(self, low, high):
        batch = self.engine.batch()
        start, end = sorted((self.row(low, 1)[0], self.row(high, 1)[0] + b"\x00"))
        batch.delete_range(Family.DATA, start, end)
        self.commit(batch)

    def read(self, step, meanwhile=None):
        """Page by page through the cache; each page is compared with a scan of just its span, without one."""
        _, low, high, ts, rows, size, version = step
        span = schema_span(self.schemas[0])
        at, end = self.key(low, span.start), self.key(high, span.end)
        plan = ScanPlan(tuple(self.schemas), version)
        while at < end:
            bulk = bulk_of(ScanArrow(at, end, plan.encode()), ts, rows, size)
            with self.engine.snapshot() as frozen:
                bulk.look_up(self.cache)
                if meanwhile is not None:
                    self.write(meanwhile[1])
                    meanwhile = None
                try:
                    (page,) = bulk.run(frozen)
                except ConflictError:
                    with pytest.raises(ConflictError):
                        bulk_of(ScanArrow(at, end, plan.encode()), ts).run(frozen)
                    return
                finally:
                    bulk.hand_in(self.cache)
                upto = page.resume or end
                (plain,) = bulk_of(ScanArrow(at, upto, plan.encode()), ts).run(frozen)
            assert shown(page, plan) == shown(plain, plan)
            assert page.rows == plain.rows
            assert upto > at
            assert self.cache.bytes <= self.cache.bytes_max
            at = upto


def bulk_of(request, ts, rows=0, size=1 << 20):
    bulk = BulkReads(max_rows=rows, max_bytes=size)
    bulk.reads.append(BulkRead(request, Timestamp(ts), MIN))
    return bulk


def shown(page, plan):
    return [row for batch in unpack(page.blocks, plan_schema(plan)) for row in batch.to_pylist()]


@settings(max_examples=80, deadline=None)
@given(by_name=st.booleans(), room=st.sampled_from([0, 4_000, 1 << 20]), steps=STEPS)
def test_kept_blocks_are_what_a_scan_would_make(by_name, room, steps):
    twins = Twins(by_name=by_name, room=room)
    for step in steps:
        match step[0]:
            case "read":
                twins.read(step)
            case "write":
                twins.write(step[1])
            case "meanwhile":
                twins.read(step[1], step[2])
            case "clear":
                twins.clear(*step[1:])
            case "intent":
                twins.intent(*step[1:])


def test_blocks_are_used_again():
    """Without this, everything above would hold for a cache that keeps nothing."""
    twins = Twins(by_name=False, room=1 << 20)
    read = ("read", None, None, TOP, 0, 1_500, 1)
    twins.read(read)
    made = twins.cache.misses
    assert len(twins.cache) > 2
    twins.read(read)
    assert twins.cache.misses <= made + 1  # behind the last row there is nothing to keep
    twins.write([(KEYS // 2, TOP, False)])
    twins.read(read)
    assert made + 1 < twins.cache.misses <= made + 4  # the block is made anew, in smaller pieces perhaps
