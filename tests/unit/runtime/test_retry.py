"""Deadlines, pauses, and the budget of one operation."""

from __future__ import annotations

import asyncio

import pytest

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
