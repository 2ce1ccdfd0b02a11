"""A store killed with -9 under load comes back with all three families at one batch, not before the last flush."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from slackwater.runtime.seam import Family
from slackwater.settings import Settings
from slackwater.storage.rocks import RocksDisk

pytestmark = pytest.mark.integration

KILLS = 6
WRITER = """
import asyncio, sys
from pathlib import Path
from slackwater.runtime.seam import Family
from slackwater.settings import Settings
from slackwater.storage.rocks import RocksDisk

async def main():
    small = Settings({"storage.memtable_bytes": 1 << 20})  # RocksDB flushes on its own, too
    engine = RocksDisk(Path(sys.argv[1]), sleep=asyncio.sleep, settings=small).open("s")
    number = int.from_bytes(engine.get(Family.LOCAL, b"applied") or b"", "big")
    while True:
        for _ in range(200):
            number += 1
            batch = engine.batch()
            name = number.to_bytes(8, "big")
            batch.put(Family.LOCAL, b"applied", name)
            batch.put(Family.DATA, name, b"d" * 300)
            batch.put(Family.LOCK, name, b"l" * 30)
            if number > 50:
                batch.delete(Family.LOCK, (number - 50).to_bytes(8, "big"))
            engine.write(batch)
        await engine.flush()
        print(number, flush=True)

asyncio.run(main())
"""


def check(root, acknowledged):
    """The number that all families agree on."""
    engine = RocksDisk(root, sleep=asyncio.sleep, settings=Settings()).open("s")
    try:
        applied = int.from_bytes(engine.get(Family.LOCAL, b"applied") or b"", "big")
        assert applied >= acknowledged, "a flush returned and its batches are gone"
        keys, values = engine.cursor(Family.DATA, start=b"", end=b"\xff").chunk(1 << 30)
        assert [int.from_bytes(k, "big") for k in keys] == list(range(1, applied + 1))
        assert set(values) <= {b"d" * 300}
        locks, _ = engine.cursor(Family.LOCK, start=b"", end=b"\xff").chunk(1 << 30)
        assert [int.from_bytes(k, "big") for k in locks] == list(range(max(1, applied - 49), applied + 1))
        return applied
    finally:
        engine.close()


def test_killed_under_load_all_families_agree_on_one_prefix(tmp_path):
    last = 0
    for round_number in range(KILLS):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
        try:
            acknowledged = 0
            for _ in range(3 + 5 * round_number):
                line = process.stdout.readline()
                assert line, "the writer ended by itself"
                acknowledged = int(line)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            rest = process.stdout.read()
            process.wait()
            process.stdout.close()
        for line in rest.splitlines(keepends=True):
            if line.endswith(b"\n"):
                acknowledged = int(line)
        applied = check(tmp_path, acknowledged)
        assert applied > last
        last = applied
