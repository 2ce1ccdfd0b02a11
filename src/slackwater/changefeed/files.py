"""A feed as files in a directory: names and bytes that follow from history alone.

    2026-11-15/1838…024-accounts-00000003-00000.parquet      every change in (previous boundary, this one], one version
    2026-11-15/1838…024-transfers-00000001-00000.parquet     of the schema per file, cut every `FILE_ROWS` rows
    2026-11-15/1838…024.RESOLVED                             ← everything before this name is final
    2026-11-15/1838…048-accounts-00000003-00000.parquet
    _feed.json                                               what the feed was asked for

Time is cut into *windows* at whole multiples of the interval, not at whatever resolved timestamp happened to arrive: two
runs over the same history see other resolved timestamps, but the same windows. A window is written when the feed has resolved
its end: its changes sorted by (commit timestamp, key), each once (`model.settle`), then its marker. The number in a name is the
window's end. `-` sorts before `.`, so data come before their marker, and a window's files before the next one's.

    history + interval + start  ──►  names and bytes              (hence no transaction ids in files: history has none)

Resuming needs the directory only: the last marker says after what to go on. What lies behind it was being written when the
writer died; it is removed, or overwritten with the very same bytes. A file appears under its name only when it is whole: it is
written aside, made durable, and renamed. A marker is written last.

An initial scan at T is the window that ends at T. It is written in key order, part by part, so that a large table needs no
large memory; interrupted, it starts again, at the same T, which `_feed.json` keeps.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow

from slackwater.changefeed.file_bytes import FORMATS, file_bytes
from slackwater.clock.timestamp import LOGICAL_BITS, MIN, Timestamp, show
from slackwater.codec.envelope import Enveloper, Timeline, by_table
from slackwater.errors import DecodeError, StorageError, UsageError, invariant
from slackwater.model.settle import Settling

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from slackwater.codec.envelope import Envelopes
    from slackwater.model.changes import Changes, InitialPage

pa: Any = pyarrow
FILE_ROWS = 1 << 16
"""Rows of one file; part of the format, because names and bytes follow from it."""
INTERVAL_S_MIN = 0.001
INTERVAL_S_MAX = 86_400.0
CONFIG_NAME = "_feed.json"
ASIDE = ".tmp"
_DIGITS = 19
_DATA = re.compile(r"\d{4}-\d\d-\d\d/(\d{19})-([A-Za-z0-9_%]+)-(\d{10})-(\d{5})\.(parquet|json)")
_MARKER = re.compile(r"\d{4}-\d\d-\d\d/(\d{19})\.RESOLVED")


class File(NamedTuple):
    """A file to write: its path below the directory, and its content."""

    path: str
    content: bytes


class DataFile(NamedTuple):
    """What a data file's path says."""

    upto: Timestamp
    table: str
    version: int
    part: int
    form: str


class FeedConfig(msgspec.Struct, frozen=True):
    """What a directory's feed was asked for: all that names and bytes depend on besides history."""

    tables: tuple[str, ...]
    form: str
    interval_s: float
    after: Timestamp
    """Where the changes begin, exclusive. With an initial scan: its timestamp."""
    initial_scan: bool = False
    befores: bool = False
    layout: int = 1

    def __post_init__(self) -> None:
        if self.form not in FORMATS:
            raise UsageError(f"a feed writes {' or '.join(FORMATS)}, not {self.form!r}")
        if not INTERVAL_S_MIN <= self.interval_s <= INTERVAL_S_MAX:
            raise UsageError("the interval of resolved markers is from 1ms to 1d", interval_s=self.interval_s)

    @property
    def step(self) -> int:
        """The interval in ticks of a timestamp."""
        return round(self.interval_s * 1_000_000) << LOGICAL_BITS


# --- names ---------------------------------------------------------------------------------------------------------


def folder(ts: Timestamp) -> str:
    """The day of a timestamp."""
    return show(ts)[:10]


def data_path(upto: Timestamp, table: str, version: int, part: int, form: str) -> str:
    """Where the changes of one table in the window that ends at `upto` lie."""
    return f"{folder(upto)}/{upto:0{_DIGITS}d}-{safe_name(table)}-{version:010d}-{part:05d}.{form}"


def marker_path(upto: Timestamp) -> str:
    """The marker that says that everything before it is final."""
    return f"{folder(upto)}/{upto:0{_DIGITS}d}.RESOLVED"


def marker(upto: Timestamp) -> File:
    """The marker as a file."""
    return File(marker_path(upto), msgspec.json.encode({"resolved": upto, "time": show(upto)}) + b"\n")


def safe_name(table: str) -> str:
    """A table's name with everything but letters, digits and `_` as %XX, so that it cannot break a path."""
    return "".join(c if c.isascii() and (c.isalnum() or c == "_") else _escaped(c) for c in table)


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())


def read_path(path: str) -> DataFile | Timestamp | None:
    """What a path says: a data file, a marker's timestamp, or None for what no feed has written."""
    if found := _DATA.fullmatch(path):
        upto, table, version, part, form = found.groups()
        return DataFile(Timestamp(int(upto)), table, int(version), int(part), form)
    if found := _MARKER.fullmatch(path):
        return Timestamp(int(found.group(1)))
    return None


def resolved_upto(paths: Iterable[str]) -> Timestamp | None:
    """The last marker: everything at or below it is final. None: nothing is."""
    return max((ts for path in paths if isinstance(ts := read_path(path), int)), default=None)


def leftovers(paths: Iterable[str]) -> list[str]:
    """Files of a window that was never finished, and files set aside: to be removed before going on."""
    listed = list(paths)
    last = resolved_upto(listed) or MIN
    unfinished = [p for p in listed if isinstance(found := read_path(p), DataFile) and found.upto > last]
    return sorted(unfinished + [p for p in listed if p.endswith(ASIDE)])


def final(paths: Iterable[str]) -> list[str]:
    """The data files that are final, in the order to read them."""
    listed = sorted(paths)
    last = resolved_upto(listed) or MIN
    return [p for p in listed if isinstance(found := read_path(p), DataFile) and found.upto <= last]


def boundaries(*, after: Timestamp, upto: Timestamp, step: int) -> Iterator[Timestamp]:
    """The ends of the windows with after < end <= upto: whole multiples of the step."""
    end = (after // step + 1) * step
    while end <= upto:
        yield Timestamp(end)
        end += step


# --- content -------------------------------------------------------------------------------------------------------


class FeedFiles:
    """Turns what a feed delivers into files. Pure: `follow` writes them."""

    def __init__(self, config: FeedConfig, timelines: Mapping[int, Timeline], *, done: Timestamp | None = None) -> None:
        """`timelines` by table id; `done`: what `resolved_upto` found in the directory."""
        self.config = config
        self.done = Timestamp(max(config.after, done)) if done is not None else config.after
        """Resume the feed `after` this. (With an initial scan that is not done yet: scan first.)"""
        self.scanned = not config.initial_scan or done is not None
        self._enveloper = {
            table_id: Enveloper(timeline, befores=config.befores, txn_ids=False)
            for table_id, timeline in timelines.items()
        }
        self._settling = Settling(after=self.done)
        self._scan_parts: dict[tuple[int, int], int] = {}
        self._scan_rest: list[Envelopes] = []

    @property
    def full(self) -> bool:
        """Whether so much waits to be resolved that the feed should pause."""
        return self._settling.full

    def scan(self, rows: Changes) -> list[File]:
        """Rows of the initial scan, in key order; complete parts come out as files."""
        invariant(not self.scanned, "A-feed-scanned")
        if self.config.befores and rows.befores is None:
            rows = msgspec.structs.replace(rows, befores=[b""] * len(rows))
        files: list[File] = []
        for (table_id, _), changes in by_table(rows).items():
            enveloper = self._enveloper[table_id]
            files += self._scanned(enveloper.under(changes, enveloper.timeline.at(self.config.after)))
        return files

    def scan_page(self, page: InitialPage) -> list[File]:
        """The same, of a page that came as columns."""
        invariant(not self.scanned, "A-feed-scanned")
        return [file for found in self._enveloper[page.table_id].initial(page) for file in self._scanned(found)]

    def finish_scan(self) -> list[File]:
        """The table as of `config.after` has been handed over: the rest, and the marker."""
        files = self._scan_part()
        self.scanned = True
        return [*files, marker(self.config.after)]

    def _scanned(self, found: Envelopes) -> Iterator[File]:
        """Rows of an initial scan, all seen with the schema as of the scan, however old they are."""
        if self._scan_rest and self._scan_rest[-1].schema is not found.schema:
            yield from self._scan_part()
        held = sum(envelopes.batch.num_rows for envelopes in self._scan_rest)
        start, rows = 0, found.batch.num_rows
        while held + rows - start >= FILE_ROWS:
            cut = FILE_ROWS - held
            self._scan_rest.append(found._replace(batch=found.batch.slice(start, cut)))
            yield from self._scan_part()
            start, held = start + cut, 0
        if start < rows:
            self._scan_rest.append(found._replace(batch=found.batch.slice(start)))

    def _scan_part(self) -> list[File]:
        """What is held, as one file."""
        held, self._scan_rest = self._scan_rest, []
        if not held:
            return []
        schema = held[0].schema
        (batch,) = pa.Table.from_batches([found.batch for found in held]).combine_chunks().to_batches()
        name = schema.table_id, schema.version
        part = self._scan_parts.get(name, 0)
        self._scan_parts[name] = part + 1
        path = data_path(self.config.after, schema.name, schema.version, part, self.config.form)
        return [File(path, file_bytes(held[0]._replace(batch=batch), self.config.form))]

    def add(self, changes: Changes) -> None:
        """What the feed delivers, in any order, also repeatedly."""
        self._settling.add(changes)

    def advance(self, resolved: Timestamp) -> Iterator[File]:
        """The feed has resolved this far: every window that ends at or below it, data first, then its marker."""
        invariant(self.scanned, "A-feed-scanned")
        for end in boundaries(after=self.done, upto=resolved, step=self.config.step):
            yield from self._window(end)

    def finish(self, end: Timestamp) -> Iterator[File]:
        """The feed ends here by request, and has resolved `end`: the last window may be shorter."""
        yield from self.advance(end)
        if self.done < end:
            yield from self._window(end)

    def _window(self, end: Timestamp) -> Iterator[File]:
        for table_id, changes in sorted(by_table(self._settling.release(end)).items()):
            parts: dict[int, int] = {}
            for start in range(0, len(changes), FILE_ROWS):
                piece = changes if len(changes) <= FILE_ROWS else _cut(changes, start)
                yield from self._files(end, table_id[0], piece, parts)
        yield marker(end)
        self.done = end

    def _files(self, upto: Timestamp, table_id: int, changes: Changes, parts: dict[int, int]) -> Iterator[File]:
        enveloper = self._enveloper.get(table_id)
        if enveloper is None:
            raise UsageError("a change of a table that this feed does not watch", table_id=table_id)
        for envelopes in enveloper.batches(changes):
            version = envelopes.schema.version
            part = parts.get(version, 0)
            parts[version] = part + 1
            path = data_path(upto, envelopes.schema.name, version, part, self.config.form)
            yield File(path, file_bytes(envelopes, self.config.form))


def _cut(changes: Changes, start: int) -> Changes:
    return changes.pick(list(range(start, min(start + FILE_ROWS, len(changes)))))


# --- the writer ----------------------------------------------------------------------------------------------------


class DirectoryWriter:
    """Puts files under a directory, whole or not at all."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def paths(self) -> list[str]:
        """Every file below the directory, relative to it."""
        return sorted(p.relative_to(self.root).as_posix() for p in self.root.rglob("*") if p.is_file())

    def begin(self, config: FeedConfig) -> tuple[FeedConfig, Timestamp | None]:
        """Start or resume: (the config that holds, what is final already). Removes what an earlier writer left undone."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"{self.root} cannot be made a directory: {error.strerror}; name another one for the files",
                path=str(self.root),
            ) from error
        known = self.config()
        if known is None:
            if any(read_path(p) is not None for p in self.paths()):
                raise UsageError("the directory holds a feed's files but no _feed.json; choose another directory")
            self.write(File(CONFIG_NAME, msgspec.json.encode(config) + b"\n"))
            return config, None
        # A feed that resumes goes on from its directory: where it was told to start, or when, no longer matters.
        if msgspec.structs.replace(config, after=known.after, initial_scan=known.initial_scan) != known:
            raise UsageError("the directory holds another feed; choose another directory or the same options")
        for path in leftovers(self.paths()):
            (self.root / path).unlink()
        return known, resolved_upto(self.paths())

    def config(self) -> FeedConfig | None:
        """What the directory's feed was asked for."""
        path = self.root / CONFIG_NAME
        if not path.exists():
            return None
        try:
            return msgspec.json.decode(path.read_bytes(), type=FeedConfig)
        except (msgspec.MsgspecError, ValueError) as error:
            raise DecodeError(f"{CONFIG_NAME} cannot be read; choose another directory", reason=str(error)) from None

    def write(self, file: File) -> None:
        """Durable under its name when this returns; an existing file is replaced."""
        path = self.root / file.path
        aside = path.with_name(path.name + ASIDE)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with aside.open("wb") as out:
                out.write(file.content)
                out.flush()
                os.fsync(out.fileno())
            aside.replace(path)
            self._sync(path.parent)
        except OSError as error:
            with suppress(OSError):  # half a file would take up the room that is missing
                aside.unlink()
            raise StorageError(
                f"a feed's file could not be written ({error.strerror}); make room and run the same again, it goes on from here",
                path=str(path),
            ) from error

    def _sync(self, directory: Path) -> None:
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
