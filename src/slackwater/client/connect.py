"""Opening a session: from a URL to a database.

connect   ── LoopThread ──┐
aconnect  ────────────────┴─► session(target) ─► Gateways.greet ─► AsyncDatabase
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import msgspec

from slackwater.client.arguments import path_of, text_of
from slackwater.client.database import AsyncDatabase
from slackwater.client.gateways import Gateways, client_net
from slackwater.client.sync import Database
from slackwater.client.url import Target, parse_url, seconds_of
from slackwater.codec.arrow import settle_pandas
from slackwater.errors import UsageError
from slackwater.model.locality import locality_of
from slackwater.runtime.loop_thread import LoopThread
from slackwater.runtime.real import RealRuntime
from slackwater.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from slackwater.runtime.seam import Disk


def target_of(
    url: str,
    *,
    certs: str | Path | None = None,
    user: str | None = None,
    timeout: float | str | None = None,
    locality: str | None = None,
) -> Target:
    """What a URL and arguments say together; arguments win."""
    target = parse_url(url)
    changes: dict[str, Any] = {}
    if certs is not None:
        changes["certs"] = path_of(certs, "certs")
    if user is not None:
        changes["user"] = text_of(user, "user", "ada")
    if timeout is not None:
        changes["timeout_s"] = seconds_of(timeout)
    if locality is not None:
        changes["locality"] = locality_of(text_of(locality, "locality", "region=eu,zone=a"))
    target = msgspec.structs.replace(target, **changes)
    if target.certs is not None and not target.certs.is_dir():
        raise UsageError(f"{target.certs} is no directory of certificates; see `slackwater cert`")
    return target


@asynccontextmanager
async def session(target: Target, floor: int | None = None) -> AsyncIterator[AsyncDatabase]:
    """A database for the length of a block; with `floor`, one that sees everything up to there."""
    settings = Settings()
    net = client_net(settings, target)
    runtime = RealRuntime(disk=cast("Disk", None), net=net, settings=settings)  # a client keeps nothing
    scope = runtime.scope("client")
    gateways = Gateways(
        runtime, scope, target.addresses, settings=settings, timeout_s=target.timeout_s, locality=target.locality
    )
    try:
        if floor is not None:
            gateways.floor.raise_to(floor)
        await gateways.greet()
        yield AsyncDatabase(gateways, scope, url=target.url())
    finally:
        await gateways.close()
        await scope.close()
        runtime.close()


def aconnect(
    url: str,
    *,
    certs: str | Path | None = None,
    user: str | None = None,
    timeout: float | str | None = None,
    locality: str | None = None,
    session_floor: int | None = None,
) -> AbstractAsyncContextManager[AsyncDatabase]:
    """A session with a cluster for `async with`; see `client.url` for what the URL may say."""
    settle_pandas()
    return session(target_of(url, certs=certs, user=user, timeout=timeout, locality=locality), session_floor)


def connect(
    url: str,
    *,
    certs: str | Path | None = None,
    user: str | None = None,
    timeout: float | str | None = None,
    locality: str | None = None,
    session_floor: int | None = None,
) -> Database:
    """A session with a cluster; see `client.url` for what the URL may say. Close it, or use it in a `with`."""
    target = target_of(url, certs=certs, user=user, timeout=timeout, locality=locality)
    return opened(session(target, session_floor))


def opened(block: AbstractAsyncContextManager[AsyncDatabase]) -> Database:
    """Enter a session on a loop thread of its own."""
    settle_pandas()
    loop = LoopThread()
    try:
        twin = loop.run(_enter(block))
    except BaseException:
        loop.close()
        raise
    return Database(loop, twin, block)


async def _enter(block: AbstractAsyncContextManager[AsyncDatabase]) -> AsyncDatabase:
    return await block.__aenter__()
