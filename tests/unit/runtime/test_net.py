"""The contract of `seam.Net`, on TCP and in process."""

import asyncio
import socket
import time

import pytest

from slackwater.errors import ConnectionLost, EntryTooLarge, UsageError
from slackwater.runtime import LocalNet, TcpNet, run
from slackwater.runtime.tcp import SLICE_FRAMES, SLICE_S, format_address, parse_address
from slackwater.settings import Settings
from tests.unit.runtime.world import NETS, turns

both_nets = pytest.mark.parametrize("net", NETS)


class End:
    """A handler that keeps what it is given."""

    def __init__(self, connection):
        self.connection = connection
        self.got = []
        self.batches = 0
        self.reasons = []
        self.drained = 0
        self.changed = asyncio.Event()

    def frames(self, frames):
        self.batches += 1
        self.got += frames
        self.changed.set()

    def closed(self, reason):
        self.reasons.append(reason)
        self.changed.set()

    def writable(self):
        self.drained += 1
        self.changed.set()

    async def until(self, condition):
        while not condition():
            self.changed.clear()
            await self.changed.wait()


async def connected(kind, **settings):
    made = Settings({f"rpc.{k}": v for k, v in settings.items()})
    net = LocalNet(made) if kind == "local" else TcpNet(made)
    accepted, dialed = [], []

    def accept(connection):
        accepted.append(End(connection))
        return accepted[-1]

    def dial(connection):
        dialed.append(End(connection))
        return dialed[-1]

    listener = await net.listen("127.0.0.1:0", accept)
    await net.connect(listener.address, dial)
    while not accepted:
        await turns(1)
    for end in (dialed[0], accepted[0]):
        end.connection.trust()  # as a session does once its peer has greeted
    return net, listener, dialed[0], accepted[0]


@both_nets
def test_frames_arrive_whole_in_order_and_together(net):
    async def main():
        _, listener, near, far = await connected(net)
        frames = [bytes([n % 256]) * n for n in range(200)]
        for frame in frames:
            near.connection.send(frame)
        await far.until(lambda: len(far.got) == len(frames))
        assert far.got == frames
        assert far.batches < 40, "frames of one turn travel together"
        far.connection.send(b"back")
        await near.until(lambda: near.got == [b"back"])
        near.connection.close()
        await far.until(lambda: far.reasons)
        await listener.close()

    run(main())


class Slow(End):
    """A handler that takes a slice's time for every batch."""

    def frames(self, frames):
        end = time.perf_counter() + SLICE_S
        while time.perf_counter() <= end:
            pass
        super().frames(frames)


def test_a_peer_that_sends_much_leaves_time_for_others():
    async def main():
        net, order = TcpNet(Settings()), []

        def accept(connection):
            end = Slow(connection)
            connection.trust()
            end.took, end.frames = end.frames, lambda frames: (end.took(frames), order.extend(frames))
            return end

        listener = await net.listen("127.0.0.1:0", accept)
        greedy = End(await net.connect(listener.address, End))
        modest = End(await net.connect(listener.address, End))
        frames = [b"greedy %d" % n for n in range(20 * SLICE_FRAMES)]
        for frame in frames:
            greedy.connection.send(frame)
        modest.connection.send(b"modest")
        greedy.connection.close()  # what was received before the end is delivered
        while len(order) <= len(frames):
            await turns(1)
        assert [frame for frame in order if frame != b"modest"] == frames
        assert order.index(b"modest") < len(frames) // 2
        modest.connection.close()
        await listener.close()

    run(main())


def test_what_a_held_peer_had_sent_waits_and_is_then_delivered_in_slices_between_which_others_are_heard():
    class Holding(Slow):
        """It holds its peer from the first batch on, as for a call that is refused."""

        def frames(self, frames):
            if not self.got:
                self.connection.hold(held=True)
            super().frames(frames)
            order.extend(frames)

    async def main():
        net, accepted = TcpNet(Settings()), []

        def accept(connection):
            accepted.append((End if accepted else Holding)(connection))
            connection.trust()
            return accepted[-1]

        listener = await net.listen("127.0.0.1:0", accept)
        greedy = End(await net.connect(listener.address, End))
        frames = [b"greedy %d" % n for n in range(20 * SLICE_FRAMES)]
        for frame in frames:
            greedy.connection.send(frame)
        while not order:
            await turns(1)
        modest = End(await net.connect(listener.address, End))
        await turns(20)
        assert order == frames[:SLICE_FRAMES], "nothing is delivered of a peer that is held"
        accepted[1].frames = order.extend
        accepted[0].connection.hold(held=False)
        modest.connection.send(b"modest")
        while len(order) <= len(frames):
            await turns(1)
        assert [frame for frame in order if frame != b"modest"] == frames
        assert order.index(b"modest") < len(frames) // 2
        assert accepted[0].batches == len(frames) // SLICE_FRAMES
        for end in (greedy, modest):
            end.connection.close()
        await listener.close()

    order = []
    run(main())


def test_what_came_before_bytes_that_are_no_frame_is_delivered_though_it_waited():
    async def main():
        net, accepted = TcpNet(Settings({"rpc.frame_bytes_max": 1 << 16})), []

        def accept(connection):
            accepted.append(Slow(connection))
            return accepted[-1]

        listener = await net.listen("127.0.0.1:0", accept)
        host, port = parse_address(listener.address)
        _, writer = await asyncio.open_connection(host, port)
        writer.write((b"\0\0\0\1x" * 5 * SLICE_FRAMES) + b"\xff" * 8)
        while not accepted:
            await turns(1)
        await accepted[0].until(lambda: accepted[0].reasons)
        assert accepted[0].got == [b"x"] * 5 * SLICE_FRAMES
        assert "over the bound" in accepted[0].reasons[0]
        writer.close()
        await listener.close()

    run(main())


@both_nets
@pytest.mark.parametrize("closer", ["near", "far"])
def test_close_is_seen_once_by_both_after_what_was_sent(net, closer):
    async def main():
        _, listener, near, far = await connected(net)
        mine, other = (near, far) if closer == "near" else (far, near)
        mine.connection.send(b"last")
        mine.connection.close()
        mine.connection.close()
        mine.connection.send(b"never")
        await other.until(lambda: other.reasons)
        await mine.until(lambda: mine.reasons)
        assert other.got == [b"last"]
        assert other.reasons == ["the peer closed the connection"]
        assert mine.reasons == ["closed by this side"]
        other.connection.close()
        await turns()
        assert len(other.reasons) == len(mine.reasons) == 1
        await listener.close()

    run(main())


@both_nets
def test_a_full_buffer_is_congested_until_writable(net):
    async def main():
        _, listener, near, far = await connected(net, send_buffer_bytes=1 << 12, frame_bytes_max=1 << 20)
        assert not near.connection.congested
        sent = 0
        while not near.connection.congested:
            near.connection.send(bytes(1 << 16))
            sent += 1
        await near.until(lambda: near.drained)
        assert not near.connection.congested
        await far.until(lambda: len(far.got) == sent)
        near.connection.close()
        await far.until(lambda: far.reasons)
        await listener.close()

    run(main())


@both_nets
def test_a_frame_over_the_bound_is_refused_at_the_sender(net):
    async def main():
        _, listener, near, far = await connected(net, frame_bytes_max=1 << 16)
        with pytest.raises(EntryTooLarge):
            near.connection.send(bytes((1 << 16) + 1))
        near.connection.send(bytes(1 << 16))
        await far.until(lambda: far.got == [bytes(1 << 16)])
        near.connection.close()
        await near.until(lambda: near.reasons)
        await listener.close()

    run(main())


@both_nets
def test_nobody_listens(net):
    async def main():
        made, listener, near, far = await connected(net)
        await listener.close()
        with pytest.raises(ConnectionLost, match="cannot connect") as caught:
            await made.connect(listener.address, End)
        assert caught.value.facts["sent"] is False
        near.connection.send(b"an accepted connection outlives its listener")
        await far.until(lambda: far.got)
        near.connection.close()
        await far.until(lambda: far.reasons)

    run(main())


@both_nets
def test_addresses_are_checked_and_taken_ones_refused(net):
    async def main():
        made, listener, near, _ = await connected(net)
        for bad in ["", "host", ":1", "host:", "host:x", "host:99999"]:
            with pytest.raises(UsageError, match="write host:port"):
                await made.connect(bad, End)
        with pytest.raises(UsageError, match="cannot listen"):
            await made.listen(listener.address, End)
        near.connection.close()
        await listener.close()

    run(main())


@pytest.mark.parametrize("address", ["h:1", "10.0.0.1:7400", "[::1]:80"])
def test_addresses_round_trip(address):
    assert format_address(*parse_address(address)) == address


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x00\x00\x00\x05ab", "the peer disconnected in the middle of a frame"),
        (b"\x00\x00", "the peer disconnected in the middle of a frame"),
        (b"\x00\x00\x00\x01a", "the peer closed the connection"),
        (b"\xff\xff\xff\xff", "a frame of 4294967295 bytes is over the bound of 131072"),
    ],
)
def test_the_reason_says_how_a_socket_ended(data, reason):
    async def main():
        ends = []

        def accept(connection):
            ends.append(End(connection))
            return ends[-1]

        listener = await TcpNet(Settings()).listen("127.0.0.1:0", accept)
        with socket.create_connection(parse_address(listener.address)) as raw:
            raw.sendall(data)
            raw.shutdown(socket.SHUT_WR)
            while not ends:
                await turns(1)
            await ends[0].until(lambda: ends[0].reasons)
        assert ends[0].reasons == [reason]
        await listener.close()

    run(main())
