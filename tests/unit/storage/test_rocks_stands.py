"""A pinned snapshot's iterator is not sought again where it stands: seeks pass everything that was deleted between."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from slackwater.runtime.seam import Family
from slackwater.storage.memory import MemoryEngine
from slackwater.storage.rocks import RocksDisk

if TYPE_CHECKING:
    from pathlib import Path

    from slackwater.runtime.seam import Engine

KEYS = [b"k%03d" % n for n in range(120)]


async def _never(_seconds: float) -> None:
    raise AssertionError("nothing waits")


def _fill(engine: Engine, gone: set[bytes]) -> None:
    batch = engine.batch()
    batch.put_many(Family.LOCK, KEYS, [b"v" + key for key in KEYS])
    engine.write(batch)
    batch = engine.batch()
    for key in gone:
        batch.delete(Family.LOCK, key)
    engine.write(batch)


def test_cursors_that_share_an_iterator_show_what_the_memory_engine_shows(tmp_path: Path) -> None:
    draw = random.Random(11)
    for number in range(40):
        gone = {key for key in KEYS if draw.random() < draw.choice([0.2, 0.9, 1.0])}
        rocks, memory = RocksDisk(tmp_path, sleep=_never).open(str(number)), MemoryEngine()
        for engine in (rocks, memory):
            _fill(engine, gone)
        with rocks.snapshot() as pinned, memory.snapshot() as model:
            for engine in (rocks, memory):  # from now on, the snapshots are older than their engines
                batch = engine.batch()
                batch.delete_range(Family.LOCK, b"", b"z")
                engine.write(batch)
            for _ in range(60):
                start, end = sorted(draw.choices([*KEYS, b"", b"k05", b"z"], k=2))
                if draw.random() < 0.3:
                    found = [reader.first(Family.LOCK, start=start, end=end) for reader in (pinned, model)]
                else:
                    reverse, limit, again = draw.random() < 0.2, draw.choice([1, 3, 40]), draw.choice(KEYS)
                    found = []
                    for reader in (pinned, model):
                        cursor = reader.cursor(Family.LOCK, start=start, end=end, reverse=reverse)
                        steps = [cursor.chunk(limit), cursor.chunk(limit)]
                        cursor.seek(again)
                        found.append([*steps, cursor.chunk(limit)])
                assert found[0] == found[1]
        rocks.close()


def test_a_walk_over_deleted_locks_seeks_once(tmp_path: Path) -> None:
    """A scan looks for locks block by block; beside a large commit that was resolved, each look passed all of its locks."""
    engine = RocksDisk(tmp_path, sleep=_never).open("one")
    _fill(engine, set(KEYS[:-1]))
    with engine.snapshot() as pinned:
        _fill(engine, set(KEYS))
        asked: list[bool] = []
        stands_behind = pinned.stands_behind

        def counted(family: Family, key: bytes) -> bool:
            asked.append(stands_behind(family, key))
            return asked[-1]

        pinned.stands_behind = counted  # type: ignore[method-assign]
        for low, high in zip(KEYS[:-20:10], KEYS[10::10], strict=False):
            assert pinned.cursor(Family.LOCK, start=low, end=high).chunk(64) == ([], [])
        assert asked.count(False) == 1
        assert len(asked) > 5
    engine.close()
