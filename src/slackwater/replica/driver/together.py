"""Gathers the lone writes that arrive in one turn of the loop while others are under way, and begins them together.

    write ── nothing of its range under way ──► alone, in this very step
      └───── else ──► gathered ── end of the turn ──► of one range: one command (`replica.together`)
                                                         └─ something in the way: each alone

A request that is no lone write and may touch what is gathered has that begun first: first come, first served.

A write that meets an idle range gains nothing by waiting for others. One that meets a busy range would wait for the command that
is under way in any case, and so would those that come with it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from slackwater.errors import InvariantViolation, SlackwaterError
from slackwater.hooks import level, probe
from slackwater.protocol.range.requests import Get
from slackwater.replica.driver.waiting import as_known
from slackwater.replica.together import TOGETHER_MAX, Answers, combined, divide
from slackwater.runtime.later import Later
from slackwater.runtime.sync import get_running_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.ids import RangeId
    from slackwater.protocol.range.requests import Batch, BatchResult
    from slackwater.replica.driver.context import ReplicaContext
    from slackwater.replica.driver.replica import Replica

    Begin = Callable[[Batch, Timestamp | None, Sequence[Batch]], BatchResult | Later[BatchResult] | None]
    Member = tuple[Batch, Later[BatchResult]]


class Together:
    """The lone writes of one store that wait for the end of the turn."""

    def __init__(self, context: ReplicaContext, begin: Begin) -> None:
        """`begin` answers a batch at once; its last argument is what a combined batch is made of."""
        self._context = context
        self._begin = begin
        self._gathered: list[Member] = []
        self._keys: set[bytes] = set()

    def has_room_for(self, batch: Batch, replica: Replica) -> bool:
        """Whether a lone write may wait for the end of the turn.

        Not one that meets another on its key, which is to queue behind it now, nor where writes lie in the future (LEAD).
        """
        key: bytes = batch.requests[0].key  # type: ignore[union-attr]  # a put
        if key in self._keys or replica.executor.touches(key):
            return False
        return replica.pipeline.buffer.assigned_closed < self._context.clock.latest

    def take(self, batch: Batch) -> Later[BatchResult]:
        """Begin a lone write at the end of this turn. Told None: nothing was done, it has to wait for something."""
        later: Later[BatchResult] = Later()
        if not self._gathered:
            get_running_loop().call_soon(self._go)
            self._context.gathering = True
        assert self._context.gathering, "while writes are gathered, no entry leaves without them"
        self._gathered.append((batch, later))
        self._keys.add(batch.requests[0].key)  # type: ignore[union-attr]  # a put
        assert len(self._keys) == len(self._gathered), "no two of them have one key"
        level("replica.together", len(self._gathered), TOGETHER_MAX)
        if len(self._gathered) >= TOGETHER_MAX:
            self._go()
        return later

    def make_way(self, batch: Batch) -> bool:
        """Begin what is gathered now if another request may touch the same: first come, first served. Whether anything was."""
        if not self._gathered or all(type(r) is Get and r.key not in self._keys for r in batch.requests):
            return False
        self._go()
        return True

    def _go(self) -> None:
        gathered, self._gathered, self._keys = self._gathered, [], set()
        self._context.gathering = False
        ranges: dict[RangeId, list[Member]] = {}
        for member in gathered:
            ranges.setdefault(member[0].header.range_id, []).append(member)
        for range_id, members in ranges.items():
            now = self._context.clock.now()
            together, alone = divide([batch for batch, _ in members], now)
            if len(together) < 2 or not self._share(range_id, [members[place] for place in together], now):
                alone = sorted((*together, *alone))
            for place in alone:
                self._alone(*members[place])

    def _share(self, range_id: RangeId, members: list[Member], now: Timestamp) -> bool:
        """Begin writes of one range as one command, if nothing is in the way of any."""
        batches = [batch for batch, _ in members]
        try:
            begun = self._begin(combined(range_id, batches), now, batches)
        except SlackwaterError:  # what one of them met: by itself it is told
            begun = None
        except Exception as error:
            as_known(error, doing="writing together")
            begun = None
        if not isinstance(begun, Later):
            probe("replica.together_in_the_way")
            return False
        probe("replica.together")
        begun.then(partial(self._told, members))
        return True

    def _told(self, members: list[Member], answer: BatchResult | None, error: SlackwaterError | None) -> None:
        answers = None if answer is None else Answers(answer)
        assert (answers is None) is (error is not None), "one of the two is told"
        for batch, later in members:
            if answers is not None:
                _tell(later, answers.of(batch), None)
            elif error is not None:
                _tell(later, None, _again(error))

    def _alone(self, batch: Batch, later: Later[BatchResult]) -> None:
        try:
            begun = self._begin(
                batch, None, ()
            )  # by a reading of its own: a leaseholder serves by each only once (I-01)
        except Exception as error:
            later.settle(None, as_known(error, doing="writing"))
            return
        if isinstance(begun, Later):
            begun.then(partial(_tell, later))
        else:
            later.settle(begun)


def _again(error: SlackwaterError) -> SlackwaterError:
    """The same error as an object of its own: each caller adds to the facts of its own."""
    return error if isinstance(error, InvariantViolation) else type(error)(error.message, **error.facts)


def _tell(later: Later[Any], answer: BatchResult | None, error: SlackwaterError | None) -> None:
    """Tell one caller; a bug in what its answer brings about is not its neighbors'."""
    try:
        later.settle_told(answer, error)
    except Exception as failed:
        as_known(failed, doing="telling an answer")
