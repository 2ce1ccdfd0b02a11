"""Something happens at every step of making a segment: what columns give is what rows give, before, between and after (I-38).

    begin ► batch ► batch ► … ► file durable ► record
          ▲       ▲       ▲                  ▲
          └───────┴───────┴──────────────────┴─ here: a split, a merge, collecting, a change of the table, …

Each act comes at each of these steps in turn, to a segment that is made of rows and to one that is made anew. After every step
every replica is read at random times, spans, columns and predicates, through its columns and from its rows, on one snapshot.
"""

import asyncio
import random
from itertools import count

import pytest

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.bulk_arrow import plan_schema, unpack
from slackwater.codec.layout import schema_span
from slackwater.codec.rows import RowCodec
from slackwater.errors import SlackwaterError
from slackwater.model.predicates import Op, Predicate
from slackwater.model.scan_plan import ScanPlan
from slackwater.protocol.range.bulk import ScanArrow
from slackwater.replica.driver.columns import make
from slackwater.replica.evaluate_bulk import BulkRead, BulkReads
from slackwater.replica.evaluation import Permit
from slackwater.storage.columns.build import Shape
from tests.integration.test_columns import opened, table, until

ROWS = 120
SHAPE = Shape(batch_rows=40)
STEPS_MAX = 12
READS = 4
PREDICATES = (
    (),
    (Predicate("id", Op.LT, ROWS),),
    (Predicate("v", Op.EQ, "old 10"),),
    (Predicate("id", Op.GE, 3 * ROWS),),
)


class UpToNow:
    """Rules that protect nothing and keep no history."""

    def __init__(self, node):
        self._node = node

    def permit(self, state):
        return Permit(self._node.clock.now())

    def dropped_at(self, start, end):
        return MIN


class Table:
    """A table with a history, whose columns are made by hand, step by step."""

    def __init__(self, db, node, draw, number):
        self.db, self.node, self.draw = db, node, draw
        self.name = f"t{number}"
        self.pages = 0
        self.times = []
        self.task = None

    async def begin(self, path):
        """Rows that were written, replaced and deleted, in one range."""
        self.path = path
        await self.db.create_table(self.name, {"id": "int8", "v": "string"}, primary_key=["id"])
        self.table_id = (await self.db.table(self.name)).table_id
        await self.learn()
        self.span = schema_span(self.schemas[-1])
        self.codec = RowCodec(self.schemas[-1], {s.version: s for s in self.schemas})
        await self.write(table(ROWS, of=2))
        await self.write(table(ROWS // 3, of=6, value="newer"))
        await self.db.delete(self.name, [{"id": n} for n in range(0, 2 * ROWS, 14)])

    async def learn(self):
        self.schemas = (await self.node.queues.context.tables(self.table_id)).schemas()

    async def write(self, rows):
        await self.db.upsert(self.name, rows)
        self.times.append(self.node.clock.now())

    def key(self, number):
        return self.codec.encode({"id": number, "v": ""})[0]

    def replicas(self):
        for replica in list(self.node.store.replicas.values()):
            start = max(self.span.start, replica.state.descriptor.start)
            end = min(self.span.end, replica.state.descriptor.end)
            if start < end and not replica.retired:
                yield replica, start, end

    async def make(self, before=None):
        """Make a segment of the first replica's part; `before(step)` is awaited before every piece of work, and at the end."""
        written = self.node.clock.now()
        replica, start, end = next(self.replicas())
        await until(lambda: replica.closing.closed() > written)
        runtime, steps = self.node.store.context.runtime, count()
        offload = runtime.offload

        async def stepped(work, *args):
            if before is not None and getattr(work, "__name__", "") == "run":
                await before(next(steps))
            return await offload(work, *args)

        runtime.offload = stepped
        self.task = asyncio.current_task()
        try:
            made = await make(replica, start, end, self.schemas, SHAPE)
        finally:
            runtime.offload = offload
        if before is not None:
            await before(next(steps))
        return made

    def check(self):
        """Random reads of every replica, through columns and from rows."""
        shelf, engine, draw = self.node.store.context.columns, self.node.store.context.engine, self.draw
        for replica, start, end in self.replicas():
            for _ in range(READS):
                ts = draw.choice([*self.times, self.node.clock.now()])
                threshold = replica.state.gc_threshold
                if ts <= threshold:
                    continue
                bounds = sorted(draw.choices([start, end, *map(self.key, range(0, 2 * ROWS, 7))], k=2))
                low, high = max(start, bounds[0]), min(end, bounds[1])
                if low < high:
                    self.compare(shelf, engine, low, high, ts, threshold)

    def compare(self, shelf, engine, at, end, ts, threshold):
        draw = self.draw
        columns = draw.choice([None, ("id",), ("v",), ("v", "id")])
        plan = ScanPlan(self.schemas, self.schemas[0].version, columns, draw.choice(PREDICATES))
        while at < end:
            bulk = bulk_of(ScanArrow(at, end, plan.encode(), draw.random() < 0.5), ts, threshold)
            with engine.snapshot() as frozen:
                bulk.look_up(shelf)
                (page,) = bulk.run(frozen)
                bulk.hand_in(shelf)
                upto = page.resume or end
                (plain,) = bulk_of(ScanArrow(at, upto, plan.encode()), ts, threshold).run(frozen)
            assert shown(page, plan) == shown(plain, plan)
            self.pages += len(bulk.segment_pages)
            self.node.store.context.drop_columns(bulk.broken())
            at = upto


def bulk_of(request, ts, threshold):
    bulk = BulkReads(max_rows=0, max_bytes=1 << 20, threshold=threshold, locked=True)
    bulk.reads.append(BulkRead(request, Timestamp(ts), Timestamp(ts)))
    return bulk


def shown(page, plan):
    return [row for batch in unpack(page.blocks, plan_schema(plan), page.patches) for row in batch.to_pylist()]


# --- what happens at a step ----------------------------------------------------------------------------------------------


async def write(t):
    await t.write(table(ROWS, of=3, value="during"))
    await t.db.delete(t.name, [{"id": n} for n in range(0, 2 * ROWS, 22)])


async def split(t):
    await t.node.admin.split(t.key(ROWS))
    await t.write(table(20, of=9, value="after the split"))


async def split_and_merge(t):
    left, _ = await t.node.admin.split(t.key(ROWS // 2))
    await t.write(table(20, of=9, value="between"))
    await t.node.admin.merge(left.start)
    await t.write(table(20, of=5, value="after the merge"))


async def merge(t):
    """The table lies in two ranges when this comes (`divided`)."""
    replica, _, _ = next(t.replicas())
    await t.node.admin.merge(replica.state.descriptor.start)
    await t.write(table(20, of=9, value="after the merge"))


async def collect(t):
    await t.write(table(ROWS, of=2, value="kept"))
    context = t.node.store.context
    rules, context.retention = context.retention, UpToNow(t.node)
    try:
        for replica, _, _ in list(t.replicas()):
            await t.node.queues.gc.collect(t.node.queues.context, replica)
    finally:
        context.retention = rules


async def alter(t):
    await t.db.alter_table(t.name, add_column={"more": "int8 default 7"})
    await t.learn()
    await t.write(table(ROWS // 2, of=4, value="with more"))


async def truncate(t):
    await t.db.truncate_table(t.name)


async def drop(t):
    await t.db.drop_table(t.name)


async def cancel(t):
    """As when the node is stopped."""
    t.task.cancel()


async def rot(t):
    """A byte of every file of columns that is there is another one; a file that is being written is not named yet."""
    for file in (t.path / "engine" / "columns").iterdir():
        data = bytearray(file.read_bytes())
        if data:
            data[t.draw.randrange(len(data))] ^= 0x41
            file.write_bytes(bytes(data))


ACTS = (write, split, split_and_merge, merge, collect, alter, truncate, drop, cancel, rot)
GONE = (truncate, drop)


@pytest.mark.parametrize("anew", [False, True], ids=["of rows", "anew"])
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_columns_are_what_rows_are_whatever_happens_at_any_step(tmp_path, monkeypatch, act, anew):
    async def work():
        pages, reached = 0, False
        draw = random.Random(f"{act.__name__} {anew}")
        async with opened(tmp_path, monkeypatch, **{"queue.interval": 0.0, "columns.build_bytes": 1 << 30}) as (
            db,
            _,
            node,
        ):
            for at in range(STEPS_MAX):
                t = Table(db, node, draw, at)
                await t.begin(tmp_path)
                if act is merge:
                    await node.admin.split(t.key(ROWS))
                if anew:
                    assert await t.make() is not None
                    t.check()
                    await write(t)
                acted = await _made_with(t, act, at)
                if act not in GONE:
                    t.check()
                pages += t.pages
                await _nothing_is_left(tmp_path, node)
                if not acted:
                    reached = True
                    break
        assert reached, "every step had its turn"
        assert pages or (act in (cancel, *GONE) and not anew), "columns were read, or nothing was tested"

    asyncio.run(work())


async def _made_with(t, act, at):
    """Make columns, and have something happen at one step; whether there were so many steps."""
    acted = []

    async def before(step):
        if step == at:
            acted.append(step)
            await act(t)
        if act not in GONE or not acted:
            t.check()

    try:
        await asyncio.ensure_future(t.make(before))
    except asyncio.CancelledError:
        assert act is cancel
    except SlackwaterError:
        assert act in GONE
    return bool(acted)


async def _nothing_is_left(path, node):
    """No file without a segment, once what was replaced is durable."""
    columns = node.store.context.columns
    files = path / "engine" / "columns"
    await until(lambda: {file.name for file in files.glob("*")} == {kept.name for kept in columns})
