"""A range as a stream of blocks, for a replica that is new or has fallen behind a trimmed log.

    Header{ state }                          the replicated state, position included: the receiver tails on from there
    Block{ family, keys, values } …          DATA, LOCK and the anchored part of LOCAL, in key order
    Trailer{ blocks, digest }                nothing counts before this has been checked

The sender reads one engine snapshot, so the stream is the range at exactly one applied position. The receiver writes the
range's state last, in one batch of its own: a crash half way leaves data without a state, which is no replica at all,
and the next attempt clears it away first.

Whole (I-34). A digest says that what was sent has arrived, not that all of it was sent. The state in the header holds the
range's statistics, which every command has carried along: how many keys, versions, bytes and intents there must be. The
sender walks the range and compares before its first part, because the receiver clears away what it has when that comes;
the receiver walks what it has written and compares before it writes the state. A replica that does not hold what its own
statistics say is neither sent nor installed.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from slackwater.codec.layout import anchored_span
from slackwater.errors import DamageError, StorageError
from slackwater.model.spans import Span
from slackwater.protocol.node.snapshots import Examination, SnapshotBlock, SnapshotHeader, SnapshotPart, SnapshotTrailer
from slackwater.replica.state import RangeState, decode_state, encode_state, state_key
from slackwater.runtime.seam import Family
from slackwater.settings import describe
from slackwater.storage.batch import WriteBatch
from slackwater.storage.stats import Stats, recompute

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.model.ids import RangeId
    from slackwater.runtime.seam import Reader

BLOCK_PAIRS = 2_000
BLOCK_BYTES = 1 << 20
assert describe("rpc.frame_bytes_max").default > 2 * BLOCK_BYTES, "a block of a snapshot fits one message"


def family_spans(descriptor: RangeDescriptor) -> list[tuple[Family, Span]]:
    """Where a range's content lies, family by family. The replica's own state is not among it."""
    span = Span(descriptor.start, descriptor.end)
    spans = [(Family.DATA, span), (Family.LOCK, span), (Family.LOCAL, anchored_span(span))]
    assert len(spans) == len(Family), "a snapshot is of every family (I-34)"
    return spans


def contents(reader: Reader, descriptor: RangeDescriptor) -> Iterator[SnapshotBlock]:
    """A range's content in blocks."""
    for family, span in family_spans(descriptor):
        cursor = reader.cursor(family, start=span.start, end=span.end)
        while True:
            keys, values = cursor.chunk(BLOCK_PAIRS)
            if not keys:
                break
            assert len(keys) == len(values), "keys and values come in pairs"
            assert span.start <= keys[0], "a snapshot holds its own range and nothing else"
            assert keys[-1] < span.end, "a snapshot holds its own range and nothing else"
            yield from _cut(family, keys, values)


def _cut(family: Family, keys: list[bytes], values: list[bytes]) -> Iterator[SnapshotBlock]:
    assert keys, "a block holds pairs"
    assert len(keys) == len(values), "a block holds pairs"
    begin = size = 0
    for i, value in enumerate(values):
        size += len(value) + len(keys[i])
        if size >= BLOCK_BYTES or i == len(values) - 1:
            yield SnapshotBlock(int(family), keys[begin : i + 1], values[begin : i + 1])
            begin, size = i + 1, 0
    assert begin == len(keys), "every pair is in one block"


def send_parts(reader: Reader, state: RangeState) -> Iterator[SnapshotPart]:
    """The whole stream for one range, from one frozen reader."""
    assert state.frozen is None or state.frozen.left_id, "a frozen range names the left side"
    digest, count = hashlib.blake2b(digest_size=16), 0
    yield SnapshotHeader(encode_state(state))
    for block in contents(reader, state.descriptor):
        _add(digest, block)
        count += 1
        yield block
    yield SnapshotTrailer(count, digest.digest())


def _add(digest: hashlib.blake2b, block: SnapshotBlock) -> None:
    digest.update(msgspec.msgpack.encode(block))


class SnapshotReceiver:
    """Turns a stream back into engine batches, checking it on the way."""

    def __init__(self, wanted: RangeId | None = None) -> None:
        """Receive a snapshot of the range that was asked for; None: of any range."""
        self._wanted = wanted
        self.state: RangeState | None = None
        self._digest = hashlib.blake2b(digest_size=16)
        self._blocks = 0
        self.complete = False

    def take(self, part: SnapshotPart) -> WriteBatch:
        """The writes that this part of the stream calls for."""
        if self.complete or (self.state is None) != isinstance(part, SnapshotHeader):
            raise StorageError("a snapshot stream is out of order; ask for it again")
        batch = WriteBatch()
        match part:
            case SnapshotHeader(raw):
                state = decode_state(raw)
                if self._wanted not in (None, state.descriptor.range_id):
                    raise StorageError(
                        f"a snapshot is of r{state.descriptor.range_id}, and r{self._wanted} was asked for; ask another node"
                    )
                self.state = state
                clear(batch, self.state.descriptor)
            case SnapshotBlock(family, keys, values):
                self._blocks += 1
                _add(self._digest, part)
                assert self.state is not None, "the header came first"
                _check_block(part, self.state.descriptor)
                batch.put_many(Family(family), keys, values)
            case SnapshotTrailer(blocks, digest):
                if blocks != self._blocks or digest != self._digest.digest():
                    raise StorageError(
                        "a snapshot does not check; ask for it again", blocks=blocks, received=self._blocks
                    )
                self.complete = True
                assert self.state is not None
                batch.put(Family.LOCAL, state_key(self.state.descriptor.range_id), encode_state(self.state))
        return batch


def _check_block(block: SnapshotBlock, descriptor: RangeDescriptor) -> None:
    """Refuse pairs that are not of the range: they would replace those of another one."""
    keys, spans = block.keys, {family.value: span for family, span in family_spans(descriptor)}
    span = spans.get(block.family)
    inside = span is not None and (not keys or (span.start <= min(keys) and max(keys) < span.end))
    if not inside or len(keys) != len(block.values):
        raise StorageError(
            f"a snapshot of r{descriptor.range_id} holds what is not of its range; ask another node",
            family=block.family,
        )


def clear(batch: WriteBatch, descriptor: RangeDescriptor) -> None:
    """Remove a range's content and state."""
    for family, span in family_spans(descriptor):
        batch.delete_range(family, span.start, span.end)
    batch.delete(Family.LOCAL, state_key(descriptor.range_id))


def check_whole(reader: Reader, state: RangeState) -> None:
    """Raise `DamageError` unless a range holds exactly what its replicated statistics say."""
    found, expected = recompute(reader, state.descriptor.start, state.descriptor.end), Stats(*state.stats)
    if found != expected:
        raise DamageError(
            f"r{state.descriptor.range_id} does not hold what its statistics say; it is fetched anew",
            versions=found.versions,
            expected=expected.versions,
            intents=found.intents,
            expected_intents=expected.intents,
            bytes=found.total_bytes,
            expected_bytes=expected.total_bytes,
        )


def examine(reader: Reader, state: RangeState) -> Examination:
    """Read a whole range; raises where that cannot be done."""
    assert state.stats, "a range that is examined has statistics"
    found, expected = recompute(reader, state.descriptor.start, state.descriptor.end), Stats(*state.stats)
    return Examination(range_digest(reader, state), found.versions, expected.versions, found == expected)


def range_digest(reader: Reader, state: RangeState) -> bytes:
    """The digest of everything replicated: equal on all replicas at the same position (I-06)."""
    digest = hashlib.blake2b(encode_state(state), digest_size=16)
    for block in contents(reader, state.descriptor):
        for key, value in zip(block.keys, block.values, strict=True):
            digest.update(len(key).to_bytes(4, "big") + key + len(value).to_bytes(4, "big") + value)
    return digest.digest()
