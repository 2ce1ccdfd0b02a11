"""Sweeps: every `queue.interval`, each range on this node is visited by each queue in turn, in three lanes side by side.

    urgent    glance at the records ──── each range:  nudge ► frozen
    columns   ────────────────────────── each range:  which tables get files of columns (`columns.py`)
    upkeep    look at the cluster ────── each range:  index ► replicate ► split ► merge ► lease ► trim ► check ► txns ► gc

The first queue that changes the range ends the visit: the next sweep sees the result. Whatever a range's clients wait
for, a lease or the end of a merge that its coordinator left behind, is in the urgent lane, because a visit of the other
one may take long: it waits for replicas, snapshots and pushed transactions, some of them on nodes that have just died.

Sweeps come early when there is news: a node joined or began a new life (`wake`, called by liveness), or a queue says
that there is a next step for the range it has just changed (`Visit.again`), such as the second missing replica. At most
PROMPT_SWEEPS_MAX in a row come early, so that queues that undo each other's work do so at their usual pace. While a range
has no lease, and taking it is another node's turn, the urgent lane comes back after TURN_S.

A queue that fails is tried again next time; its failures are counted and the others go on. A queue that *crashes* has a
bug, which is reported to the loop's exception handler and to the operator; this queue then leaves this range alone, for
longer each time. An invariant that a queue found violated in the state of its range stops that replica: it is
quarantined, and the evidence stays. `queue.interval` = 0 pauses everything (tests call `sweep` themselves).
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from slackwater.errors import DamageError, InvariantViolation, SlackwaterError
from slackwater.hooks import probe
from slackwater.routing.parallel import in_parallel
from slackwater.runtime.sync import Event, get_running_loop, timeout
from slackwater.server.queues.check import CheckQueue
from slackwater.server.queues.columns import ColumnsQueue
from slackwater.server.queues.context import Visit, view_cluster, view_from_liveness
from slackwater.server.queues.frozen import FrozenQueue
from slackwater.server.queues.gc import GcQueue
from slackwater.server.queues.index import IndexQueue
from slackwater.server.queues.leases import LeaseQueue, NudgeQueue
from slackwater.server.queues.lost import LostRanges
from slackwater.server.queues.merges import MergeQueue
from slackwater.server.queues.replicate import ReplicateQueue
from slackwater.server.queues.splits import SplitQueue
from slackwater.server.queues.trim import TrimQueue
from slackwater.server.queues.txns import TxnQueue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from slackwater.model.ids import RangeId
    from slackwater.server.queues.context import ClusterView, Queue, QueueContext

URGENT = frozenset({"nudge", "frozen"})
URGENT_AT_ONCE_MAX = 16
"""Ranges of the urgent lane worked on at the same time: most visits do nothing, a few wait for a dead node."""
PAUSED_POLL_S = 1.0
PROMPT_PAUSE_S = 0.1
"""News within this time is dealt with by one sweep."""
PROMPT_SWEEPS_MAX = 32
TURN_S = 1.0
"""How long a node leaves a lease that has no holder to the replicas before it."""
DOUBLINGS_MAX = 10
REST_S_MAX = 600.0
"""The longest a queue leaves a range alone on which it crashed."""
FINDINGS_TOLD_MAX = 5


class Lane:
    """When one of the series of sweeps goes on."""

    def __init__(self) -> None:
        self.news = Event()
        self.early = 0
        """Sweeps in a row that did not wait for their time."""
        self.turn_waits = False
        """Whether the last sweep left a step to another node: then the next one comes within a turn."""


class Queues:
    """Keeps the ranges of one node in order."""

    def __init__(self, context: QueueContext) -> None:
        self.context = context
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
            gc := GcQueue(),
        ]
        self.gc = gc
        self.lost = LostRanges(context)
        self.columns = ColumnsQueue(context)
        self.sweeps = 0
        self.crashes = 0
        self.actions: dict[str, int] = {q.name: 0 for q in self.queues}
        self.failures: dict[str, int] = {q.name: 0 for q in self.queues}
        self._urgent, self._upkeep, self._columns = Lane(), Lane(), Lane()
        self._rests: dict[tuple[str, RangeId], tuple[int, int]] = {}
        """How often a queue crashed on a range, and until when it leaves that range alone."""

    # --- when ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Sweep until closed. Nodes do not sweep in step: each waits a little differently."""
        self.context.liveness.on_news = self.wake
        self.context.scope.spawn(self._keep(self._urgent, self._sweep_urgent), name="urgent queues")
        self.context.store.context.columns.on_want = self._columns.news.set
        self.context.scope.spawn(self._keep(self._columns, self.columns.sweep), name="columns")
        self.context.scope.spawn(self._collect(), name="gc")
        self.context.scope.spawn(self._keep(self._upkeep, self._sweep_upkeep), name="queues")

    async def close(self) -> None:
        """End every sweep: after this, no queue writes to the store."""
        await self.context.scope.close()

    async def _collect(self) -> None:
        while True:
            await self._guarded(partial(self.gc.run, self.context))
            await self.context.runtime.clock.sleep(PAUSED_POLL_S)

    def wake(self) -> None:
        """Have the next sweep begin soon, because there is news."""
        self._urgent.news.set()
        self._upkeep.news.set()

    async def _keep(self, lane: Lane, sweep: Callable[[], Awaitable[None]]) -> None:
        while True:
            if await self._wait(lane):
                await self._guarded(sweep)

    async def _wait(self, lane: Lane) -> bool:
        """Wait until it is time, or there is news; returns whether to sweep now."""
        rng, clock = self.context.runtime.rng, self.context.runtime.clock
        interval = self.context.settings["queue.interval"]
        if not interval:
            await clock.sleep(PAUSED_POLL_S)
            return False
        if lane.early >= PROMPT_SWEEPS_MAX:
            lane.news.clear()
        if lane.turn_waits:
            interval, lane.turn_waits = min(interval, TURN_S), False
        with suppress(TimeoutError):
            async with timeout(interval * (768 + rng.below(512)) / 1024):
                await lane.news.wait()
        if lane.news.is_set():
            probe("queues.prompt")
            lane.early += 1
            await clock.sleep(PROMPT_PAUSE_S)
            lane.news.clear()
        else:
            lane.early = 0
        return bool(self.context.settings["queue.interval"])

    async def _guarded(self, sweep: Callable[[], Awaitable[None]]) -> None:
        try:
            await sweep()
        except SlackwaterError:
            probe("queues.sweep_failed")
        except Exception as error:
            self._crashed("sweep", error)

    # --- what ----------------------------------------------------------------------------------------------------------

    async def sweep(self, *only: str) -> None:
        """Visit every range here once, with all queues or only those named."""
        chosen = [q for q in self.queues if not only or q.name in only]
        if not only or self.lost.name in only:
            # First, and by the liveness records alone: the configuration may be in a range that is lost.
            # Where the index of ranges cannot be read, the ranges here are seen to all the same.
            with suppress(SlackwaterError):
                await self.lost.sweep(view_from_liveness(self.context))
        await self._sweep(
            await view_cluster(self.context), chosen, limit=int(self.context.settings["queue.concurrency"])
        )

    async def _sweep_upkeep(self) -> None:
        await self.sweep(*(q.name for q in self.queues if q.name not in URGENT), self.lost.name)

    async def _sweep_urgent(self) -> None:
        chosen = [q for q in self.queues if q.name in URGENT]
        await self._sweep(view_from_liveness(self.context), chosen, limit=URGENT_AT_ONCE_MAX)

    async def _sweep(self, view: ClusterView, queues: list[Queue], *, limit: int) -> None:
        works = [partial(self._visit, range_id, view, queues) for range_id in sorted(self.context.store.replicas)]
        await in_parallel(self.context.scope, works, limit=limit, name="visit")
        self.sweeps += 1

    async def _visit(self, range_id: RangeId, view: ClusterView, queues: list[Queue]) -> None:
        replica = self.context.store.replicas.get(range_id)
        if replica is None:
            return
        visit = Visit(self.context, replica, view)
        for queue in queues:
            if self.context.store.replicas.get(range_id) is not replica or replica.failure is not None:
                return
            changed = await self._process(queue, visit, range_id)
            if visit.again:
                self.wake()
            if visit.waits_its_turn:
                self._urgent.turn_waits = True
            if changed:
                self.actions[queue.name] += 1
                return

    async def _process(self, queue: Queue, visit: Visit, range_id: RangeId) -> bool:
        """Let one queue look at one range; whether it changed the range. Nothing a queue does ends the node."""
        crashes, rests_until = self._rests.get((queue.name, range_id), (0, 0))
        if self.context.now_ns() < rests_until:
            return False
        try:
            changed = await queue.process(visit)
        except Exception as error:
            self.failures[queue.name] += 1
            what = f"{queue.name} of r{range_id}"
            if isinstance(error, SlackwaterError) and not _found_broken(error):
                probe(f"queues.{queue.name}_failed")
                if isinstance(error, DamageError):
                    self.context.store.read_failed(range_id, error)
                self.context.report(f"{what}: {error}")
                return False
            if isinstance(error, SlackwaterError):
                visit.replica.quarantine(str(error))
            rest_s = min(
                REST_S_MAX, max(1.0, self.context.settings["queue.interval"]) * 2 ** min(crashes, DOUBLINGS_MAX)
            )
            self._rests[queue.name, range_id] = crashes + 1, self.context.now_ns() + int(rest_s * 1e9)
            self._crashed(what, error)
            return False
        self._rests.pop((queue.name, range_id), None)
        return changed

    def _crashed(self, what: str, error: Exception) -> None:
        """A bug: say so, keep what is needed to find it, and go on."""
        probe("queues.crashed")
        self.crashes += 1
        self.context.report(f"{what} crashed: {type(error).__name__}: {error}")
        get_running_loop().call_exception_handler({"message": f"the queue {what} crashed", "exception": error})

    def status(self) -> str:
        """A line for logs and the console, and the newest findings."""
        done = " ".join(f"{name}={n}" for name, n in self.actions.items() if n)
        failed = " ".join(f"{name}={n}" for name, n in self.failures.items() if n)
        findings = [f"finding: {finding}" for finding in self.context.findings[-FINDINGS_TOLD_MAX:]]
        line = f"queues sweeps={self.sweeps} done=[{done}] failed=[{failed}] crashes={self.crashes}"
        return "\n".join([line, *findings])


def _found_broken(error: SlackwaterError) -> bool:
    """Whether an invariant of the range's own state is violated here; another node's finding is that node's."""
    return isinstance(error, InvariantViolation) and error.rule.startswith("I-") and not error.remote
