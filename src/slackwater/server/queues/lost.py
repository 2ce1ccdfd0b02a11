"""Ranges that no node which answers has a replica of, made again from the log (`replica/driver/history.py`).

    named in the descriptor, nothing here, and no other node that is named answers     ──► replay, install
    not named, and every node that is named has been dead for `liveness.dead_after`    ──► replay, be named, replay, install

To be named takes an entry in the range's own log (`AdoptTrigger`). It takes no lease away and nothing from the log,
so a node that was thought dead and comes back finds one more replica, and otherwise what it left. From then on the new
replica is like any other: it asks for the lease when the old holder's epoch is over, which puts an entry behind all there
are; it is copied to other nodes; and the dead one is taken off.

What cannot be made again for certain is not: the finding says why, and the range waits for a node that has it. Range 1 is
never among these ranges: who is dead is written there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN
from slackwater.codec.layout import KEY_MAX, KEY_MIN
from slackwater.errors import HistoryIncomplete, SlackwaterError
from slackwater.hooks import probe
from slackwater.model.descriptors import FIRST_RANGE
from slackwater.protocol.log.commands import COMMAND_ID_BYTES, NO_LAI, AdoptTrigger, Command, Packet, encode_packet
from slackwater.replica.allocator import NodeState
from slackwater.replica.driver.history import RangeHistory
from slackwater.server.bootstrap import begin_again
from slackwater.server.identity import read_identity

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.model.ids import NodeId, RangeId
    from slackwater.replica.state import RangeState
    from slackwater.server.queues.context import ClusterView, QueueContext

REFUSED_REST_NS = 600 * 10**9
"""How long a range whose history is incomplete is left alone: that seldom changes, and a replay is long work."""
LOOK_AGAIN_NS = 60 * 10**9
"""How soon the whole index is read again if the same nodes are away and nothing was lost: a dead node may stay listed."""

_ANSWERING = frozenset({NodeState.LIVE, NodeState.DRAINING, NodeState.LEAVING})


def may_rebuild(descriptor: RangeDescriptor, own: NodeId, state: Callable[[NodeId], NodeState]) -> bool:
    """Whether this node should make a replica of a range from the log; it has none."""
    others = [state(node) for node in descriptor.replicas if node != own]
    if own in descriptor.replicas:
        return not any(one in _ANSWERING for one in others)
    return all(one is NodeState.DEAD for one in others)


class LostRanges:
    """Looks for lost ranges and makes them again."""

    name = "lost"

    def __init__(self, context: QueueContext) -> None:
        self._context = context
        self._rests_until: dict[RangeId, int] = {}
        self._nothing_lost: dict[NodeId, NodeState] | None = None
        """Nodes that were away when the index of ranges was last read and nothing was lost."""
        self._look_again = 0
        self.rebuilt = 0

    async def sweep(self, view: ClusterView) -> None:
        """Rebuild what is lost, one range after the other. Costs nothing while every node is well."""
        context = self._context
        away = {n: view.state(n) for n in view.nodes if view.state(n) not in _ANSWERING}
        if view.state(context.node_id) is not NodeState.LIVE or not context.settings["range.rebuild_log_bytes"]:
            return
        if not away:
            context.lost = {}
        if not away or (away == self._nothing_lost and context.now_ns() < self._look_again):
            return
        listed = [record.descriptor for record in await context.admin.meta.read(KEY_MIN, KEY_MAX)]
        lost = [d for d in listed if self._lost(d, view)]
        self._nothing_lost, self._look_again = None if lost else away, context.now_ns() + LOOK_AGAIN_NS
        self._rests_until = {d.range_id: self._rests_until.get(d.range_id, 0) for d in lost}
        context.lost = {r: why for r, why in context.lost.items() if r in self._rests_until}
        for descriptor in lost:
            if context.now_ns() >= self._rests_until[descriptor.range_id]:
                await self._try(descriptor, view)

    def _lost(self, descriptor: RangeDescriptor, view: ClusterView) -> bool:
        range_id, context = descriptor.range_id, self._context
        if range_id == FIRST_RANGE or range_id in context.store.replicas:
            return False
        return may_rebuild(descriptor, context.node_id, view.state)

    async def _try(self, descriptor: RangeDescriptor, view: ClusterView) -> None:
        context = self._context
        try:
            state = await self._rebuild(descriptor, view)
        except HistoryIncomplete as error:
            probe("lost.refused")
            self._rests_until[descriptor.range_id] = context.now_ns() + REFUSED_REST_NS
            named = ", ".join(f"n{node}" for node in descriptor.replicas)
            self._tell(descriptor, f"cannot be rebuilt from the log: {error}; start {named} again, or restore a backup")
        except SlackwaterError as error:
            probe("lost.failed")
            self._tell(descriptor, f"was not rebuilt from the log yet: {error}")
        else:
            context.lost.pop(descriptor.range_id, None)
            if state is not None:
                probe("lost.rebuilt")
                self.rebuilt += 1
                context.report(f"r{descriptor.range_id} was lost, and was rebuilt from the log up to {state.position}")

    def _tell(self, descriptor: RangeDescriptor, why: str) -> None:
        context, warning = self._context, f"r{descriptor.range_id} is lost, no node that answers has it, and it {why}"
        if context.lost.get(descriptor.range_id) != warning:
            context.report(warning)
        context.lost[descriptor.range_id] = warning

    async def _rebuild(self, listed: RangeDescriptor, view: ClusterView) -> RangeState | None:
        """Install a replica made from the log; None where the log says that others see to the range."""
        context = self._context
        engine = context.store.context.engine
        identity = read_identity(engine)
        history = RangeHistory(
            begin_again(identity.born if identity is not None else None),
            context.log,
            context.runtime,
            start=listed.start,
            bytes_max=int(context.settings["range.rebuild_log_bytes"]),
        )
        state = await history.advance()
        _check_listed(state.descriptor, listed)
        if not may_rebuild(state.descriptor, context.node_id, view.state):
            return None
        if context.node_id not in state.descriptor.replicas:
            await self._adopt(state)
            state = await history.advance()
            if context.node_id not in state.descriptor.replicas:
                return None  # another node was faster
        installed = await context.store.install_snapshot(history.parts())
        # Requests are sent where the index says; until it says so, only this node itself would find its replica.
        await context.admin.meta.publish(installed.descriptor)
        return installed

    async def _adopt(self, state: RangeState) -> None:
        """Have the range's own log name this node as a replica."""
        probe("lost.adopt")
        command = Command(
            command_id=self._context.runtime.rng.bytes(COMMAND_ID_BYTES),
            lease_sequence=state.lease.sequence,
            lai=NO_LAI,
            closed=MIN,
            min_write_ts=MIN,
            trigger=AdoptTrigger(self._context.node_id),
            generation=state.descriptor.generation,
        )
        range_id = state.descriptor.range_id
        await self._context.log.append(range_id, [encode_packet(Packet(range_id, [command]))])


def _check_listed(made: RangeDescriptor, listed: RangeDescriptor) -> None:
    """Refuse what the log made if the index of ranges, a copy that is never ahead, knows of something newer."""
    known = made == listed if made.generation == listed.generation else made.generation > listed.generation
    if made.range_id != listed.range_id or not known:
        raise HistoryIncomplete(
            "the log ends before what the index of ranges knows of it", made=made.status(), listed=listed.status()
        )
