"""Checks rows that came from outside before they are proposed.

A client encodes its rows itself, so a gateway is handed bytes. A value that does not decode would make every later scan of
its table fail, a key that is not the value's own would be found under one name and read under another, and a key that is
no key of the table could sort into the versions of its neighbor. All three are refused here, before anything is written.

A few rows are checked one by one (3.9 us each for four columns), many as one Arrow block (0.4 us each); both are the
codecs that will read the rows later, so what passes here decodes there.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from slackwater.codec.layout import schema_span
from slackwater.codec.rows import HEADER_BYTES, RowCodec, check_sizes, row_bytes_max
from slackwater.errors import DecodeError, SlackwaterError, UsageError
from slackwater.model.system_tables import is_system_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slackwater.model.schema import TableSchema

_HEADER = itemgetter(slice(HEADER_BYTES))
"""What a value begins with."""
ONE_BY_ONE_MAX = 24
"""Up to this many rows are checked one by one; beyond it, a block is cheaper."""
CHECKERS_KEPT_MAX = 1024


def check_block(keys: Sequence[bytes], values: Sequence[bytes]) -> None:
    """Raise `UsageError` unless keys are sorted and unique, with a value for each, and there is at least one."""
    if len(keys) != len(values) or not keys:
        raise UsageError("rows need as many values as keys, and at least one", keys=len(keys), values=len(values))
    if any(map(bytes.__ge__, keys, keys[1:])):
        raise UsageError("the keys of a block of rows must be sorted and unique; sort them first")


class RowChecker:
    """Checks keys and values against one version of a table."""

    def __init__(self, schema: TableSchema) -> None:
        self._codec = RowCodec(schema)
        self.span = schema_span(schema)
        """Of the table's rows."""
        self.of_system = is_system_name(schema.name)
        """Whether the table is the cluster's own."""
        self._key_names = [column.name for column, _ in schema.key_columns()]

    def check_written(self, keys: Sequence[bytes], values: Sequence[bytes], *, bytes_max: int) -> None:
        """Raise `UsageError` unless these are rows that may be written as they are: all that one write is refused for."""
        schema = self._codec.schema
        check_block(keys, values)
        self.check_span(keys)
        if set(map(_HEADER, values)) != {self._codec.layout.header}:
            raise UsageError(f"a value is not a row of table {schema.name} in version {schema.version}")
        check_sizes(schema.name, keys, values, limit=bytes_max)
        self.check_rows(keys, values)

    def check_span(self, keys: Sequence[bytes]) -> None:
        """Raise `UsageError` unless sorted keys lie among those of this table."""
        if keys[0] < self.span.start or keys[-1] >= self.span.end:
            raise UsageError(f"a key does not belong to table {self._codec.schema.name}", key=keys[0][:32])

    def check_rows(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Raise `UsageError` unless every value is a row of this version and every key is the key of its row."""
        if len(keys) <= ONE_BY_ONE_MAX:
            for key, value in zip(keys, values, strict=True):
                self._check_row(key, value)
        else:
            self._check_block(keys, values)

    def check_keys(self, keys: Sequence[bytes]) -> None:
        """Raise `UsageError` unless every key is a primary key of this table."""
        for key in keys:
            try:
                row = self._codec.decode_key(key)
                same = self._codec.key(list(map(row.__getitem__, self._key_names))) == key
            except SlackwaterError as error:
                raise self._refusal(key, error.message) from None
            if not same:
                raise self._refusal(key, "it is not how this primary key is encoded")

    def _check_row(self, key: bytes, value: bytes) -> None:
        try:
            same = self._codec.key_of(self._codec.checked(value)) == key
        except SlackwaterError as error:
            raise self._refusal(key, error.message) from None
        if not same:
            raise self._refusal(key, "the key is not that of the row in the value")

    def _check_block(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        from slackwater.codec.keys_arrow import encode_keys  # pyarrow only when it is used
        from slackwater.codec.rows_arrow import BlockDecoder

        codec = self._codec
        decoder = BlockDecoder(codec.schema, {})
        try:
            batch = decoder.decode(values)
            same = encode_keys(codec.prefix, codec.key_types, [batch.column(n) for n in self._key_names]) == list(keys)
        except DecodeError:
            same = False
        if not same:  # one of them is at fault: the slow way finds it
            for key, value in zip(keys, values, strict=True):
                self._check_row(key, value)
            raise self._refusal(keys[0], "the block that begins with it does not decode")

    def _refusal(self, key: bytes, why: str) -> UsageError:
        schema = self._codec.schema
        return UsageError(
            f"a row does not fit table {schema.name} in version {schema.version}: {why}; nothing was written",
            key=bytes(key[:32]),
        )


class RowCheckers:
    """Keeps one `RowChecker` per version of each table in use, and knows how large a row may be."""

    def __init__(self, settings: Mapping[str, float]) -> None:
        self._settings = settings
        self._kept: dict[tuple[int, int], RowChecker] = {}

    @property
    def bytes_max(self) -> int:
        """Bytes of the key and the value of one row."""
        return row_bytes_max(int(self._settings["log.entry_bytes_max"]))

    def of(self, schema: TableSchema) -> RowChecker:
        """The checker of a schema; ids and versions are never used again, so they name it."""
        name = (schema.table_id, schema.version)
        checker = self._kept.get(name)
        if checker is None:
            if len(self._kept) >= CHECKERS_KEPT_MAX:
                self._kept.clear()
            checker = self._kept[name] = RowChecker(schema)
        return checker
