"""What must hold after a siege, and the bystander who must not have noticed it."""

from __future__ import annotations

import asyncio
import hashlib
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackwater.errors import SlackwaterError

if TYPE_CHECKING:
    from collections.abc import Callable

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


def resident_mb(pid: int) -> float:
    """Memory that a process holds."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0
