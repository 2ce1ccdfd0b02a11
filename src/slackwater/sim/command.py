"""`slackwater sim`: run seeds, replay one, prove that planted bugs die.

Exit codes: 0 all passed · 2 crash or invariant · 3 liveness · 4 wrong history · 5 nondeterminism · 64 wrong usage.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from slackwater.errors import UsageError
from slackwater.sim.report import failure_report, headline
from slackwater.sim.run import DEFAULT_DURATION_S, EXIT_NONDETERMINISM, Result, SimJob, run_job
from slackwater.sim.runner import Runner, RunSummary
from slackwater.sim.scenario import PLANTED, PLAYS, PlantedBug, default_play, find_planted, find_play, load
from slackwater.sim.shrink import RUNS_MAX, Shrinker
from slackwater.sim.tape import Tape
from slackwater.sim.timeline import page, text

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_SEEDS = 25
PLANTED_SEEDS_MAX = 200
PLANTED_BATCH = 8
TIMELINE_LINES_MAX = 60
EXIT_USAGE = 64
EXIT_SURVIVED = 1

EPILOG = """\
A seed decides everything: how many nodes, which faults when, which settings, in which order things happen. The same
seed on the same commit does the same, step by step, on every machine; the trace hash proves it.

  slackwater sim --seeds 100              100 seeds on all cores; 5 % of them twice, in other processes
  slackwater sim --seeds 100 --start 5000 the seeds 5000 … 5099
  slackwater sim --seed 42 --replay       seed 42 alone, with its timeline, and again in another process
  slackwater sim --replay 42 --shrink     seed 42 made as small as it still fails: a case file and a timeline
  slackwater sim --case FILE --replay     a saved case
  slackwater sim --seed 42 --trace FILE   every step of seed 42, one line each (diff two files to find a divergence)
  slackwater sim --planted                every planted bug; each must be killed by its named oracle
  slackwater sim --planted K02            one planted bug
  slackwater sim --canary                 seed 0 must fail: proves that failures are reported
  slackwater sim --seed 42 --record FILE  keep every choice of the run; --tape FILE plays them back

exit codes: 0 passed · 2 crash or broken invariant · 3 did not recover · 4 wrong history · 5 nondeterminism
            with --planted: 1 when a planted bug survived or was killed by another oracle
"""


def _parser() -> argparse.ArgumentParser:
    scenarios = "; ".join(f"{play.name}: {play.summary}" for play in PLAYS.values())
    parser = argparse.ArgumentParser(
        prog="slackwater sim",
        description="Run the deterministic simulator: whole clusters on simulated time, network, disks, log, clocks.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, metavar="N", help=f"how many seeds to run (default {DEFAULT_SEEDS})")
    parser.add_argument("--start", type=int, default=0, metavar="S", help="the first of them (default 0)")
    parser.add_argument("--seed", type=int, metavar="S", help="run this one seed, in this process")
    parser.add_argument(
        "--replay",
        nargs="?",
        type=int,
        const=True,
        metavar="S",
        help="run seed S, show its faults, and run it twice more",
    )
    parser.add_argument("--shrink", action="store_true", help="with one seed: leave out what its failure does not need")
    parser.add_argument("--runs", type=int, default=RUNS_MAX, metavar="N", help=f"budget of --shrink ({RUNS_MAX})")
    parser.add_argument("--case", type=Path, metavar="FILE", help="run a case that --shrink saved")
    parser.add_argument(
        "--save", type=Path, default=Path("sim-failures"), metavar="DIR", help="where --shrink saves (sim-failures)"
    )
    parser.add_argument(
        "--scenario", metavar="NAME", help=f"what to run (default: a mix, clusters most of all). {scenarios}"
    )
    parser.add_argument(
        "--planted", nargs="?", const="all", metavar="NAME", help="switch on planted bugs; with --seed, in that run"
    )
    parser.add_argument("--canary", action="store_true", help="add an oracle that always fails on seed 0")
    parser.add_argument(
        "--duration", type=float, default=DEFAULT_DURATION_S, metavar="S", help="simulated seconds a run"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: one per core, at least two)")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="with --seed: write every step, one line each")
    parser.add_argument("--record", type=Path, metavar="FILE", help="with --seed: save the tape of choices")
    parser.add_argument("--tape", type=Path, metavar="FILE", help="with --seed: play a saved tape instead of the seed")
    parser.add_argument("--json", action="store_true", help="machine-readable; ends with one summary object")
    return parser


def main(argv: list[str]) -> int:
    """Entry point of the subcommand."""
    load()
    options = _parser().parse_args(argv)
    try:
        if options.scenario is not None:
            find_play(options.scenario)  # here, so that a wrong name is one line and not the end of every worker
        if options.replay is not None and options.replay is not True:
            options.seed = options.replay
        if options.seed is not None or options.case is not None:
            return _one(options)
        if options.planted:
            return _planted(options)
        return _many(options)
    except UsageError as error:
        print(f"slackwater sim: {error}", file=sys.stderr)
        return EXIT_USAGE


def _job(options: argparse.Namespace, seed: int, planted: tuple[str, ...] = ()) -> SimJob:
    return SimJob(
        seed=seed,
        play=options.scenario or default_play(seed),
        planted=planted,
        canary=options.canary,
        duration_s=options.duration,
    )


def _show(value: object) -> None:
    print(msgspec.json.encode(value).decode(), flush=True)


# --- one seed ------------------------------------------------------------------------------------------------------


def _one(options: argparse.Namespace) -> int:
    planted = (options.planted,) if options.planted and options.planted != "all" else ()
    job = _case(options.case) if options.case else _job(options, options.seed, planted)
    if options.shrink:
        return _shrink(options, job)
    tape = Tape.load(options.tape.read_text()) if options.tape else Tape(job.seed, record=options.record is not None)
    lines: list[str] = []
    result = run_job(job, tape=tape, trace=lines.append if options.trace else None)
    if options.trace:
        options.trace.write_text("\n".join(lines) + "\n")
    if options.record:
        options.record.write_text(tape.save())
    repeats = []
    replaying = options.replay is not None
    if replaying:
        with Runner(workers=2) as runner:
            repeats = [again for again, _ in runner.map([job, job], avoiding={0: 0, 1: 1})]
    if options.json:
        _show(result)
    else:
        _tell(result, repeats, timeline=replaying)
    if any(again.trace_hash != result.trace_hash for again in repeats):
        return EXIT_NONDETERMINISM
    return result.exit_code


def _case(path: Path) -> SimJob:
    try:
        return msgspec.json.decode(path.read_bytes(), type=SimJob)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path} is no saved case: {error}") from error


def _shrink(options: argparse.Namespace, job: SimJob) -> int:
    """Make a failing seed small, and save what is left of it."""
    with Runner(workers=options.workers) as runner:

        def run(jobs: Sequence[SimJob]) -> list[Result]:
            return [result for result, _ in runner.map(jobs)]

        failure = run([job])[0]
        if failure.passed:
            print(headline(failure))
            print("nothing to shrink: it passes")
            return 0
        shrunk = Shrinker(failure, run, width=runner.width, runs_max=options.runs).shrink()
        told = run([msgspec.structs.replace(shrunk.job, story=True)])[0]
    options.save.mkdir(parents=True, exist_ok=True)
    stem = options.save / f"{job.seed}.{job.play}"
    case, timeline = stem.with_suffix(stem.suffix + ".json"), stem.with_suffix(stem.suffix + ".html")
    case.write_bytes(msgspec.json.format(msgspec.json.encode(shrunk.job)))
    timeline.write_text(page(told))
    print(failure_report(told))
    print(f"shrunk   {shrunk.sentence()}")
    print(f"saved    {case}   {timeline}   (slackwater sim --case {case} --replay)")
    lines = text(told).splitlines()
    print("\n".join(["timeline", *(f"  {line}" for line in lines[-TIMELINE_LINES_MAX:])]))
    return told.exit_code


def _tell(result: Result, repeats: Sequence[Result], *, timeline: bool) -> None:
    if timeline:
        print(f"scenario {result.scenario}")
        for fault in result.faults:
            print(f"  {fault}")
        for name, (size, bound) in result.levels.items():
            print(f"  at most {size:g} of {bound:g} in {name}")
    if result.passed:
        agree = sum(again.trace_hash == result.trace_hash for again in repeats)
        print(headline(result))
        print(f"  trace {result.trace_hash}" + (f", the same in {agree} of {len(repeats)} repeats" if repeats else ""))
    else:
        print(failure_report(result, repeats))


# --- many seeds ----------------------------------------------------------------------------------------------------


def _many(options: argparse.Namespace) -> int:
    count = DEFAULT_SEEDS if options.seeds is None else options.seeds
    if count < 1:
        raise UsageError("--seeds must be at least 1")
    jobs = [_job(options, options.start + i) for i in range(count)]

    def report(result: Result, repeats: list[Result]) -> None:
        print(failure_report(result, repeats), file=sys.stderr if options.json else sys.stdout, flush=True)

    with Runner(workers=options.workers) as runner:
        summary = runner.campaign(jobs, on_failure=report)
    if options.json:
        _show(summary)
    else:
        print(_sentence(summary))
    return summary.exit_code


def _sentence(summary: RunSummary) -> str:
    hours = summary.sim_seconds / 3600
    speed = summary.sim_seconds / summary.real_seconds if summary.real_seconds else 0.0
    per_100_s = 100 * summary.faults / summary.sim_seconds if summary.sim_seconds else 0.0
    missed = [kind for kind, share in summary.fault_reach.items() if share < 0.9]
    lines = [
        f"{summary.seeds} seeds, {summary.failed} failed, {summary.doubled} doubled, {summary.mismatches} mismatches",
        f"{hours:.2f} simulated hours in {summary.real_seconds:.1f} s ({speed:.0f}x), {per_100_s:.0f} faults per 100 s",
    ]
    if missed:
        lines.append(f"fault kinds that fired in under 90 % of the seeds that enable them: {', '.join(missed)}")
    return "\n".join(lines)


# --- planted bugs --------------------------------------------------------------------------------------------------


class Kill(msgspec.Struct, kw_only=True):
    """How a planted bug died."""

    name: str
    summary: str
    killed_by: str
    expected: str
    seeds: int
    seed: int | None
    ok: bool


def _planted(options: argparse.Namespace) -> int:
    bugs = list(PLANTED.values()) if options.planted == "all" else [find_planted(options.planted)]
    if options.scenario:
        bugs = [bug for bug in bugs if bug.play == options.scenario]
    limit = options.seeds or PLANTED_SEEDS_MAX
    kills = []
    with Runner(workers=options.workers) as runner:
        for bug in bugs:
            kill = _hunt(runner, bug, options, limit)
            kills.append(kill)
            if options.json:
                _show(kill)
            else:
                verdict = f"killed by {kill.killed_by} at seed {kill.seed}" if kill.killed_by else "SURVIVED"
                mark = "ok  " if kill.ok else "BAD "
                print(f"{mark} {kill.name}  {verdict}, expected {kill.expected} ({kill.seeds} seeds)  {kill.summary}")
    return 0 if all(kill.ok for kill in kills) else EXIT_SURVIVED


def _hunt(runner: Runner, bug: PlantedBug, options: argparse.Namespace, limit: int) -> Kill:
    """Seeds in order until one fails."""
    expected = " ".join(bug.expected)
    for begin in range(0, limit, PLANTED_BATCH):
        seeds = range(options.start + begin, options.start + min(begin + PLANTED_BATCH, limit))
        jobs = [SimJob(seed=s, play=bug.play, planted=(bug.name,), duration_s=options.duration) for s in seeds]
        for at, (result, _) in enumerate(runner.map(jobs)):
            if not result.passed:
                return Kill(
                    name=bug.name,
                    summary=bug.summary,
                    killed_by=result.oracle,
                    expected=expected,
                    seeds=begin + at + 1,
                    seed=result.job.seed,
                    ok=result.oracle in bug.expected,
                )
    return Kill(name=bug.name, summary=bug.summary, killed_by="", expected=expected, seeds=limit, seed=None, ok=False)
