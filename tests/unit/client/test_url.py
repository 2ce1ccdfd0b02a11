"""URLs of clusters: what they may say, and one clear error for what they may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from slackwater.client.connect import target_of
from slackwater.client.url import Target, parse_url
from slackwater.errors import UsageError


def test_hosts_with_and_without_ports() -> None:
    assert parse_url("slackwater://a,b:7401,[::1],[::1]:9").addresses == ("a:7400", "b:7401", "[::1]:7400", "[::1]:9")


def test_options() -> None:
    target = parse_url("slackwater://h?user=ada&certs=/c&timeout=500ms&locality=region=eu,zone=a")
    assert target == Target(
        addresses=("h:7400",),
        certs=Path("/c"),
        user="ada",
        timeout_s=0.5,
        locality=(("region", "eu"), ("zone", "a")),
    )


@pytest.mark.parametrize(
    "target",
    [
        Target(addresses=("h:7400", "i:1")),
        Target(addresses=("h:7400",), certs=Path("/a b/c"), user="ada", timeout_s=2.5),
        Target(addresses=("h:7400",), locality=(("region", "eu"), ("zone", "a"))),
    ],
)
def test_a_target_is_read_back_from_its_url(target: Target) -> None:
    assert parse_url(target.url()) == target


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "begins with"),
        ("h:7400", "begins with"),
        ("postgres://h", "begins with"),
        ("slackwater://", "at least one host"),
        ("slackwater://,", "at least one host"),
        ("slackwater://h:x", "port"),
        ("slackwater://h:99999", "port"),
        ("slackwater://h/table", "no path"),
        ("slackwater://u:p@h", "passwords"),
        ("slackwater://h?usr=x", "unknown option"),
        ("slackwater://h?user=a&user=b", "twice"),
        ("slackwater://h?timeout=0", "positive"),
        ("slackwater://h?timeout=soon", "duration"),
        ("slackwater://h?locality=eu", "region=eu"),
    ],
)
def test_one_clear_error(url: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_url(url)


def test_arguments_win_and_certificates_must_be_there(tmp_path: Path) -> None:
    assert target_of("slackwater://h?user=a&timeout=1", user="b", timeout=2, certs=tmp_path).user == "b"
    assert target_of("slackwater://h?timeout=1", timeout="2s").timeout_s == 2
    with pytest.raises(UsageError, match="no directory of certificates"):
        target_of("slackwater://h", certs=tmp_path / "nope")
    with pytest.raises(UsageError, match="URL"):
        parse_url(7)  # type: ignore[arg-type]
