"""What the generated classes of `client.sync` rest on: a loop on a thread of its own, and application code between its turns.

    application's thread     db.get(…) ─┐            ┌─► row        function(tx) ─┐         ┌─ function(tx)
    loop's thread                       └ twin.get ──┘                            └ restart ┘

Almost every method of a synchronous class is one call of its asynchronous twin, waited for. `scripts/sync_client.py` writes
those from the twins. By hand remain the few where code of the application runs between two turns of the loop, on its own thread:
the block of a transaction, the function given to `run`, and the end of a session.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from slackwater.client.arguments import function_of
from slackwater.client.database import AsyncDatabase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from slackwater.client.transaction import Attempts
    from slackwater.runtime.loop_thread import LoopThread

T = TypeVar("T")
Twin = TypeVar("Twin")
Tx = TypeVar("Tx")


class Blocking(Generic[Twin]):
    """A synchronous object over its asynchronous twin, which lives on the loop of another thread."""

    def __init__(self, loop: LoopThread, twin: Twin) -> None:
        self._loop = loop
        self._twin = twin

    def __repr__(self) -> str:
        return repr(self._twin)

    @contextmanager
    def _block(self, opened: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """An asynchronous block around code that runs on this thread."""
        entered = self._loop.run(_enter(opened))
        try:
            yield entered
        except BaseException as error:
            self._loop.run(_leave(opened, error))
            raise
        self._loop.run(_leave(opened))

    def _retry(self, attempts: Attempts, tx: Tx, function: Callable[[Tx], T]) -> T:
        """Call a function with a transaction until it commits; between the tries and at the end the twin decides."""
        function_of(function)
        while True:
            try:
                value = function(tx)
                self._loop.run(attempts.tx.commit())
            except BaseException as error:
                self._loop.run(attempts.failed(error))
            else:
                return value


class Session(Blocking[AsyncDatabase]):
    """A session that owns its loop: close it, or use it in a `with`."""

    def __init__(self, loop: LoopThread, twin: AsyncDatabase, opened: AbstractAsyncContextManager[Any]) -> None:
        super().__init__(loop, twin)
        self._opened = opened
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session (and, of `slackwater.open`, the node). Does nothing the second time."""
        if self._closed:
            return
        self._closed = True
        try:
            self._loop.run(_leave(self._opened))
        finally:
            self._loop.close()


async def _enter(opened: AbstractAsyncContextManager[T]) -> T:
    return await opened.__aenter__()


async def _leave(opened: AbstractAsyncContextManager[Any], error: BaseException | None = None) -> None:
    """Leave a block, normally or by an error, which the caller raises again."""
    if error is None:
        await opened.__aexit__(None, None, None)
        return
    try:
        await opened.__aexit__(type(error), error, error.__traceback__)
    except BaseException as again:
        if again is not error:
            raise
