"""Golden scripts of the latch manager: `tests/scripts/replica/latches_*.txt`.

A latch is written `r:KEY@TS`, `w:KEY@TS` or with a span `r:[a,m)@TS`; without `@TS` it is non-MVCC.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from slackwater.clock.timestamp import Timestamp
from slackwater.replica.latches import LatchManager, LatchSpan, RequestId, WaitingLatch, read_latch, write_latch
from tests import golden

if TYPE_CHECKING:
    from pathlib import Path

NOTATION = re.compile(r"([rw]):(?:\[(\w+),(\w+)\)|(\w+))(?:@(\d+))?")


def parse(word: str) -> LatchSpan:
    match = NOTATION.fullmatch(word)
    assert match, f"cannot read {word!r} as a latch"
    kind, low, high, key, ts = match.groups()
    make = read_latch if kind == "r" else write_latch
    return make((low or key).encode(), high.encode() if high else None, at=Timestamp(int(ts or 0)))


class Runner:
    """Verbs: acquire, release, cancel, status."""

    def __init__(self) -> None:
        self.manager = LatchManager()

    def do_acquire(self, request: str, *spans: str) -> str:
        answer = self.manager.acquire(RequestId(int(request)), [parse(word) for word in spans])
        if isinstance(answer, WaitingLatch):
            return f"{request} waits behind {' '.join(map(str, answer.behind))}"
        return f"{request} granted"

    def do_release(self, request: str) -> str:
        return f"{request} left; {self._granted(self.manager.release(RequestId(int(request))))}"

    def do_cancel(self, request: str) -> str:
        return f"{request} gave up; {self._granted(self.manager.cancel(RequestId(int(request))))}"

    def do_status(self) -> str:
        return self.manager.status()

    def _granted(self, requests: list[RequestId]) -> str:
        return f"granted {' '.join(map(str, requests))}" if requests else "nobody granted"


SCRIPTS = [path for path in golden.scripts("replica") if path.stem.startswith("latches_")]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_script(path: Path) -> None:
    golden.check(path, Runner())
