"""Sweeps: every `queue.interval`, each range on this node is visited by each queue in turn.

    sweep ── look at the cluster ── for each range, `queue.concurrency` at a time:
                                        nudge ► frozen ► index ► replicate ► split ► merge ► lease ► trim ► check ► txns
                                        the first that changes the range ends the visit: the next sweep sees the result

A queue that fails is tried again next time; its failures are counted and the others go on. `queue.interval` = 0 pauses
everything (the simulator and tests call `sweep` themselves).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from slackwater.errors import SlackwaterError
from slackwater.hooks import probe
from slackwater.routing.parallel import in_parallel
from slackwater.server.queues.check import CheckQueue
from slackwater.server.queues.desk import Visit, look
from slackwater.server.queues.frozen import FrozenQueue
from slackwater.server.queues.index import IndexQueue
from slackwater.server.queues.leases import LeaseQueue, NudgeQueue
from slackwater.server.queues.merges import MergeQueue
from slackwater.server.queues.replicate import ReplicateQueue
from slackwater.server.queues.splits import SplitQueue
from slackwater.server.queues.trim import TrimQueue
from slackwater.server.queues.txns import TxnQueue

if TYPE_CHECKING:
    from slackwater.runtime.seam import RangeId
    from slackwater.server.queues.desk import Desk, Picture, Queue

PAUSED_POLL_S = 1.0
FINDINGS_TOLD_MAX = 5


class Queues:
    """Keeps the ranges of one node in order."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.queues: list[Queue] = [
            NudgeQueue(),
            FrozenQueue(),
            IndexQueue(),
            ReplicateQueue(),
            SplitQueue(),
            MergeQueue(),
            LeaseQueue(),
            TrimQueue(),
            CheckQueue(),
            TxnQueue(),
        ]
        self.sweeps = 0
        self.actions: dict[str, int] = {q.name: 0 for q in self.queues}
        self.failures: dict[str, int] = {q.name: 0 for q in self.queues}

    async def run(self) -> None:
        """Sweep for as long as the node lives. Nodes do not sweep in step: each waits a little differently."""
        rng, clock = self.desk.runtime.rng, self.desk.runtime.clock
        while True:
            interval = self.desk.settings["queue.interval"]
            if not interval:
                await clock.sleep(PAUSED_POLL_S)
                continue
            await clock.sleep(interval * (768 + rng.below(512)) / 1024)
            try:
                await self.sweep()
            except SlackwaterError:
                probe("queues.sweep_failed")

    async def sweep(self, *only: str) -> None:
        """Visit every range here once, with all queues or only those named."""
        picture = await look(self.desk)
        works = [partial(self._visit, range_id, picture, only) for range_id in sorted(self.desk.store.replicas)]
        limit = int(self.desk.settings["queue.concurrency"])
        await in_parallel(self.desk.scope, works, limit=limit, name="visit")
        self.sweeps += 1

    async def _visit(self, range_id: RangeId, picture: Picture, only: tuple[str, ...]) -> None:
        replica = self.desk.store.replicas.get(range_id)
        if replica is None:
            return
        visit = Visit(self.desk, replica, picture)
        for queue in self.queues:
            if self.desk.store.replicas.get(range_id) is not replica or replica.failure is not None:
                return
            if only and queue.name not in only:
                continue
            try:
                changed = await queue.process(visit)
            except SlackwaterError as error:
                probe(f"queues.{queue.name}_failed")
                self.failures[queue.name] += 1
                self.desk.report(f"{queue.name} of r{range_id}: {error}")
                continue
            if changed:
                self.actions[queue.name] += 1
                return

    def status(self) -> str:
        """A line for logs and the console, and the newest findings."""
        done = " ".join(f"{name}={n}" for name, n in self.actions.items() if n)
        failed = " ".join(f"{name}={n}" for name, n in self.failures.items() if n)
        findings = [f"finding: {finding}" for finding in self.desk.findings[-FINDINGS_TOLD_MAX:]]
        return "\n".join([f"queues sweeps={self.sweeps} done=[{done}] failed=[{failed}]", *findings])
