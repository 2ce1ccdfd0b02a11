"""The waiting primitives drivers may use. They belong to whichever loop runs, so they are deterministic in simulation.

Drivers import these from here instead of `asyncio`: what is not exported (TaskGroup, wait, as_completed, create_task,
sleep) either iterates sets, whose order differs between processes, or escapes the owner of the task.
"""

from asyncio import (
    CancelledError,
    Event,
    Future,
    Lock,
    Queue,
    QueueEmpty,
    QueueFull,
    Semaphore,
    get_running_loop,
    shield,
    timeout,
)

__all__ = [
    "CancelledError",
    "Event",
    "Future",
    "Lock",
    "Queue",
    "QueueEmpty",
    "QueueFull",
    "Semaphore",
    "get_running_loop",
    "shield",
    "timeout",
]
