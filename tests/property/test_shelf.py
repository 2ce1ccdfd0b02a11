"""Reads that take segments where they can give what rows give, whatever is written, made, cleared or lost between (I-38)."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.bulk_arrow import plan_schema, unpack
from slackwater.codec.layout import schema_span
from slackwater.codec.rows import RowCodec
from slackwater.errors import ConflictError, SegmentDamaged, SlackwaterError
from slackwater.model.kinds import ColumnKind, ColumnType
from slackwater.model.scan_plan import ScanPlan
from slackwater.model.schema import Column
from slackwater.model.txns import Txn
from slackwater.protocol.range.bulk import ScanArrow
from slackwater.replica.evaluate_bulk import BulkRead, BulkReads
from slackwater.runtime.seam import Family
from slackwater.storage import writes
from slackwater.storage.batch import WriteBatch
from slackwater.storage.columns.build import Shape, anchor_of, from_columns, from_rows
from slackwater.storage.columns.shelf import Shelf, file_name
from slackwater.storage.memory import MemoryEngine
from slackwater.storage.versions import suffix
from tests.property.test_bulk import versions_of

KEYS = 120
TOP = 1_000
KEY = st.integers(0, KEYS - 1)
BOUND = st.one_of(st.none(), st.tuples(KEY, st.booleans()))
LATER = st.integers(1, 30)
READ = st.tuples(
    st.just("read"), BOUND, BOUND, st.integers(0, 60), st.sampled_from([0, 1, 50]),
    st.sampled_from([200, 2_000, 1 << 20]), st.booleans(),
)  # fmt: skip
WRITE = st.tuples(st.just("write"), st.lists(st.tuples(KEY, LATER, st.booleans()), min_size=1, max_size=6))
MAKE = st.tuples(st.just("make"), BOUND, BOUND, st.integers(0, 4), WRITE)
MEANWHILE = st.tuples(st.just("meanwhile"), READ, WRITE)
CLEAR = st.tuples(st.just("clear"), KEY, KEY)
INTENT = st.tuples(st.just("intent"), KEY, LATER)
CRASH = st.tuples(st.just("crash"), st.integers(0, 100))
SPOIL = st.tuples(st.just("spoil"), st.integers(0, 1 << 20), st.booleans())
ALTER = st.tuples(st.just("alter"))
STEP = st.one_of(READ, READ, READ, WRITE, MAKE, MAKE, MEANWHILE, CLEAR, INTENT, CRASH, SPOIL, ALTER)
STEPS = st.lists(STEP, min_size=1, max_size=40)


def ladder(*, by_name):
    """The versions of a table that is altered: columns added, dropped, renamed, widened, twice, and no longer NULL."""
    *first, third = versions_of(by_name=by_name)
    count = Column(5, "count", ColumnType(ColumnKind.INT4))
    state = Column(6, "state", ColumnType(ColumnKind.STRING), nullable=False, default="fresh")
    wide, wider = (structs.replace(count, type=ColumnType(kind)) for kind in (ColumnKind.INT, ColumnKind.FLOAT))
    strict = structs.replace(wider, nullable=False, default=None)
    later = [(count,), (count, state), (wide, state), (wider,), (strict,)]
    added = [structs.replace(third, version=4 + at, columns=third.columns + more) for at, more in enumerate(later)]
    return [*first, third, *added]


class Store:
    """One engine with its shelf, written at ever later timestamps, as a range is; and read with and without segments."""

    def __init__(self, *, by_name, shape, known=1):
        self.schemas = ladder(by_name=by_name)
        self.codecs = [RowCodec(schema, {s.version: s for s in self.schemas}) for schema in self.schemas]
        self.shape = shape
        self.version = known
        self.since = dict.fromkeys(range(1, known + 1), 0)
        self.engine = MemoryEngine()
        self.shelf = Shelf(self.engine.files)
        self.now = 1
        self.closed = 0
        self.span = schema_span(self.schemas[0])
        self.write([(n, 1, False) for n in range(0, KEYS, 2)])

    @property
    def known(self):
        """The versions there are."""
        return self.schemas[: self.version]

    def alter(self):
        """The next version of the table; writers use it and the one before."""
        self.version = min(self.version + 1, len(self.schemas))
        self.since.setdefault(self.version, self.now + 1)

    def row(self, number, ts):
        text = "x" * (number % 3)
        some = {"id": number, "name": text, "title": text, "score": float(ts), "added": "a" * (ts % 3)}
        # A column that must not be NULL has been filled before that was said: `count` never is.
        some |= {"count": ts, "state": text}
        codec = self.codecs[max(1, self.version - ts % 2) - 1]
        return codec.encode({column.name: some[column.name] for column in codec.schema.columns})

    def key(self, bound, otherwise):
        if bound is None:
            return otherwise
        number, behind = bound
        return self.row(number, 1)[0] + (b"\x00" if behind else b"")

    def commit(self, batch):
        noted = self.shelf.note(batch)
        self.engine.write(batch)
        self.shelf.noted(noted)

    def write(self, changes):
        batch = WriteBatch()
        for number, later, deleted in changes:
            key, value = self.row(number, self.now + later)
            batch.put(Family.DATA, key + suffix(Timestamp(self.now + later)), b"" if deleted else value)
        self.commit(batch)
        self.now += max(later for _, later, _ in changes)

    def intent(self, number, later):
        at = Timestamp(self.now + later)
        key, value = self.row(number, at)
        batch = WriteBatch()
        try:
            writes.put(self.engine, batch, key, value, ts=at, txn=Txn(b"t" * 16, key, at, 0, at, at, MIN, 1))
        except SlackwaterError:
            return
        self.commit(batch)

    def clear(self, low, high):
        """Clear a span; one that begins at the first key begins where the table does."""
        start, end = sorted((self.row(low, 1)[0], self.row(high, 1)[0] + b"\x00"))
        start = start if low else min(start, self.span.start)
        batch = WriteBatch()
        batch.delete_range(Family.DATA, start, end)
        batch.delete_range(Family.LOCK, start, end)
        self.commit(batch)

    def make(self, low, high, steps, write):
        """Make a segment of a span; after some steps something is written there, or, with all of them done, at its end."""
        start, end = sorted((self.key(low, self.span.start), self.key(high, self.span.end)))
        if start >= end:
            return
        self.closed = self.now
        making = self.shelf.begin(start, end)
        pieces = []
        with self.engine.snapshot() as frozen:
            anchor = anchor_of(frozen, start, end, closed=Timestamp(self.closed))
            covering = [
                k for k in self.shelf.overlapping(start, end) if k.record.start <= start and end <= k.record.end
            ]
            try:
                work = None
                if anchor is not None and covering and covering[0].anchor < anchor and not covering[0].broken:
                    old = covering[0]
                    work = from_columns(
                        old.opened(), old.delta.frozen(), frozen, self.known, start=start, end=end, anchor=anchor,
                        write=pieces.append, shape=self.shape,
                    )  # fmt: skip
                if anchor is not None and not covering:
                    work = from_rows(
                        frozen, self.known, start=start, end=end, anchor=anchor, write=pieces.append, shape=self.shape
                    )
                built = self.run(work, steps, write) if work is not None else None
            except SegmentDamaged as error:
                built = None
                old.broken = str(error)
        self.shelf.end(making)
        if built is None or making.spoiled:
            return
        sink = self.engine.files.create(file_name(making.number))
        sink.write(b"".join(pieces))
        sink.finish()
        batch = WriteBatch()
        kept, replaced = self.shelf.install(making, built, batch)
        self.engine.write(batch)
        self.shelf.installed(kept, replaced)

    def run(self, work, steps, write):
        done = 0
        while True:
            if done == steps:
                self.write(write[1])
            done += 1
            try:
                next(work)
            except StopIteration as end:
                return end.value

    def crash(self, percent):
        """Power fails: of what was written since the last flush, a part is there. Then the log is replayed, here: nothing."""
        self.engine = self.engine.crash(lambda unflushed: unflushed * percent // 100)
        self.shelf = Shelf(self.engine.files)
        batch = WriteBatch()
        self.shelf.load(self.engine, batch)
        self.engine.write(batch)

    def spoil(self, at, whole):
        for name, data in self.engine.files.held.items():
            damaged = bytearray(data or b"\x00")
            damaged[at % len(damaged)] ^= 1
            self.engine.files.held[name] = b"" if whole else bytes(damaged)

    def read(self, step, meanwhile=None):
        """Page by page; each page is compared with a read of just its span from rows."""
        _, low, high, back, rows, size, patches = step
        at, end = sorted((self.key(low, self.span.start), self.key(high, self.span.end)))
        ts = max(1, self.now - back)
        plan = ScanPlan(tuple(self.known), max(v for v, since in self.since.items() if since <= ts))
        while at < end:
            bulk = bulk_of(ScanArrow(at, end, plan.encode(), patches), ts, rows, size)
            with self.engine.snapshot() as frozen:
                bulk.look_up(self.shelf)
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
                    bulk.hand_in(self.shelf)
                    for kept in bulk.broken():
                        batch = WriteBatch()
                        self.shelf.drop(kept, batch, kept.broken)
                        self.engine.write(batch)
                upto = page.resume or end
                (plain,) = bulk_of(ScanArrow(at, upto, plan.encode()), ts).run(frozen)
            assert shown(page, plan) == shown(plain, plan)
            assert page.rows == plain.rows
            assert upto > at
            at = upto


def bulk_of(request, ts, rows=0, size=1 << 20):
    bulk = BulkReads(max_rows=rows, max_bytes=size)
    bulk.reads.append(BulkRead(request, Timestamp(ts), MIN))
    return bulk


def shown(page, plan):
    return [row for batch in unpack(page.blocks, plan_schema(plan), page.patches) for row in batch.to_pylist()]


def play(store, steps):
    for step in steps:
        match step[0]:
            case "read":
                store.read(step)
            case "meanwhile":
                store.read(step[1], step[2])
            case name:
                getattr(store, name)(*step[1:])
        records = [kept.record for kept in store.shelf]
        assert records == sorted(records, key=lambda record: record.start)
        assert all(a.end <= b.start for a, b in pairwise(records))


@settings(max_examples=150, deadline=None)
@given(
    by_name=st.booleans(), known=st.integers(1, 8), steps=STEPS,
    shape=st.sampled_from([Shape(7), Shape(batch_bytes=200), Shape()]),
)  # fmt: skip
def test_segments_give_what_rows_give(by_name, known, steps, shape):
    play(Store(by_name=by_name, shape=shape, known=known), steps)


def test_segments_are_used_and_deltas_outlive_a_crash():
    """Without this, everything above would hold for a shelf that finds nothing."""
    store = Store(by_name=False, shape=Shape(7))
    read = ("read", None, None, 0, 0, 1 << 20, True)
    play(store, [("make", None, None, 99, ())])
    play(store, [read])
    assert (store.shelf.pages, store.shelf.row_pages) == (1, 0)
    play(store, [("write", [(5, 1, False), (10, 2, True)]), read, ("crash", 100), read])
    assert (store.shelf.pages, store.shelf.row_pages) == (1, 0)
    (kept,) = store.shelf
    assert len(kept.delta) == 2
    play(store, [("make", None, None, 1, ("write", [(7, 1, False)])), read])
    (kept,) = store.shelf
    assert kept.record.number > 1
    assert len(kept.delta) == 1
    play(store, [("clear", 0, 50), read])
    (kept,) = store.shelf  # what is left of it is used on
    assert kept.record.start == store.row(50, 1)[0] + b"\x00"
    play(store, [("spoil", 40, True), read])
    assert not list(store.shelf)
    assert store.shelf.damaged == 1


def test_a_segment_serves_later_versions_of_its_table():
    """Without this, a segment could be of no use from the first change of its table on."""
    store = Store(by_name=False, shape=Shape(7), known=4)
    play(store, [("make", None, None, 99, ())])
    for pages in range(1, 4):  # a column is added, widened, widened again
        play(store, [("alter",), ("write", [(5, 1, False), (6, 2, True)]), ("read", None, None, 0, 0, 1 << 20, True)])
        assert (store.shelf.pages, store.shelf.row_pages) == (pages, 0)
    play(store, [("alter",), ("read", None, None, 0, 0, 1 << 20, True)])  # NULL is forbidden, and no row has it
    assert (store.shelf.pages, store.shelf.row_pages) == (4, 0)
    play(store, [("make", None, None, 99, ())])
    (kept,) = store.shelf
    assert kept.opened().index.schema.version == len(store.schemas)


def test_a_worn_segment_goes_with_the_batch_that_wears_it_out():
    store = Store(by_name=False, shape=Shape())
    play(store, [("make", None, None, 99, ())])
    (kept,) = store.shelf
    kept.delta.stored += [b"x" * 20] * 5_000
    play(store, [("write", [(5, 1, False)]), ("crash", 100)])
    assert not list(store.shelf)
    assert store.shelf.flushing() == []
    assert store.engine.files.names() == []
