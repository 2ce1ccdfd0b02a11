"""The ordered log in one SQLite file: durable group commit, several processes of one machine, no polling.

    append ----> queue ----> writer thread ----> one INSERT, one fsync per group      (sqlite_file.LogFile)
      ^            bounded        |    `-------> bell to the other processes          (sqlite_bell.Bell)
      |                           | one callback per group
      +--- positions <------------+
                                  v
    tails <---- hub <------- own groups, directly, if nothing came in between
                 ^
                 +---------- reader thread: all ranges' new blocks, one query per bell

The writer takes whatever gathered while its previous commit ran: the busier, the larger the groups; an idle log
commits at once. `_seen` is the newest position that went through the hub. A group of our own goes to the tails without
being read back if it begins right after `_seen`; else another process was faster, and the reader fetches everything
after `_seen`. A hole in what it fetches means that entries were trimmed before we saw them: all tails catch up again.

Rules
    L-1  The callback runs after SQLite synced its WAL. Readers of all processes see the order of the file.
    L-2  A full queue, a locked file, a full disk, a closed handle: nothing was written. I/O errors, timeouts: unknown.
    L-3  Positions are the file's, see `sqlite_file`.
    L-6  The incarnation is stored in the file when it is created. If the path comes to name another file while this one
         is open, the handle fails: what it would acknowledge could not be read.

Every queue is bounded: appends by `log.queue_bytes_max`, a group by `log.group_commit_bytes_max`, reads and trims by
the constants of `sqlite_file`, each tail by `log.tail_buffer_bytes_max`.
"""

from __future__ import annotations

import contextlib
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from slackwater.errors import AppendUnknown, LogError, LogIdentityMismatch, Overloaded, SlackwaterError
from slackwater.hooks import probe
from slackwater.log.blocks import check_payloads
from slackwater.log.contract import Entry, LogIdentity
from slackwater.log.sqlite_bell import Bell
from slackwater.log.sqlite_file import LogBlock, LogFile
from slackwater.log.tails import Tail, TailHub
from slackwater.log.threads import JobThread, ThreadJob, ThreadWorker
from slackwater.model.ids import Position, RangeId
from slackwater.runtime.sync import Future, get_running_loop
from slackwater.settings import Settings, describe

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from slackwater.runtime.seam import Rng

GROUP_APPENDS_MAX = 4096
assert describe("log.entry_bytes_max").default <= describe("log.queue_bytes_max").default, (
    "an entry fits into the queue"
)
assert describe("log.entry_bytes_max").default <= describe("log.tail_buffer_bytes_max").default, (
    "an entry fits into the buffer of a tail"
)
assert describe("log.entry_bytes_max").default <= describe("log.group_commit_bytes_max").default, (
    "an entry fits into a group"
)
assert describe("log.repair_interval").default < describe("log.append_timeout").default, (
    "what another process has written is found before an append that waits for it gives up"
)


class _Append:
    """One waiting append."""

    __slots__ = ("future", "payloads", "range_id", "size", "submitted")

    def __init__(self, range_id: RangeId, payloads: list[bytes], size: int, submitted: float) -> None:
        self.range_id = range_id
        self.payloads = payloads
        self.size = size
        self.submitted = submitted
        self.future: Future[Position] = get_running_loop().create_future()

    def fail(self, error: SlackwaterError) -> None:
        """Tell the caller, if it still waits."""
        if not self.future.done():
            self.future.set_exception(error)


class SqliteLog:
    """`log.contract.OrderedLog` in a file. Make it with `open_sqlite`."""

    def __init__(self, path: Path, writing: LogFile, reading: LogFile, bell: Bell, settings: Settings) -> None:
        self._path = path
        self._writing = writing
        self._reading = reading
        self._bell = bell
        self._settings = settings
        self._loop = get_running_loop()
        self._hub = TailHub(self, buffer_bytes_max=int(settings["log.tail_buffer_bytes_max"]))
        self._seen = reading.last()
        self._pending: deque[_Append] = deque()  # submitted and not settled by the writer, in order
        self._pending_bytes = 0
        self._failure: SlackwaterError | None = None
        self._closed = False
        self._refreshing = self._refresh_again = False
        self._expiry: Any = None
        self._writer: ThreadWorker[_Append | ThreadJob[Any]] = ThreadWorker("slackwater-log-writer", self._serve)
        self._reader = JobThread("slackwater-log-reader")
        self._loop.add_reader(bell.fileno(), self._rung)
        self._repair = self._loop.call_later(settings["log.repair_interval"], self._repair_due)
        bell.greet()

    # --- the contract ---

    async def append(self, range_id: RangeId, payloads: Sequence[bytes]) -> Position:
        """See `log.contract.OrderedLog`."""
        size = check_payloads(payloads, limit=int(self._settings["log.entry_bytes_max"]))
        if self._failure is not None:
            raise self._failure
        if self._pending_bytes + size > self._settings["log.queue_bytes_max"]:
            raise Overloaded("the log's queue is full; back off", queued_bytes=self._pending_bytes)
        append = _Append(range_id, list(payloads), size, self._loop.time())
        assert size >= 0, "an append has something in it"
        assert append.payloads, "an append has something in it"
        self._pending.append(append)
        self._pending_bytes += size
        assert self._pending_bytes <= self._settings["log.queue_bytes_max"], "bytes that wait are bounded"
        self._writer.submit(append)
        if self._expiry is None:
            self._expiry = self._loop.call_later(self._settings["log.append_timeout"], self._expire)
        return await append.future

    def tail(self, range_id: RangeId, *, after: Position) -> Tail:
        """See `log.contract.OrderedLog`."""
        return self._hub.tail(range_id, after=after)

    async def read(self, range_id: RangeId, *, after: Position) -> tuple[list[Entry], bool]:
        """See `tails.TailSource`."""
        return await self._reader.submit(partial(self._reading.read_range, range_id, after=after))

    async def trim(self, range_id: RangeId, *, upto: Position) -> None:
        """See `log.contract.OrderedLog`."""
        more = True
        while more:
            if self._failure is not None:
                raise self._failure
            job = ThreadJob(partial(self._writing.trim_some, range_id, upto=upto))
            self._writer.submit(job)
            more = await job.future

    async def head(self, range_id: RangeId) -> Position:
        """See `log.contract.OrderedLog`."""
        if self._failure is not None:
            raise self._failure
        return await self._reader.submit(partial(self._reading.head, range_id))

    def identity(self) -> LogIdentity:
        """See `log.contract.OrderedLog`."""
        return LogIdentity("sqlite", self._path.name, self._writing.incarnation)

    async def close(self) -> None:
        """Finish the commit under way, refuse what waits behind it, release the file."""
        if self._closed:
            return
        self._closed = True
        closed = LogError("the log handle was closed; open the log again")
        self._failure = self._failure or closed
        self._repair.cancel()
        self._loop.remove_reader(self._bell.fileno())
        for item in self._writer.take_all():
            if isinstance(item, _Append):
                item.fail(closed)
            elif not item.future.done():
                item.future.set_exception(closed)
        await self._writer.stop()
        assert all(append.future.done() for append in self._pending), "no caller waits for a log that is closed"
        await self._reader.stop()
        if self._expiry is not None:
            self._expiry.cancel()
        self._hub.fail(closed)
        self._bell.close()
        self._writing.close()
        self._reading.close()

    def status(self) -> str:
        """One line about this handle."""
        state = "ok" if self._failure is None else f"failed: {self._failure.message}"
        return f"sqlite {self._path} seen={self._seen} queued={len(self._pending)} bytes={self._pending_bytes} {state}"

    # --- the writer thread ---

    def _serve(self, queue: deque[_Append | ThreadJob[Any]]) -> None:
        """In the thread: one job, or one group of appends."""
        group, job = self._gather(queue)
        if job is not None:
            job.run(self._writer.post)
        if not group:
            return
        by_range: dict[RangeId, list[bytes]] = {}
        for append in group:
            by_range.setdefault(append.range_id, []).extend(append.payloads)
        assert sum(map(len, by_range.values())) == sum(len(a.payloads) for a in group), "every entry is in one block"
        try:
            last = self._writing.commit(list(by_range.items()))
            assert last >= len(group), "positions count every entry ever written"
        except SlackwaterError as error:
            self._writer.post(self._not_committed, group, error)
        except Exception as error:  # a bug must not end the thread and leave callers waiting
            unknown = AppendUnknown(f"the log's writer failed: {error!r}; read the log to find out")
            self._writer.post(self._not_committed, group, unknown)
        else:
            self._writer.post(self._committed, group, by_range, last)
            with contextlib.suppress(OSError):  # a lost ring costs the others a repair interval
                self._bell.ring()

    def _gather(self, queue: deque[_Append | ThreadJob[Any]]) -> tuple[list[_Append], ThreadJob[Any] | None]:
        group: list[_Append] = []
        room = int(self._settings["log.group_commit_bytes_max"])
        try:
            while len(group) < GROUP_APPENDS_MAX:
                item = queue[0]
                if isinstance(item, ThreadJob):
                    if group:
                        break
                    queue.popleft()
                    return [], item
                room -= item.size
                if room < 0 and group:
                    break
                queue.popleft()
                group.append(item)
        except IndexError:  # nothing left, or `close` took it
            pass
        assert len(group) <= GROUP_APPENDS_MAX, "a group is bounded"
        return group, None

    # --- back on the loop ---

    def _committed(self, group: list[_Append], by_range: dict[RangeId, list[bytes]], last: int) -> None:
        assert last >= sum(map(len, by_range.values())), "positions count every entry ever written"
        newest: dict[RangeId, int] = {}
        before = position = last - sum(map(len, by_range.values()))
        for range_id, payloads in by_range.items():
            newest[range_id] = position
            position += len(payloads)
        # Answers before entries: the callers hand in the next group, which is written while this one is applied.
        for append in group:
            newest[append.range_id] += len(append.payloads)
            if not append.future.done():
                append.future.set_result(Position(newest[append.range_id]))
        assert max(newest.values()) == last, "the last entry of the group has the last position"
        if before == self._seen:
            self._seen, position = last, before
            for range_id, payloads in by_range.items():
                if self._hub.wants(range_id):
                    entries = [Entry(Position(position + i), payload) for i, payload in enumerate(payloads, 1)]
                    self._hub.dispatch(range_id, entries, sum(map(len, payloads)))
                position += len(payloads)
        elif last > self._seen:
            probe("log.sqlite_interleaved")  # tests/integration/test_log_sqlite.py
            self._refresh()
        self._settled(group)

    def _not_committed(self, group: list[_Append], error: SlackwaterError) -> None:
        for append in group:
            append.fail(error)
        self._settled(group)
        if isinstance(error, AppendUnknown):
            self._fail(
                LogError("the log file failed during a commit; close this handle and open it again", cause=str(error))
            )

    def _settled(self, group: list[_Append]) -> None:
        assert len(group) <= GROUP_APPENDS_MAX, "a group is bounded"
        for append in group:
            self._pending_bytes -= append.size
        assert self._pending_bytes >= 0, "bytes are given back once"
        while self._pending and self._pending[0].future.done():
            self._pending.popleft()

    def _expire(self) -> None:
        """Give up on appends that have waited too long."""
        self._expiry = None
        limit = self._settings["log.append_timeout"]
        now = self._loop.time()
        for append in self._pending:
            if append.submitted + limit > now:
                self._expiry = self._loop.call_at(append.submitted + limit, self._expire)
                return
            append.fail(AppendUnknown("the log did not answer in time; read the log to find out", waited=limit))

    # --- new entries of others ---

    def _rung(self) -> None:
        self._bell.drain()
        self._refresh()

    def _repair_due(self) -> None:
        self._repair = self._loop.call_later(self._settings["log.repair_interval"], self._repair_due)
        self._bell.refresh()
        if self._reading.replaced():
            self._fail(LogIdentityMismatch("the log file was replaced while it was open", path=str(self._path)))
        self._refresh()

    def _refresh(self) -> None:
        """Fetch what is new, one query at a time."""
        if self._failure is not None:
            return
        if self._refreshing:
            self._refresh_again = True
            return
        self._refreshing = True
        assert not self._refresh_again, "one query is under way, and one at most is owed"
        job = self._reader.submit(partial(_fetch, self._reading, self._seen, payloads=self._hub.busy))
        job.add_done_callback(self._refreshed)

    def _refreshed(self, done: Future[tuple[list[LogBlock], int, bool]]) -> None:
        assert self._refreshing, "a query that ends was under way"
        self._refreshing = False
        again, self._refresh_again = self._refresh_again, False
        error = done.exception()
        if error is not None:
            self._fail(error if isinstance(error, SlackwaterError) else LogError(f"the log's reader failed: {error!r}"))
            return
        found, last, more = done.result()
        for block in found:
            if block.position > self._seen:
                self._arrived(block)
        if last > self._seen:  # newer than all that is left: the rest was trimmed, or has no reader here
            self._seen = last
            self._hub.demote()
        if again or more:
            self._refresh()

    def _arrived(self, block: LogBlock) -> None:
        if block.first != self._seen + 1:
            probe("log.sqlite_hole")  # tests/unit/log/test_sqlite.py
            self._hub.demote()
        assert block.position > self._seen, "what arrives is new"
        self._seen = block.position
        if self._hub.wants(block.range_id):
            try:
                self._hub.dispatch(block.range_id, block.entries(), len(block.payload))
            except SlackwaterError as error:
                self._fail(error)

    def _fail(self, error: SlackwaterError) -> None:
        if self._failure is None:
            self._failure = error
            self._hub.fail(error)


def _fetch(file: LogFile, seen: int, *, payloads: bool) -> tuple[list[LogBlock], int, bool]:
    """In the reader thread: new blocks, or else the newest position; and whether there are more."""
    found, exhausted = file.read_all(after=seen) if payloads else ([], True)
    return found, (0 if found else file.last()), not exhausted


async def open_sqlite(path: Path, *, rng: Rng, settings: Settings | None = None) -> SqliteLog:
    """Open the log in this file; create it if there is none."""
    settings = settings or Settings()
    opener = JobThread("slackwater-log-opener")
    # Bounded by the timeout of an append, so that a locked file fails the group before its callers give up.
    make = partial(LogFile, path, incarnation=rng.bytes(16).hex(), busy_timeout=settings["log.append_timeout"] / 2)
    try:
        writing = await opener.submit(make)
        try:
            await opener.submit(writing.check)
            reading = await opener.submit(make)
        except BaseException:
            writing.close()
            raise
    finally:
        await opener.stop()
    bell = Bell(path.with_name(path.name + ".bells"), rng.bytes(8).hex())
    return SqliteLog(path, writing, reading, bell, settings)
