"""The catalog's records as keys and bytes. Pure.

Ids and versions are big-endian, so a table's versions are neighbours in order, and one scan reads a table's history.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.clock.timestamp import MIN
from slackwater.codec.keys import escape, unescape
from slackwater.codec.layout import SYSTEM, prefix_span, system
from slackwater.errors import DecodeError
from slackwater.model.indexes import FIRST_INDEX_ID, Check, Index, Mutation
from slackwater.model.schema import TableSchema
from slackwater.model.spans import Span
from slackwater.model.tables import TableDescriptor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.clock.timestamp import Timestamp

TABLE_ID_KEY = system("alloc", b"table")
_TABLE = "table"
_NAME = "table_name"
_NUMBER_BYTES = 4
assert _NUMBER_BYTES == 4, "ids and versions of tables are stored in four bytes"


class TableRecord(msgspec.Struct, frozen=True):
    """What is written for one version of a table."""

    schema: TableSchema
    next_column_id: int
    dropped: bool = False
    owner: str = ""
    indexes: tuple[Index, ...] = ()
    checks: tuple[Check, ...] = ()
    mutations: tuple[Mutation, ...] = ()
    next_index_id: int = FIRST_INDEX_ID
    read_only: bool = False
    dropping: bool = False

    def at(self, ts: Timestamp) -> TableDescriptor:
        """The descriptor, of a record that was committed at `ts`."""
        return TableDescriptor(
            self.schema,
            ts,
            self.next_column_id,
            self.dropped,
            self.owner,
            self.indexes,
            self.checks,
            self.mutations,
            self.next_index_id,
            self.read_only,
            self.dropping,
        )


assert tuple(field for field in TableDescriptor.__struct_fields__ if field != "modified") == (
    TableRecord.__struct_fields__
), "a descriptor has the fields of its record, in their order, and the time of its commit"
_decoder = msgspec.msgpack.Decoder(TableRecord)


def descriptor_key(table_id: int, version: int) -> bytes:
    """Where one version of a table lives."""
    assert 0 < table_id < 1 << 32, "ids and versions fit their bytes"
    assert 0 <= version < 1 << 32, "ids and versions fit their bytes"
    key = system(_TABLE, table_id.to_bytes(_NUMBER_BYTES, "big") + version.to_bytes(_NUMBER_BYTES, "big"))
    assert _numbers(key) == (table_id, version), "a key says which version lies there"
    return key


def descriptors_span() -> Span:
    """Every version of every table."""
    return prefix_span(SYSTEM + escape(_TABLE.encode()))


def is_version(key: bytes) -> bool:
    """Whether a key of a table's records is that of a version: those begin at 1 (0 was a note of older releases)."""
    return _numbers(key)[1] != 0


def _numbers(key: bytes) -> tuple[int, int]:
    """The table and the version in a key."""
    rest, _ = unescape(key, len(SYSTEM + escape(_TABLE.encode())))
    return int.from_bytes(rest[:_NUMBER_BYTES], "big"), int.from_bytes(rest[_NUMBER_BYTES:], "big")


def versions_span(table_id: int) -> Span:
    """Every version of one table."""
    return Span(descriptor_key(table_id, 0), descriptor_key(table_id + 1, 0))


assert descriptors_span().start < versions_span(1).start < versions_span(1).end < descriptors_span().end, (
    "the versions of a table are among those of all tables"
)
assert versions_span(1).start < descriptor_key(1, 0xFF) < descriptor_key(1, 0x100) < versions_span(1).end, (
    "the versions of a table are neighbors, in the order of their numbers"
)


def history_spans(table_id: int, names: Iterable[str]) -> list[Span]:
    """The records that it takes to find a table by name, and to decode its rows, as of an earlier time."""
    return [versions_span(table_id), *(Span.point(name_key(name)) for name in sorted(set(names)))]


def name_key(name: str) -> bytes:
    """Where a table's name is claimed."""
    return system(_NAME, name.encode())


def encode_id(table_id: int) -> bytes:
    """A table id as the value of a name."""
    assert 0 < table_id < 1 << 32, "an id fits its bytes"
    return table_id.to_bytes(_NUMBER_BYTES, "big")


def decode_id(value: bytes) -> int:
    """The table id that a name stands for."""
    if len(value) != _NUMBER_BYTES:
        raise DecodeError("a table's name does not hold an id", value=value[:16])
    return int.from_bytes(value, "big")


def check_name_record(name: bytes, value: bytes) -> None:
    """Raise unless a name's record can be read."""
    name.decode()
    decode_id(value)


def encode_record(record: TableRecord) -> bytes:
    """The bytes of one version."""
    assert all(column.id < record.next_column_id for column in record.schema.columns), (
        "ids of columns are never used again"
    )
    assert record.schema.version > 0, "versions begin at 1"
    assert all(index.id < record.next_index_id for index in record.indexes), "ids of indexes are never used again"
    assert not (record.dropped and record.mutations), "a table that is gone is not changed any more"
    return msgspec.msgpack.encode(record)


def check_table_record(key: bytes, value: bytes) -> None:
    """Raise `DecodeError` when `value` is not the version that its key names."""
    decode_record(key, value, MIN)


def decode_record(key: bytes, value: bytes, ts: Timestamp) -> TableDescriptor:
    """The descriptor in a record that was committed at `ts`."""
    try:
        record = _decoder.decode(value)
        named = _numbers(key)
    except (msgspec.MsgspecError, ValueError) as error:
        raise DecodeError(f"a table's record does not decode: {error}", key=key) from None
    stored = record.schema
    if named != (stored.table_id, stored.version):
        raise DecodeError("a table's record lies under another table's key", key=key, table_id=stored.table_id)
    return record.at(ts)
