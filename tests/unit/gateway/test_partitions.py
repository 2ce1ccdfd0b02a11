"""Dividing a table: even parts over uneven ranges, and who is asked first."""

from slackwater.gateway.partitions import ONE, divisions, in_turn, point_between
from slackwater.protocol.client.calls import ReplicaPlace


def ends(weights, count):
    """Where the parts end, in rows."""
    return [sum(weights[:number]) + round(weights[number] * ratio / ONE) for number, ratio in divisions(weights, count)]


def test_parts_have_as_many_rows_each_however_the_ranges_lie():
    assert ends([100, 100, 100, 100], 4) == [100, 200, 300]
    assert ends([300, 300, 300, 300, 300, 540], 4) == [510, 1020, 1530]
    assert ends([1000], 4) == [250, 500, 750]
    assert ends([10, 10, 980], 2) == [500]
    assert ends([5, 5], 1) == []


def test_an_end_near_that_of_a_range_becomes_it():
    assert divisions([101, 99], 2) == [(0, ONE)]
    assert divisions([99, 101], 2) == [(1, 0)]


def test_more_parts_than_rows_end_somewhere_at_least():
    found = divisions([1, 1], 6)
    assert len(found) == 5
    assert all(number in (0, 1) and 0 <= ratio <= ONE for number, ratio in found)


def test_points_lie_between_their_keys():
    assert point_between(b"a\x00", b"a\x10", ONE // 2) == b"a\x08" + bytes(7)
    assert point_between(b"k", b"k", ONE // 2) == b"k"
    low, high = b"t\x01\x00\x00", b"t\x01\xff"
    points = [point_between(low, high, ONE * i // 10) for i in range(1, 10)]
    assert points == sorted(points)
    assert all(low < point < high for point in points)


def test_followers_take_turns_and_the_leaseholder_is_asked_last():
    places = [ReplicaPlace(n, f"n{n}:1") for n in (1, 3, 2)]  # the last one leads
    assert [[p.node for p in in_turn(places, number)] for number in range(3)] == [[1, 3, 2], [3, 1, 2], [1, 3, 2]]
    assert in_turn(places[:1], 5) == (places[0],)
    assert in_turn([], 0) == ()
