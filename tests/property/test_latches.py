"""The latch manager against its quadratic twin, and the rules it promises on its own."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.clock.timestamp import Timestamp
from slackwater.replica.latches import LatchManager, LatchSpan, RequestId, WaitingLatch, read_latch, write_latch
from tests.twins.latches import NaiveLatches, conflict

keys = st.integers(0, 7).map(lambda n: bytes([97 + n]))
stamps = st.sampled_from([0, 1, 2, 3]).map(Timestamp)


@st.composite
def latch_spans(draw: st.DrawFn) -> LatchSpan:
    start = draw(keys)
    end = draw(st.none() | keys.filter(lambda k: k > start)) if start < b"h" else None
    make = write_latch if draw(st.booleans()) else read_latch
    return make(start, end, at=draw(stamps))


# A step: enter with these spans, or let the n-th of those inside leave (granted) or give up (waiting).
steps = st.lists(st.lists(latch_spans(), min_size=1, max_size=3) | st.integers(0, 30), max_size=40)


class Pair:
    """Both managers fed alike."""

    def __init__(self) -> None:
        self.real = LatchManager()
        self.twin = NaiveLatches()
        self.inside: dict[RequestId, list[LatchSpan]] = {}
        self.next = 0

    def enter(self, spans: list[LatchSpan]) -> None:
        self.next += 1
        request = RequestId(self.next)
        answer = self.real.acquire(request, spans)
        assert self.twin.acquire(request, spans) == (not isinstance(answer, WaitingLatch))
        self.inside[request] = spans
        if isinstance(answer, WaitingLatch):
            assert answer.behind, "somebody must be named"
            assert all(other < request for other in answer.behind), "edges point to earlier arrivals: no deadlock"
        self.check()

    def leave(self, position: int) -> None:
        request = list(self.inside)[position % len(self.inside)]
        del self.inside[request]
        granted = self.real.release(request) if self.real.is_granted(request) else self.real.cancel(request)
        assert granted == self.twin.release(request), "same grants in the same order"
        assert granted == sorted(granted), "in order of arrival"
        self.check()

    def check(self) -> None:
        granted = [r for r in self.inside if self.real.is_granted(r)]
        assert granted == [r for r in self.inside if self.twin.is_granted(r)]
        for i, a in enumerate(granted):
            for b in granted[i + 1 :]:
                assert not any(conflict(x, y) for x in self.inside[a] for y in self.inside[b]), "mutual exclusion"
        assert len(self.real) == len(self.inside)
        if self.inside:
            assert granted, "the earliest request inside is always granted: somebody can make progress"
            assert granted[0] == next(iter(self.inside))


@settings(deadline=None, max_examples=400)
@given(steps)
def test_same_grants_as_the_twin(script: list[list[LatchSpan] | int]) -> None:
    pair = Pair()
    for step in script:
        if isinstance(step, list):
            pair.enter(step)
        elif pair.inside:
            pair.leave(step)
    while pair.inside:
        pair.leave(0)
    assert pair.real.status() == "held=[] waiting=[]"


@settings(deadline=None, max_examples=150)
@given(st.lists(st.lists(latch_spans(), min_size=1, max_size=3), min_size=2, max_size=12), st.data())
def test_no_starvation_whatever_arrives_later(first: list[list[LatchSpan]], data: st.DataObject) -> None:
    """A waiting request is granted once those before it have left, however many conflicting ones keep arriving."""
    real = LatchManager()
    for number, spans in enumerate(first, start=1):
        real.acquire(RequestId(number), spans)
    last = RequestId(len(first))
    for number in range(1, len(first)):
        real.acquire(RequestId(100 + number), data.draw(st.lists(latch_spans(), min_size=1, max_size=2)))
        assert all(other < last for other in real.behind(last)), "a later arrival got in front"
        real.release(RequestId(number))
    assert real.is_granted(last)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.booleans(), stamps), min_size=1, max_size=12), st.lists(st.integers(0, 30), max_size=30))
def test_a_hot_key_with_cancellations(kinds: list[tuple[bool, Timestamp]], leaving: list[int]) -> None:
    """One key only: the queue where the last write stands for those before it, and gives up at any moment."""
    pair = Pair()
    for write, ts in kinds:
        pair.enter([(write_latch if write else read_latch)(b"k", at=ts)])
    for position in leaving:
        if pair.inside:
            pair.leave(position)
    while pair.inside:
        pair.leave(len(pair.inside) - 1)
