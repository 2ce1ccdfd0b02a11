"""A consumer of `db.changes` in a process of its own; see `bench._counter` for what it says.

`python -m bench._event_reader ADDRESS TABLE CURSOR` follows a table after a timestamp. It gets what every application gets:
record batches with operation, commit timestamp, transaction and schema version, by way of a gateway.
"""

from __future__ import annotations

import asyncio
import sys
import time

from bench._counter import ConsumerProcess, Counter
from slackwater.client import aconnect
from slackwater.runtime import run


def event_reader(address: str, table: str, *, after: int) -> ConsumerProcess:
    """Start one."""
    return ConsumerProcess("bench._event_reader", address, table, str(after))


async def follow(address: str, table: str, after: int) -> None:
    """Read until standard input ends."""
    counter = Counter()

    async def read() -> None:
        async with aconnect(f"slackwater://{address}") as db:
            async for batch in db.changes(table, after=after):
                if batch.kind == "rows":
                    counter.add(batch.data.num_rows, time.monotonic())

    reading = asyncio.ensure_future(read())
    asking = asyncio.ensure_future(asyncio.to_thread(counter.answer, sys.stdin))
    await asyncio.wait([reading, asking], return_when=asyncio.FIRST_COMPLETED)
    if reading.done():
        reading.result()
    reading.cancel()


if __name__ == "__main__":
    run(follow(sys.argv[1], sys.argv[2], int(sys.argv[3])))
