"""The simulated network behaves as TCP does."""

from __future__ import annotations

import pytest

from slackwater.errors import ConnectionLost, EntryTooLarge, UsageError
from slackwater.sim.handles import NS
from tests.unit.sim.helpers import Ears, idle, run_in, world


class Pair:
    """Two machines, a listener on n2, and a connection from n1."""

    def __init__(self, seed=1, **settings):
        self.w = world(seed, **settings)
        self.w.add_node("n1", idle)
        self.w.add_node("n2", idle)
        self.servers: list[Ears] = []
        self.listen()
        self.near = Ears()
        self.connection = run_in(self.w, "n1", self.connect)
        self.run(1)

    def listen(self):
        def accept(connection):
            self.servers.append(Ears(connection))
            return self.servers[-1]

        run_in(self.w, "n2", lambda runtime: runtime.net.listen("n2:7400", accept))

    async def connect(self, runtime):
        return await runtime.net.connect("n2:7400", lambda connection: self.near)

    @property
    def far(self) -> Ears:
        return self.servers[0]

    def run(self, seconds):
        self.w.loop.run(upto_ns=self.w.loop.now_ns + round(seconds * NS))

    def cut(self, src, dst):
        self.w.net.link(src, dst).cut()

    def heal(self, src, dst):
        self.w.net.link(src, dst).heal(self.w.loop.now_ns)


def frames(n, start=0):
    return [f"{i}".encode() for i in range(start, start + n)]


@pytest.mark.parametrize("seed", range(5))
def test_frames_arrive_once_and_in_order_both_ways(seed):
    pair = Pair(seed)
    for frame in frames(200):
        pair.connection.send(frame)
        pair.far.connection.send(frame)
    pair.run(5)
    assert pair.far.heard == frames(200)
    assert pair.near.heard == frames(200)


def test_delivery_is_one_callback_for_all_that_is_due():
    pair = Pair()
    before = pair.w.loop.steps
    for frame in frames(1000):
        pair.connection.send(frame)
    pair.run(5)
    assert pair.far.heard == frames(1000)
    assert pair.w.loop.steps - before < 1000


def test_an_idle_connection_costs_nothing():
    pair = Pair()
    before = pair.w.loop.steps
    pair.run(10_000)
    assert pair.w.loop.steps == before


def test_close_comes_after_the_data_and_is_heard_once():
    pair = Pair()
    for frame in frames(10):
        pair.connection.send(frame)
    pair.connection.close()
    pair.connection.send(b"too late")
    pair.connection.close()
    pair.run(5)
    assert pair.far.heard == frames(10)
    assert (pair.far.reason, pair.far.closings) == ("the peer closed the connection", 1)
    assert (pair.near.reason, pair.near.closings) == ("closed by this side", 1)


def test_nobody_listens_no_such_host_and_wrong_host():
    pair = Pair()

    async def refused(runtime):
        with pytest.raises(ConnectionLost, match="refused") as caught:
            await runtime.net.connect("n2:1", lambda c: Ears())
        assert caught.value.facts["sent"] is False
        with pytest.raises(ConnectionLost, match="no such host"):
            await runtime.net.connect("n9:7400", lambda c: Ears())
        with pytest.raises(UsageError, match="this host is n1"):
            await runtime.net.listen("n2:7400", lambda c: Ears())
        return True

    assert run_in(pair.w, "n1", refused)


def test_a_short_partition_only_delays():
    pair = Pair()
    pair.cut("n1", "n2")
    for frame in frames(20):
        pair.connection.send(frame)
    pair.run(2)
    assert pair.far.heard == []
    pair.heal("n1", "n2")
    for frame in frames(5, start=20):
        pair.connection.send(frame)
    pair.run(2)
    assert pair.far.heard == frames(25)
    assert pair.near.closings == 0


def test_a_long_partition_breaks_the_sender_and_leaves_the_receiver_half_open():
    pair = Pair()
    pair.cut("n1", "n2")
    pair.cut("n2", "n1")
    pair.connection.send(b"lost")
    pair.run(15)
    assert pair.near.reason == "timed out: the peer does not acknowledge"
    assert pair.far.closings == 0, "it sent nothing, so it cannot know"
    pair.heal("n1", "n2")
    pair.heal("n2", "n1")
    pair.far.connection.send(b"hello?")
    pair.run(2)
    assert pair.far.reason == "connection reset by the peer"
    assert pair.far.heard == []


def test_one_way_partition_delivers_but_the_sender_gives_up():
    pair = Pair()
    pair.cut("n2", "n1")
    pair.connection.send(b"there")
    pair.run(1)
    assert pair.far.heard == [b"there"]
    pair.run(15)
    assert pair.near.reason == "timed out: the peer does not acknowledge"


def test_a_lossy_link_delays_but_loses_nothing():
    def last_arrival(loss_percent):
        pair = Pair()
        pair.w.net.link("n1", "n2").loss_percent = loss_percent
        for frame in frames(50):
            pair.connection.send(frame)
        began = pair.w.loop.now_ns
        while len(pair.far.heard) < 50:
            pair.run(0.01)
        assert pair.far.heard == frames(50)
        return pair.w.loop.now_ns - began

    assert last_arrival(30) > last_arrival(0) + NS // 10


def test_two_partitions_must_both_heal():
    pair = Pair()
    pair.cut("n1", "n2")
    pair.cut("n1", "n2")
    pair.connection.send(b"x")
    pair.heal("n1", "n2")
    pair.run(1)
    assert pair.far.heard == []
    pair.heal("n1", "n2")
    pair.run(1)
    assert pair.far.heard == [b"x"]


def test_power_cut_peer_is_half_open_until_it_is_back_and_then_resets():
    pair = Pair()
    pair.w.machines["n2"].crash()
    pair.run(30)
    assert pair.near.closings == 0, "silence: nothing was sent"
    pair.w.machines["n2"].start()
    pair.listen()
    pair.connection.send(b"for the dead")
    pair.run(2)
    assert pair.near.reason == "connection reset by the peer"
    assert [ears.heard for ears in pair.servers] == [[]], "the next incarnation never hears the old connection"


def test_sending_to_a_host_that_is_down_times_out():
    pair = Pair()
    pair.w.machines["n2"].crash()
    pair.connection.send(b"x")
    pair.run(3)
    assert pair.near.closings == 0
    pair.run(12)
    assert pair.near.reason == "timed out: the peer does not acknowledge"


def test_killed_process_resets_its_connections_at_once():
    pair = Pair()
    pair.w.machines["n2"].crash(kernel_lives=True)
    pair.run(1)
    assert pair.near.reason == "connection reset by the peer"


def test_frames_in_flight_from_a_dead_sender_still_arrive():
    pair = Pair()
    for frame in frames(5):
        pair.connection.send(frame)
    pair.w.machines["n1"].crash()
    pair.run(2)
    assert pair.far.heard == frames(5)
    assert pair.far.closings == 0


def test_what_a_dead_sender_would_have_to_send_again_is_lost():
    pair = Pair()
    pair.cut("n1", "n2")
    pair.connection.send(b"stuck in the kernel")
    pair.w.machines["n1"].crash()
    pair.run(1)
    pair.heal("n1", "n2")
    pair.run(10)
    assert pair.far.heard == []


def test_frames_for_a_node_that_dies_before_they_arrive_are_lost():
    pair = Pair()
    pair.connection.send(b"x")
    pair.w.machines["n2"].crash()
    pair.w.machines["n2"].start()
    pair.run(3)
    assert pair.far.heard == []
    assert pair.near.reason == "connection reset by the peer"


def test_a_paused_receiver_hears_everything_afterwards():
    pair = Pair()
    pair.w.machines["n2"].pause()
    for frame in frames(10):
        pair.connection.send(frame)
    pair.run(3)
    assert pair.far.heard == []
    pair.w.machines["n2"].resume()
    pair.run(1)
    assert pair.far.heard == frames(10)


def test_reset_fault_breaks_both_ends_and_loses_what_is_in_flight():
    pair = Pair()
    pair.connection.send(b"x")
    pair.w.net.open_connections()[0].break_now()
    pair.run(2)
    assert (pair.near.reason, pair.far.reason) == ("connection reset", "connection reset")
    assert pair.far.heard == []
    assert pair.w.net.open_connections() == []


def test_congestion_is_seen_and_writable_is_called_once_it_drains():
    pair = Pair(rpc__send_buffer_bytes=1 << 16)
    frame = bytes(1 << 14)
    while not pair.connection.congested:
        pair.connection.send(frame)
    assert pair.near.writables == 0
    pair.run(2)
    assert not pair.connection.congested
    assert pair.near.writables == 1


def test_an_oversized_frame_is_refused_at_the_sender():
    pair = Pair(rpc__frame_bytes_max=1 << 16)
    with pytest.raises(EntryTooLarge):
        pair.connection.send(bytes((1 << 16) + 1))


def test_connecting_through_a_partition_times_out_or_succeeds_when_it_heals():
    pair = Pair()
    pair.cut("n1", "n2")

    async def fails(runtime):
        with pytest.raises(ConnectionLost, match="timed out"):
            await runtime.net.connect("n2:7400", lambda c: Ears())
        return True

    assert run_in(pair.w, "n1", fails)
    pair.w.loop.call_at_ns(pair.w.loop.now_ns + NS, pair.heal, "n1", "n2")
    assert run_in(pair.w, "n1", pair.connect) is not None
