"""Bulk reads of a table whose columns are made, changed, damaged and lost all the time (I-38).

    w1 w2     write, replace and delete rows of one table, some of them many at once
    w1        alters it now and then: columns come, widen, are renamed and go (rows that go at once, when a table is emptied,
              are left to tests/integration/test_columns.py: oracles of closed history do not know which keys are gone)
    r1 r2     scan and take snapshots, of the present and of the past, with any choice of columns and predicates; begin feeds
    rot       now and then a bit of a file of columns is flipped, or a file is gone

beside the cluster's traffic, operator and faults: splits, merges and moves of replicas, crashes that lose what was not flushed.
Every page that comes from columns is compared with rows by the oracle.
"""

from __future__ import annotations

from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from slackwater.errors import SegmentDamaged, SlackwaterError
from slackwater.hooks import probe
from slackwater.runtime.sync import timeout
from slackwater.sim.handles import NS
from slackwater.sim.oracles.columns import Columns
from slackwater.sim.scenarios.beside import TIMEOUT_S, TableClient, register_beside
from slackwater.storage.columns.segment import Segment
from slackwater.storage.files import MemoryFiles

if TYPE_CHECKING:
    from slackwater.sim.scenarios.cluster_plan import Cluster
    from slackwater.sim.tape import TapeStream
    from slackwater.sim.world import SimRuntime

TABLE = "things"
KEYS = 60
THINK_MEAN_NS = NS // 3
BACK_S_MAX = 6
ROT_ONE_IN = 12
ALTER_ONE_IN = 4
ALTERATIONS: tuple[dict[str, Any], ...] = (
    {"add_column": {"extra": "int4 default 7"}},
    {"add_column": {"late": "string not null default 'x'"}},
    {"set_type": {"extra": "int8"}},
    {"set_type": {"extra": "float8"}},
    {"rename_column": {"extra": "spare"}},
    {"rename_column": {"spare": "extra"}},
    {"drop_column": "late"},
    {"drop_column": "extra"},
)
"""Many of them are refused, because the column is not there or there already."""
SETTINGS = {
    "closed_timestamp.target_duration": 1.0,
    "clock.max_offset": 0.25,
    "queue.interval": 0.5,
    "columns.rows_min": 1,
    "columns.quiet_period": 0.3,
    "columns.disk_bytes": 1 << 30,
    "columns.build_bytes": 1 << 16,
    "columns.share": 0.5,
}


class ColumnsWorker(TableClient):
    """One client: a writer or a reader."""

    def __init__(self, runtime: SimRuntime, cluster: Cluster, draw: TapeStream) -> None:
        super().__init__(runtime, cluster, draw, scope="columns")
        self._count = 0

    async def main(self) -> None:
        """Write or read until the traffic ends."""
        cluster = self._cluster
        await self.begin()
        while cluster.traffic:
            cluster.busy[self.name] = "reading and writing"
            await self._runtime.clock.sleep(self._draw.decay(THINK_MEAN_NS) / NS)
            with suppress(SlackwaterError, TimeoutError):
                await (self._write() if self.name.startswith("w") else self._read())
            if self.name == "r1" and self._draw.chance(1, ROT_ONE_IN):
                self._rot()
        cluster.busy[self.name] = ""

    async def _prepare(self) -> None:
        if self.name == "w1" and not [t for t in await self.db.tables() if t.name == TABLE]:
            columns = {"id": "int8", "n": "int8", "text": "string"}
            await self.db.create_table(TABLE, columns, primary_key="id")
        await self.db.table(TABLE)

    async def _alter(self) -> None:
        """Begin to change the table; the job goes on by itself."""
        await self.db.alter_table(TABLE, **self._draw.pick(ALTERATIONS), wait=False)
        probe("columns.altered")

    async def _write(self) -> None:
        draw = self._draw
        self._count += 1
        if self.name == "w1" and draw.chance(1, ALTER_ONE_IN):
            await self._alter()
            return
        many = draw.pick([1, 2, 20, KEYS])
        if draw.chance(1, 4):
            await self.db.delete(TABLE, [{"id": draw.below(KEYS)} for _ in range(min(many, 3))])
        else:
            first = draw.below(KEYS)
            rows = [{"id": (first + n) % KEYS, "n": self._count, "text": self.name * (n % 3)} for n in range(many)]
            await self.db.upsert(TABLE, rows)
        probe("columns.wrote")

    async def _read(self) -> None:
        draw = self._draw
        how: dict[str, Any] = {}
        if draw.chance(1, 3):
            how["columns"] = draw.pick([["id"], ["text", "id"], ["n"]])
        if draw.chance(1, 3):
            how["where"] = [draw.pick([("id", "<", KEYS // 2), ("n", ">=", 2), ("text", "=", "w1")])]
        if draw.chance(1, 8):
            await self._begin_feed()
        elif draw.chance(1, 3):
            await self.db.scan(TABLE, nearest=draw.chance(1, 2), **how)
        else:
            back_s = draw.below(BACK_S_MAX + 1)
            source, past = draw.pick(["any", "leader", "follower"]), f"-{back_s}s" if back_s else None
            snap = await self.db.snapshot(tables=[TABLE], read_from=source, as_of=past)
            await snap.scan(TABLE, **how)
        probe("columns.scanned")

    async def _begin_feed(self) -> None:
        """Read the table as of some moment as a feed does that begins there."""
        back_s = self._draw.below(BACK_S_MAX + 1)
        async with (
            timeout(TIMEOUT_S),
            aclosing(self.db.changes(TABLE, after=f"-{back_s}s", initial_scan="only")) as feed,
        ):
            async for batch in feed:
                probe("columns.feed_began" if batch.initial else "columns.feed_scanned")

    def _rot(self) -> None:
        """Flip a bit of a file, or take it away, on one machine."""
        machines = [m for _, m in sorted(self._cluster.world.machines.items()) if m.disk.engines]
        for engine in self._draw.pick(machines).disk.engines.values() if machines else ():
            files = engine.engine.files
            assert isinstance(files, MemoryFiles)
            for name in files.names():
                probe("columns.rot")
                data = bytearray(files.held[name] or b"\x00")
                data[self._place(files, name)] ^= 1 << self._draw.below(8)
                files.held[name] = bytes(data) if self._draw.chance(7, 8) else b""

    def _place(self, files: MemoryFiles, name: str) -> int:
        """A byte of a column, mostly, of which a file of so few rows has few; or any other."""
        try:
            batches = Segment(files.open(name)).index.batches
        except SegmentDamaged:
            return 0
        held = [place for batch in batches for chunk in batch.chunks for place in chunk.buffers if place[1]]
        if not held or self._draw.chance(1, 8):
            return self._draw.below(len(files.held[name]))
        at, size = self._draw.pick(held)
        return int(at) + self._draw.below(size)


register_beside(
    "columns",
    "a table whose columns are made, changed, damaged and lost: every page of them is what rows are",
    dict.fromkeys(("w1", "w2", "r1", "r2"), ColumnsWorker),
    nodes=(1, 4),
    clients=(1, 2),
    settings=SETTINGS,
    oracles=lambda: [Columns()],
)
