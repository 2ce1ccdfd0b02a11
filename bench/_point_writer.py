"""Point upserts in a closed loop, in a process of their own: what an application does while others scan.

    python -m bench._point_writer ADDRESS TABLE CLIENTS ROWS [STEP]

Each line on standard input ends a phase; the answer is one line of JSON, the latencies in seconds of the writes that began
in that phase and how many failed. It ends when its input does. Row after row is written, or every so many rows one (STEP, which
should have no divisor in common with ROWS): then what changes lies everywhere.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from slackwater.client import aconnect
from slackwater.errors import SlackwaterError

CHECKOUT = Path(__file__).resolve().parents[1]
STOP_SECONDS_MAX = 30.0


class Phase(NamedTuple):
    """What was written between two marks."""

    latencies: list[float]
    failed: int


class PointWriter:
    """The process, seen from the benchmark."""

    def __init__(self, address: str, table: str, *, clients: int, rows: int, step: int = 1) -> None:
        numbers = [str(clients), str(rows), str(step)]
        command = [sys.executable, "-m", "bench._point_writer", address, table, *numbers]
        self._process = subprocess.Popen(
            command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def mark(self) -> Phase:
        """End a phase and begin the next."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the writer ended; its error is above")
        return Phase(*json.loads(answer))

    def __enter__(self) -> PointWriter:
        self.mark()  # it is connected and writes
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(STOP_SECONDS_MAX)


async def main(address: str, table: str, clients: int, rows: int, step: int = 1) -> None:
    """Write until standard input ends."""
    latencies: list[float] = []
    failed = 0
    async with aconnect(address) as db:

        async def write(number: int) -> None:
            nonlocal failed
            at = number
            while True:
                begin = time.perf_counter()
                try:
                    await db.upsert(table, [{"id": at * step % rows, "v": at}])
                except SlackwaterError:
                    failed += 1
                latencies.append(time.perf_counter() - begin)
                at += clients

        work = [asyncio.create_task(write(number)) for number in range(clients)]
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, sys.stdin.readline):
            print(json.dumps([latencies, failed]), flush=True)
            latencies.clear()
            failed = 0
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))
