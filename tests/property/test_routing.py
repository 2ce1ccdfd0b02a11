"""Division and merging against one undivided model, and the range cache against a list of facts."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.model.descriptors import Generation, RangeDescriptor
from slackwater.model.ids import NodeId, RangeId
from slackwater.model.txns import Resolution, TxnStatus
from slackwater.protocol.range.requests import (
    DeleteRange,
    Done,
    Get,
    Number,
    Put,
    PutRows,
    Request,
    ResolveIntents,
    Result,
    ReverseScan,
    Rows,
    Scan,
    Value,
)
from slackwater.routing.merge import merge
from slackwater.routing.range_cache import RangeCache
from slackwater.routing.split import divide, extent, fits

KEYS = [bytes([b]) for b in range(ord("a"), ord("z"))]
keys = st.sampled_from(KEYS)


@st.composite
def spans(draw: Any) -> tuple[bytes, bytes]:
    low, high = sorted(draw(st.lists(keys, min_size=2, max_size=2, unique=True)))
    return low, high


requests = st.one_of(
    keys.map(Get),
    keys.map(lambda k: Put(k, b"new")),
    spans().map(lambda s: Scan(*s)),
    spans().map(lambda s: ReverseScan(*s)),
    spans().map(lambda s: DeleteRange(*s)),
    st.lists(keys, min_size=1, max_size=8, unique=True).map(lambda k: PutRows(sorted(k), [b"row"] * len(k))),
    st.tuples(st.lists(keys, max_size=4, unique=True), st.lists(spans(), max_size=2))
    .filter(lambda t: bool(t[0] or t[1]))
    .map(lambda t: ResolveIntents(Resolution(b"x" * 16, 0, TxnStatus.ABORTED), keys=tuple(t[0]), spans=tuple(t[1]))),
)


def ranges(cuts: list[bytes]) -> list[RangeDescriptor]:
    bounds = [b"a", *sorted(cuts), b"z\x00"]
    return [
        RangeDescriptor(RangeId(i + 1), low, high, (NodeId(1),), Generation(1))
        for i, (low, high) in enumerate(itertools.pairwise(bounds))
    ]


class Model:
    """A sorted dict that executes requests, and a list of what was resolved."""

    def __init__(self, held: dict[bytes, bytes]) -> None:
        self.held = dict(held)
        self.resolved: set[bytes] = set()

    def inside(self, start: bytes, end: bytes) -> list[bytes]:
        return [k for k in sorted(self.held) if start <= k < end]

    def run(self, request: Request) -> Result:
        match request:
            case Get(key):
                return Value(self.held.get(key))
            case Put(key, value):
                self.held[key] = value
            case PutRows(keys, values):
                self.held.update(zip(keys, values, strict=True))
            case Scan(start, end):
                found = self.inside(start, end)
                return Rows(found, [self.held[k] for k in found])
            case ReverseScan(start, end):
                found = self.inside(start, end)[::-1]
                return Rows(found, [self.held[k] for k in found])
            case DeleteRange(start, end):
                found = self.inside(start, end)
                for key in found:
                    del self.held[key]
                return Number(len(found))
            case ResolveIntents(keys=points, spans=covered):
                before = len(self.resolved)
                self.resolved |= set(points) | {k for k in KEYS for s, e in covered if s <= k < e}
                return Number(len(self.resolved) - before)
        return Done()


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.sampled_from(KEYS[1:]), max_size=6, unique=True),
    st.dictionaries(keys, st.just(b"old")),
    st.lists(requests, min_size=1, max_size=6),
)
def test_divided_and_merged_equals_undivided(cuts: list[bytes], held: dict[bytes, bytes], batch: list[Request]) -> None:
    whole, parts = Model(held), Model(held)
    descriptors = ranges(cuts)
    talk = divide(batch, home=b"a")
    try:
        key = next(talk)
        while True:
            key = talk.send(next(d for d in descriptors if d.contains(key)))
    except StopIteration as done:
        division = done.value
    answers = [[None] * len(share.requests) for share in division.shares]
    # Requests of a batch are executed in order; so are their pieces, wherever they went.
    expected = [whole.run(request) for request in batch]
    for where in division.places:
        for share, at in where:
            assert fits([division.shares[share].requests[at]], division.shares[share].descriptor, home=b"a")
            answers[share][at] = parts.run(division.shares[share].requests[at])
    got = [
        merge(request, [answers[s][at] for s, at in where])
        for request, where in zip(batch, division.places, strict=True)
    ]
    assert got == expected
    assert parts.held == whole.held
    assert parts.resolved == whole.resolved


@settings(deadline=None, max_examples=200)
@given(requests)
def test_an_extent_holds_exactly_what_fits(request: Request) -> None:
    start, end = extent(request, home=b"a")
    exact = RangeDescriptor(RangeId(1), start, end, (), Generation(1))
    assert fits([request], exact, home=b"a")
    for low, high in (
        (start + b"\x00", end),
        (start, end[:-1] if end.endswith(b"\x00") else bytes([end[0] - 1]) + b"\xff"),
    ):
        if low < high:
            assert not fits([request], RangeDescriptor(RangeId(1), low, high, (), Generation(1)), home=b"a")


class Facts:
    """The cache's naive twin: all descriptors ever accepted and not yet superseded, searched one by one."""

    def __init__(self) -> None:
        self.kept: list[RangeDescriptor] = []

    def insert(self, new: RangeDescriptor) -> bool:
        overlapping = [d for d in self.kept if d.start < new.end and new.start < d.end]
        if any(d.generation > new.generation for d in overlapping):
            return False
        self.kept = [d for d in self.kept if d not in overlapping] + [new]
        return True

    def lookup(self, key: bytes) -> RangeDescriptor | None:
        return next((d for d in self.kept if d.contains(key)), None)

    def lookup_below(self, end: bytes) -> RangeDescriptor | None:
        return next((d for d in self.kept if d.start < end <= d.end), None)


descriptors = st.builds(
    lambda n, s, g: RangeDescriptor(RangeId(n), s[0], s[1], (NodeId(1),), Generation(g)),
    st.integers(1, 5),
    spans(),
    st.integers(1, 4),
)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.tuples(st.sampled_from(["insert", "insert", "evict"]), descriptors), max_size=20),
    st.lists(keys, max_size=6),
)
def test_cache_agrees_with_a_list_of_facts(steps: list[tuple[str, RangeDescriptor]], probes: list[bytes]) -> None:
    cache, facts = RangeCache(entries_max=1000), Facts()
    for verb, descriptor in steps:
        if verb == "insert":
            assert cache.insert(descriptor) == facts.insert(descriptor)
        else:
            cache.evict(descriptor)
            facts.kept = [
                d
                for d in facts.kept
                if not (
                    d.start == descriptor.start
                    and d.range_id == descriptor.range_id
                    and d.generation <= descriptor.generation
                )
            ]
        for key in probes:
            assert cache.lookup(key) == facts.lookup(key)
            assert cache.lookup_below(key) == facts.lookup_below(key)
        assert len(cache) == len(facts.kept)


@settings(deadline=None, max_examples=100)
@given(st.lists(descriptors, max_size=30), st.integers(1, 4))
def test_cache_never_exceeds_its_bound_nor_overlaps(inserted: list[RangeDescriptor], bound: int) -> None:
    cache = RangeCache(entries_max=bound)
    for descriptor in inserted:
        cache.insert(descriptor)
        assert len(cache) <= bound
        held = [cache._by_start[s] for s in cache._starts]
        assert all(a.end <= b.start for a, b in itertools.pairwise(held))
        assert set(cache._leases) <= {d.range_id for d in held}
