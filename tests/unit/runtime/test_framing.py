import struct

import pytest

from slackwater.runtime.framing import FrameParser


def framed(*frames):
    return b"".join(struct.pack(">I", len(frame)) + frame for frame in frames)


@pytest.mark.parametrize("piece", [1, 2, 3, 4, 5, 7, 64, 10_000])
def test_frames_survive_any_cutting(piece):
    frames = [b"", b"a", b"bc" * 50, b"", bytes(1000)]
    data = framed(*frames)
    parser = FrameParser(frame_bytes_max=1000)
    got = []
    for at in range(0, len(data), piece):
        got += parser.feed(data[at : at + piece])
    assert got == frames
    assert not parser.mid_frame
    assert parser.fault is None


def test_all_frames_of_one_read_come_together():
    assert FrameParser(frame_bytes_max=10).feed(framed(b"a", b"b", b"c")) == [b"a", b"b", b"c"]


def test_an_oversized_length_stops_the_parser_for_good_but_not_what_came_before():
    parser = FrameParser(frame_bytes_max=10)
    assert parser.feed(framed(b"ok") + struct.pack(">I", 11)) == [b"ok"]
    assert parser.fault == "a frame of 11 bytes is over the bound of 10"
    assert parser.feed(framed(b"late")) == []


def test_the_largest_allowed_frame_passes():
    parser = FrameParser(frame_bytes_max=10)
    assert parser.feed(framed(b"0123456789")) == [b"0123456789"]


def test_a_frame_in_many_pieces_is_copied_a_bounded_number_of_times():
    """A big frame in small pieces: the parser may not look at the gathered bytes again for every piece."""
    looks = []

    class Counting(FrameParser):
        def _cut(self, data):
            looks.append(len(data))
            return super()._cut(data)

    parser = Counting(frame_bytes_max=1 << 20)
    data = framed(bytes(1 << 20))
    got = [f for at in range(0, len(data), 1024) for f in parser.feed(data[at : at + 1024])]
    assert got == [bytes(1 << 20)]
    assert len(looks) == 2


def test_mid_frame_is_known():
    parser = FrameParser(frame_bytes_max=10)
    parser.feed(framed(b"abc")[:-1])
    assert parser.mid_frame
