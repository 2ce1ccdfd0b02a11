"""Stored rows that cannot be decoded: which one it is, of which table, and what to do about it.

Rows are decoded in blocks, without their keys, so an error in a block says that there is a damaged row and not where. A caller
that has the keys finds it by halving (`first_damaged`) and raises `DamagedRow` instead. A damaged row is never left out of an
answer: deleting it by its key, or writing it anew, needs no decoding and mends the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slackwater.clock.timestamp import MIN, Timestamp, show
from slackwater.codec.layout import show_key
from slackwater.codec.rows import RowCodec
from slackwater.errors import DamagedRow, DecodeError, VersionUnknown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slackwater.model.schema import TableSchema


def decode_row(codec: RowCodec, key: bytes, value: bytes) -> dict[str, Any]:
    """The row that a value holds; when it holds none, `DamagedRow` with its key."""
    try:
        return codec.decode(value)
    except DecodeError as error:
        raise damaged_row(codec.schema, key, error) from error


def damaged_row(schema: TableSchema, key: bytes, error: DecodeError, *, committed: Timestamp = MIN) -> DamagedRow:
    """The error for a row of this key. With `committed`, of a change feed or a read of history, where a delete helps no more.

    A row of a version that the reader was not given is most likely as it should be: the error says to read again first.
    """
    try:
        shown: object = RowCodec(schema).decode_key(key)
    except DecodeError:
        shown = show_key(key)
    what = f"row {shown} of table {schema.name} cannot be decoded: {error.message}"
    if committed:
        when = f"{show(committed)} ({int(committed)})"
        what += f"; it was committed at {when}, and history keeps it: read or follow from after then"
    mend = f"delete('{schema.name}', [{shown}]) removes it by its key, and upsert replaces it"
    if isinstance(error, VersionUnknown):
        what += "; if its table was just changed, read again"
        return VersionUnknown(f"{what}; if that says the same, {mend}", table=schema.name, key=key)
    return DamagedRow(f"{what}; {mend}", table=schema.name, key=key)


def first_damaged(decode: Callable[[list[bytes]], object], values: Sequence[bytes]) -> tuple[int, DecodeError] | None:
    """The place of the first value that cannot be decoded, and why not; None when all can."""
    why = _failure(decode, values)
    if why is None:
        return None
    low, high = 0, len(values)  # values[:low] can be decoded, values[low:high] cannot
    while high - low > 1:
        middle = (low + high) // 2
        failure = _failure(decode, values[low:middle])
        if failure is None:
            low = middle
        else:
            high, why = middle, failure
    return low, _failure(decode, values[low:high]) or why


def _failure(decode: Callable[[list[bytes]], object], values: Sequence[bytes]) -> DecodeError | None:
    try:
        decode(list(values))
    except DecodeError as error:
        return error
    return None
