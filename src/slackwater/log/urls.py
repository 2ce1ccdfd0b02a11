"""`open_log(url)`: the one place that knows which logs there are.

memory:name                             in this process; the same name is the same log
sqlite:///path/to/file.db               three slashes and an absolute path, or sqlite:relative/path.db
nats://host:port,host:port/?stream=orders&replicas=3&monitor=host:port,host:port
nats://host:port/?stream=orders&replicas=1&sync_always=1        see `nats_checks` for what these two promise
nats+tls://host:port/?stream=orders&ca=FILE&cert=FILE&key=FILE&auth=FILE        see `nats_access`

A URL may hold a password: messages show it only as `nats_access.shown` does.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from slackwater.errors import UsageError
from slackwater.log.memory import MemoryLog
from slackwater.log.nats_access import OPTIONS, access_of, shown
from slackwater.log.sqlite import open_sqlite

if TYPE_CHECKING:
    from slackwater.log.contract import OrderedLog
    from slackwater.runtime.seam import Clock, Rng, TaskScope
    from slackwater.settings import Settings

SECURE = "nats+tls"
_NATS_OPTIONS = {"stream", "replicas", "monitor", "sync_always", "allow_lossy"} | OPTIONS
_FLAGS = {"1": True, "true": True, "0": False, "false": False}

_memory_logs: dict[str, MemoryLog] = {}
"""Logs named by `memory:` URLs; they live as long as the process."""


async def open_log(
    url: str, *, clock: Clock, rng: Rng, scope: TaskScope, settings: Settings | None = None, place: int = 0
) -> OrderedLog:
    """Open the log a URL names, creating it if need be. Background work, if any, is done in `scope`.

    `place` spreads the nodes of a cluster over the servers of a log that has several.
    """
    kind, colon, rest = url.partition(":")
    if not colon or kind not in ("memory", "sqlite", "nats", SECURE):
        raise UsageError("a log URL starts with memory:, sqlite://, nats:// or nats+tls://", url=shown(url))
    if kind == "memory":
        if rest not in _memory_logs:
            _memory_logs[rest] = MemoryLog(rest, rng=rng)
        return _memory_logs[rest].handle(settings=settings)
    if kind == "sqlite":
        return await open_sqlite(_sqlite_path(url), rng=rng, settings=settings)
    return await _open_nats(url, clock=clock, rng=rng, scope=scope, settings=settings, place=place)


def _sqlite_path(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc or parts.query or parts.fragment or not parts.path.strip("/"):
        raise UsageError("write sqlite:///absolute/path.db or sqlite:relative/path.db", url=shown(url))
    return Path(unquote(parts.path))


async def _open_nats(
    url: str, *, clock: Clock, rng: Rng, scope: TaskScope, settings: Settings | None, place: int
) -> OrderedLog:
    servers, options, userinfo = parse_nats(url)
    access = access_of(options, secure=url.startswith(f"{SECURE}:"), userinfo=userinfo)
    try:
        from slackwater.log.nats import open_nats
    except ModuleNotFoundError as error:
        raise UsageError(f"the NATS log needs the package {error.name}; install the extra: slackwater[nats]") from error
    return await open_nats(
        servers,
        access=access,
        stream=options["stream"],
        replicas=_replicas(options, url),
        clock=clock,
        rng=rng,
        scope=scope,
        settings=settings,
        monitors=[address for address in options.get("monitor", "").split(",") if address],
        sync_always=_flag(options, "sync_always", url),
        allow_lossy=_flag(options, "allow_lossy", url),
        place=place,
    )


def parse_nats(url: str) -> tuple[list[str], dict[str, str], str]:
    """The servers, the options and the user (with password, or a token) of a `nats:` URL."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise UsageError("this is no URL; write nats://host:port,host:port/?stream=name&replicas=3") from None
    userinfos, hosts = set(), []
    for host in filter(None, parts.netloc.split(",")):
        userinfo, _, place = host.rpartition("@")
        userinfos |= {userinfo} - {""}
        hosts.append(place)
    if len(userinfos) > 1:
        raise UsageError("all servers of a log know the same user; name it once, before the first")
    if not hosts or parts.path not in ("", "/") or parts.fragment:
        raise UsageError("write nats://host:port,host:port/?stream=name&replicas=3", url=shown(url))
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(pairs)
    unknown = sorted(set(options) - _NATS_OPTIONS)
    if unknown or len(options) != len(pairs):
        raise UsageError(
            f"a NATS log URL takes each of {', '.join(sorted(_NATS_OPTIONS))} once", url=shown(url), unknown=unknown
        )
    if not options.get("stream"):
        raise UsageError("a NATS log URL needs a stream: nats://host:port/?stream=name", url=shown(url))
    return [f"nats://{host}" for host in hosts], options, next(iter(userinfos), "")


def _replicas(options: dict[str, str], url: str) -> int:
    text = options.get("replicas", "3")
    if text not in ("1", "3", "5"):
        raise UsageError("replicas must be 1, 3 or 5", url=shown(url))
    return int(text)


def _flag(options: dict[str, str], name: str, url: str) -> bool:
    text = options.get(name, "0").lower()
    if text not in _FLAGS:
        raise UsageError(f"{name} must be 1 or 0", url=shown(url))
    return _FLAGS[text]
