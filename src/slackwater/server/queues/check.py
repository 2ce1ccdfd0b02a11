"""Checks: every replica digests its state at the same point of the log, and the digests must agree (I-06).

A minority that differs is quarantined and fetched anew; the finding is kept for an operator. Without a majority nobody can
say who is right: that is reported and left alone. A leaseholder that finds itself in the minority hands the lease to one
of the majority first.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from slackwater.hooks import probe
from slackwater.model import requests as rq
from slackwater.replica.allocator import NodeState
from slackwater.routing.retry import Deadline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slackwater.runtime.seam import NodeId, RangeId
    from slackwater.server.queues.desk import Visit

CHECKSUM_ID_BYTES = 8
DIGEST_WAIT_S = 30.0
POLL_S = 0.02


def minority(digests: Mapping[NodeId, bytes]) -> list[NodeId] | None:
    """The nodes whose digests differ from the majority's; None when they differ and there is no majority."""
    if len(set(digests.values())) <= 1:
        return []
    best, votes = Counter(digests.values()).most_common(1)[0]
    if 2 * votes <= len(digests):
        return None
    return sorted(n for n, d in digests.items() if d != best)


class CheckQueue:
    """Compares the replicas of a range."""

    name = "check"

    def __init__(self) -> None:
        self._checked: dict[RangeId, int] = {}

    async def process(self, visit: Visit) -> bool:
        """Compare, if it is time."""
        interval, now_ns = visit.desk.settings["queue.check_interval"], visit.desk.now_ns()
        range_id = visit.descriptor.range_id
        if not interval or not visit.leading or len(visit.descriptor.replicas) < 2:
            return False
        # The first check comes after a whole interval, so that a restart does not digest everything at once.
        since_ns = self._checked.setdefault(range_id, now_ns)
        if now_ns - since_ns < interval * 1e9:
            return False
        self._checked[range_id] = now_ns
        await self.check(visit)
        return False

    async def check(self, visit: Visit) -> dict[NodeId, bytes]:
        """Compare now, and deal with what is found; returns the digests."""
        desk, here = visit.desk, visit.descriptor
        checksum_id = desk.runtime.rng.bytes(CHECKSUM_ID_BYTES)
        await desk.admin.ask(rq.ComputeChecksum(checksum_id), at=here.start)
        digests = await self._gather(visit, checksum_id)
        wrong = minority(digests)
        if wrong is None:
            probe("queues.check_no_majority")
            desk.report(f"r{here.range_id}: replicas differ and none is in the majority: {sorted(digests)}")
        elif wrong:
            probe("queues.check_mismatch")
            desk.report(f"r{here.range_id}: the replicas on {wrong} differ from the others; quarantined")
            await self._quarantine(visit, wrong, right=[n for n in digests if n not in wrong])
        return digests

    async def _gather(self, visit: Visit, checksum_id: bytes) -> dict[NodeId, bytes]:
        desk, here = visit.desk, visit.descriptor
        waiting = [n for n in here.replicas if visit.picture.state(n) in (NodeState.LIVE, NodeState.DRAINING)]
        digests: dict[NodeId, bytes] = {}
        deadline = Deadline(desk.runtime.clock, seconds=DIGEST_WAIT_S)
        while waiting and not deadline.passed:
            for node in list(waiting):
                digest = await desk.peers.checksum(node, here.range_id, checksum_id)
                if digest is not None:
                    digests[node] = digest
                    waiting.remove(node)
            if waiting:
                await desk.runtime.clock.sleep(POLL_S)
        return digests

    async def _quarantine(self, visit: Visit, wrong: list[NodeId], *, right: list[NodeId]) -> None:
        desk, here = visit.desk, visit.descriptor
        if desk.node_id in wrong:
            await desk.admin.transfer_lease(here.start, right[0])
        for node in wrong:
            await desk.peers.quarantine(node, here.range_id, reason="its state differs from the other replicas'")
