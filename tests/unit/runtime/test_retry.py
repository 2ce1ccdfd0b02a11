"""Deadlines, pauses, and the budget of one operation."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path

import pytest

import slackwater
from slackwater.errors import ConflictError, DeadlineExceeded, RetryableError
from slackwater.runtime.deadline import Deadline
from slackwater.runtime.retry import Backoff, RetryBudget, RetryPolicy
from tests.unit.routing.test_choose import Dice


class Clock:
    """A clock that stands still until it is told to move."""

    def __init__(self) -> None:
        self.now_ns = 0

    def wall_ns(self) -> int:
        return self.now_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    async def sleep(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)


def test_pauses_double_up_to_the_bound_and_keep_at_least_half() -> None:
    backoff = Backoff(Dice(), least=0.01, most=0.05)
    for whole in (0.01, 0.02, 0.04, 0.05, 0.05):
        assert whole / 2 <= backoff.next() < whole
    for _ in range(100):
        backoff.next()
    assert backoff.next() < 0.05


def test_a_deadline_counts_down_and_never_reads_as_no_deadline() -> None:
    clock = Clock()
    deadline = Deadline(clock, seconds=1.5)
    assert deadline.remaining() == 1.5
    assert deadline.remaining_ms() == 1500
    clock.now_ns = 1_499_999_999
    assert not deadline.passed
    assert deadline.remaining_ms() == 1
    clock.now_ns = 2_000_000_000
    assert deadline.passed
    assert deadline.remaining() == 0
    assert deadline.remaining_ms() == 1


POLICY = RetryPolicy(tries_max=5, pause_s_min=0.01, pause_s_max=0.05)


def test_loops_that_nest_spend_one_budget() -> None:
    budget = RetryBudget(Clock(), Dice(), POLICY, seconds=60)
    done = 0

    async def inner() -> None:
        nonlocal done
        while True:
            done += 1
            await budget.again(ConflictError("met another"), "nothing was written")

    async def outer() -> None:
        while True:
            try:
                await inner()
            except RetryableError as error:
                await budget.again(error, "nothing was committed")

    with pytest.raises(RetryableError, match=r"nothing was committed in 6 tries: nothing was written in 5 tries: met"):
        asyncio.run(outer())
    assert done == POLICY.tries_max, "the outer loop gave the inner one no tries of its own"


def test_a_budget_ends_with_its_deadline_and_says_what_did_not_happen() -> None:
    clock = Clock()
    budget = RetryBudget(clock, Dice(), RetryPolicy(1000, 0.01, 0.05), seconds=0.1)

    async def work() -> None:
        while True:
            await budget.again(ConflictError("met another"), "nothing was written")

    with pytest.raises(DeadlineExceeded, match=r"nothing was written within 0.1 s: met another"):
        asyncio.run(work())
    assert clock.now_ns == 100_000_000, "no pause goes past the deadline"
    assert budget.tries < 20


def test_rounds_that_no_server_answered_are_waited_for_and_not_counted() -> None:
    clock = Clock()
    budget = RetryBudget(clock, Dice(), POLICY, seconds=1.0)

    async def work() -> None:
        while not budget.passed:
            await budget.back_off()

    asyncio.run(work())
    assert budget.tries == 0
    assert clock.now_ns == 1_000_000_000


SLEEPS_WITHOUT_A_BUDGET = {
    ("client/jobs.py", "wait"): "looks how a job is, for as long as its caller wants",
    ("client/point_reads.py", "_lead"): "lets others of the same turn of the loop join",
    ("txn/context.py", "wait_past"): "waits for a clock, and nothing is tried again",
    ("txn/finish.py", "_round"): "a delay that the simulator asks for",
    ("txn/heartbeat.py", "_beat"): "a pulse: it goes on whatever came of the last one",
}


def test_every_pause_of_a_retry_is_made_by_a_budget() -> None:
    source = Path(slackwater.__file__).parent
    found: set[tuple[str, str]] = set()
    for folder in ("client", "routing", "txn"):
        for path in sorted((source / folder).rglob("*.py")):
            for function in ast.walk(ast.parse(path.read_text())):
                if isinstance(function, ast.AsyncFunctionDef | ast.FunctionDef):
                    calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
                    names = {f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "") for f in calls}
                    if names & {"sleep", "Backoff"}:
                        found.add((str(path.relative_to(source)), function.name))
    assert found == SLEEPS_WITHOUT_A_BUDGET.keys()


def test_a_step_has_its_own_tries_and_the_deadline_of_its_operation() -> None:
    clock = Clock()
    whole = Deadline(clock, seconds=2.0)
    clock.now_ns = 1_500_000_000
    step = RetryBudget.within(whole, clock, Dice(), RetryPolicy(tries_max=2, pause_s_min=1.0, pause_s_max=1.0))
    assert step.remaining() == whole.remaining() == 0.5
    assert step.spend()
    asyncio.run(step.back_off())
    assert step.passed, "a pause ends with the operation's time"
    assert not step.spend()
