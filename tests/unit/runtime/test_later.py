"""Answers that come later, and calls that are served in the step in which their frame arrives."""

import asyncio

import pytest

from slackwater.errors import ConflictError, DeadlineExceeded, InvariantViolation, Overloaded, UnavailableError
from slackwater.runtime import run
from slackwater.runtime.access import ANYBODY
from slackwater.runtime.later import Later
from slackwater.runtime.rpc import Method
from tests.unit.runtime.world import NETS, Answer, Ask, turns, world

MAYBE = Method("maybe", Ask, Answer, callers=ANYBODY)
both_nets = pytest.mark.parametrize("net", NETS)


def test_it_is_told_once_in_a_step_of_its_own_and_mapped_in_order():
    async def main():
        told = []
        later: Later[int] = Later()
        later.map(lambda n: n + 1).map(str).then(lambda answer, error: told.append((answer, error)))
        later.settle(41)
        assert told == [], "not inside the step that settles it"
        await asyncio.sleep(0)
        assert told == [("42", None)]
        with pytest.raises(InvariantViolation, match="A-settled-once"):
            later.settle(1)

    run(main())


def test_what_is_known_already_is_told_as_well_and_errors_pass_maps_by():
    async def main():
        later: Later[int] = Later()
        later.settle(None, UnavailableError("gone"))
        with pytest.raises(UnavailableError, match="gone"):
            await later.map(lambda n: n + 1).wait()

        def refuse(_answer):
            raise ConflictError("made of the answer")

        other: Later[int] = Later()
        other.settle(1)
        with pytest.raises(ConflictError):
            await other.map(refuse).wait()

    run(main())


def test_a_caller_that_gave_up_leaves_its_place_to_another():
    async def main():
        later: Later[int] = Later()
        first = asyncio.create_task(later.wait())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        second = asyncio.create_task(later.wait())
        await asyncio.sleep(0)
        later.settle(7)
        assert await second == 7

    run(main())


class Maybe:
    """A method that answers even numbers at once, odd ones later, and those above a hundred the long way."""

    def __init__(self, w):
        self.begun = {}
        self.long = 0
        w.server.handle(MAYBE, self.function, at_once=self.at_once)

    def at_once(self, request, context):
        assert context.node_id == 0, "a client asks"
        if request.n > 100:
            return None
        if request.n < 0:
            raise ConflictError("that is the answer")
        if request.n % 2 == 0:
            return Answer(request.n)
        later = self.begun[request.n] = Later()
        return later

    async def function(self, request, context):
        self.long += 1
        return Answer(-request.n)


@both_nets
def test_calls_are_answered_at_once_later_or_the_long_way(net):
    async def main():
        async with world(net) as w:
            maybe = Maybe(w)
            peer = await w.peer()
            assert (await peer.call(MAYBE, Ask(4))).n == 4
            assert (await peer.call(MAYBE, Ask(104))).n == -104
            assert maybe.long == 1
            with pytest.raises(ConflictError):
                await peer.call(MAYBE, Ask(-1))
            calls = [asyncio.create_task(peer.call(MAYBE, Ask(n), timeout=60)) for n in (1, 3)]
            while len(maybe.begun) < 2:
                await turns(1)
            (session,) = w.server._sessions
            assert session.in_flight == 2, "they count, without a task"
            maybe.begun[3].settle(Answer(30))
            maybe.begun[1].settle(None, UnavailableError("gone"))
            assert (await calls[1]).n == 30
            with pytest.raises(UnavailableError):
                await calls[0]
            assert session.in_flight == 0

    run(main())


@both_nets
def test_what_is_pending_is_bounded_has_a_deadline_and_can_be_cancelled(net):
    async def main():
        async with world(net, requests_in_flight_max=2) as w:
            maybe = Maybe(w)
            peer = await w.peer()
            with pytest.raises(DeadlineExceeded):
                await peer.call(MAYBE, Ask(1), timeout=0.05)
            cancelled = asyncio.create_task(peer.call(MAYBE, Ask(3), timeout=60))
            while 3 not in maybe.begun:
                await turns(1)
            cancelled.cancel()
            (session,) = w.server._sessions
            while sum(context.cancelled for context in session._running.values()) < 2:
                await turns(1)
            with pytest.raises(Overloaded, match="running"):
                await peer.call(MAYBE, Ask(5), timeout=60)
            maybe.begun[1].settle(Answer(1))
            maybe.begun[3].settle(Answer(3))
            while session.in_flight:
                await turns(1)
            assert (await peer.call(MAYBE, Ask(6))).n == 6

    run(main())


@both_nets
def test_an_answer_after_the_end_of_the_session_goes_nowhere(net):
    async def main():
        async with world(net) as w:
            maybe = Maybe(w)
            peer = await w.peer()
            call = asyncio.create_task(peer.call(MAYBE, Ask(1), timeout=60))
            while not maybe.begun:
                await turns(1)
            (session,) = w.server._sessions
            session.close()
            with pytest.raises(UnavailableError):
                await call
            maybe.begun[1].settle(Answer(1))
            await turns(3)
            assert session.in_flight == 0
            assert not w.crashes

    run(main())
