"""What command line arguments mean, and what is said about those that mean nothing."""

import io

import pytest

from slackwater.errors import InvalidSetting, UnknownSetting, UsageError
from slackwater.model.locality import locality_of
from slackwater.runtime.tcp import TcpNet, is_loopback
from slackwater.server.arguments import (
    addresses_of,
    client_net,
    node_net,
    settings_of,
    verb_first,
)
from slackwater.server.journal import LINE_CHARS_MAX, Journal
from slackwater.settings import Settings


def test_addresses():
    assert addresses_of("a:1, b:2,") == ("a:1", "b:2")
    assert addresses_of("") == ()
    with pytest.raises(UsageError, match="host:port"):
        addresses_of("a:1,b")


def test_localities():
    assert locality_of("region=eu,zone=a") == (("region", "eu"), ("zone", "a"))
    assert locality_of("") == ()
    for bad in ("eu", "region=", "=eu", "zone=a,zone=b"):
        with pytest.raises(UsageError):
            locality_of(bad)


def test_settings():
    assert settings_of(["lease.duration=2.5"])["lease.duration"] == 2.5
    with pytest.raises(UsageError, match="name=value"):
        settings_of(["lease.duration"])
    with pytest.raises(UsageError, match="number"):
        settings_of(["lease.duration=long"])
    with pytest.raises(UnknownSetting, match="did you mean"):
        settings_of(["lease.durations=2"])
    with pytest.raises(InvalidSetting, match="between"):
        settings_of(["lease.duration=0.001"])
    assert settings_of(["closed_timestamp.scheme=store-wide"])["closed_timestamp.scheme"] == 1
    assert settings_of(["closed_timestamp.activation=ON_DEMAND"])["closed_timestamp.activation"] == 2
    assert settings_of(["closed_timestamp.scheme=2"])["closed_timestamp.scheme"] == 2
    for wrong in ("storewide", "0.5", "3"):
        with pytest.raises(InvalidSetting, match="one of log-driven, store-wide, max-write-age"):
            settings_of([f"closed_timestamp.scheme={wrong}"])


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("0.0.0.0:1", False),
        ("10.0.0.1:1", False),
        ("db.example:1", False),
        ("localhost.example:1", False),
    ],
)
def test_loopback(address, expected):
    assert is_loopback(address) is expected
    settings = Settings()
    if expected:
        assert isinstance(node_net(settings, credentials=None, insecure=True, listen=address), TcpNet)
        assert isinstance(client_net(settings, (address,), certs=None, user="root"), TcpNet)
    else:
        with pytest.raises(UsageError, match="loopback"):
            node_net(settings, credentials=None, insecure=True, listen=address)
        with pytest.raises(UsageError, match="loopback"):
            client_net(settings, ("127.0.0.1:1", address), certs=None, user="root")


def test_a_node_says_how_it_talks():
    with pytest.raises(UsageError, match="--certs"):
        node_net(Settings(), credentials=None, insecure=False, listen="127.0.0.1:1")


class Clock:
    def wall_ns(self) -> int:
        return 1_800_000_000_123_456_789


def test_the_journal_writes_one_line_whatever_the_facts():
    to = io.StringIO()
    journal = Journal(Clock(), to=to)
    journal.info("started", node="n1", empty="", text='two words "quoted"', broken="a\nb", n=3)
    journal.error("long", text="x" * 10_000)
    first, second = to.getvalue().splitlines()
    assert first.startswith("2027-01-15T08:00:00.123456Z INFO  started node=n1 ")
    assert first.endswith(r'empty="" text="two words \"quoted\"" broken="a\nb" n=3')
    assert len(second) == LINE_CHARS_MAX


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("--host h:1 list", "list --host h:1"),
        ("list --host h:1 --json", "list --json --host h:1"),
        ("--host=h:1 --certs c orders drop --dry-run", "orders drop --dry-run --host=h:1 --certs c"),
        ("--host h:1 put -- --host x", "put --host h:1 -- --host x"),
        ("list --host", "list --host"),
    ],
)
def test_options_of_the_connection_may_stand_before_the_verb(given, read):
    assert verb_first(given.split()) == read.split()
