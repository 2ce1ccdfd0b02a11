"""What follows from span configurations, and what the command makes of its options."""

from __future__ import annotations

import argparse

import msgspec
import pytest

from slackwater.cli.zone import main, span_of
from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.closedts.policy import ClosingPolicy, PolicyBook, Terms
from slackwater.codec.layout import kv, table_span
from slackwater.config.zones import PolicyKind, Zone, ZoneConfig, Zones, config_of, decode_zone, factor_of
from slackwater.errors import DecodeError, SlackwaterError, UnavailableError, UsageError
from slackwater.model.descriptors import Generation, RangeDescriptor
from slackwater.model.ids import NodeId, RangeId
from slackwater.runtime import run
from slackwater.server.zone_follower import ZoneFollower, policies_of
from slackwater.settings import Settings

A, C, F, M = kv(b"a"), kv(b"c"), kv(b"f"), kv(b"m")
CONFIGS = [
    ZoneConfig(policy=PolicyKind.LAG, duration_ms=500, replication_factor=5),
    ZoneConfig(A, C, policy=PolicyKind.LEAD),
    ZoneConfig(C, F, replication_factor=1),
]


def described(start: bytes, end: bytes) -> RangeDescriptor:
    return RangeDescriptor(RangeId(7), start, end, (NodeId(1),), Generation(1))


def test_what_a_record_leaves_open_the_rest_decides() -> None:
    assert config_of(CONFIGS, described(A, C)) == ZoneConfig(b"", b"", 5, PolicyKind.LEAD, 0)
    assert config_of(CONFIGS, described(C, F)) == ZoneConfig(b"", b"", 1, PolicyKind.LAG, 500)
    assert config_of(CONFIGS, described(F, M)) == CONFIGS[0]
    assert config_of([], described(F, M)) == ZoneConfig()
    assert factor_of(CONFIGS, described(F, M), default=3) == 5
    assert factor_of([], described(F, M), default=3) == 3


def test_policies_are_those_of_the_spans_with_leads_of_the_measured_step() -> None:
    terms = Terms()
    policies = policies_of(CONFIGS, rtt_step=4)
    assert policies.of(A, C, terms) == ClosingPolicy(PolicyKind.LEAD, 0, 4)
    assert policies.of(C, F, terms) == policies.of(F, M, terms) == ClosingPolicy(PolicyKind.LAG, 500)
    assert policies.of(A, F, terms) == ClosingPolicy(PolicyKind.LAG, 500), (
        "a range over two spans obeys the more careful policy"
    )
    assert policies_of([], rtt_step=4).of(A, C, terms) == ClosingPolicy()


def test_the_systems_own_keys_lag_whatever_records_say() -> None:
    terms, system = Terms(), (b"\x01", b"\x04")
    odd = ZoneConfig(b"\x03p", C, policy=PolicyKind.OFF)  # as one could be written once
    for configs in (CONFIGS[:1], [ZoneConfig(policy=PolicyKind.OFF)], [odd]):
        policies = policies_of(configs, rtt_step=4)
        assert policies.of(*system, terms) == ClosingPolicy()
        assert policies.of(b"\x02", b"\x03q", terms) == ClosingPolicy()
    assert policies_of([odd], rtt_step=4).of(A, C, terms) == ClosingPolicy(PolicyKind.OFF), "of the rest it still holds"
    assert policies_of([ZoneConfig(policy=PolicyKind.OFF)], rtt_step=4).of(A, C, terms) == ClosingPolicy(PolicyKind.OFF)


def test_records_of_an_earlier_version_are_read_and_rubbish_is_not() -> None:
    old = msgspec.msgpack.encode({"start": A, "end": C, "replication_factor": 4})
    assert decode_zone(old) == ZoneConfig(A, C, 4)
    with pytest.raises(DecodeError):
        decode_zone(b"\x93")


def options(**given: object) -> argparse.Namespace:
    return argparse.Namespace(**{"table": None, "start": None, "end": None, "rest": False, "system": False} | given)


def test_the_command_names_exactly_one_span() -> None:
    class Nobody:
        """No cluster has to be asked for a table's number."""

        dialer = None

    def asked(**given: object) -> tuple[bytes, bytes]:
        return run(span_of(Nobody(), options(host="", **given)))  # type: ignore[arg-type]

    assert asked(rest=True) == (b"", b"")
    assert asked(system=True) == (b"\x01", b"\x04")
    assert asked(table="7") == (table_span(7).start, table_span(7).end)
    assert asked(start="a", end="c") == (A, C)
    for wrong in ({}, {"rest": True, "table": "7"}, {"start": "a"}, {"end": "a"}, {"start": "c", "end": "a"}):
        with pytest.raises(UsageError):
            asked(**wrong)


def test_the_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(word in text for word in ("lag", "lead", "off", "examples:", "zone set rates --policy lead"))


class Records:
    """A system store of which one scan may fail."""

    def __init__(self) -> None:
        self.configs: list[ZoneConfig] = []
        self.fails = False
        self.now = MIN

    async def read(self) -> Zones:
        self.now = Timestamp(self.now + 1)
        if self.fails:
            raise UnavailableError("not now")
        return Zones([Zone(config, Timestamp(1)) for config in self.configs], read_at=self.now)


def test_a_copy_changes_the_book_when_the_records_or_the_round_trip_do_and_only_then() -> None:
    async def story() -> None:
        records, book, told, rtt = Records(), PolicyBook(), [], {NodeId(2): 0.001, NodeId(3): 0.001}
        watch = ZoneFollower(
            book=book,
            read=records.read,
            settings=Settings(),
            round_trips_s=lambda: rtt,
            changed=lambda: told.append(book.version),
        )
        await watch.read()
        assert told == [], "nothing new"
        records.configs = CONFIGS
        await watch.read()
        await watch.read()
        assert told == [1]
        rtt[NodeId(3)] = 0.1
        await watch.read()
        assert told == [1, 2]
        assert book.spans.of(A, C, Terms()) == ClosingPolicy(PolicyKind.LEAD, 0, 5)
        for followers, step in (((2,), 0), ((2, 3), 5), ((2, 9), 5), ((), 0)):
            made_for = book.of(A, C, Terms(), followers=[NodeId(n) for n in followers])
            assert made_for == ClosingPolicy(PolicyKind.LEAD, 0, step), (
                "the furthest follower; one never measured is far"
            )
        rtt[NodeId(3)] = 0.119
        await watch.read()
        assert told == [1, 2], "not clearly outside its step"
        records.fails = True
        with pytest.raises(SlackwaterError):
            await watch.read()
        assert book.version == 2, "what was known stays in force"

    run(story())
