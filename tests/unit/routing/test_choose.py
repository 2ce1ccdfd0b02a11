"""The order in which replicas are tried, and what the sender remembers of nodes."""

from __future__ import annotations

from slackwater.model.ids import NodeId
from slackwater.model.locality import shared
from slackwater.routing.choose import Candidate, order
from slackwater.routing.nodes import GRUDGE_NS, NODES_MAX, NodeHealth, NodeTable, NodeView

HERE = (("region", "eu"), ("zone", "a"))


class Dice:
    """A `seam.Rng` that counts up: ties keep the order in which candidates were listed."""

    def __init__(self) -> None:
        self.at = 0

    def below(self, bound: int) -> int:
        self.at += 1
        return self.at % bound

    def chance(self, numerator: int, denominator: int) -> bool:
        return self.below(denominator) < numerator

    def bytes(self, count: int) -> bytes:
        return bytes(self.below(256) for _ in range(count))


def node(
    n: int, health: NodeHealth = NodeHealth.LIVE, *, locality=HERE, latency_us: int = 100, suspect: bool = False
) -> Candidate:
    return Candidate(NodeId(n), NodeView(health, locality), latency_us, suspect)


def ordered(*candidates: Candidate, leaseholder: int = 0, by_follower: bool = False, here: int = 0) -> list[int]:
    return list(
        order(
            candidates,
            leaseholder=NodeId(leaseholder),
            by_follower=by_follower,
            here=NodeId(here),
            locality=HERE,
            rng=Dice(),
        )
    )


def test_leaseholder_is_first_for_writes_and_strong_reads() -> None:
    assert ordered(node(1), node(2), node(3, latency_us=1 << 20), leaseholder=3) == [3, 1, 2]


def test_leaseholder_hint_outside_the_descriptor_is_asked_first() -> None:
    assert ordered(node(1), node(2), leaseholder=9) == [9, 1, 2]


def test_a_dead_leaseholder_comes_last_because_its_lease_will_move() -> None:
    assert ordered(node(1, NodeHealth.DEAD), node(2), node(3), leaseholder=1) == [2, 3, 1]


def test_a_draining_leaseholder_still_holds_the_lease() -> None:
    assert ordered(node(1, NodeHealth.DRAINING), node(2), leaseholder=1) == [1, 2]


def test_followers_by_health_then_nearness_then_speed() -> None:
    far = (("region", "us"), ("zone", "a"))
    beside = (("region", "eu"), ("zone", "b"))
    found = ordered(
        node(1, NodeHealth.DRAINING),
        node(2, NodeHealth.DEAD),
        node(3, locality=far),
        node(4, locality=beside),
        node(5, latency_us=10_000),
        node(6, latency_us=100),
        node(7, suspect=True),
        leaseholder=3,
        by_follower=True,
    )
    assert found == [6, 5, 4, 3, 7, 1, 2]


def test_this_node_is_the_nearest_follower() -> None:
    assert ordered(node(1), node(2), here=2, by_follower=True) == [2, 1]


def test_draining_and_dead_nodes_come_last_for_followers_even_here() -> None:
    assert ordered(node(1), node(2, NodeHealth.DRAINING), here=2, by_follower=True) == [1, 2]


def test_equal_replicas_share_the_load() -> None:
    dice = Dice()
    firsts = set()
    for _ in range(8):
        dice.at += 7919 * (1 << 13)
        firsts.add(
            order(
                [node(1), node(2), node(3)],
                leaseholder=NodeId(0),
                by_follower=True,
                here=NodeId(0),
                locality=HERE,
                rng=Scatter(dice),
            )[0]
        )
    assert len(firsts) > 1


class Scatter(Dice):
    """Scrambles the counter of another die."""

    def __init__(self, dice: Dice) -> None:
        super().__init__()
        self.dice = dice

    def below(self, bound: int) -> int:
        self.dice.at = (self.dice.at * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (self.dice.at >> 33) % bound


def test_shared_counts_leading_tiers_only() -> None:
    assert shared(HERE, HERE) == 2
    assert shared(HERE, (("region", "us"), ("zone", "a"))) == 0
    assert shared(HERE, ()) == 0


def test_latency_is_a_moving_average() -> None:
    table = NodeTable()
    assert table.latency_us(NodeId(1)) == 0
    table.answered(NodeId(1), took_ns=800_000)
    assert table.latency_us(NodeId(1)) == 800
    table.answered(NodeId(1), took_ns=1_600_000)
    assert table.latency_us(NodeId(1)) == 900


def test_a_grudge_ends_by_time_or_by_an_answer() -> None:
    table = NodeTable()
    table.failed(NodeId(1), now_ns=10)
    table.failed(NodeId(2), now_ns=10)
    assert table.suspect(NodeId(1), now_ns=9 + GRUDGE_NS)
    assert not table.suspect(NodeId(1), now_ns=10 + GRUDGE_NS)
    table.answered(NodeId(2), took_ns=1)
    assert not table.suspect(NodeId(2), now_ns=11)


def test_the_node_table_is_bounded() -> None:
    table = NodeTable()
    for n in range(NODES_MAX + 10):
        table.answered(NodeId(n + 1), took_ns=5000)
        table.failed(NodeId(n + 1), now_ns=0)
    assert len(table._latency_us) == NODES_MAX
    assert len(table._grudge_until_ns) == NODES_MAX
    assert table.latency_us(NodeId(1)) == 0
