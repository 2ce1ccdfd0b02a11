"""Checks rows that came from outside before they are proposed.

A client encodes its rows itself, so a gateway is handed bytes. A value that does not decode would make every later scan of
its table fail, a key that is not the value's own would be found under one name and read under another, and a key that is
no key of the table could sort into the versions of its neighbor. All three are refused here, before anything is written.

A few rows are checked one by one (3.9 us each for four columns), many as one Arrow block (0.4 us each); both are the
codecs that will read the rows later, so what passes here decodes there.
"""

from __future__ import annotations

from functools import cached_property
from operator import ge
from typing import TYPE_CHECKING

from slackwater.codec.layout import schema_span
from slackwater.codec.rows import RowCodec, check_sizes, row_bytes_max
from slackwater.errors import DecodeError, SlackwaterError, UsageError
from slackwater.model.system_tables import check_not_system, is_system_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.codec.rows_arrow import BlockDecoder
    from slackwater.model.schema import TableSchema
    from slackwater.settings import Settings

ONE_BY_ONE_MAX = 24
"""Up to this many rows are checked one by one; beyond it, a block is cheaper."""
CHECKERS_KEPT_MAX = 1024


def check_block(keys: Sequence[bytes], values: Sequence[bytes]) -> None:
    """Raise `UsageError` unless keys are sorted and unique, with a value for each, and there is at least one."""
    if len(keys) != len(values) or not keys:
        raise UsageError("rows need as many values as keys, and at least one", keys=len(keys), values=len(values))
    if any(map(ge, keys, keys[1:])):
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
        check_sizes(schema.name, keys, values, limit=bytes_max)
        if len(keys) <= ONE_BY_ONE_MAX:
            for key, value in zip(keys, values, strict=True):
                self._check_row(key, value)
            return
        self._check_block(keys, values)

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

    def fits(self, keys: Sequence[bytes], values: Sequence[bytes]) -> bool:
        """Whether every value is a row of this version, and every key that of its row: for many rows, all decoded at once."""
        from slackwater.codec.keys_arrow import encode_key_array, is_array_of  # pyarrow only when it is used

        codec = self._codec
        try:
            batch = self._decoder.decode(values)
        except DecodeError:
            return False
        made = encode_key_array(codec.prefix, codec.key_types, [batch.column(n) for n in self._key_names])
        return is_array_of(made, keys)

    def _check_block(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        if not self.fits(keys, values):  # one of them is at fault: the slow way finds it
            for key, value in zip(keys, values, strict=True):
                self._check_row(key, value)
            raise self._refusal(keys[0], "the block that begins with it does not decode")

    @cached_property
    def _decoder(self) -> BlockDecoder:
        from slackwater.codec.rows_arrow import BlockDecoder  # pyarrow only when it is used

        return BlockDecoder(self._codec.schema, {})

    def _refusal(self, key: bytes, why: str) -> UsageError:
        schema = self._codec.schema
        return UsageError(
            f"a row does not fit table {schema.name} in version {schema.version}: {why}; nothing was written",
            key=bytes(key[:32]),
        )


class RowCheckers:
    """Keeps one `RowChecker` per version of each table in use, and knows how large a row may be."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._settings_seen = -1
        self._bytes_max = 0
        self._kept: dict[tuple[int, int], RowChecker] = {}

    @property
    def bytes_max(self) -> int:
        """Bytes of the key and the value of one row."""
        if self._settings_seen != self._settings.changes:
            self._settings_seen = self._settings.changes
            self._bytes_max = row_bytes_max(int(self._settings["log.entry_bytes_max"]))
        return self._bytes_max

    def check_written(self, schema: TableSchema, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Raise `UsageError` unless these are rows that may be written to a table of users as they are."""
        checker = self.of(schema)
        if checker.of_system:
            check_not_system(schema.name, what="write to")
        checker.check_written(keys, values, bytes_max=self.bytes_max)

    def of(self, schema: TableSchema) -> RowChecker:
        """The checker of a schema; ids and versions are never used again, so they name it."""
        name = (schema.table_id, schema.version)
        checker = self._kept.get(name)
        if checker is None:
            if len(self._kept) >= CHECKERS_KEPT_MAX:
                self._kept.clear()
            checker = self._kept[name] = RowChecker(schema)
        return checker
