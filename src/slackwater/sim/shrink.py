"""Make a failing run smaller, as long as the same oracle still says no.

A seed that fails has drawn five nodes, a dozen kinds of faults and a thousand operations, and most of them have nothing to
do with the failure. The shrinker leaves parts out (`sim/edits.py`) and runs the rest again; a part whose absence does not
matter stays out. In this order, from what makes every later run cheaper to what only makes the report simpler:

    seconds      shorter runs first: each later try costs less
    fault kinds  none, then fewer
    faults       single strikes of the nemesis
    clients      fewer; then fewer operations of those that are left
    size         fewer nodes and ranges; settings back to their defaults; no buggify
    schedule     FIFO instead of a drawn order

Lists are reduced by delta debugging: leave out everything, then halves, then quarters, down to single items.

    c1/1 c1/2 c2/1 c2/2 c3/1 c3/2 …          fails
    ──────────── · ──────────────            without the first half: passes, so it stays for now
    c1/1 c1/2 c2/1 · · ·                      without the second: fails, so it is gone

Leaving out changes timing, so a smaller run may fail in another way: it counts only if the *same oracle* fails (and a world that
does not recover is not the same as one that breaks). The budget is 200 runs or two minutes, whichever ends first; what
has been reached by then is the result. Runs are tried side by side on all workers, and of several that fail the first in
order is taken, so that the result does not depend on which worker was faster.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

import msgspec

from slackwater.sim.run import EXIT_LIVENESS, Result, SimJob
from slackwater.sim.schedule import SchedulePolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from slackwater.sim.edits import Edits

RUNS_MAX = 200
SECONDS_MAX = 120.0
SHORTEST_S = 8.0
SHARES = (0.125, 0.25, 0.5, 0.75)
RANGES_TRIED = (3, 5)

T = TypeVar("T")


class Shrunk(msgspec.Struct, frozen=True, kw_only=True):
    """What the shrinker reached."""

    first: Result
    last: Result
    runs: int
    took_s: float

    @property
    def job(self) -> SimJob:
        """The smallest run that still fails."""
        return self.last.job

    def sentence(self) -> str:
        """One line for the report."""
        operations = f"{len(self.last.operations)} of {len(self.first.operations)} operations"
        faults = f"{len(self.last.faults)} of {len(self.first.faults)} faults"
        seconds = f"{self.last.job.edits.duration_s or self.last.job.duration_s:g} of {self.first.job.duration_s:g} s"
        rest = [part for part in self.job.edits.parts() if part in ("nodes", "ranges", "schedule", "settings")]
        also = f", smaller: {' '.join(rest)}" if rest else ""
        return f"{operations}, {faults}, {seconds}{also}   ({self.runs} runs, {self.took_s:.0f} s)"


class Shrinker:
    """One failing run on its way down."""

    def __init__(
        self,
        failure: Result,
        run: Callable[[Sequence[SimJob]], list[Result]],
        *,
        width: int = 1,
        runs_max: int = RUNS_MAX,
        seconds_max: float = SECONDS_MAX,
        now: Callable[[], float] = perf_counter,
    ) -> None:
        self._first = failure
        self._best = failure
        self._run = run
        self._width = width
        self._runs_left = runs_max
        self._runs_max = runs_max
        self._now = now
        self._began = now()
        self._latest = self._began + seconds_max

    def shrink(self) -> Shrunk:
        """Everything, in order, within the budget."""
        for step in (
            self._seconds,
            self._fault_kinds,
            self._faults,
            self._clients,
            self._operations,
            self._size,
            self._schedule,
        ):
            step()
        runs = self._runs_max - self._runs_left
        return Shrunk(first=self._first, last=self._best, runs=runs, took_s=self._now() - self._began)

    # --- steps -------------------------------------------------------------------------------------------------------

    def _seconds(self) -> None:
        while True:
            now_s = self._edits.duration_s or self._best.job.duration_s
            shorter = [round(now_s * share, 1) for share in SHARES]
            if not self._first_of(self._with(duration_s=s) for s in shorter if s >= SHORTEST_S):
                return

    def _fault_kinds(self) -> None:
        self._reduce(self._best.fault_kinds_enabled, lambda kept: self._with(fault_kinds=kept))

    def _faults(self) -> None:
        self._reduce(self._best.fault_names, lambda kept: self._with(faults=kept))

    def _clients(self) -> None:
        actors = {name.partition("/")[0] for name in self._best.operations}
        some = sum(1 for actor in actors if actor.startswith("c"))
        self._first_of(self._with(clients=n) for n in range(1, some))

    def _operations(self) -> None:
        self._reduce(self._best.operations, lambda kept: self._with(operations=kept))

    def _size(self) -> None:
        self._first_of(self._with(nodes=n) for n in range(1, self._best.nodes))
        self._first_of(self._with(ranges=n) for n in RANGES_TRIED)
        self._reduce(self._best.settings, lambda kept: self._with(settings=kept))
        self._first_of([self._with(buggify=False)])

    def _schedule(self) -> None:
        self._first_of([self._with(schedule=SchedulePolicy.FIFO.value)])

    # --- trying ------------------------------------------------------------------------------------------------------

    @property
    def _edits(self) -> Edits:
        return self._best.job.edits

    def _with(self, **changes: object) -> Edits:
        return msgspec.structs.replace(self._edits, **changes)

    def _reduce(self, items: Sequence[T], edit: Callable[[tuple[T, ...]], Edits]) -> None:
        """Delta debugging: leave out runs of items, long ones first."""
        kept = tuple(items)
        size = len(kept)
        while size:
            at = 0
            while at < len(kept):
                starts = range(at, min(len(kept), at + size * self._width), size)
                fewer = [kept[:i] + kept[i + size :] for i in starts]
                taken = self._first_failing([edit(candidate) for candidate in fewer])
                if taken is None:
                    at += size * self._width
                else:
                    at, kept = starts[taken], fewer[taken]
            size //= 2

    def _first_of(self, candidates: Iterable[Edits]) -> bool:
        """Take the first candidate that fails in the same way."""
        waiting = list(candidates)
        groups = (waiting[i : i + self._width] for i in range(0, len(waiting), self._width))
        return any(self._first_failing(group) is not None for group in groups)

    def _first_failing(self, candidates: Sequence[Edits]) -> int | None:
        if self._runs_left < len(candidates) or self._now() >= self._latest:
            return None
        self._runs_left -= len(candidates)
        jobs = [msgspec.structs.replace(self._first.job, edits=edits) for edits in candidates]
        for at, result in enumerate(self._run(jobs)):
            if self._same(result):
                self._best = result
                return at
        return None

    def _same(self, result: Result) -> bool:
        first = self._first
        # A world that never recovered is not the same failure as one that broke while it ran.
        same_end = result.exit_code == first.exit_code or EXIT_LIVENESS not in (result.exit_code, first.exit_code)
        return not result.passed and result.oracle == first.oracle and same_end
