"""Golden scripts of transactions: wound-wait from both ends, and the life of a transaction's timestamps.

The pusher's end is `txn/pushing.py`, the record's end `replica/records.py`; the script runs one against the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from slackwater.clock.timestamp import LOGICAL_BITS, Timestamp, from_us
from slackwater.model.txns import Intent, TxnRecord, TxnStatus
from slackwater.protocol.range import requests
from slackwater.replica import records
from slackwater.storage.batch import WriteBatch
from slackwater.txn.pushing import TxnPusher, after, plan
from slackwater.txn.state import TxnState
from tests import golden

if TYPE_CHECKING:
    from pathlib import Path

EXPIRATION_S = 5


def seconds(text: str) -> Timestamp:
    return from_us(round(float(text) * 1_000_000))


def show(ts: Timestamp) -> str:
    return f"{(ts >> LOGICAL_BITS) / 1e6:g}{'+' + str(ts & 1023) if ts & 1023 else ''}"


class Runner:
    """Verbs: record, no-record, floor, push; begin, moved, refreshed, restart, reborn, take."""

    def __init__(self) -> None:
        self.record: TxnRecord | None = None
        self.floor = seconds("0")
        self.state = TxnState(txn_id=b"a" * 16, now=seconds("1"), max_offset_us=500_000)

    def do_no_record(self) -> None:
        self.record = None

    def do_record(self, status: str, start: str, ts: str, beat: str) -> None:
        status_ = TxnStatus[status.upper()]
        self.record = TxnRecord(b"p" * 16, b"k", seconds(start), 0, status_, seconds(ts), seconds(beat))

    def do_floor(self, at: str) -> None:
        self.floor = seconds(at)

    def do_push(self, want: str, *flags: str, at: str, age: str, now: str) -> str:
        """`want` write|read at `at`, as a transaction that began at `age`; the pushee began at 10."""
        pushee = Intent(b"k", b"p" * 16, b"k", seconds("10"), 0, seconds("10"))
        request = requests.Put(b"k", b"v") if want == "write" else requests.Get(b"k")
        uncertain, locks = "uncertain" in flags, "locks" in flags
        pusher = TxnPusher(seconds(age), b"q" * 16, seconds(at), uncertain=uncertain, holds_locks=locks)
        (push,) = plan([pushee], [request], pusher, known=() if "first" in flags else {pushee.txn_id})
        effects = WriteBatch()
        outcome = records.push(
            effects, self.record, push.request, now=seconds(now), txn_floor=self.floor, expiration_s=EXPIRATION_S
        )
        answer = outcome or records.unsettled(push.request, self.record)
        said = answer.status.name + (f" at {show(answer.ts)}" if answer.ts else "")
        parked = "" if outcome else " (had to wait)"
        wrote = " record written" if len(effects) else ""
        return (
            f"{'abort' if push.request.abort else 'move'}: {said}{parked}{wrote} -> {after(push.request, answer).value}"
        )

    # --- the state of one transaction

    def do_begin(self, at: str) -> str:
        self.state = TxnState(txn_id=b"a" * 16, now=seconds(at), max_offset_us=500_000)
        return self.times()

    def do_moved(self, to: str) -> str:
        self.state.moved(seconds(to))
        return self.times()

    def do_refreshed(self, to: str) -> str:
        self.state.refreshed(seconds(to))
        return self.times()

    def do_restart(self, now: str) -> str:
        self.state.restart(seconds(now))
        return self.times()

    def do_reborn(self, *flags: str, now: str) -> str:
        self.state.reborn(txn_id=b"b" * 16, now=seconds(now), too_old="too-old" in flags)
        return self.times()

    def do_take(self, count: str) -> str:
        return f"first {self.state.take_sequences(int(count))}"

    def times(self) -> str:
        s = self.state
        return (
            f"{s.txn_id[:1].decode()} epoch={s.epoch} start={show(s.start)} read={show(s.read_ts)} "
            f"write={show(s.write_ts)} limit={show(s.uncertainty_limit)}"
        )


@pytest.mark.parametrize("path", golden.scripts("txn"), ids=lambda p: p.stem)
def test_script(path: Path) -> None:
    golden.check(path, Runner())
