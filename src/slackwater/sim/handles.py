"""What the loop schedules: handles, and the tasks, futures and domains they belong to.

Domain      whose step it is: a node incarnation, or the world itself; carried by a context variable
SimTask     an asyncio task that hashes to its birth number, so that sets of tasks iterate in one order
SimFuture   the same for futures
SimHandle   a callback that is ready to run; SimTimer one that waits for its time
"""

from __future__ import annotations

import asyncio
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.sim.loop import SimLoop

NS = 1_000_000_000
"""Nanoseconds in a second."""


class Domain:
    """Whose step it is: a node incarnation, or the world itself."""

    __slots__ = ("context", "gate", "name", "number")

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.gate: Callable[[SimHandle], bool] | None = None  # returns whether it took the handle away
        self.context = Context()
        self.context.run(DOMAIN.set, self)


DOMAIN: ContextVar[Domain] = ContextVar("sim_domain")


class SimTask(asyncio.Task[Any]):
    """A task that hashes to its birth number."""

    __slots__ = ("birth", "domain")
    birth: int
    domain: Domain

    def __hash__(self) -> int:
        try:
            return self.birth
        except AttributeError:  # first asked by asyncio's own registry, inside the constructor
            self.birth = self.get_loop().next_birth()  # type: ignore[attr-defined]
            return self.birth


class SimFuture(asyncio.Future[Any]):
    """A future that hashes to a birth number, given when first asked."""

    __slots__ = ("birth",)
    birth: int

    def __hash__(self) -> int:
        try:
            return self.birth
        except AttributeError:
            self.birth = self.get_loop().next_birth()  # type: ignore[attr-defined]
            return self.birth


class SimHandle:
    """A callback waiting to run."""

    __slots__ = ("args", "callback", "context", "delayed", "domain", "number")

    def __init__(
        self, callback: Callable[..., Any], args: tuple[Any, ...], context: Context, domain: Domain, number: int
    ) -> None:
        self.callback: Callable[..., Any] | None = callback
        self.args = args
        self.context = context
        self.domain = domain
        self.number = number
        self.delayed = False

    @property
    def task(self) -> SimTask | None:
        """The task this handle steps, if it is one's step."""
        owner = getattr(self.callback, "__self__", None)
        return owner if type(owner) is SimTask else None

    @property
    def lane(self) -> int:
        """What scheduling policies treat as one thread of control."""
        task = self.task
        return -1 - self.domain.number if task is None else task.birth

    def cancel(self) -> None:
        """Never run."""
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self.callback is None


class SimTimer(SimHandle):
    """A callback waiting for a time."""

    __slots__ = ("_loop", "queued", "when_ns")
    _loop: SimLoop
    queued: bool
    when_ns: int

    def when(self) -> float:
        """The time in seconds, as asyncio wants it."""
        return self.when_ns / NS

    def cancel(self) -> None:
        """Never run; swept from the heap with others."""
        if self.callback is not None:
            self.callback = None
            self.args = ()
            if self.queued:
                self._loop.timer_cancelled()


def describe(handle: SimHandle) -> str:
    """Name a handle without addresses, for traces and reports."""
    task = handle.task
    if task is not None:
        return f"task {task.get_name()} of {handle.domain.name}"
    return f"{getattr(handle.callback, '__qualname__', type(handle.callback).__name__)} of {handle.domain.name}"
