"""Entries of rows as of T, put in blocks between any writes of those rows: the index equals the table in the end."""

from __future__ import annotations

import random

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from slackwater.catalog.planning import WritePlanner
from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.index_entries import IndexCodec
from slackwater.codec.layout import schema_span
from slackwater.codec.rows import RowCodec
from slackwater.errors import ConditionFailed, ConflictError, WriteTooOld
from slackwater.model.indexes import ElementState, Index
from slackwater.model.kinds import INT, STRING
from slackwater.model.schema import Column, KeyColumn, TableSchema
from slackwater.model.spans import Span
from slackwater.model.tables import TableDescriptor
from slackwater.model.txns import Resolution, Txn, TxnStatus
from slackwater.protocol.client.calls import WriteKind
from slackwater.runtime.seam import Family
from slackwater.storage import intents, reads, stats, writes
from slackwater.storage.memory import MemoryEngine
from slackwater.storage.versions import newest, suffix
from tests.table_helpers import entries_of

SCHEMA = TableSchema(
    7, "t", 1, (Column(1, "id", INT, nullable=False), Column(2, "a", INT), Column(3, "b", STRING)), (KeyColumn(1),)
)
CODEC = RowCodec(SCHEMA)
SPAN = schema_span(SCHEMA)
ROW = st.fixed_dictionaries(
    {"id": st.integers(0, 5), "a": st.none() | st.integers(0, 3), "b": st.sampled_from(["x", "y"])}
)
ROWS = st.lists(ROW, min_size=1, max_size=3, unique_by=lambda row: row["id"])
THERE = st.lists(ROW, min_size=2, max_size=6, unique_by=lambda row: row["id"])
KINDS = st.sampled_from(list(WriteKind))
WRITES = st.lists(st.tuples(KINDS, ROWS), max_size=4)
BEGIN, FINISH, BLOCK, WRITE = "begin", "finish", "block", "write"
STEPS = st.lists(st.tuples(st.sampled_from([BEGIN, FINISH, BLOCK, WRITE]), KINDS, ROWS, st.booleans()), max_size=16)


class Store:
    """A table with an index, written by planned writes at growing timestamps, some of them transactions that take their time."""

    def __init__(self, unique: bool) -> None:
        self.engine = MemoryEngine()
        self.now = 10
        self.index = Index(2, "i", (KeyColumn(2),), unique=unique, storing=(3,), state=ElementState.BACKFILLING)
        self.codec = IndexCodec(SCHEMA, self.index)
        self.table = TableDescriptor(SCHEMA, Timestamp(1), 4, indexes=(self.index,))
        self.planner = WritePlanner(self.table)
        self.open: tuple[Txn, dict[bytes, bytes | None], dict[bytes, Timestamp], set[bytes]] | None = None
        self.stats = stats.ZERO

    def tick(self) -> Timestamp:
        self.now += 1
        return Timestamp(self.now)

    def get(self, key: bytes):
        return reads.get(self.engine, key, ts=Timestamp(self.now))

    def planned(self, kind, rows):
        """(puts and deletes, when each key that was read was written); None if the write is refused, or meets an intent."""
        pairs = sorted(CODEC.encode(row) for row in rows)
        keys = [key for key, _ in pairs]
        begun = self.planner.begin(kind, keys, [] if kind is WriteKind.DELETE else [value for _, value in pairs])
        try:
            seen = {key: self.get(key) for key in begun.reads()}
            seen |= {key: self.get(key) for key in begun.further_reads({k: v.value for k, v in seen.items()})}
            made = begun.plan({key: one.value for key, one in seen.items()})
        except (ConflictError, ConditionFailed):
            return None
        return made.puts | dict.fromkeys(made.deletes, None), {key: written_at(self.engine, key) for key in seen}

    def lay(self, ts, changes, txn=None):
        """Write values or intents; an intent that is too low goes up, and its transaction with it."""
        batch = self.engine.batch()
        for key, value in sorted(changes.items()):
            while True:
                try:
                    if value is None:
                        done = writes.delete(self.engine, batch, key, ts=ts, txn=txn)
                    else:
                        done = writes.put(self.engine, batch, key, value, ts=ts, txn=txn)
                    break
                except WriteTooOld as error:
                    ts = Timestamp(error.facts["existing"] + 1)
            self.stats = self.stats.plus(done.stats)
        self.engine.write(batch)
        self.now = max(self.now, ts)
        return ts

    def write(self, kind, rows) -> None:
        found = self.planned(kind, rows)
        if found is None:
            return
        try:
            self.lay(self.tick(), found[0])
        except ConflictError:
            event("a write met an intent")

    def begin(self, kind, rows, *, entries_too: bool) -> None:
        """Rows become intents, and their entries too or only at the end."""
        if self.open is not None or (found := self.planned(kind, rows)) is None:
            return
        changes, seen = found
        ts = self.tick()
        txn = Txn(b"t" * 16, min(changes), ts, 0, ts, ts, MIN, self.now)
        first = {key for key in changes if entries_too or key in SPAN}
        self.open = txn, changes, seen, first
        self.lay(ts, {key: changes[key] for key in first}, txn)

    def finish(self, *, commit: bool) -> None:
        if self.open is None:
            return
        txn, changes, seen, first = self.open
        self.open = None
        rest = {key: value for key, value in changes.items() if key not in first}
        ts = self.lay(txn.write_ts, rest, txn)
        # What it read must hold at its commit, or it is run again by its client: that is another write.
        moved = any(written_at(self.engine, key) != when for key, when in seen.items())
        status = TxnStatus.COMMITTED if commit and not moved else TxnStatus.ABORTED
        event(f"a transaction {status.value}, {'moved' if moved else 'as it read'}")
        batch = self.engine.batch()
        for key in sorted(changes):
            done = intents.resolve(self.engine, batch, key, Resolution(txn.txn_id, 0, status, ts))
            self.stats = self.stats.plus(done.stats)
        self.engine.write(batch)
        self.now = max(self.now, ts)

    def fill(self, block, above, *, commit: bool) -> list[bytes]:
        """Put a block, after waiting for an intent that is in the way."""
        keys, values = [key for key, _ in block], [value for _, value in block]
        for _ in range(2):
            batch = self.engine.batch()
            try:
                left, done = writes.fill_rows(
                    self.engine, batch, keys, values, ts=self.tick(), above=above, alone=self.index.unique
                )
                break
            except ConflictError:
                event("a block met an intent")
                self.finish(commit=commit)
        if done is not None:
            self.stats = self.stats.plus(done.stats)
        self.engine.write(batch)
        return left

    def rows(self, span, *, wait=False):
        try:
            return reads.scan(self.engine, span.start, span.end, ts=Timestamp(self.now))
        except ConflictError:
            self.finish(commit=wait)
            return reads.scan(self.engine, span.start, span.end, ts=Timestamp(self.now))

    def entries(self) -> dict[bytes, bytes]:
        span = schema_span(self.codec.schema)
        found = reads.scan(self.engine, span.start, span.end, ts=Timestamp(self.now))
        return dict(zip(found.keys, found.values, strict=True))


def written_at(engine, key) -> Timestamp:
    found = newest(engine, key)
    return MIN if found is None else found.ts


def one_run(store, span, steps, size) -> list[bytes]:
    """Fill in the rows of a span as they are now, block by block between writes; returns the keys that are to be settled."""
    at = store.tick()
    found = store.rows(span, wait=True)
    made = sorted(zip(*entries_of(store.table, store.index, found.keys, found.values), strict=True))
    keys = [key for key, _ in made]
    unsettled = [key for key in keys if keys.count(key) > 1]
    alone = [pair for pair in made if keys.count(pair[0]) == 1]
    blocks = [alone[low : low + size] for low in range(0, len(alone), size)]
    for what, kind, given_rows, truth in steps:
        if what == WRITE:
            store.write(kind, given_rows)
        elif what == BEGIN:
            store.begin(kind, given_rows, entries_too=truth)
        elif what == FINISH:
            store.finish(commit=truth)
        elif blocks:
            unsettled += store.fill(blocks[0], at, commit=truth)
            if truth or kind is WriteKind.UPSERT:
                blocks.pop(0)
            else:
                event("a block is sent twice, for its answer was lost")
    for block in blocks:
        unsettled += store.fill(block, at, commit=True)
    return unsettled


@settings(max_examples=400)
@given(THERE, WRITES, STEPS, STEPS, st.integers(0, 6), st.integers(1, 4), st.booleans())
def test_an_index_that_is_filled_between_writes_equals_its_table(before, early, first, second, cut, size, unique):
    """In two runs of different times: what the first has put, the second meets."""
    store = Store(unique)
    kept, store.planner = store.planner, WritePlanner(TableDescriptor(SCHEMA, Timestamp(1), 4))
    store.write(WriteKind.UPSERT, before)
    store.planner = kept
    for kind, given_rows in early:
        store.write(kind, given_rows)
    middle = CODEC.key([cut])
    unsettled = one_run(store, Span(SPAN.start, middle), first, size)
    unsettled += one_run(store, Span(middle, SPAN.end), second, size)
    store.finish(commit=True)
    rows = store.rows(SPAN)
    wanted = sorted(zip(*entries_of(store.table, store.index, rows.keys, rows.values), strict=True))
    shared = {key for key, _ in wanted if [k for k, _ in wanted].count(key) > 1}
    if shared:
        event("two rows of one value")
        assert unique
        assert shared <= set(unsettled), "rows of one value are settled, which says so, and the index is taken back"
        return
    entries = store.entries()
    missing = {key: value for key, value in wanted if key not in entries}
    assert set(missing) <= (set(unsettled) if unique else set()), "what a block left out, it reported"
    store.lay(store.tick(), missing)
    assert store.entries() == dict(wanted)
    span = schema_span(store.codec.schema)
    assert stats.recompute_now(store.engine, SPAN.start, span.end) == store.stats


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1 << 30), stored=st.sampled_from([0, 5, 60, 300]), filled=st.sampled_from([1, 6, 40]),
    there=st.sampled_from([0.0, 0.05, 0.9]), deep=st.booleans(), ragged=st.booleans(), alone=st.booleans(),
)  # fmt: skip
def test_a_block_leaves_out_what_was_written_since_however_much_lies_among_its_keys(
    seed, stored, filled, there, deep, ragged, alone
):
    draw, engine, above = random.Random(seed), MemoryEngine(), Timestamp(100)

    def key(number: int) -> bytes:
        return SPAN.start + (b"%04d" % number if not ragged else b"%d\x00" % number)

    batch, kept = engine.batch(), draw.sample(range(1_000), stored)
    for number in kept:
        for ts in draw.sample(range(50, 150), draw.choice([1, 1, 12]) if deep else 1):
            batch.put(Family.DATA, key(number) + suffix(Timestamp(ts)), draw.choice([b"", b"old", b"same"]))
    engine.write(batch)
    chosen = {n if draw.random() >= there or not kept else draw.choice(kept) for n in draw.sample(range(1_000), filled)}
    keys = sorted({key(number) for number in chosen})
    before = {k: newest(engine, k) for k in keys}

    batch = engine.batch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writes, "PASSED_AT_ONCE", 8)  # so that few keys are many
        patch.setattr(writes, "PASSED_MAX", 4)
        left, done = writes.fill_rows(
            engine, batch, keys, [b"same"] * len(keys), ts=Timestamp(200), above=above, alone=alone
        )
    engine.write(batch)
    for k in keys:
        was = before[k]
        decided = was is not None and was.value != b"same" and (was.ts > above or (alone and bool(was.value)))
        assert (k in left) == decided
        now = newest(engine, k)
        if decided or (was is not None and was.value == b"same"):
            assert now == was
        else:
            assert now is not None
            assert (now.ts, now.value) == (200, b"same")
    assert left == sorted(left)
    assert (done is None) == all(newest(engine, k) == before[k] for k in keys)
