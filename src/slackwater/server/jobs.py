"""The jobs of a node: wires `slackwater.jobs` to its store, its liveness and its announcements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.jobs import Jobs

if TYPE_CHECKING:
    from slackwater.server.member import Member


def node_jobs(member: Member) -> Jobs:
    """The jobs of one node; the member runs them."""
    return Jobs(
        member.kv,
        member.job_types,
        node_id=member.node_id,
        liveness=member.liveness,
        runtime=member.runtime,
        settings=member.settings,
        scope=member.scope.child("jobs"),
    )
