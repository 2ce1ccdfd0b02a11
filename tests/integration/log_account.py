"""What writers were told, and whether a log agrees with it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import IO, TYPE_CHECKING

from slackwater.model.ids import Position, RangeId

if TYPE_CHECKING:
    from pathlib import Path

    from slackwater.log.contract import OrderedLog

READ_SECONDS = 60  # only to fail instead of hanging


class Writer:
    """A running `log_writer` process; its words go to a file."""

    def __init__(self, url: str, range_id: int, name: str, *, concurrency: int, directory: Path) -> None:
        self.range_id = range_id
        self.words = directory / f"{name}.out"
        self._output: IO[bytes] = self.words.open("wb")
        command = [sys.executable, "-m", "tests.integration.log_writer", url, str(range_id), name, str(concurrency)]
        self._process = subprocess.Popen(command, stdout=self._output, stderr=subprocess.PIPE)

    def acknowledged(self) -> int:
        """How many appends were acknowledged so far."""
        return self.words.read_bytes().count(b"\n+ ")

    def check_running(self) -> None:
        if self._process.poll() is not None:
            raise AssertionError(f"a writer ended by itself: {self._process.stderr.read().decode()}")

    def kill(self) -> None:
        """SIGKILL, in the middle of whatever it does."""
        self._process.kill()
        self._process.wait()
        self._process.stderr.close()
        self._output.close()


class Account:
    """The words of all writers of one range."""

    def __init__(self) -> None:
        self.begun: set[str] = set()
        self.acked: dict[str, int] = {}
        self.unknown: set[str] = set()
        self.refused: set[str] = set()

    def add(self, words: Path) -> None:
        """Take in what one writer said; a line without its end does not count."""
        for line in words.read_text().split("\n")[:-1]:
            sign, payload, *position = line.split(" ")
            if sign == "?":
                self.begun.add(payload)
            elif sign == "+":
                self.acked[payload] = int(position[0])
            else:
                (self.unknown if sign == "~" else self.refused).add(payload)
        self.unknown |= self.begun - self.acked.keys() - self.unknown - self.refused  # killed before the answer

    def check(self, entries: list[tuple[int, str]]) -> None:
        """The log holds what was acknowledged, where and in the order it was, and nothing that it must not hold."""
        positions = [position for position, _ in entries]
        assert positions == sorted(set(positions)), "positions increase strictly"
        where: dict[str, list[int]] = {}
        for position, payload in entries:
            where.setdefault(payload, []).append(position)
        lost = {payload for payload, position in self.acked.items() if position not in where.get(payload, [])}
        assert not lost, f"acknowledged entries are lost: {sorted(lost)[:5]} ... {len(lost)}"
        twice = {payload for payload, at in where.items() if len(at) > 1 and payload not in self.unknown}
        assert not twice, f"duplicates of appends that were not unknown: {sorted(twice)[:5]}"
        assert not where.keys() & self.refused, "refused appends are in the log"
        assert where.keys() <= self.begun, "entries that nobody appended"
        latest: dict[str, int] = {}
        for _, payload in entries:
            appender, _, n = payload.rpartition("/")
            if payload in self.acked:
                assert int(n) > latest.get(appender, -1), f"{payload} came after a later append of its appender"
                latest[appender] = int(n)


async def read_all(log: OrderedLog, range_id: int) -> list[tuple[int, str]]:
    """Everything the range holds now."""
    head = await log.head(RangeId(range_id))
    tail = log.tail(RangeId(range_id), after=Position(0))
    return await read_upto(tail, head)


async def read_upto(tail, head: int) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    async with asyncio.timeout(READ_SECONDS):
        while head > (found[-1][0] if found else 0):
            found += [(entry.position, entry.payload.decode()) for entry in await tail.__anext__()]
    await tail.aclose()
    return found
