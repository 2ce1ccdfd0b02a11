"""MVCC against a dictionary of lists, on both engines (I-32), as a state machine."""

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from slackwater.clock.timestamp import MAX, MIN, Timestamp
from slackwater.codec.layout import kv
from slackwater.errors import ConditionFailed, ConflictError, ReadWithinUncertainty, TransactionAborted, WriteTooOld
from slackwater.model.protection import Kept
from slackwater.model.retention import readable, stretches
from slackwater.model.txns import Resolution, Txn, TxnStatus
from slackwater.runtime.seam import Family
from slackwater.settings import Settings
from slackwater.storage import gc, intents, reads, stats, writes
from slackwater.storage.memory import MemoryDisk
from slackwater.storage.overlay import Overlay
from slackwater.storage.rocks import RocksDisk
from slackwater.storage.versions import raw_value, ts_of

SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None
NAMES = [b"", b"\x00", b"a", b"a\x00", b"aa", b"ab", b"b", b"\x80", b"\xff\xff"]
KEYS = [kv(name) for name in NAMES]
BOUNDS = sorted({b"\x04", b"\x05", *KEYS, *(k + b"\x00" for k in KEYS), *(kv(b"a")[:2], b"\x04b")})
KEY = st.sampled_from(KEYS)
BOUND = st.sampled_from(BOUNDS)
INSTANTS = 30
AT = st.integers(1, INSTANTS).map(lambda n: Timestamp(n << 30))  # about a second apart, so that ages differ
VALUE = st.one_of(st.none(), st.binary(max_size=2).map(raw_value))
TXN = st.sampled_from([None, 0, 1, 2])


class Mvcc(RuleBasedStateMachine):
    make_disk = MemoryDisk

    @initialize()
    def begin(self):
        self.root = Path(tempfile.mkdtemp(prefix="slackwater-mvcc-", dir=SCRATCH))
        self.engine = self.make_disk().open("s")
        self.versions = {key: {} for key in KEYS}  # key -> {ts: value or b""}
        self.locks = {}  # key -> [txn number, epoch, ts, [(sequence, value)]]
        self.txns = {n: [0, 10] for n in range(3)}  # number -> [epoch, next sequence]
        self.stats = stats.ZERO
        self.clock = 0

    # --- helpers ---

    def txn(self, number, ts):
        if number is None:
            return None
        epoch, sequence = self.txns[number]
        return Txn(bytes([number]) * 16, b"anchor", Timestamp(1), epoch, ts, ts, MIN, sequence)

    def newest(self, key):
        return max(self.versions[key], default=MIN)

    def visible(self, key, ts, number=None, sequence=None):
        """(value or None, ts) as the oracle sees it; ignores foreign intents."""
        lock = self.locks.get(key)
        if lock and number is not None and lock[0] == number and lock[1] == self.txns[number][0]:
            below = [v for s, v in lock[3] if s < (self.txns[number][1] if sequence is None else sequence)]
            if below:
                return below[-1] or None, lock[2]
        at = max((t for t in self.versions[key] if t <= ts), default=None)
        return (None, MIN) if at is None else (self.versions[key][at] or None, at)

    def foreign(self, key, number):
        lock = self.locks.get(key)
        return lock is not None and lock[0] != number

    def apply(self, key, value, ts, number, sequence):
        """The oracle's write: raises the name of the error, or changes its state."""
        if self.foreign(key, number):
            raise ConflictError("oracle")
        if self.newest(key) >= ts:
            raise WriteTooOld("oracle")
        if number is None:
            self.versions[key][ts] = value
            return
        epoch = self.txns[number][0]
        lock = self.locks.get(key)
        if lock is None or lock[1] != epoch:
            self.locks[key] = [number, epoch, ts, [(sequence, value)]]
        else:
            lock[2] = max(lock[2], ts)
            lock[3].append((sequence, value))

    def attempt(self, real, *oracle):
        """Both fail alike, or both succeed."""
        expected = None
        try:
            for step in oracle:
                step()
        except (ConflictError, WriteTooOld, ConditionFailed) as error:
            expected = type(error)
        try:
            result = real()
        except (ConflictError, WriteTooOld, ConditionFailed) as error:
            if type(error) is not expected:
                raise
            return None
        assert expected is None, expected
        return result

    def write(self, fill):
        batch = self.engine.batch()
        delta = fill(batch)
        if delta is not None:
            self.engine.write(batch)
            self.stats = self.stats.plus(delta)

    def next_sequence(self, number):
        if number is None:
            return None
        self.txns[number][1] += 2
        return self.txns[number][1] - 1

    # --- writes ---

    @rule(key=KEY, value=VALUE, ts=AT, number=TXN, expected=st.one_of(st.just("blind"), VALUE), again=st.booleans())
    def put(self, key, value, ts, number, expected, again):
        txn, sequence = self.txn(number, ts), self.next_sequence(number)

        def check():
            if self.foreign(key, number):
                raise ConflictError("oracle")
            if self.newest(key) >= ts:
                raise WriteTooOld("oracle")
            if expected != "blind" and self.visible(key, MAX, number, sequence)[0] != expected:
                raise ConditionFailed("oracle")

        def fill(batch):
            where = {"ts": ts, "txn": txn, "sequence": sequence}
            if expected != "blind":
                return writes.conditional_put(self.engine, batch, key, value or b"", expected=expected, **where)
            if value is None:
                return writes.delete(self.engine, batch, key, **where)
            return writes.put(self.engine, batch, key, value, **where)

        def once(batch):
            written = self.attempt(
                lambda: fill(batch), check, lambda: self.apply(key, value or b"", ts, number, sequence)
            )
            return written and written.stats

        self.write(once)
        lock = self.locks.get(key)
        if again and lock and lock[0] == number and lock[3][-1][0] == sequence:
            self.write(lambda batch: fill(batch).stats)  # the same request again changes nothing

    @rule(rows=st.dictionaries(KEY, st.binary(max_size=2).map(raw_value)), ts=AT, number=TXN, new=st.booleans())
    def put_rows(self, rows, ts, number, new):
        txn, sequence = self.txn(number, ts), self.next_sequence(number)
        keys = sorted(rows)

        def check():
            if any(self.foreign(k, number) for k in keys):
                raise ConflictError("oracle")
            for k in keys:
                if self.newest(k) >= ts:
                    raise WriteTooOld("oracle")
                if new and self.visible(k, MAX, number, sequence)[0] is not None:
                    raise ConditionFailed("oracle")

        def fill(batch):
            done = self.attempt(
                lambda: writes.put_rows(
                    self.engine,
                    batch,
                    keys,
                    [rows[k] for k in keys],
                    ts=ts,
                    txn=txn,
                    sequence=sequence,
                    must_be_new=new,
                ),
                check,
                *(lambda k=k: self.apply(k, rows[k], ts, number, sequence) for k in keys),
            )
            return done and done.stats

        self.write(fill)

    @rule(steps=st.lists(st.tuples(KEY, VALUE), min_size=2, max_size=6), ts=AT, number=st.integers(0, 2))
    def several_in_one_batch(self, steps, ts, number):
        """Requests of one batch see each other through the overlay; all or nothing."""
        batch = self.engine.batch()
        overlay = Overlay(self.engine, batch)
        if any(self.foreign(k, number) or self.newest(k) >= ts for k, _ in steps):
            return
        for key, value in steps:
            txn, sequence = self.txn(number, ts), self.next_sequence(number)
            found = reads.get(overlay, key, ts=ts, txn=txn, sequence=sequence)
            assert found.value == self.visible(key, ts, number, sequence)[0]
            written = writes.delete(overlay, batch, key, ts=ts, txn=txn, sequence=sequence) if value is None else (
                writes.put(overlay, batch, key, value, ts=ts, txn=txn, sequence=sequence)
            )  # fmt: skip
            self.stats = self.stats.plus(written.stats)
            self.apply(key, value or b"", ts, number, sequence)
            rows = reads.scan(overlay, b"\x04", b"\x05", ts=MIN, txn=self.txn(number, ts))
            mine = [k for k in KEYS if self.locks.get(k, [None])[0] == number and self.visible(k, MIN, number)[0]]
            assert rows.keys == sorted(mine)
        self.engine.write(batch)

    @rule(start=BOUND, end=BOUND, ts=AT, number=TXN)
    def delete_range(self, start, end, ts, number):
        if start >= end:
            return
        txn, sequence = self.txn(number, ts), self.next_sequence(number)
        inside = [k for k in sorted(KEYS) if start <= k < end]

        def check():
            if any(self.foreign(k, number) for k in inside):
                raise ConflictError("oracle")
            for k in inside:
                if self.visible(k, MAX, number, sequence)[0] is not None:
                    self.apply(k, b"", ts, number, sequence)

        before = (
            {k: dict(v) for k, v in self.versions.items()},
            {k: [*v[:3], list(v[3])] for k, v in self.locks.items()},
        )

        def fill(batch):
            done = self.attempt(
                lambda: writes.delete_range(self.engine, batch, start, end, ts=ts, txn=txn, sequence=sequence), check
            )
            if done is None:
                self.versions, self.locks = before
            return done and done[1]

        self.write(fill)

    # --- transactions ---

    @rule(
        number=st.integers(0, 2),
        status=st.sampled_from(list(TxnStatus)),
        ts=AT,
        stale=st.booleans(),
        span=st.booleans(),
    )
    def resolve(self, number, status, ts, stale, span):
        epoch = self.txns[number][0] - (1 if stale else 0)
        mine = sorted(k for k, lock in self.locks.items() if lock[0] == number)
        if status is TxnStatus.COMMITTED and any(self.newest(k) >= ts for k in mine):
            return
        resolution = Resolution(bytes([number]) * 16, epoch, status, ts)

        def fill(batch):
            if span:
                done = [intents.resolve_span(self.engine, batch, b"\x04", b"\x05", resolution)]
                assert done[0].resume is None
            else:
                done = [intents.resolve(self.engine, batch, k, resolution) for k in KEYS]
            total = stats.ZERO
            for one in done:
                total = total.plus(one.stats)
            return total

        self.write(fill)
        for key in mine:
            lock = self.locks[key]
            if status is TxnStatus.PENDING:
                lock[2] = max(lock[2], ts)
                continue
            del self.locks[key]
            if status is TxnStatus.COMMITTED and lock[1] == epoch:
                self.versions[key][ts] = lock[3][-1][1]

    @rule(number=st.integers(0, 2))
    def restart_txn(self, number):
        self.txns[number][0] += 1
        for key, lock in self.locks.items():
            if lock[0] == number:
                old = Txn(bytes([number]) * 16, b"", Timestamp(1), lock[1] - 1, MAX, MAX, MIN, 1)
                with pytest.raises(TransactionAborted):
                    reads.get(self.engine, key, ts=MAX, txn=old)

    # --- reads ---

    @rule(keys=st.lists(KEY, min_size=1, max_size=4), ts=AT, number=TXN, limit=AT)
    def gets(self, keys, ts, number, limit):
        txn = self.txn(number, ts)
        bound = max(ts, limit)
        seen = [k for k in keys if self.foreign(k, number) and self.locks[k][2] <= bound]
        kwargs = {"ts": ts, "txn": txn, "uncertain_upto": limit}
        if seen:
            with pytest.raises((ConflictError, ReadWithinUncertainty)) as error:
                reads.multi_get(self.engine, keys, **kwargs)
            if isinstance(error.value, ReadWithinUncertainty):
                assert any(ts < t <= limit for t in self.versions[error.value.facts["key"]])
                return
            assert {i.key for i in error.value.facts["intents"]} == set(seen)
            return
        own = {k for k in keys if self.visible(k, ts, number) != self.visible(k, ts)}
        unsure = [k for k in keys if k not in own and any(ts < t <= limit for t in self.versions[k])]
        own_hidden = [
            k for k in unsure if self.locks.get(k, [None])[0] == number and self.visible(k, MIN, number)[1] != MIN
        ]
        if [k for k in unsure if k not in own_hidden]:
            with pytest.raises(ReadWithinUncertainty):
                reads.multi_get(self.engine, keys, **kwargs)
            return
        expected = [self.visible(k, ts, number) for k in keys]
        assert [tuple(f) for f in reads.multi_get(self.engine, keys, **kwargs)] == expected
        assert [tuple(reads.get(self.engine, k, **kwargs)) for k in keys] == expected

    @rule(
        start=BOUND, end=BOUND, ts=AT, number=TXN, reverse=st.booleans(), rows=st.integers(0, 3),
        size=st.sampled_from([0, 1, 12, 30]), snapshot=st.booleans(),
    )  # fmt: skip
    def scan(self, start, end, ts, number, reverse, rows, size, snapshot):
        if start >= end:
            return
        reader = self.engine.snapshot() if snapshot else self.engine
        txn = self.txn(number, ts)
        inside = [k for k in sorted(KEYS, reverse=reverse) if start <= k < end]
        blocked = {k for k in inside if self.foreign(k, number) and self.locks[k][2] <= ts}
        expected = [(k, *self.visible(k, ts, number)) for k in inside]
        expected = [(k, v, t) for k, v, t in expected if v is not None]
        got = []
        while True:
            try:
                page = reads.scan(
                    reader, start, end, ts=ts, txn=txn, reverse=reverse, max_rows=rows, max_bytes=size
                )  # fmt: skip
            except ConflictError as error:
                names = {i.key for i in error.facts["intents"]}
                assert names <= blocked
                assert names
                return
            if rows:
                assert len(page.keys) <= rows
            if size:
                assert len(page.keys) <= 1 or sum(map(len, page.keys)) + sum(map(len, page.values)) <= size
            got += zip(page.keys, page.values, page.timestamps, strict=True)
            if page.resume is None:
                break
            assert page.keys
            start, end = (start, page.resume) if reverse else (page.resume, end)
            if start >= end:
                break
        assert got == expected
        assert not blocked

    @rule(start=BOUND, end=BOUND, one=AT, other=AT, limit=st.integers(0, 3), befores=st.booleans())
    def scan_versions(self, start, end, one, other, limit, befores):
        if start >= end:
            return
        after, upto = min(one, other) - 1, max(one, other)
        inside = [k for k in sorted(KEYS) if start <= k < end]
        blocked = {k for k in inside if k in self.locks and self.locks[k][2] <= upto}
        if blocked:
            with pytest.raises(ConflictError):
                reads.scan_versions(self.engine, start, end, after=after, upto=upto)
        expected = []
        for k in inside:
            history = sorted(self.versions[k].items())
            for at, (t, v) in enumerate(history):
                if after < t <= upto:
                    expected.append((k, t, v, (history[at - 1][1] if at else b"") if befores else None))
        got = []
        while True:
            page = reads.scan_versions(
                self.engine,
                start,
                end,
                after=after,
                upto=upto,
                max_versions=limit,
                before_images=befores,
                ignore_intents=True,
            )
            got += zip(page.keys, page.timestamps, page.values, page.befores or [None] * len(page.keys), strict=True)
            if page.resume is None:
                break
            start = page.resume
        assert got == expected

    @rule(start=BOUND, end=BOUND, one=AT, other=AT, number=TXN)
    def refresh(self, start, end, one, other, number):
        if start >= end:
            return
        after, upto = min(one, other) - 1, max(one, other)
        inside = [k for k in KEYS if start <= k < end]
        locked = {k for k in inside if self.foreign(k, number) and self.locks[k][2] <= upto}
        changed = {k for k in inside if any(after < t <= upto for t in self.versions[k])}
        change = reads.refresh(self.engine, start, end, after=after, upto=upto, txn=self.txn(number, upto))
        assert (change is not None) == bool(locked | changed)
        if change is not None:
            assert change.key in (locked if change.intent else changed)

    # --- history ---

    @rule(
        start=BOUND,
        end=BOUND,
        threshold=AT,
        protected=st.lists(AT, max_size=2),
        limit=st.sampled_from([1, 2, 100]),
        scanned=st.sampled_from([1, 3, gc.SCANNED_MAX]),
    )
    def collect(self, start, end, threshold, protected, limit, scanned):
        if start >= end:
            return
        instants = [Timestamp(n << 30) for n in range(1, INSTANTS + 1) if n << 30 >= threshold] + protected
        protected = [p for p in protected if p < threshold]
        before = {k: [self.visible(k, t)[0] for t in instants] for k in KEYS}
        kept = [Kept(start, end, p) for p in protected]
        at = start
        rules = stretches(threshold, kept, start, end)
        while at is not None:
            found = gc.plan(self.engine, at, end, stretches=rules, max_versions=limit, scanned_max=scanned)
            batch = self.engine.batch()
            done = gc.collect_keys(self.engine, batch, found.points, stretches=rules)
            assert done.versions == found.versions
            self.engine.write(batch)
            self.stats = self.stats.plus(done.stats)
            self.reload()
            assert {k: [self.visible(k, t)[0] for t in instants] for k in KEYS} == before  # I-26
            assert found.resume is None or (found.resume > at and (done.versions > 0 or found.scanned >= scanned))
            at = found.resume
        assert all(readable(threshold, kept, start, end, ts=t) for t in protected)
        for k in KEYS:
            if start <= k < end:
                history = sorted(self.versions[k].items())
                for at, (t, v) in enumerate(history):
                    above = history[at + 1][0] if at + 1 < len(history) else MAX
                    assert above > threshold or any(t <= p < above for p in protected), "garbage was left"
                    assert v or at > 0 or t > threshold, "a tombstone that hides nothing was left"

    @rule(threshold=AT, cut=BOUND, at=AT, after=AT)
    def collect_in_parts(self, threshold, cut, at, after):
        """One part keeps an instant, the other everything from another on; each is readable exactly where it says so."""
        low, high = b"\x04", b"\x05"
        kept = [Kept(low, cut, at), Kept(cut, high, after, after=True)] if low < cut < high else []
        rules = stretches(threshold, kept, low, high)
        times = [Timestamp((n << 30) + d) for n in range(INSTANTS + 1) for d in (0, 1)]
        seen = {
            (k, t): self.visible(k, t)[0] for k in KEYS for t in times if readable(threshold, kept, k, k + b"\0", ts=t)
        }
        found = gc.plan(self.engine, low, high, stretches=rules, max_versions=1000)
        batch = self.engine.batch()
        self.stats = self.stats.plus(gc.collect_keys(self.engine, batch, found.points, stretches=rules).stats)
        self.engine.write(batch)
        self.reload()
        assert {(k, t): self.visible(k, t)[0] for k, t in seen} == seen  # I-26, I-17: one predicate
        assert gc.plan(self.engine, low, high, stretches=rules, max_versions=1000).points == []

    def reload(self):
        self.versions = {key: {} for key in KEYS}
        stored, values = self.engine.cursor(Family.DATA, start=b"", end=b"\xff").chunk(1 << 20)
        for one, value in zip(stored, values, strict=True):
            self.versions[one[:-8]][ts_of(one)] = value

    @rule()
    def flush(self):
        asyncio.run(self.engine.flush())

    @rule(key=KEY)
    def deepen(self, key):
        """Many versions of one key, so that walks have to skip."""
        if key in self.locks:
            return
        for n in range(INSTANTS):
            ts = Timestamp((n << 30) + 7)
            if ts > self.newest(key):
                value = raw_value(b"%d" % n) if n % 5 else b""
                self._deep_put(key, value, ts)

    def _deep_put(self, key, value, ts):
        def fill(batch):
            if value:
                return writes.put(self.engine, batch, key, value, ts=ts).stats
            return writes.delete(self.engine, batch, key, ts=ts).stats

        self.write(fill)
        self.versions[key][ts] = value

    @invariant()
    def statistics_match(self):
        if hasattr(self, "engine"):
            assert stats.recompute(self.engine, b"\x04", b"\x05") == self.stats

    def teardown(self):
        if hasattr(self, "engine"):
            self.engine.close()
            shutil.rmtree(self.root, ignore_errors=True)


class MvccOnRocks(Mvcc):
    def make_disk(self):
        return RocksDisk(self.root, sleep=asyncio.sleep, settings=Settings({"storage.memtable_bytes": 1 << 20}))


def test_memory_engine_against_the_oracle():
    run_state_machine_as_test(Mvcc, settings=settings(max_examples=120, stateful_step_count=40, deadline=None))


def test_rocksdb_against_the_oracle():
    run_state_machine_as_test(MvccOnRocks, settings=settings(max_examples=40, stateful_step_count=40, deadline=None))
