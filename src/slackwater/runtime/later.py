"""An answer that comes later, without a task that waits for it.

    begun ──► Later ── when_settled(act) ► act(error), in the very step that settles it: for what is kept until then
                  ├─── then(tell) ──────► tell(answer, None) or tell(None, error), in a step of its own
                  ├─── map(made) ───────► the same, with its answer made by `made` from what it is told
                  ├─── go_on(further) ──► the same, with `further` told the answer or the error; it may answer with another Later
                  ├─── settle_told ─────► by one who was told something: tells on in that step
                  └─── await wait() ────► for work that is a task already

A task costs more than most of what a server is asked for. What has been handed to the log needs none: nothing is left to do
until its fate is known, and then only the answer is to be sent.

Rules
    - It is settled once, and told once: `then` and `wait` are called once, by one caller.
    - It is told in a step of its own, never inside the step that settled it: there state is being changed, and what an
      answer brings about must not meet it half changed. `when_settled` is for what changes state in that very step, such as
      the release of latches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from slackwater.errors import InvariantViolation, SlackwaterError
from slackwater.runtime.sync import get_running_loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.runtime.sync import Future

T = TypeVar("T")
U = TypeVar("U")


class Later(Generic[T]):
    """One answer that is told later, and what is done with it then."""

    __slots__ = ("_at_once", "_error", "_further", "_made", "_settled", "_tell", "_value")

    def __init__(
        self,
        *,
        when_settled: Callable[[SlackwaterError | None], None] | None = None,
        made: Callable[[Any], Any] | None = None,
    ) -> None:
        """With what is known when it is begun: as if `when_settled` and `map` had been called."""
        self._settled = False
        self._at_once: tuple[Callable[[SlackwaterError | None], None], ...] = (
            () if when_settled is None else (when_settled,)
        )
        self._value: Any = None
        self._error: SlackwaterError | None = None
        self._made: tuple[Callable[[Any], Any], ...] = () if made is None else (made,)
        self._further: Callable[[Any, SlackwaterError | None], Any] | None = None
        self._tell: Callable[[Any, SlackwaterError | None], None] | None = None

    def done(self) -> bool:
        """Whether it is settled."""
        return self._settled

    def when_settled(self, act: Callable[[SlackwaterError | None], None]) -> None:
        """Have `act(error)`, None if there is none, called in the very step in which it is settled, before anything is told."""
        self._at_once += (act,)

    def map(self, made: Callable[[T], U]) -> Later[U]:
        """The same one, whose answer is now `made` of the answer it would have had. To be called before `then`."""
        self._made += (made,)
        return cast("Later[U]", self)

    def go_on(self, further: Callable[[T | None, SlackwaterError | None], U | Later[U]]) -> Later[U]:
        """The same one, whose answer is now what `further(answer, error)` returns or raises. To be called before `then`."""
        assert self._further is None, "an answer is gone on from once"
        self._further = further
        return cast("Later[U]", self)

    def then(self, tell: Callable[[T | None, SlackwaterError | None], None]) -> None:
        """Have `tell(answer, error)` called once it is settled; one of the two is None."""
        if self._tell is not None:
            raise InvariantViolation("A-told-once", {})
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
        if self._settled:  # spelled out, here and in `then`: every command passes
            raise InvariantViolation("A-settled-once", {})
        for act in self._at_once:
            act(error)
        self._settled, self._value, self._error = True, value, error
        if self._tell is not None:
            get_running_loop().call_soon(self._told)

    def settle_told(self, value: Any, error: SlackwaterError | None = None) -> None:
        """`settle`, by one who was told in a step of its own: what waits for this answer is told in that step too."""
        tell, self._tell = self._tell, None
        self.settle(value, error)
        if tell is not None:
            self._tell = tell
            self._told()

    def _told(self) -> None:
        tell, self._tell = self._tell, None
        if tell is None:
            return
        value, error = self._value, self._error
        try:
            if error is None:
                for made in self._made:
                    value = made(value)
        except SlackwaterError as failed:
            value, error = None, failed
        if self._further is not None:
            try:
                value, error = self._further(value, error), None
            except SlackwaterError as failed:
                value, error = None, failed
            if isinstance(value, Later):
                value.then(tell)
                return
        tell(value, error)
