"""Columns on disk: rows to Arrow from segments, beside pyarrow reading the same rows from Parquet in the same run.

whole      all columns of 8, and one of them, read and decoded          / pyarrow from Parquet with its defaults, one thread
changed    the same with 1 % and 5 % of the rows written since          / with none
restart    after the engine was closed and opened again                 / before
versions   10 and 100 versions of each key                              / one version
growth     1, 2 and 4 times as many rows, per row                       / the fewest
making     processor time of making a segment, from rows and anew       / of writing these rows into RocksDB; from rows
noting     a batch of one row into the span of a segment                / into one without
disk       bytes of the segment                                         / bytes of the rows' files in RocksDB
node       making beside a bulk load, memory, upserts beside reads      see `bench._columns_node`
steady     making beside upserts everywhere                             see `bench._columns_steady`

Processor time but for the last: the machine may be busy. A read of ours is what a node does for a page and what its client
does to decode it, through the files that a store has. "With none" is the same segment read as of its anchor, in turns.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet

from bench._columns_node import node_figures
from bench._columns_steady import steady_figures
from bench._load import disk
from bench.harness import figure, progress
from bench.storage import RECENT, SCHEMA, SPAN, fill, table
from slackwater.clock.timestamp import Timestamp
from slackwater.codec.bulk_arrow import plan_schema, unpack
from slackwater.model.scan_plan import ScanPlan
from slackwater.runtime.seam import Family
from slackwater.storage.batch import WriteBatch
from slackwater.storage.columns.build import Shape, from_columns, from_rows
from slackwater.storage.columns.reading import PlanReader, read_segment
from slackwater.storage.columns.shelf import Shelf, file_name
from slackwater.storage.rocks import RocksDisk
from slackwater.storage.versions import suffix

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from bench.harness import Figure
    from slackwater.storage.columns.build import Built
    from slackwater.storage.rocks import RocksEngine

pq: Any = pyarrow.parquet
PLAN = ScanPlan((SCHEMA,), 1)
ONE = ScanPlan((SCHEMA,), 1, ("c1",))
ANCHOR = Timestamp(1 << 40)
PARQUET = "pyarrow from Parquet, rows per second of processor time"
ROUNDS = 10
REST_S = 0.25
RESTS_MAX = 120


class Store:
    """An engine with its shelf."""

    def __init__(self, directory: Path, name: str) -> None:
        self.disk = RocksDisk(directory, sleep=asyncio.sleep)
        self.name = name
        self.plans = {plan: PlanReader(plan) for plan in (PLAN, ONE)}
        self.open()

    def open(self) -> None:
        """Open, or open again."""
        self.engine: RocksEngine = self.disk.open(self.name)
        self.shelf = Shelf(self.engine.files)
        self.shelf.load(self.engine, WriteBatch())

    def write(self, batch: WriteBatch) -> None:
        """As a store writes."""
        noted = self.shelf.note(batch)
        self.engine.write(batch)
        self.shelf.noted(noted)

    def make(self) -> float:
        """Make a segment of everything; how long that took."""
        began = time.process_time()
        making = self.shelf.begin(SPAN.start, SPAN.end)
        sink = self.engine.files.create(file_name(making.number))
        old = next(iter(self.shelf), None)
        shape = Shape(segment_rows=1 << 40)
        anchor = Timestamp(ANCHOR + 1_000_000) if old else ANCHOR
        with self.engine.snapshot() as frozen:
            steps = None
            if old is not None:
                steps = from_columns(
                    old.opened(),
                    old.delta.frozen(),
                    frozen,
                    [SCHEMA],
                    start=SPAN.start,
                    end=SPAN.end,
                    anchor=anchor,
                    write=sink.write,
                    shape=shape,
                )
            if steps is None:
                steps = from_rows(
                    frozen, [SCHEMA], start=SPAN.start, end=SPAN.end, anchor=anchor, write=sink.write, shape=shape
                )
            built = _finished(steps)
        sink.finish()
        self.shelf.end(making)
        batch = WriteBatch()
        kept, replaced = self.shelf.install(making, built, batch)
        self.engine.write(batch)
        self.shelf.installed(kept, replaced)
        return time.process_time() - began

    def rest(self) -> None:
        """Wait until RocksDB has compacted what was written: its threads are this process's, and their time would be ours."""
        for _ in range(RESTS_MAX):
            began = time.process_time()
            time.sleep(REST_S)
            if time.process_time() - began < REST_S / 20:
                return
        progress("RocksDB is still compacting; figures of processor time hold some of that")

    def read(self, plan: ScanPlan, ts: Timestamp = RECENT) -> int:
        """Everything, as a node and its client do; at the anchor, nothing has changed."""
        reader, schema, rows = self.plans[plan], plan_schema(plan), 0
        with self.engine.snapshot() as frozen:
            (part,) = self.shelf.find(SPAN.start, SPAN.end, ts=ts, threshold=Timestamp(0))
            segment = part.kept.opened()
            places = reader.fit(segment)
            assert places is not None
            for piece in read_segment(
                segment,
                part.changes,
                frozen,
                reader,
                places,
                start=SPAN.start,
                end=SPAN.end,
                ts=ts,
                bound=ts,
                patches=True,
            ):
                rows += sum(b.num_rows for b in unpack([piece.message], schema, [piece.patch] if piece.patch else []))
        return rows


def _finished(steps: Generator[int, None, Built]) -> Built:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            built: Built = done.value
            return built


def _rates(works: dict[str, Callable[[], int]]) -> dict[str, float]:
    """Rows per second of processor time, the best of some rounds in turns.

    Every other round goes the other way: what a work finds in the processor's cache is what the one before it has read.
    """
    best = dict.fromkeys(works, 0.0)
    for number in range(ROUNDS):
        for name, work in list(works.items())[:: -1 if number % 2 else 1]:
            began = time.process_time()
            rows = work()
            best[name] = max(best[name], rows / (time.process_time() - began))
    return best


def _parquet(file: Path, columns: list[str] | None) -> int:
    rows: int = pq.read_table(file, columns=columns, use_threads=False).num_rows
    return rows


def _change(store: Store, keys: list[bytes], values: list[bytes], *, share: float, at: int) -> None:
    """Write some rows anew, in batches, as updates come."""
    chosen = random.Random(at).sample(range(len(keys)), int(len(keys) * share))
    for low in range(0, len(chosen), 500):
        batch = WriteBatch()
        for number in chosen[low : low + 500]:
            batch.put(Family.DATA, keys[number] + suffix(Timestamp(ANCHOR + at)), values[number])
        store.write(batch)


def run(*, quick: bool) -> Iterator[Figure]:
    """All figures of this benchmark."""
    directory = Path(tempfile.mkdtemp(prefix="slackwater-bench-", dir=disk()))
    try:
        for one in _reads(directory, rows=100_000 if quick else 1_000_000):
            if one.metric == "making, from rows":
                make_ns = one.value
            yield one
        yield from _versions(directory, rows=10_000 if quick else 50_000)
        yield from _growth(directory, rows=50_000 if quick else 500_000)
        rows, seconds = (200_000, 3.0) if quick else (10_000_000, 24.0)
        yield from node_figures(directory, rows=rows, seconds=seconds, make_ns=make_ns)
        rows, seconds = (50_000, 4.0) if quick else (500_000, 30.0)
        yield from steady_figures(directory, rows=rows, seconds=seconds)
    finally:
        shutil.rmtree(directory)


def _reads(directory: Path, *, rows: int) -> Iterator[Figure]:
    store = Store(directory, "reads")
    keys, values = table(rows)
    began = time.process_time()
    fill(store.engine, keys, values, 1)
    load_s = time.process_time() - began
    store.rest()
    make_s = store.make()
    store.rest()
    (kept,) = store.shelf
    file = directory / "rows.parquet"
    (segment,) = (
        part.kept.opened() for part in store.shelf.find(SPAN.start, SPAN.end, ts=RECENT, threshold=Timestamp(0))
    )
    arrays = [segment.arrays(number, range(8)) for number in range(len(segment.firsts))]
    batches = [pyarrow.RecordBatch.from_arrays(one, names=[c.name for c in SCHEMA.columns]) for one in arrays]
    pq.write_table(pyarrow.Table.from_batches(batches), file)
    del batches, arrays
    rates = _rates(
        {
            "all": lambda: store.read(PLAN),
            "peer all": lambda: _parquet(file, None),
            "one": lambda: store.read(ONE),
            "peer one": lambda: _parquet(file, ["c1"]),
        }
    )
    unit, peer = "rows/cpu s", PARQUET
    yield figure("columns", "all columns", rates["all"], unit, peer=peer, peer_value=rates["peer all"], goal=2.0)
    yield figure("columns", "one column", rates["one"], unit, peer=peer, peer_value=rates["peer one"], goal=2.0)
    yield figure("columns", "making, from rows", make_s / rows * 1e9, "ns/row", peer="writing them into RocksDB, ns a row",
                 peer_value=load_s / rows * 1e9, better="lower")  # fmt: skip
    live = store.engine.approximate_bytes(Family.DATA, SPAN.start, SPAN.end)
    yield figure("columns", "bytes on disk", kept.record.size / rows, "bytes/row", peer="files of RocksDB",
                 peer_value=max(live, 1) / rows, better="lower")  # fmt: skip
    store.engine.close()
    store.open()
    again = _rates({"all": lambda: store.read(PLAN)})["all"]
    yield figure("columns", "after a restart", again, unit, peer="before", peer_value=rates["all"], goal=0.9)
    for at, (share, goal) in enumerate(((0.01, 0.8), (0.04, 0.5)), start=1):
        _change(store, keys, values, share=share, at=at)
        store.rest()
        changed = _rates(
            {
                "all": lambda: store.read(PLAN),
                "none all": lambda: store.read(PLAN, ANCHOR),
                "one": lambda: store.read(ONE),
                "none one": lambda: store.read(ONE, ANCHOR),
            }
        )
        name = "1 % changed" if at == 1 else "5 % changed"
        for which in ("all", "one"):
            yield figure(
                "columns",
                f"{name}, {which} column{'s' * (which == 'all')}",
                changed[which],
                unit,
                peer="none changed",
                peer_value=changed[f"none {which}"],
                goal=goal,
            )
    anew_s = store.make()
    yield figure("columns", "making anew with 5 % changed", anew_s / rows * 1e9, "ns/row", peer="from rows, ns a row",
                 peer_value=make_s / rows * 1e9, better="lower")  # fmt: skip
    yield from _noting(store, keys, values)
    store.engine.close()


def _noting(store: Store, keys: list[bytes], values: list[bytes]) -> Iterator[Figure]:
    """What a write pays for the segment beside it: batches of one row, through the shelf and straight to the engine."""
    counts = iter(range(10, 1000))

    def written(write: Callable[[WriteBatch], None]) -> int:
        at = suffix(Timestamp(ANCHOR + 2_000_000 + next(counts)))
        for number in range(2000):
            batch = WriteBatch()
            batch.put(Family.DATA, keys[number * 7 % len(keys)] + at, values[number])
            write(batch)
        return 2000

    rates = _rates({"noted": lambda: written(store.write), "plain": lambda: written(store.engine.write)})
    yield figure("columns", "a batch of one row beside a segment", 1e6 / rates["noted"], "us", peer="without, us",
                 peer_value=1e6 / rates["plain"], better="lower")  # fmt: skip


def _versions(directory: Path, *, rows: int) -> Iterator[Figure]:
    stores = {depth: _filled(directory / f"depth{depth}", rows=rows, depth=depth) for depth in (1, 10, 100)}
    costs = _costs(stores)
    for depth in (10, 100):
        yield figure("columns", f"{depth} versions per key, cost per row", costs[depth], "x", peer="one version",
                     peer_value=1.0, goal=1.3, better="lower")  # fmt: skip


def _growth(directory: Path, *, rows: int) -> Iterator[Figure]:
    stores = {factor: _filled(directory / f"growth{factor}", rows=rows * factor, depth=1) for factor in (1, 2, 4, 8)}
    costs = _costs(stores)
    for factor in (2, 4, 8):
        yield figure("columns", f"{factor * rows:,} rows, cost per row", costs[factor], "x", peer=f"{rows:,} rows",
                     peer_value=1.0, goal=1.3, better="lower")  # fmt: skip


def _filled(directory: Path, *, rows: int, depth: int) -> Store:
    store = Store(directory.parent, directory.name)
    keys, values = table(rows)
    fill(store.engine, keys, values, depth)
    store.make()
    store.rest()
    return store


def _costs(stores: dict[int, Store]) -> dict[int, float]:
    """What a row of each costs to read, as a multiple of the first; in turns: a process that has just written much is slower."""
    rates = _rates({str(name): lambda store=store: store.read(PLAN) for name, store in stores.items()})  # type: ignore[misc]
    first = next(iter(rates.values()))
    for store in stores.values():
        store.engine.close()
    return {name: first / rates[str(name)] for name in stores}
