"""Division when what is known contradicts itself."""

from __future__ import annotations

from slackwater.model.descriptors import Generation, RangeDescriptor
from slackwater.model.ids import NodeId, RangeId
from slackwater.protocol.range.requests import Request, Scan
from slackwater.routing.split import Division, divide

OLD = RangeDescriptor(RangeId(3), b"a", b"z", (NodeId(1),), Generation(1))
NEW = RangeDescriptor(RangeId(3), b"a", b"m", (NodeId(1),), Generation(2))


def divided(requests: list[Request], answers: list[RangeDescriptor]) -> Division:
    talk = divide(requests, home=b"")
    left = iter(answers)
    try:
        next(talk)
        while True:
            talk.send(next(left))
    except StopIteration as done:
        return done.value


def test_an_old_and_a_new_descriptor_of_one_range_are_two_shares() -> None:
    """The index still says [a, z) for the right half: the range itself must get the chance to refuse that."""
    division = divided([Scan(b"b", b"y")], [NEW, OLD])
    assert [(s.descriptor, s.requests) for s in division.shares] == [
        (NEW, [Scan(b"b", b"m")]),
        (OLD, [Scan(b"m", b"y")]),
    ]
