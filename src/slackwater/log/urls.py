"""`open_log(url)`: the one place that knows which logs there are.

memory:name                             in this process; the same name is the same log
sqlite:///path/to/file.db               three slashes and an absolute path, or sqlite:relative/path.db
nats://host:port,host:port/?stream=orders&replicas=3&monitor=host:port,host:port
nats://host:port/?stream=orders&replicas=1&sync_always=1        see `nats_checks` for what these two promise
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from slackwater.errors import UsageError
from slackwater.log.memory import MemoryLog
from slackwater.log.sqlite import open_sqlite

if TYPE_CHECKING:
    from slackwater.runtime.seam import Clock, OrderedLog, Rng, TaskScope
    from slackwater.settings import Settings

_NATS_OPTIONS = {"stream", "replicas", "monitor", "sync_always", "allow_lossy"}
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
    if not colon or kind not in ("memory", "sqlite", "nats"):
        raise UsageError("a log URL starts with memory:, sqlite:// or nats://", url=url)
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
        raise UsageError("write sqlite:///absolute/path.db or sqlite:relative/path.db", url=url)
    return Path(unquote(parts.path))


async def _open_nats(
    url: str, *, clock: Clock, rng: Rng, scope: TaskScope, settings: Settings | None, place: int
) -> OrderedLog:
    servers, options = parse_nats(url)
    try:
        from slackwater.log.nats import open_nats
    except ModuleNotFoundError as error:
        raise UsageError(f"the NATS log needs the package {error.name}; install the extra: slackwater[nats]") from error
    return await open_nats(
        servers,
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


def parse_nats(url: str) -> tuple[list[str], dict[str, str]]:
    """The servers and options of a `nats:` URL."""
    parts = urlsplit(url)
    hosts = [host for host in parts.netloc.split(",") if host]
    if not hosts or parts.path not in ("", "/") or parts.fragment:
        raise UsageError("write nats://host:port,host:port/?stream=name&replicas=3", url=url)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(pairs)
    unknown = sorted(set(options) - _NATS_OPTIONS)
    if unknown or len(options) != len(pairs):
        raise UsageError(
            f"a NATS log URL takes each of {', '.join(sorted(_NATS_OPTIONS))} once", url=url, unknown=unknown
        )
    if not options.get("stream"):
        raise UsageError("a NATS log URL needs a stream: nats://host:port/?stream=name", url=url)
    return [f"nats://{host}" for host in hosts], options


def _replicas(options: dict[str, str], url: str) -> int:
    text = options.get("replicas", "3")
    if text not in ("1", "3", "5"):
        raise UsageError("replicas must be 1, 3 or 5", url=url)
    return int(text)


def _flag(options: dict[str, str], name: str, url: str) -> bool:
    text = options.get(name, "0").lower()
    if text not in _FLAGS:
        raise UsageError(f"{name} must be 1 or 0", url=url)
    return _FLAGS[text]
