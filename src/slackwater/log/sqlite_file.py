"""The file of the SQLite log: its tables, its statements, its errors. Blocking; no loop, no thread, no clock.

    meta     incarnation, floor               one row; `floor` is >= every position that was ever trimmed
    blocks   position, range_id, count, payload
                                              a block of `count` payloads at position-count+1 .. position
    ranges   range_id, head, trimmed          only for ranges that were trimmed: newest position at that time, and the
                                              newest position removed

Rules
    - Positions are one sequence over the file: the next is max(floor, newest block) + 1, so they never restart, even
      when everything was trimmed. They have no gaps until a trim makes them; a reader that finds one knows that.
    - A group commit is *one* statement, in autocommit mode: SQLite takes the write lock, inserts all blocks, writes the
      WAL and syncs it inside one call. One statement is one release of the interpreter lock: a writer that had to take
      it back for every row would wait for a busy loop every time.
    - journal_mode=WAL, synchronous=FULL: the statement returns after the WAL was synced (L-1).
    - SQLite reads on over a flipped bit that leaves its trees well formed: a damaged index hides rows. So the file is checked as
      a whole when it is opened, before anything is replayed from it (40 ms of processor time for 100 MB), and each row when it
      is read.
    - After an I/O error in a commit it is not known what is in the file: the append is unknown (L-2), and the connection
      is not used again, because a second fsync may report success for pages the kernel has dropped.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from bisect import bisect_right
from contextlib import suppress
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from slackwater.errors import AppendUnknown, LogError, LogTrimmed, Overloaded, SlackwaterError
from slackwater.log import blocks
from slackwater.model.ids import Position, RangeId

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from slackwater.log.contract import Entry

APPLICATION_ID = 0x534C4B57  # "SLKW"
FORMAT = 1
READ_BYTES_MAX = 4 << 20
READ_BLOCKS_MAX = 1024
TRIM_BLOCKS_MAX = 1024
TRIM_BYTES_MAX = 4 << 20
"""Blocks one trim transaction removes, and bytes of them: appends get their turn in between."""
SYNCHRONOUS_FULL = 2
"""The number by which SQLite names the mode."""
WAL_PAGES_MAX = 4096
WAL_BYTES_KEPT = 64 << 20
assert TRIM_BLOCKS_MAX <= READ_BLOCKS_MAX, "a trim removes no more at a time than a read takes"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (
    id INTEGER PRIMARY KEY CHECK (id = 1), incarnation TEXT NOT NULL, floor INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS blocks (
    position INTEGER PRIMARY KEY, range_id INTEGER NOT NULL, count INTEGER NOT NULL, payload BLOB NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS blocks_by_range ON blocks (range_id, position);
CREATE TABLE IF NOT EXISTS ranges (
    range_id INTEGER PRIMARY KEY, head INTEGER NOT NULL, trimmed INTEGER NOT NULL) STRICT;
"""

_DAMAGED = "the log file is damaged; restore this machine's log from a backup"
_COLUMNS = "position, range_id, count, payload"

_LAST = "SELECT max(coalesce((SELECT max(position) FROM blocks), 0), (SELECT floor FROM meta)) AS last"

# ?1: [[offset of the last position, range, count, start, size], ...]; ?2: the blocks back to back. The SELECT is
# evaluated in full before the first insert, because it reads the table it writes.
_COMMIT = f"""
INSERT INTO blocks (position, range_id, count, payload)
SELECT base.last + json_extract(b.value, '$[0]'), json_extract(b.value, '$[1]'), json_extract(b.value, '$[2]'),
       substr(?2, json_extract(b.value, '$[3]') + 1, json_extract(b.value, '$[4]'))
FROM ({_LAST}) AS base, json_each(?1) AS b
"""

# Most groups are of one range: 10 of 98 µs less than the general statement.
_COMMIT_ONE = f"""
INSERT INTO blocks (position, range_id, count, payload)
SELECT base.last + ?1, ?2, ?1, ?3 FROM ({_LAST}) AS base
"""

_REMEMBER_TRIM = """
INSERT INTO ranges (range_id, head, trimmed)
VALUES (?1, (SELECT max(position) FROM blocks WHERE range_id = ?1), ?2)
ON CONFLICT (range_id) DO UPDATE SET head = max(head, excluded.head), trimmed = max(trimmed, excluded.trimmed)
"""


class LogBlock(NamedTuple):
    """A row of `blocks`, still encoded."""

    position: int
    range_id: RangeId
    size: int  # payloads in it
    payload: bytes

    @property
    def first(self) -> int:
        """The position of its first payload."""
        return self.position - self.size + 1

    def entries(self) -> list[Entry]:
        """The entries of the block, decoded and checked."""
        found = blocks.entries(self.payload, first=self.first) if self.first > 0 else []
        if len(found) != self.size:
            raise LogError(
                "the log is damaged: a block is not as long as its row says; restore it from a backup",
                position=self.position,
                count=self.size,
            )
        return found


class LogFile:
    """One connection to the file. Used by one thread at a time."""

    def __init__(self, path: Path, *, incarnation: str, busy_timeout: float) -> None:
        """Open the file, or create it with this incarnation if it is not there."""
        self.path = path
        try:
            self._db = _open(path, incarnation=incarnation, busy_timeout=busy_timeout)
            (self.incarnation,) = self._db.execute("SELECT incarnation FROM meta").fetchone()
        except sqlite3.Error as error:
            raise typed(error, path=path) from error
        self._inode = _inode(path)

    def commit(self, group: Sequence[tuple[RangeId, list[bytes]]]) -> int:
        """Append one block per item, durably; the position of the last payload of the last one."""
        assert group, "a commit holds something"
        assert all(payloads for _, payloads in group), "no block is empty"
        index: list[tuple[int, int, int, int, int]] = []
        encoded: list[bytes] = []
        offset = start = 0
        for range_id, payloads in group:
            block = blocks.encode(payloads)
            offset += len(payloads)
            index.append((offset, range_id, len(payloads), start, len(block)))
            encoded.append(block)
            start += len(block)
        try:
            assert start == sum(map(len, encoded)), "every byte belongs to a block"
            if len(index) == 1:
                cursor = self._db.execute(_COMMIT_ONE, (offset, index[0][1], encoded[0]))
            else:
                cursor = self._db.execute(_COMMIT, (json.dumps(index), b"".join(encoded)))
        except sqlite3.Error as error:
            raise typed(error, path=self.path, committing=True) from error
        last = cursor.lastrowid
        assert last is not None  # sqlite sets it for every INSERT
        assert last >= offset, "positions count every entry ever written"
        return last

    def check(self) -> None:
        """Raise `LogError` unless every page, every row and the index of rows agree with each other."""
        try:
            (verdict,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
            (trimmed,) = self._db.execute("SELECT coalesce(max(max(trimmed, head)), 0) FROM ranges").fetchone()
            (last,) = self._db.execute(_LAST).fetchone()
        except sqlite3.Error as error:
            raise typed(error, path=self.path) from error
        if verdict == "ok" and trimmed > last:
            verdict = f"{trimmed} was trimmed, and {last} is the newest position"
        if verdict != "ok":
            why = str(verdict).replace("\n", " ")[:200]
            raise LogError(f"{_DAMAGED}: {why}", path=str(self.path))

    def read_range(self, range_id: RangeId, *, after: Position) -> tuple[list[Entry], bool]:
        """A bounded batch of one range's entries > after, and whether that is all there is. Or `LogTrimmed`."""
        sql = f"SELECT {_COLUMNS} FROM blocks WHERE range_id = ? AND position > ? ORDER BY position"
        try:
            found, exhausted = self._blocks(sql, (range_id, after))
            # Asked after the read: what a trim removed before the read, it had recorded before too.
            row = self._db.execute("SELECT trimmed FROM ranges WHERE range_id = ?", (range_id,)).fetchone()
        except sqlite3.Error as error:
            raise typed(error, path=self.path) from error
        if row is not None and after < row[0]:
            raise LogTrimmed("the entries asked for were trimmed; restore from a snapshot", after=after, trimmed=row[0])
        if any(block.first <= before.position for before, block in pairwise(found)):
            raise LogError("the log is damaged: its blocks overlap; restore it from a backup", range_id=range_id)
        entries = [entry for block in found for entry in block.entries() if entry.position > after]
        assert not entries or entries[0].position > after, "only what was asked for"
        return entries, exhausted

    def read_all(self, *, after: int) -> tuple[list[LogBlock], bool]:
        """A bounded batch of all ranges' blocks > after, and whether that is all there is."""
        sql = f"SELECT {_COLUMNS} FROM blocks WHERE position > ? ORDER BY position"
        try:
            return self._blocks(sql, (after,))
        except sqlite3.Error as error:
            raise typed(error, path=self.path) from error

    def last(self) -> int:
        """The newest position of the file, trimmed or not."""
        try:
            (last,) = self._db.execute(_LAST).fetchone()
        except sqlite3.Error as error:
            raise typed(error, path=self.path) from error
        return int(last)

    def head(self, range_id: RangeId) -> Position:
        """The newest position of one range, trimmed or not."""
        sql = """SELECT max(coalesce((SELECT max(position) FROM blocks WHERE range_id = ?1), 0),
                            coalesce((SELECT head FROM ranges WHERE range_id = ?1), 0))"""
        try:
            (head,) = self._db.execute(sql, (range_id,)).fetchone()
        except sqlite3.Error as error:
            raise typed(error, path=self.path) from error
        return Position(head)

    def trim_some(self, range_id: RangeId, *, upto: Position) -> bool:
        """Remove the first blocks that end at or before `upto`, within the bounds of one trim; whether there may be more."""
        sql = "SELECT position, length(payload) FROM blocks WHERE range_id = ? AND position <= ? ORDER BY position LIMIT ?"
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                found = self._db.execute(sql, (range_id, upto, TRIM_BLOCKS_MAX)).fetchall()
                if victims := _within(found, bytes_max=TRIM_BYTES_MAX):
                    newest = victims[-1][0]
                    self._db.execute(f"UPDATE meta SET floor = ({_LAST})")
                    assert newest <= upto, "no more is trimmed than was asked for"
                    self._db.execute(_REMEMBER_TRIM, (range_id, newest))
                    self._db.execute("DELETE FROM blocks WHERE range_id = ? AND position <= ?", (range_id, newest))
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise typed(error, path=self.path) from error
        assert len(victims) <= TRIM_BLOCKS_MAX, "a trim is bounded"
        return len(victims) < len(found) or len(found) == TRIM_BLOCKS_MAX

    def replaced(self) -> bool:
        """Whether the path now names another file, or none, than the one that was opened."""
        return _inode(self.path) != self._inode

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def _blocks(self, sql: str, args: tuple[int, ...]) -> tuple[list[LogBlock], bool]:
        found: list[LogBlock] = []
        size = 0
        cursor = self._db.execute(sql, args)
        for row in cursor:
            if not (isinstance(row[3], bytes) and all(isinstance(number, int) for number in row[:3])):
                raise LogError(_DAMAGED, path=str(self.path))
            found.append(LogBlock(*row))
            size += len(row[3])
            if size >= READ_BYTES_MAX or len(found) >= READ_BLOCKS_MAX:
                cursor.close()
                return found, False
        assert len(found) < READ_BLOCKS_MAX, "a read is bounded"
        return found, True


def _within(sized: list[tuple[int, int]], *, bytes_max: int) -> list[tuple[int, int]]:
    """The first of (position, bytes) that have no more bytes than this together, or one."""
    ends = list(accumulate(size for _, size in sized))
    return sized[: max(1, bisect_right(ends, bytes_max))]


def _open(path: Path, *, incarnation: str, busy_timeout: float) -> sqlite3.Connection:
    if not path.parent.is_dir():
        raise LogError("the directory of the log does not exist; create it first", path=str(path))
    # What SQLite puts beside it gets the same mode. Only a file that is new: closing any descriptor of it drops this
    # process's locks on it, and the process that closes next takes itself for the last and removes the others' WAL.
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with path.with_name(path.name + ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # switching to WAL mode does not wait for other openers by itself
        db = sqlite3.connect(path, timeout=busy_timeout, isolation_level=None, check_same_thread=False)
        try:
            _prepare(db, path, incarnation)
        except BaseException:
            db.close()
            raise
    return db


def _prepare(db: sqlite3.Connection, path: Path, incarnation: str) -> None:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if (application or tables) and (application, version) != (APPLICATION_ID, FORMAT):
        raise LogError(
            "the file is a database, but not a log this build can use; give the log a file of its own",
            path=str(path),
            application_id=application,
            format=version,
        )
    (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise LogError("the file system does not support SQLite's WAL mode; put the log on a local disk", mode=mode)
    db.execute("PRAGMA synchronous = FULL")
    (synchronous,) = db.execute("PRAGMA synchronous").fetchone()
    assert synchronous == SYNCHRONOUS_FULL, "a commit returns after the WAL was synced (L-1)"
    db.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES_MAX}")
    db.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
    if not tables:
        db.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA.split(";"):
            db.execute(statement)
        db.execute("INSERT INTO meta (id, incarnation, floor) VALUES (1, ?, 0)", (incarnation,))
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {FORMAT}")
        db.execute("COMMIT")


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - reads as what it is
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def typed(error: sqlite3.Error, *, path: Path, committing: bool = False) -> SlackwaterError:
    """The error of our tree that says what a caller may do."""
    name = getattr(error, "sqlite_errorname", "") or type(error).__name__
    facts = {"path": str(path), "sqlite": name}
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return Overloaded("another process held the log's write lock for too long; retry", **facts)
    if name == "SQLITE_FULL":
        return Overloaded("the disk of the log is full; free space, then retry", **facts)
    if name.startswith("SQLITE_NOTADB"):
        return LogError(f"{path} is no log; give the log a file of its own, or, if it was one, restore it", **facts)
    if name.startswith("SQLITE_CORRUPT"):
        return LogError(_DAMAGED, **facts)
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")):
        return LogError("the log file cannot be opened for writing; check path and permissions", **facts)
    if committing:
        return AppendUnknown("the log failed during a commit; read the log to find out", **facts)
    return LogError(f"the log file failed: {error}", **facts)
