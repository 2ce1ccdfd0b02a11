import asyncio
import gc
import weakref

import msgspec
import pytest

from slackwater import errors
from slackwater.clock import Timestamp
from slackwater.errors import (
    ConnectionLost,
    DeadlineExceeded,
    DecodeError,
    EntryTooLarge,
    InvariantViolation,
    NotLeaseholder,
    Overloaded,
    ProtocolError,
    SlackwaterError,
    UnavailableError,
)
from slackwater.runtime import run
from slackwater.runtime.access import ANYBODY
from slackwater.runtime.rpc import Method, StreamMethod
from slackwater.runtime.rpc.wire import Cancel, OpenStream, Request, encode, raw
from tests.unit.runtime.world import COUNT, DOUBLE, ECHO, FAIL, HANG, NETS, Answer, Ask, turns, world

both_nets = pytest.mark.parametrize("net", NETS)


@both_nets
def test_a_call_returns_what_the_handler_returned(net):
    async def main():
        async with world(net) as w:
            peer = await w.peer()
            assert await peer.call(ECHO, Ask(7, b"x")) == Answer(7, b"x")
            assert await peer.call(DOUBLE, Ask(21), timeout=5) == Answer(42)
            assert peer.node_id == 1
            assert peer.in_flight == 0

    run(main())


@both_nets
def test_thousands_of_calls_at_once_each_get_their_own_answer(net):
    async def main():
        async with world(net) as w:
            peer = await w.peer()
            methods = (ECHO, DOUBLE)
            calls = [peer.call(methods[n % 2], Ask(n), timeout=60) for n in range(4000)]
            answers = await asyncio.gather(*calls)
            assert [a.n for a in answers] == [n * (1 + n % 2) for n in range(4000)]
            assert peer.in_flight == 0
            assert len(peer._deadlines) <= 4 * 4000

    run(main())


@both_nets
def test_large_bodies_pass_whole(net):
    async def main():
        async with world(net, frame_bytes_max=1 << 22) as w:
            peer = await w.peer()
            data = bytes(range(256)) * 4096 * 3
            assert (await peer.call(ECHO, Ask(1, data))).data == data

    run(main())


def make_error(name):
    kind = getattr(errors, name)
    return kind("I-10", {"key": b"k"}) if kind is InvariantViolation else kind(f"{name} happened", key=b"k", at=3)


@pytest.mark.parametrize(
    "name", [n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, SlackwaterError)]
)
def test_every_error_arrives_as_its_own_class(name):
    async def main():
        async with world() as w:
            w.error = make_error(name)
            peer = await w.peer()
            with pytest.raises(SlackwaterError) as caught:
                await peer.call(FAIL, Ask(1))
            assert type(caught.value) is getattr(errors, name)
            assert caught.value.message == w.error.message
            assert caught.value.facts == w.error.facts
            assert getattr(caught.value, "rule", "") == getattr(w.error, "rule", "")
            assert w.server.crashes == (name == "InvariantViolation")

    run(main())


def test_facts_that_msgpack_cannot_carry_arrive_as_text():
    class Strange:
        def __repr__(self):
            return "<strange>"

    async def main():
        async with world() as w:
            hint = Answer(4)
            w.error = NotLeaseholder(
                "elsewhere", hint=hint, at=Timestamp(9), odd=Strange(), nested=[Strange()], many={"a": (1, b"2")}
            )
            with pytest.raises(NotLeaseholder) as caught:
                await (await w.peer()).call(FAIL, Ask(1))
            facts = caught.value.facts
            assert facts["at"] == 9
            assert facts["odd"] == "<strange>"
            assert facts["nested"] == "[<strange>]"
            assert facts["many"] == {"a": [1, b"2"]}
            assert facts["hint"] == {"n": 4, "data": b""}

    run(main())


def test_an_error_whose_facts_do_not_fit_keeps_its_class():
    async def main():
        async with world(frame_bytes_max=1 << 16) as w:
            w.error = NotLeaseholder("elsewhere", **{f"f{n}": bytes(1 << 15) for n in range(4)})
            peer = await w.peer()
            with pytest.raises(NotLeaseholder, match="elsewhere") as caught:
                await peer.call(FAIL, Ask(1))
            assert caught.value.facts == {}
            w.error = InvariantViolation("I-10", {f"f{n}": bytes(1 << 15) for n in range(4)})
            with pytest.raises(InvariantViolation, match="I-10"):
                await peer.call(FAIL, Ask(1))
            assert w.server.scope.failure is None

    run(main())


def test_half_characters_in_a_message_survive_as_text():
    async def main():
        async with world() as w:
            w.error = NotLeaseholder("no file \udcff", **{"\udcfe": "\udcfd"})
            with pytest.raises(NotLeaseholder) as caught:
                await (await w.peer()).call(FAIL, Ask(1))
            assert caught.value.message == "no file \\udcff"
            assert caught.value.facts == {"\\udcfe": "'\\udcfd'"}
            w.error = OSError("no file \udcff")
            with pytest.raises(SlackwaterError, match="crashed"):
                await (await w.peer()).call(FAIL, Ask(1))

    run(main())


def test_an_unknown_error_class_becomes_the_base_and_a_private_one_its_parent():
    class Private(NotLeaseholder):
        pass

    async def main():
        async with world() as w:
            w.error = Private("mine")
            with pytest.raises(NotLeaseholder, match="mine"):
                await (await w.peer()).call(FAIL, Ask(1))

    run(main())
    from slackwater.runtime.rpc.faults import unpack

    unknown = unpack("FromTheFuture", "hello", {"a": 1})
    assert type(unknown) is SlackwaterError
    assert unknown.message == "FromTheFuture: hello"
    assert unknown.facts == {"a": 1}


@both_nets
def test_a_crashing_handler_fails_its_call_only(net):
    async def main():
        async with world(net) as w:
            peer = await w.peer()
            w.error = ZeroDivisionError("by zero")
            with pytest.raises(SlackwaterError, match="handler of fail crashed: ZeroDivisionError: by zero"):
                await peer.call(FAIL, Ask(1))
            assert w.crashes == ["the RPC handler of fail crashed"]
            assert await peer.call(ECHO, Ask(1)) == Answer(1)
            assert w.server.scope.failure is None

    run(main())


def test_a_response_of_the_wrong_type_is_the_callers_decode_error():
    async def main():
        async with world() as w:
            peer = await w.peer()
            other = Method("echo", Ask, list[str], callers=ANYBODY)
            with pytest.raises(DecodeError, match="response of echo"):
                await peer.call(other, Ask(1))
            assert await peer.call(ECHO, Ask(2)) == Answer(2)

    run(main())


def test_an_undecodable_request_and_an_unknown_method_are_faults():
    async def main():
        async with world() as w:
            peer = await w.peer()
            with pytest.raises(DecodeError, match="request of echo"):
                await peer.call(Method("echo", str, Answer, callers=ANYBODY), "no")
            with pytest.raises(ProtocolError, match="no method 'nope'"):
                await peer.call(Method("nope", Ask, Answer, callers=ANYBODY), Ask(1))
            with pytest.raises(ProtocolError, match="is a stream"):
                await peer.call(Method("count", Ask, Answer, callers=ANYBODY), Ask(1))
            with pytest.raises(ProtocolError, match="not a stream"):
                await peer.stream(StreamMethod("echo", Ask, Answer, callers=ANYBODY), Ask(1)).__anext__()
            assert await peer.call(ECHO, Ask(2)) == Answer(2)

    run(main())


def test_an_unencodable_response_is_a_crash_of_the_handler():
    async def main():
        async with world() as w:
            odd = Method("odd", Ask, Answer, callers=ANYBODY)
            w.server.handle_sync(odd, lambda *_: object())
            with pytest.raises(SlackwaterError, match="handler of odd crashed"):
                await (await w.peer()).call(odd, Ask(1))
            with pytest.raises(TypeError):
                await (await w.peer()).call(ECHO, object())
            assert (await w.peer()).in_flight == 0

    run(main())


@both_nets
def test_a_deadline_ends_the_call_and_the_handler(net):
    async def main():
        async with world(net) as w:
            peer = await w.peer()
            with pytest.raises(DeadlineExceeded) as caught:
                await peer.call(HANG, Ask(1), timeout=0.05)
            assert caught.value.facts["sent"] is True
            await w.gone.wait()
            assert w.hanging == 0
            with pytest.raises(DeadlineExceeded) as caught:
                await peer.call(ECHO, Ask(1), timeout=0)
            assert caught.value.facts["sent"] is False
            assert await peer.call(ECHO, Ask(1), timeout=60) == Answer(1)

    run(main())


def test_the_server_enforces_the_deadline_even_if_the_caller_does_not():
    async def main():
        async with world() as w:
            peer = await w.peer()
            peer._deadlines.add = lambda *_: 0
            with pytest.raises(DeadlineExceeded, match="hang did not end"):
                await peer.call(HANG, Ask(1), timeout=0.02)
            await w.gone.wait()
            assert w.server.status() == "rpc connections=1 running=0 methods=5 crashes=0"

    run(main())


def test_the_caller_cancels_at_its_deadline_even_if_the_server_has_none():
    async def main():
        async with world() as w:
            peer = await w.peer()
            (server_end,) = w.server._sessions
            server_end._deadlines.add = lambda *_: 0
            with pytest.raises(DeadlineExceeded, match="did not come"):
                await peer.call(HANG, Ask(1), timeout=0.02)
            await w.gone.wait()
            assert "running=0" in w.server.status()

    run(main())


def test_a_cancelled_handler_has_no_last_word():
    async def main():
        async with world() as w:
            stubborn = Method("stubborn", Ask, Answer, callers=ANYBODY)

            async def refuse(request, context):
                try:
                    return await w.hang(request, context)
                except asyncio.CancelledError:
                    raise UnavailableError("cleaning up failed") from None

            w.server.handle(stubborn, refuse)
            peer = await w.peer()
            (server_end,) = w.server._sessions
            task = w.scope.spawn(peer.call(stubborn, Ask(1)), name="call")
            await w.arrived.wait()
            said = []
            server_end._send = said.append
            task.cancel()
            await w.gone.wait()
            await turns()
            assert said == []
            assert "running=0" in w.server.status()

    run(main())


def test_what_a_cancelled_handler_held_is_free_without_the_collector():
    class Block:
        """Stands for the rows of a request."""

    async def main():
        async with world() as w:
            held = []
            hold = Method("hold", Ask, Answer, callers=ANYBODY)

            async def holding(request, context):
                block = Block()
                held.append(weakref.ref(block))
                return await w.hang(request, context)

            w.server.handle(hold, holding)
            peer = await w.peer()
            task = w.scope.spawn(peer.call(hold, Ask(1)), name="call")
            await w.arrived.wait()
            task.cancel()
            await w.gone.wait()
            await turns()
            assert [block() for block in held] == [None]

    gc.disable()
    try:
        run(main())
    finally:
        gc.enable()


def test_the_handler_sees_the_time_left_and_who_asks():
    async def main():
        async with world() as w:
            seen = []
            probe = Method("probe", Ask, Answer, callers=ANYBODY)

            async def look(request, context):
                seen.append((context.remaining(), context.node_id, context.peer, context.method))
                return Answer(0)

            w.server.handle(probe, look)
            peer = await w.peer()
            await peer.call(probe, Ask(1), timeout=100)
            await peer.call(probe, Ask(1))
            (left, node, who, method), (none, *_) = seen
            assert 0 < left <= 100
            assert none is None
            assert node == 0
            assert who.startswith("local:")
            assert method == "probe"

    run(main())


@both_nets
def test_cancelling_the_caller_cancels_the_handler(net):
    async def main():
        async with world(net) as w:
            peer = await w.peer()
            task = w.scope.spawn(peer.call(HANG, Ask(1)), name="call")
            await w.arrived.wait()
            task.cancel()
            await w.gone.wait()
            assert peer.in_flight == 0
            assert await peer.call(ECHO, Ask(1)) == Answer(1)

    run(main())


@pytest.mark.parametrize("kind", ["unary", "stream"])
def test_cancelling_before_the_handlers_task_ever_ran_leaves_nothing_behind(kind):
    """Request and Cancel in one read: the handler waits, and is cancelled before its task has taken a step."""

    async def main():
        async with world(requests_in_flight_max=4) as w:
            peer = await w.peer()
            for n in range(100, 110):
                if kind == "unary":
                    peer._send(encode(Request(n, "hang", 0, 0, raw(Ask(1)))))
                else:
                    peer._send(encode(OpenStream(n, "count", 0, 0, 1, raw(Ask(9)))))
                peer._send(encode(Cancel(n)))
                await turns()
            assert w.gone.is_set() or kind == "stream", "the handler was told"
            assert "running=0" in w.server.status()
            assert await peer.call(ECHO, Ask(1)) == Answer(1), "the bound was not used up"

    run(main())


@both_nets
def test_a_lost_connection_fails_calls_and_cancels_handlers(net):
    async def main():
        async with world(net) as w:
            peer = await w.peer()
            calls = [w.scope.spawn(expect_lost(peer), name="call") for _ in range(5)]
            await w.arrived.wait()
            await turns(3)
            peer._connection.close()
            facts = [await call for call in calls]
            assert all(f["sent"] is True for f in facts)
            await w.gone.wait()
            await turns()
            assert w.hanging == 0
            with pytest.raises(ConnectionLost) as caught:
                await peer.call(ECHO, Ask(1))
            assert caught.value.facts["sent"] is False
            assert await (await w.peer()).call(ECHO, Ask(1)) == Answer(1)

    async def expect_lost(peer):
        with pytest.raises(ConnectionLost) as caught:
            await peer.call(HANG, Ask(1))
        return caught.value.facts

    run(main())


@both_nets
def test_closing_the_server_fails_its_callers(net):
    async def main():
        async with world(net) as w:
            peer = await w.peer()
            task = w.scope.spawn(swallow(peer), name="call")
            await w.arrived.wait()
            await w.server.close()
            await task
            assert w.hanging == 0
            assert w.server.connections == 0

    async def swallow(peer):
        with pytest.raises(UnavailableError):
            await peer.call(HANG, Ask(1))

    run(main())


def test_requests_in_flight_are_bounded_on_both_sides():
    async def main():
        async with world(requests_in_flight_max=4) as w:
            peer = await w.peer()
            tasks = [asyncio.ensure_future(peer.call(HANG, Ask(n))) for n in range(4)]
            await w.arrived.wait()
            with pytest.raises(Overloaded, match="in flight to this peer"):
                await peer.call(ECHO, Ask(1))
            peer._in_flight_max = 100
            with pytest.raises(Overloaded, match="this connection are running"):
                await peer.call(ECHO, Ask(1))
            other = await make_other(w)
            assert await other.call(ECHO, Ask(5)) == Answer(5), "another connection is not affected"
            for task in tasks:
                task.cancel()
            await turns()
            assert await peer.call(ECHO, Ask(6)) == Answer(6)

    async def make_other(w):
        from slackwater.runtime.rpc import Dialer, Identity

        dialer = Dialer(w.runtime, w.scope, identity=Identity(), settings=w.settings)
        return await dialer.peer(w.address)

    run(main())


def test_frames_over_the_bound_are_the_senders_error():
    async def main():
        async with world(frame_bytes_max=1 << 16) as w:
            peer = await w.peer()
            with pytest.raises(EntryTooLarge, match="request of echo"):
                await peer.call(ECHO, Ask(1, bytes(1 << 16)))
            big = Method("big", Ask, Answer, callers=ANYBODY)
            w.server.handle_sync(big, lambda request, _: Answer(1, bytes(1 << 16)))
            with pytest.raises(EntryTooLarge, match="ask for less"):
                await peer.call(big, Ask(1))
            with pytest.raises(EntryTooLarge):
                peer.stream(COUNT, Ask(1, bytes(1 << 16)))
            assert await peer.call(ECHO, Ask(1)) == Answer(1)
            assert peer.in_flight == 0

    run(main())


def test_a_call_costs_one_task_if_its_handler_waits_and_none_if_not():
    async def main():
        async with world() as w:
            peer = await w.peer()
            loop = asyncio.get_running_loop()
            born = []

            def factory(loop, work, **options):
                born.append(work)
                return asyncio.Task(work, loop=loop, **options)

            loop.set_task_factory(factory)
            await peer.call(DOUBLE, Ask(1), timeout=5)
            assert len(born) == 0
            await peer.call(ECHO, Ask(1), timeout=5)
            assert len(born) == 0
            with pytest.raises(DeadlineExceeded):
                await peer.call(HANG, Ask(1), timeout=0.001)
            assert len(born) == 1
            loop.set_task_factory(None)

    run(main())


def test_messages_may_be_any_msgspec_type():
    class Choice(msgspec.Struct, tag=True, frozen=True):
        values: list[int | None]

    async def main():
        async with world() as w:
            method = Method("any", Choice, dict[str, Choice], callers=ANYBODY)
            w.server.handle_sync(method, lambda request, _: {"a": request})
            choice = Choice([1, None])
            assert await (await w.peer()).call(method, choice) == {"a": choice}

    run(main())
