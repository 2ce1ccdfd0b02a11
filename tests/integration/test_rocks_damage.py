"""A damaged SST file: no stream of any kind takes the damage for the end of the data (I-34).

Before streams proved their ends, half of the rows below were missing from every scan, without an error.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.errors import DamageError
from slackwater.runtime.seam import Family
from slackwater.storage.batch import WriteBatch
from slackwater.storage.rocks import RocksDisk, RocksEngine
from slackwater.storage.stats import recompute
from slackwater.storage.versions import suffix
from slackwater.storage.window import Window, in_window
from tests.integration.damage import damage_largest, flip_byte

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from slackwater.runtime.seam import Reader

ROWS = 20_000
START, END = b"k", b"l"


def _key(i: int) -> bytes:
    return b"k%08d" % i + suffix(Timestamp(1_000))


def _value(i: int) -> bytes:
    return i.to_bytes(8, "big") * 10


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[RocksEngine]:
    """A store of which one block in the middle is damaged."""
    disk = RocksDisk(tmp_path, sleep=asyncio.sleep)
    whole = disk.open("store")
    batch = WriteBatch()
    batch.put_many(Family.DATA, [_key(i) for i in range(ROWS)], [_value(i) for i in range(ROWS)])
    whole.write(batch)
    asyncio.run(whole.flush())
    whole.close()
    damage_largest(tmp_path)
    damaged = disk.open("store")
    yield damaged
    damaged.close()


@contextmanager
def _pinned(engine: RocksEngine) -> Iterator[Reader]:
    """A snapshot that others have written behind: it reads through iterators made in time."""
    with engine.snapshot() as frozen:
        batch = WriteBatch()
        batch.put(Family.LOCAL, b"later", b"1")
        engine.write(batch)
        yield frozen


@contextmanager
def _fresh(engine: RocksEngine) -> Iterator[Reader]:
    with engine.snapshot() as frozen:
        yield frozen


@contextmanager
def _itself(engine: RocksEngine) -> Iterator[Reader]:
    yield engine


READERS = {"engine": _itself, "snapshot": _fresh, "pinned snapshot": _pinned}


def _chunks(reader: Reader, *, size: int, reverse: bool = False, keys_only: bool = False) -> int:
    cursor = reader.cursor(Family.DATA, start=START, end=END, reverse=reverse)
    found = 0
    while True:
        keys = cursor.keys(size) if keys_only else cursor.chunk(size)[0]
        found += len(keys)
        if len(keys) < size:
            return found


def _seeking(reader: Reader, *, size: int) -> int:
    """From every thousandth key on, as resumed scans do; also straight into the damaged block."""
    cursor = reader.cursor(Family.DATA, start=START, end=END)
    found = 0
    for i in range(0, ROWS, 50):
        cursor.seek(_key(i))
        found += len(cursor.chunk(size)[0])
    return found


WALKS: dict[str, Callable[[Reader], object]] = {
    "blocks": lambda r: _chunks(r, size=1_000),
    "one block": lambda r: _chunks(r, size=2 * ROWS),
    "an exact block": lambda r: _chunks(r, size=ROWS),
    "pairs one by one": lambda r: _chunks(r, size=8),
    "backwards": lambda r: _chunks(r, size=1_000, reverse=True),
    "backwards one by one": lambda r: _chunks(r, size=8, reverse=True),
    "keys": lambda r: _chunks(r, size=1_000, keys_only=True),
    "keys backwards": lambda r: _chunks(r, size=1_000, reverse=True, keys_only=True),
    "resumed": lambda r: _seeking(r, size=100),
    "resumed briefly": lambda r: _seeking(r, size=4),
    "window": lambda r: sum(len(b.keys) for b in in_window(r, Window(START, END, MIN, Timestamp(2_000)), below=True)),
    "sparse window": lambda r: list(in_window(r, Window(START, END, Timestamp(1_000), Timestamp(2_000)), below=False)),
    "statistics": lambda r: recompute(r, START, END),
    "points": lambda r: [r.get(Family.DATA, _key(i)) for i in range(0, ROWS, 50)],
    "points together": lambda r: r.multi_get(Family.DATA, [_key(i) for i in range(0, ROWS, 50)]),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("walk", WALKS)
def test_no_walk_passes_over_damage(engine: RocksEngine, reader: str, walk: str) -> None:
    with pytest.raises(DamageError), READERS[reader](engine) as open_reader:
        WALKS[walk](open_reader)


def test_what_is_not_damaged_is_read(engine: RocksEngine) -> None:
    cursor = engine.cursor(Family.DATA, start=_key(0), end=_key(1_000))
    assert len(cursor.chunk(2_000)[0]) == 1_000
    back = engine.cursor(Family.DATA, start=_key(ROWS - 1_000), end=END, reverse=True)
    assert len(back.chunk(2_000)[0]) == 1_000
    assert engine.get(Family.DATA, _key(1)) == _value(1)


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*"])
@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
def test_a_store_whose_own_files_are_damaged_is_not_opened_as_an_older_or_an_empty_one(
    tmp_path: Path, name: str, how: str
) -> None:
    disk = RocksDisk(tmp_path, sleep=asyncio.sleep)
    whole = disk.open("store")
    for i in range(4):
        batch = WriteBatch()
        batch.put_many(Family.DATA, [_key(i)], [_value(i)])
        whole.write(batch)
        asyncio.run(whole.flush())
    whole.close()
    (file,) = (tmp_path / "store").glob(name)
    match how:
        case "flipped":
            flip_byte(file, file.stat().st_size // 2)
        case "cut":
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        case "gone":
            file.unlink()
    with pytest.raises(DamageError, match="replace the node"):
        disk.open("store")
