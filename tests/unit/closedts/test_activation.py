"""Which ranges close at all: what is wanted here, which leaseholders are told, and when ranges rest again."""

from __future__ import annotations

from slackwater.closedts.activation import WANTED_MAX, Activation, Demands, activation_of
from slackwater.model.ids import NodeId, RangeId

N1, N2 = NodeId(1), NodeId(2)
R1, R2 = RangeId(1), RangeId(2)
S = 1_000_000_000
REST = 60 * S


def test_a_leaseholder_is_told_once_and_again_while_it_is_wanted() -> None:
    demands = Demands()
    demands.want(R1, 10 * S)
    assert demands.due(11 * S, REST, lambda _: N1) == {N1: [R1]}
    assert demands.due(12 * S, REST, lambda _: N1) == {}
    demands.want(R1, 20 * S)
    assert demands.due(21 * S, REST, lambda _: N1) == {}, "it closes for a minute anyway"
    assert demands.due(31 * S, REST, lambda _: N1) == {N1: [R1]}, "a third of the time later"
    assert demands.due(55 * S, REST, lambda _: N1) == {}, "not wanted since"


def test_another_leaseholder_and_one_that_was_not_reached_are_told_at_once() -> None:
    demands = Demands()
    demands.want(R1, 10 * S)
    assert demands.due(11 * S, REST, lambda _: N1) == {N1: [R1]}
    assert demands.due(12 * S, REST, lambda _: N2) == {N2: [R1]}
    demands.untold([R1])
    assert demands.due(13 * S, REST, lambda _: N2) == {N2: [R1]}
    assert demands.due(14 * S, REST, lambda _: NodeId(0)) == {}, "there is none to be told"


def test_a_range_rests_when_it_is_not_asked_for_any_more() -> None:
    demands = Demands()
    assert not demands.awake(R1)
    assert demands.demand(R1, 10 * S, REST)
    assert not demands.demand(R1, 30 * S, REST), "it was awake"
    assert demands.rested(89 * S) == []
    assert demands.awake(R1)
    assert demands.rested(90 * S) == [R1]
    assert not demands.awake(R1)


def test_a_leaseholder_closes_for_at_least_as_long_as_a_follower_expects() -> None:
    demands, leader = Demands(), Demands()
    for second in range(10, 400):
        now = second * S
        if second < 200:
            demands.want(R1, now)
        for _ in demands.due(now, REST, lambda _: N1).get(N1, []):
            leader.demand(R1, now, REST)
        leader.rested(now)
        if second > 11 and demands.awake(R1):
            assert leader.awake(R1), second
    assert not leader.awake(R1)


def test_what_is_wanted_is_bounded_and_forgotten() -> None:
    demands = Demands()
    for number in range(WANTED_MAX + 5):
        demands.want(RangeId(number + 1), S)
    assert len(demands.due(2 * S, REST, lambda _: N1)[N1]) == WANTED_MAX
    demands.forget(R1)
    assert not demands.awake(R1)
    assert demands.awake(R2)
    demands.due(S + REST + 1, REST, lambda _: N1)
    assert not demands.awake(R2)


def test_choices() -> None:
    assert [(a.by_zone, a.by_demand) for a in Activation] == [
        (False, False),
        (True, False),
        (False, True),
        (True, True),
    ]
    assert activation_of(2.0) is Activation.ON_DEMAND
    assert activation_of(17) is Activation.ALWAYS
