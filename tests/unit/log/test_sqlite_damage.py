"""A flipped bit in the file of the log: it is an error, or everything is read. SQLite alone hid rows behind a damaged index."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from slackwater.errors import LogError, LogTrimmed
from slackwater.log.sqlite_file import LogBlock, LogFile
from slackwater.model.ids import Position, RangeId

if TYPE_CHECKING:
    from pathlib import Path

RANGES = [RangeId(1), RangeId(2), RangeId(3)]
PAGE = 4096
INDEX_LEAF, TABLE_LEAF = 0x0A, 0x0D


def opened(path: Path) -> LogFile:
    return LogFile(path, incarnation="x" * 32, busy_timeout=1)


def everything(file: LogFile) -> list[object]:
    """What all readers of a file find."""
    found: list[object] = [file.last()]
    for range_id in RANGES:
        after, exhausted = Position(0), False
        while not exhausted:
            entries, exhausted = file.read_range(range_id, after=after)
            after = entries[-1].position if entries else after
            found += entries
    found += [(block.range_id, entry) for block in file.read_all(after=0)[0] for entry in block.entries()]
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[object]]:
    path, rng = tmp_path_factory.mktemp("whole") / "log.db", random.Random(1)
    with closing(opened(path)) as file:
        for _ in range(250):
            file.commit([(rng.choice(RANGES), [rng.randbytes(60)] * rng.choice([1, 3]))])
        truth = everything(file)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.read_bytes(), truth


@pytest.mark.parametrize(("kind", "flips"), [(INDEX_LEAF, 60), (TABLE_LEAF, 60)])
def test_a_flipped_bit_hides_no_entry(whole: tuple[bytes, list[object]], tmp_path: Path, kind: int, flips: int) -> None:
    raw, truth = whole
    rng, refused = random.Random(kind), 0
    pages = [at for at in range(PAGE, len(raw), PAGE) if raw[at] == kind]
    for number in range(flips):
        damaged = bytearray(raw)
        damaged[rng.choice(pages) + rng.randrange(PAGE)] ^= 1 << rng.randrange(8)
        path = tmp_path / f"{number}.db"
        path.write_bytes(damaged)
        with closing(opened(path)) as file:
            try:
                file.check()
                assert everything(file) == truth, f"flip {number}"
            except LogError:
                refused += 1
    assert refused > flips // 4, "most bits of a page are in use"


@pytest.mark.parametrize("sql", ["UPDATE meta SET floor = 0", "UPDATE ranges SET head = 1 << 40"])
def test_a_file_whose_bounds_contradict_each_other_is_refused(tmp_path: Path, sql: str) -> None:
    with closing(opened(tmp_path / "log.db")) as file:
        for _ in range(3):
            file.commit([(RANGES[0], [b"x"])])
        file.trim_some(RANGES[0], upto=Position(3))
        file.check()
        with pytest.raises(LogTrimmed):
            file.read_range(RANGES[0], after=Position(0))
        file._db.execute(sql)
        with pytest.raises(LogError, match="damaged"):
            file.check()


def test_a_row_that_says_another_length_than_its_block_is_refused(tmp_path: Path) -> None:
    with closing(opened(tmp_path / "log.db")) as file:
        file.commit([(RANGES[0], [b"x", b"y"])])
        (block,), _ = file.read_all(after=0)
        for size in (1, 3, 0):
            with pytest.raises(LogError, match="not as long as its row says"):
                LogBlock(block.position, block.range_id, size, block.payload).entries()
