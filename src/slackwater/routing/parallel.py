"""Several pieces of work at once, each owned, errors as values.

`asyncio.gather` starts tasks without an owner and forgets the others when one fails. Here every piece that waits is a task
of the given scope, all of them are waited for whatever happens to one, and a typed error is returned in its place:
a sender of writes to five ranges must know what became of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from slackwater.errors import SlackwaterError, UnavailableError, UsageError
from slackwater.runtime.sync import CancelledError, Semaphore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from slackwater.runtime.seam import TaskHandle, TaskScope

T = TypeVar("T")


async def in_parallel(
    scope: TaskScope, works: Sequence[Callable[[], Awaitable[T]]], *, limit: int, name: str
) -> list[T | SlackwaterError]:
    """Run all, at most `limit` at a time; results and typed errors in order. Cancellation cancels all."""
    gate = Semaphore(limit)
    outcomes: dict[int, T | SlackwaterError] = {}

    async def guarded(at: int, work: Callable[[], Awaitable[T]]) -> None:
        async with gate:
            try:
                outcomes[at] = await work()
            except SlackwaterError as error:
                outcomes[at] = error

    tasks: list[TaskHandle[None]] = []
    try:
        for at, work in enumerate(works):
            task = scope.start(guarded(at, work), name=name)
            if task is not None:
                tasks.append(task)
        for task in tasks:
            await task
        return [outcomes[at] for at in range(len(works))]
    except UsageError as error:
        _cancel(tasks)
        raise UnavailableError("this process is shutting down", partial=bool(tasks or outcomes)) from error
    except CancelledError:
        _cancel(tasks)
        raise


def _cancel(tasks: Sequence[TaskHandle[T]]) -> None:
    for task in tasks:
        task.cancel()
