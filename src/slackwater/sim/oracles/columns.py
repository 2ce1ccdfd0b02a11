"""A read of columns is what a read of rows is (I-38).

    read        every page that came from a segment is read once more from rows, on the same snapshot and at the same timestamp
    installed   no version at or below the anchor of a new segment is above what its replica has closed

What rows give is judged by the other oracles; so this one needs no history of its own. A reader that was not given the newest
version of the table is refused by rows, and learns it; a segment was made by one who knew, and has the reader's columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slackwater.codec.bulk_arrow import plan_schema, unpack
from slackwater.errors import SlackwaterError, StorageError, VersionUnknown
from slackwater.hooks import probe
from slackwater.model.scan_plan import decode_plan
from slackwater.protocol.range.bulk import Blocks, ScanArrow
from slackwater.replica.evaluate_bulk import BulkReads

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.replica.driver import Replica
    from slackwater.replica.evaluate_bulk import BulkRead
    from slackwater.runtime.seam import Reader
    from slackwater.sim.checkers.violation import Violation
    from slackwater.sim.world import World
    from slackwater.storage.columns.shelf import KeptSegment


class Columns:
    """I-38."""

    name = "I-38"

    def attach(self, world: World) -> None:
        """Watch pages of segments."""
        self.world = world
        world.taps["columns.read"] = self._read
        world.taps["columns.installed"] = self._installed

    def judge(self, world: World) -> Iterable[Violation]:
        """All is judged as it is read."""
        return ()

    def _read(self, read: BulkRead, reader: Reader, found: Blocks) -> None:
        probe("columns.oracle_read")
        upto = found.resume or read.request.end
        plan = decode_plan(read.request.plan)
        asked = read._replace(request=ScanArrow(read.request.start, upto, read.request.plan))
        try:
            wanted = _rows(asked, reader, plan)
        except StorageError:  # the rows rotted; their columns did not
            probe("columns.oracle_rows_rotten")
            return
        except VersionUnknown:
            probe("columns.oracle_version_unknown")  # the segment knows a version that was published since
            return
        except SlackwaterError as error:
            self.world.violated(self.name, "rows-refuse", f"rows refuse what columns gave: {error}")
            return
        given = [row for batch in unpack(found.blocks, plan_schema(plan), found.patches) for row in batch.to_pylist()]
        if given != wanted:
            differ = [(a, b) for a, b in zip(given, wanted, strict=False) if a != b][:3]
            text = (
                f"columns gave {len(given)} rows at {read.ts}, rows are {len(wanted)}; the first that differ: {differ}"
            )
            self.world.violated(self.name, "not-what-rows-are", text)

    def _installed(self, replica: Replica, kept: KeptSegment) -> None:
        closed = replica.closing.closed()
        if kept.anchor > closed:
            text = f"r{replica.state.descriptor.range_id} has closed {closed}, and columns at {kept.anchor}"
            self.world.violated(self.name, "anchor-not-closed", text)


def _rows(read: BulkRead, reader: Reader, plan: Any) -> list[dict[str, Any]]:
    """What rows give, page by page."""
    found: list[dict[str, Any]] = []
    while True:
        bulk = BulkReads(max_rows=0, max_bytes=0)
        bulk.reads.append(read)
        (page,) = bulk.run(reader)
        assert isinstance(page, Blocks), page
        found += [row for batch in unpack(page.blocks, plan_schema(plan)) for row in batch.to_pylist()]
        if page.resume is None:
            return found
        read = read._replace(request=ScanArrow(page.resume, read.request.end, read.request.plan))
