"""Making segments of columns on a replica, in the background: no request waits for it.

    one step        snapshot, closed timestamp, GC threshold; from now on what is written here is noted (`Making`)
    off the loop    anchor ► batch ► pause ► batch ► pause … ► file durable
    one step        still this replica, its rows not cleared, nothing collected above the anchor ► record, and it is used

The pauses keep the work at `columns.build_bytes` a second, and at `columns.share` of the time beside writers: what a piece took
is paid for in full (`duty`), also by the next segment. Each batch is a piece of some milliseconds on a thread, so the loop
gets its turn between any two. Without writers a pause is as long as the piece before it. A process of its own could
not read RocksDB's memtables; handing it the rows would cost more than half of what it saves (decision 030).

Whatever ends it, nothing is left: the file is not there before it is whole, the record not before the file is durable. A file
that gets no record is removed, after a crash when the store starts next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.errors import Overloaded, SegmentDamaged
from slackwater.hooks import probe, tap
from slackwater.storage.batch import WriteBatch
from slackwater.storage.columns.shelf import file_name

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from slackwater.model.schema import TableSchema
    from slackwater.replica.driver.context import ReplicaContext
    from slackwater.replica.driver.replica import Replica
    from slackwater.runtime.seam import EngineSnapshot, Files, FileSink
    from slackwater.settings import Settings
    from slackwater.storage.columns.build import Built, Shape
    from slackwater.storage.columns.delta import DeltaView
    from slackwater.storage.columns.shelf import KeptSegment, Making

T = TypeVar("T")


@dataclass
class _Work:
    """What a thread needs to make a segment; thread or loop cleans up, the one that used it last."""

    frozen: EngineSnapshot
    making: Making
    schemas: Sequence[TableSchema]
    closed: Timestamp
    threshold: Timestamp
    old: KeptSegment | None
    changes: DeltaView | None
    shape: Shape
    files: Files
    sink: FileSink | None = None
    durable: bool = False
    """Whether there is a file that no record names."""
    busy: bool = False
    """Whether a thread is at it."""
    over: bool = False

    def close(self) -> None:
        """End the work: let the snapshot and an unfinished file go, now or when the thread is done."""
        assert not self.over, "a piece of work ends once"
        self.over = True
        if not self.busy:
            self._clean_up()

    def _clean_up(self) -> None:
        self.frozen.close()
        if self.sink is not None:
            self.sink.abandon()
        if self.durable:
            self.files.remove(file_name(self.making.number))

    def run(self, work: Callable[..., T], *args: Any) -> T:
        """Do a piece of work on a thread."""
        assert self.busy, "what a thread uses is not cleaned up under it"
        try:
            return work(*args)
        finally:
            self.busy = False
            if self.over:
                self._clean_up()


async def make(
    replica: Replica, start: bytes, end: bytes, schemas: Sequence[TableSchema], shape: Shape
) -> KeptSegment | None:
    """Make a segment of the rows of [start, end), which one table has in this range; None: not now."""
    context = replica.context
    shelf = context.columns
    covering = [kept for kept in shelf.overlapping(start, end) if kept.record.start <= start and end <= kept.record.end]
    state = replica.state
    old = covering[0] if covering and not covering[0].broken and covering[0].anchor >= state.gc_threshold else None
    work = _Work(
        context.engine.snapshot(once=True),
        shelf.begin(start, end),
        schemas,
        Timestamp(min(replica.closing.closed(), context.clock.peek())),  # where ranges lead, closed is in the future
        state.gc_threshold,
        old,
        None if old is None else old.delta.frozen(),
        shape,
        context.engine.files,
    )
    try:
        built = await _build(replica, work)
        return None if built is None else _install(replica, work, built)
    except SegmentDamaged as error:  # of the older one: the next time it is made of rows
        if old is not None:
            old.broken = str(error)
            context.drop_columns([old])
        return None
    finally:
        shelf.end(work.making)
        work.close()


async def _build(replica: Replica, work: _Work) -> Built | None:
    """Batch by batch, with pauses, until the file is durable."""
    context = replica.context
    steps, took_s = await _off(context, work, _begin, work)
    if steps is None:
        probe("columns.no_anchor")
        return None
    done: int | Built = 0
    while isinstance(done, int):
        await _pause(replica, work, max(took_s, done / context.settings["columns.build_bytes"]))
        if _in_vain(replica, work):
            probe("columns.given_up")
            return None
        done, took_s = await _off(context, work, _step, work, steps)
    return done


def _in_vain(replica: Replica, work: _Work) -> bool:
    return replica.retired or replica.failure is not None or work.making.spoiled


async def _pause(replica: Replica, work: _Work, least_s: float) -> None:
    """Leave writers the rest of the time, by `columns.share`; without writers, pause this long."""
    context = replica.context
    clock, duty = context.runtime.clock, context.making
    await clock.sleep(least_s)
    while context.bulk_gate.writing(clock.monotonic_ns()):
        pause_s = duty.pause_s()
        if not pause_s or _in_vain(replica, work):
            return
        probe("columns.paused")
        await clock.sleep(pause_s)
    duty.forgive()


async def _off(context: ReplicaContext, work: _Work, piece: Callable[..., T], *args: Any) -> tuple[T, float]:
    """Have a piece of work done off the loop; what came of it, and the seconds that it took."""
    assert not work.busy, "one thread at a time makes a segment"
    clock = context.runtime.clock
    work.busy = True
    began_ns = clock.monotonic_ns()
    try:
        done = await context.runtime.offload(work.run, piece, *args)
    except Overloaded:  # it was not begun
        work.busy = False
        raise
    took_s = (clock.monotonic_ns() - began_ns) / 1e9
    context.making.worked(took_s, share=context.settings["columns.share"])
    context.columns.making_s += took_s
    return done, took_s


def _begin(work: _Work) -> Generator[int, None, Built] | None:
    """Choose the anchor and the way; pyarrow is imported here, on the thread."""
    from slackwater.storage.columns.build import anchor_of, from_columns, from_rows

    start, end = work.making.start, work.making.end
    anchor = anchor_of(work.frozen, start, end, closed=work.closed)
    if anchor is None or anchor < work.threshold or anchor <= MIN:
        return None
    if work.old is not None and anchor <= work.old.anchor:
        return None
    assert work.threshold <= anchor <= work.closed, "a segment is anchored where history is complete and closed"
    assert work.sink is None, "a segment is written to one file"
    work.sink = sink = work.files.create(file_name(work.making.number))
    if work.old is not None and work.changes is not None:
        steps = from_columns(
            work.old.opened(),
            work.changes,
            work.frozen,
            work.schemas,
            start=start,
            end=end,
            anchor=anchor,
            write=sink.write,
            shape=work.shape,
        )
        if steps is not None:
            return steps
    return from_rows(work.frozen, work.schemas, start=start, end=end, anchor=anchor, write=sink.write, shape=work.shape)


def _step(work: _Work, steps: Generator[int, None, Built]) -> int | Built:
    """The next batch: the stored bytes it took, or what was made and is durable."""
    try:
        return next(steps)
    except StopIteration as done:
        built: Built = done.value
        assert work.sink is not None, "a file is made before its batches"
        work.sink.finish()
        work.sink, work.durable = None, True
        return built


def _install(replica: Replica, work: _Work, built: Built) -> KeptSegment | None:
    """Record what was made, if it is still right. No await: check and act."""
    context, making = replica.context, work.making
    usable = not (replica.retired or replica.stopped or making.spoiled) and replica.failure is None
    if not usable or built.made.anchor < replica.state.gc_threshold:
        probe("columns.made_in_vain")
        return None
    batch = WriteBatch()
    assert built.made.anchor <= work.closed, "a segment holds what was closed when it was begun"
    kept, replaced = context.columns.install(making, built, batch)
    assert kept.record.number == making.number, "a segment is recorded under the number of its file"
    if kept.worn:  # the span is being loaded: it gets its segment later
        probe("columns.made_while_loading")
        return None
    context.write(batch)
    work.durable = False
    context.columns.installed(kept, replaced)
    tap("columns.installed", replica, kept)
    return kept


def shape_of(settings: Settings) -> Shape:
    """How large batches become: one fits the page of a scan."""
    from slackwater.storage.columns.build import BATCH_BYTES, Shape

    return Shape(batch_bytes=min(BATCH_BYTES, int(settings["gateway.page_bytes"])))
