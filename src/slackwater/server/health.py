"""Is this node alive, and should it be sent work? With the reasons, for people and for load balancers.

    /health         200 when ready, 503 when not; a JSON object that says why
    /health/live    200 for as long as the process answers at all: restarting it would not help
    /health/ready   the same as /health
    /metrics        numbers, see `metrics.py`

Ready means: it belongs to a cluster, its own liveness record has not expired, it is not draining, its clock is within the
bound that its peers allow, a majority of them can reach it, and its store takes writes (`fitness.py`). A quarantined replica
does not make a node unready: it serves its other ranges; but it is listed under `warnings`, as are ranges whose
replicas differ so that an operator has to decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater import __version__
from slackwater.runtime.http import Answer
from slackwater.server import metrics
from slackwater.server.reports import certificate_warnings

if TYPE_CHECKING:
    from slackwater.server.node import Node

PATHS = ("/health", "/health/live", "/health/ready", "/metrics")


class HealthReport(msgspec.Struct, frozen=True):
    """The state of a node as others should treat it."""

    live: bool
    ready: bool
    reasons: list[str]
    warnings: list[str]
    node: str
    cluster: str
    address: str
    version: str = __version__


def health(node: Node) -> HealthReport:
    """What a node says of itself now."""
    reasons = _why_unready(node)
    member = node.member
    quarantined = {} if member is None else member.store.quarantined
    questions = {} if member is None else member.queues.context.open_questions()
    lost = {} if member is None else member.queues.context.lost
    warnings = [f"r{range_id} is quarantined: {why}" for range_id, why in sorted(quarantined.items())]
    return HealthReport(
        live=True,
        ready=not reasons,
        reasons=reasons,
        warnings=[
            *warnings,
            *(questions[range_id] for range_id in sorted(questions)),
            *(lost[range_id] for range_id in sorted(lost)),
            *certificate_warnings(node),
        ],
        node=f"n{node.node_id}" if node.node_id else "",
        cluster=node.identity.cluster_id,
        address=node.address,
    )


def answer(node: Node, path: str) -> Answer:
    """The page of one path."""
    if path == "/metrics":
        return Answer(200, metrics.render(metrics.collect(node)), metrics.CONTENT_TYPE)
    if path not in PATHS:
        return Answer(404, f"there is nothing at this path; try {', '.join(PATHS)}\n")
    found = health(node)
    status = 200 if found.ready or path == "/health/live" else 503
    return Answer(status, msgspec.json.encode(found).decode() + "\n", "application/json")


def _why_unready(node: Node) -> list[str]:
    if node.member is None:
        return ["the node belongs to no cluster yet; run `slackwater init`, or start it with --join"]
    reasons = []
    own = node.member.liveness.own()
    if own is None:
        reasons.append("the node's liveness record has expired or is not written yet; it cannot hold leases")
    elif own.draining:
        reasons.append("the node is draining")
    return [*node.why_unfit(), *reasons]
