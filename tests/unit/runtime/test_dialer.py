import asyncio

import pytest

from slackwater.errors import ConnectionLost, Overloaded, UsageError
from slackwater.runtime import run
from slackwater.runtime.access import ANYBODY
from slackwater.runtime.rpc import Dialer, Identity, Method, RpcServer, StreamMethod
from tests.unit.runtime.world import COUNT, ECHO, HANG, NETS, Answer, Ask, turns, world

both_nets = pytest.mark.parametrize("net", NETS)


class Net:
    """A net that counts dials and can be told to fail or hang."""

    def __init__(self, inner):
        self.inner, self.dials, self.mode = inner, 0, "ok"

    async def connect(self, address, handler):
        self.dials += 1
        if self.mode == "fail":
            raise ConnectionLost(f"cannot connect to {address}: refused", address=address, sent=False)
        if self.mode == "hang":
            await asyncio.get_running_loop().create_future()
        return await self.inner.connect(address, handler)

    async def listen(self, address, accept):
        return await self.inner.listen(address, accept)


class Clock:
    """A clock that moves when told."""

    def __init__(self, inner):
        self.inner, self.extra_ns = inner, 0

    def wall_ns(self):
        return self.inner.wall_ns()

    def monotonic_ns(self):
        return self.inner.monotonic_ns() + self.extra_ns


def counted(w):
    w.runtime.net = Net(w.runtime.net)
    w.runtime.clock = Clock(w.runtime.clock)
    return w.runtime.net, w.runtime.clock


@both_nets
def test_one_connection_is_shared_by_all_who_dial_at_once(net):
    async def main():
        async with world(net) as w:
            counter, _ = counted(w)
            peers = await asyncio.gather(*[w.dialer.peer(w.address) for _ in range(20)])
            assert len({id(p) for p in peers}) == 1
            assert counter.dials == 1
            assert await w.dialer.call(w.address, ECHO, Ask(1), timeout=5) == Answer(1)
            stream = await w.dialer.stream(w.address, COUNT, Ask(3))
            assert len([i async for i in stream]) == 3
            assert counter.dials == 1
            assert w.dialer.live(w.address) is peers[0]
            assert w.dialer.status() == "dialer addresses=1 live=1 dialing=0"

    run(main())


def test_a_dead_peer_fails_fast_until_the_pause_is_over():
    async def main():
        async with world(reconnect_pause_min=1, reconnect_pause_max=4) as w:
            counter, clock = counted(w)
            counter.mode = "fail"
            with pytest.raises(ConnectionLost, match="refused"):
                await w.peer()
            for _ in range(100):
                with pytest.raises(ConnectionLost, match="a moment ago") as caught:
                    await w.dialer.call(w.address, ECHO, Ask(1))
                assert caught.value.facts["sent"] is False
            assert counter.dials == 1
            clock.extra_ns += int(1.01e9)
            with pytest.raises(ConnectionLost, match="refused"):
                await w.peer()
            assert counter.dials == 2
            clock.extra_ns += int(1.01e9)
            with pytest.raises(ConnectionLost, match="a moment ago"):
                await w.peer()
            clock.extra_ns += int(1.01e9)
            counter.mode = "ok"
            assert (await w.peer()).node_id == 1

    run(main())


def test_the_pause_doubles_up_to_its_bound():
    async def main():
        async with world(reconnect_pause_min=0.1, reconnect_pause_max=2) as w:
            counter, clock = counted(w)
            counter.mode = "fail"
            pauses = []
            for _ in range(8):
                with pytest.raises(ConnectionLost, match="refused"):
                    await w.peer()
                rest = (w.dialer._lines[w.address].rest_until_ns - clock.monotonic_ns()) / 1e9
                pauses.append(rest)
                clock.extra_ns += int(3e9)
            for pause, whole in zip(pauses, [0.1, 0.2, 0.4, 0.8, 1.6, 2, 2, 2], strict=True):
                assert pause <= whole
            assert pauses[-1] > 1

    run(main())


def test_a_cancelled_caller_does_not_fail_the_others():
    async def main():
        async with world() as w:
            gate = asyncio.get_running_loop().create_future()
            inner = w.runtime.net

            class Slow(Net):
                async def connect(self, address, handler):
                    await gate
                    return await inner.connect(address, handler)

            w.runtime.net = Slow(inner)
            first = asyncio.ensure_future(w.peer())
            second = asyncio.ensure_future(w.peer())
            await turns()
            first.cancel()
            await turns()
            gate.set_result(None)
            assert (await second).node_id == 1
            assert first.cancelled()

    run(main())


def test_a_dial_that_hangs_times_out_and_a_call_keeps_its_own_deadline():
    async def main():
        async with world(connect_timeout=0.1) as w:
            counter, _ = counted(w)
            counter.mode = "hang"
            with pytest.raises(ConnectionLost, match="before the deadline") as caught:
                await w.dialer.call(w.address, ECHO, Ask(1), timeout=0.02)
            assert caught.value.facts["sent"] is False
            with pytest.raises(ConnectionLost, match="in time"):
                await w.peer()
            assert w.dialer.live(w.address) is None

    run(main())


def test_a_server_that_accepts_and_never_greets_times_out():
    async def main():
        async with world(connect_timeout=0.1) as w:

            class Mute:
                def __init__(self, connection):
                    pass

                def frames(self, frames):
                    pass

                def closed(self, reason):
                    ends.append(reason)

            ends = []
            listener = await w.runtime.net.listen("mute:1", Mute)
            with pytest.raises(ConnectionLost, match="in time"):
                await w.dialer.peer("mute:1")
            await turns()
            assert ends == ["the peer closed the connection"]
            await listener.close()

    run(main())


@both_nets
def test_a_restarted_server_is_found_again(net):
    async def main():
        async with world(net, reconnect_pause_min=0.001) as w:
            peer = await w.peer()
            await w.server.close()
            while not peer.ended:
                await turns(1)
            again = RpcServer(w.runtime, w.scope, identity=Identity(node_id=1), settings=w.settings)
            again.handle_sync(Method("echo", Ask, Answer, callers=ANYBODY), lambda request, _: Answer(request.n + 1))
            await again.listen(w.address)
            assert await w.dialer.call(w.address, ECHO, Ask(1)) == Answer(2)
            await again.close()

    run(main())


def test_a_peer_that_became_a_node_after_its_greeting_is_greeted_again():
    async def main():
        async with world(identity=Identity()) as w:
            stranger = await w.dialer.peer(w.address)
            assert stranger.node_id == 0
            w.identity.cluster_id, w.identity.node_id = "c1", 7
            assert (await w.dialer.peer(w.address)) is stranger, "who expects nobody in particular may go on"
            peer = await w.dialer.peer(w.address, node_id=7)
            assert (peer.node_id, stranger.ended) == (7, True)

    run(main())


def test_close_ends_connections_dials_and_waiting_callers():
    async def main():
        async with world() as w:
            peer = await w.peer()
            call = asyncio.ensure_future(peer.call(HANG, Ask(1)))
            counter, _ = counted(w)
            counter.mode = "hang"
            dial = asyncio.ensure_future(w.dialer.peer("n9:1"))
            await w.arrived.wait()
            await w.dialer.close()
            for waiting in (call, dial):
                with pytest.raises(ConnectionLost):
                    await waiting
            with pytest.raises(ConnectionLost, match="dialer is closed"):
                await w.peer()

    run(main())


def test_the_pool_is_bounded_and_drops_what_is_idle():
    async def main():
        async with world(connections_max=16) as w:
            servers = []
            for n in range(17):
                server = RpcServer(w.runtime, w.scope, identity=Identity(node_id=n + 10), settings=w.settings)
                server.handle(HANG, w.hang)
                await server.listen(f"n{n}:1")
                servers.append(server)
            dialer = Dialer(w.runtime, w.scope, identity=Identity(), settings=w.settings)
            calls = []
            for n in range(15):
                peer = await dialer.peer(f"n{n}:1")
                calls.append(asyncio.ensure_future(peer.call(HANG, Ask(1))))
            idle = await dialer.peer("n15:1")
            busy = await dialer.peer("n16:1")
            assert idle.ended
            calls.append(asyncio.ensure_future(busy.call(HANG, Ask(1))))
            await turns()
            with pytest.raises(Overloaded, match="every connection"):
                await dialer.peer("n15:1")
            await dialer.close()
            await asyncio.gather(*calls, return_exceptions=True)
            for server in servers:
                await server.close()

    run(main())


def test_registration_mistakes_are_told_at_once():
    async def main():
        async with world() as w:
            with pytest.raises(UsageError, match="has a handler"):
                w.server.handle_sync(ECHO, lambda *_: None)
            with pytest.raises(UsageError, match="cannot be served by a sync"):
                w.server.handle_sync(StreamMethod("s", Ask, Answer, callers=ANYBODY), lambda *_: None)
            with pytest.raises(UsageError, match="cannot be served by a stream"):
                w.server.handle_stream(Method("s", Ask, Answer, callers=ANYBODY), lambda *_: None)
            with pytest.raises(UsageError, match="characters"):
                w.server.handle_sync(Method("", Ask, Answer, callers=ANYBODY), lambda *_: None)

    run(main())
