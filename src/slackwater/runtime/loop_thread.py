"""An event loop on a thread of its own, for programs that do not await.

    thread = LoopThread()
    answer = thread.run(coroutine)             waits, and raises what it raised
    for item in thread.iterate(generator): …   one step of an asynchronous generator per item
    thread.close()

The loop thread is a daemon: a program that forgets to close it can still end. An interrupt (Ctrl-C) while waiting cancels
the coroutine before it is raised. A process that was forked has no loop thread any more: it is told so, instead of waiting
for ever.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from slackwater.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Iterator

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for threads that have no loop."""

    def __init__(self, *, name: str = "slackwater-client") -> None:
        self._loop = _new_loop()
        self._pid = os.getpid()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end and return what it returns."""
        if self._closed or os.getpid() != self._pid:
            work.close()
            raise UsageError("the connection is closed, or this process was forked from the one that opened it")
        if threading.current_thread() is self._thread:
            work.close()
            raise UsageError("this is the loop's own thread; await the asynchronous twin instead")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """The items of an asynchronous generator; it is closed when the iteration ends, however it ends."""
        try:
            while True:
                try:
                    item = self.run(_next(items))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            if not self._closed and os.getpid() == self._pid:
                self.run(items.aclose())

    def close(self) -> None:
        """End the loop and its thread. What still runs there is cancelled."""
        if self._closed:
            return
        self._closed = True
        if os.getpid() == self._pid:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()


async def _next(items: AsyncGenerator[T, None]) -> T:
    """One item; the end of the generator may not cross a future as `StopIteration` would."""
    return await anext(items)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # Windows has none
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
