"""A consumer of `db.changes` in a process of its own; see `bench._counter` for what it is told and says.

`python -m bench._event_reader ADDRESS TABLE CURSOR` follows a table after a timestamp. It gets what every application gets:
record batches with operation, commit timestamp, transaction and schema version, by way of a gateway.

Told to hold, it closes its feed with the first thing that comes and forgets that; told to go on, it opens another from its last
token. A feed that is merely not read would fill the stream's window, and that is in this process already.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import aclosing
from typing import TYPE_CHECKING

import numpy as np

from bench._counter import ConsumerProcess, Counter
from slackwater.client import aconnect
from slackwater.runtime import run

if TYPE_CHECKING:
    from slackwater.client import AsyncDatabase

IDS_MAX = 10_000_000
"""Ids of rows are below."""
RESOLVED_S = 0.2


def event_reader(address: str, table: str, *, after: int) -> ConsumerProcess:
    """Start one."""
    return ConsumerProcess("bench._event_reader", address, table, str(after))


async def follow(address: str, table: str, after: int) -> None:
    """Read until standard input ends."""
    counter = Counter()

    async def read() -> None:
        async with aconnect(f"slackwater://{address}") as db:
            place: int | str = after
            while True:
                place = await _until_held(db, table, place, counter)
                await asyncio.to_thread(counter.going.wait)

    reading = asyncio.ensure_future(read())
    asking = asyncio.ensure_future(asyncio.to_thread(counter.listen, sys.stdin))
    await asyncio.wait([reading, asking], return_when=asyncio.FIRST_COMPLETED)
    if reading.done():
        reading.result()
    reading.cancel()


_seen = np.zeros(IDS_MAX, bool)
"""A feed that goes on from a token repeats itself; what comes again does not count."""


async def _until_held(db: AsyncDatabase, table: str, place: int | str, counter: Counter) -> str:
    async with aclosing(db.changes(table, after=place, resolved=RESOLVED_S)) as feed:
        async for batch in feed:
            if not counter.going.is_set():
                return batch.token
            if batch.kind == "rows":
                ids = batch.data.column("id").to_numpy()
                fresh = int(np.count_nonzero(~_seen[ids]))
                _seen[ids] = True
                counter.add(fresh, time.monotonic())
    raise RuntimeError("the feed has ended")


if __name__ == "__main__":
    run(follow(sys.argv[1], sys.argv[2], int(sys.argv[3])))
