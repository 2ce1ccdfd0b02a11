"""What must hold after a siege, and the bystander who must not have noticed it.

The bystander is a process of its own (`python -m tests.fuzz.judge URL SECONDS`): on the loop of those who attack, its times
would be theirs. It works alone for that many seconds, says so, and then works on until its standard input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import slackwater
from slackwater.errors import SlackwaterError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

ROWS = 500


class Bystander:
    """A client that reads and writes its own table, and notes how long each took."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self.seconds: list[float] = []
        self.written: dict[int, int] = {}
        self.refused: list[str] = []
        self.slow: list[tuple[str, float]] = []

    async def prepare(self) -> None:
        """Its table, and one that nobody will ever write again."""
        for name in ("bystander", "still"):
            await self._db.create_table(name, {"id": "int8", "n": "int8"}, primary_key=["id"])
        await self._db.upsert("still", [{"id": i, "n": i * i} for i in range(ROWS)])

    async def work(self, going_on: Callable[[], bool]) -> list[float]:
        """Go on until told otherwise; returns the time each round took."""
        taken = []
        while going_on():
            key = len(self.written) % 200
            value = self.written.get(key, 0) + 1
            begin = time.perf_counter()
            try:
                await self._db.upsert("bystander", [{"id": key, "n": value}])
                self.written[key] = value
                row = await self._db.get("bystander", key)
                assert row == {"id": key, "n": value}, f"{row} was read after {value} was written"
            except SlackwaterError as error:
                self.refused.append(f"{type(error).__name__}: {error}")
                self.written.pop(key, None)
            taken.append(time.perf_counter() - begin)
            if taken[-1] > 1:
                self.slow.append((time.strftime("%H:%M:%S", time.gmtime()), round(taken[-1], 1)))
            await asyncio.sleep(0.002)
        return taken

    async def still(self) -> str:
        """A digest of the table that nobody writes, and of what this client wrote."""
        table = await self._db.scan("still")
        rows = sorted(table.to_pylist() if hasattr(table, "to_pylist") else table, key=lambda row: row["id"])
        assert len(rows) == ROWS, f"{len(rows)} of {ROWS} rows are left"
        return hashlib.sha256(repr(rows).encode()).hexdigest()

    def seen(self, seconds: list[float]) -> dict[str, Any]:
        """What to tell of a time of work."""
        return {
            "p50": statistics.median(seconds),
            "p99": p99(seconds),
            "rounds": len(seconds),
            "refused": self.refused[:5],
            "slow": self.slow[:20],
        }


@contextlib.asynccontextmanager
async def bystanding(url: str, *, quiet_s: float) -> AsyncIterator[Beside]:
    """A bystander in a process of its own; the block begins once it has worked alone for some time."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.fuzz.judge",
        url,
        str(quiet_s),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Beside(process, await _line(process))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class Beside:
    """A bystander that works beside this process."""

    def __init__(self, process: asyncio.subprocess.Process, quiet: dict[str, Any]) -> None:
        self._process = process
        self.quiet = quiet

    async def stop(self) -> dict[str, Any]:
        """What it saw since the block began."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return await _line(self._process)


async def _line(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    line = await process.stdout.readline()
    assert line, "the bystander ended"
    return json.loads(line)


async def _bystand(url: str, quiet_s: float) -> None:
    async with slackwater.aconnect(url, timeout=20) as db:
        bystander = Bystander(db)
        loop = asyncio.get_running_loop()
        end = time.monotonic() + quiet_s
        print(json.dumps(bystander.seen(await bystander.work(lambda: time.monotonic() < end))), flush=True)
        told = loop.run_in_executor(None, sys.stdin.read)
        print(json.dumps(bystander.seen(await bystander.work(lambda: not told.done()))), flush=True)


def p99(seconds: list[float]) -> float:
    """The 99th percentile."""
    return statistics.quantiles(seconds, n=100)[98] if len(seconds) > 2 else 0.0


def tracebacks(directory: Path) -> dict[str, int]:
    """What crashed in any node, by its journal, and how often; with the innermost of our own lines."""
    found: Counter[str] = Counter()
    for journal in sorted(directory.glob("*.journal")):
        crash = ""
        place = ""
        for line in [*journal.read_text(errors="replace").splitlines(), "end"]:
            _, _, rest = line.partition("ERROR ")
            if rest.startswith("trace") or line.startswith(("Traceback", "  ")):
                place = rest if "slackwater" in rest and "line " in rest else place
            elif crash:
                found[f"{crash[:300]} at {place[-200:]}"] += 1
                crash = ""
            if rest.startswith("crashed"):
                crash, place = rest, ""
    return dict(found.most_common())


def given_up(directory: Path) -> list[str]:
    """Why nodes gave their leases up, by their journals: a peer that sends nonsense must not make them."""
    return [
        f"{journal.stem}: {line.partition('node.unfit ')[2][:200]}"
        for journal in sorted(directory.glob("*.journal"))
        for line in journal.read_text(errors="replace").splitlines()
        if "node.unfit " in line
    ]


def resident_mb(pid: int) -> float:
    """Memory that a process holds."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("quiet_s", type=float)
    chosen = parser.parse_args()
    asyncio.run(_bystand(chosen.url, chosen.quiet_s))
