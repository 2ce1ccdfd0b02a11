"""Who is cut off: only a majority that hears each other can say so, and what is not known is not held against anybody."""

from __future__ import annotations

from slackwater.model.ids import NodeId
from slackwater.server.reach import Reach

N1, N2, N3, N4, N5 = (NodeId(n) for n in range(1, 6))
THREE = {N1, N2, N3}
WINDOW = 100


def missing(own: NodeId, *nodes: NodeId) -> Reach:
    """A node that has called these in vain since 0, and gets answers from all others."""
    reach = Reach(own)
    for node in nodes:
        reach.called(node, began_ns=0, answered=False)
    return reach


def cut_off(reach: Reach, members: set[NodeId], *, now_ns: int = WINDOW) -> list[NodeId]:
    return reach.cut_off(members, now_ns=now_ns, window_ns=WINDOW)


def test_two_of_three_that_hear_each_other_cut_the_third_off() -> None:
    reach = missing(N1, N3)
    assert cut_off(reach, THREE) == [], "n1 alone is no majority"
    reach.told(N2, [N3], [], now_ns=WINDOW)
    assert cut_off(reach, THREE) == [N3]
    assert reach.missed_by(N3, now_ns=WINDOW, window_ns=WINDOW) == [N1, N2]


def test_a_node_is_missed_only_after_a_whole_window_of_calls_in_vain() -> None:
    reach = missing(N1, N3)
    reach.told(N2, [N3], [], now_ns=WINDOW - 1)
    assert cut_off(reach, THREE, now_ns=WINDOW - 1) == []
    reach.called(N3, began_ns=WINDOW - 1, answered=True)
    reach.called(N3, began_ns=WINDOW, answered=False)
    assert cut_off(reach, THREE, now_ns=2 * WINDOW - 1) == [], "the last answer began another window"


def test_what_was_said_long_ago_counts_for_nothing() -> None:
    reach = missing(N1, N3)
    reach.told(N2, [N3], [], now_ns=0)
    assert cut_off(reach, THREE, now_ns=WINDOW) == [N3]
    assert cut_off(reach, THREE, now_ns=WINDOW + 1) == []


def test_neither_two_nodes_nor_a_cluster_in_pieces_cut_anybody_off() -> None:
    assert cut_off(missing(N1, N2), {N1, N2}) == []
    assert cut_off(missing(N1, N2, N3), THREE) == [], "nobody tells n1 anything: it knows of no majority"
    halves = missing(N1, N3, N4)
    halves.told(N2, [N3, N4], [], now_ns=WINDOW)
    assert cut_off(halves, {N1, N2, N3, N4}) == [], "two of four are no majority"


def test_three_of_five_cut_the_other_two_off() -> None:
    reach = missing(N1, N4, N5)
    reach.told(N2, [N4, N5], [], now_ns=WINDOW)
    reach.told(N3, [N4], [], now_ns=WINDOW)
    assert cut_off(reach, {N1, N2, N3, N4, N5}) == [N4], "n3 still reaches n5"


def test_who_is_no_member_has_no_vote() -> None:
    reach = missing(N1, N3)
    reach.told(N5, [N3], [], now_ns=WINDOW)
    assert cut_off(reach, THREE) == []
    reach.forget(THREE)
    assert reach.missed_by(N3, now_ns=WINDOW, window_ns=WINDOW) == [N1]


def test_a_node_learns_that_it_is_cut_off_from_peers_and_through_the_log_for_a_while() -> None:
    reach = Reach(N3)
    assert reach.why_cut_off(now_ns=0, window_ns=WINDOW) == ""
    reach.told(N1, [N3], [N3], now_ns=0)
    assert "n1 says" in reach.why_cut_off(now_ns=WINDOW, window_ns=WINDOW)
    reach.complained(N2, [N1, N2], now_ns=WINDOW)
    assert "n1, n2 cannot reach it" in reach.why_cut_off(now_ns=2 * WINDOW, window_ns=WINDOW)
    assert reach.why_cut_off(now_ns=2 * WINDOW + 1, window_ns=WINDOW) == ""
