"""The RPC that ships, on the simulator's loop and network, while connections are reset and links are cut.

Checked in every run: a stream has no gap and no item out of order; no call outlives its deadline by more than a check;
nothing is left running at the server once its callers are gone; the same seed does the same twice.
"""

from __future__ import annotations

import pytest

from slackwater.errors import ConnectionLost, DeadlineExceeded, UnavailableError
from slackwater.runtime.access import ANYBODY
from slackwater.runtime.rpc import Dialer, Identity, Method, RpcServer, StreamMethod
from slackwater.runtime.sync import CancelledError, get_running_loop
from slackwater.settings import Settings
from slackwater.sim.faults import FaultKind, inject
from slackwater.sim.loop import NS
from slackwater.sim.schedule import SchedulePolicy
from slackwater.sim.tape import Tape
from slackwater.sim.world import World

ECHO = Method("echo", int, int, callers=ANYBODY)
SLOW = Method("slow", int, int, callers=ANYBODY)
HANG = Method("hang", int, int, callers=ANYBODY)
COUNT = StreamMethod("count", int, int, callers=ANYBODY)
ADDRESS = "n1:7400"
RUN_S = 60
FAULTS = (FaultKind.RESET, FaultKind.PARTITION, FaultKind.ONE_WAY, FaultKind.SLOW_LINK, FaultKind.PAUSE)


class Story:
    """One server, two clients, and what they saw."""

    def __init__(self, seed, *, faults=True, policy=SchedulePolicy.UNIFORM):
        tape = Tape(seed)
        draw = tape.stream("test")
        settings = Settings(
            {
                "rpc.stream_window": draw.between(1, 4),
                "rpc.heartbeat_timeout": draw.between(1, 4),
                "rpc.heartbeat_interval": draw.between(1, 5),
                "rpc.send_buffer_bytes": 1 << draw.between(10, 16),
            }
        )
        self.world = World(tape, settings, schedule=policy)
        self.draw = draw
        self.faults = faults
        self.server = None
        self.ok = self.lost = self.late = self.items = self.cancelled = 0
        self.done = 0

    async def serve(self, runtime):
        scope = runtime.scope("server")
        identity = Identity(cluster_id="c", node_id=1)
        server = self.server = RpcServer(runtime, scope, identity=identity, settings=runtime.settings)

        async def slow(request, context):
            await runtime.clock.sleep(request / 1000)
            return request

        async def hang(request, context):
            await get_running_loop().create_future()

        async def count(request, context):
            for n in range(request):
                yield n

        server.handle_sync(ECHO, lambda request, _: request + 1)
        server.handle(SLOW, slow)
        server.handle(HANG, hang)
        server.handle_stream(COUNT, count)
        await server.listen(ADDRESS)

    async def ask(self, runtime):
        """Calls, streams and cancellations until the time is over, then a clean goodbye."""
        scope = runtime.scope("client")
        dialer = Dialer(runtime, scope, identity=Identity(cluster_id="c"), settings=runtime.settings)
        draw = self.world.tape.stream(f"workload/{runtime.name}")
        while self.world.loop.now_ns < RUN_S * NS:
            try:
                await self.one(runtime, scope, dialer, draw)
                self.ok += 1
            except DeadlineExceeded:
                self.late += 1
            except ConnectionLost:
                self.lost += 1
                await runtime.clock.sleep(0.1)
        await dialer.close()
        assert scope.failure is None
        self.done += 1

    async def one(self, runtime, scope, dialer, draw):
        kind = draw.below(5)
        if kind == 0:
            number = draw.below(1000)
            assert await dialer.call(ADDRESS, ECHO, number, timeout=2.0) == number + 1
        elif kind == 1:
            begun = runtime.clock.monotonic_ns()
            try:
                await dialer.call(ADDRESS, SLOW, draw.below(400), timeout=0.2)
            finally:
                assert runtime.clock.monotonic_ns() - begun < 15 * NS, "a call ends soon after its deadline"
        elif kind == 2:
            await self.read(await dialer.stream(ADDRESS, COUNT, draw.below(50), timeout=20.0))
        elif kind == 3:
            async with await dialer.stream(ADDRESS, COUNT, 10**9, timeout=20.0) as stream:
                await self.read(stream, upto=draw.below(20))
        else:
            peer = await dialer.peer(ADDRESS)
            task = scope.spawn(self.swallow(peer), name="hang")
            await runtime.clock.sleep(draw.below(50) / 1000)
            task.cancel()
            self.cancelled += 1

    async def read(self, stream, upto=10**9):
        expected = 0
        async for item in stream:
            assert item == expected, "a stream has no gaps"
            expected += 1
            self.items += 1
            if expected >= upto:
                return

    async def swallow(self, peer):
        try:
            await peer.call(HANG, 1)
        except (UnavailableError, CancelledError):
            return

    async def trouble(self):
        while self.world.loop.now_ns < (RUN_S - 10) * NS:
            await self.world.sleep_ns(self.draw.between(NS // 10, 4 * NS))
            inject(self.world, self.draw.pick(FAULTS))

    def run(self):
        w = self.world
        w.add_node("n1", self.serve)
        for n in (1, 2):
            w.add_client(f"c{n}", self.ask)
        if self.faults:
            w.spawn(self.trouble(), name="trouble")
        w.loop.run(upto_ns=RUN_S * NS)
        w.heal()
        w.loop.run(upto_ns=(RUN_S + 60) * NS)
        assert self.done == 2, "both clients came to their end"
        status = self.server.status()
        trace = w.loop.trace_hash
        w.loop.dispose()
        return status, trace


@pytest.mark.parametrize("seed", range(8))
def test_rpc_holds_its_promises_under_network_faults(seed):
    story = Story(seed, policy=list(SchedulePolicy)[seed % len(SchedulePolicy)])
    status, _ = story.run()
    assert status == "rpc connections=0 running=0 methods=4 crashes=0"
    assert story.ok > 50
    assert story.items > 50
    assert story.cancelled > 0


def test_the_faults_bite():
    stories = [Story(seed) for seed in range(4)]
    for story in stories:
        story.run()
    assert sum(story.lost for story in stories) > 0
    assert sum(story.late for story in stories) > 0


def test_without_faults_nothing_is_lost():
    story = Story(3, faults=False)
    story.run()
    assert story.lost == 0


def test_one_seed_is_one_story():
    assert Story(5).run() == Story(5).run()
    assert Story(5).run() != Story(6).run()
