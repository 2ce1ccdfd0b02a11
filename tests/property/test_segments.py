"""A read of a segment and its changes gives what rows give: any time, keys, columns, predicates and versions (I-38)."""

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.bulk_arrow import plan_schema, unpack
from slackwater.codec.layout import schema_span
from slackwater.codec.rows import RowCodec
from slackwater.errors import ReadWithinUncertainty, SegmentDamaged
from slackwater.model.predicates import Op, Predicate
from slackwater.model.scan_plan import ScanPlan
from slackwater.protocol.range.bulk import ScanArrow
from slackwater.replica.evaluate_bulk import BulkRead, BulkReads
from slackwater.runtime.seam import Family
from slackwater.storage.columns import reading
from slackwater.storage.columns import segment as segments
from slackwater.storage.columns.build import Shape, from_columns, from_rows
from slackwater.storage.columns.delta import Delta
from slackwater.storage.columns.ipc import packed_columns
from slackwater.storage.columns.reading import PlanReader, read_segment
from slackwater.storage.columns.segment import Segment
from slackwater.storage.files import MemoryFile
from slackwater.storage.memory import MemoryEngine
from slackwater.storage.versions import suffix
from tests.property.test_bulk import versions_of

KEYS = 120
ANCHOR = 500
TOP = 1_000
PREDICATES = st.lists(
    st.one_of(
        st.builds(Predicate, st.just("id"), st.sampled_from([Op.LT, Op.LE, Op.GT, Op.GE, Op.EQ, Op.NE]), st.integers(-5, KEYS)),
        st.builds(Predicate, st.just("id"), st.just(Op.IN), st.lists(st.integers(0, KEYS), max_size=3)),
        st.builds(Predicate, st.just("score"), st.sampled_from([Op.LT, Op.GE, Op.IS_NULL, Op.IS_NOT_NULL]), st.floats(0, TOP)),
    ),
    max_size=2,
)  # fmt: skip
COLUMNS = st.one_of(st.none(), st.lists(st.sampled_from(["id", "name", "score"]), unique=True, max_size=3))


class Table:
    """Rows in an engine, written through a delta once there is a segment."""

    def __init__(self, *, by_name, seed, shape):
        self.draw = random.Random(seed)
        self.schemas = versions_of(by_name=by_name)
        self.codecs = [RowCodec(schema, {s.version: s for s in self.schemas}) for schema in self.schemas]
        self.engine = MemoryEngine()
        self.shape = shape
        self.span = schema_span(self.schemas[0])
        self.delta = Delta()

    def key(self, number, behind=False):
        return self.codecs[0].encode({"id": number, "name": "x" * (number % 3), "score": 0.0})[0] + b"\0" * behind

    def write(self, number, ts, *, version, deleted=False):
        codec, text = self.codecs[version - 1], "x" * (number % 3)
        score = None if self.draw.random() < 0.2 else float(ts)
        everything = {"id": number, "name": text, "title": text, "score": score, "added": "a" * (ts % 3)}
        key, value = codec.encode({c.name: everything[c.name] for c in codec.schema.columns})
        stored = key + suffix(Timestamp(ts))
        batch = self.engine.batch()
        batch.put(Family.DATA, stored, b"" if deleted else value)
        self.engine.write(batch)
        if ts > ANCHOR:
            self.delta.stored.append(stored)

    def fill(self, *, before, after, upto_version):
        """Rows up to the anchor, and changes above it, some of them of a later version of the table."""
        for number in range(0, KEYS, 2):
            for ts in self.draw.sample(range(1, ANCHOR), before):
                self.write(number, ts, version=self.draw.randint(1, upto_version), deleted=self.draw.random() < 0.2)
        for _ in range(after):
            number, ts = self.draw.randrange(KEYS), self.draw.randint(ANCHOR + 1, TOP)
            self.write(number, ts, version=self.draw.randint(1, 3), deleted=self.draw.random() < 0.3)

    def build(self, known, *, start=None, end=None):
        pieces = []
        made = from_rows(
            self.engine, self.schemas[:known], start=start or self.span.start, end=end or self.span.end,
            anchor=Timestamp(ANCHOR), write=pieces.append, shape=self.shape,
        )  # fmt: skip
        built = finish(made)
        segment = Segment(MemoryFile(b"".join(pieces)))
        assert segment.index == built.made
        return segment, built.changed

    def rows(self, plan, start, end, *, ts):
        bulk = BulkReads(max_rows=0, max_bytes=1 << 20)
        bulk.reads.append(BulkRead(ScanArrow(start, end, plan.encode()), Timestamp(ts), MIN))
        (page,) = bulk.run(self.engine)
        assert page.resume is None
        return [row for batch in unpack(page.blocks, plan_schema(plan)) for row in batch.to_pylist()]

    def columns(self, segment, changes, plan, start, end, *, ts, bound=MIN):
        """What the segment gives, or None when it says that it cannot; merged by the node and by the reader, twice."""
        reader = PlanReader(plan)
        first, *others = (
            self.read(segment, changes, plan, reader, start, end, ts=ts, bound=bound, patches=patches)
            for patches in (False, True, True)
        )
        assert all(other == first for other in others)
        return first

    def read(self, segment, changes, plan, reader, start, end, *, ts, bound, patches):
        places = reader.fit(segment)
        if places is None:
            return None
        at, found = start, []
        pieces = read_segment(
            segment, changes, self.engine, reader, places,
            start=start, end=end, ts=Timestamp(ts), bound=Timestamp(max(ts, bound)), patches=patches,
        )  # fmt: skip
        for piece in pieces:
            assert patches or piece.patch is None
            (batch,) = unpack([piece.message], plan_schema(plan), [piece.patch] if piece.patch else [])
            batch.validate(full=True)
            assert batch.num_rows == piece.rows
            assert at < piece.upto <= end
            at = piece.upto
            found += batch.to_pylist() if batch.num_columns else [{}] * batch.num_rows
        assert at == end
        return found


def finish(making):
    try:
        while True:
            next(making)
    except StopIteration as done:
        return done.value


SHAPES = st.sampled_from([Shape(7, 1 << 20, 1 << 20), Shape(1 << 15, 300, 1 << 20), Shape()])


@settings(max_examples=120, deadline=None)
@given(
    by_name=st.booleans(), seed=st.integers(0, 1 << 30), shape=SHAPES, before=st.integers(0, 4), after=st.integers(0, 60),
    known=st.integers(1, 3), read=st.integers(1, 3), ts=st.integers(ANCHOR, TOP), columns=COLUMNS, predicates=PREDICATES,
    low=st.tuples(st.integers(0, KEYS), st.booleans()), high=st.tuples(st.integers(0, KEYS), st.booleans()),
    whole=st.booleans(),
)  # fmt: skip
def test_a_segment_and_its_changes_are_what_rows_are(
    by_name, seed, shape, before, after, known, read, ts, columns, predicates, low, high, whole
):
    table = Table(by_name=by_name, seed=seed, shape=shape)
    table.fill(before=before, after=after, upto_version=known)
    segment, changed = table.build(known)
    assert sorted(changed) == sorted(set(table.delta.stored))
    start, end = (table.span.start, table.span.end) if whole else sorted((table.key(*low), table.key(*high)))
    if start >= end:
        return
    names = {c.name for c in table.schemas[read - 1].columns}
    plan = ScanPlan(
        tuple(table.schemas), read,
        None if columns is None else tuple(c for c in columns if c in names),
        tuple(p for p in predicates if p.column in names),
    )  # fmt: skip
    got = table.columns(segment, table.delta.frozen(), plan, start, end, ts=ts)
    if got is None:
        assert known > read  # only a column that was dropped before the segment was made is not in it
        return
    assert got == ([{}] * len(got) if plan.columns == () else table.rows(plan, start, end, ts=ts))
    if plan.columns == ():
        every = ScanPlan(plan.schemas, read, ("id",), plan.predicates)
        assert len(got) == len(table.rows(every, start, end, ts=ts))


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(st.one_of(st.tuples(st.just("write"), st.integers(1, 20)), st.tuples(st.just("read"), st.integers(0, 21)))),
    early=st.integers(0, 5),
)  # fmt: skip
def test_what_was_made_of_changes_is_given_to_reads_that_see_the_same_ones(steps, early):
    """Reads at any times, in any order, some of them of what there was some writes ago."""
    delta, views = Delta(), []
    for number, (what, ts) in enumerate(steps):
        if what == "write":
            delta.stored.append(b"k%d" % number + suffix(Timestamp(ts)))
            views.append(delta.frozen())
        elif views:
            view = views[-1 - min(early, len(views) - 1)] if number % 2 else views[-1]
            visible = [v for v in delta.stored[: len(view)] if v[-8:] >= suffix(Timestamp(ts))]
            seen = view.seen([b""], 0, ts=Timestamp(ts), bound=Timestamp(ts))
            assert seen.newest() == sorted(visible)
            if visible:
                assert seen.made() in (None, visible)
                delta.keep(seen, visible, 1)
                assert seen.made() == visible


@settings(max_examples=80, deadline=None)
@given(
    by_name=st.booleans(), seed=st.integers(0, 1 << 30), shape=SHAPES, before=st.integers(0, 4), after=st.integers(0, 60),
    known=st.integers(1, 3), then=st.integers(ANCHOR, TOP), ts=st.integers(ANCHOR, TOP), cut=st.booleans(),
)  # fmt: skip
def test_a_segment_made_of_a_segment_is_what_rows_are(by_name, seed, shape, before, after, known, then, ts, cut):
    table = Table(by_name=by_name, seed=seed, shape=shape)
    table.fill(before=before, after=after, upto_version=known)
    segment, _ = table.build(known)
    start = table.key(KEYS // 4) if cut else table.span.start
    end = table.key(KEYS // 2) if cut else table.span.end
    if start >= end:
        return
    pieces = []
    making = from_columns(
        segment, table.delta.frozen(), table.engine, table.schemas,
        start=start, end=end, anchor=Timestamp(then), write=pieces.append, shape=shape,
    )  # fmt: skip
    built = finish(making)
    again = Segment(MemoryFile(b"".join(pieces)))
    again.verify()
    assert again.anchor == then
    plan = ScanPlan(tuple(table.schemas), 3)
    if ts >= then:
        got = table.columns(again, Delta(built.changed).frozen(), plan, start, end, ts=ts)
        assert got == table.rows(plan, start, end, ts=ts)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 30), after=st.integers(0, 10), ts=st.integers(ANCHOR, TOP), more=st.integers(0, 300))
def test_what_may_have_been_written_before_is_uncertain_here_too(seed, after, ts, more):
    table = Table(by_name=False, seed=seed, shape=Shape(7))
    table.fill(before=1, after=after, upto_version=1)
    segment, _ = table.build(1)
    plan = ScanPlan(tuple(table.schemas), 2)
    stamps = [int.from_bytes(stored[-8:], "big") ^ ((1 << 64) - 1) for stored in table.delta.stored]
    read = (segment, table.delta.frozen(), plan, table.span.start, table.span.end)
    if any(ts < stamp <= ts + more for stamp in stamps):
        with pytest.raises(ReadWithinUncertainty):
            table.columns(*read, ts=ts, bound=ts + more)
    else:
        assert table.columns(*read, ts=ts, bound=ts + more) == table.rows(plan, table.span.start, table.span.end, ts=ts)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 30), at=st.integers(0, 1 << 30), bit=st.integers(0, 7), cut=st.booleans())
def test_no_flipped_bit_and_no_cut_is_read(seed, at, bit, cut):
    table = Table(by_name=True, seed=seed, shape=Shape(20))
    table.fill(before=2, after=5, upto_version=1)
    pieces = []
    finish(
        from_rows(
            table.engine,
            table.schemas[:1],
            start=table.span.start,
            end=table.span.end,
            anchor=Timestamp(ANCHOR),
            write=pieces.append,
            shape=table.shape,
        )
    )
    whole = b"".join(pieces)
    plan = ScanPlan(tuple(table.schemas), 1)
    wanted = table.rows(plan, table.span.start, table.span.end, ts=TOP)
    spoiled = bytearray(whole)
    spoiled[at % len(whole)] ^= 1 << bit
    data = whole[: at % len(whole)] if cut else bytes(spoiled)
    try:
        segment = Segment(MemoryFile(data))
        got = table.columns(segment, table.delta.frozen(), plan, table.span.start, table.span.end, ts=TOP)
    except SegmentDamaged:
        return
    assert got == wanted  # the flipped bit was in padding, or in what only other readers look at
    assert not cut


def test_a_segment_is_an_arrow_stream_for_any_reader():
    table = Table(by_name=False, seed=1, shape=Shape(20))
    table.fill(before=1, after=0, upto_version=1)
    pieces = []
    built = finish(
        from_rows(
            table.engine,
            table.schemas[:1],
            start=table.span.start,
            end=table.span.end,
            anchor=Timestamp(ANCHOR),
            write=pieces.append,
            shape=table.shape,
        )
    )
    found = pa.ipc.open_stream(b"".join(pieces)).read_all()
    assert found.num_rows == built.made.rows > 20
    assert found.column_names == ["id", "name", "score", "_begin", "_key"]
    assert set(found["_begin"].to_pylist()) <= set(range(1, ANCHOR + 1))
    assert found["_key"].to_pylist() == sorted(found["_key"].to_pylist())


def test_batches_that_cannot_match_are_not_read(monkeypatch):
    """Without this, everything above would hold for statistics that say nothing."""
    table = Table(by_name=False, seed=1, shape=Shape(10))
    for number in range(KEYS):
        table.write(number, 5, version=1)
    segment, _ = table.build(1)
    read, real = [], Segment.packed

    def noted(segment, number, places):
        read.append(number)
        return real(segment, number, places)

    monkeypatch.setattr(Segment, "packed", noted)
    for op, literal, batches in ((Op.EQ, 25, {2}), (Op.LT, 10, {0}), (Op.GE, 110, {11}), (Op.IN, [5, 111], {0, 11})):
        plan = ScanPlan(tuple(table.schemas), 1, None, (Predicate("id", op, literal),))
        read.clear()
        got = table.columns(segment, table.delta.frozen(), plan, table.span.start, table.span.end, ts=TOP)
        assert set(read) == batches
        assert got == table.rows(plan, table.span.start, table.span.end, ts=TOP)


def test_one_column_is_read_without_the_others():
    table = Table(by_name=False, seed=1, shape=Shape(10))
    table.fill(before=1, after=0, upto_version=1)
    segment, _ = table.build(1)
    spoiled = bytearray(segment._file.read(0, segment.size))
    for batch in segment.index.batches:
        for at, size in batch.chunks[1].buffers:
            spoiled[at : at + size] = bytes(size)
    damaged = Segment(MemoryFile(bytes(spoiled)))
    one, every = ScanPlan(tuple(table.schemas), 1, ("id",)), ScanPlan(tuple(table.schemas), 1)
    assert table.columns(damaged, table.delta.frozen(), one, table.span.start, table.span.end, ts=TOP)
    with pytest.raises(SegmentDamaged):
        table.columns(damaged, table.delta.frozen(), every, table.span.start, table.span.end, ts=TOP)


def test_much_that_was_added_in_one_place_comes_in_pieces(monkeypatch):
    monkeypatch.setattr(reading, "PICKED_BYTES_MAX", 300)
    table = Table(by_name=False, seed=1, shape=Shape(10))
    for number in range(20):
        table.write(number, 5, version=1)
    segment, _ = table.build(1)
    for number in range(10, KEYS):
        table.write(number, ANCHOR + 5, version=1)
    plan = ScanPlan(tuple(table.schemas), 1)
    pieces = read_segment(
        segment, table.delta.frozen(), table.engine, PlanReader(plan), [0, 1, 2],
        start=table.span.start, end=table.span.end, ts=Timestamp(TOP), bound=Timestamp(TOP),
    )  # fmt: skip
    assert max(piece.rows for piece in pieces) < 30
    got = table.columns(segment, table.delta.frozen(), plan, table.span.start, table.span.end, ts=TOP)
    assert got == table.rows(plan, table.span.start, table.span.end, ts=TOP)


def test_batches_of_which_nothing_has_changed_are_copied(monkeypatch):
    """A row that is written anew costs the next segment one batch, not all of them."""
    table = Table(by_name=False, seed=1, shape=Shape(7, 1 << 20, 1 << 20))
    table.fill(before=2, after=0, upto_version=1)
    old, _ = table.build(1)
    table.write(40, ANCHOR + 1, version=1)
    packed, pieces = [], []
    monkeypatch.setattr(segments, "packed_columns", lambda batch: packed.append(batch) or packed_columns(batch))
    built = finish(
        from_columns(
            old, table.delta.frozen(), table.engine, table.schemas[:1], start=table.span.start, end=table.span.end,
            anchor=Timestamp(ANCHOR + 1), write=pieces.append, shape=table.shape,
        )
    )  # fmt: skip
    new = Segment(MemoryFile(b"".join(pieces)))
    assert len(old.firsts) > 3
    assert len(packed) == 1
    new.verify()
    assert new.index == built.made
    assert new.anchor == ANCHOR + 1
    plan = ScanPlan(tuple(table.schemas[:1]), 1)
    whole = (table.span.start, table.span.end)
    assert table.columns(new, Delta().frozen(), plan, *whole, ts=TOP) == table.rows(plan, *whole, ts=TOP)
    for column in table.schemas[0].columns:
        known, found = old.statistics(column.id), new.statistics(column.id)
        changed = [at for at, (a, b) in enumerate(zip(known[1], found[1], strict=True)) if a != b] if known else []
        assert (known is None) == (found is None)
        assert len(changed) <= 1
