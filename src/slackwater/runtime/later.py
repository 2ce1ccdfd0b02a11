"""An answer that comes later, without a task that waits for it.

    begun ──► Later ── then(tell) ──────► tell(answer, None) or tell(None, error), in a step of its own
                  ├─── map(made) ───────► the same, with its answer made by `made` from what it is told
                  └─── await wait() ────► for work that is a task already

A task costs more than most of what a server is asked for. What has been handed to the log needs none: nothing is left to do
until its fate is known, and then only the answer is to be sent.

Rules
    - It is settled once, and told once: whoever calls `then` or `wait` is the only one.
    - It is told in a step of its own, never inside the step that settled it: there state is being changed, and what an
      answer brings about must not meet it half changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from slackwater.errors import SlackwaterError, invariant
from slackwater.runtime.sync import get_running_loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.runtime.sync import Future

T = TypeVar("T")
U = TypeVar("U")


class Later(Generic[T]):
    """Where one answer is told."""

    __slots__ = ("_error", "_made", "_settled", "_tell", "_value")

    def __init__(self) -> None:
        self._settled = False
        self._value: Any = None
        self._error: SlackwaterError | None = None
        self._made: tuple[Callable[[Any], Any], ...] = ()
        self._tell: Callable[[Any, SlackwaterError | None], None] | None = None

    def done(self) -> bool:
        """Whether it is settled."""
        return self._settled

    def map(self, made: Callable[[T], U]) -> Later[U]:
        """The same one, whose answer is now `made` of the answer it would have had. To be called before `then`."""
        self._made += (made,)
        return cast("Later[U]", self)

    def then(self, tell: Callable[[T | None, SlackwaterError | None], None]) -> None:
        """Have `tell(answer, error)` called once it is settled; one of the two is None."""
        invariant(self._tell is None, "A-told-once")
        self._tell = tell
        if self._settled:
            get_running_loop().call_soon(self._told)

    async def wait(self) -> T:
        """The answer, or the error. A caller that is cancelled leaves it alone."""
        future: Future[T] = get_running_loop().create_future()

        def tell(answer: T | None, error: SlackwaterError | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(cast("T", answer))

        self.then(tell)
        try:
            return await future
        finally:
            if self._tell is tell:  # the caller gave up: another may ask
                self._tell = None

    def settle(self, value: Any, error: SlackwaterError | None = None) -> None:
        """The answer is known, or the error that there is none."""
        invariant(not self._settled, "A-settled-once")
        self._settled, self._value, self._error = True, value, error
        if self._tell is not None:
            get_running_loop().call_soon(self._told)

    def _told(self) -> None:
        tell, self._tell = self._tell, None
        if tell is None:
            return
        value, error = self._value, self._error
        if error is None:
            try:
                for made in self._made:
                    value = made(value)
            except SlackwaterError as failed:
                value, error = None, failed
        tell(value if error is None else None, error)
