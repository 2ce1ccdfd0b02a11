"""Golden scripts of the tracker: `tests/scripts/closedts/tracker_*.txt`.

`enter` and `leave` run two rules side by side on the same requests: ours, in a real proposal buffer (what a request
carries is read from the log entry that its flush made), and the one of seed 000, whose two buckets carry policy
timestamps and close the previous one's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from slackwater.clock.timestamp import MAX, MIN, Timestamp
from slackwater.closedts import BucketTracker, Token
from slackwater.model.descriptors import LeaseAppliedIndex, LeaseSequence
from slackwater.model.ids import RangeId
from slackwater.protocol.log.commands import COMMAND_ID_BYTES, decode_packet
from slackwater.replica.propose import OVERHEAD_BYTES, Proposal, ProposalBuffer
from tests import golden
from tests.twins.heap_tracker import HeapTracker

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
        self.buffer: ProposalBuffer[str] = ProposalBuffer(RangeId(1), self.bucket, entry_bytes_max=OVERHEAD_BYTES)
        self.buffer.start_lease(sequence=LeaseSequence(1), lai=LeaseAppliedIndex(0), closed=MIN)

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
            self.buffer.insert(
                Proposal(
                    command_id=name.encode().ljust(COMMAND_ID_BYTES, b"."),
                    lease_sequence=LeaseSequence(1),
                    # A request writes at now, and in any case above what is closed already.
                    min_write_ts=Timestamp(max(int(now), self.buffer.floor)),
                    effects=b"",
                    stats=(),
                    trigger=None,
                    generation=0,
                    waiter=name,
                )
            )
        return f"enter {' '.join(names)} at {now}\n{self._both()}"

    def do_leave(self, name: str, now: str) -> str:
        theirs = self.document.leave(name)
        # The document's requests overtake each other; our buffer keeps their order, so the one that leaves is put first.
        self.buffer._buffered.sort(key=lambda proposal: proposal.waiter != name)
        # Leaving the tracker, the index and the closed timestamp are one step. A proposal's own write does not hold back
        # what it carries, because that binds only the commands after it.
        target = Timestamp(int(now) - self.document.target)
        flight = self.buffer.flush(close_target=target, close_limit=Timestamp(MAX - 1))
        assert flight is not None
        (command,) = decode_packet(flight.payload).commands
        assert self.buffer.take_decided(command.command_id) is not None
        carried = f"{name} leaves at {now} as command {command.lai} carrying closed:"
        return f"{carried} document={theirs} ours={command.closed}\n{self._both()}"

    def _both(self) -> str:
        ours = f"{self.bucket.status()} closed={self.buffer.assigned_closed}"
        return f"  document {self.document.status()}\n  ours     {ours}"


SCRIPTS = [path for path in golden.scripts("closedts") if path.stem.startswith("tracker_")]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_script(path: Path) -> None:
    golden.check(path, Runner())
