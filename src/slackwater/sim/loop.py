"""The deterministic event loop: asyncio on virtual time, one seed, one thread, one order.

    ready ──take (schedule policy)──► step ──► trace hash
      ^                                 │
      └── timers (heap of integer ns) ◄─┘      time moves only when nothing is ready

What asyncio leaks, and what stops it here
    order of sets     tasks and futures hash to their birth number, not their address
    names             unnamed tasks are named by birth number, not by a process-wide counter
    real time         `time()` is virtual; nothing here reads a clock
    threads, sockets  every `AbstractEventLoop` method not defined below raises `EscapedSimulation`
    the collector     async generators abandoned by a dead node are kept, not closed

**Domains.** Each handle belongs to the domain (a node incarnation, or the world) whose context it was made in. A
domain's `gate`, when set, sees every handle of the domain before it runs: a paused node keeps them for later, a slow
node delays them, a crashed node drops them. Dropped tasks are *parked*: kept alive so that no `finally` block runs, as
in a power cut, until `dispose()` after the run.

**Trace.** A BLAKE2 digest over the birth numbers of handles and tasks in the order they ran, every move of time, every
task name, and every line given to `note()`. Two runs with the same digest did the same things in the same order.

The tasks are C tasks with a Python `__hash__`, as in production. Python tasks (`asyncio.tasks._PyTask`) were measured
too, in turns: no difference beyond the noise of the machine. Both name their task in `callback.__self__`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import heapq
import sys
import warnings
from array import array
from asyncio import events
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, NoReturn
from zlib import crc32

from slackwater.sim.handles import DOMAIN, NS, Domain, SimFuture, SimHandle, SimTask, SimTimer, describe
from slackwater.sim.schedule import Fifo, Scheduler

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

NOTE = 1 << 60
CHORES_EVERY_STEPS = 4_000
"""Steps after which the trace is hashed, and whether time stands still is looked at; a divisor of `GC_EVERY_STEPS`."""
STEPS_PER_INSTANT_MAX = 200_000
"""Steps without time moving after which the run is called a livelock."""
GC_EVERY_STEPS = 100_000
"""The collector runs at these steps and at no others."""
CANCELLED_TIMERS_MIN = 256
"""Cancelled timers are swept once there are this many and they are half the heap."""

DISPOSE_ROUNDS = 2


class EscapedSimulation(RuntimeError):
    """Something asked for the real world during a run."""


class Livelock(RuntimeError):
    """Steps went on and on while time stood still."""


class SimLoop(asyncio.AbstractEventLoop):
    """See the module docstring."""

    def __init__(self, scheduler: Scheduler | None = None) -> None:
        self.now_ns = 0
        self.steps = 0
        self.root = Domain("world", 0)
        self.domain = self.root
        self.failure: BaseException | None = None
        self.unretrieved: list[str] = []
        self.crashed: Callable[[Domain, BaseException], None] = lambda _domain, error: self.fail(error)
        self.observer: Callable[[SimHandle], None] | None = None
        self.parked: list[object] = []
        self._generators: dict[int, Domain] = {}
        self._scheduler: Scheduler = scheduler or Fifo()
        self._ready: list[SimHandle] = []
        self._timers: list[tuple[int, int, SimTimer]] = []
        self._timers_cancelled = 0
        self._numbers = 0
        self._births = 0
        self._domains = 0
        self._trace: list[int] = []
        self._digest = hashlib.blake2b(digest_size=16)
        self._stopping = False
        self._running = False
        self._closed = False

    # --- scheduling ------------------------------------------------------------------------------------------------

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        """Run as soon as the schedule policy says."""
        if context is None:
            context = copy_context()
            domain = self.domain
        else:
            domain = context.get(DOMAIN, self.root)
        self._numbers = number = self._numbers + 1
        handle = SimHandle(callback, args, context, domain, number)
        self._ready.append(handle)
        return handle

    def call_at_ns(
        self, when_ns: int, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> SimTimer:
        """Run at a virtual time; a time that has passed means now."""
        if context is None:
            context = copy_context()
            domain = self.domain
        else:
            domain = context.get(DOMAIN, self.root)
        self._numbers = number = self._numbers + 1
        timer = SimTimer(callback, args, context, domain, number)
        timer._loop = self
        timer.when_ns = when_ns
        timer.queued = True
        heapq.heappush(self._timers, (when_ns, number, timer))
        return timer

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        """Run after `delay` seconds."""
        return self.call_at_ns(self.now_ns + max(0, round(delay * NS)), callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:  # type: ignore[override]
        """Run at `when` seconds of virtual time."""
        return self.call_at_ns(round(when * NS), callback, *args, context=context)

    def requeue(self, handle: SimHandle, *, delay_ns: int = 0) -> None:
        """Put back a handle that a gate took."""
        if delay_ns:
            self.call_at_ns(self.now_ns + delay_ns, self._ready.append, handle, context=self.root.context)
        else:
            self._ready.append(handle)

    def timer_cancelled(self) -> None:
        """Count a cancelled timer; sweep when they are many."""
        self._timers_cancelled += 1
        if self._timers_cancelled >= CANCELLED_TIMERS_MIN and 2 * self._timers_cancelled > len(self._timers):
            self._timers[:] = [entry for entry in self._timers if entry[2].callback is not None]
            heapq.heapify(self._timers)
            self._timers_cancelled = 0

    def time(self) -> float:
        """Virtual seconds since the run began."""
        return self.now_ns / NS

    # --- tasks and futures -----------------------------------------------------------------------------------------

    def next_birth(self) -> int:
        """A number that is given once."""
        self._births += 1
        return self._births

    def create_future(self) -> Any:
        """A future with a stable hash."""
        return SimFuture(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any] | Any, *, name: str | None = None, context: Context | None = None
    ) -> Any:
        """A task with a stable hash and name, in the present domain."""
        domain = self.domain if context is None else context.get(DOMAIN, self.root)
        task = SimTask(coro, loop=self, name=name or f"t{self._births + 1}", context=context)
        task.domain = domain
        self.note(f"task {hash(task)} {task.get_name()}")
        return task

    def new_domain(self, name: str) -> Domain:
        """A domain for one node incarnation."""
        self._domains += 1
        self.note(f"domain {self._domains} {name}")
        return Domain(name, self._domains)

    def tasks_of(self, domain: Domain) -> list[SimTask]:
        """Its unfinished tasks, in order of birth."""
        mine = [t for t in asyncio.all_tasks(self) if isinstance(t, SimTask) and t.domain is domain]
        return sorted(mine, key=lambda task: task.birth)

    def park(self, domain: Domain) -> int:
        """Drop a domain as a power cut does: nothing of it runs again, not even its `finally` blocks."""
        tasks = self.tasks_of(domain)
        self.parked.extend(tasks)
        self.parked.extend(task.get_coro() for task in tasks)
        domain.gate = self._drop
        return len(tasks)

    def dropped(self, domain: Domain) -> bool:
        """Whether that incarnation is gone."""
        return domain.gate == self._drop

    def _drop(self, handle: SimHandle) -> bool:
        self.parked.append((handle.callback, handle.args))
        return True

    # --- running ---------------------------------------------------------------------------------------------------

    def run(self, *, upto_ns: int) -> None:
        """Run until that time, until `stop()`, or until nothing is left to do; raise what failed."""
        previous = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._first_iteration, finalizer=self._finalize_generator)
        events._set_running_loop(self)
        self._running, self._stopping = True, False
        try:
            self._spin(upto_ns)
        finally:
            self._running = False
            self.domain = self.root
            events._set_running_loop(None)
            sys.set_asyncgen_hooks(*previous)
        if self.failure is not None:
            raise self.failure

    def _spin(self, upto_ns: int) -> None:
        ready, take, observer = self._ready, self._scheduler.take, self.observer
        note = self._trace.append
        quiet_upto = self.steps + STEPS_PER_INSTANT_MAX
        chores_at = self.steps
        while not self._stopping:
            if not ready:
                if not self._advance(upto_ns):
                    return
                quiet_upto = self.steps + STEPS_PER_INSTANT_MAX
                continue
            handle = ready.pop() if len(ready) == 1 else take(ready)
            callback = handle.callback
            if callback is None:
                continue
            domain = handle.domain
            if (gate := domain.gate) is not None and gate(handle):
                continue
            self.steps = step = self.steps + 1
            note(handle.number)
            if type(owner := getattr(callback, "__self__", None)) is SimTask:
                note(owner.birth)
            self.domain = domain
            if observer is not None:
                observer(handle)
            try:
                handle.context.run(callback, *handle.args)
            except BaseException as error:
                self.fail(error)
            if step >= chores_at:
                chores_at = self._chores(handle, step, quiet_upto)

    def _chores(self, last: SimHandle, step: int, quiet_upto: int) -> int:
        """What need not be looked at after every step; returns after which to come back."""
        self._fold()
        if step % GC_EVERY_STEPS == 0:
            gc.collect()
        if step >= quiet_upto:
            where = f"at t={self.now_ns / NS:.3f}s without time moving; last was {describe(last)}"
            self.fail(Livelock(f"{STEPS_PER_INSTANT_MAX} steps {where}"))
        return step - step % CHORES_EVERY_STEPS + CHORES_EVERY_STEPS

    def _advance(self, upto_ns: int) -> bool:
        """Move time to the next timer and make ready all that are due; False when there is none in time."""
        timers, ready = self._timers, self._ready
        while timers:
            when_ns = timers[0][0]
            if when_ns > upto_ns:
                break
            timer = heapq.heappop(timers)[2]
            if timer.callback is None:
                self._timers_cancelled -= 1
                continue
            if when_ns > self.now_ns:
                self.now_ns = when_ns
                self._trace.append(-when_ns)
            timer.queued = False
            ready.append(timer)
            while timers and timers[0][0] <= when_ns:
                timer = heapq.heappop(timers)[2]
                if timer.callback is None:
                    self._timers_cancelled -= 1
                else:
                    timer.queued = False
                    ready.append(timer)
            return True
        self.now_ns = max(self.now_ns, upto_ns)
        return False

    def stop(self) -> None:
        """End `run` after the present step."""
        self._stopping = True

    def fail(self, error: BaseException) -> None:
        """End the run with an error; the first one counts."""
        if self.failure is None:
            self.failure = error
        self._stopping = True

    # --- trace -----------------------------------------------------------------------------------------------------

    def note(self, line: str) -> None:
        """Mix a line into the trace, as a number beyond those of handles and tasks: there is one for every task."""
        self._trace.append(NOTE + crc32(line.encode()))

    def _fold(self) -> None:
        if self._trace:
            self._digest.update(array("q", self._trace).tobytes())
            self._trace.clear()

    @property
    def trace_hash(self) -> str:
        """The digest of everything so far."""
        self._fold()
        return self._digest.hexdigest()

    # --- the end ---------------------------------------------------------------------------------------------------

    def dispose(self) -> None:
        """Let go of every task, silently: what their `finally` blocks do or raise no longer matters."""
        hook, sys.unraisablehook = sys.unraisablehook, lambda _args: None
        self._closed = True
        events._set_running_loop(self)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for _ in range(DISPOSE_ROUNDS):  # closing may start more, which is let go of in turn
                    for task in self._tasks_left():
                        task._log_destroy_pending = False  # type: ignore[attr-defined]
                        _close_quietly(task.get_coro())
                    self._ready.clear()
                    self._timers.clear()
                    self.parked.clear()
                    gc.collect()
        finally:
            events._set_running_loop(None)
            sys.unraisablehook = hook

    def _tasks_left(self) -> list[SimTask]:
        return sorted((t for t in asyncio.all_tasks(self) if isinstance(t, SimTask)), key=hash)

    def _first_iteration(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators[id(generator)] = self.domain  # by address, but never iterated

    def _finalize_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        """An async generator lost its last reader: close it, unless its node is dead."""
        domain = self._generators.pop(id(generator), self.domain)
        if self._closed or self.dropped(domain):
            self.parked.append(generator)
        else:
            self.call_soon(self._close_generator, generator, context=domain.context)

    def _close_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        self.create_task(generator.aclose(), name="aclose")

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep what asyncio would log: errors that were never retrieved."""
        error = context.get("exception")
        if self._closed:
            return
        if error is None:
            self.unretrieved.append(str(context.get("message")))
        elif "future" not in context and "task" not in context:  # reported by a program, not found by the collector
            self.crashed(self.domain, error)
        else:
            self.unretrieved.append(f"{type(error).__name__}: {error}")

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """The same."""
        self.call_exception_handler(context)

    def is_running(self) -> bool:
        """Whether `run` is active."""
        return self._running

    def is_closed(self) -> bool:
        """Whether `dispose` was called. Says no to asyncio even then, so that late `finally` blocks stay quiet."""
        return False

    def close(self) -> None:
        """The same as `dispose`."""
        self.dispose()

    get_debug = bool
    """Never: debug mode looks at real time. `bool()` is False, and asyncio asks for every task and future there is."""


def _close_quietly(coroutine: Any) -> None:
    with contextlib.suppress(BaseException):  # a power cut hears no complaints
        coroutine.close()


def _escape(name: str) -> Callable[..., NoReturn]:
    def refused(self: SimLoop, *args: object, **kwargs: object) -> NoReturn:
        raise EscapedSimulation(f"loop.{name}() leaves the simulation; go through the runtime seam instead")

    refused.__name__ = name
    return refused


for _name in dir(asyncio.AbstractEventLoop):
    if not _name.startswith("_") and _name not in vars(SimLoop):
        setattr(SimLoop, _name, _escape(_name))
