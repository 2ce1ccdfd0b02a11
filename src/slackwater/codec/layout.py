r"""Where everything lives in the one sorted key space, and how a version is stamped on a key.

    first byte
    01  local    01 'r' range_id:8 name-escaped             state of one range replica (lease, applied state)
                 01 'k' key-escaped name-escaped            state anchored at a key (transaction records): moves with it
                 01 'i' 'c' 'd'                             what one store remembers of feeds and of columns; not replicated
    02  meta     02 end-key-escaped                         range descriptors, found by the first end key > k
    03  system   03 name-escaped rest-escaped               node liveness, settings, jobs
    04  kv       04 name-escaped                            plain keys of applications and tests
    05  table    05 table_id:4 index_id:2 element…          rows

    \xff is above every key.

Every key is self-delimiting after its prefix, so no key is a prefix of another. That is what makes

    versioned(key, ts) = key ++ 8-byte big-endian ~ts

sort right with no escaping: if `a < b` and neither is a prefix of the other, they differ at some byte that both have,
before any suffix begins. Versions of one key are adjacent, newest first; keys keep their order. A range's end key *may*
be a prefix of another (`/table/5` and `/table/5/1/…`), hence meta keys escape it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import Timestamp
from slackwater.codec.keys import escape, unescape
from slackwater.errors import DecodeError, UsageError
from slackwater.model.spans import Span

if TYPE_CHECKING:
    from slackwater.model.schema import TableSchema

LOCAL = b"\x01"
META = b"\x02"
SYSTEM = b"\x03"
KV = b"\x04"
TABLE = b"\x05"
KEY_MIN = LOCAL
KEY_MAX = b"\xff"
"""Above every key there can be."""

SPANS_KEPT_MAX = 4096
"""Spans of tables that are not made anew for every message."""
INDEX_BYTES = 7
"""What every key of an index starts with: the first byte, its table, its number."""
VERSION_BYTES = 8
_MASK = (1 << 64) - 1


def prefix_end(prefix: bytes) -> bytes:
    """The lowest byte string above everything that starts with `prefix`."""
    stripped = prefix.rstrip(b"\xff")
    if not stripped:
        if prefix:
            raise UsageError("nothing in the key space starts with ff", prefix=prefix)
        return KEY_MAX
    return stripped[:-1] + bytes([stripped[-1] + 1])


def prefix_span(prefix: bytes) -> Span:
    """Everything that starts with `prefix`."""
    return Span(prefix, prefix_end(prefix))


def range_local(range_id: int, name: bytes) -> bytes:
    """State of one range's replica, such as its lease."""
    return LOCAL + b"r" + range_id.to_bytes(8, "big") + escape(name)


def replica_index(range_id: int, number: int = 0) -> bytes:
    """What one store remembers of the recent changes of its replica: 0 is the table of contents. Never replicated."""
    return LOCAL + b"i" + range_id.to_bytes(8, "big") + number.to_bytes(8, "big")


def column_segment(number: int) -> bytes:
    """What one store remembers of a segment of columns. Never replicated."""
    return LOCAL + b"c" + number.to_bytes(8, "big")


def column_delta(number: int, part: int) -> bytes:
    """What was written in the span of a segment since it was made, part by part. Never replicated."""
    return LOCAL + b"d" + number.to_bytes(8, "big") + part.to_bytes(8, "big")


def column_deltas_span(number: int) -> Span:
    """All parts of what was written in the span of one segment."""
    return prefix_span(LOCAL + b"d" + number.to_bytes(8, "big"))


def column_segments_span() -> Span:
    """All segments that a store remembers."""
    return prefix_span(LOCAL + b"c")


def anchored(key: bytes, name: bytes) -> bytes:
    """State that belongs to a key and moves with it on a split, such as a transaction record."""
    return LOCAL + b"k" + escape(key) + escape(name)


def anchored_span(span: Span) -> Span:
    """The anchored state of every key in a span."""
    return Span(LOCAL + b"k" + escape(span.start), LOCAL + b"k" + escape(span.end))


def meta(end_key: bytes) -> bytes:
    """Where the descriptor of the range that ends at `end_key` lives."""
    return META + escape(end_key)


def meta_after(key: bytes) -> Span:
    """The first meta key of this span is the descriptor of the range that holds `key`."""
    return Span(META + escape(key + b"\x00"), prefix_end(META))


def system(name: str, rest: bytes = b"") -> bytes:
    """A system record, such as `system("liveness", node)`."""
    return SYSTEM + escape(name.encode()) + escape(rest)


def kv(name: bytes) -> bytes:
    """A plain key, of any bytes."""
    return KV + escape(name)


def table_prefix(table_id: int, index_id: int = 1) -> bytes:
    """What every key of an index starts with."""
    return TABLE + table_id.to_bytes(4, "big") + index_id.to_bytes(2, "big")


@lru_cache(maxsize=SPANS_KEPT_MAX)
def table_span(table_id: int, index_id: int | None = None) -> Span:
    """All rows of one index, or of every index of the table."""
    if index_id is None:
        return prefix_span(TABLE + table_id.to_bytes(4, "big"))
    return prefix_span(table_prefix(table_id, index_id))


def tables_between(start: bytes, end: bytes) -> tuple[int, int]:
    """The lowest and the highest id of tables that may have keys in [start, end); (1, 0) where no table can."""
    behind = bytes([TABLE[0] + 1])
    if end <= TABLE or start >= behind:
        return 1, 0
    most = (1 << 32) - 1
    first = int.from_bytes(start[1:5].ljust(4, b"\x00"), "big") if start > TABLE else 0
    last = int.from_bytes(end[1:5].ljust(4, b"\x00"), "big") if end < behind else most
    assert 0 <= first <= last <= most, "keys of a table have its id"
    return first, last


def table_of(span: Span) -> int:
    """The table whose rows and indexes a span is, all of them and nothing else; 0: it is no table's."""
    start = len(TABLE)
    table_id = int.from_bytes(span.start[start:], "big") if span.start.startswith(TABLE) else 0
    return table_id if 0 < table_id < 1 << 32 and table_span(table_id) == span else 0


def schema_span(schema: TableSchema) -> Span:
    """All rows of a table's primary index."""
    return table_span(schema.table_id, schema.index_id)


def split_table_key(key: bytes) -> tuple[int, int, bytes]:
    """(table id, index id, the encoded columns) of a row's key."""
    if len(key) < INDEX_BYTES or key[:1] != TABLE:
        raise DecodeError("not a table key", key=key[:32])
    return int.from_bytes(key[1:5], "big"), int.from_bytes(key[5:INDEX_BYTES], "big"), key[INDEX_BYTES:]


def versioned(key: bytes, ts: Timestamp) -> bytes:
    """The key of one version: newer versions sort first."""
    return key + (~ts & _MASK).to_bytes(VERSION_BYTES, "big")


def split_version(stored: bytes) -> tuple[bytes, Timestamp]:
    """(key, timestamp) of a versioned key."""
    if len(stored) < VERSION_BYTES:
        raise DecodeError("too short for a versioned key", key=stored)
    ts = ~int.from_bytes(stored[-VERSION_BYTES:], "big") & _MASK
    if ts >> 63:
        raise DecodeError("a version's timestamp is above the largest", key=stored[-VERSION_BYTES:])
    return stored[:-VERSION_BYTES], Timestamp(ts)


def show_key(key: bytes) -> str:
    """A key for people: `/table/5/1/80000000`."""
    if key >= KEY_MAX:
        return "/max"
    names = {LOCAL: "local", META: "meta", SYSTEM: "system", KV: "kv"}
    if key[:1] in names:
        return f"/{names[key[:1]]}/{key[1:]!r}"
    if key[:1] == TABLE and len(key) == 5:
        return f"/table/{int.from_bytes(key[1:], 'big')}"
    if key[:1] == TABLE and len(key) >= 7:
        table_id, index_id, rest = split_table_key(key)
        return f"/table/{table_id}/{index_id}" + (f"/{rest.hex()}" if rest else "")
    return f"/{key.hex()}"


def check_key(key: bytes) -> bytes:
    """`key`, when it lies inside the key space."""
    if not KEY_MIN <= key < KEY_MAX:
        raise UsageError("a key starts with a known prefix; build it with slackwater.codec.layout", key=key[:32])
    return key


def check_split_key(key: bytes) -> bytes:
    """`key`, when ranges may meet there: no version of another key may lie on the wrong side of it.

    Versions are `key ++ ts`, so a boundary that extends a complete key would fall between that key and its versions. Any
    key, and any prefix of keys, is fine. (Rows are decoded with their schema only; a row's key as it is stored is fine.)
    """
    check_key(key)
    if key[:1] in (LOCAL, META):
        raise UsageError("local and meta keys are never divided", key=key[:32])
    elements = {SYSTEM: 2, KV: 1}.get(key[:1], 0)
    at = 1
    for _ in range(elements):
        try:
            _, at = unescape(key, at)
        except DecodeError:
            return key
    if elements and at != len(key):
        raise UsageError("ranges cannot meet between a key and its versions; split at a key", key=key[:64])
    return key
