"""The only threads of this folder: a worker that serves a queue, for work that must not hold up the loop.

    loop                                          worker thread
      submit(item) --> deque --------------------->  serve(deque): takes one item or many
      submit(item) -->   |     one wake-up              |  fsync ...
      submit(item) -->   |     per loop turn            |  meanwhile more items gather
                         |                              v
      done(results) <------- one call_soon_threadsafe per serve, not per item

What makes it cheap: a submit is a deque append; the thread is woken only if it sleeps, and only at the end of the
loop's present turn, so that everything this turn submits is in the first group. What makes it safe: the deque and the
flags are only touched by operations that are atomic under the interpreter lock, and a wake-up too many is harmless.

The thread is a daemon: a process that is ending does not wait for it. A caller that wants to wait calls `stop`.
"""

from __future__ import annotations

import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from slackwater.runtime.sync import Future, get_running_loop

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
R = TypeVar("R")


class ThreadWorker(Generic[T]):
    """A thread that serves items in order. Made, fed and stopped on one loop."""

    def __init__(self, name: str, serve: Callable[[deque[T]], None]) -> None:
        """`serve` runs in the thread; it takes at least one item from the left. It must not raise."""
        self._serve = serve
        self._items: deque[T] = deque()
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._asleep = False
        self._wake_due = False
        self._stopping = False
        self._loop = get_running_loop()
        self._ended: Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, item: T) -> None:
        """Queue an item. Bounds are the caller's business."""
        assert not self._stopping, "a thread that ends is given nothing more"
        self._items.append(item)
        if self._asleep and not self._wake_due:
            self._wake_due = True
            self._loop.call_soon(self._wake)

    def post(self, act: Callable[..., Any], *args: Any) -> None:
        """From the thread: run `act(*args)` on the loop; dropped if the loop is gone."""
        try:
            self._loop.call_soon_threadsafe(act, *args)
        except RuntimeError:  # the loop was closed under us: no caller is left to tell
            return

    def take_all(self) -> list[T]:
        """From the loop: withdraw what the thread has not taken yet."""
        assert threading.current_thread() is not self._thread, "what the thread has taken cannot be withdrawn"
        taken: list[T] = []
        while True:
            try:
                taken.append(self._items.popleft())
            except IndexError:
                return taken

    async def stop(self) -> None:
        """Serve what is queued, end the thread and wait for it."""
        assert not self._stopping, "a thread is ended once"
        self._stopping = True
        self._tokens.put(None)
        await self._ended
        self._thread.join()
        assert not self._items, "what was queued has been served"

    def _wake(self) -> None:
        assert self._wake_due, "a thread is woken once for what has gathered"
        self._wake_due = False
        self._tokens.put(None)

    def _run(self) -> None:
        while True:
            if self._items:
                self._serve(self._items)
                continue
            if self._stopping:
                break
            self._asleep = True
            if not self._items and not self._stopping:  # an item queued before `_asleep` was set rang no bell
                self._tokens.get()
            self._asleep = False
        self.post(self._mark_ended)

    def _mark_ended(self) -> None:
        assert self._stopping, "a thread ends when it was told to"
        if not self._ended.done():
            self._ended.set_result(None)


class ThreadJob(Generic[R]):
    """A call to make in the thread, and the future of its result."""

    __slots__ = ("call", "future")

    def __init__(self, call: Callable[[], R]) -> None:
        self.call = call
        self.future: Future[R] = get_running_loop().create_future()

    def run(self, post: Callable[..., None]) -> None:
        """In the thread: make the call, send the result home."""
        try:
            result = self.call()
        except Exception as error:  # carried to the caller that awaits the future
            post(_settle, self.future, None, error)
        else:
            post(_settle, self.future, result, None)


class JobThread:
    """A worker that makes calls one by one."""

    def __init__(self, name: str) -> None:
        self._worker: ThreadWorker[ThreadJob[Any]] = ThreadWorker(name, self._serve)

    def submit(self, call: Callable[[], R]) -> Future[R]:
        """Make the call in the thread; the future of its result."""
        job = ThreadJob(call)
        self._worker.submit(job)
        return job.future

    async def stop(self) -> None:
        """End the thread after what is queued."""
        await self._worker.stop()

    def _serve(self, jobs: deque[ThreadJob[Any]]) -> None:
        jobs.popleft().run(self._worker.post)


def _settle(future: Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():  # the waiter was cancelled
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
