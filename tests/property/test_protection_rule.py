"""Protected or too late, never maybe: zones that change, copies that lag, collectors that go as far as they may.

One time line of commits. A collector knows the zones as of one time and the protections as of another, each as old as chance has
it, and collects all that the rule of `config.zones` lets it. A protection is accepted by its zones' allowance, or because another
one keeps what it needs (`protect.store.uncovered`). In no order may an accepted protection find its timestamp collected, before
or after it was made (I-27).
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.clock.timestamp import Timestamp, add_seconds, from_us
from slackwater.codec.layout import kv
from slackwater.config.zones import SYSTEM_SPAN, Zone, ZoneConfig, Zones, revised
from slackwater.model.protection import Mode, Record
from slackwater.model.spans import Span
from slackwater.protect.store import uncovered

A, C = kv(b"a"), kv(b"c")
PLACES = {"own": Span(A, C), "rest": Span(kv(b"x"), kv(b"y")), "system": Span(b"\x03t", b"\x03u")}
"""Where something is kept, collected and protected; a play is about one of them."""
BOUNDS = {"own": (A, C), "rest": (b"", b""), "system": (SYSTEM_SPAN.start, SYSTEM_SPAN.end)}
TTLS_S = (3.0, 40.0)

what = st.one_of(
    st.tuples(st.just("zone"), st.sampled_from([None, None, *PLACES]), st.sampled_from([*TTLS_S, *TTLS_S, 0.0])),
    st.tuples(st.just("collect"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("protect"), st.sampled_from([0, 2, 4, 20, 39]), st.just(0)),
    st.tuples(st.just("again"), st.integers(0, 5), st.sampled_from([0, 0, 1, 3])),
    st.tuples(st.just("release"), st.integers(0, 5), st.just(0)),
)

STEPS = st.lists(st.tuples(st.sampled_from([0, 1, 5, 30]), what), max_size=12)


class World:
    """What has been committed, and every copy of it that was ever made."""

    def __init__(self, place: str, ttl_s: float, mode: Mode) -> None:
        self.place = place
        self.mode = mode
        self.now = from_us(100_000_000_000)
        self.zones = Zones(read_at=self.now)
        for where in PLACES:
            self.change(where, ttl_s)
            self.now = add_seconds(self.now, 100)
        self.protected: list[Timestamp] = []
        self.collected: list[tuple[Timestamp, frozenset[Timestamp]]] = []
        self.zone_copies = [Zones(self.zones.records, read_at=self.now).since(Zones(read_at=self.now))]
        self.protection_copies = [(frozenset[Timestamp](), self.now)]

    def copy(self) -> None:
        """Somebody reads everything; whether anything is collected by it is another matter."""
        copy = Zones(self.zones.records, read_at=self.now)
        self.zone_copies.append(copy.since(self.zone_copies[-1]))
        self.protection_copies.append((frozenset(self.protected), self.now))

    def change(self, where: str, ttl_s: float) -> None:
        revision = revised(self.zones, ZoneConfig(*BOUNDS[where], gc_ttl_s=ttl_s), now=self.now)
        kept = {z.config.start: z for z in self.zones.records if z.config.start not in revision.deletes}
        kept |= {p.start: Zone(p, self.now) for p in revision.puts}
        self.zones = Zones(list(kept.values()), read_at=self.now)

    def collect(self, zones: Zones, records: frozenset[Timestamp], read_at: Timestamp) -> None:
        here = zones.of(PLACES[self.place])
        if here is not None and here.written < read_at:
            threshold = add_seconds(Timestamp(min(read_at, zones.read_at)), -here.gc_ttl_s)
            self.collected.append((threshold, records))

    def protect(self, ts: Timestamp) -> None:
        here = PLACES[self.place]
        records = [Record(b"", one, self.mode, "test", b"", (here,)) for one in self.protected]
        if self.now < self.zones.allowance([here]).deadline(ts) or not uncovered(records, ts, self.mode, [here]):
            self.protected.append(ts)

    def check(self) -> None:
        for ts in self.protected:
            for threshold, records in self.collected:
                kept = any(one <= ts for one in records) if self.mode is Mode.AFTER else ts in records
                assert ts > threshold or kept, (self.place, ts, threshold)


@settings(max_examples=5000, deadline=None)
@given(
    st.sampled_from(list(PLACES)),
    st.sampled_from(TTLS_S),
    st.sampled_from(list(Mode)),
    st.lists(st.tuples(st.sampled_from([0, 1, 5, 30]), what), max_size=12),
)
def test_no_accepted_protection_is_ever_collected(
    place: str, ttl_s: float, mode: Mode, steps: list[tuple[int, tuple[str, Any, Any]]]
) -> None:
    world = World(place, ttl_s, mode)
    for wait_s, (kind, first, second) in steps:
        world.now = Timestamp(add_seconds(world.now, wait_s) + 1)
        if kind == "zone":
            world.change(first or place, second)
        elif kind == "collect":
            last = len(world.zone_copies) - 1
            world.collect(world.zone_copies[max(0, last - first)], *world.protection_copies[max(0, last - second)])
        elif kind == "protect":
            world.protect(add_seconds(world.now, -first))
        elif kind == "again" and world.protected:
            world.protect(add_seconds(world.protected[first % len(world.protected)], second))
        elif world.protected:
            world.protected.remove(world.protected[first % len(world.protected)])
        world.now = Timestamp(world.now + 1)
        world.copy()
        world.check()
