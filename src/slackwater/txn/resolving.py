"""Resolving all intents of a finished transaction in a span, a log entry's worth at a time.

    [start ──────────── r1 ────────────┬──────────── r2 ──────── end)
     command  command  command …       │  command  command …
     each answers where it stopped; the next one begins there

One ranged request per range, not lists of keys: the range walks its own locks. A request is idempotent, so this may stop
anywhere and be begun again by any node, and there is no bound on the whole, only on each answer: a caller that waits for a
million intents waits for as long as there is progress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.errors import UnavailableError
from slackwater.hooks import probe
from slackwater.protocol.range.requests import Header, Number, ResolveIntents
from slackwater.routing.sender import NO_RANGE

if TYPE_CHECKING:
    from slackwater.model.txns import Resolution
    from slackwater.txn.context import TxnContext


async def resolve_span(
    context: TxnContext, resolution: Resolution, start: bytes, end: bytes, *, timeout: float, awaited: bool = False
) -> int:
    """Resolve every intent of the transaction in [start, end); `timeout` bounds each answer. Returns how many there were.

    `awaited`: a change feed cannot tell its consumers of these rows before.
    """
    found = 0
    while start < end:
        here = await context.sender.range_of(start, timeout=timeout)
        upto = min(end, here.end)
        assert start < upto <= end, "every step gets further"
        request = ResolveIntents(resolution, spans=((start, upto),), awaited=awaited)
        answer = await context.sender.send([request], Header(NO_RANGE), timeout=timeout)
        number = answer.results[0]
        if not isinstance(number, Number):
            raise UnavailableError("a range answered a resolution with something else", kind=type(number).__name__)
        found += number.number
        if number.more:
            probe("txn.resolve_in_parts")
            start = number.resume or start  # without one, its range was divided meanwhile: what is done is done
        else:
            start = upto
    return found
