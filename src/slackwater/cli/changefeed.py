"""`slackwater changefeed`: follow tables into files, until told to stop; the same command goes on where it stopped."""

from __future__ import annotations

import argparse
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from slackwater.changefeed.file_bytes import FORMATS
from slackwater.changefeed.files import DirectoryWriter, FeedConfig
from slackwater.changefeed.follow import DirectoryFeed
from slackwater.client import aconnect
from slackwater.client.url import SCHEME
from slackwater.clock.timestamp import MIN, Timestamp, parse, parse_seconds, seconds_between, show
from slackwater.errors import UsageError
from slackwater.protocol.client.changes import INITIAL_SCANS
from slackwater.runtime.real import run
from slackwater.runtime.sync import get_running_loop, timeout
from slackwater.server.arguments import add_client_arguments, addresses_of, joined

if TYPE_CHECKING:
    from asyncio import Timeout

    from slackwater.client.database import AsyncDatabase

TEXT = """\
output
  DIR/2026-11-15/1838…024-orders-0000000001-00000.parquet    every change in one window of time, by commit, each once
  DIR/2026-11-15/1838…024.RESOLVED                           everything before this name, in order of names, is final

  The columns are the table's, and _op (insert, update, delete; upsert without --diff), _commit_ts, _version of the table, and
  with --diff _before. The number in a name is the end of its window. Windows are whole multiples of --resolved, so that the
  same history gives the same names and bytes, however often the feed was stopped.

json
  One object a line: table, op, commit_ts, version, key, after and, with --diff, before. Bytes are base64, decimals and uuids are
  text, and of float8 "NaN", "Infinity" and "-Infinity" are text too, as PostgreSQL's row_to_json writes them.

going on
  Run the same command again: it goes on after the last marker. --cursor and --initial-scan count for a new directory only.
  Ctrl-C or SIGTERM ends the feed; what was not final is written again, the same, next time. The node that serves the feed
  may be stopped: another one takes over.

times
  2026-11-15T19:15:00Z, an integer as in _commit_ts, or -10m

examples:
  slackwater changefeed orders --into ./orders                      what is there, then every change
  slackwater changefeed orders payments --into ./shop --resolved 10s
  slackwater changefeed orders --into ./hour --cursor -1h --until -0s --format json
  slackwater changefeed orders --into ./copy --initial-scan only
"""


class FollowSummary(msgspec.Struct, frozen=True):
    """What `--json` prints at the end."""

    rows: int
    files: int
    resolved: int
    """Everything up to here is final in the directory; 0: nothing is."""
    ended: bool
    """False: there is more to come, and the same command goes on."""


def main(argv: list[str]) -> int:
    """Follow tables into a directory; exits with status 0 when it ended as asked or was told to stop."""
    options = _parser().parse_args(joined(argv, "--cursor", "--until"))
    return run(_follow(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="slackwater changefeed",
        description="Write every change of tables to files in the order of their commits, with markers of what is final.",
        epilog=TEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("tables", nargs="+", metavar="TABLE", help="one feed, and one set of markers, for all of them")
    parser.add_argument("--into", type=Path, required=True, metavar="DIR", help="a directory; made if missing")
    parser.add_argument("--format", choices=FORMATS, default=FORMATS[0], help=f"of the files (default {FORMATS[0]})")
    parser.add_argument("--resolved", default="1s", metavar="TIME", help="how long a window is (default 1s)")
    parser.add_argument("--cursor", metavar="T", help="start after this time, without an initial scan unless asked for")
    parser.add_argument("--until", metavar="T", help="end when everything up to this time is written")
    parser.add_argument(
        "--initial-scan",
        choices=INITIAL_SCANS,
        help="the tables as they are first (yes), not at all (no), or nothing else (only); default yes, with --cursor no",
    )
    parser.add_argument("--diff", action="store_true", help="also what each row replaced")
    parser.add_argument("--quiet", action="store_true", help="no progress and no summary")
    parser.add_argument("--json", action="store_true", help="print the summary as a JSON object")
    add_client_arguments(parser)
    return parser


async def _follow(options: argparse.Namespace) -> int:
    url = f"{SCHEME}://{','.join(addresses_of(options.host))}"
    async with aconnect(url, certs=options.certs, user=options.user) as db:
        config, until = _config(options, db), MIN if options.until is None else _time(options.until, db)
        writer = DirectoryWriter(options.into)
        if writer.config() is None:
            await _check(config, until, db)
        feed = DirectoryFeed(writer, config, until=until, only=options.initial_scan == "only")
        progress = _Progress(db, shown=sys.stderr.isatty() and not options.quiet)
        with suppress(TimeoutError):
            async with timeout(None) as limit:
                _stop_by_signal(limit)
                await feed.run(db, tell=progress.tell)
        progress.end()
    if options.json:
        print(msgspec.json.encode(FollowSummary(feed.rows, feed.files, int(feed.resolved), feed.ended)).decode())
    elif not options.quiet:
        upto = f"final up to {show(feed.resolved)}" if feed.resolved else "nothing is final yet"
        more = "" if feed.ended else "; the same command goes on"
        print(f"{feed.rows} rows in {feed.files} new files in {options.into}, {upto}{more}")
    return 0


def _stop_by_signal(limit: Timeout) -> None:
    """SIGINT and SIGTERM end what `limit` surrounds, at its next wait."""
    loop = get_running_loop()

    def stop() -> None:
        with suppress(RuntimeError):  # it is ending already
            limit.reschedule(loop.time())

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)


def _config(options: argparse.Namespace, db: AsyncDatabase) -> FeedConfig:
    if len(set(options.tables)) != len(options.tables):
        raise UsageError("a table is named twice")
    scan = options.initial_scan or ("yes" if options.cursor is None else "no")
    return FeedConfig(
        tables=tuple(options.tables),
        form=options.format,
        interval_s=parse_seconds(options.resolved),
        after=db.now() if options.cursor is None else _time(options.cursor, db),
        initial_scan=scan != "no",
        befores=options.diff,
    )


async def _check(config: FeedConfig, until: Timestamp, db: AsyncDatabase) -> None:
    """Refuse a new feed that cannot be, before a directory is made for it."""
    if config.after > db.now():
        raise UsageError(f"--cursor {show(config.after)} is in the future; leave it out to begin now")
    if MIN < until < config.after:
        raise UsageError(f"--until {show(until)} is before the start of the feed, {show(config.after)}")
    for table in config.tables:
        await db.table(table)


def _time(text: str, db: AsyncDatabase) -> Timestamp:
    return parse(text, now=db.now())


class _Progress:
    """One line on a terminal that is written over and over."""

    def __init__(self, db: AsyncDatabase, *, shown: bool) -> None:
        self._db = db
        self._shown = shown
        self._told = MIN

    def tell(self, feed: DirectoryFeed) -> None:
        """Say how far it is, a few times a second."""
        now = self._db.now()
        if not self._shown or (self._told and seconds_between(self._told, now) < 0.2):
            return
        self._told = now
        lag = f"{seconds_between(feed.resolved, now):.1f} s behind" if feed.resolved else "scanning"
        print(f"\r\x1b[K{feed.rows} rows  {feed.files} files  {lag}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the line."""
        if self._shown and self._told:
            print(file=sys.stderr)
