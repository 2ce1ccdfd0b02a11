"""Golden scripts of the timestamp cache: `tests/scripts/replica/tscache_*.txt`.

A place is a key or a span `[a,m)`. `cache NAME` makes one and works on it from then on.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from slackwater.clock.timestamp import Timestamp
from slackwater.replica.read_summary import ReadSummary, decode, encode
from slackwater.replica.tscache import POINT_BYTES, TimestampCache
from tests import golden

if TYPE_CHECKING:
    from pathlib import Path


def place(word: str) -> tuple[bytes, bytes | None]:
    match = re.fullmatch(r"\[(\w+),(\w+)\)", word)
    return (match[1].encode(), match[2].encode()) if match else (word.encode(), None)


def show(read: tuple[Timestamp, bytes | None]) -> str:
    ts, txn = read
    return f"{ts} by {txn.decode() if txn else 'nobody in particular'}"


class Runner:
    """Verbs: cache, read, get, write, floor, summary, apply, status."""

    def __init__(self) -> None:
        self.caches: dict[str, TimestampCache] = {}
        self.cache = TimestampCache()
        self.sent: ReadSummary | None = None

    def do_cache(self, name: str, points: str = "1000") -> None:
        room = int(points) * (POINT_BYTES + 1)
        self.cache = self.caches.setdefault(name, TimestampCache(bytes_max=room))

    def do_read(self, where: str, at: str, txn: str = "") -> None:
        self.cache.add(*place(where), ts=Timestamp(int(at)), txn=txn.encode() or None)

    def do_get(self, *words: str) -> str:
        return "\n".join(f"{word}: read at {show(self.cache.get(*place(word)))}" for word in words)

    def do_write(self, where: str, txn: str = "") -> str:
        lowest = self.cache.first_writable(*place(where), txn=txn.encode() or None)
        return f"{txn or 'a write of its own'} may write {where} at {lowest} or above"

    def do_floor(self, ts: str) -> None:
        self.cache.raise_floor(Timestamp(int(ts)))

    def do_summary(self, bytes: str, within: str = "") -> str:  # noqa: A002 - the word of the script
        start, end = place(within) if within else (b"", None)
        self.sent = self.cache.summary(bytes_max=int(bytes), start=start, end=end)
        lines = [f"floor={self.sent.floor} ({len(encode(self.sent))} bytes)"]
        for e in self.sent.entries:
            where = e.start.decode() if e.end is None else f"[{e.start.decode()},{e.end.decode()})"
            lines.append(f"  {where} {show((e.ts, e.txn))}")
        return "\n".join(lines)

    def do_apply(self, within: str = "") -> str:
        assert self.sent is not None
        start, end = place(within) if within else (b"", None)
        self.cache.apply_summary(decode(encode(self.sent)), within=(start, end) if end else None)
        return self.cache.status()

    def do_status(self) -> str:
        return self.cache.status()


SCRIPTS = [path for path in golden.scripts("replica") if path.stem.startswith("tscache_")]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_script(path: Path) -> None:
    golden.check(path, Runner())
