"""Staged writes: rows that many processes bring, made visible by one of them at one timestamp, exactly once.

    task 1 ── stage ──► part a ┐                     parts lie in the cluster, invisible
    task 2 ── stage ──► part b ├─ publish(a, b) ──►  one transaction: every row, and the mark "app X has done version 7"
    task 2'── stage ──► part c ┘  (c: an attempt that lost; it goes with the job)

A *part* is what one attempt of one task wrote. All that is staged for one write belongs to a durable job, which holds it for as
long as its client goes on and removes it when it ends; a part that is staged alone is a job by itself. A part is a sequence
of *chunks*: keys and values, encoded and sorted by the client. Staging changes nothing but the parts; publishing copies them, so
that dropping parts afterwards, or instead, is always harmless.

A publish has a name: (application, version). A name counts within one operation on one table, and the table is meant by its
id: another table, another operation, and a table that was dropped and made anew each begin without a past. Within these, a
publish happens at most once: a second one of the same or a lower version answers `already` and does nothing, on whichever
node, after whichever failure. Without a name of its own, a publish is known by the jobs of its parts.

Whether a repeat brings the same rows is not looked at: a job that is run again may cut and compute them differently. One
mistake can be told from a repeat, and is refused: a stream whose checkpoint was thrown away counts its batches from 0 again,
under the name whose older batches the lost checkpoint counted. So a publish may say which query it works for (`owner`).
"""

from __future__ import annotations

import enum

import msgspec

from slackwater.clock.timestamp import Timestamp
from slackwater.errors import DecodeError, UsageError
from slackwater.model.ids import Natural, Small, TableId, Whole
from slackwater.protocol.client.calls import NativeOk
from slackwater.runtime.access import CLIENTS
from slackwater.runtime.rpc.method import Method

PART_BYTES = 16
TIME_BYTES = 8
CHUNK_BYTES_MAX = 256 << 10
"""Encoded keys and values of one chunk: it becomes one log entry when it is staged and about one when it is published."""
CALL_BYTES_MAX = 4 << 20
APP_CHARS_MAX = 512


class StagedKind(enum.Enum):
    """What publishing does with a row."""

    UPSERT = "upsert"
    INSERT = "insert"
    INSERT_IGNORE = "insertIgnore"
    DELETE = "delete"


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """Sorted, unique keys and their values; no values for a delete."""

    keys: list[bytes]
    values: list[bytes]


class StagingJob(msgspec.Struct, frozen=True, array_like=True):
    """What several tasks stage for one publish: an id like a part's, and the number of the task."""

    job: bytes
    task: Whole


class StageChunks(msgspec.Struct, frozen=True):
    """Keep encoded chunks of a part, numbered from `first` on. Sending them again changes nothing.

    `rows` counts those of the part so far, these included. Of a `job`, the rows of all tasks are counted together, so that
    the one that is too many is refused when it is staged, not when the job is done.
    """

    part: bytes
    first: Small
    chunks: list[bytes]
    rows: Natural = 0
    job: StagingJob | None = None
    """None: the part stands alone, and is a job by itself."""
    table: str = ""
    """What the rows are for, to be shown."""


class PartRef(msgspec.Struct, frozen=True):
    """A complete part: how many chunks it has, how many rows, and under which job's name it was staged."""

    part: bytes
    chunks: Small
    rows: Small
    job: bytes = b""
    """Empty for a part that stands alone."""

    @property
    def name(self) -> bytes:
        """The job that owns the part."""
        return self.job or self.part


class Publish(msgspec.Struct, frozen=True):
    """Write the rows of these parts into a table at one timestamp, unless `app` has done `app_version` there already.

    `lasting` names are kept for ever. Without one, a repeat is known by the jobs of its parts, which have succeeded. `owner` is
    the query that counts the versions, where there is one. `keep` are the ids of columns that an upsert does not bring: a row
    that is there keeps what it has in them.
    """

    table_id: TableId
    version: Small
    kind: StagedKind
    parts: list[PartRef]
    app: str
    app_version: Natural
    lasting: bool
    owner: str = ""
    keep: list[Small] = []


class Published(msgspec.Struct, frozen=True):
    """When it happened; `already`: not now, but at or before that time, and then `rows` counts those written then."""

    rows: Small
    ts: Timestamp
    already: bool


class DropParts(msgspec.Struct, frozen=True):
    """Forget what was staged under these names: of parts that stand alone, or of jobs. Rows that were published stay."""

    parts: list[bytes]


STAGE: Method[StageChunks, NativeOk] = Method("db.stage", StageChunks, NativeOk, callers=CLIENTS)
PUBLISH: Method[Publish, Published] = Method("db.publish", Publish, Published, callers=CLIENTS)
DROP_PARTS: Method[DropParts, NativeOk] = Method("db.drop_staged", DropParts, NativeOk, callers=CLIENTS)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Chunk)


def part_id(now_us: int, chance: bytes) -> bytes:
    """The id of a new part: when it was made, and chance."""
    if len(chance) != PART_BYTES - TIME_BYTES:
        raise UsageError("a part's id ends with 8 bytes of chance", got=len(chance))
    return now_us.to_bytes(TIME_BYTES, "big") + chance


def encode_chunk(chunk: Chunk) -> bytes:
    """A chunk as it is kept."""
    return _encoder.encode(chunk)


def decode_chunk(data: bytes) -> Chunk:
    """A chunk that was kept; anything else is a `DecodeError`."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise DecodeError(f"a staged chunk does not decode: {error}") from None
