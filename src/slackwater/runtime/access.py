"""Who is at the other end, and what that lets them ask for.

The authority writes a *role* into every certificate it signs (the organizational unit of its subject), and a name (the
common name). Every RPC method declares the roles that may call it, where it is defined; the server compares the two in one
place (`rpc/serving.py`), before it looks at the request. What is not declared is refused.

    certificate                                  may call what is declared for
    OU=node      CN=node or CN=node-3, hosts     NODE once it says which node it is, NEWCOMER before that
    OU=operator  CN=root                         OPERATOR
    OU=client    CN=ann                          CLIENT
    none         (--insecure: loopback only)     all of these: on this machine every caller is an operator

A node is bound to its id: with `node-3` in its certificate it can be node 3 and no other, wherever it is; with plain `node`
it can be the node whose address on record is one of the hosts in its certificate (`bound`).

Rules
    - A certificate without a name, or without a role, names no caller: it is refused at the greeting.
    - A role is never taken from what a peer says, only from what the authority signed.
"""

from __future__ import annotations

import enum
import ipaddress
import re
from typing import TYPE_CHECKING, Any

import msgspec

from slackwater.errors import AccessDenied

if TYPE_CHECKING:
    from collections.abc import Mapping

NODE_NAME = "node"
HOSTS_TOLD_MAX = 8
_NODE_NAME = re.compile(r"node-([1-9][0-9]{0,8})\Z")


class Role(enum.Flag):
    """What a caller is, as far as access goes."""

    NEWCOMER = enum.auto()
    """A machine with a node's certificate that belongs to no cluster yet: it may ask for a place."""
    NODE = enum.auto()
    OPERATOR = enum.auto()
    CLIENT = enum.auto()


NO_ROLE = Role(0)
ANYBODY = Role.NEWCOMER | Role.NODE | Role.OPERATOR | Role.CLIENT
NEWCOMERS = Role.NEWCOMER
NODES = Role.NODE
OPERATORS = Role.OPERATOR
NODES_AND_OPERATORS = Role.NODE | Role.OPERATOR
CLIENTS = Role.CLIENT | Role.OPERATOR
"""Those who use tables. An operator may do what a client may."""

_PLURALS = {
    Role.NEWCOMER: "nodes that join",
    Role.NODE: "nodes",
    Role.OPERATOR: "operators",
    Role.CLIENT: "clients",
}
_SIGNED = {"node": Role.NODE, "operator": Role.OPERATOR, "client": Role.CLIENT}


class Certificate(msgspec.Struct, frozen=True):
    """What an authority has signed about a peer, and TLS has verified."""

    role: str
    """`node`, `operator` or `client`; anything else is no role."""
    name: str
    hosts: tuple[str, ...] = ()
    """Names and addresses that a node is dialed by."""
    serial: int = 0

    def covers(self, host: str) -> bool:
        """Whether a host is among those named, as TLS compares them."""
        return any(_same(host, named) for named in self.hosts)

    def node_id(self) -> int:
        """The node that the certificate is for; 0 when it is for hosts only."""
        found = _NODE_NAME.match(self.name)
        return int(found.group(1)) if found else 0


def certificate_of(peer: Mapping[str, Any] | None) -> Certificate:
    """What `ssl` says of a verified certificate (`getpeercert`); of nothing, a certificate without name and role."""
    if not peer:
        return Certificate("", "")
    subject = {key: value for part in peer.get("subject", ()) for key, value in part}
    hosts = tuple(value for kind, value in peer.get("subjectAltName", ()) if kind in ("DNS", "IP Address"))
    return Certificate(
        subject.get("organizationalUnitName", ""),
        subject.get("commonName", "").strip(),
        hosts,
        int(peer.get("serialNumber", "0"), 16),
    )


def roles_of(certificate: Certificate | None, *, node_id: int) -> Role:
    """What a peer is that shows this certificate and says that it is this node (0: none); refuses impostors."""
    if certificate is None:
        return ANYBODY
    if not certificate.name:
        raise AccessDenied("the certificate has no common name; make one with `slackwater cert`")
    role = _SIGNED.get(certificate.role)
    if role is None:
        raise AccessDenied(
            f"the certificate of {certificate.name!r} has no role; make it anew with `slackwater cert`"
            " (create-node, create-operator, create-client)",
            role=certificate.role[:64],
        )
    if role is not Role.NODE:
        if node_id:
            raise AccessDenied(
                f"the certificate of {certificate.role} {certificate.name!r} may not speak for n{node_id};"
                " a node shows a node certificate",
                certificate=certificate.name,
            )
        return role
    named = certificate.node_id()
    if not named and certificate.name != NODE_NAME:
        raise AccessDenied("a node certificate is called node, or node-ID for one node", certificate=certificate.name)
    if named and node_id and named != node_id:
        raise AccessDenied(f"the certificate of n{named} may not speak for n{node_id}", certificate=certificate.name)
    return Role.NODE if node_id else Role.NEWCOMER


def bound(certificate: Certificate | None, *, node_id: int, host: str) -> None:
    """Refuse a node whose certificate is neither for its id nor for its host; 0 for a newcomer, which has no id."""
    if certificate is None or (node_id and certificate.node_id() == node_id) or certificate.covers(host):
        return
    told = ", ".join(certificate.hosts[:HOSTS_TOLD_MAX]) or "no host"
    if not node_id:
        raise AccessDenied(f"the certificate is for {told}, and the node's address is {host}; make one that names it")
    raise AccessDenied(
        f"the certificate is for {told}, and n{node_id} is at {host}; if it has moved, make one with"
        f" `slackwater cert create-node --id {node_id}`",
        node_id=node_id,
    )


def denied(method: str, callers: Role, *, who: str) -> AccessDenied:
    """The refusal of a call, with what would be needed."""
    need = "an operator's certificate (`slackwater cert create-operator NAME`, then --user NAME)"
    hint = f"; show {need}" if Role.OPERATOR in callers else ""
    return AccessDenied(f"{method} is for {plural(callers)}, not for {who}{hint}", method=method)


def plural(roles: Role) -> str:
    """`nodes and operators`."""
    return " and ".join(_PLURALS[role] for role in Role if role in roles)


def said_of(certificate: Certificate | None, *, node_id: int) -> str:
    """A peer in a message: `client 'ann'`, `n3`."""
    if node_id:
        return f"n{node_id}"
    return "a peer without a certificate" if certificate is None else f"{certificate.role} {certificate.name!r}"


def _same(host: str, named: str) -> bool:
    host, named = host.lower().strip("[]"), named.lower()
    if host == named or (named.startswith("*.") and host.partition(".")[2] == named[2:]):
        return True
    try:
        return ipaddress.ip_address(host) == ipaddress.ip_address(named)
    except ValueError:
        return False
