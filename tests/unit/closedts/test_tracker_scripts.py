"""Golden scripts of the tracker: `tests/scripts/closedts/tracker_*.txt`.

`compare` scripts run two rules side by side on the same requests: ours (the tracker's lower bound at the moment a
proposal leaves) and the one of seed 000, whose two buckets carry policy timestamps and close the previous one's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from slackwater.clock.timestamp import Timestamp
from slackwater.closedts import BucketTracker, HeapTracker, Token
from tests import golden

if TYPE_CHECKING:
    from pathlib import Path


class DocumentTracker:
    """Seed 000's rule, to the letter: it exists to show where ours closes further."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.prev: list[int | None] = [None, 0]
        self.cur: list[int | None] = [None, 0]
        self.inside: dict[str, list[int | None]] = {}

    def enter(self, name: str, now: int) -> None:
        if self.cur[0] is None:
            self.cur[0] = now - self.target
        self.cur[1] = (self.cur[1] or 0) + 1
        self.inside[name] = self.cur
        if not self.prev[1]:
            self.prev, self.cur = self.cur, [None, 0]

    def leave(self, name: str) -> int | None:
        closed = self.prev[0]
        bucket = self.inside.pop(name)
        bucket[1] = (bucket[1] or 0) - 1
        return closed

    def status(self) -> str:
        def one(bucket: list[int | None]) -> str:
            return f"{{ts={'nil' if bucket[0] is None else bucket[0]}, refcnt={bucket[1]}}}"

        return f"prev={one(self.prev)} cur={one(self.cur)}"


class Runner:
    """Verbs: track, untrack, status for the pair; target, enter, leave, compare for the side-by-side scripts."""

    def __init__(self) -> None:
        self.bucket = BucketTracker()
        self.heap = HeapTracker()
        self.tokens: dict[str, tuple[Token, Token]] = {}
        self.document = DocumentTracker(0)
        self.assigned = 0

    def do_track(self, name: str, at: str) -> None:
        ts = Timestamp(int(at))
        self.tokens[name] = (self.bucket.track(ts), self.heap.track(ts))

    def do_untrack(self, name: str) -> None:
        mine, twins = self.tokens[name]
        self.bucket.untrack(mine)
        self.heap.untrack(twins)

    def do_status(self) -> str:
        return f"{self.bucket.status()} lower_bound={self.bucket.lower_bound()} exact={self.heap.lower_bound()}"

    def do_target(self, seconds: str) -> None:
        self.document = DocumentTracker(int(seconds))

    def do_enter(self, *names: str, now: str) -> str:
        for name in names:
            self.document.enter(name, int(now))
            # A request writes at now, and in any case above what is closed already.
            self.do_track(name, at=str(max(int(now), self.assigned + 1)))
        return f"enter {' '.join(names)} at {now}\n{self._both()}"

    def do_leave(self, name: str, now: str) -> str:
        theirs = self.document.leave(name)
        # Leaving the tracker and taking the closed timestamp are one step, with the lease applied index: a proposal's
        # own write need not hold back what it carries, because that binds only the commands after it.
        self.do_untrack(name)
        target = int(now) - self.document.target
        low = self.bucket.lower_bound()
        self.assigned = max(self.assigned, target if low is None else min(target, low - 1))
        return f"{name} leaves at {now} carrying closed: document={theirs} ours={self.assigned}\n{self._both()}"

    def _both(self) -> str:
        return f"  document {self.document.status()}\n  ours     {self.bucket.status()} closed={self.assigned}"


SCRIPTS = [path for path in golden.scripts("closedts") if path.stem.startswith("tracker_")]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_script(path: Path) -> None:
    golden.check(path, Runner())
