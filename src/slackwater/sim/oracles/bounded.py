"""An operation ends within its caller's deadline, whatever is dead (I-33).

    operation ── timeout ──────────────┐ slack
    |  calls, retries, settling, undoing|    | here it has ended, with an answer or an error

Watched at the clients: how long each operation took in true time, against the timeout it was given. What the client itself
spent (a pause of its machine, its own dawdling between two reads) is its own time and is taken off. An operation that never
ends is seen in the end: its client is still busy, and the run does not settle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.hooks import probe
from slackwater.sim.faults import FaultKind
from slackwater.sim.handles import NS
from slackwater.sim.oracles.closing import listen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.sim.checkers.violation import Violation
    from slackwater.sim.scenarios.cluster_worker import Worker
    from slackwater.sim.world import World

SLACK_S = 1.0
"""Commit-wait on a leading span, timers of a clock that runs slow, and the last message home."""
CALLS = {"rows": 1, "brief": 5, "bank": 1, "ring": 1, "fork": 1, "list": 1, "global": 1, "audit": 1, "register": 2}
"""Operations that are watched, and how many calls, one after the other, each may make."""


class Bounded:
    """I-33."""

    name = "I-33"

    def attach(self, world: World) -> None:
        """Be told of every operation that ended."""
        self.world = world
        listen(world, "sim.operation_ended", self._ended)

    def judge(self, world: World) -> Iterable[Violation]:
        """Everything was judged online."""
        return ()

    def _ended(self, worker: Worker, what: str, timeout_s: float, began_ns: int) -> None:
        calls = CALLS.get(what)
        if calls is None:
            return
        name, now_ns = worker.client.runtime.name, self.world.loop.now_ns
        took_ns = now_ns - began_ns - worker.dawdled_ns - self._paused_ns(name, began_ns)
        if took_ns > timeout_s * NS:
            probe("bounded.slack_used")
        bound_s = calls * (timeout_s + SLACK_S)
        if took_ns > bound_s * NS:
            text = f"{name}: {what} took {took_ns / NS:.2f}s of its caller's time, and its timeout was {timeout_s}s"
            self.world.violated(self.name, "past-its-deadline", text, began_ns=began_ns)

    def _paused_ns(self, name: str, began_ns: int) -> int:
        """How long the client's machine stood still meanwhile."""
        now_ns = self.world.loop.now_ns
        return sum(
            max(0, (now_ns if fault.end_ns is None else fault.end_ns) - max(began_ns, fault.begin_ns))
            for fault in self.world.faults
            if fault.kind is FaultKind.CLIENT_PAUSE and fault.where == name
        )
