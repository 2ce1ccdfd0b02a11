"""Change feeds of tables, with consumers that keep only what is resolved, and die at any moment (I-25).

    w1 w2      write rows of two tables, together and alone, quickly and slowly, and delete some
    k1 k2      keepers: `db.changes` over both tables. A keeper has memory and a disk:

        rows above `resolved`  ──►  memory, lost when it dies
        a batch with a token   ──►  disk: what memory has at or below `batch.resolved`, and `batch.token`
        dies                        after any batch, or in the middle of one; comes back from the token on its disk

What a keeper has on its disk must be the tables at its resolved timestamp, every time: that is all that a token promises.

A token is good for the gc ttl of its tables. In most runs that is a few seconds, and a keeper whose cluster does not answer for
longer is refused for good: `BelowGcThreshold`. It forgets everything and begins anew, with an initial scan. Before that it
looks at its token: to refuse one that is younger than the shortest ttl there has been is an error (I-25).

Tables lie in several ranges, so that some are ahead of others, which is where a token may promise too much.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from slackwater.clock.timestamp import MIN, Timestamp, add_seconds, from_us, show
from slackwater.codec.layout import schema_span
from slackwater.codec.rows import RowCodec
from slackwater.config.zones import GC_TTL_S_DEFAULT
from slackwater.errors import BelowGcThreshold, SlackwaterError, UsageError
from slackwater.feeds.frontier import decode_token
from slackwater.hooks import probe
from slackwater.runtime.sync import timeout
from slackwater.sim.clocks import EPOCH_NS
from slackwater.sim.handles import NS
from slackwater.sim.oracles.following import decided
from slackwater.sim.oracles.versions import VersionsOracle
from slackwater.sim.scenarios.beside import TIMEOUT_S, register_beside
from slackwater.sim.scenarios.cluster_operator import Operator
from slackwater.sim.scenarios.cluster_plan import SHORTEST_TTL
from slackwater.sim.scenarios.cluster_programs import Client
from slackwater.sim.scenarios.gateways_work import session

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from slackwater.client.changes import ChangeBatch
    from slackwater.client.database import AsyncDatabase
    from slackwater.client.transaction import AsyncTransaction
    from slackwater.sim.scenarios.cluster_plan import Cluster
    from slackwater.sim.tape import TapeStream
    from slackwater.sim.world import SimRuntime, World

TABLES = ("left", "right")
ROWS = 24
SPLIT_AT = (8, 16)
"""Rows at which every table is divided."""
THINK_MEAN_NS, DAWDLE_MEAN_NS = NS // 6, NS
DIE_ONE_IN, SAVE_ONE_IN = 12, 3
PATIENCE_S = 5.0
SHOWN_MAX = 3
SETTINGS = {
    "closed_timestamp.target_duration": 0.5,
    "feed.push_after": 1.0,
    "feed.push_interval": 0.5,
    "feed.protection_grace": 0.0,  # so that old tokens are refused; tests/sim/test_feed_grace.py is about the others
}

Kept = dict[tuple[str, int], dict[Timestamp, int | None]]
"""By table and row, the versions that were handed out: a count, or None for a deletion."""


class _Program:
    """What writers and keepers have in common."""

    def __init__(self, runtime: SimRuntime, cluster: Cluster, draw: TapeStream) -> None:
        self._client = Client(runtime, cluster)
        self._cluster = cluster
        self._draw = draw
        self._name = runtime.name
        self._sleep = runtime.clock.sleep

    @property
    def _db(self) -> AsyncDatabase:
        return session(self._client, self._cluster, timeout_s=TIMEOUT_S)

    async def _begin(self) -> None:
        self._cluster.busy[self._name] = "waiting for the tables"
        while not self._cluster.ready:
            await self._sleep(0.1)
        while not self._cluster.world.facts.get("feed tables"):
            if self._name == "w1":
                with suppress(SlackwaterError):
                    await self._found()
            await self._sleep(0.3)

    async def _found(self) -> None:
        """Make the tables, and divide them."""
        codecs, admin = {}, Operator(self._client, self._cluster).admin
        await self._client.meet(1)
        for name in TABLES:
            try:
                made = await self._db.table(name)
            except UsageError:
                made = await self._db.create_table(name, {"id": "int8", "count": "int8 not null"}, primary_key="id")
            codecs[name] = RowCodec(made)
            for key in (schema_span(made).start, *(codecs[name].key([row]) for row in SPLIT_AT)):
                await admin.split(key)
        self._cluster.world.facts["feed tables"] = codecs


class TableWriter(_Program):
    """Changes rows of both tables."""

    async def main(self) -> None:
        """Until the traffic ends."""
        await self._begin()
        while self._cluster.traffic:
            self._cluster.busy[self._name] = "writing"
            await self._sleep(self._draw.decay(THINK_MEAN_NS) / NS)
            work: Callable[[], Awaitable[None]] = self._draw.pick([self._alone, self._alone, self._together])
            with suppress(SlackwaterError):
                await work()
        self._cluster.busy[self._name] = ""

    def _count(self) -> int:
        facts = self._cluster.world.facts
        facts["feed counts"] = count = facts.get("feed counts", 0) + 1
        return int(count)

    async def _alone(self) -> None:
        table, row = self._draw.pick(TABLES), self._draw.below(ROWS)
        if self._draw.chance(1, 5):
            await self._db.delete(table, [row])
        else:
            await self._db.upsert(table, [{"id": row, "count": self._count()}])

    async def _together(self) -> None:
        """One transaction over several ranges, whose intents hold some of them back for a while."""
        places = [(self._draw.pick(TABLES), self._draw.below(ROWS)) for _ in range(self._draw.between(2, 4))]

        async def work(tx: AsyncTransaction) -> None:
            for table, row in places:
                await tx.get(table, row)
                await tx.upsert(table, [{"id": row, "count": self._count()}])
                if self._draw.chance(1, 3):
                    await self._sleep(self._draw.decay(DAWDLE_MEAN_NS) / NS)

        await self._db.run(work)


class Keeper(_Program):
    """Follows both tables, and keeps what is resolved."""

    def __init__(self, runtime: SimRuntime, cluster: Cluster, draw: TapeStream) -> None:
        super().__init__(runtime, cluster, draw)
        disk = cluster.world.facts.setdefault(f"disk of {self._name}", {"rows": {}, "token": None, "resolved": MIN})
        self._disk: dict[str, Any] = disk
        """Survives this machine, as a keeper's disk does."""
        self._memory: Kept = {}

    async def main(self) -> None:
        """Until everything that was written has come."""
        await self._begin()
        while not self._enough:
            self._cluster.busy[self._name] = f"keeping what is resolved at {self._disk['resolved']}"
            self._memory = {}
            try:
                await self._live()
            except BelowGcThreshold as error:
                self._begin_anew(error)
            except (SlackwaterError, TimeoutError):
                pass
            await self._sleep(self._draw.decay(NS // 2) / NS)
            probe("feeds.keeper_died")
        self._cluster.busy[self._name] = ""

    @property
    def _enough(self) -> bool:
        busy = any(doing for name, doing in self._cluster.busy.items() if not name.startswith("k"))
        last = max((ts for versions in self._rows().values() for ts in versions), default=MIN)
        return not self._cluster.traffic and not busy and self._disk["resolved"] >= last

    def _rows(self) -> dict[bytes, dict[int, bytes]]:
        spans = [schema_span(codec.schema) for codec in self._cluster.world.facts["feed tables"].values()]
        found = self._cluster.world.facts["feed rows"].found
        return {key: versions for key, versions in found.items() if any(key in span for span in spans)}

    async def _live(self) -> None:
        """One life: from the token on the disk to a drawn death."""
        stream = self._db.changes(TABLES, after=self._disk["token"], resolved=self._draw.pick([0.1, 0.5, 1.0]))
        try:
            while not self._enough:
                async with timeout(PATIENCE_S):
                    batch = await anext(stream)
                if not self._take(batch):
                    return
        finally:
            await stream.aclose()

    def _begin_anew(self, error: BelowGcThreshold) -> None:
        """Its token is refused for good, which may happen to old ones only: forget what was kept."""
        world, token = self._cluster.world, self._disk["token"]
        if token is None:  # its very first scan took longer than history is kept
            return
        stands = decode_token(token)
        ts = Timestamp(stands.scan_ts or stands.resolved)
        now = from_us((EPOCH_NS + world.loop.now_ns) // 1000)
        ttl_s = world.facts.get(SHORTEST_TTL, GC_TTL_S_DEFAULT)
        # A timestamp may be ahead of true time by a clock's error; behind a clock that was set wrong, by anything.
        if ts > add_seconds(now, world.settings["clock.max_offset"] - ttl_s) and not world.shadows:
            text = f"the token of {self._name} at {show(ts)} is younger than {ttl_s} s, and was refused: {error}"
            world.violated("I-25", "young-token-refused", text, now=now)
        earliest = error.facts.get("earliest")
        if not isinstance(earliest, int) or earliest <= ts:
            text = f"the token of {self._name} at {show(ts)} was refused without a later time to begin at: {error}"
            world.violated("I-25", "no-earliest-time", text)
        probe("feeds.keeper_began_anew")
        self._disk.update(rows={}, token=None, resolved=MIN)

    def _take(self, batch: ChangeBatch) -> bool:
        """One batch; False: it died, perhaps in the middle of it."""
        dies = self._cluster.traffic and self._draw.chance(1, DIE_ONE_IN)
        rows = batch.data.to_pylist() if batch.kind == "rows" else []
        for row in rows[: self._draw.below(len(rows) + 1)] if dies else rows:
            versions = self._memory.setdefault((batch.table, row["id"]), {})
            versions[Timestamp(row["_commit_ts"])] = None if row["_op"] == "delete" else row["count"]
        if dies and rows:
            return False
        if batch.token and (batch.kind == "resolved" or self._draw.chance(1, SAVE_ONE_IN)):
            self._save(batch)
        return not dies

    def _save(self, batch: ChangeBatch) -> None:
        """Keep what is resolved, and where to go on; then it must be what the tables were."""
        kept: Kept = self._disk["rows"]
        for place, versions in self._memory.items():
            for ts in [ts for ts in versions if ts <= batch.resolved]:
                kept.setdefault(place, {})[ts] = versions.pop(ts)
        self._disk["token"], self._disk["resolved"] = batch.token, batch.resolved
        self._compare(batch.resolved)

    def _compare(self, resolved: Timestamp) -> None:
        codecs: dict[str, RowCodec] = self._cluster.world.facts["feed tables"]
        names = {codec.schema.table_id: name for name, codec in codecs.items()}
        expected: dict[tuple[str, int], int] = {}
        for key, versions in self._rows().items() if resolved else ():
            ts = max((ts for ts in versions if ts <= resolved), default=None)
            if ts is not None and versions[ts]:
                name = names[int.from_bytes(key[1:5], "big")]
                row = codecs[name].decode(versions[ts])
                expected[name, row["id"]] = row["count"]
        kept = {place: versions[max(versions)] for place, versions in self._disk["rows"].items()}
        found = {place: count for place, count in kept.items() if count is not None}
        differing = sorted(
            p
            for p in found.keys() | expected.keys()
            if found.get(p) != expected.get(p) and found.get(p) not in self._decided(codecs[p[0]], p[1], resolved)
        )
        probe("feeds.keeper_compared")
        if differing:
            shown = [(place, found.get(place), expected.get(place)) for place in differing[:SHOWN_MAX]]
            text = f"what {self._name} kept is not the tables at {resolved}: (row, kept, table) {shown}"
            self._cluster.world.violated("I-25", "kept-differs", text, rows=len(differing))

    def _decided(self, codec: RowCodec, row: int, resolved: Timestamp) -> list[int | None]:
        """What a committed transaction has made of a row, though its intent is not resolved: an initial scan knows it."""
        key = codec.key([row])
        newest = max((ts for ts in self._rows().get(key, {}) if ts <= resolved), default=MIN)
        values = decided(self._cluster.world, key, after=newest, upto=resolved)
        return [codec.decode(value)["count"] if value else None for value in values]


class TableRows(VersionsOracle):
    """V, for keepers to be compared with."""

    def attach(self, world: World) -> None:
        """Be found."""
        super().attach(world)
        world.facts["feed rows"] = self


register_beside(
    "feeds_tables",
    "feeds of tables whose consumers keep what is resolved, die at any moment and come back from their token",
    {"w1": TableWriter, "w2": TableWriter, "k1": Keeper, "k2": Keeper},
    nodes=(2, 4),
    clients=(1, 2),
    settings=SETTINGS,
    oracles=lambda: [TableRows()],
)
