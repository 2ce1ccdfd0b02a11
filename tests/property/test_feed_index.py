"""What a store remembers of recent changes is exactly what a scan would find, through flushes and crashes, or it says no."""

from __future__ import annotations

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from slackwater.clock.timestamp import MAX, MIN, Timestamp
from slackwater.codec.layout import replica_index, versioned
from slackwater.feeds import index as module
from slackwater.feeds.history import Indexed
from slackwater.feeds.index import TimeIndex
from slackwater.model.ids import Position, RangeId
from slackwater.model.spans import Span
from slackwater.protocol.feeds.events import Changes
from slackwater.runtime.seam import Family
from slackwater.storage.batch import WriteBatch
from slackwater.storage.memory import MemoryEngine
from slackwater.storage.reads import scan_versions

RANGE = RangeId(5)
WHOLE = Span(b"\x01", b"\x09")
versions = st.lists(st.tuples(st.integers(1, 8), st.integers(-12, 4)), min_size=1, max_size=4)
"""(key, how far from the clock): most are committed about when they are written, some long before."""
TICK = 5
spans = st.tuples(st.integers(1, 8), st.integers(1, 8)).map(lambda p: Span(bytes([min(p)]), bytes([max(p) + 1])))
steps = st.lists(
    st.one_of(
        versions,
        st.tuples(st.just(WHOLE) | spans, st.integers(0, 20)),
        st.sampled_from(["flush", "flush", "stray flush", "crash", "crash", "let go"]),
    ),
    max_size=25,
)


class Store:
    """A store with one range: what is durable, and what is not yet."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.engine = MemoryEngine()
        self.position = 0
        self.durable: tuple[dict, int] = ({}, 0)
        self.log: list[list[tuple[int, int]]] = []
        self.index = self.load()

    def load(self) -> TimeIndex:
        return TimeIndex.load(self.engine, RANGE, position=Position(self.position), limit=self.limit)

    def apply(self, rows: list[tuple[int, int]]) -> None:
        batch = WriteBatch()
        for k, ts in rows:
            batch.put(Family.DATA, versioned(bytes([k]), Timestamp(ts)), b"v%d" % ts)
        self.engine.write(batch)
        self.position += 1
        self.index.add(Changes([bytes([k]) for k, _ in rows], [ts for _, ts in rows], [b"" for _ in rows]))

    @property
    def now(self) -> int:
        return 20 + TICK * len(self.log)

    def write(self, rows: list[tuple[int, int]]) -> None:
        self.log.append([(k, self.now + delta) for k, delta in rows])
        self.apply(self.log[-1])

    def spill(self) -> None:
        batch = WriteBatch()
        self.index.spill(batch, position=Position(self.position))
        self.engine.write(batch)

    def flush(self) -> None:
        self.durable = self.contents(), self.position

    def contents(self) -> dict:
        found = {}
        for family in (Family.DATA, Family.LOCAL):
            keys, values = self.engine.cursor(family, start=b"\x00", end=b"\xff").chunk(1 << 20)
            found[family] = dict(zip(keys, values, strict=True))
        return found

    def crash(self) -> None:
        """Back to what is durable, and the log is applied again from there."""
        content, self.position = self.durable
        self.engine = MemoryEngine()
        batch = WriteBatch()
        for family, pairs in content.items():
            for key, value in pairs.items():
                batch.put(family, key, value)
        self.engine.write(batch)
        self.index = self.load()
        for rows in self.log[self.position :]:
            self.apply(rows)

    def let_go(self) -> None:
        """Nobody listens for an entry, and then somebody does again."""
        self.log.append([])
        self.position += 1
        self.index = self.load()

    def scan(self, span: Span, ago: int) -> None:
        after = max(0, self.now - ago)
        found = [ts for rows in self.log for k, ts in rows if bytes([k]) in span and ts > after]
        self.index.coverage.scanned(span, Timestamp(max([after, *found])))


@given(
    before=versions,
    story=steps,
    limit=st.sampled_from([0, 40, 200, 1000]),
    asked=st.tuples(st.just(WHOLE) | spans, st.integers(0, 40)),
)
def test_it_knows_everything_or_says_that_it_does_not(before, story, limit, asked) -> None:
    with mock.patch.object(module, "CHUNK_ROWS", 3):
        store = Store(limit)
        store.write(before)
        store.index = store.load()  # it was not listening when that was written
        for step in story:
            if isinstance(step, list):
                store.write(step)
            elif isinstance(step, tuple):
                store.scan(*step)
            elif step == "flush":
                store.spill()
                store.flush()
            elif step == "stray flush":
                store.flush()
            elif step == "crash":
                store.crash()
            else:
                store.let_go()
        span, after = asked[0], max(0, store.now - asked[1])
        lookup = store.index.lookup(span, Timestamp(after))
        if lookup is None:
            return
        reading, got = Indexed(lookup), []
        with store.engine.snapshot() as frozen:
            done = False
            while not done:
                changes, done = reading.next(frozen, bytes_max=1)
                got += zip(changes.keys, changes.timestamps, changes.values, strict=True)
            rows = scan_versions(frozen, span.start, span.end, after=Timestamp(after), upto=MAX)
        assert got == list(zip(rows.keys, rows.timestamps, rows.values, strict=True))


@given(st.lists(versions, min_size=1, max_size=12), st.integers(0, 60))
def test_it_stays_small_and_leaves_nothing_behind(blocks, limit) -> None:
    with mock.patch.object(module, "CHUNK_ROWS", 3):
        store = Store(limit)
        for rows in blocks:
            store.write(rows)
            store.spill()
        chunks = [len(v) for k, v in store.contents()[Family.LOCAL].items() if k != replica_index(RANGE)]
        assert sum(chunks) <= limit + max(chunks, default=0), "the open chunk is on top"
        batch = WriteBatch()
        store.index.clear(batch)
        store.engine.write(batch)
        assert not store.contents()[Family.LOCAL]


def test_nothing_is_known_before_a_scan() -> None:
    store = Store(1 << 20)
    store.write([(1, 0)])
    assert store.index.lookup(WHOLE, MIN) is None
    store.scan(WHOLE, 1000)
    found = store.log[0][0][1]
    assert store.index.lookup(WHOLE, Timestamp(found)) is not None
    assert store.index.lookup(WHOLE, Timestamp(found - 1)) is None, "below what the scan found"


def remembered() -> tuple[Store, Timestamp]:
    """A store that can answer for everything after a timestamp, flushed, and then written to."""
    store = Store(1 << 20)
    store.write([(1, 0)])
    store.scan(WHOLE, 1000)
    covered = Timestamp(store.log[0][0][1])
    store.spill()
    store.flush()
    store.write([(2, 0)])
    return store, covered


def test_after_a_crash_it_goes_on_from_the_flush() -> None:
    store, covered = remembered()
    store.crash()
    lookup = store.index.lookup(WHOLE, covered)
    assert lookup is not None
    with store.engine.snapshot() as frozen:
        assert lookup.versions(frozen) == [(b"\x02", store.log[1][0][1])]


def test_what_was_flushed_without_it_makes_it_stale() -> None:
    store, covered = remembered()
    store.flush()
    store.crash()
    assert store.index.lookup(WHOLE, covered) is None, "the last write is in no chunk"


def test_what_nobody_listened_to_makes_it_stale() -> None:
    store, covered = remembered()
    store.let_go()
    assert store.index.lookup(WHOLE, covered) is None
