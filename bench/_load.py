"""Closed-loop load for both sides of a contest: clients that wait for each answer before they ask again.

Both contestants are driven in the same way, from tasks of one process, and take turns, so that a noisy neighbor hits
them alike. A client is a coroutine function of one number, the operation's place in a common sequence: both sides get the
same keys in the same order.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import time
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    Client = Callable[[int], Awaitable[object]]


async def throughput(clients: Sequence[Client], *, seconds: float) -> float:
    """Operations per second of all clients together."""
    tickets = count()
    done = 0
    begin = time.perf_counter()
    end = begin + seconds

    async def drive(client: Client) -> None:
        nonlocal done
        while time.perf_counter() < end:
            await client(next(tickets))
            done += 1

    await asyncio.gather(*(drive(client) for client in clients))
    return done / (time.perf_counter() - begin)


async def contest(sides: Mapping[str, Sequence[Client]], *, seconds: float, rounds: int) -> dict[str, float]:
    """Each side's throughput, measured in turns after a warm-up; medians."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for clients in sides.values():
        await throughput(clients, seconds=seconds / 4)
    for _ in range(rounds):
        for name, clients in sides.items():
            gc.collect()
            rates[name].append(await throughput(clients, seconds=seconds))
    return {name: statistics.median(measured) for name, measured in rates.items()}


def disk() -> str | None:
    """A directory on a real disk: /tmp may be in memory, /var/tmp must not be."""
    return "/var/tmp" if os.access("/var/tmp", os.W_OK) else None
