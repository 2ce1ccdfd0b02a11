"""Point reads that are asked for at the same time travel in one message.

    await asyncio.gather(tx.get("wallets", 1), tx.get("tills", 2))

      get ─┐ the first one leads: it lets the others that are about to read join (one turn of the loop) …
      get ─┼────────► … and sends all of them; the others wait for what it brings
      get ─┘

A message costs far more than a row in it, on both sides, so this is most of what a transaction of a few reads costs. A
single read pays one turn of the loop for it. At most `POINT_READS_MAX` go together; the next one leads again. An error of the
message is the error of all of them. If the leader is cancelled, the others start over without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.runtime.sync import CancelledError, get_running_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from slackwater.runtime.seam import Clock
    from slackwater.runtime.sync import Future

    Wanted = list[tuple[int, int, bytes]]

POINT_READS_MAX = 256
"""Rows that one message asks for."""


class _LeaderGone(Exception):
    """The read that led, and was to bring the answer, was cancelled."""


class PointReadBatcher:
    """Gathers the point reads of one transaction."""

    def __init__(self, clock: Clock, send: Callable[[Wanted], Awaitable[list[bytes | None]]]) -> None:
        self._clock = clock
        self._send = send
        self._gathering: list[tuple[tuple[int, int, bytes], Future[bytes | None] | None]] | None = None

    async def get(self, table_id: int, version: int, key: bytes) -> bytes | None:
        """The value of a row of a table that is read by this version, as stored; None when there is no row."""
        while True:
            group = self._gathering
            if group is None or len(group) >= POINT_READS_MAX:
                return await self._lead(table_id, version, key)
            waiter: Future[bytes | None] = get_running_loop().create_future()
            group.append(((table_id, version, key), waiter))
            try:
                return await waiter
            except _LeaderGone:
                continue

    async def _lead(self, table_id: int, version: int, key: bytes) -> bytes | None:
        group: list[tuple[tuple[int, int, bytes], Future[bytes | None] | None]] = [((table_id, version, key), None)]
        self._gathering = group
        try:
            await self._clock.sleep(0)
            if self._gathering is group:
                self._gathering = None
            values = await self._send([wanted for wanted, _ in group])
        except CancelledError:
            _tell(group, _LeaderGone())
            raise
        except Exception as error:
            _tell(group, error)
            raise
        finally:
            if self._gathering is group:
                self._gathering = None
        for (_, waiter), value in zip(group, values, strict=True):
            if waiter is not None and not waiter.done():
                waiter.set_result(value)
        return values[0]


def _tell(group: list[tuple[tuple[int, int, bytes], Future[bytes | None] | None]], error: Exception) -> None:
    for _, waiter in group:
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)
