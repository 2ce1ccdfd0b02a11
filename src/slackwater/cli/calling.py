"""How a command talks to a running node: one dialer for the length of one command."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

from slackwater.runtime.real import RealRuntime
from slackwater.runtime.rpc.dialer import Dialer
from slackwater.runtime.rpc.method import Identity
from slackwater.server.arguments import address_of, client_net
from slackwater.settings import Settings

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator
    from pathlib import Path

    from slackwater.runtime.seam import Disk

CALL_TIMEOUT_S = 10.0


@asynccontextmanager
async def calling(options: argparse.Namespace) -> AsyncIterator[Dialer]:
    """A dialer made from `add_client_arguments`. It carries no clock: a command only asks and tells."""
    async with dialing((address_of(options.host),), certs=options.certs, user=options.user) as dialer:
        yield dialer


@asynccontextmanager
async def dialing(addresses: tuple[str, ...], *, certs: Path | None, user: str) -> AsyncIterator[Dialer]:
    """A dialer for these addresses, for the length of one command."""
    settings = Settings()
    net = client_net(settings, addresses, certs=certs, user=user)
    runtime = RealRuntime(disk=cast("Disk", None), net=net, settings=settings)
    scope = runtime.scope("command")
    dialer = Dialer(runtime, scope, identity=Identity(), settings=settings)
    try:
        yield dialer
    finally:
        await dialer.close()
        await scope.close()
        runtime.close()
