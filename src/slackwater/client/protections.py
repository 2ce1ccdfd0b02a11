"""Keeping history: what `protect`, `renew_protection`, `release` and `protections` of a database ask the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slackwater.client.arguments import duration_of
from slackwater.clock.timestamp import MIN
from slackwater.errors import UsageError
from slackwater.model.protection import Mode
from slackwater.model.values import uuid_bytes
from slackwater.protocol.client import protections as pr
from slackwater.protocol.client.protections import Protection

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.client.gateways import Gateways
    from slackwater.clock.timestamp import Timestamp


async def protect(
    gateways: Gateways,
    tables: tuple[str, ...],
    time: Callable[[Any], Timestamp],
    *,
    at: Any = None,
    after: Any = None,
    expires: float | None = None,
    reason: str = "",
    kind: str = "user",
) -> Protection:
    """Protect tables at a time or after it."""
    if (at is None) == (after is None):
        raise UsageError("give one of at and after: what was live at that time, or that and everything since")
    mode, ts = (Mode.AT, time(at)) if at is not None else (Mode.AFTER, time(after))
    seconds = duration_of(expires, "expires") or 0.0
    request = pr.ProtectTables(tables, ts, mode, seconds, kind, str(reason))
    return await _only(gateways, pr.PROTECT, request)


async def renew(
    gateways: Gateways, protection: Protection | str, seconds: float | None, *, after: Timestamp = MIN
) -> Protection:
    """Let a protection expire later, and move up to `after`."""
    return await _only(gateways, pr.RENEW, pr.RenewProtection(_id(protection), seconds or 0.0, after))


async def release(gateways: Gateways, protection: Protection | str) -> Protection:
    """Let a protection go; returns what it was."""
    return await _only(gateways, pr.RELEASE, pr.ReleaseProtection(_id(protection)))


async def listed(gateways: Gateways) -> list[Protection]:
    """All of them."""
    return (await gateways.call(pr.PROTECTIONS, pr.ListProtections(), deadline=gateways.deadline())).protections


async def _only(gateways: Gateways, method: Any, request: Any) -> Protection:
    reply: pr.ProtectionsReply = await gateways.call(method, request, deadline=gateways.deadline())
    (found,) = reply.protections
    return found


def _id(protection: Protection | str) -> bytes:
    given = protection.id if isinstance(protection, Protection) else protection
    try:
        return uuid_bytes(given)
    except UsageError:
        raise UsageError(
            f"a protection is named by its id, 32 hexadecimal digits, not by {repr(given)[:80]}; protections() lists them"
        ) from None
