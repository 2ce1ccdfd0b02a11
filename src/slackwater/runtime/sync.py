"""The waiting primitives drivers may use. They belong to whichever loop runs, so they are deterministic in simulation.

Drivers import these from here instead of `asyncio`: what is not exported (TaskGroup, wait, as_completed, create_task,
sleep) either iterates sets, whose order differs between processes, or escapes the owner of the task.

`timeout` is asyncio's, but for one thing: it cancels the task it is used in, and work that `Scope.start` runs has none until
it first waits. So it waits for that.
"""

from __future__ import annotations

import asyncio
import types
from asyncio import (
    CancelledError,
    Event,
    Future,
    Lock,
    Queue,
    QueueEmpty,
    QueueFull,
    Semaphore,
    Task,
    Timeout,
    TimerHandle,
    current_task,
    get_running_loop,
    shield,
)
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

__all__ = [
    "CancelledError",
    "Event",
    "Future",
    "Lock",
    "Queue",
    "QueueEmpty",
    "QueueFull",
    "Semaphore",
    "Task",
    "Timeout",
    "TimerHandle",
    "current_task",
    "get_running_loop",
    "shield",
    "timeout",
]


@types.coroutine
def _in_task() -> Generator[None, None, None]:
    """Return once the caller is a task; at once if it is one already."""
    if current_task() is None:
        yield


class timeout:  # noqa: N801 - used as the function it replaces
    """`async with timeout(seconds)`: `TimeoutError` if what is inside takes longer."""

    __slots__ = ("_inner",)

    def __init__(self, seconds: float | None) -> None:
        self._inner = asyncio.timeout(seconds)

    async def __aenter__(self) -> Timeout:
        """Begin to count; the limit that is returned can be moved."""
        await _in_task()
        return await self._inner.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop counting."""
        await self._inner.__aexit__(kind, error, trace)
