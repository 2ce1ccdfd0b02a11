"""`kill -9` at every step of making a segment: afterwards the store reads what its rows are, and nothing is left lying around."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.bulk_arrow import plan_schema, unpack
from slackwater.protocol.range.bulk import ScanArrow
from slackwater.replica.evaluate_bulk import BulkRead, BulkReads
from slackwater.storage.batch import WriteBatch
from slackwater.storage.columns.shelf import Shelf
from slackwater.storage.rocks import RocksDisk

STEPS_MAX = 60
PREPARE = """
import asyncio, os, signal, sys
from pathlib import Path
from slackwater.clock.timestamp import Timestamp
from slackwater.codec.layout import schema_span
from slackwater.codec.rows import RowCodec
from slackwater.model.kinds import ColumnKind, ColumnType
from slackwater.model.schema import Column, KeyColumn, TableSchema
from slackwater.model.scan_plan import ScanPlan
from slackwater.runtime.seam import Family
from slackwater.storage.batch import WriteBatch
from slackwater.storage.columns.build import Shape, from_columns, from_rows
from slackwater.storage.columns.shelf import Shelf, file_name
from slackwater.storage.rocks import RocksDisk
from slackwater.storage.versions import suffix

COLUMNS = (Column(1, "id", ColumnType(ColumnKind.INT), nullable=False), Column(2, "text", ColumnType(ColumnKind.STRING)))
SCHEMA = TableSchema(7, "t", 1, COLUMNS, (KeyColumn(1),))
SPAN = schema_span(SCHEMA)
PLAN = ScanPlan((SCHEMA,), 1)
CODEC = RowCodec(SCHEMA, {1: SCHEMA})
"""
CHILD = (
    PREPARE
    + """
left = int(sys.argv[2])

def step():
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)

engine = RocksDisk(Path(sys.argv[1]), sleep=asyncio.sleep).open("s")
shelf = Shelf(engine.files)
shelf.load(engine, WriteBatch())

def write(ids, ts):
    batch = WriteBatch()
    for n in ids:
        key, value = CODEC.encode({"id": n, "text": f"at {ts}"})
        batch.put(Family.DATA, key + suffix(Timestamp(ts)), value)
    noted = shelf.note(batch)
    engine.write(batch)
    shelf.noted(noted)
    step()

def make(anchor):
    making = shelf.begin(SPAN.start, SPAN.end)
    sink = engine.files.create(file_name(making.number))
    step()
    old = next(iter(shelf), None)
    with engine.snapshot() as frozen:
        def put(data):
            sink.write(data)
            step()
        how = dict(start=SPAN.start, end=SPAN.end, anchor=Timestamp(anchor), write=put, shape=Shape(100))
        steps = from_rows(frozen, [SCHEMA], **how)
        if old is not None:
            steps = from_columns(old.opened(), old.delta.frozen(), frozen, [SCHEMA], **how)
        write(range(5), anchor + 5)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                built = done.value
                break
    sink.finish()
    step()
    shelf.end(making)
    batch = WriteBatch()
    kept, replaced = shelf.install(making, built, batch)
    engine.write(batch)
    step()
    shelf.installed(kept, replaced)
    retired = shelf.flushing()
    asyncio.run(engine.flush())
    step()
    shelf.flushed(retired, durable=True)
    step()

write(range(400), 10)
make(20)
write(range(100, 150), 30)
asyncio.run(engine.flush())
make(40)
write(range(395, 405), 50)
asyncio.run(engine.flush())
print("done", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
)
scope: dict = {}
exec(PREPARE, scope)


def rows(engine, shelf, ts):
    """What a read gives, with or without segments."""
    span, plan = scope["SPAN"], scope["PLAN"]
    bulk = BulkReads(max_rows=0, max_bytes=1 << 20)
    bulk.reads.append(BulkRead(ScanArrow(span.start, span.end, plan.encode()), Timestamp(ts), MIN))
    if shelf is not None:
        bulk.look_up(shelf)
    with engine.snapshot() as frozen:
        (page,) = bulk.run(frozen)
    assert page.resume is None
    found = [row for batch in unpack(page.blocks, plan_schema(plan)) for row in batch.to_pylist()]
    return found, len(bulk.segment_pages)


def after(directory: Path):
    """Open what is left, and compare columns with rows; how many segments there are, and whether they were used."""
    engine = RocksDisk(directory, sleep=asyncio.sleep).open("s")
    shelf = Shelf(engine.files)
    forgotten = WriteBatch()
    shelf.load(engine, forgotten)
    engine.write(forgotten)
    used = 0
    for ts in (20, 25, 30, 45, 60):
        found, pages = rows(engine, shelf, ts)
        assert found == rows(engine, None, ts)[0]
        used += pages
    assert not any(kept.broken for kept in shelf)
    assert engine.files.names() == sorted(kept.name for kept in shelf)
    assert not list((directory / "s" / "columns").glob("*.tmp"))
    engine.close()
    return len(list(shelf)), used


@pytest.mark.slow
def test_killed_at_every_step_of_making_a_segment(tmp_path):
    outcomes = []
    for number in range(STEPS_MAX):
        directory = tmp_path / str(number)
        child = subprocess.run(
            [sys.executable, "-c", CHILD, str(directory), str(number)], capture_output=True, text=True, check=False
        )
        assert child.returncode == -signal.SIGKILL, child.stderr
        outcomes.append(after(directory))
        if child.stdout.strip() == "done":
            break
    else:
        pytest.fail("it has more steps than that")
    assert len(outcomes) > 20
    assert outcomes[0][0] == 0  # killed before anything was recorded
    assert outcomes[-1] == (1, 2)  # the second one is there, and serves what is at or above its anchor
    assert (1, 5) in outcomes  # the first one was, from its anchor on
