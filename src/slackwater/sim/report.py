"""What a person reads after a run: one line when it passed, the whole story when it did not.

FAIL seed=8812340917 phase=safety t=41.306s step=118 402 exit=2
  I-06  n1 r2 says it applied up to 412 but holds 130 entries of 131
  faults so far  partition(n2|n1 n3) 35.0–39.7 · pause(n2) 38.1–40.0
  trace 7c1e…  probes hit: kernel.repeat_dropped, sim.log.answer_lost
  scenario nodes=3 clients=2 schedule=uniform faults=9 settings: defaults
replay   make sim-replay SEED=8812340917
runs     3 of 3 agree
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.sim.scenario import default_play

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.sim.run import Result, SimJob

FAULTS_SHOWN_MAX = 12
PROBES_SHOWN_MAX = 12
TRACE_SHOWN = 8


def replay_command(job: SimJob, *, default_duration_s: float = 60.0) -> str:
    """How to see it again."""
    extras = []
    if job.play != default_play(job.seed):
        extras.append(f"--scenario {job.play}")
    if job.planted:
        extras.append(f"--planted {' '.join(job.planted)}")
    if job.canary:
        extras.append("--canary")
    if job.duration_s != default_duration_s:
        extras.append(f"--duration {job.duration_s:g}")
    if extras:
        return f"slackwater sim --replay {job.seed} {' '.join(extras)}   (--shrink makes it small)"
    return f"make sim-replay SEED={job.seed}   (make sim-shrink SEED={job.seed} makes it small)"


def headline(result: Result) -> str:
    """One line."""
    steps = f"{result.steps:,}".replace(",", " ")
    verdict = "pass" if result.passed else "FAIL"
    where = f"phase={result.phase} t={result.sim_seconds:.3f}s step={steps} exit={result.exit_code}"
    return f"{verdict} seed={result.job.seed} {where}"


def failure_report(result: Result, repeats: Sequence[Result] = ()) -> str:
    """The story of a failure; `repeats` are further runs of the same job."""
    lines = [headline(result), f"  {result.oracle}  {result.summary}"]
    lines.extend(f"        {line}" for line in result.evidence.splitlines())
    shown = result.faults[-FAULTS_SHOWN_MAX:]
    earlier = f"({len(result.faults) - len(shown)} earlier) · " if len(result.faults) > len(shown) else ""
    lines.append(f"  faults so far  {earlier}{' · '.join(shown) or 'none'}")
    probes = list(result.probes)[:PROBES_SHOWN_MAX]
    lines.append(f"  trace {result.trace_hash[:TRACE_SHOWN]}…  probes hit: {', '.join(probes) or 'none'}")
    lines.append(f"  scenario {result.scenario}")
    lines.append(f"replay   {replay_command(result.job)}")
    if repeats:
        agree = 1 + sum(r.trace_hash == result.trace_hash for r in repeats)
        verdict = "agree" if agree == len(repeats) + 1 else "agree: NONDETERMINISM, the simulation itself is broken"
        lines.append(f"runs     {agree} of {len(repeats) + 1} {verdict}")
    return "\n".join(lines)
