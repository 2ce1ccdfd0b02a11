"""Scopes: every task has an owner, and ends with it.

    Scope "node"
    ├── task  "raft"                      born 1
    ├── Scope "replica r1"                born 2
    │   ├── task "apply"
    │   └── task "propose"
    └── task  "gossip"                    born 3

Closing a scope cancels its members, tasks and child scopes alike, in order of birth, and waits until the last has
ended. A task that raises ends its scope: the first exception is kept as `failure`, the other members are cancelled,
and the exception travels on:

    the scope has `on_failure`      it is called once with the exception, and the failure stops there (a supervisor)
    it has a parent                 the parent fails in the same way
    neither                         the loop's exception handler reports it; nothing is lost in silence

Rules
    - Members are kept in a dict in order of birth. Sets of tasks are ordered by address, which differs from one
      process to the next; the simulator runs this very class and must replay.
    - A cancelled task is not a failure. A task that swallows its cancellation holds up `close`, as it should.
    - Spawning on a scope that is closing or closed raises `UsageError`; the coroutine is closed, so that Python does
      not complain that it was never awaited.
    - A task may close the scope that owns it: it is neither cancelled nor waited for by that call.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from slackwater.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

FRAMES_TOLD_MAX = 4
FRAMES_FOLLOWED_MAX = 64


class Scope:
    """`seam.TaskScope` on whichever loop is running, real or simulated."""

    def __init__(
        self,
        name: str,
        *,
        on_failure: Callable[[BaseException], None] | None = None,
        parent: Scope | None = None,
    ) -> None:
        self.name = name
        self._on_failure = on_failure
        self._parent = parent
        self._members: dict[asyncio.Task[Any] | Scope, None] = {}
        self._failure: BaseException | None = None
        self._closing = False
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def failure(self) -> BaseException | None:
        """What the first crashed task raised, if any did."""
        return self._failure

    @property
    def closing(self) -> bool:
        """Whether the scope takes no more tasks."""
        return self._closing

    def spawn(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start a task owned by this scope."""
        if self._closing:
            work.close()
            raise UsageError(f"scope {self.name!r} is closed and starts no more tasks", task=name)
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._members[task] = None
        task.add_done_callback(self._ended)
        return task

    def child(self, name: str, *, on_failure: Callable[[BaseException], None] | None = None) -> Scope:
        """A scope that ends with this one; with `on_failure` its crash stops there instead of ending this one."""
        if self._closing:
            raise UsageError(f"scope {self.name!r} is closed and has no more children", child=name)
        child = Scope(name, on_failure=on_failure, parent=self)
        self._members[child] = None
        return child

    def cancel(self) -> None:
        """Take no more tasks and cancel every member, in order of birth, without waiting. Safe to repeat."""
        self._closing = True
        current = _current_task()
        for member in list(self._members):
            if member is not current:
                member.cancel()
        self._settle()

    async def close(self) -> None:
        """Cancel every task and wait until all have ended."""
        self.cancel()
        while self._members and not self._only_left(_current_task()):
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def status(self) -> str:
        """One line for logs and scripts."""
        tasks = sum(1 for m in self._members if not isinstance(m, Scope))
        state = "failed" if self._failure else "closing" if self._closing else "open"
        return f"scope {self.name} {state} tasks={tasks} children={len(self._members) - tasks}"

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._members.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        if self._closing:
            self._settle()

    def _fail(self, error: BaseException) -> None:
        """End the scope because a member crashed; only the first crash is reported."""
        if self._failure is not None:
            return
        self._failure = error
        self.cancel()
        if self._on_failure is not None:
            self._on_failure(error)
        elif self._parent is not None:
            self._parent._fail(error)
        else:
            message = f"a task of scope {self.name!r} crashed"
            asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})

    def _settle(self) -> None:
        """Wake whoever waits for the end, and leave the parent once nothing is left."""
        if not self._members and self._parent is not None:
            self._parent._forget(self)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def _forget(self, child: Scope) -> None:
        if child in self._members:
            del self._members[child]
            if self._closing:
                self._settle()

    def _only_left(self, current: asyncio.Task[Any] | None) -> bool:
        """Whether all that remains is the task that waits, here or in a child scope."""
        return all(m is current or (isinstance(m, Scope) and m._only_left(current)) for m in self._members)


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def waiting_tasks() -> list[str]:
    """One line per task of the running loop, its name and the innermost lines it waits at: for a dump of a stuck node."""
    lines = []
    for task in asyncio.all_tasks():
        frames = _waiting_frames(task.get_coro())
        where = " < ".join(f"{name.rpartition('/')[2]}:{line}" for name, line in reversed(frames[-FRAMES_TOLD_MAX:]))
        lines.append(f"{task.get_name()}: {where}")
    return sorted(lines)


def _waiting_frames(work: Any) -> list[tuple[str, int]]:
    """(file, line) from a suspended coroutine down to what it waits for."""
    frames: list[tuple[str, int]] = []
    while work is not None and len(frames) < FRAMES_FOLLOWED_MAX:
        frame = getattr(work, "cr_frame", None) or getattr(work, "gi_frame", None) or getattr(work, "ag_frame", None)
        if frame is not None:
            frames.append((frame.f_code.co_filename, frame.f_lineno))
        work = getattr(work, "cr_await", None) or getattr(work, "gi_yieldfrom", None) or getattr(work, "ag_await", None)
    return frames
