"""The operator of a simulated cluster: sets it up, then splits, merges, moves and transfers until told to stop.

    setup    the nodes that are there have their place; ranges copied to up to three of them; the key space cut; accounts
             opened
    acts     lease transfers most of all, because that is where history's bugs are; splits, merges, moves of replicas
    retire   in some runs one node is decommissioned, and switched off once it says that it is empty

The operator uses `server.Admin` on a machine of his own, and that machine may lose its power like any other. He cleans up
nothing: what an act leaves half done (a frozen range, a replica that was named and never filled, an index that was not told)
is found and finished by the queues of the nodes, or it stays and the run fails (I-21, I-31).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from slackwater.errors import SlackwaterError, UnavailableError
from slackwater.hooks import probe
from slackwater.model.ids import RangeId
from slackwater.protect.zone_changes import change_zone
from slackwater.protocol.node.admin import DECOMMISSION, DecommissionRequest
from slackwater.server.admin import Admin
from slackwater.server.bootstrap import RANGE_ID_KEY
from slackwater.server.peers import Peers
from slackwater.server.system_kv import KvAdapter
from slackwater.sim.handles import NS
from slackwater.sim.scenarios.cluster_plan import KV_SPAN, SHORTEST_TTL, all_keys
from slackwater.sim.scenarios.cluster_work import open_books

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from slackwater.model.ids import NodeId
    from slackwater.sim.scenarios.cluster_plan import Cluster
    from slackwater.sim.scenarios.cluster_programs import Client
    from slackwater.sim.tape import TapeStream

ACT_TIMEOUT_S = 5.0
PAUSE_S = 0.2
FIRST_KEYS = (b"\x02", b"\x03\xf0", KV_SPAN[0])
"""A key of each range of a new cluster."""


class Operator:
    """One operator with a client library in his hands."""

    def __init__(self, client: Client, cluster: Cluster) -> None:
        self._client = client
        self._cluster = cluster
        self._draw: TapeStream = cluster.world.tape.stream("operator")
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
        """The whole life of the operator; goes on from where a former life ended."""
        cluster, world = self._cluster, self._cluster.world
        name = self._client.runtime.name
        cluster.busy[name] = "setting up"
        if not cluster.ready:
            await self._setup()
            cluster.ready = True
        else:
            await self._client.meet(1)
        if cluster.plan.retires is not None:
            self._client.scope.spawn(self._retire(*cluster.plan.retires), name="retire")
        while cluster.traffic:
            number = cluster.next_operation(name)
            self._draw = world.tape.stream(f"op/{name}/{number}")
            await self._clock.sleep(self._draw.decay(cluster.plan.operator_mean_ns) / NS)
            if world.allows_operation(name, number):
                with suppress(SlackwaterError):
                    await self._act(f"{name} #{number}")
        cluster.busy[name] = ""

    async def _until_done(self, step: Callable[..., Coroutine[Any, Any, object]], *args: Any, **more: Any) -> None:
        """Again and again, until it succeeds."""
        while True:
            try:
                await step(*args, **more)
            except SlackwaterError as error:
                probe("cluster.operator_again")
                self._cluster.trouble = f"{step.__name__} met {type(error).__name__}: {error}"
                with suppress(SlackwaterError):  # a node may have joined since that now leads what is asked for
                    await self._client.book.refresh(KvAdapter(self._client.kv))
                await self._clock.sleep(PAUSE_S)
            else:
                return

    # --- setup -----------------------------------------------------------------------------------------------------

    async def _setup(self) -> None:
        """Build what the plan asks for."""
        plan, client = self._cluster.plan, self._client
        await client.meet(self._cluster.early)
        nodes = sorted(client.book.nodes)[: plan.copies]
        for key in FIRST_KEYS:
            await self._until_done(self.admin.relocate, key, nodes)  # a queue may have moved the lease meanwhile
        for key in plan.splits:
            await self._until_done(self.admin.split, key)
        if plan.gc_ttl_s:
            await self._until_done(self._set_ttl, plan.gc_ttl_s)
        await self._until_done(open_books, client, self._cluster)

    async def _set_ttl(self, ttl_s: float) -> None:
        facts = self._cluster.world.facts
        facts[SHORTEST_TTL] = min(ttl_s, facts.get(SHORTEST_TTL, ttl_s))  # also when it is not known whether it was set
        await change_zone(self._client.kv, b"", b"", gc_ttl_s=ttl_s, timeout=ACT_TIMEOUT_S)

    # --- acts ------------------------------------------------------------------------------------------------------

    async def _act(self, title: str) -> None:
        """One thing, drawn."""
        draw, plan, story = self._draw, self._cluster.plan, self._cluster.world.story
        what = draw.below(100)
        key = draw.pick(all_keys()) if draw.chance(9, 10) else FIRST_KEYS[draw.below(2)]
        if what < 70 or key < KV_SPAN[0]:
            story(f"{title} transfer of {key!r}")
            await self._transfer(key)
        elif what < 82:
            story(f"{title} split at {key!r}")
            await self.admin.split(key)
            probe("cluster.split")
        elif what < 86 and plan.gc_ttl_s:
            ttl_s = draw.pick((1.0, 2.0, 4.0, 8.0))
            story(f"{title} history is kept for {ttl_s} s")
            await self._set_ttl(ttl_s)
            probe("cluster.zone_changed")
        elif what < 92 and plan.merges:
            story(f"{title} merge of {key!r}")
            await self._merge(key)
        elif plan.moves:
            story(f"{title} move of {key!r}")
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
        await self.admin.change_replicas(key, [n for n in replicas if n != victim] + [new])
        probe("cluster.moved")

    async def _merge(self, key: bytes) -> None:
        """Merge the range that holds `key` with its right neighbor."""
        left = (await self.admin.describe(key)).descriptor
        if left.end >= KV_SPAN[1] or left.start < KV_SPAN[0]:
            return
        await self.admin.merge(key)
        probe("cluster.merged")

    # --- a node leaves -----------------------------------------------------------------------------------------------

    async def _retire(self, name: str, at_ns: int) -> None:
        """Decommission a node; once it is empty, switch it off for good."""
        cluster, machine = self._cluster, self._cluster.world.machines[name]
        if machine.gone:
            return
        cluster.busy["retire"] = f"retiring {name}"
        while cluster.world.loop.now_ns < at_ns or (node := cluster.nodes.get(name)) is None or not node.node_id:
            await self._clock.sleep(PAUSE_S)
        cluster.world.story(f"decommission {name}")
        await self._until_done(self._emptied, node.node_id)
        probe("cluster.retired")
        cluster.world.event(f"{name} is empty and leaves")
        machine.gone = True
        machine.crash()
        cluster.busy["retire"] = ""

    async def _emptied(self, node_id: NodeId) -> None:
        """Ask again, of whichever node answers."""
        others = [n for n in sorted(self._client.book.nodes) if n != node_id]
        address = self._client.book.resolve(self._draw.pick(others)) if others else None
        if address is None:
            raise UnavailableError("no node is up to ask")
        request = DecommissionRequest(node_id)
        left = await self._client.dialer.call(address, DECOMMISSION, request, timeout=ACT_TIMEOUT_S)
        if left.replicas_left:
            raise UnavailableError(f"n{node_id} still holds {left.replicas_left}")
