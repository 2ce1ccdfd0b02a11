"""Many seeds on all cores, and the proof that each means one thing.

    round 1   every seed once, on whichever worker is free; 5 % of them twice, on two workers: two processes, hash seeds, heaps
    round 2   every failure on another worker
    round 3   every failure a third time, on yet another worker

A worker is a process (`sim/worker.py`); a thread of this process waits for it. A trace hash that differs between two
runs of one seed is a mismatch: the simulator is broken, and that is reported before anything else.

Only round 1 counts towards simulated time: the same seed twice on one commit proves nothing more about the system.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec

from slackwater.sim.run import EXIT_NONDETERMINISM, Result, SimJob

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DOUBLED_ONE_IN = 20
CAMPAIGN_CHUNK = 240
WORKERS_MIN = 2
"""Two even on one core: a seed is doubled in another process."""


class WorkerProcess:
    """A worker process and the jobs given to it."""

    def __init__(self, number: int) -> None:
        self.number = number
        environment = {**os.environ, "PYTHONHASHSEED": str(1 + 7919 * number)}
        command = [sys.executable, "-m", "slackwater.sim.worker", str(number)]
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._decode = msgspec.json.Decoder(Result).decode

    def run(self, job: SimJob) -> Result:
        """Run one job and wait for it."""
        pipe_in, pipe_out = self._process.stdin, self._process.stdout
        assert pipe_in is not None
        assert pipe_out is not None
        pipe_in.write(msgspec.json.encode(job) + b"\n")
        pipe_in.flush()
        line = pipe_out.readline()
        if not line:
            code = self._process.wait()
            message = f"worker {self.number} ended with {code} while running seed {job.seed}: run it alone with --seed"
            raise RuntimeError(message)
        return self._decode(line)

    def close(self) -> None:
        """Let the process end."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()


class RunSummary(msgspec.Struct, kw_only=True):
    """The verdict on many seeds."""

    seeds: int
    failed: int
    sim_seconds: float
    real_seconds: float
    doubled: int
    mismatches: int
    steps: int
    faults: int
    failed_seeds: list[int]
    exit_code: int
    fault_counts: dict[str, int]
    fault_reach: dict[str, float]
    """Of the seeds that enabled a fault kind, the share in which it fired."""
    probes: dict[str, int]
    """In how many seeds each probe was hit."""
    levels: dict[str, float]
    """How full each bounded queue or cache ever was, as a share of its bound."""


class Runner:
    """Workers, and what they found. Use as a context manager."""

    def __init__(self, *, workers: int | None = None) -> None:
        count = max(WORKERS_MIN, workers or len(os.sched_getaffinity(0)))
        self._workers = [WorkerProcess(number) for number in range(count)]

    @property
    def width(self) -> int:
        """How many jobs run at the same time."""
        return len(self._workers)

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *exc: object) -> None:
        for worker in self._workers:
            worker.close()

    def map(self, jobs: Sequence[SimJob], *, avoiding: dict[int, int] | None = None) -> list[tuple[Result, int]]:
        """Run jobs on free workers, job i never on worker `avoiding[i]`; results in order, each with its worker."""
        avoiding = avoiding or {}
        queues: list[queue.SimpleQueue[int]] = [queue.SimpleQueue() for _ in self._workers]
        shared: queue.SimpleQueue[int] = queue.SimpleQueue()
        for index in range(len(jobs)):
            if index in avoiding:
                queues[(avoiding[index] + 1) % len(queues)].put(index)
            else:
                shared.put(index)
        done: list[tuple[Result, int] | None] = [None] * len(jobs)
        errors: list[BaseException] = []

        def serve(worker: WorkerProcess) -> None:
            try:
                while (index := _next(queues[worker.number], shared)) is not None and not errors:
                    done[index] = (worker.run(jobs[index]), worker.number)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=serve, args=(worker,)) for worker in self._workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return [item for item in done if item is not None]

    def campaign(
        self,
        jobs: Sequence[SimJob],
        *,
        on_failure: Callable[[Result, list[Result]], None] = lambda _result, _again: None,
    ) -> RunSummary:
        """All three rounds."""
        began = perf_counter()
        results: list[Result] = []
        doubled = mismatches = 0
        for begin in range(0, len(jobs), CAMPAIGN_CHUNK):  # in chunks, so that a failure is reported in minutes
            chunk = jobs[begin : begin + CAMPAIGN_CHUNK]
            chosen = [i for i in range(len(chunk)) if i % DOUBLED_ONE_IN == 0]
            first, second = self._with_doubles(chunk, chosen)
            failed = [i for i, (result, _) in enumerate(first) if not result.passed]
            again: dict[int, list[tuple[Result, int]]] = {i: [first[i]] for i in sorted({*chosen, *failed})}
            for i, run in zip(chosen, second, strict=True):
                again[i].append(run)
            self._repeat(chunk, again, [i for i in failed if i not in chosen])
            self._repeat(chunk, again, failed)
            mismatched = [i for i, runs in again.items() if len({r.trace_hash for r, _ in runs}) > 1]
            for i in sorted({*failed, *mismatched}):
                on_failure(first[i][0], [result for result, _ in again[i][1:]])
            results.extend(result for result, _ in first)
            doubled += len(chosen)
            mismatches += len(mismatched)
        return _summary(results, doubled=doubled, mismatches=mismatches, took_s=perf_counter() - began)

    def _with_doubles(
        self, jobs: Sequence[SimJob], chosen: Sequence[int]
    ) -> tuple[list[tuple[Result, int]], list[tuple[Result, int]]]:
        """Every job once, and the chosen ones a second time, each of the two on a worker of its own."""
        doubles = [msgspec.structs.replace(jobs[i], attempt=1) for i in chosen]
        avoiding = {i: at + self.width - 1 for at, i in enumerate(chosen)}
        avoiding |= {len(jobs) + at: at for at in range(len(chosen))}
        runs = self.map([*jobs, *doubles], avoiding={i: worker % self.width for i, worker in avoiding.items()})
        return runs[: len(jobs)], runs[len(jobs) :]

    def _repeat(self, jobs: Sequence[SimJob], again: dict[int, list[tuple[Result, int]]], indexes: list[int]) -> None:
        repeats = [msgspec.structs.replace(jobs[i], attempt=len(again[i])) for i in indexes]
        avoiding = {at: again[i][-1][1] for at, i in enumerate(indexes)}
        for i, run in zip(indexes, self.map(repeats, avoiding=avoiding), strict=True):
            again[i].append(run)


def _next(own: queue.SimpleQueue[int], shared: queue.SimpleQueue[int]) -> int | None:
    for source in (own, shared):
        try:
            return source.get_nowait()
        except queue.Empty:
            continue
    return None


def _summary(results: list[Result], *, doubled: int, mismatches: int, took_s: float) -> RunSummary:
    failed = [result for result in results if not result.passed]
    fired: dict[str, int] = {}
    enabled: dict[str, int] = {}
    totals: dict[str, int] = {}
    probes: dict[str, int] = {}
    levels: dict[str, float] = {}
    for result in results:
        for kind in result.fault_kinds_enabled:
            enabled[kind] = enabled.get(kind, 0) + 1
            fired[kind] = fired.get(kind, 0) + (kind in result.fault_counts)
        for kind, count in result.fault_counts.items():
            totals[kind] = totals.get(kind, 0) + count
        for probe in result.probes:
            probes[probe] = probes.get(probe, 0) + 1
        for name, (size, bound) in result.levels.items():
            levels[name] = max(levels.get(name, 0.0), round(size / bound, 3) if bound else 0.0)
    exit_code = failed[0].exit_code if failed else 0
    return RunSummary(
        seeds=len(results),
        failed=len(failed),
        sim_seconds=round(sum(r.sim_seconds for r in results), 3),
        real_seconds=round(took_s, 3),
        doubled=doubled,
        mismatches=mismatches,
        steps=sum(r.steps for r in results),
        faults=sum(len(r.faults) for r in results),
        failed_seeds=[result.job.seed for result in failed],
        exit_code=EXIT_NONDETERMINISM if mismatches else exit_code,
        fault_counts=dict(sorted(totals.items())),
        fault_reach={kind: round(fired[kind] / count, 3) for kind, count in sorted(enabled.items())},
        probes=dict(sorted(probes.items())),
        levels=dict(sorted(levels.items())),
    )
