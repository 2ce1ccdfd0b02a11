"""Events below the resolved timestamp, in one order that depends on history alone.

A feed delivers keys of many ranges as they come, and some twice. Below a resolved timestamp nothing new can come, so what
lies there can be brought into an order that every run, on every machine, finds again: by (commit timestamp, key), each once.
Transactions then lie together, whole: all writes of a transaction have its commit timestamp.

    add        b@12 a@10 b@12 c@31 a@20            as they come, with repeats
    release(upto=20)  ─►  a@10 b@12 a@20           sorted, each once; c@31 stays

What waits is bounded by bytes: `full` says that the sources ahead should pause. It cannot be cut short, because the slowest
range decides when it is released.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute as pac

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.errors import invariant
from slackwater.model.changes import Changes, joined

pa: Any = pyarrow
pc: Any = pac
SETTLING_BYTES_MAX = 256 << 20


class Settling:
    """Holds changes until they are resolved."""

    def __init__(self, *, after: Timestamp = MIN, bytes_max: int = SETTLING_BYTES_MAX) -> None:
        self.released = after
        """Everything at or below this is out; a change from there that arrives again is a repeat and is dropped."""
        self.bytes = 0
        self._bytes_max = bytes_max
        self._blocks: list[Changes] = []

    @property
    def full(self) -> bool:
        """Whether no more should be added before something is released."""
        return self.bytes >= self._bytes_max

    def add(self, changes: Changes) -> None:
        """Take what a feed delivers, in any order."""
        if not len(changes):
            return
        if min(changes.timestamps) <= self.released:
            changes = changes.pick([i for i, ts in enumerate(changes.timestamps) if ts > self.released])
        if len(changes):
            self._blocks.append(changes)
            self.bytes += changes.size()

    def release(self, upto: Timestamp) -> Changes:
        """Everything at or below `upto`, by (timestamp, key), each once. Nothing there may come anew."""
        invariant(upto >= self.released, "I-23", upto=upto, released=self.released)
        self.released = upto
        whole = joined(self._blocks)
        if not len(whole):
            return whole
        times = np.array(whole.timestamps, np.int64)
        below = np.flatnonzero(times <= upto)
        rest = whole.pick(np.flatnonzero(times > upto).tolist()) if len(below) < len(times) else Changes([], [], [])
        self._blocks = [rest] if len(rest) else []
        self.bytes = rest.size()
        return _in_order(whole if len(below) == len(times) else whole.pick(below.tolist()))


def _in_order(changes: Changes) -> Changes:
    if len(changes) < 2:
        return changes
    table = pa.table({"ts": pa.array(changes.timestamps, pa.int64()), "key": pa.array(changes.keys, pa.binary())})
    order = pc.sort_indices(table, sort_keys=[("ts", "ascending"), ("key", "ascending")])
    sorted_ = table.take(order)
    same_ts = pc.equal(sorted_["ts"].slice(1), sorted_["ts"].slice(0, len(changes) - 1))
    same_key = pc.equal(sorted_["key"].slice(1), sorted_["key"].slice(0, len(changes) - 1))
    repeats = np.concatenate([[False], np.asarray(pc.and_(same_ts, same_key))])
    return changes.pick(np.asarray(order)[~repeats].tolist())
