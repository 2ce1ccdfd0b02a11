"""Who may become a node, and who may say that they are one.

    node.join    a newcomer shows a node certificate for the host of its address, and is given the next id
    greeting     a peer that says it is n3 shows the certificate of n3: one for that id, or for the host n3 is known at
    node.hello   a node tells its own address, no other, and only one that its certificate is for

What is told is checked before it is kept: every node tells it to every client, and writes it to its disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.errors import AccessDenied, LimitReached, LogIdentityMismatch, UsageError
from slackwater.hooks import probe
from slackwater.model.ids import NodeId
from slackwater.model.locality import check_locality
from slackwater.protocol.node.services import JoinReply
from slackwater.runtime.access import ANYBODY, bound
from slackwater.runtime.tcp import parse_address
from slackwater.server.addresses import NODES_MAX, check_address, check_descriptor
from slackwater.server.bootstrap import NODE_ID_KEY
from slackwater.server.identity import read_identity

if TYPE_CHECKING:
    from slackwater.model.descriptors import NodeDescriptor
    from slackwater.protocol.node.services import JoinRequest
    from slackwater.runtime.access import Certificate
    from slackwater.runtime.rpc.method import Context
    from slackwater.server.addresses import AddressBook
    from slackwater.server.member import Member


def check_node(book: AddressBook, node_id: int, certificate: Certificate | None) -> None:
    """Refuse a peer that says it is a node which its certificate is not for.

    A node that is not known here yet has no address on record: it has just joined, and its certificate is a node's.
    """
    known = book.nodes.get(NodeId(node_id))
    if known is not None:
        bound(certificate, node_id=node_id, host=parse_address(known.address)[0])


def check_told(node: NodeDescriptor, context: Context, *, latest: int) -> None:
    """Refuse a descriptor that its sender must not tell: not its own, not well formed, or from the future.

    Of two descriptors of a node the later start wins, so that one from the future would win for ever. `latest` is the
    hybrid clock after it has followed the message, hence above the start of every honest sender.
    """
    check_descriptor(node)
    if node.started_at > latest:
        raise UsageError("a node that starts in the future is not believed; mend its clock", node_id=node.node_id)
    if context.roles is ANYBODY:
        return
    if context.node_id != node.node_id:
        probe("membership.not_its_own")
        raise AccessDenied("a node tells where it is itself, not where others are", node_id=node.node_id)
    bound(context.certificate, node_id=node.node_id, host=parse_address(node.address)[0])


async def admit(member: Member, request: JoinRequest, context: Context) -> JoinReply:
    """Give a newcomer a place in the cluster."""
    check_address(request.address)
    check_locality(request.locality)
    certificate = context.certificate
    if certificate is not None and certificate.node_id():
        raise AccessDenied(
            f"the certificate is for n{certificate.node_id()} only, and a node that joins is given an id;"
            " join with one for the host (`slackwater cert create-node HOST`)",
            certificate=certificate.name,
        )
    bound(certificate, node_id=0, host=parse_address(request.address)[0])
    if request.log != tuple(member.log.identity()):
        raise LogIdentityMismatch(
            "the node uses another log than this cluster", expected=tuple(member.log.identity()), actual=request.log
        )
    if len(member.book.nodes) >= NODES_MAX:
        raise LimitReached("the cluster has as many nodes as it can hold; decommission some", limit=NODES_MAX)
    node_id = NodeId(await member.system.increment(NODE_ID_KEY, 1))
    first = await member.book.first_range()
    own = read_identity(member.engine)
    return JoinReply(
        member.cluster_id, node_id, list(member.book.nodes.values()), first, own.born if own is not None else None
    )
