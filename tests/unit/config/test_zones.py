"""Zones: what holds where and since when, and what a longer ttl remembers of a shorter one."""

from __future__ import annotations

import pytest

from slackwater.clock.timestamp import MIN, Timestamp, add_seconds, from_us
from slackwater.codec.layout import kv, table_span
from slackwater.config.zones import (
    GC_TTL_S_DEFAULT,
    SYSTEM_SPAN,
    PolicyKind,
    Zone,
    ZoneConfig,
    Zones,
    check_apart,
    check_zone,
    revised,
)
from slackwater.errors import UsageError
from slackwater.model.spans import Span
from slackwater.settings import Settings

A, C, F, M = kv(b"a"), kv(b"c"), kv(b"f"), kv(b"m")


def at(second: float) -> Timestamp:
    return add_seconds(from_us(0), second)


def zones(*records: tuple[ZoneConfig, float], read_at: float = 1e6) -> Zones:
    return Zones([Zone(config, at(written)) for config, written in records], read_at=at(read_at))


def apply(before: Zones, change: ZoneConfig, second: float) -> Zones:
    """The records after a change that commits at `second`."""
    revision = revised(before, change, now=at(second))
    kept = {z.config.start: z for z in before.records if z.config.start not in revision.deletes}
    kept |= {p.start: Zone(p, at(second)) for p in revision.puts}
    return Zones(list(kept.values()), read_at=at(second))


def test_a_span_in_one_zone_has_its_ttl_and_one_in_several_has_none() -> None:
    book = zones((ZoneConfig(gc_ttl_s=100), 10), (ZoneConfig(A, C, gc_ttl_s=5), 20), (ZoneConfig(C, F, 1), 30))
    found = book.of(Span(A, C))
    assert found is not None
    assert (found.gc_ttl_s, found.written) == (5, at(20))
    inherited = book.of(Span(C, F))
    assert inherited is not None
    assert (inherited.gc_ttl_s, inherited.written) == (100, at(30))
    rest = book.of(Span(F, M))
    assert rest is not None
    assert (rest.gc_ttl_s, rest.written) == (100, at(10))
    assert book.of(Span(A, F)) is None
    assert book.of(Span(kv(b"0"), B_INSIDE)) is None, "the rest, and a zone"
    assert zones().of(Span(A, M)) is not None


B_INSIDE = kv(b"b")


@pytest.mark.parametrize("spans", [[Span(A, M)], [Span(A, C), Span(C, M)], [Span(C, M), Span(A, C)]])
@pytest.mark.parametrize(("first", "second"), [(5, 60), (60, 5)])
def test_the_shortest_ttl_of_all_spans_counts_wherever_it_lies(spans: list[Span], first: int, second: int) -> None:
    book = zones((ZoneConfig(A, C, gc_ttl_s=first), 1), (ZoneConfig(C, M, gc_ttl_s=second), 2))
    assert book.allowance(spans).gc_ttl_s == 5


def test_the_systems_keys_are_kept_as_long_as_the_longest_zone() -> None:
    catalog = Span(b"\x03t", b"\x03u")
    assert zones().at(catalog.start).gc_ttl_s == GC_TTL_S_DEFAULT
    short = zones((ZoneConfig(gc_ttl_s=5), 10))
    assert short.at(catalog.start).gc_ttl_s == GC_TTL_S_DEFAULT, "the rest is not the system's"
    long = zones((ZoneConfig(A, C, gc_ttl_s=86400), 10), (ZoneConfig(gc_ttl_s=5), 40))
    found = long.of(catalog)
    assert found is not None
    assert (found.gc_ttl_s, found.written) == (86400, at(40))
    own = zones((ZoneConfig(SYSTEM_SPAN.start, SYSTEM_SPAN.end, gc_ttl_s=60), 10))
    assert own.at(catalog.start).gc_ttl_s == 60
    assert own.of(Span(SYSTEM_SPAN.start, M)) is None


def test_a_record_that_is_gone_counts_as_written_when_it_was_first_missed() -> None:
    before = zones((ZoneConfig(A, C, gc_ttl_s=5), 20), read_at=50)
    after = Zones([], read_at=at(60)).since(before)
    assert after.at(A).written == at(60)
    assert Zones([], read_at=at(70)).since(after).at(A).written == at(60)
    first = zones((ZoneConfig(A, C, gc_ttl_s=5), 20), read_at=50).since(Zones())
    assert first.at(A).written == at(50), "what was there before the first read is not known"


def test_a_longer_ttl_remembers_what_the_shorter_one_may_have_collected() -> None:
    book = apply(zones((ZoneConfig(A, C, gc_ttl_s=600), 0)), ZoneConfig(A, C, gc_ttl_s=3600), 10_000)
    allowance = book.allowance([Span(A, C)])
    assert (allowance.gc_ttl_s, allowance.floor) == (3600, at(9_400))
    assert allowance.deadline(at(9_400)) == MIN, "it may be gone"
    assert allowance.deadline(at(9_401)) == at(9_401 + 3600)
    lowered = apply(book, ZoneConfig(A, C, gc_ttl_s=60), 10_100)
    assert lowered.at(A).floor == at(9_400)
    raised = apply(lowered, ZoneConfig(A, C, gc_ttl_s=7200), 10_200)
    assert raised.at(A).floor == at(10_140)


def test_a_zone_that_is_unset_is_remembered_as_long_as_that_matters() -> None:
    book = apply(zones((ZoneConfig(A, C, gc_ttl_s=600), 0)), ZoneConfig(A, C), 10_000)
    assert [z.config.decides for z in book.records] == [False]
    assert book.at(A).floor == at(9_400)
    assert book.at(A).gc_ttl_s == GC_TTL_S_DEFAULT
    later = apply(book, ZoneConfig(F, M, 5), 10_100)
    assert {z.config.start for z in later.records} == {A, F}
    much_later = apply(later, ZoneConfig(F, M, 4), 9_400 + GC_TTL_S_DEFAULT + 1)
    assert {z.config.start for z in much_later.records} == {F}, "every history that is certain now is younger"
    shortened = apply(zones((ZoneConfig(A, C, gc_ttl_s=86400), 0)), ZoneConfig(A, C), 100_000)
    assert shortened.records == (), "nothing to remember: the rest keeps less"


def test_the_rest_and_the_system_remember_too() -> None:
    book = apply(zones((ZoneConfig(gc_ttl_s=600), 0)), ZoneConfig(gc_ttl_s=100_000), 10_000)
    assert book.at(A).floor == at(9_400)
    assert book.at(b"\x03t").floor == at(10_000 - GC_TTL_S_DEFAULT) == add_seconds(at(10_000), -GC_TTL_S_DEFAULT)
    assert book.at(b"\x03t").gc_ttl_s == 100_000
    own = apply(book, ZoneConfig(A, C, gc_ttl_s=200_000), 10_001)
    assert own.at(A).floor == at(9_400), "copied from the rest, whose ttl it had"


def test_every_value_is_shown_with_where_it_comes_from() -> None:
    table = table_span(104)
    book = zones(
        (ZoneConfig(policy=PolicyKind.LAG, duration_ms=500, gc_ttl_s=7200), 1),
        (ZoneConfig(table.start, table.end, 5), 2),
    )
    shown = {name: (v.value, v.source) for name, v in book.explained(table.start, Settings()).items()}
    assert shown == {
        "replicas": (5, "this zone"),
        "policy": ("lag", "the rest"),
        "duration_ms": (500, "the rest"),
        "gc_ttl_s": (7200, "the rest"),
    }
    bare = {name: (v.value, v.source) for name, v in zones().explained(table.start, Settings()).items()}
    assert bare["replicas"] == (3, "range.replication_factor")
    assert bare["gc_ttl_s"] == (GC_TTL_S_DEFAULT, "default")
    assert book.explained(b"\x03t", Settings())["gc_ttl_s"].value == GC_TTL_S_DEFAULT


@pytest.mark.parametrize(
    "config",
    [
        ZoneConfig(gc_ttl_s=0.5),
        ZoneConfig(gc_ttl_s=-1),
        ZoneConfig(gc_ttl_s=1e9),
        ZoneConfig(b"\x03p", b"\x03q", gc_ttl_s=60),
    ],
)
def test_ttls_that_cannot_be(config: ZoneConfig) -> None:
    with pytest.raises(UsageError):
        check_zone(config)


def test_zones_do_not_overlap_but_the_systems_may_be_named() -> None:
    others = [Zone(ZoneConfig(A, F, 3), MIN)]
    with pytest.raises(UsageError, match="may not overlap"):
        check_apart(ZoneConfig(C, M, 3), others)
    check_apart(ZoneConfig(A, F, 5), others)
    check_apart(ZoneConfig(), others)
    system = ZoneConfig(SYSTEM_SPAN.start, SYSTEM_SPAN.end, gc_ttl_s=600)
    check_zone(system)
    check_apart(system, others)
