"""kill -9 of processes that write to one SQLite log; replaced files."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from slackwater.errors import LogError, LogIdentityMismatch
from slackwater.log import check_identity, open_log
from slackwater.model.ids import Position, RangeId
from slackwater.runtime.clock import RealClock
from slackwater.runtime.rng import RealRng
from slackwater.runtime.tasks import Scope
from slackwater.settings import Settings
from tests.integration.log_account import Account, Writer, read_all, read_upto

pytestmark = pytest.mark.integration
ROUNDS = 5
WRITERS = 3
ACKS_PER_ROUND = 300


def _open(path, **settings):
    return open_log(
        f"sqlite://{path}", clock=RealClock(), rng=RealRng(), scope=Scope("test"), settings=Settings(settings)
    )


async def _acknowledged(writers: list[Writer], count: int) -> None:
    while any(writer.acknowledged() < count for writer in writers):
        for writer in writers:
            writer.check_running()
        await asyncio.sleep(0.02)


def test_kill_nine_loses_nothing_that_was_acknowledged(tmp_path):
    """Three processes write to two ranges of one file; each round ends with SIGKILL for all, one after another."""
    path = tmp_path / "log.db"

    async def go() -> None:
        log = await _open(path)  # reads along in this process, all the time
        follower = log.tail(RangeId(1), after=Position(0))
        words = []
        for round_ in range(ROUNDS):
            writers = [
                Writer(f"sqlite://{path}", 1 + w % 2, f"r{round_}w{w}", concurrency=16, directory=tmp_path)
                for w in range(WRITERS)
            ]
            try:
                await _acknowledged(writers, ACKS_PER_ROUND)
            finally:
                for writer in writers:
                    writer.kill()
                    await asyncio.sleep(0.03)  # the others go on for a moment
            words += [(writer.range_id, writer.words) for writer in writers]
        followed = await read_upto(follower, await log.head(RangeId(1)))
        second = await _open(path)
        for range_id in (1, 2):
            account = Account()
            for _, file in (word for word in words if word[0] == range_id):
                account.add(file)
            entries = await read_all(second, range_id)
            account.check(entries)
            assert len(account.acked) >= ROUNDS * ACKS_PER_ROUND
            assert entries == await read_all(log, range_id)
            if range_id == 1:
                assert followed == entries, "one order for all readers"
        await log.append(RangeId(1), [b"the log still works"])
        await log.close()
        await second.close()

    asyncio.run(go())
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()
    assert not list((tmp_path / "log.db.bells").iterdir()), "the bells of dead processes are removed"


VISITOR = """
import asyncio, sys
from slackwater.model.ids import RangeId
from pathlib import Path
from tests.integration.test_log_sqlite import _open
async def main():
    log = await _open(Path(sys.argv[1]))
    await log.append(RangeId(1), [b"visitor"])
    await log.close()
asyncio.run(main())
"""


def test_a_process_that_closes_the_log_leaves_it_to_those_that_have_it_open(tmp_path):
    """Whoever takes itself for the last one removes the WAL. The others would write on into a file that nobody can read."""
    path = tmp_path / "log.db"

    async def go() -> None:
        log = await _open(path)
        await log.append(RangeId(1), [b"before"])
        wal = path.with_name("log.db-wal").stat().st_ino
        subprocess.run([sys.executable, "-c", VISITOR, str(path)], check=True, cwd=Path(__file__).parents[2])
        assert path.with_name("log.db-wal").stat().st_ino == wal
        await log.append(RangeId(1), [b"after"])
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        db.close()
        second = await _open(path)
        assert [text for _, text in await read_all(second, 1)] == ["before", "visitor", "after"]
        await second.close()
        await log.close()

    asyncio.run(go())


def test_a_replaced_file_is_another_log(tmp_path):
    path = tmp_path / "log.db"

    async def go() -> None:
        log = await _open(path)
        await log.append(RangeId(1), [b"old"])
        remembered = log.identity()
        await log.close()
        path.rename(tmp_path / "moved.db")
        moved = await _open(tmp_path / "moved.db")
        check_identity(moved, remembered)  # moved, but the same log
        await moved.close()
        fresh = await _open(path)
        with pytest.raises(LogIdentityMismatch, match="not the log the store was built on"):
            check_identity(fresh, remembered)
        await fresh.close()

    asyncio.run(go())


def test_a_file_replaced_while_open_fails_the_handle(tmp_path):
    path = tmp_path / "log.db"

    async def go() -> None:
        log = await _open(path, **{"log.repair_interval": 0.05})
        await log.append(RangeId(1), [b"old"])
        tail = log.tail(RangeId(1), after=Position(0))
        await tail.__anext__()
        path.unlink()
        with pytest.raises(LogIdentityMismatch):
            await tail.__anext__()
        with pytest.raises(LogIdentityMismatch):
            await log.append(RangeId(1), [b"nobody could read this"])
        await log.close()

    asyncio.run(go())


def test_a_foreign_or_damaged_file_is_refused(tmp_path):
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as db:
        db.execute("CREATE TABLE t (x)")
    db.close()
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"this is not a database, it is a letter" * 100)

    hidden = tmp_path / "hidden.db"

    async def go() -> None:
        log = await _open(hidden)
        for n in range(50):
            await log.append(RangeId(1), [b"%d" % n])
        await log.close()
        raw = bytearray(hidden.read_bytes())
        index = next(at for at in range(0, len(raw), 4096) if raw[at] == 0x0A)
        raw[index + 4] -= 1  # cells of the page: SQLite alone reads one row less, and says nothing
        hidden.write_bytes(raw)
        with pytest.raises(LogError, match="damaged"):
            await _open(hidden)
        with pytest.raises(LogError, match="not a log this build can use"):
            await _open(foreign)
        with pytest.raises(LogError, match="damaged"):
            await _open(damaged)
        with pytest.raises(LogError, match="directory"):
            await _open(tmp_path / "nowhere" / "log.db")

    asyncio.run(go())
