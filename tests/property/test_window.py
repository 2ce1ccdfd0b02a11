"""Scans of a window of time against a dictionary: page by page, on both engines, also through pinned snapshots."""

import asyncio
import random
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.clock.timestamp import MAX, MIN, Timestamp
from slackwater.codec.layout import kv, versioned
from slackwater.runtime.seam import Family
from slackwater.settings import Settings
from slackwater.storage.batch import WriteBatch
from slackwater.storage.changes import scan_changes
from slackwater.storage.memory import MemoryDisk
from slackwater.storage.overlay import Overlay
from slackwater.storage.reads import VersionRows, refresh, scan_versions
from slackwater.storage.rocks import RocksDisk
from slackwater.storage.window import Window, in_window

SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None
INSTANTS = 1_000
LATE = INSTANTS + 1
"""Versions this late are the few new ones."""
BETWEEN = b"\x04k\x00"  # a prefix, no key: what it cuts off at its end, `04 k`, is none either
ODD = [kv(b"k"), kv(b"k\x00"), kv(b"k\x80"), kv(b"k\xff\xff")]

SHAPES = {
    "seed": st.integers(0, 1 << 30),
    "count": st.sampled_from([0, 1, 30, 400]),
    "depth": st.sampled_from([1, 3, 20, 150]),
    "even": st.booleans(),
    "new_one_in": st.sampled_from([1, 3, 50]),
}
WINDOWS = {
    "after": st.one_of(st.just(INSTANTS), st.integers(0, LATE)),
    "upto": st.one_of(st.just(MAX), st.integers(0, LATE + 3)),
    "narrow": st.integers(0, 3),
    "max_versions": st.sampled_from([0, 1, 7, 300]),
    "max_bytes": st.sampled_from([0, 1, 200, 3_000]),
    "befores": st.booleans(),
}


def history(seed, *, count, depth, even, new_one_in):
    """key -> {ts: value}: mostly shallow, with runs of deep keys, and a few versions that are late."""
    rng = random.Random(seed)
    table = {}
    deep = False
    for number in range(count):
        name = b"k%06d" % number
        key = kv(name if even else name + b"x" * rng.randrange(4))
        deep = rng.random() < (0.8 if deep else 0.05)
        times = rng.sample(range(1, INSTANTS), depth if deep else rng.choice([1, 1, min(depth, 3)]))
        if rng.randrange(new_one_in) == 0:
            times += [LATE + n for n in range(rng.choice([1, 1, 2]))]
        table[key] = {Timestamp(t): b"" if rng.random() < 0.2 else b"%d" % t * rng.choice([1, 1, 9]) for t in times}
    if not even:
        table |= {key: {Timestamp(rng.randrange(1, LATE + 2)): b"odd"} for key in ODD}
    return table


def filled(engine, table):
    batch = WriteBatch()
    for key, versions in table.items():
        for ts, value in versions.items():
            batch.put(Family.DATA, versioned(key, ts), value)
    engine.write(batch)


def bounds(table, narrow, seed):
    """A whole span, one between prefixes, or between keys and keys ++ 00."""
    rng = random.Random(seed)
    keys = sorted(table)
    if narrow == 0 or not keys:
        return b"\x04", b"\x05"
    if narrow == 1:
        return rng.choice([(b"\x04", BETWEEN), (BETWEEN, b"\x05")])
    one, other = sorted(rng.choices(keys, k=2))
    return one + rng.choice([b"", b"\x00"]), other + b"\x00"


def naive(table, start, end, *, after, upto, max_versions, max_bytes, befores):
    """One page, by looking at everything."""
    page = VersionRows([], [], [], [] if befores else None)
    size = 0
    for key in sorted(k for k in table if start <= k < end):
        versions = sorted(table[key].items())
        wanted = [at for at, (ts, _) in enumerate(versions) if after < ts <= upto]
        if not wanted:
            continue
        size += sum(len(key) + len(versions[at][1]) for at in wanted)
        full = max_versions and len(page.keys) + len(wanted) > max_versions
        if page.keys and (full or (max_bytes and size > max_bytes)):
            return page._replace(resume=key)
        for at in wanted:
            page.keys.append(key)
            page.timestamps.append(versions[at][0])
            page.values.append(versions[at][1])
            if befores:
                page.befores.append(versions[at - 1][1] if at else b"")
    return page


def check(reader, table, seed, *, after, upto, narrow, max_versions, max_bytes, befores):
    start, end = bounds(table, narrow, seed)
    after, upto = Timestamp(min(after, upto)), Timestamp(max(after, upto))
    inside = sorted(k for k in table if start <= k < end)
    hits = {k: max((ts for ts in table[k] if after < ts <= upto), default=None) for k in inside}
    first = next(((k, ts) for k, ts in hits.items() if ts is not None), None)
    change = refresh(reader, start, end, after=after, upto=upto)
    assert (change and (change.key, change.ts)) == first
    while True:
        how = {"after": after, "upto": upto, "max_versions": max_versions, "max_bytes": max_bytes}
        page = scan_versions(reader, start, end, **how, before_images=befores, ignore_intents=True)
        assert page == naive(table, start, end, **how, befores=befores)
        if page.resume is None:
            return
        start = page.resume


@settings(max_examples=300, deadline=None)
@given(shape=st.fixed_dictionaries(SHAPES), window=st.fixed_dictionaries(WINDOWS))
def test_memory(shape, window):
    table = history(**shape)
    engine = MemoryDisk().open("s")
    filled(engine, table)
    check(engine, table, shape["seed"], **window)


@settings(max_examples=150, deadline=None)
@given(shape=st.fixed_dictionaries(SHAPES), window=st.fixed_dictionaries(WINDOWS), pinned=st.booleans())
def test_rocksdb(shape, window, pinned):
    table = history(**shape)
    with tempfile.TemporaryDirectory(prefix="slackwater-window-", dir=SCRATCH) as root:
        disk = RocksDisk(Path(root), sleep=asyncio.sleep, settings=Settings({"storage.memtable_bytes": 1 << 20}))
        with closing(disk.open("s")) as engine:
            filled(engine, table)
            with engine.snapshot() as frozen:
                if pinned:  # what comes later must not show, neither in keys nor in values
                    later = {key: dict.fromkeys(versions, b"later") for key, versions in table.items()}
                    filled(engine, later | {kv(b"k999999"): {Timestamp(LATE): b"later"}})
                check(frozen, table, shape["seed"], **window)


@settings(max_examples=150, deadline=None)
@given(shape=st.fixed_dictionaries(SHAPES), window=st.fixed_dictionaries(WINDOWS))
def test_through_an_overlay(shape, window):
    table = history(**shape)
    engine = MemoryDisk().open("s")
    filled(engine, {key: versions for at, (key, versions) in enumerate(table.items()) if at % 3})
    batch = engine.batch()
    for key, versions in list(table.items())[::3]:
        for ts, value in versions.items():
            batch.put(Family.DATA, versioned(key, ts), value)
    check(Overlay(engine, batch), table, shape["seed"], **window)


@pytest.mark.parametrize("below", [False, True])
def test_somebody_writes_between_two_blocks_of_a_walk(tmp_path, below):
    """The walk has a stream of keys then; the values it still has to fetch are those from before."""
    table = history(5, count=9_000, depth=3, even=True, new_one_in=100)
    window = Window(b"\x04", b"\x05", Timestamp(INSTANTS), MAX)
    with closing(RocksDisk(tmp_path, sleep=asyncio.sleep).open("s")) as engine:
        filled(engine, table)
        with engine.snapshot() as frozen:
            expected = list(in_window(frozen, window, below=below))
            walk = in_window(frozen, window, below=below)
            blocks = [next(walk), next(walk)]
            filled(engine, {key: dict.fromkeys(versions, b"later") for key, versions in table.items()})
            blocks += walk
    assert len(blocks) > 4
    assert blocks == expected
    values = {versioned(key, ts): value for key, versions in table.items() for ts, value in versions.items()}
    assert all(values[key] == value for block in blocks for key, value in zip(block.keys, block.values, strict=True))


class Values:
    """Stands for the decoder of rows: shows the stored values."""

    def decode(self, changes):
        return changes.values


def test_changes_end_at_a_prefix_that_ends_in_zero():
    engine = MemoryDisk().open("s")
    filled(engine, {key: {Timestamp(5): b"v" + key} for key in [kv(b"a"), *ODD]})
    blocks = scan_changes(engine, b"\x04", BETWEEN, after=MIN, upto=Timestamp(9), decoder=Values())
    assert [block.batch for block in blocks] == [[b"v" + kv(b"a")]]
