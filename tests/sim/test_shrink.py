"""A failing seed is made small: the same oracle, far fewer operations and faults, within the budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.sim import timeline
from slackwater.sim.command import main
from slackwater.sim.edits import Edits
from slackwater.sim.run import Result, SimJob, run_job
from slackwater.sim.scenario import load
from slackwater.sim.shrink import Shrinker

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

load()


def run(jobs: Sequence[SimJob]) -> list[Result]:
    return [run_job(job) for job in jobs]


def test_a_planted_bug_is_shrunk_to_what_it_needs() -> None:
    oracle = "I-18"
    jobs = (SimJob(seed=seed, play="cluster", planted=("X-NO-REFRESH",), duration_s=24.0) for seed in range(8))
    failure = next(result for job in jobs if not (result := run_job(job)).passed)
    assert failure.oracle == oracle
    shrunk = Shrinker(failure, run, runs_max=60, seconds_max=1e9).shrink()
    assert shrunk.last.oracle == oracle
    assert len(failure.operations) >= 30, "there was something to remove"
    assert len(shrunk.last.operations) <= 0.2 * len(failure.operations), shrunk.sentence()
    assert len(shrunk.last.faults) <= len(failure.faults)
    assert shrunk.runs <= 60
    again = run_job(shrunk.job)
    assert (again.oracle, again.trace_hash) == (oracle, shrunk.last.trace_hash), (
        "the small run is as exact as the large"
    )


def test_a_run_keeps_what_is_not_left_out() -> None:
    job = SimJob(seed=3, play="kernel", duration_s=12.0)
    whole = run_job(job)
    kept = whole.operations[::3]
    part = run_job(msgspec.structs.replace(job, edits=Edits(operations=kept, faults=())))
    assert part.passed
    assert set(part.operations) <= set(kept)
    assert len(part.operations) >= 1
    assert part.faults == ()
    assert run_job(msgspec.structs.replace(job, edits=Edits())).trace_hash == whole.trace_hash


def test_the_shrinker_stops_at_its_budget_and_takes_only_the_same_oracle() -> None:
    failure = msgspec.structs.replace(
        run_job(SimJob(seed=1, play="kernel", duration_s=8.0)),
        exit_code=4,
        oracle="I-18",
        operations=tuple(f"c1/{i}" for i in range(64)),
        fault_names=(),
        fault_kinds_enabled=(),
        settings=(),
        nodes=1,
    )
    asked: list[SimJob] = []

    def pretend(jobs: Sequence[SimJob]) -> list[Result]:
        """Fails with I-18 as long as operation 40 is there, and with another oracle when it is not."""
        asked.extend(jobs)
        out = []
        for job in jobs:
            kept = job.edits.operations if job.edits.operations is not None else failure.operations
            oracle = "I-18" if "c1/40" in kept else "I-19"
            out.append(msgspec.structs.replace(failure, job=job, oracle=oracle, operations=kept))
        return out

    small = Shrinker(failure, pretend, width=2).shrink()
    assert small.last.operations == ("c1/40",)
    assert small.runs == len(asked) <= 200
    asked.clear()
    hasty = Shrinker(failure, pretend, width=2, runs_max=5).shrink()
    assert hasty.runs == len(asked) <= 5
    assert "c1/40" in hasty.last.operations
    late = Shrinker(failure, pretend, now=iter([0.0, *([999.0] * 1000)]).__next__).shrink()
    assert (late.runs, late.last) == (0, failure)


def test_the_command_saves_a_case_and_a_timeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--scenario", "kernel", "--planted", "K01", "--duration", "8", "--save", str(tmp_path), "--runs", "8"]
    seed = next(s for s in range(8) if not run_job(SimJob(seed=s, planted=("K01",), duration_s=8.0)).passed)
    assert main(["--replay", str(seed), "--shrink", *common]) != 0
    out = capsys.readouterr().out
    assert "shrunk   " in out
    assert "timeline" in out
    case, page = tmp_path / f"{seed}.kernel.json", tmp_path / f"{seed}.kernel.html"
    assert "L-1" in page.read_text()
    assert main(["--case", str(case)]) != 0
    assert "L-1" in capsys.readouterr().out
    case.write_text("{}")
    assert main(["--case", str(case)]) == 64
    assert main(["--replay", "0", "--shrink", "--scenario", "kernel", "--duration", "8"]) == 0
    assert "nothing to shrink" in capsys.readouterr().out


def test_a_timeline_tells_every_event_of_every_machine() -> None:
    result = run_job(SimJob(seed=3, play="kernel", duration_s=12.0, story=True))
    told = timeline.rows(result)
    assert {machine for _, machine, _ in told} >= {"n1", "c1", "world"}
    assert [float(at) for at, _, _ in told] == sorted(float(at) for at, _, _ in told)
    assert timeline.text(result).count("\n") == len(told) - 1
    assert "<th>n1</th>" in timeline.page(result)
