"""Values of columns whose default is a function, for rows that leave them out.

    now()                the session's clock: one value for all rows of a call
    gen_random_uuid()    another value for each row, of version 4; also in a primary key

They are made here, before rows are encoded, because a key may depend on them: a gateway gets rows that are whole, and a message
that is sent again is the same message. Tables without such columns pay one comparison.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow

from slackwater.client.inputs import as_arrow
from slackwater.clock.timestamp import us_of
from slackwater.codec.arrow import arrow_type, literal_array
from slackwater.model.kinds import ColumnKind
from slackwater.protocol.client.calls import WriteKind

if TYPE_CHECKING:
    from slackwater.client.gateways import Gateways
    from slackwater.codec.rows import RowCodec
    from slackwater.model.schema import Column

pa: Any = pyarrow
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
UUID_BYTES = 16


def with_generated(gateways: Gateways, codec: RowCodec, rows: Any, kind: WriteKind) -> Any:
    """Rows with a value in every column whose default is a function and that they leave out; other rows as they are."""
    if not codec.generated or kind is WriteKind.DELETE:
        return rows
    now, table = _now(gateways), as_arrow(rows)
    if table is not None:
        for column in codec.generated:
            if column.name not in table.schema.names:
                table = table.append_column(column.name, _array(gateways, column, now, table.num_rows))
        return table
    if isinstance(rows, Mapping):
        rows = [rows]
    if not isinstance(rows, list | tuple):
        rows = list(rows) if hasattr(rows, "__iter__") and not isinstance(rows, str | bytes) else rows
    if not isinstance(rows, list | tuple) or not all(isinstance(row, Mapping) for row in rows):
        return rows  # refused where rows are read
    return [{**{c.name: _value(gateways, c, now) for c in codec.generated if c.name not in row}, **row} for row in rows]


def _now(gateways: Gateways) -> dt.datetime:
    return _EPOCH + dt.timedelta(microseconds=us_of(gateways.clock.now()))


def _value(gateways: Gateways, column: Column, now: dt.datetime) -> object:
    match column.type.kind:
        case ColumnKind.UUID:
            return uuid.UUID(bytes=gateways.runtime.rng.bytes(UUID_BYTES), version=4)
        case ColumnKind.DATE:
            return now.date()
        case ColumnKind.TIMESTAMP:
            return now.replace(tzinfo=None)
        case _:
            return now


def _array(gateways: Gateways, column: Column, now: dt.datetime, size: int) -> Any:
    """An array of generated values, one for each row, without a Python object for each."""
    if column.type.kind is not ColumnKind.UUID:
        return literal_array(_value(gateways, column, now), column.type, size=size)
    raw = np.frombuffer(gateways.runtime.rng.bytes(UUID_BYTES * size), np.uint8).reshape(size, UUID_BYTES).copy()
    raw[:, 6] = raw[:, 6] & 0x0F | 0x40
    raw[:, 8] = raw[:, 8] & 0x3F | 0x80
    return pa.Array.from_buffers(arrow_type(column.type), size, [None, pa.py_buffer(raw.tobytes())])
