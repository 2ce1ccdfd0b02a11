"""Checks: every replica digests its state at the same point of the log, and the digests must agree (I-06).

Each replica also counts what it holds and compares that with its own statistics, which every command has carried along: a
copy that lost rows contradicts itself, however many others lost the same. So the evidence is weighed in this order (I-34):

    cannot be read                       no vote; it has quarantined itself
    contradicts its own statistics       wrong, if a copy is there that does not; many wrong ones do not outvote it
    all that are whole agree             right
    they differ: a majority of all       right, unless one of the others holds more versions
    anything else                        undecidable: nothing is touched, and an operator is asked

What is wrong is quarantined and fetched anew. A leaseholder that finds itself wrong hands the lease to one that is right
first. A question stands in the journal, in `slackwater status` and in `/health` until a later check finds the replicas equal;
`slackwater refetch` answers it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from slackwater.errors import SlackwaterError
from slackwater.hooks import probe
from slackwater.protocol.range import requests
from slackwater.replica.allocator import NodeState
from slackwater.runtime.deadline import Deadline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slackwater.model.ids import NodeId, RangeId
    from slackwater.protocol.node.snapshots import Examination
    from slackwater.server.queues.context import Visit

CHECKSUM_ID_BYTES = 8
DIGEST_WAIT_S = 30.0
POLL_S = 0.02


class CheckVerdict(NamedTuple):
    """Which replicas are wrong, or why that cannot be decided."""

    wrong: list[NodeId]
    question: str = ""


def judge(votes: Mapping[NodeId, Examination]) -> CheckVerdict:
    """Weigh what the replicas of a range found in themselves."""
    digests = {vote.digest for vote in votes.values()}
    whole = {node: vote for node, vote in votes.items() if vote.whole}
    if len(digests) <= 1:
        alike = "all replicas are equal, and hold something else than their statistics say"
        return CheckVerdict([], alike if votes and not whole else "")
    if not whole:
        return CheckVerdict([], "replicas differ, and none holds what its statistics say")
    best, count = Counter(vote.digest for vote in whole.values()).most_common(1)[0]
    wrong = sorted(node for node, vote in votes.items() if vote.digest != best)
    if count < len(whole):
        if 2 * count <= len(votes):
            return CheckVerdict([], "replicas differ, and none is in the majority")
        right = next(vote for vote in whole.values() if vote.digest == best)
        if any(node in whole and votes[node].versions > right.versions for node in wrong):
            return CheckVerdict([], "replicas differ, and the minority holds more versions than the majority")
    return CheckVerdict(wrong)


class CheckQueue:
    """Compares the replicas of a range."""

    name = "check"

    def __init__(self) -> None:
        self._checked: dict[RangeId, int] = {}

    async def process(self, visit: Visit) -> bool:
        """Compare, if it is time."""
        interval, now_ns = visit.context.settings["queue.check_interval"], visit.context.now_ns()
        range_id = visit.descriptor.range_id
        if not visit.leading:
            visit.context.questions.pop(range_id, None)  # the range's leaseholder asks
            return False
        if not interval or len(visit.descriptor.replicas) < 2:
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
        context, here = visit.context, visit.descriptor
        checksum_id = context.runtime.rng.bytes(CHECKSUM_ID_BYTES)
        await context.admin.ask(requests.ComputeChecksum(checksum_id), at=here.start)
        votes = await self._gather(visit, checksum_id)
        verdict = judge(votes)
        if verdict.question:
            probe("queues.check_asks")
            counts = ", ".join(f"n{node}: {v.versions} of {v.expected} versions" for node, v in sorted(votes.items()))
            context.ask(here.range_id, f"r{here.range_id}: {verdict.question} ({counts}); nothing was changed")
        elif verdict.wrong:
            probe("queues.check_mismatch")
            context.report(f"r{here.range_id}: the replicas on {verdict.wrong} differ from the others; quarantined")
            await self._quarantine(visit, verdict.wrong, right=[n for n in votes if n not in verdict.wrong])
        elif len(votes) == len(here.replicas):
            context.questions.pop(here.range_id, None)
        return {node: vote.digest for node, vote in votes.items()}

    async def _gather(self, visit: Visit, checksum_id: bytes) -> dict[NodeId, Examination]:
        """What each replica found; one that has failed, or whose node does not answer, has no vote."""
        context, here = visit.context, visit.descriptor
        waiting = [n for n in here.replicas if visit.view.state(n) in (NodeState.LIVE, NodeState.DRAINING)]
        votes: dict[NodeId, Examination] = {}
        deadline = Deadline(context.runtime.clock, seconds=DIGEST_WAIT_S)
        while waiting and not deadline.passed:
            for node in list(waiting):
                try:
                    reply = await context.peers.checksum(node, here.range_id, checksum_id)
                except SlackwaterError:
                    waiting.remove(node)
                    continue
                if reply.found is not None:
                    votes[node] = reply.found
                if reply.found is not None or reply.failure:
                    waiting.remove(node)
            if waiting:
                await context.runtime.clock.sleep(POLL_S)
        return votes

    async def _quarantine(self, visit: Visit, wrong: list[NodeId], *, right: list[NodeId]) -> None:
        context, here = visit.context, visit.descriptor
        if context.node_id in wrong:
            await context.admin.transfer_lease(here.start, right[0])
        for node in wrong:
            await context.peers.quarantine(node, here.range_id, reason="its state differs from the other replicas'")
