"""The simulator proves itself: one seed means one thing, failures are reported, planted bugs die by their oracle."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from dataclasses import replace

import msgspec
import pytest

from slackwater.errors import SlackwaterError
from slackwater.runtime.access import ANYBODY
from slackwater.runtime.rpc import Dialer, Identity, Method, RpcServer
from slackwater.sim.command import main
from slackwater.sim.report import failure_report
from slackwater.sim.run import EXIT_CORRECTNESS, EXIT_CRASH, EXIT_LIVENESS, EXIT_NONDETERMINISM, Result, SimJob, run_job
from slackwater.sim.runner import Runner
from slackwater.sim.scenario import PLANTED, Play, find_play, load, register
from slackwater.sim.tape import Tape

load()
SHORT_S = 20.0


@pytest.fixture(scope="module")
def runner():
    with Runner(workers=2) as made:
        yield made


def run_alone(job: SimJob, *, hash_seed: str, perturbation: int) -> Result:
    """One job in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "slackwater.sim.worker", str(perturbation)],
        input=msgspec.json.encode(job) + b"\n",
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=Result)


@pytest.mark.slow
def test_one_seed_in_nine_processes_has_one_trace_hash():
    job = SimJob(seed=3, duration_s=SHORT_S)
    runs = [run_alone(job, hash_seed=str(i * 7919 % 4_000_000), perturbation=i) for i in range(9)]
    assert len({r.trace_hash for r in runs}) == 1
    assert len({r.steps for r in runs}) == 1
    assert runs[0].steps > 1_000


def test_the_same_seed_twice_in_one_process_has_one_trace_hash():
    jobs = [SimJob(seed=s, duration_s=SHORT_S) for s in (4, 5, 4, 5)]
    a, b, c, d = (run_job(job).trace_hash for job in jobs)
    assert (a, b) == (c, d)
    assert a != b


def test_a_recorded_tape_plays_back_to_the_same_trace():
    job = SimJob(seed=6, duration_s=SHORT_S)
    tape = Tape(job.seed, record=True)
    recorded = run_job(job, tape=tape)
    played = run_job(job, tape=Tape.load(tape.save()))
    assert played.trace_hash == recorded.trace_hash == run_job(job).trace_hash
    assert played.strays == 0


def test_an_edited_tape_is_another_run_and_still_judged():
    job = SimJob(seed=6, duration_s=SHORT_S)
    tape = Tape(job.seed, record=True)
    recorded = run_job(job, tape=tape)
    content = json.loads(tape.save())
    content["streams"]["schedule"] = [[], []]
    content["streams"]["nemesis"][1] = content["streams"]["nemesis"][1][:20]
    edited = run_job(job, tape=Tape.load(json.dumps(content)))
    assert edited.trace_hash != recorded.trace_hash
    assert edited.strays > 0
    assert edited.passed


@pytest.mark.slow
def test_seeds_pass_and_reach_what_they_are_for(runner):
    """Guards against "all requests failed, test passed": every probe is hit, every enabled fault fires."""
    summary = runner.campaign([SimJob(seed=s) for s in range(24)])
    assert (summary.failed, summary.mismatches) == (0, 0), summary
    assert summary.doubled == 2
    assert summary.probes["kernel.acknowledged"] == 24, "every seed acknowledges something"
    expected = {
        "kernel.append_unknown", "kernel.dial_failed", "kernel.fenced", "kernel.reader_restarted",
        "kernel.repeat_dropped",
        "kernel.timestamp_refused", "sim.disk.bad_checksum", "sim.disk.full", "sim.fail_stop", "sim.log.answer_lost",
        "sim.log.duplicate", "sim.log.landed_late", "sim.log.request_lost",
    }  # fmt: skip
    assert expected <= set(summary.probes)
    assert all(share >= 0.9 for share in summary.fault_reach.values()), summary.fault_reach
    assert summary.faults >= 0.3 * summary.sim_seconds, "at least 30 per 100 simulated seconds"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(name for name, bug in PLANTED.items() if bug.play == "kernel"))
def test_a_planted_bug_is_killed_by_its_oracle(name, runner):
    bug = PLANTED[name]
    jobs = [SimJob(seed=s, play=bug.play, planted=(name,)) for s in range(8)]
    killers = {result.oracle for result, _ in runner.map(jobs) if not result.passed}
    assert killers, "it survived"
    assert killers <= set(bug.expected)


def test_the_canary_fails_on_seed_0_only(capsys):
    assert main(["--canary", "--seeds", "2", "--duration", "5", "--json"]) == EXIT_CORRECTNESS
    out, err = capsys.readouterr()
    summary = json.loads(out.splitlines()[-1])
    assert summary["failed_seeds"] == [0]
    assert {"seeds", "failed", "sim_seconds", "real_seconds", "doubled", "mismatches"} <= set(summary)
    assert (summary["seeds"], summary["failed"], summary["doubled"], summary["mismatches"]) == (2, 1, 1, 0)
    assert "FAIL seed=0" in err
    assert "3 of 3 agree" in err


def test_planted_json_names_the_killer(capsys):
    assert main(["--planted", "K01", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    kill = json.loads(line)
    assert (kill["name"], kill["killed_by"], kill["expected"]) == ("K01", "L-1", "L-1")
    assert kill["seeds"] >= 1


def test_replay_shows_the_timeline_and_agrees_with_itself(capsys):
    assert main(["--seed", "1", "--replay", "--duration", "5"]) == 0
    out = capsys.readouterr().out
    assert "scenario nodes=" in out
    assert "the same in 2 of 2 repeats" in out


def test_trace_record_and_tape_files(tmp_path, capsys):
    trace, tape = tmp_path / "trace", tmp_path / "tape.json"
    common = ["--seed", "2", "--duration", "5", "--json"]
    assert main([*common, "--trace", str(trace), "--record", str(tape)]) == 0
    first = json.loads(capsys.readouterr().out)
    assert main([*common, "--tape", str(tape)]) == 0
    second = json.loads(capsys.readouterr().out)
    assert first["trace_hash"] == second["trace_hash"]
    lines = trace.read_text().splitlines()
    assert len(lines) == first["steps"]
    assert "0x" not in trace.read_text(), "no addresses in a trace"


def test_wrong_usage_is_explained(capsys):
    assert main(["--seeds", "1", "--scenario", "nonsense", "--seed", "1"]) == 64
    assert "there are: ages, cluster, collecting, " in capsys.readouterr().err
    assert main(["--planted", "K99"]) == 64
    assert "K01, K02, K03, M01" in capsys.readouterr().err


class _Stuck:
    """A workload that never recovers, and whose node crashes on request."""

    def __init__(self, error=None):
        self._error = error

    def setup(self, world, scenario):
        async def boot(runtime):
            await runtime.clock.sleep(1)
            if self._error is not None:
                raise self._error

        world.add_node("n1", boot)

    def unsettled(self, world):
        return "n1 never applies entry 7"

    def check(self, world):
        return []


def _play(name, workload):
    """A play of one workload without faults."""

    def draw(tape, duration_s):
        return replace(find_play("kernel").draw(tape, duration_s), faults=frozenset())

    register(Play(name=name, summary="", draw=draw, workloads=lambda: [workload], oracles=list, settle_s=5.0))
    return SimJob(seed=1, play=name, duration_s=5)


def test_a_world_that_does_not_recover_is_a_liveness_failure():
    result = run_job(_play("test-stuck", _Stuck()))
    assert (result.exit_code, result.phase) == (EXIT_LIVENESS, "liveness")
    assert "n1 never applies entry 7" in failure_report(result)
    assert "slackwater sim --replay 1 --scenario test-stuck --duration 5" in failure_report(result)


def test_an_unhandled_exception_is_a_crash_with_its_traceback():
    result = run_job(_play("test-crash", _Stuck(KeyError("lost key"))))
    assert (result.exit_code, result.oracle, result.phase) == (EXIT_CRASH, "I-31", "safety")
    assert "lost key" in result.summary
    assert "raise self._error" in result.evidence


class _Careless(_Stuck):
    """Loses an error in a task that nobody awaits."""

    def setup(self, world, scenario):
        async def fail():
            raise KeyError("lost key")

        async def boot(runtime):
            asyncio.get_running_loop().create_task(fail(), name="orphan")

        world.add_node("n1", boot)

    def unsettled(self, world):
        return None


def test_an_error_that_nobody_looks_at_is_a_failure():
    result = run_job(_play("test-careless", _Careless()))
    assert (result.exit_code, result.oracle, result.kind) == (EXIT_CRASH, "I-31", "unretrieved-error")
    assert "lost key" in result.summary


class _Escaping(_Stuck):
    """Reads the real clock."""

    def setup(self, world, scenario):
        async def boot(runtime):
            time.time()

        world.add_node("n1", boot)


def test_asking_for_the_real_time_is_a_failure():
    result = run_job(_play("test-escape", _Escaping()))
    assert result.exit_code == EXIT_CRASH
    assert "time.time() was called during a simulation; use runtime.clock" in result.summary


class _BuggyServer(_Stuck):
    """An RPC handler with a bug: the RPC layer survives it, the run must not."""

    def setup(self, world, scenario):
        ask = Method("test.ask", int, int, callers=ANYBODY)

        def identity():
            return {"identity": Identity(cluster_id="t"), "settings": world.settings}

        async def server(runtime):
            served = RpcServer(runtime, runtime.scope("app"), **identity())
            served.handle_sync(ask, lambda request, context: 1 // request)
            await served.listen("n1:7400")

        async def client(runtime):
            dialer = Dialer(runtime, runtime.scope("app"), **identity())
            while True:
                try:
                    await dialer.call("n1:7400", ask, 0, timeout=1)
                except SlackwaterError:
                    await runtime.clock.sleep(0.1)

        world.add_node("n1", server)
        world.add_client("c1", client)


def test_a_crash_of_an_rpc_handler_is_a_failure_of_its_node():
    result = run_job(_play("test-handler", _BuggyServer()))
    assert (result.exit_code, result.oracle) == (EXIT_CRASH, "I-31")
    assert "n1 ended with ZeroDivisionError" in result.summary


def test_runs_that_disagree_are_reported_as_nondeterminism(monkeypatch, runner):
    real, calls = runner.map, []

    def lying(jobs, *, avoiding=None):
        calls.append(jobs)
        done = real(jobs, avoiding=avoiding)
        lie = {"trace_hash": "other"}
        return [(msgspec.structs.replace(r, **lie) if r.job.attempt else r, worker) for r, worker in done]

    monkeypatch.setattr(runner, "map", lying)
    reports = []
    summary = runner.campaign(
        [SimJob(seed=1, duration_s=3)], on_failure=lambda r, again: reports.append(failure_report(r, again))
    )
    assert (summary.exit_code, summary.mismatches, len(calls)) == (EXIT_NONDETERMINISM, 1, 3)
    assert "NONDETERMINISM" in reports[0]


def test_doubled_seeds_run_in_another_process(runner):
    jobs = [SimJob(seed=s, duration_s=2) for s in range(6)]
    first = runner.map(jobs)
    second = runner.map(jobs, avoiding={i: worker for i, (_, worker) in enumerate(first)})
    for (one, here), (two, there) in zip(first, second, strict=True):
        assert here != there
        assert one.trace_hash == two.trace_hash
