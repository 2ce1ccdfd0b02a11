"""Evaluating bulk reads: everything that must happen in one step happens here, the reading itself later.

    on the loop, in one step             off the loop, on a snapshot of that step
    lease or closed timestamp, bounds,   walk the span, decode, pack
    GC threshold, timestamp cache
    ──────────────────────────── snapshot ────────────────────────────►

A large read would hold up its node. So evaluation only checks, enters the whole span in the timestamp cache, and notes what
is to be read; the driver takes a snapshot of the engine in that same step, lets the latches go, and has the work done on a
thread. What is read cannot change any more: on a follower it is closed, on the leaseholder no request can write below the entry
in the cache. That entry covers the rest of the span too when a limit ends the read early: it makes later writers go up a
little, never wrong.

Before the thread begins, and in that same step, the read looks up which of its span the store has in columns, and what has
changed there since (`storage.columns.shelf`); the rest is read from rows. Intents are looked for in either case.

A transaction's own writes are not merged in here, so a batch with a transaction is refused. Pure; pyarrow is imported when
the first bulk read is done, by the thread that does it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from slackwater.clock.timestamp import MIN
from slackwater.errors import UsageError
from slackwater.model.scan_plan import decode_plan
from slackwater.protocol.range.bulk import BULK, BULK_BYTES_DEFAULT, BULK_BYTES_MAX, ExportArrow, ScanArrow
from slackwater.replica.evaluate_data import check_window, note_read, uncertain_upto
from slackwater.settings import describe
from slackwater.storage.stats import Stats

if TYPE_CHECKING:
    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.txns import Resolution
    from slackwater.protocol.range.requests import Result
    from slackwater.replica.evaluation import Work
    from slackwater.runtime.seam import Reader
    from slackwater.storage.columns.shelf import KeptSegment, SegmentPart, Shelf

WANTED_ROWS = 64
"""A page of rows from so many on: a segment would have helped."""
assert describe("gateway.page_bytes").safe[1] <= BULK_BYTES_MAX, "a page that can be asked for can be answered"


class BulkRead(NamedTuple):
    """One bulk read, checked and ready to be done."""

    request: ScanArrow | ExportArrow
    ts: Timestamp
    uncertain_upto: Timestamp

    @property
    def bound(self) -> Timestamp:
        """The highest timestamp it looks at."""
        return max(self.ts, self.uncertain_upto)


class BulkReads:
    """The bulk reads of one batch, which share its limits."""

    __slots__ = (
        "decided",
        "locked",
        "max_bytes",
        "max_rows",
        "parts",
        "reads",
        "row_pages",
        "segment_pages",
        "threshold",
    )

    def __init__(
        self,
        *,
        max_rows: int,
        max_bytes: int,
        decided: tuple[Resolution, ...] = (),
        locked: bool = False,
        threshold: Timestamp = MIN,
    ) -> None:
        self.max_rows = max_rows
        self.max_bytes = min(max_bytes or BULK_BYTES_DEFAULT, BULK_BYTES_MAX)
        assert 0 < self.max_bytes <= BULK_BYTES_MAX, "an answer has room for a row"
        self.decided = decided
        self.locked = locked
        """Whether there are intents in the range, as its statistics say."""
        self.threshold = threshold
        """Up to where the range's history has been collected."""
        self.reads: list[BulkRead] = []
        self.parts: dict[int, list[SegmentPart]] = {}
        """By the number of the read: what there is in columns of its span."""
        self.segment_pages: list[tuple[KeptSegment, int]] = []
        """For each page that came from a segment, which one, and the rows of batches that were merged anew for it."""
        self.row_pages: list[tuple[ScanArrow, int]] = []
        """Reads that were made of rows, and how many they were."""

    @property
    def once(self) -> bool:
        """Whether all reads are of a job that comes once and holds up a table's schema meanwhile."""
        return all(isinstance(read.request, ScanArrow) and read.request.once for read in self.reads)

    @property
    def counting(self) -> bool:
        """Whether all reads only count rows for such a job."""
        return all(counts(read.request) for read in self.reads)

    def look_up(self, shelf: Shelf) -> None:
        """Take what there is in columns; in the step in which the snapshot is taken that `run` will read."""
        for number, (request, ts, _) in enumerate(self.reads):
            if isinstance(request, ScanArrow):
                found = shelf.find(request.start, request.end, ts=ts, threshold=self.threshold)
                if found:
                    self.parts[number] = found
                    assert all(one.end <= other.start for one, other in pairwise(found)), "segments do not overlap"
                    assert all(part.kept.anchor <= ts for part in found), (
                        "a segment holds nothing of a read's future (I-38)"
                    )

    def broken(self) -> list[KeptSegment]:
        """Segments that turned out to be damaged."""
        return [part.kept for parts in self.parts.values() for part in parts if part.kept.broken]

    def hand_in(self, shelf: Shelf) -> None:
        """Count what was read, and say what would have been cheaper from columns; on the loop again."""
        shelf.pages += len(self.segment_pages)
        for kept, remade in self.segment_pages:
            kept.uses += 1
            kept.remade_rows += remade
        shelf.row_pages += len(self.row_pages)
        for request, rows in self.row_pages:
            if rows >= WANTED_ROWS and not request.once:
                shelf.want(decode_plan(request.plan).schema().table_id)

    def run(self, reader: Reader) -> list[Result]:
        """Do them. Long work: to be called off the loop."""
        from slackwater.replica.bulk_arrow import read_all

        return read_all(self, reader)


def counts(request: ScanArrow | ExportArrow) -> bool:
    """Whether a job asks for no column of any row: then no value is looked into. Others learn of a row that is damaged."""
    if not isinstance(request, ScanArrow) or not request.once:
        return False
    plan = decode_plan(request.plan)
    return plan.columns == () and not plan.predicates


def scan_arrow(work: Work, request: ScanArrow) -> None:
    """Rows as columns."""
    note_read(work, request.start, request.end, work.read_ts)
    _reads(work).append(BulkRead(request, work.read_ts, uncertain_upto(work)))


def export_arrow(work: Work, request: ExportArrow) -> None:
    """Changes as columns."""
    check_window(work, request.start, request.end, after=request.after)
    if request.upto > work.read_ts:
        raise UsageError(
            "changes are read up to the batch's timestamp at most; set both to the same", upto=request.upto
        )
    note_read(work, request.start, request.end, request.upto)
    assert request.upto <= work.read_ts, "changes are read up to the batch's timestamp at most"
    _reads(work).append(BulkRead(request, request.upto, request.upto))


def _reads(work: Work) -> list[BulkRead]:
    if work.txn is not None:
        raise UsageError("columns are not read inside a transaction, whose own writes would be missing; scan pairs")
    if not all(isinstance(request, BULK) for request in work.batch.requests):
        raise UsageError("columns are asked for on their own: nothing else in the batch")
    found = work.evaluation.bulk
    if found is None:
        header = work.header
        stats = work.view.state.stats
        locked = bool(stats) and Stats(*stats).intents > 0
        found = BulkReads(
            max_rows=header.max_keys,
            max_bytes=header.max_bytes,
            decided=header.decided,
            locked=locked,
            threshold=work.view.state.gc_threshold,
        )
        work.evaluation.bulk = found
    return found.reads
