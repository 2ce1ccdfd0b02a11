"""The index of ranges: publishing a descriptor, and repairing what was never published.

The truth about a range is in its own log. The index, `meta(end) → descriptor` in range 1, is a copy for finding ranges,
brought up to date *after* a split or merge. The node that changed the range may die before that, so every leaseholder also
compares now and then (`repair`).

                 a           k               z
    before       ├───────── r5 gen 7 ────────┤            meta(z) = r5
    split        ├─ r5 gen 8 ┼─ r9 gen 8 ────┤            meta(k) = r5, meta(z) = r9        in ONE batch
    merged       ├───────── r5 gen 9 ────────┤            meta(z) = r5, meta(k) deleted     in ONE batch

Along any key generations only increase, so of two descriptors that overlap the higher is newer: a record is replaced
or deleted only by a newer one that overlaps it, and a descriptor that overlaps a newer record is not published at all.
Each put is conditional on the very bytes that were read, so two publishers cannot undo each other; one that loses reads
again. An old record may stay beside a new one that covers only a part of it: a lookup finds the new one first, and the
owner of the rest publishes in its turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from slackwater.codec import layout
from slackwater.errors import AmbiguousResult, ConditionFailed, DecodeError, UnavailableError
from slackwater.hooks import probe
from slackwater.model.descriptors import RangeDescriptor
from slackwater.protocol.range.requests import ConditionalPut, Delete, Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.txn.kv import KV

PUBLISH_TRIES_MAX = 8
READ_ROWS = 64
META_TIMEOUT_S = 5.0

_decoder = msgspec.msgpack.Decoder(RangeDescriptor)
_encoder = msgspec.msgpack.Encoder()


class MetaRecord(NamedTuple):
    """One entry of the index, as it was read."""

    key: bytes
    raw: bytes
    descriptor: RangeDescriptor


def decode(key: bytes, raw: bytes) -> MetaRecord:
    """Read an entry."""
    try:
        return MetaRecord(key, raw, _decoder.decode(raw))
    except (msgspec.MsgspecError, ValueError) as error:
        raise DecodeError("an entry of the index of ranges cannot be read", key=key) from error


def overlap(a: RangeDescriptor, b: RangeDescriptor) -> bool:
    """Whether some key is in both."""
    return a.start < b.end and b.start < a.end


def plan(records: Sequence[MetaRecord], descriptors: Sequence[RangeDescriptor]) -> list[Request]:
    """What brings the index up to date with these descriptors, given everything that overlaps them; pure."""
    at = {record.key: record for record in records}
    requests: list[Request] = []
    for new in descriptors:
        others = [r for r in records if overlap(r.descriptor, new)]
        known = at.get(layout.meta(new.end))
        if known is not None and known.descriptor == new:
            continue
        if any(r.descriptor.generation >= new.generation for r in others):
            probe("meta.older_than_index")
            continue
        requests.append(
            ConditionalPut(layout.meta(new.end), _encoder.encode(new), expected=known.raw if known else None)
        )
        # What ends inside the new range has been absorbed by it.
        requests += [Delete(r.key) for r in others if new.start < r.descriptor.end < new.end]
    return requests


class MetaIndex:
    """Reads and writes the index of ranges."""

    def __init__(self, kv: KV) -> None:
        self._kv = kv

    async def read(self, start: bytes, end: bytes) -> list[MetaRecord]:
        """Every record whose range overlaps `[start, end)`."""
        at = layout.meta_after(start).start
        found: list[MetaRecord] = []
        while True:
            rows = await self._kv.scan(at, layout.prefix_end(layout.META), max_keys=READ_ROWS, timeout=META_TIMEOUT_S)
            for key, raw in zip(rows.keys, rows.values, strict=True):
                record = decode(key, raw)
                if record.descriptor.start < end:
                    found.append(record)
                if record.descriptor.end >= end:
                    return found
            if rows.resume is None:
                return found
            at = rows.resume

    async def publish(self, *descriptors: RangeDescriptor) -> bool:
        """Bring the index up to date with neighbouring descriptors, in one batch; whether it had to change."""
        start, end = min(d.start for d in descriptors), max(d.end for d in descriptors)
        for _ in range(PUBLISH_TRIES_MAX):
            requests = plan(await self.read(start, end), descriptors)
            if not requests:
                return False
            try:
                await self._kv.batch(requests, timeout=META_TIMEOUT_S)
            except (ConditionFailed, AmbiguousResult):
                probe("meta.publish_again")
                continue
            return True
        raise UnavailableError("the index of ranges kept changing; its leaseholder will repair it")
