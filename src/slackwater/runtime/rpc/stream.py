"""The caller's end of a server stream.

The server may run `window` items ahead of the consumer, no further: every item it sends uses up one credit, and the
consumer gives credit back as it takes items, half a window at a time so that credit costs next to nothing.

    server credit   4 3 2 1 0 · · waits · ·  2 1 0
    items             a b c d                e f
    consumer                   takes a, b → Credit(2)

So a slow consumer holds at most `window` decoded items and holds up no other stream of the connection.

Close a stream that is not read to its end: `async with peer.stream(...) as events:` or `await events.aclose()`. A task
that is cancelled while it waits for an item closes the stream. The connection closes it when it ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from slackwater.errors import ProtocolError, SlackwaterError
from slackwater.hooks import level

if TYPE_CHECKING:
    from collections.abc import Callable

    import msgspec

    from slackwater.runtime.rpc.method import StreamMethod

Res = TypeVar("Res")


class Stream(Generic[Res]):
    """An `AsyncIterator` of what the server sends; one consumer."""

    def __init__(
        self,
        method: StreamMethod[object, Res],
        *,
        window: int,
        credit: Callable[[int], None],
        cancel: Callable[[], None],
    ) -> None:
        self._method = method
        self._window = window
        self._allowance = window  # items the server may still send
        self._taken = 0  # items consumed whose credit was not yet given back
        self._give_credit = credit
        self._cancel = cancel
        self._items: deque[Res] = deque()
        self._ended = False
        self._error: SlackwaterError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __aiter__(self) -> Stream[Res]:
        return self

    async def __anext__(self) -> Res:
        while not self._items:
            if self._ended:
                self._raise_end()
            await self._wait()
        item = self._items.popleft()
        self._taken += 1
        if not self._ended and self._taken * 2 >= self._window:
            self._allowance += self._taken
            self._give_credit(self._taken)
            self._taken = 0
        return item

    async def aclose(self) -> None:
        """Stop the server; items not yet taken are dropped."""
        self.cancel()

    async def __aenter__(self) -> Stream[Res]:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.cancel()

    def cancel(self) -> None:
        """As `aclose`, where nothing can be awaited. A consumer that waits sees the end of the stream."""
        self._items.clear()
        if not self._ended:
            self._finish(None)
            self._cancel()

    @property
    def buffered(self) -> int:
        """Items received and not yet taken; never above the window."""
        return len(self._items)

    # --- what the peer calls

    def item(self, body: msgspec.Raw) -> None:
        """An item came."""
        self._allowance -= 1
        if self._allowance < 0:
            self.abort(ProtocolError("the server sent more than the stream's window", method=self._method.name))
            return
        try:
            self._items.append(self._method.decode_response(body))
        except SlackwaterError as error:
            self.abort(error)
            return
        level("rpc.stream_items", len(self._items), self._window)
        self._wake()

    def end(self) -> None:
        """The server has sent everything."""
        self._finish(None)

    def fail(self, error: SlackwaterError) -> None:
        """The stream broke; the consumer sees the error after the items that came before it."""
        self._finish(error)

    def abort(self, error: SlackwaterError) -> None:
        """Fail on this side and stop the server."""
        if not self._ended:
            self._finish(error)
            self._cancel()

    def _finish(self, error: SlackwaterError | None) -> None:
        if not self._ended:
            self._ended = True
            self._error = error
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        except asyncio.CancelledError:
            self.cancel()
            raise
        finally:
            self._waiter = None

    def _raise_end(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
        raise StopAsyncIteration
