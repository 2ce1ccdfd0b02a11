from __future__ import annotations

import asyncio
import sys

import pytest

from slackwater.errors import LogError, LogIdentityMismatch, UsageError
from slackwater.log import check_identity, open_log
from slackwater.log.urls import parse_nats
from slackwater.runtime.clock import RealClock
from slackwater.runtime.rng import RealRng
from slackwater.runtime.seam import OrderedLog, RangeId
from slackwater.runtime.tasks import Scope


def open_url(url):
    return open_log(url, clock=RealClock(), rng=RealRng(), scope=Scope("test"))


def test_memory_urls_share_by_name():
    async def go():
        one, same, other = [await open_url(url) for url in ("memory:a-1", "memory:a-1", "memory:b-1")]
        await one.append(RangeId(1), [b"x"])
        assert await same.head(RangeId(1)) == 1
        assert await other.head(RangeId(1)) == 0
        check_identity(same, one.identity())
        with pytest.raises(LogIdentityMismatch):
            check_identity(other, one.identity())
        await one.close()
        with pytest.raises(LogError, match="closed"):
            await one.append(RangeId(1), [b"x"])

    asyncio.run(go())


def test_sqlite_urls(tmp_path):
    async def go():
        log = await open_url(f"sqlite://{tmp_path}/with%20space.db")
        assert isinstance(log, OrderedLog)
        await log.close()
        assert (tmp_path / "with space.db").exists()

    asyncio.run(go())


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("", "starts with"),
        ("kafka://x", "starts with"),
        ("/var/log.db", "starts with"),
        ("sqlite://host/path", "sqlite:///absolute"),
        ("sqlite:", "sqlite:///absolute"),
        ("sqlite:///x?y=1", "sqlite:///absolute"),
        ("nats://", "host:port"),
        ("nats://h:1/path?stream=s", "host:port"),
        ("nats://h:1", "needs a stream"),
        ("nats://h:1/?stream=s&colour=red", "takes each of"),
        ("nats://h:1/?stream=s&stream=t", "takes each of"),
        ("nats://h:1/?stream=s&replicas=2", "replicas must be"),
        ("nats://h:1/?stream=s&sync_always=perhaps", "must be 1 or 0"),
    ],
)
def test_bad_urls_say_what_to_write(url, hint):
    with pytest.raises(UsageError, match=hint):
        asyncio.run(open_url(url))


def test_nats_urls():
    servers, options = parse_nats("nats://u:p@a:1,b:2/?stream=s&replicas=1")
    assert servers == ["nats://u:p@a:1", "nats://b:2"]
    assert options == {"stream": "s", "replicas": "1"}


def test_missing_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "nats", None)
    monkeypatch.delitem(sys.modules, "slackwater.log.nats", raising=False)
    with pytest.raises(UsageError, match=r"slackwater\[nats\]"):
        asyncio.run(open_url("nats://h:1/?stream=s"))
