"""Storage: scans to Arrow, depth, puts and gets, each beside raw rocksdict on the same data in the same run.

scan       rows of 8 columns to Arrow at a timestamp / pairs of a plain `for` over rocksdict's items()
depth      the same table with 1, 10 and 100 versions per key, at a recent and at an old timestamp; the peer reads
           every pair. `cost` is time per row at depth d / time per row at depth 1: sub-linear means well below d
puts       batches of 500 rows with all MVCC checks, appended and overwritten / the same pairs by raw WriteBatch
gets       point reads at a timestamp, among 10 versions, / raw get of the exact stored key
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import rocksdict

from bench.harness import figure, interleaved
from slackwater.clock.timestamp import Timestamp
from slackwater.codec.layout import schema_span
from slackwater.codec.rows import RowCodec
from slackwater.codec.rows_arrow import BlockDecoder
from slackwater.model.kinds import ColumnKind, ColumnType
from slackwater.model.schema import Column, KeyColumn, TableSchema
from slackwater.runtime.seam import Family
from slackwater.storage import reads, writes
from slackwater.storage.arrow import scan_arrow
from slackwater.storage.rocks import RocksDisk
from slackwater.storage.versions import suffix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.harness import Figure
    from slackwater.storage.rocks import RocksEngine

KINDS = [
    ColumnKind.INT,
    ColumnKind.INT,
    ColumnKind.FLOAT,
    ColumnKind.STRING,
    ColumnKind.BOOL,
    ColumnKind.TIMESTAMPTZ,
    ColumnKind.INT4,
    ColumnKind.STRING,
]
SCHEMA = TableSchema(
    9,
    "bench",
    1,
    tuple(Column(n + 1, f"c{n}", ColumnType(kind), nullable=n > 0) for n, kind in enumerate(KINDS)),
    (KeyColumn(1),),
)
SPAN = schema_span(SCHEMA)
RECENT = Timestamp(1 << 50)
PUT_ROWS = 500


def table(count: int) -> tuple[list[bytes], list[bytes]]:
    draw = random.Random(1)
    columns: list[Any] = [
        pa.array(range(count), pa.int64()),
        pa.array([draw.getrandbits(40) for _ in range(count)], pa.int64()),
        pa.array([draw.random() for _ in range(count)], pa.float64()),
        pa.array([f"name {draw.getrandbits(30)}" for _ in range(count)], pa.string()),
        pa.array([bool(n & 1) for n in range(count)], pa.bool_()),
        pa.array([draw.getrandbits(50) for _ in range(count)], pa.timestamp("us", "UTC")),
        pa.array([draw.getrandbits(20) for _ in range(count)], pa.int32()),
        pa.array([f"city {n % 97}" if n % 10 else None for n in range(count)], pa.string()),
    ]
    batch = pa.RecordBatch.from_arrays(columns, names=[c.name for c in SCHEMA.columns])
    return RowCodec(SCHEMA, {1: SCHEMA}).encode_batch(batch)


def fill(engine: RocksEngine, keys: list[bytes], values: list[bytes], depth: int) -> None:
    """`depth` versions of every key, at 1000, 2000, …; written version by version, as updates come."""
    for version in range(1, depth + 1):
        end = suffix(Timestamp(1000 * version))
        for low in range(0, len(keys), 5000):
            batch = engine.batch()
            batch.put_many(Family.DATA, [k + end for k in keys[low : low + 5000]], values[low : low + 5000])
            engine.write(batch)
    asyncio.run(engine.flush())


def _raw(engine: RocksEngine) -> int:
    count = 0
    for _key, _value in engine.source(Family.DATA).items():
        count += 1
    return count


def _arrow(engine: RocksEngine, ts: Timestamp) -> int:
    decoder = BlockDecoder(SCHEMA, {1: SCHEMA})
    with engine.snapshot() as snapshot:
        blocks = scan_arrow(snapshot, SPAN.start, SPAN.end, ts=ts, decoder=decoder)
        return sum(block.batch.num_rows for block in blocks)


def _scans(open_engine: Callable[[str], RocksEngine], *, quick: bool) -> Iterator[Figure]:
    rows = 40_000 if quick else 200_000
    per_row: dict[str, float] = {}
    for depth in (1, 10, 100):
        count = rows if depth == 1 else max(1000, rows // (4 * depth) * 4)
        engine = open_engine(f"depth{depth}")
        keys, values = table(count)
        fill(engine, keys, values, depth)
        works: dict[str, Callable[[], int]] = {
            "raw": partial(_raw, engine),
            "recent": partial(_arrow, engine, RECENT),
            "old": partial(_arrow, engine, Timestamp(1000)),
        }
        rates = interleaved(works, rounds=3 if quick else 5)
        peer = "raw rocksdict iteration, pairs/s"
        for when in ("recent", "old"):
            goal = 0.5 if depth == 1 and when == "recent" else None
            name = f"scan to Arrow, {depth} version{'s' * (depth > 1)} per key, {when}"
            yield figure("storage", name, rates[when], "rows/s", peer=peer, peer_value=rates["raw"], goal=goal)
            per_row[f"{when}{depth}"] = 1 / rates[when]
            if depth > 1:
                cost = per_row[f"{when}{depth}"] / per_row[f"{when}1"]
                yield figure(
                    "storage", f"cost per row of {depth} versions, {when}", cost, "x", peer="versions per key",
                    peer_value=depth, goal=0.5 if depth == 100 else None, better="lower",
                )  # fmt: skip
        engine.close()


def _puts(open_engine: Callable[[str], RocksEngine], *, quick: bool) -> Iterator[Figure]:
    keys, values = table(20_000 if quick else 60_000)
    engine = open_engine("puts")
    clock = [0]

    def ours(*, fresh: bool) -> int:
        clock[0] += 1
        ts = Timestamp(1000 + clock[0])
        mark = b"" if not fresh else clock[0].to_bytes(4, "big")
        for low in range(0, len(keys), PUT_ROWS):
            chunk = keys[low : low + PUT_ROWS]
            batch = engine.batch()
            with engine.snapshot() as snapshot:
                writes.put_rows(
                    snapshot, batch, [mark + k for k in chunk] if fresh else chunk, values[low : low + PUT_ROWS], ts=ts
                )
            engine.write(batch)
        return len(keys)

    raw_engine = open_engine("raw-puts")
    options = raw_engine._no_wal
    database = raw_engine.source(Family.DATA)

    def raw() -> int:
        clock[0] += 1
        end = suffix(Timestamp(1000 + clock[0]))
        for low in range(0, len(keys), PUT_ROWS):
            batch = rocksdict.WriteBatch(raw_mode=True)
            for key, value in zip(keys[low : low + PUT_ROWS], values[low : low + PUT_ROWS], strict=True):
                batch.put(key + end, value)
            database.write(batch, options)
        return len(keys)

    works = {"raw": raw, "append": lambda: ours(fresh=True), "overwrite": lambda: ours(fresh=False)}
    rates = interleaved(works, rounds=3 if quick else 5)
    for name in ("append", "overwrite"):
        yield figure(
            "storage", f"batched puts, {name}", rates[name], "rows/s", peer="raw rocksdict WriteBatch, pairs/s",
            peer_value=rates["raw"],
        )  # fmt: skip
    engine.close()
    raw_engine.close()


def _gets(open_engine: Callable[[str], RocksEngine], *, quick: bool) -> Iterator[Figure]:
    keys, values = table(10_000)
    engine = open_engine("gets")
    fill(engine, keys, values, 10)
    asked = random.Random(2).sample(keys, 2000 if quick else 8000)
    stored = [key + suffix(Timestamp(5000)) for key in asked]
    database = engine.source(Family.DATA)

    def raw() -> int:
        for key in stored:
            database.get(key)
        return len(stored)

    def ours() -> int:
        with engine.snapshot() as snapshot:
            for key in asked:
                reads.get(snapshot, key, ts=Timestamp(5500))
        return len(asked)

    def many() -> int:
        with engine.snapshot() as snapshot:
            return len(reads.multi_get(snapshot, asked, ts=Timestamp(5500)))

    rates = interleaved({"raw": raw, "get": ours, "multi_get": many}, rounds=3 if quick else 5)
    for name in ("get", "multi_get"):
        yield figure(
            "storage", f"point reads, {name}", rates[name], "keys/s", peer="raw rocksdict get, keys/s",
            peer_value=rates["raw"],
        )  # fmt: skip
    engine.close()


def run(*, quick: bool) -> Iterator[Figure]:
    root = Path(tempfile.mkdtemp(prefix="slackwater-bench-"))
    disk = RocksDisk(root, sleep=asyncio.sleep)
    try:
        for part in (_scans, _puts, _gets):
            yield from part(disk.open, quick=quick)
    finally:
        shutil.rmtree(root, ignore_errors=True)
