"""The bytes of one file of envelopes: the same for the same rows, today and after a restart.

    parquet   one row group per file, fixed options, no statistics that depend on the machine, no time of writing
    json      one object a line: {"table", "op", "commit_ts", "version", "key", "after", "before"}; bytes as base64, decimals
              and uuids as text; of float8, what JSON has no number for as the texts "NaN", "Infinity" and "-Infinity", as
              PostgreSQL's row_to_json writes them

Parquet names the library that wrote it, so byte equality holds between writers of one pyarrow release.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow
import pyarrow.parquet as pq

from slackwater.errors import UsageError
from slackwater.model.kinds import ColumnKind
from slackwater.model.reserved import BEFORE, COMMIT_TS, OP, VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.codec.envelope import Envelopes

FORMATS = ("parquet", "json")
pa: Any = pyarrow
_json = msgspec.json.Encoder()


def file_bytes(envelopes: Envelopes, form: str) -> bytes:
    """The content of a file of this format with these rows."""
    if form == "parquet":
        return _parquet(envelopes.batch)
    if form == "json":
        return _lines(envelopes)
    raise UsageError(f"a feed writes {' or '.join(FORMATS)}, not {form!r}")


def _parquet(batch: Any) -> bytes:
    sink = io.BytesIO()
    write: Any = pq.write_table
    write(
        pa.Table.from_batches([batch]),
        sink,
        compression="zstd",
        version="2.6",
        data_page_version="2.0",
        row_group_size=max(batch.num_rows, 1),
        store_schema=True,
    )
    return sink.getvalue()


def _lines(envelopes: Envelopes) -> bytes:
    schema, batch = envelopes
    keys = [column.name for column, _ in schema.key_columns()]
    texts = {c.name: _TEXTS[c.type.kind] for c in schema.columns if c.type.kind in _TEXTS}
    names = [c.name for c in schema.columns]
    with_before = BEFORE in batch.schema.names
    lines = []
    for row in batch.to_pylist():
        after = _readable({name: row[name] for name in names}, texts)
        line: dict[str, object] = {
            "table": schema.name,
            "op": row[OP],
            "commit_ts": row[COMMIT_TS],
            "version": row[VERSION],
            "key": {name: after[name] for name in keys},
            "after": None if row[OP] == "delete" else after,
        }
        if with_before:
            line["before"] = None if row[BEFORE] is None else _readable(row[BEFORE], texts)
        lines.append(_json.encode(line) + b"\n")
    return b"".join(lines)


def _readable(row: dict[str, Any], texts: dict[str, Callable[[Any], object]]) -> dict[str, Any]:
    for name, text in texts.items():
        if row[name] is not None:
            row[name] = text(row[name])
    return row


def _uuid(value: bytes) -> str:
    text = value.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _float(value: float) -> float | str:
    """A number where JSON has one; else its name."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


_TEXTS: dict[ColumnKind, Callable[[Any], object]] = {ColumnKind.UUID: _uuid, ColumnKind.FLOAT: _float}
"""Kinds whose values are not written as JSON writes what Python has for them."""
