"""A feed of tables into a directory, from a client's side: ask, decode, cut into windows, write, go on where it stopped.

    directory ─ begin ─► config, last marker ─► OpenChanges(after = last marker) ─► items ─► FeedFiles ─► DirectoryWriter

Names and bytes follow from history, the start and the interval alone (`changefeed.files`): whatever gateways die, whenever the
writer is killed, the directory ends up the same. An initial scan that was broken off starts again at the same timestamp; its
pages come in key order, and one that was handed over does not come again, because each has its own token.

Files are written in order, each durable before the next, markers last. Nothing is acknowledged: the directory is
the token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.changefeed.files import DataFile, DirectoryWriter, FeedConfig, FeedFiles, File, read_path
from slackwater.client.changes import extend, timeline_of
from slackwater.clock.timestamp import MAX, MIN, Timestamp, show
from slackwater.errors import Overloaded, UsageError
from slackwater.protocol.client.changes import ChangesItem, OpenChanges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from slackwater.client.database import AsyncDatabase
    from slackwater.codec.envelope import Timeline

ASKS_PER_WINDOW = 4
"""Resolved timestamps asked for per window, so that a window is written soon after it ends."""
ASK_INTERVAL_S_MAX = 1.0


class DirectoryFeed:
    """One run of a feed into a directory."""

    def __init__(
        self, writer: DirectoryWriter, asked: FeedConfig, *, until: Timestamp = MIN, only: bool = False
    ) -> None:
        """`until`: end there; `only`: end after the initial scan."""
        self.config, self.done = writer.begin(asked)
        self.resumed = self.done is not None
        """Whether the directory held something final already."""
        self.rows = 0
        self.files = 0
        """Data files written by this run."""
        self._writer = writer
        self._until = until
        self._only = only
        self._timelines: dict[int, Timeline] = {}
        self._content: FeedFiles | None = None
        self._emptied_at, self._emptied = MAX, ""
        """When the first of its tables was emptied after the beginning, and which: files cannot say that, so they end there."""
        if only and not self.config.initial_scan:
            raise UsageError("the directory holds a feed without an initial scan; choose another directory")

    @property
    def resolved(self) -> Timestamp:
        """Everything at or below is final in the directory; MIN: nothing is."""
        return self.done or MIN

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do."""
        return self.done is not None and (self._only or MIN < self._until <= self.done)

    def request(self) -> OpenChanges:
        """What to ask for, given what the directory holds."""
        scan = self.config.initial_scan and self.done is None
        return OpenChanges(
            tables=self.config.tables,
            after=self.config.after if self.done is None else Timestamp(max(self.done, self.config.after)),
            initial_scan="no" if not scan else "only" if self._only else "yes",
            until=self._until,
            befores=self.config.befores,
            interval_s=min(ASK_INTERVAL_S_MAX, self.config.interval_s / ASKS_PER_WINDOW),
            whole=True,
            columns=True,
        )

    async def run(self, db: AsyncDatabase, *, tell: Callable[[DirectoryFeed], None] = lambda _: None) -> None:
        """Follow until the end that was asked for; canceled at any point, the directory can be resumed."""
        if self.ended:
            return
        stream = db.change_items(self.request())
        try:
            async for item in stream:
                self.take(item)
                tell(self)
        finally:
            await stream.aclose()

    def take(self, item: ChangesItem) -> None:
        """One item of the feed."""
        for history in item.tables:
            known = self._timelines.get(history.latest.table_id)
            if known is None:
                self._timelines[history.latest.table_id] = timeline_of(history)
            else:
                extend(known, history)
            for version in history.emptied():
                if self.config.after < version.modified < self._emptied_at:
                    self._emptied_at, self._emptied = version.modified, version.name
        if self._content is None:
            self._content = FeedFiles(self.config, self._timelines, done=self.done)
        self._write(self._made(self._content, item))
        if self._content.scanned and (self.config.initial_scan or self._content.done > self.config.after):
            self.done = self._content.done
        if self.resolved >= self._emptied_at:
            raise UsageError(
                f"table {self._emptied} was emptied at {show(self._emptied_at)}; the directory holds everything up to there, and"
                " its files cannot say that rows went: follow into a new directory from now on"
            )

    def _made(self, content: FeedFiles, item: ChangesItem) -> Iterator[File]:
        if item.page is not None:
            self.rows += item.page.rows
            yield from content.scan_page(item.page)
        elif item.rows is not None and item.initial:
            self.rows += len(item.rows)
            yield from content.scan(item.rows)
        elif item.rows is not None:
            self.rows += len(item.rows)
            content.add(item.rows)
            if content.full:
                raise Overloaded("too much waits to be resolved; look at `slackwater frontier`, then resume")
        if not content.scanned:
            if item.resolved < self.config.after:
                return
            yield from content.finish_scan()
        if self._only:
            return
        if item.done or item.resolved >= self._emptied_at:
            yield from content.finish(Timestamp(min(item.resolved, self._emptied_at)))
        elif item.resolved:
            yield from content.advance(item.resolved)

    def _write(self, files: Iterable[File]) -> None:
        for file in files:
            self._writer.write(file)
            self.files += isinstance(read_path(file.path), DataFile)
