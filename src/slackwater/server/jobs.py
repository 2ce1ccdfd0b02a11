"""The jobs of a node: wires `slackwater.jobs` to its store, its liveness and its announcements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.jobs import Jobs

if TYPE_CHECKING:
    from slackwater.replica.driver import NodeLiveness
    from slackwater.server.node import Node


def node_jobs(node: Node, liveness: NodeLiveness) -> Jobs:
    """The jobs of a node that belongs to a cluster; they run with the node."""
    jobs = Jobs(
        node.kv,
        node.job_types,
        node_id=node.node_id,
        liveness=liveness,
        runtime=node.runtime,
        settings=node.settings,
        scope=node.scope.child("jobs"),
    )
    node.scope.spawn(jobs.run(), name="jobs")
    return jobs
