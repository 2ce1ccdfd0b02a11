"""Snapshots of a table, one after the other, in a process of its own: what an analyst does while others write.

    python -m bench._snapshots ADDRESS TABLE

A line on standard input begins them, the next one ends them; the answer is one line with the rows that were read. It ends when
its input does.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from slackwater.client import aconnect

CHECKOUT = Path(__file__).resolve().parents[1]
STOP_SECONDS_MAX = 60.0


class Snapshots:
    """The process, seen from the benchmark."""

    def __init__(self, address: str, table: str) -> None:
        command = [sys.executable, "-m", "bench._snapshots", address, table]
        self._process = subprocess.Popen(
            command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def begin(self) -> None:
        """Read from now on."""
        self._say()

    def end(self) -> int:
        """Read no more; the rows that were read."""
        self._say()
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the reader ended; its error is above")
        return int(answer)

    def _say(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def __enter__(self) -> Snapshots:
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(STOP_SECONDS_MAX)


async def main(address: str, table: str) -> None:
    """Read between one line of standard input and the next."""
    loop = asyncio.get_running_loop()
    async with aconnect(address) as db:
        rows, reading = 0, asyncio.Event()

        async def read() -> None:
            nonlocal rows
            while True:
                await reading.wait()
                snapshot = await db.snapshot(tables=[table])
                async for batch in snapshot.scan_batches(table):
                    rows += batch.num_rows
                    if not reading.is_set():
                        break

        work = asyncio.create_task(read())
        while await loop.run_in_executor(None, sys.stdin.readline):
            if reading.is_set():
                reading.clear()
                print(rows, flush=True)
                rows = 0
            else:
                reading.set()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
