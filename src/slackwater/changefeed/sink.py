"""Between a feed and wherever its events go: blocks in order, one at a time, again until they are taken.

    put(block) ─► [b1 b2 b3] ─► emit(b1) ✗ emit(b1) ✓ emit(b2) …          flush(): everything put so far has been taken

Rules
    I-24  A block that failed is tried again before anything put after it: a retry never overtakes (pitfall 31).
    I-25  `flush` returns only when the receiver has taken everything; code that reports "done" or saves a token flushes
          first (pitfall 30).

What waits is bounded by `blocks_max`: `put` waits for room. An error that is not worth repeating goes to the next caller of
`flush` or `put`, and nothing is emitted after it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from slackwater.errors import Retry, SlackwaterError
from slackwater.hooks import level, probe
from slackwater.runtime.retry import Backoff
from slackwater.runtime.sync import Event

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from slackwater.runtime.seam import Runtime, TaskScope

T = TypeVar("T")

BLOCKS_MAX = 64
PAUSE_MIN_S, PAUSE_MAX_S = 0.01, 2.0
_LASTING = (Retry.NEVER, Retry.TRANSACTION)


class Sink(Generic[T]):
    """Hands blocks to `emit`, one after another, from a task of its own."""

    def __init__(
        self, emit: Callable[[T], Awaitable[None]], *, runtime: Runtime, scope: TaskScope, blocks_max: int = BLOCKS_MAX
    ) -> None:
        self._emit = emit
        self._runtime = runtime
        self._blocks: deque[T] = deque()
        self._blocks_max = blocks_max
        self._changed = Event()
        self._filled = Event()
        self._failure: SlackwaterError | None = None
        scope.spawn(self._run(), name="sink")

    async def put(self, block: T) -> None:
        """Queue a block behind all others; waits while too many are queued."""
        await self._until(lambda: len(self._blocks) < self._blocks_max)
        self._blocks.append(block)
        level("feeds.sink_blocks", len(self._blocks), self._blocks_max)
        self._filled.set()

    async def flush(self) -> None:
        """Return once everything put so far has been taken."""
        await self._until(lambda: not self._blocks)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            await self._changed.wait()
        if self._failure is not None:
            raise self._failure

    async def _run(self) -> None:
        backoff = Backoff(self._runtime.rng, least=PAUSE_MIN_S, most=PAUSE_MAX_S)
        while self._failure is None:
            if not self._blocks:
                self._filled.clear()
                await self._filled.wait()
            try:
                await self._emit(self._blocks[0])
            except SlackwaterError as error:
                probe("feeds.sink_again")
                if error.retry in _LASTING:
                    self._failure = error
                    self._changed.set()
                    return
                await self._runtime.clock.sleep(backoff.next())
            else:
                self._blocks.popleft()
                backoff.rounds = 0
                self._changed.set()
