"""The operator of a simulated cluster: sets it up, then splits, merges, moves and transfers until told to stop, then sweeps.

    setup    every node has its place; ranges copied to up to three nodes; the key space cut; accounts opened
    acts     lease transfers most of all, because that is where history's bugs are; splits, merges, moves of replicas
    sweep    after the traffic: every range must answer a read and a barrier, and reading everything clears the intents
             that nobody else would have met again

The operator uses `server.Admin` on a machine of his own. Any act may be interrupted by faults at any point. What it leaves
half done must be harmless, or the act goes on until it is done: a frozen range is thawed or merged, a replica that was
named is filled.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from slackwater.clock.timestamp import add_seconds
from slackwater.errors import SlackwaterError
from slackwater.hooks import probe
from slackwater.model import requests as rq
from slackwater.runtime.seam import RangeId
from slackwater.server.admin import Admin
from slackwater.server.bootstrap import RANGE_ID_KEY
from slackwater.server.peers import Peers
from slackwater.sim.handles import NS
from slackwater.sim.scenarios.cluster_plan import KV_SPAN, all_keys
from slackwater.sim.scenarios.cluster_work import open_books

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.sim.scenarios.cluster_plan import Cluster
    from slackwater.sim.scenarios.cluster_programs import Client
    from slackwater.sim.tape import Stream

ACT_TIMEOUT_S = 5.0
PAUSE_S = 0.2
FIRST_KEYS = (b"\x02", b"\x03\xf0", KV_SPAN[0])
"""A key of each range of a new cluster."""


class Operator:
    """One operator with a client library in his hands."""

    def __init__(self, client: Client, cluster: Cluster, draw: Stream) -> None:
        self._client = client
        self._cluster = cluster
        self._draw = draw
        self._clock = client.runtime.clock
        self.admin = Admin(
            sender=client.sender,
            kv=client.kv,
            peers=Peers(client.dialer, client.book.resolve, client.scope.child("peers")),
            liveness=None,  # type: ignore[arg-type] # only decommissioning asks for it
            runtime=client.runtime,
            new_range_id=self._new_range_id,
        )

    async def _new_range_id(self) -> RangeId:
        return RangeId(await self._client.kv.increment(RANGE_ID_KEY, 1, timeout=ACT_TIMEOUT_S))

    async def main(self) -> None:
        """The whole life of the operator."""
        cluster = self._cluster
        await self._setup()
        cluster.ready = True
        while cluster.traffic:
            await self._clock.sleep(self._draw.decay(cluster.plan.operator_mean_ns) / NS)
            with suppress(SlackwaterError):
                await self._act()
        await self._sweep()

    async def _until_done(self, step: Callable[..., Coroutine[Any, Any, object]], *args: Any, **more: Any) -> None:
        """Again and again, until it succeeds."""
        while True:
            try:
                await step(*args, **more)
            except SlackwaterError as error:
                probe("cluster.operator_again")
                self._cluster.trouble = f"{step.__name__} met {type(error).__name__}: {error}"
                await self._clock.sleep(PAUSE_S)
            else:
                return

    # --- setup -----------------------------------------------------------------------------------------------------

    async def _setup(self) -> None:
        """Build what the plan asks for."""
        plan, client = self._cluster.plan, self._client
        await client.meet(len(self._cluster.addresses))
        nodes = sorted(client.book.nodes)[: plan.copies]
        for key in FIRST_KEYS:
            await self._until_done(self.admin.change_replicas, key, nodes)
        for key in plan.splits:
            await self._until_done(self.admin.split, key)
        await self._until_done(open_books, client, self._cluster)

    # --- acts ------------------------------------------------------------------------------------------------------

    async def _act(self) -> None:
        """One thing, drawn."""
        draw, plan = self._draw, self._cluster.plan
        what = draw.below(100)
        key = draw.pick(all_keys()) if draw.chance(9, 10) else FIRST_KEYS[draw.below(2)]
        if what < 70 or key < KV_SPAN[0]:
            await self._transfer(key)
        elif what < 82:
            await self.admin.split(key)
            probe("cluster.split")
        elif what < 92 and plan.merges:
            await self._merge(key)
        elif plan.moves:
            await self._move(key)

    async def _transfer(self, key: bytes) -> None:
        found = await self.admin.describe(key)
        await self.admin.transfer_lease(key, self._draw.pick(found.descriptor.replicas))
        probe("cluster.transferred")

    async def _move(self, key: bytes) -> None:
        """Replace one replica of a range by one on a node that has none."""
        found = await self.admin.describe(key)
        replicas, holder = found.descriptor.replicas, found.lease.holder
        spare = [n for n in sorted(self._client.book.nodes) if n not in replicas]
        victims = [n for n in replicas if n != holder]
        if not spare or not victims:
            return
        new, victim = self._draw.pick(spare), self._draw.pick(victims)
        try:
            await self.admin.change_replicas(key, [n for n in replicas if n != victim] + [new])
            probe("cluster.moved")
        finally:
            await self._until_done(self._fill, key)

    async def _fill(self, key: bytes) -> None:
        """A replica that was named must get its data, and the index must know."""
        now = (await self.admin.describe(key)).descriptor
        await self.admin.fill(now, now.replicas)
        await self.admin.meta.publish(now)

    async def _merge(self, key: bytes) -> None:
        """Merge the range that holds `key` with its right neighbor; or leave both as they were."""
        left = (await self.admin.describe(key)).descriptor
        if left.end >= KV_SPAN[1] or left.start < KV_SPAN[0]:
            return
        right = (await self.admin.describe(left.end)).descriptor
        try:
            await self.admin.merge(key)
            probe("cluster.merged")
        except SlackwaterError:
            probe("cluster.merge_undone")
            await self._until_done(self._undo, left, right)

    async def _undo(self, left: RangeDescriptor, right: RangeDescriptor) -> None:
        await self.admin.undo_merge(right, left_generation=left.generation)

    # --- sweep -----------------------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        """Read everything and have every range answer, again and again until all of it succeeds."""
        await self._until_done(self._sweep_once)
        self._cluster.swept = True

    async def _sweep_once(self) -> None:
        admin, key = self.admin, KV_SPAN[0]
        await self._client.kv.scan(*KV_SPAN, timeout=ACT_TIMEOUT_S)
        for first in FIRST_KEYS[:2]:
            await self._fill(first)
            await admin.ask(rq.Barrier(), at=first)
        while key < KV_SPAN[1]:
            now = (await admin.describe(key)).descriptor
            await self._fill(key)
            await admin.ask(rq.Barrier(), at=key)
            before = add_seconds(self._client.clock.now(), -self._client.runtime.settings["txn.expiration"])
            await admin.ask(rq.GcTxnRecords(before), at=key)
            key = now.end
