"""The futures behind latches, proposals and pushes: waiting by key, deadlines, and errors that callers know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from slackwater.errors import InvariantViolation, SlackwaterError
from slackwater.runtime.deadline import Deadline, for_callee
from slackwater.runtime.sync import Future, get_running_loop, timeout

if TYPE_CHECKING:
    from collections.abc import Hashable

    from slackwater.protocol.range.requests import Batch
    from slackwater.runtime.seam import Clock

NO_HURRY_S = 3600.0
"""For batches without a deadline."""
K = TypeVar("K", bound="Hashable")


class Waiters(Generic[K]):
    """Futures by key. Telling a key wakes all that wait for it, in order of arrival."""

    def __init__(self) -> None:
        self._futures: dict[K, list[Future[None]]] = {}

    async def wait(self, key: K, *, seconds: float) -> bool:
        """Wait until the key is told; False when the time ran out first."""
        future: Future[None] = get_running_loop().create_future()
        self._futures.setdefault(key, []).append(future)
        try:
            async with timeout(seconds):
                await future
        except TimeoutError:
            return False
        finally:
            waiting = self._futures.get(key)
            if waiting is not None and future in waiting:
                waiting.remove(future)
                if not waiting:
                    del self._futures[key]
        return True

    def tell(self, key: K) -> None:
        """Wake all that wait for `key`."""
        for future in self._futures.pop(key, ()):
            if not future.done():
                future.set_result(None)

    def tell_all(self) -> None:
        """Wake all waiters."""
        for key in list(self._futures):
            self.tell(key)
        assert not self._futures, "all that waited were told"

    def __len__(self) -> int:
        return sum(map(len, self._futures.values()))


def deadline_of(batch: Batch, clock: Clock) -> Deadline:
    """The deadline for proposing a batch: early enough for its caller to be told that it was not proposed.

    From there on it is in the log's hands, and a caller that gives up does not know what becomes of it.
    """
    ms = batch.header.deadline_ms
    return Deadline(clock, seconds=for_callee(for_callee(ms / 1000)) if ms else NO_HURRY_S)


def as_known(error: Exception, *, doing: str) -> SlackwaterError:
    """The error itself, or, for one that is not of our tree and so a bug, a violation; its trace goes to the loop's handler."""
    if isinstance(error, SlackwaterError):
        return error
    get_running_loop().call_exception_handler({"message": f"{doing} crashed", "exception": error})
    return InvariantViolation("A-crash", {"doing": doing, "error": repr(error)})
