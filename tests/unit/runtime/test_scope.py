import asyncio
import warnings

import pytest

from slackwater.errors import UsageError
from slackwater.runtime import Scope, run
from slackwater.runtime.sync import timeout


class BoomError(Exception):
    pass


async def forever(log, name):
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        log.append(name)


async def boom():
    raise BoomError


async def turns():
    for _ in range(10):
        await asyncio.sleep(0)


def test_close_cancels_in_order_of_birth_tasks_and_children_alike():
    async def main():
        log = []
        scope = Scope("s")
        scope.spawn(forever(log, "a"), name="a")
        child = scope.child("c")
        child.spawn(forever(log, "b"), name="b")
        scope.spawn(forever(log, "c"), name="c")
        child.spawn(forever(log, "b2"), name="b2")
        await turns()
        await scope.close()
        assert log == ["a", "b", "b2", "c"]
        assert scope.failure is None
        assert child.failure is None
        assert scope.status() == "scope s closing tasks=0 children=0"

    run(main())


def test_a_crash_ends_the_scope_and_is_reported_once():
    async def main():
        log, seen = [], []
        scope = Scope("s", on_failure=seen.append)
        scope.spawn(forever(log, "a"), name="a")
        scope.spawn(boom(), name="b")
        scope.spawn(boom(), name="b2")
        await turns()
        assert log == ["a"]
        assert isinstance(scope.failure, BoomError)
        assert seen == [scope.failure]
        await scope.close()

    run(main())


def test_a_crash_of_a_child_ends_the_parent():
    async def main():
        log, seen = [], []
        scope = Scope("s", on_failure=seen.append)
        scope.spawn(forever(log, "a"), name="a")
        scope.child("c").child("d").spawn(boom(), name="b")
        await turns()
        assert log == ["a"]
        assert len(seen) == 1
        await scope.close()

    run(main())


def test_a_supervised_child_fails_alone():
    async def main():
        log, seen = [], []
        scope = Scope("s")
        scope.spawn(forever(log, "a"), name="a")
        child = scope.child("c", on_failure=seen.append)
        child.spawn(forever(log, "b"), name="b")
        child.spawn(boom(), name="boom")
        await turns()
        assert log == ["b"]
        assert isinstance(seen[0], BoomError)
        assert scope.failure is None
        assert scope.status() == "scope s open tasks=1 children=0"
        await scope.close()

    run(main())


def test_an_unsupervised_crash_reaches_the_loops_exception_handler():
    async def main():
        seen = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
        scope = Scope("s")
        scope.spawn(boom(), name="b")
        await turns()
        assert isinstance(seen[0]["exception"], BoomError)
        assert "'s'" in seen[0]["message"]

    run(main())


def test_spawn_on_a_closed_scope_raises_and_leaves_no_warning():
    async def main():
        scope = Scope("s")
        await scope.close()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UsageError, match="closed"):
                scope.spawn(boom(), name="late")
        with pytest.raises(UsageError, match="closed"):
            scope.child("late")

    run(main())


def test_a_cancelled_task_is_no_failure_and_results_can_be_awaited():
    async def main():
        async def seven():
            return 7

        scope = Scope("s")
        task = scope.spawn(forever([], "a"), name="a")
        assert await scope.spawn(seven(), name="7") == 7
        task.cancel()
        await turns()
        assert scope.failure is None
        assert scope.status() == "scope s open tasks=0 children=0"

    run(main())


def test_close_waits_for_a_task_that_takes_its_time():
    async def main():
        done = []

        async def slow():
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                await turns()
                done.append(1)

        scope = Scope("s")
        scope.child("c").spawn(slow(), name="slow")
        await turns()
        await asyncio.gather(scope.close(), scope.close())
        assert done == [1]

    run(main())


def test_a_task_may_close_its_own_scope():
    async def main():
        log = []
        scope = Scope("s")
        child = scope.child("c")
        scope.spawn(forever(log, "a"), name="a")

        async def closer():
            await turns()
            await scope.close()
            log.append("closed")

        task = child.spawn(closer(), name="closer")
        await task
        assert log == ["a", "closed"]

    run(main())


def test_failure_during_close_is_kept():
    async def main():
        async def bad_finish():
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                raise BoomError

        seen = []
        scope = Scope("s", on_failure=seen.append)
        scope.spawn(bad_finish(), name="bad")
        await turns()
        await scope.close()
        assert isinstance(scope.failure, BoomError)
        assert len(seen) == 1

    run(main())


# --- start: no task unless it waits


def test_work_that_does_not_wait_is_done_when_start_returns_and_never_was_a_task():
    async def main():
        scope, log = Scope("s"), []

        async def work():
            log.append(asyncio.current_task())

        assert scope.start(work(), name="w") is None
        assert log == [None], "what starts it is a task, but not the work's"
        assert asyncio.current_task() is not None
        assert scope.status() == "scope s open tasks=0 children=0"

    run(main())


def test_work_that_waits_goes_on_as_a_task_with_its_own_context():
    async def main():
        scope, log = Scope("s"), []
        first, second = (asyncio.get_running_loop().create_future() for _ in range(2))

        async def work():
            log.append("begun")
            log.append(await first)
            log.append(await second)
            log.append(asyncio.current_task().get_name())

        task = scope.start(work(), name="w")
        assert log == ["begun"]
        first.set_result("first")
        second.set_result("second")
        await task
        assert log == ["begun", "first", "second", "w"]

    run(main())


def test_work_that_is_cancelled_before_its_task_took_a_step_hears_of_it():
    async def main():
        scope, log = Scope("s"), []
        scope.start(forever(log, "told"), name="w")
        await scope.close()
        assert log == ["told"]

    run(main())


def test_work_may_go_on_after_it_caught_its_cancellation():
    async def main():
        scope, log = Scope("s"), []

        async def work():
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                await asyncio.sleep(0)
                log.append("cleaned up")
                raise

        task = scope.start(work(), name="w")
        task.cancel()
        await turns()
        assert log == ["cleaned up"]
        assert task.cancelled()

    run(main())


def test_work_that_crashes_at_once_ends_the_scope():
    async def main():
        seen = []
        scope = Scope("s", on_failure=seen.append)
        with pytest.raises(BoomError):
            scope.start(boom(), name="w")
        assert isinstance(scope.failure, BoomError)
        assert seen == [scope.failure]

    run(main())


def test_work_that_closes_its_own_scope_is_cancelled_where_it_waits():
    async def main():
        scope, log = Scope("s"), []

        async def work():
            scope.cancel()
            await forever(log, "told")

        task = scope.start(work(), name="w")
        await turns()
        assert task.cancelled()
        assert log == ["told"]

    run(main())


def test_a_timeout_in_work_that_has_not_waited_yet_works():
    async def main():
        scope, log = Scope("s"), []

        async def work():
            try:
                async with timeout(0.001):
                    await asyncio.get_running_loop().create_future()
            except TimeoutError:
                log.append("timed out")

        await scope.start(work(), name="w")
        assert log == ["timed out"]

    run(main())
