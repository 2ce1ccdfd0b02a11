"""What is read through intents of decided transactions is what would be read once they are resolved."""

import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.layout import kv
from slackwater.errors import ConflictError, ReadWithinUncertainty
from slackwater.model.txns import Resolution, Txn, TxnStatus
from slackwater.runtime.seam import Family
from slackwater.settings import Settings
from slackwater.storage import intents, reads, writes
from slackwater.storage.memory import MemoryDisk
from slackwater.storage.rocks import RocksDisk
from slackwater.storage.stats import recompute
from slackwater.storage.through import Through, txn_id_of
from slackwater.storage.versions import AFTER_VERSIONS, raw_value, suffix

SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None
KEYS = [kv(bytes([a, b])) for a in range(0, 256, 17) for b in (0, 1, 7, 255)]
BOUND = Timestamp(60)
TXNS = [bytes([n]) * 16 for n in range(6)]
FATES = {
    TXNS[0]: Resolution(TXNS[0], 0, TxnStatus.COMMITTED, Timestamp(50)),
    TXNS[1]: Resolution(TXNS[1], 1, TxnStatus.COMMITTED, Timestamp(52)),  # of another epoch than some of its intents
    TXNS[2]: Resolution(TXNS[2], 0, TxnStatus.ABORTED),
    TXNS[3]: Resolution(TXNS[3], 0, TxnStatus.PENDING, Timestamp(61)),  # pushed above all that is looked at
    TXNS[4]: Resolution(TXNS[4], 0, TxnStatus.COMMITTED, Timestamp(61)),  # above all that is looked at
    TXNS[5]: Resolution(TXNS[5], 0, TxnStatus.PENDING, Timestamp(60)),  # not far enough: as if nothing were known
}
IN_THE_WAY = TXNS[5]


def fill(engine, seed):
    """Versions and intents of all kinds; returns the keys with intents."""
    draw = random.Random(seed)
    batch = engine.batch()
    locked = {}
    for key in KEYS:
        for ts in draw.sample(range(1, 40), draw.choice([0, 0, 1, 3, 40 - 1])):
            batch.put(Family.DATA, key + suffix(Timestamp(ts)), raw_value(b"%d" % ts) if draw.random() < 0.8 else b"")
    engine.write(batch)
    density = draw.choice([0.0, 0.1, 0.6, 1.0])
    for key in KEYS:
        if draw.random() >= density:
            continue
        txn_id = draw.choice(TXNS[:5] if draw.random() < 0.9 else TXNS)
        at = Timestamp(draw.randrange(41, 50))
        txn = Txn(txn_id, key, at, draw.choice([0, 1]) if txn_id == TXNS[1] else 0, at, at, MIN, 1)
        batch = engine.batch()
        if draw.random() < 0.2:
            writes.delete(engine, batch, key, ts=at, txn=txn)
        else:
            writes.put(engine, batch, key, raw_value(b"new"), ts=at, txn=txn)
        engine.write(batch)
        locked[key] = txn_id
    return locked


def resolved(engine, locked):
    """Turn the intents of decided transactions into what became of them."""
    for key, txn_id in locked.items():
        if txn_id == IN_THE_WAY:
            continue
        batch = engine.batch()
        fate = FATES[txn_id]
        if fate.status is TxnStatus.PENDING or fate.ts > BOUND:
            batch.delete(Family.LOCK, key)
        else:
            intents.resolve(engine, batch, key, fate)
        engine.write(batch)


def bounds(draw):
    """Two bounds such as reads use: keys, keys with a zero, prefixes, versions, the end of a key's versions."""

    def one():
        key = draw.choice(KEYS)
        return draw.choice(
            [key, key + b"\x00", key[:2], key + suffix(Timestamp(draw.randrange(80))), key + AFTER_VERSIONS]
        )

    return sorted([one(), one()])


def walk(reader, family, start, end, draw):
    """Everything a cursor gives in chunks of changing sizes, with seeks in between."""
    reverse = draw.random() < 0.5
    cursor = reader.cursor(family, start=start, end=end, reverse=reverse)
    seen = []
    for _ in range(draw.randrange(1, 12)):
        limit = draw.choice([1, 2, 7, 64])
        if draw.random() < 0.3:
            cursor.seek(draw.choice(bounds(draw)))
        seen.append((limit, cursor.keys(limit)) if draw.random() < 0.3 else (limit, cursor.chunk(limit)))
    return seen


def outcome(work):
    try:
        return work()
    except ConflictError as error:
        return "conflict", sorted(i.key for i in error.facts["intents"])
    except ReadWithinUncertainty as error:
        return "uncertain", error.facts["key"], error.facts["existing"]


def same_reads(one, other, draw):
    for _ in range(12):
        start, end = sorted(draw.sample([*KEYS, *(k + b"\x00" for k in KEYS), KEYS[3][:2]], 2))
        ts = Timestamp(draw.choice([5, 39, 45, 49, 50, 55, 60]))
        limit = Timestamp(draw.choice([MIN, 50, 60]))
        some, rows = draw.sample(KEYS, 6), draw.choice([0, 1, 5])
        backwards, size = draw.random() < 0.5, draw.choice([0, 40])
        for read in (
            lambda r: reads.get(r, some[0], ts=ts, uncertain_upto=limit),
            lambda r: reads.multi_get(r, some, ts=ts, uncertain_upto=limit),
            lambda r: reads.scan(
                r, start, end, ts=ts, uncertain_upto=limit, reverse=backwards, max_rows=rows, max_bytes=size
            ),
            lambda r: reads.scan_versions(r, start, end, after=Timestamp(20), upto=ts, max_versions=rows),
            lambda r: reads.refresh(r, start, end, after=Timestamp(30), upto=ts),
        ):
            assert outcome(lambda: read(one)) == outcome(lambda: read(other))


def check(disk, seed):
    plain, twin = disk().open("a"), disk().open("b")
    locked = fill(plain, seed)
    assert fill(twin, seed) == locked
    resolved(twin, locked)
    shown = Through(plain, lambda intent: FATES[intent.txn_id], bound=BOUND)
    for again in range(20):
        start, end = bounds(random.Random((seed, again).__hash__()))
        for family in (Family.DATA, Family.LOCK):
            if start < end:
                a, b = random.Random(again), random.Random(again)
                assert walk(shown, family, start, end, a) == walk(twin, family, start, end, b)
    for key in KEYS:
        assert shown.get(Family.LOCK, key) == twin.get(Family.LOCK, key)
        for ts in (10, 50, 52, 61):
            stored = key + suffix(Timestamp(ts))
            assert shown.get(Family.DATA, stored) == twin.get(Family.DATA, stored)
            assert shown.multi_get(Family.DATA, [stored]) == twin.multi_get(Family.DATA, [stored])
    same_reads(shown, twin, random.Random(seed))
    there, then = (e.cursor(Family.DATA, start=b"", end=b"\xff").keys(10_000) for e in (plain, twin))
    versions = shown.shown_in(KEYS[0], KEYS[-1] + b"\x00", limit=1_000)
    assert sorted(set(versions) - set(there)) == sorted(set(then) - set(there))
    assert not locked or shown.shown_in(KEYS[0], KEYS[-1] + b"\x00", limit=len(locked) - 1) is None


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_reading_through_intents_is_reading_after_they_are_resolved(seed):
    check(MemoryDisk, seed)


@pytest.mark.parametrize("seed", range(4))
def test_and_on_rocksdb(seed):
    root = Path(tempfile.mkdtemp(prefix="slackwater-through-", dir=SCRATCH))
    numbers = iter(range(2))

    def disk():
        return RocksDisk(root / str(next(numbers)), sleep=None, settings=Settings())

    try:
        check(disk, seed)
    finally:
        shutil.rmtree(root)


def test_the_transaction_of_a_stored_intent_is_read_off_its_head():
    intent = intents.StoredIntent(b"t" * 16, b"anchor", Timestamp(5), 3, Timestamp(9), 2, b"value", ((1, b"old"),))
    assert txn_id_of(intents.encode_intent(intent)) == b"t" * 16


def test_a_span_that_ends_right_behind_a_key_is_resolved_above_its_versions():
    """The statistics of a commit count what it supersedes, also of the key whose versions sort beyond the span's end."""
    engine = MemoryDisk().open("s")
    key, at = KEYS[5], Timestamp(20)
    batch = engine.batch()
    counted = writes.put(engine, batch, key, raw_value(b"old"), ts=Timestamp(10)).stats
    engine.write(batch)
    batch = engine.batch()
    counted = counted.plus(
        writes.put(engine, batch, key, raw_value(b"new"), ts=at, txn=Txn(TXNS[0], key, at, 0, at, at, MIN, 1)).stats
    )
    engine.write(batch)
    batch = engine.batch()
    done = intents.resolve_span(engine, batch, key, key + b"\x00", FATES[TXNS[0]])
    engine.write(batch)
    assert done.resume is None
    assert counted.plus(done.stats) == recompute(engine, KEYS[0], KEYS[-1])
