from __future__ import annotations

import asyncio
import sys
import traceback

import pytest

from slackwater.cli.main import said
from slackwater.errors import LogError, LogIdentityMismatch, SlackwaterError, UsageError
from slackwater.log import check_identity, open_log
from slackwater.log.contract import OrderedLog
from slackwater.log.nats_access import access_of
from slackwater.log.urls import parse_nats
from slackwater.model.ids import RangeId
from slackwater.runtime.clock import RealClock
from slackwater.runtime.rng import RealRng
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
    for url in ("nats://u:p@a:1,b:2/?stream=s&replicas=1", "nats+tls://u:p@a:1,u:p@b:2/?stream=s&replicas=1"):
        servers, options, userinfo = parse_nats(url)
        assert servers == ["nats://a:1", "nats://b:2"]
        assert options == {"stream": "s", "replicas": "1"}
        assert userinfo == "u:p"


SECRET = "hunter2"


@pytest.mark.parametrize(
    "url",
    [
        f"nats://u:{SECRET}@h:1",
        f"nats://u:{SECRET}@h:1/?stream=s&colour=red",
        f"nats://h:1/?stream=s&password={SECRET}",
        f"nats://u:{SECRET}@h:1/?stream=s&replicas=2",
        f"nats://u:{SECRET}@h:1/?stream=s&sync_always=perhaps",
        f"nats://u:{SECRET}@h:1/path/?stream=s",
        f"nats://u:{SECRET}/x@h:1/?stream=s",
        f"nats://u:{SECRET}#x@h:1/?stream=s",
        f"nats://u:{SECRET}@a:1,v:{SECRET}@b:1/?stream=s",
        f"nats://[u:{SECRET}@h:1/?stream=s",
        f"natz://u:{SECRET}@h:1/?stream=s",
        f"u:{SECRET}@h:1",
        f"nats://{SECRET}@h:1/?stream=s&ca=x",
        f"nats+tls://{SECRET}@h:1/?stream=s&ca=/no/such/file",
        f"nats+tls://{SECRET}@h:1/?stream=s&cert=x",
        f"nats+tls://{SECRET}@h:1/?stream=s&auth=/no/such/file",
        f"nats://u:{SECRET}@127.0.0.1:1/?stream=s",
        f"nats://{SECRET}@127.0.0.1:1/?stream=s",
    ],
)
def test_no_message_holds_a_password(url, capfd, caplog):
    with pytest.raises(SlackwaterError) as raised:
        asyncio.run(open_url(url))
    error = raised.value
    told = [
        str(error),
        repr(error),
        said(error),
        "".join(traceback.format_exception(error)),
        caplog.text,
        *capfd.readouterr(),
    ]
    assert not any(SECRET in text for text in told), told


def test_access_is_read_from_a_file_that_others_cannot_read(tmp_path):
    file = tmp_path / "auth"
    file.write_text("ann:a:b\n")
    file.chmod(0o644)  # whatever the process's own mask is
    with pytest.raises(UsageError, match="chmod 600"):
        access_of({"auth": str(file)}, secure=False, userinfo="")
    file.chmod(0o600)
    access = access_of({"auth": str(file)}, secure=False, userinfo="")
    assert access.arguments() == {"user": "ann", "password": "a:b"}
    assert "a:b" not in repr(access)
    file.write_text("token\n")
    assert access_of({"auth": str(file)}, secure=False, userinfo="").arguments() == {"token": "token"}
    assert access_of({}, secure=False, userinfo="u:p%40q").arguments() == {"user": "u", "password": "p@q"}
    with pytest.raises(UsageError, match="not in both"):
        access_of({"auth": str(file)}, secure=False, userinfo="u:p")
    file.write_text("")
    with pytest.raises(UsageError, match="is empty"):
        access_of({"auth": str(file)}, secure=False, userinfo="")


def test_missing_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "nats", None)
    monkeypatch.delitem(sys.modules, "slackwater.log.nats", raising=False)
    with pytest.raises(UsageError, match=r"slackwater\[nats\]"):
        asyncio.run(open_url("nats://h:1/?stream=s"))
