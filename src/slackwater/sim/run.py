"""One run: a seed in, a verdict out.

    scenario drawn ──► safety phase ──► heal ──► liveness phase ──► judgement
                       faults, workloads,        bounded time to    workloads' checks and
                       online oracles            recover            oracles' verdicts

Exit codes
    0  passed
    2  a program crashed, or an invariant broke while running
    3  the healed world did not recover in time, or stopped moving
    4  the recorded history is wrong
    5  the same seed did two different things (given by the runner, which compares runs)

The run sits behind the fence: real time, chance, threads and sockets raise. Everything it did is in `trace_hash`.
"""

from __future__ import annotations

import gc
import traceback
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec

from slackwater import hooks
from slackwater.errors import InvariantViolation, SlackwaterError
from slackwater.settings import Settings
from slackwater.sim import faults
from slackwater.sim.checkers.violation import Violation
from slackwater.sim.edits import NO_EDITS, Edits
from slackwater.sim.fence import fenced
from slackwater.sim.handles import NS, describe
from slackwater.sim.loop import EscapedSimulation, Livelock
from slackwater.sim.mutants import applied
from slackwater.sim.scenario import Play, Scenario, find_planted, find_play, with_bug
from slackwater.sim.tape import Tape
from slackwater.sim.world import OracleFailure, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.sim.handles import SimHandle
    from slackwater.sim.scenario import Oracle, Workload

EXIT_PASS, EXIT_CRASH, EXIT_LIVENESS, EXIT_CORRECTNESS, EXIT_NONDETERMINISM = 0, 2, 3, 4, 5
SETTLE_STEP_NS = NS // 4
EVIDENCE_CHARS_MAX = 2_000
DEFAULT_DURATION_S = 60.0
UNRETRIEVED_MAX = 20


class SimJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to run."""

    seed: int
    play: str = "kernel"
    planted: tuple[str, ...] = ()
    canary: bool = False
    duration_s: float = DEFAULT_DURATION_S
    attempt: int = 0
    edits: Edits = NO_EDITS
    story: bool = False
    """Whether the result tells everything that happened, not only the faults."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What happened."""

    job: SimJob
    exit_code: int
    oracle: str
    kind: str
    summary: str
    evidence: str
    phase: str
    trace_hash: str
    steps: int
    sim_seconds: float
    real_seconds: float
    scenario: str
    faults: tuple[str, ...]
    fault_counts: dict[str, int]
    fault_kinds_enabled: tuple[str, ...]
    probes: dict[str, int]
    strays: int = 0
    operations: tuple[str, ...] = ()
    """What clients and operators began, by name."""
    nodes: int = 0
    settings: tuple[str, ...] = ()
    """Settings that are not at their defaults."""
    fault_names: tuple[str, ...] = ()
    """The names of `faults`, in order."""
    levels: dict[str, tuple[float, float]] = {}
    """Bounded queues and caches: the most each ever held, and the most it may."""
    events: tuple[str, ...] = ()
    """What happened when; only if the job asked for the story."""
    unretrieved: tuple[str, ...] = ()
    """Errors of tasks and futures that were never retrieved."""

    @property
    def passed(self) -> bool:
        """Whether everything held."""
        return self.exit_code == EXIT_PASS


class Canary:
    """An oracle that always fails on seed 0, to prove that failures are reported."""

    name = "canary"

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def attach(self, world: World) -> None:
        """Nothing to watch."""

    def judge(self, world: World) -> list[Violation]:
        """Fails on seed 0 and on no other."""
        if self._seed != 0:
            return []
        return [Violation("canary", "canary", "the canary always fails on seed 0: failures are reported", {})]


def run_job(job: SimJob, *, tape: Tape | None = None, trace: Callable[[str], None] | None = None) -> Result:
    """Run one seed behind the fence."""
    play = find_play(job.play)
    bugs = [find_planted(name) for name in job.planted]
    tape = tape or Tape(job.seed)
    scenario = play.draw(tape, job.duration_s)
    for bug in bugs:
        scenario = with_bug(scenario, bug)
    scenario = job.edits.apply(scenario)
    began = perf_counter()
    with applied(job.planted), fenced():
        run = _Run(job, play, scenario, tape, trace)
        try:
            run.go()
        finally:
            hooks.install()
            run.world.loop.dispose()
    return run.result(perf_counter() - began)


class _Run:
    """The run in progress."""

    def __init__(
        self, job: SimJob, play: Play, scenario: Scenario, tape: Tape, trace: Callable[[str], None] | None
    ) -> None:
        self.job = job
        self.play = play
        self.scenario = scenario
        settings = Settings(scenario.settings)
        self.world = World(tape, settings, schedule=scenario.schedule, buggify=scenario.buggify, edits=job.edits)
        self.world.telling = job.story
        self.workloads: list[Workload] = play.workloads()
        self.oracles: list[Oracle] = play.oracles()
        if job.canary:
            self.oracles.append(Canary(job.seed))
        self.phase = "setup"
        self.exit_code = EXIT_PASS
        self.violation: Violation | None = None
        self.trace_hash = ""
        if trace is not None:
            self._observe(trace)

    def go(self) -> None:
        """All phases; the first failure ends it."""
        world = self.world
        world.install_hooks()
        try:
            self._phases()
        except OracleFailure as failure:
            self._failed(EXIT_CRASH, failure.violation, failure.__cause__)
        except InvariantViolation as failure:
            summary = f"{failure.message}: {_facts(failure)}"
            self._failed(EXIT_CRASH, Violation(failure.rule, "invariant", summary, {}), failure)
        except Livelock as failure:
            self._failed(EXIT_LIVENESS, Violation("liveness", "livelock", str(failure), {}), None)
        except EscapedSimulation as failure:
            self._failed(EXIT_CRASH, Violation("fence", "escaped", str(failure), {}), failure)
        except Exception as failure:  # whatever else escapes the programs is a crash of the run
            summary = f"{type(failure).__name__}: {failure}"
            self._failed(EXIT_CRASH, Violation("I-31", "unhandled-exception", summary, {}), failure)
        self.trace_hash = world.loop.trace_hash

    def _phases(self) -> None:
        world, scenario = self.world, self.scenario
        for workload in self.workloads:
            workload.setup(world, scenario)
        for oracle in self.oracles:
            oracle.attach(world)
        nemesis = faults.nemesis(world, scenario.faults, mean_ns=scenario.fault_mean_ns, upto_ns=scenario.safety_ns)
        world.spawn(nemesis, name="nemesis")
        self.phase = "safety"
        world.loop.run(upto_ns=scenario.safety_ns)
        self.phase = "liveness"
        world.heal()
        self._settle()
        if self.violation is None:
            self.phase = "judgement"
            self._judge()

    def _settle(self) -> None:
        """The healed world keeps its light traffic for the rest of its time, and must recover within bounds."""
        world = self.world
        latest_ns = max(self.scenario.duration_ns, world.loop.now_ns) + round(self.play.settle_s * NS)
        world.loop.run(upto_ns=self.scenario.duration_ns)
        while True:
            missing = [text for workload in self.workloads if (text := workload.unsettled(world)) is not None]
            if not missing:
                return
            if world.loop.now_ns >= latest_ns:
                rule = missing[0].split()[0] if missing[0].startswith("I-") else "liveness"
                self._failed(EXIT_LIVENESS, Violation(rule, "unsettled", "; ".join(missing), {}), None)
                return
            world.loop.run(upto_ns=world.loop.now_ns + SETTLE_STEP_NS)

    def _judge(self) -> None:
        gc.collect()
        if self.world.loop.unretrieved:
            text = f"a task or future failed and its error was never retrieved: {self.world.loop.unretrieved[0]}"
            self._failed(EXIT_CRASH, Violation("I-31", "unretrieved-error", text, {}), None)
            return
        judges = [*(w.check for w in self.workloads), *(o.judge for o in self.oracles)]
        for judge in judges:
            for violation in judge(self.world):
                self._failed(EXIT_CORRECTNESS, violation, None)
                return

    def _failed(self, exit_code: int, violation: Violation, cause: BaseException | None) -> None:
        if self.violation is None:
            self.exit_code = exit_code
            if cause is not None:
                lines = "".join(traceback.format_exception(cause)[-3:])
                violation = msgspec.structs.replace(violation, evidence={**violation.evidence, "raised": lines})
            self.violation = violation

    def _observe(self, trace: Callable[[str], None]) -> None:
        loop = self.world.loop

        def observer(handle: SimHandle) -> None:
            trace(f"{loop.steps} {loop.now_ns} {handle.number} {handle.domain.name} {describe(handle)}")

        loop.observer = observer

    def result(self, real_seconds: float) -> Result:
        """What to report."""
        world, violation = self.world, self.violation
        evidence = "" if violation is None else "\n".join(f"{k}: {v}" for k, v in violation.evidence.items())
        return Result(
            job=self.job,
            exit_code=self.exit_code,
            oracle=violation.oracle if violation else "",
            kind=violation.kind if violation else "",
            summary=violation.summary if violation else "",
            evidence=evidence[:EVIDENCE_CHARS_MAX],
            phase=self.phase,
            trace_hash=self.trace_hash,
            steps=world.loop.steps,
            sim_seconds=world.seconds,
            real_seconds=real_seconds,
            scenario=str(self.scenario),
            faults=tuple(map(str, world.faults)),
            fault_counts=faults.counts(world),
            fault_kinds_enabled=tuple(sorted(kind.value for kind in self.scenario.faults)),
            probes=dict(sorted(world.probes.items())),
            strays=world.tape.strays,
            operations=tuple(world.operations),
            nodes=self.scenario.nodes,
            settings=tuple(self.scenario.settings),
            fault_names=tuple(fault.name for fault in world.faults),
            levels=dict(sorted(world.levels.items())),
            events=tuple(world.events) if self.job.story else (),
            unretrieved=tuple(world.loop.unretrieved[:UNRETRIEVED_MAX]),
        )


def _facts(error: SlackwaterError) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in error.facts.items())
