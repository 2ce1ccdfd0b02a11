"""A replica that cannot be read gives its lease to a healthy one, then lets itself be replaced (I-34).

    suspended ── leads? ── ask the others where they stand ── transfer to the most advanced healthy one ── halt ── fetch

While a healthy replica exists, a reader waits at most for that transfer. Where none answers, the lease stays: a range
without a healthy replica has nothing to serve, and is unavailable until one is back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.errors import UsageError
from slackwater.hooks import probe
from slackwater.protocol.node.services import ReplicaStatus
from slackwater.replica.driver.damage import hand_over

if TYPE_CHECKING:
    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.model.ids import NodeId, RangeId
    from slackwater.replica.driver import Replica
    from slackwater.server.member import Member


def give_up_later(member: Member, replica: Replica) -> None:
    """Start to give up a suspended replica, unless the node gives up everything anyway."""
    if not member.node.stopping:
        member.scope.spawn(_give_up(member, replica), name=f"give up r{replica.state.descriptor.range_id}")


async def _give_up(member: Member, replica: Replica) -> None:
    try:
        if replica.state.lease.holder == member.node_id:
            for target, life in (await _healthy(member, replica)).items():
                if replica.state.lease.holder != member.node_id or await hand_over(replica, target, life=life):
                    break
            else:
                probe("damage.lease_kept")
        await member.runtime.clock.sleep(member.store.damage.rest_s(replica.state.descriptor.range_id))
    finally:
        replica.halt()


async def refetch_replica(member: Member, range_id: RangeId, target: NodeId) -> None:
    """Have a replica fetched anew because an operator says that it is wrong; its lease goes to a healthy one first."""
    status = await member.peers.replica(target, range_id)
    if status is None:
        raise UsageError(f"n{target} has no replica of r{range_id}; `slackwater ranges` lists who has")
    healthy = await _healthy_of(member, status.descriptor, target)
    if not healthy:
        raise UsageError(f"no other node has a healthy replica of r{range_id}; the one on n{target} stays as it is")
    if status.lease.holder == target and not status.failure:
        await member.admin.transfer_lease(status.descriptor.start, next(iter(healthy)))
    await member.peers.quarantine(target, range_id, reason="an operator has it fetched anew")


async def _healthy(member: Member, replica: Replica) -> dict[NodeId, int]:
    return await _healthy_of(member, replica.state.descriptor, member.node_id)


async def _healthy_of(member: Member, descriptor: RangeDescriptor, but: NodeId) -> dict[NodeId, int]:
    """The nodes with a healthy replica of the range and the lives of their processes; not `but`, the most advanced first."""
    others = [n for n in descriptor.replicas if n != but]
    answers = await member.peers.replicas(others, descriptor.range_id)
    healthy = [
        (-status.position, n, status.life)
        for n, status in answers.items()
        if isinstance(status, ReplicaStatus) and not status.failure
    ]
    return {n: life for _, n, life in sorted(healthy)}
