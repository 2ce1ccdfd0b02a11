"""A client of a simulated cluster: a closed loop of numbered operations.

    c3 ── #11 bank ── think ── #12 list ──X power cut … #13 register ── …

Each operation draws everything it needs from a stream of its own (`op/c3/12`), so that leaving one out of a run leaves
the others as they were (`sim/edits.py`). A client that is started again after a crash goes on with the next number. What it
was doing when it died is never closed by it, so the recorder calls it unknown; its intents and its record are left to
the requests that meet them and to the queues.

What clients can do is a table. A workload adds itself with one line:

    @operation("bank")
    async def _bank(me: Worker, timeout: float) -> None: ...
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from slackwater.errors import AmbiguousResult, SlackwaterError
from slackwater.hooks import probe, tap
from slackwater.sim.handles import NS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from slackwater.sim.checkers import ListPen, TxnPen
    from slackwater.sim.scenarios.cluster_plan import Cluster
    from slackwater.sim.scenarios.cluster_programs import Client
    from slackwater.sim.tape import TapeStream
    from slackwater.txn import Transaction

    Act = TypeVar("Act", bound=Callable[..., Awaitable[Any]])

TIMEOUTS_S = (0.5, 3.0, 3.0, 10.0)
DAWDLE_MEAN_NS = NS // 5


async def finish(pen: TxnPen | ListPen, work: Awaitable[object], ok: Callable[[], None]) -> None:
    """Close a pen by what its client was told; errors go on to the caller."""
    try:
        await work
    except AmbiguousResult:
        probe("cluster.unknown")
        pen.unknown()
        raise
    except SlackwaterError:
        probe("cluster.failed")
        pen.failed()
        raise
    probe("cluster.ok")
    ok()


OPERATIONS: dict[str, Callable[[Worker, float], Awaitable[None]]] = {}
"""What a client can do, by the name that plans draw: `OPERATIONS["feed"] = …` adds one."""


def operation(name: str) -> Callable[[Act], Act]:
    """Put an act of clients into the table."""

    def add(act: Act) -> Act:
        OPERATIONS[name] = act
        return act

    return add


class Worker:
    """One client: draws an operation, does it, writes down what it was told, thinks.

    A client that is started again after a crash goes on with the next number; what it was doing is never closed by it, and
    so is unknown.
    """

    def __init__(self, client: Client, cluster: Cluster, number: int) -> None:
        self.client = client
        self.cluster = cluster
        self.kv = client.kv
        self.number = number
        self.draw: TapeStream = cluster.world.tape.stream(f"workload/{client.runtime.name}")
        self.dawdled_ns = 0
        """Time of the present operation that was the client's own."""
        self._operation = 0
        self._made = 0

    async def main(self) -> None:
        """Work until the traffic ends."""
        cluster, name = self.cluster, self.client.runtime.name
        cluster.busy[name] = "waiting for the cluster"
        await self.client.meet(cluster.early)
        while not cluster.ready:
            await self.client.runtime.clock.sleep(0.1)
        while cluster.traffic:
            self._operation, self._made = cluster.next_operation(name), 0
            draw = self.draw = cluster.world.tape.stream(f"op/{name}/{self._operation}")
            what, timeout, think_ns = (
                draw.pick(cluster.plan.workloads),
                draw.pick(TIMEOUTS_S),
                draw.decay(cluster.plan.think_mean_ns),
            )
            if cluster.world.allows_operation(name, self._operation):
                cluster.busy[name] = what
                cluster.world.story(f"{name} #{self._operation} {what}")
                began_ns, self.dawdled_ns = cluster.world.loop.now_ns, 0
                with suppress(SlackwaterError):  # already written down
                    await OPERATIONS[what](self, timeout)
                tap("sim.operation_ended", self, what, timeout, began_ns)
            await self.client.runtime.clock.sleep(think_ns / NS)
        cluster.busy[name] = ""

    def unique(self) -> bytes:
        """A value that is written once."""
        self._made += 1
        return b"c%d.%d.%d" % (self.number, self._operation, self._made)

    def element(self) -> int:
        """A list element that is appended once."""
        self._made += 1
        return (self.number * 1_000_000 + self._operation) * 1_000 + self._made

    async def dawdle(self) -> None:
        """Some transactions take their time between reading and writing: leases move and others commit meanwhile."""
        if self.draw.chance(1, 4):
            dawdle_ns = self.draw.decay(DAWDLE_MEAN_NS)
            self.dawdled_ns += dawdle_ns
            await self.client.runtime.clock.sleep(dawdle_ns / NS)

    async def txn(
        self, body: Callable[[Transaction, TxnPen], Awaitable[None]], timeout: float, *, nearest: bool = False
    ) -> None:
        """Run a recorded transaction with retries; each attempt starts a clean page."""
        pen = self.cluster.recorder.txn(client=self.number)
        told: list[tuple[int, int]] = []

        async def attempt(txn: Transaction) -> None:
            pen.restart()
            await body(txn, pen)
            ts = await txn.commit()
            told.append((ts, int(txn.state.read_ts)))

        def ok() -> None:
            ts, read_ts = told[-1]
            if pen._writes:
                pen.ok(commit_ts=ts)
            else:
                pen.ok(read_ts=read_ts)

        await finish(pen, self.kv.run(attempt, timeout=timeout, nearest=nearest), ok)
