"""Committed versions as columns: what replicas, gateways, feeds and clients hand to each other.

    keys        k1    k2    k1
    timestamps  10    10    12         the commit timestamps
    values      v     v     b""        as stored; empty: the row was deleted
    befores     …                      what each replaced, where it was asked for
    txn_ids     …                      whose they are, where the serving replica knew

Versions travel as parallel columns, not as objects: one flush of a busy range is one `Changes`, and it goes from the replica
to the application's machine without being touched; there `codec.envelope` makes Arrow of it. `ChangedValue` is the view of one
row, for validators, scripts and people. A table as of one timestamp, which a feed may begin with, travels as Arrow's columns
(`InitialPage`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.clock.timestamp import Timestamp
from slackwater.errors import DecodeError, invariant
from slackwater.model.ids import TableId
from slackwater.model.patches import Patch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slackwater.model.spans import Span

EVENT_BYTES = 32
"""What one version costs in a buffer besides its key and values: list slots and the timestamp."""


class ChangedValue(msgspec.Struct, frozen=True):
    """One committed version of one key."""

    key: bytes
    ts: Timestamp
    value: bytes
    """Empty: the key was deleted."""
    before: bytes | None = None
    """What it replaced, empty when there was nothing; None when it was not asked for."""
    txn_id: bytes = b""
    """Of the transaction that committed it, where the serving replica knows; empty otherwise."""


class FeedItem(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of what travels from a range to a consumer."""


class Changes(FeedItem, frozen=True, dict=True):
    """Committed versions in an order that keeps each key's; columns run in parallel and are never changed."""

    keys: list[bytes]
    timestamps: list[int]
    values: list[bytes]
    befores: list[bytes] | None = None
    txn_ids: list[bytes] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def size(self) -> int:
        """Bytes that it takes in a buffer. Each of the buffers on its way asks, so it is worked out once."""
        known: int | None = self.__dict__.get("_size")
        if known is None:
            known = len(b"".join(self.keys)) + len(b"".join(self.values)) + EVENT_BYTES * len(self.keys)
            if self.befores is not None:
                known += len(b"".join(self.befores))
            self.__dict__["_size"] = known
        return known

    def rows(self) -> Iterator[ChangedValue]:
        """One `ChangedValue` per version."""
        for at, key in enumerate(self.keys):
            before = None if self.befores is None else self.befores[at]
            txn_id = b"" if self.txn_ids is None else self.txn_ids[at]
            yield ChangedValue(key, Timestamp(self.timestamps[at]), self.values[at], before, txn_id)

    def pick(self, places: list[int]) -> Changes:
        """Only the rows at these places, in their order."""
        return Changes(
            [self.keys[i] for i in places],
            [self.timestamps[i] for i in places],
            [self.values[i] for i in places],
            None if self.befores is None else [self.befores[i] for i in places],
            None if self.txn_ids is None else [self.txn_ids[i] for i in places],
        )

    def within(self, span: Span) -> Changes:
        """Only the keys of a span; itself, when that is all of them."""
        keys = self.keys
        if not keys or (span.start <= min(keys) and max(keys) < span.end):
            return self
        return self.pick([i for i, key in enumerate(keys) if span.start <= key < span.end])

    def slices(self, bytes_max: int) -> Iterator[Changes]:
        """The same in order, in blocks of about this size, at least one row each; itself, when it is small enough."""
        size = self.size()
        if size <= bytes_max:
            yield self
            return
        step = max(1, len(self) * bytes_max // size)
        for low in range(0, len(self), step):
            high = low + step
            yield Changes(
                self.keys[low:high],
                self.timestamps[low:high],
                self.values[low:high],
                None if self.befores is None else self.befores[low:high],
                None if self.txn_ids is None else self.txn_ids[low:high],
            )

    def check(self) -> None:
        """Columns of one length, as they must be when they arrive."""
        for column in (self.timestamps, self.values, self.befores, self.txn_ids):
            if column is not None and len(column) != len(self.keys):
                raise DecodeError("the columns of a block of changes differ in length", keys=len(self.keys))


class InitialPage(msgspec.Struct, frozen=True):
    """A piece of one table as of one timestamp: Arrow IPC messages without their schema (`protocol.range.bulk`)."""

    table_id: TableId
    version: int
    """Of the table, by which the rows are shown: all of its columns, in order."""
    ts: Timestamp
    rows: int
    blocks: list[memoryview]
    patches: list[Patch] = []


def changes_of(values: list[ChangedValue], *, befores: bool = False) -> Changes:
    """The block of some values; for tests and scripts."""
    invariant(not befores or all(v.before is not None for v in values), "A-feed-befores")
    return Changes(
        [v.key for v in values],
        [v.ts for v in values],
        [v.value for v in values],
        [v.before or b"" for v in values] if befores else None,
        [v.txn_id for v in values],
    )


def joined(blocks: list[Changes]) -> Changes:
    """Blocks as one; before-images only where all have them, transaction ids where any has."""
    if len(blocks) == 1:
        return blocks[0]
    keys: list[bytes] = []
    timestamps: list[int] = []
    values: list[bytes] = []
    befores: list[bytes] | None = [] if blocks and all(b.befores is not None for b in blocks) else None
    txn_ids: list[bytes] | None = [] if any(b.txn_ids is not None for b in blocks) else None
    for block in blocks:
        keys += block.keys
        timestamps += block.timestamps
        values += block.values
        if befores is not None and block.befores is not None:
            befores += block.befores
        if txn_ids is not None:
            txn_ids += block.txn_ids if block.txn_ids is not None else [b""] * len(block)
    return Changes(keys, timestamps, values, befores, txn_ids)
