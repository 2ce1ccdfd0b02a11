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

Most of what a server is asked for is answered without waiting for anything, and making, scheduling and burying a task costs
more than many an answer. `start` runs work right away and makes a task of it only when it first waits:

    start(work) ── runs ──► done             no task, no step of the loop
                     └────► waits for f      a task that begins by waiting for f

Such work has no current task until then (`sync.timeout` knows), and its context is a copy of its starter's, as a task's is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from slackwater.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

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
        self._check_open(work, name)
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._members[task] = None
        task.add_done_callback(self._ended)
        return task

    def start(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None] | None:
        """Run work up to where it first waits; from there on it is a task of this scope. None: it did not wait.

        Work that crashes before that ends the scope as any task does, and its starter hears of it.
        """
        self._check_open(work, name)
        loop, context, starter = asyncio.get_running_loop(), copy_context(), asyncio.current_task()
        if starter is not None:  # or work that cancels "the current task" would cancel its starter
            asyncio.tasks._leave_task(loop, starter)
        try:
            awaited = context.run(work.send, None)
        except StopIteration:
            return None
        except Exception as error:
            self._fail(error)
            raise
        finally:
            if starter is not None:
                asyncio.tasks._enter_task(loop, starter)
        task = loop.create_task(_Rest(work, awaited), name=name, context=context)
        self._members[task] = None
        task.add_done_callback(self._ended)
        if self._closing:  # by the work itself, or by what it woke
            task.cancel()
        return task

    def _check_open(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        if self._closing:
            work.close()
            raise UsageError(f"scope {self.name!r} is closed and starts no more tasks", task=name)

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
        """Wake the callers that wait for the end, and leave the parent once nothing is left."""
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


class _Rest(Coroutine[Any, Any, None]):
    """What remains of work that has begun and waits.

    Not an `async def`: one that is cancelled before its own first step would never tell the work.
    """

    __slots__ = ("_awaited", "_work")

    def __init__(self, work: Coroutine[Any, Any, None], awaited: Any) -> None:
        self._work = work
        self._awaited: Any = (awaited,)

    def send(self, value: Any) -> Any:
        """First wait for what the work waits for, then go on with it."""
        if self._awaited is not None:
            (first,), self._awaited = self._awaited, None
            return first
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        """Interrupt the work. What it first waited for may have failed meanwhile: no other code will look at that."""
        (first,), self._awaited = self._awaited or (None,), None
        if isinstance(first, asyncio.Future) and first.done() and not first.cancelled():
            first.exception()
        try:
            return self._work.throw(*error)
        finally:
            del error  # the error remembers this frame: they would keep each other alive

    def close(self) -> None:
        """End the work."""
        self._work.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._work.__await__()

    def __getattr__(self, name: str) -> Any:  # name, frame: a debugger that looks at the task means the work
        return getattr(self._work, name)


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
