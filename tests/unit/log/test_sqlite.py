from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from slackwater import hooks
from slackwater.errors import AppendUnknown, LogError, LogTrimmed, Overloaded
from slackwater.log import sqlite_file
from slackwater.log.sqlite import open_sqlite
from slackwater.log.sqlite_bell import Bell
from slackwater.log.sqlite_file import LogFile
from slackwater.model.ids import Position, RangeId
from slackwater.runtime.rng import RealRng
from slackwater.settings import Settings

R1, R2 = RangeId(1), RangeId(2)


def opened(path, **settings):
    return open_sqlite(path, rng=RealRng(), settings=Settings(settings))


def file(path, incarnation="x", busy_timeout=0.0) -> LogFile:
    return LogFile(path, incarnation=incarnation, busy_timeout=busy_timeout)


def test_positions_go_on_when_everything_was_trimmed(tmp_path):
    log = file(tmp_path / "log.db")
    assert log.commit([(R1, [b"a", b"b"]), (R2, [b"c"])]) == 3
    assert (log.head(R1), log.head(R2), log.last()) == (2, 3, 3)
    assert not log.trim_some(R1, upto=Position(99))
    assert not log.trim_some(R2, upto=Position(99))
    assert (log.head(R1), log.head(R2), log.last()) == (2, 3, 3)
    log.close()
    log = file(tmp_path / "log.db", incarnation="another")
    assert log.incarnation == "x"
    assert log.commit([(R1, [b"d"])]) == 4
    assert log.head(R1) == 4
    with pytest.raises(LogTrimmed):
        log.read_range(R1, after=Position(1))
    assert log.read_range(R1, after=Position(2))[0] == [(4, b"d")]
    log.close()


def test_a_commit_is_synced(tmp_path):
    """kill -9 cannot show this: the page cache survives it."""
    log = file(tmp_path / "log.db")
    settings = [log._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    assert settings == ["wal", 2]
    log.close()


def test_a_trim_inside_a_block_keeps_the_block(tmp_path):
    log = file(tmp_path / "log.db")
    log.commit([(R1, [b"a", b"b"])])
    log.commit([(R1, [b"c", b"d"])])
    log.trim_some(R1, upto=Position(3))
    entries, complete = log.read_range(R1, after=Position(2))
    assert (entries, complete) == ([(3, b"c"), (4, b"d")], True)
    with pytest.raises(LogTrimmed):
        log.read_range(R1, after=Position(0))
    log.close()


def test_trims_and_reads_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_file, "TRIM_BLOCKS_MAX", 2)
    monkeypatch.setattr(sqlite_file, "READ_BLOCKS_MAX", 2)
    log = file(tmp_path / "log.db")
    for payload in (b"a", b"b", b"c"):
        log.commit([(R1, [payload])])
    assert log.read_range(R1, after=Position(0)) == ([(1, b"a"), (2, b"b")], False)
    assert [b.position for b in log.read_all(after=0)[0]] == [1, 2]
    assert log.trim_some(R1, upto=Position(3))
    assert not log.trim_some(R1, upto=Position(3))
    log.close()


def test_a_trim_removes_no_more_bytes_at_a_time_than_appends_may_wait_for(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_file, "TRIM_BYTES_MAX", 100)
    log = file(tmp_path / "log.db")
    for size in (10, 10, 500, 10, 90):
        log.commit([(R1, [b"x" * size])])
    left = []
    while log.trim_some(R1, upto=Position(5)):
        left.append([b.position for b in log.read_all(after=0)[0]])
    assert left == [[3, 4, 5], [4, 5], [5]], "two small ones, a large one by itself, and so on"
    assert log.read_all(after=0)[0] == []
    log.close()


def test_a_locked_file_is_overloaded_not_unknown(tmp_path):
    log = file(tmp_path / "log.db")
    blocker = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(Overloaded, match="write lock"):
        log.commit([(R1, [b"a"])])
    blocker.execute("ROLLBACK")
    blocker.close()
    assert log.commit([(R1, [b"a"])]) == 1
    log.close()


@pytest.mark.parametrize(
    "damage",
    [
        "payload = CAST(substr(payload, 1, length(payload) - 1) || x'00' AS BLOB)",
        "count = count + 1",
        "count = 0",
        "count = 99",
        "position = position - 1 WHERE position = 3",
    ],
)
def test_a_damaged_block_is_an_error_not_an_entry(tmp_path, damage):
    async def go():
        log = await opened(tmp_path / "log.db")
        await log.append(R1, [b"payload"])
        await log.append(R1, [b"another", b"third"])
        db = sqlite3.connect(tmp_path / "log.db")
        db.execute(f"UPDATE blocks SET {damage}")
        db.commit()
        db.close()
        with pytest.raises(LogError, match="damaged"):
            await anext(log.tail(R1, after=Position(0)))
        await log.close()

    asyncio.run(go())


FULL_DISK = """
import resource, sys
from pathlib import Path
from slackwater.errors import SlackwaterError
from slackwater.log.sqlite_file import LogFile
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
log = LogFile(Path(sys.argv[1]), incarnation="x", busy_timeout=0)
log.commit([(1, [b"fits"])])
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    log.commit([(1, [b"x" * 200_000])])
except SlackwaterError as error:
    print(type(error).__name__)
"""


def test_a_write_that_fails_in_the_middle_of_a_commit_is_typed(tmp_path):
    """A file size limit makes the write of the WAL fail, as a broken disk would."""
    path = tmp_path / "log.db"
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("AppendUnknown", "Overloaded"), done.stderr
    log = file(path)
    assert log.read_range(R1, after=Position(0))[0][0] == (1, b"fits")
    log.close()


def test_after_an_unknown_commit_the_handle_is_not_used_again(tmp_path):
    async def go():
        log = await opened(tmp_path / "log.db")
        log._writing.close()  # every statement fails from now on, for a reason SQLite does not classify
        with pytest.raises(AppendUnknown):
            await log.append(R1, [b"a"])
        with pytest.raises(LogError, match="open it again"):
            await log.append(R1, [b"b"])
        with pytest.raises(LogError):
            await anext(log.tail(R1, after=Position(0)))
        await log.close()

    asyncio.run(go())


def test_a_full_queue_is_overloaded_and_writes_nothing(tmp_path):
    async def go():
        log = await opened(tmp_path / "log.db", **{"log.queue_bytes_max": 1 << 16})
        payload = b"x" * (20 << 10)
        outcomes = await asyncio.gather(*(log.append(R1, [payload]) for _ in range(5)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [int, int, int, Overloaded, Overloaded]
        assert await log.head(R1) == 3
        assert await log.append(R1, [payload]) == 4
        await log.close()

    asyncio.run(go())


def test_groups_are_bounded_and_share_one_block_per_range(tmp_path):
    async def go():
        log = await opened(tmp_path / "log.db", **{"log.group_commit_bytes_max": 4096})
        work = [log.append(R1 if n % 2 else R2, [b"%d" % n * 100]) for n in range(10, 90)]
        positions = await asyncio.gather(*work)
        assert len(set(positions)) == 80
        assert await log.head(R1) in positions
        await log.close()

    asyncio.run(go())
    db = sqlite3.connect(tmp_path / "log.db")
    sizes = db.execute("SELECT count, length(payload) FROM blocks").fetchall()
    db.close()
    assert sum(count for count, _ in sizes) == 80
    assert max(count for count, _ in sizes) > 1
    assert max(length for _, length in sizes) <= 4096 + 4 * 20 + 12


def test_a_hole_sends_tails_back_to_catch_up(tmp_path):
    """Another process appended and trimmed before we looked: the tail of that range is told, the other goes on."""

    async def go():
        seen = []
        hooks.install(probe=seen.append)
        try:
            log = await opened(tmp_path / "log.db", **{"log.repair_interval": 60})
            await log.append(R1, [b"1"])
            await log.append(R2, [b"a"])
            lost, fine = log.tail(R1, after=Position(0)), log.tail(R2, after=Position(0))
            await anext(lost)
            await anext(fine)
            other = file(tmp_path / "log.db")  # rings no bell
            other.commit([(R1, [b"2"])])
            other.trim_some(R1, upto=Position(3))
            other.commit([(R2, [b"b"])])
            other.close()
            await log.append(R2, [b"c"])
            found = await anext(fine)
            while len(found) < 2:
                found += await anext(fine)
            assert [e.payload for e in found] == [b"b", b"c"]
            with pytest.raises(LogTrimmed):
                await asyncio.wait_for(anext(lost), 30)
            assert "log.sqlite_hole" in seen
            await log.close()
        finally:
            hooks.install()

    asyncio.run(go())


def test_closing_answers_everyone(tmp_path):
    async def go():
        log = await opened(tmp_path / "log.db")
        work = [asyncio.ensure_future(log.append(R1, [b"%d" % n])) for n in range(20)]
        trim = asyncio.ensure_future(log.trim(R1, upto=Position(0)))
        await asyncio.sleep(0)
        await log.close()
        outcomes = await asyncio.gather(*work, trim, return_exceptions=True)
        assert all(isinstance(outcome, int | LogError | None) for outcome in outcomes)
        await log.close()  # twice is fine
        again = await opened(tmp_path / "log.db")
        assert await again.head(R1) == max([0, *(o for o in outcomes if isinstance(o, int))])
        assert "queued=0" in again.status()
        await again.close()

    asyncio.run(go())


def test_bells(tmp_path):
    directory = tmp_path / ("long" * 40) / "bells"  # longer than a socket address
    directory.parent.mkdir()
    one, two = Bell(directory, "one"), Bell(directory, "two")
    two.greet()
    one.drain()
    one.ring()
    assert two._socket.recv(1) == b"n"
    stale = Bell(directory, "stale")
    stale.greet()
    stale._socket.close()  # as after kill -9: the name stays
    one.drain()
    one.ring()
    assert sorted(path.name for path in directory.iterdir()) == ["one.sock", "two.sock"]
    assert two._socket.recv(2) == b"h"
    os.close(stale._directory)
    for _ in range(5000):  # nobody reads: not an error
        one.ring()
    two.drain()
    two.close()
    one.ring()
    one.close()
    assert not list(directory.iterdir())


def test_open_files_do_not_pile_up(tmp_path):
    async def go():
        for _ in range(3):
            log = await opened(tmp_path / "log.db")
            await log.append(R1, [b"x"])
            await log.close()

    asyncio.run(go())
    before = len(list(Path("/proc/self/fd").iterdir()))
    asyncio.run(go())
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > before


def test_a_bell_wakes_the_tails_of_other_handles(tmp_path):
    """The repair poll is a minute away: only the bell can have brought these."""

    async def go():
        one, two = [await opened(tmp_path / "log.db", **{"log.repair_interval": 60}) for _ in range(2)]
        tails = [one.tail(R1, after=Position(0)), two.tail(R1, after=Position(0))]
        for n in range(20):
            writer = (one, two)[n % 2]
            waiting = [asyncio.ensure_future(anext(tail)) for tail in tails]
            await writer.append(R1, [b"%d" % n])
            batches = await asyncio.wait_for(asyncio.gather(*waiting), 30)
            assert [[e.payload for e in batch] for batch in batches] == [[b"%d" % n]] * 2
        await one.close()
        await two.close()

    asyncio.run(go())


def test_new_entries_of_others_are_read_once_for_all_tails(tmp_path):
    async def go():
        one, two = [await opened(tmp_path / "log.db", **{"log.repair_interval": 60}) for _ in range(2)]
        tails = [two.tail(RangeId(r), after=Position(0)) for r in range(1, 31)]
        first = [asyncio.ensure_future(anext(tail)) for tail in tails]
        await asyncio.gather(*(one.append(RangeId(r), [b"first"]) for r in range(1, 31)))
        await asyncio.wait_for(asyncio.gather(*first), 30)
        reads = []
        read_all, read_range = two._reading.read_all, two._reading.read_range
        two._reading.read_all = lambda **kw: reads.append("all") or read_all(**kw)
        two._reading.read_range = lambda r, **kw: reads.append(r) or read_range(r, **kw)
        second = [asyncio.ensure_future(anext(tail)) for tail in tails]
        await asyncio.gather(*(one.append(RangeId(r), [b"second"]) for r in range(1, 31)))
        await asyncio.wait_for(asyncio.gather(*second), 30)
        assert set(reads) == {"all"}, "live tails read nothing by themselves"
        assert len(reads) < 30
        await one.close()
        await two.close()

    asyncio.run(go())


def test_an_unanswered_append_is_unknown_and_may_appear_later(tmp_path):
    async def go():
        settings = Settings()
        log = await open_sqlite(tmp_path / "log.db", rng=RealRng(), settings=settings)
        settings.set("log.append_timeout", 0.1)  # shorter than the patience of the writer, set when it was opened
        blocker = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        outcomes = await asyncio.gather(*(log.append(R1, [b"%d" % n]) for n in range(3)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [AppendUnknown] * 3
        blocker.execute("ROLLBACK")
        blocker.close()
        settings.set("log.append_timeout", 10)
        found = []
        tail = log.tail(R1, after=Position(0))
        while len(found) < 3:
            found += [e.payload for e in await asyncio.wait_for(anext(tail), 30)]
        assert found == [b"0", b"1", b"2"]
        assert await log.append(R1, [b"3"]) == 4
        await log.close()

    asyncio.run(go())


def test_live_tails_of_two_busy_handles_agree(tmp_path):
    async def go():
        logs = [await opened(tmp_path / "log.db", **{"log.repair_interval": 60}) for _ in range(2)]
        tails = [log.tail(R1, after=Position(0)) for log in logs]
        await logs[0].append(R1, [b"first"])
        for tail in tails:
            await anext(tail)

        async def write(which):
            for n in range(60):
                await logs[which].append(R1, [b"%d/%d" % (which, n)])

        async def read(tail):
            found = []
            while len(found) < 120:
                found += await asyncio.wait_for(anext(tail), 30)
            return found

        *_, one, two = await asyncio.gather(write(0), write(1), *(read(tail) for tail in tails))
        assert one == two
        assert len({entry.payload for entry in one}) == 120
        for log in logs:
            await log.close()

    asyncio.run(go())


def test_the_files_of_a_log_are_for_their_owner(tmp_path):
    log = file(tmp_path / "log.db")
    log.commit([(R1, [b"a"])])
    modes = {path.name: path.stat().st_mode & 0o077 for path in tmp_path.glob("log.db*") if path.suffix != ".lock"}
    assert modes == {"log.db": 0, "log.db-wal": 0, "log.db-shm": 0}
    log.close()
