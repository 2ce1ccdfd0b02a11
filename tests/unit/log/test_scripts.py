"""The contract of the ordered log, by example: golden scripts on the memory log."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from slackwater.log import LogFault, MemoryLog, check_identity
from slackwater.model.ids import Position, RangeId
from tests.golden import check, scripts

if TYPE_CHECKING:
    from pathlib import Path


class CountingRng:
    """Identifiers that are the same in every run."""

    def __init__(self) -> None:
        self.count = 0

    def bytes(self, count: int) -> bytes:
        self.count += 1
        return self.count.to_bytes(count)


class Runner:
    """Verbs: log, open, close, append, fault, release, tail, next, trim, head, identity, expect."""

    def __init__(self) -> None:
        self.loop = asyncio.Runner()
        self.rng = CountingRng()
        self.logs: dict[str, MemoryLog] = {}
        self.handles = {}
        self.tails = {}
        self.identities = {}

    def do_log(self, name: str) -> None:
        """Create the log, or re-create it: what was there is gone."""
        self.logs[name] = MemoryLog(name, rng=self.rng)

    def do_open(self, node: str, log: str) -> None:
        self.handles[node] = self.logs[log].handle()

    def do_close(self, node: str) -> None:
        self.loop.run(self.handles[node].close())

    def do_fault(self, node: str, *faults: str) -> None:
        self.handles[node].arm(*(LogFault(fault) for fault in faults))

    def do_release(self, log: str) -> str:
        return f"{self.logs[log].release()} released"

    def do_append(self, node: str, range_: str, *payloads: str) -> str:
        work = self.handles[node].append(RangeId(int(range_)), [p.encode() for p in payloads])
        return f"@{self.loop.run(work)}"

    def do_tail(self, name: str, node: str, range_: str, *, after: str) -> None:
        self.tails[name] = self.handles[node].tail(RangeId(int(range_)), after=Position(int(after)))

    def do_next(self, name: str) -> str:
        async def one_batch() -> str:
            task = asyncio.ensure_future(anext(self.tails[name]))
            for _ in range(3):
                await asyncio.sleep(0)
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                return "waits"
            return " ".join(f"@{e.position}={e.payload.decode()}" for e in task.result())

        return self.loop.run(one_batch())

    def do_trim(self, node: str, range_: str, *, upto: str) -> None:
        self.loop.run(self.handles[node].trim(RangeId(int(range_)), upto=Position(int(upto))))

    def do_head(self, node: str, range_: str) -> str:
        return f"@{self.loop.run(self.handles[node].head(RangeId(int(range_))))}"

    def do_remember(self, node: str) -> None:
        self.identities[node] = self.handles[node].identity()

    def do_expect(self, node: str, *, same_as: str) -> str:
        check_identity(self.handles[node], self.identities[same_as])
        return "same log"


@pytest.mark.parametrize("path", scripts("log"), ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    runner = Runner()
    try:
        check(path, runner)
    finally:
        runner.loop.close()
