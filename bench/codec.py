"""The row codec: whole blocks against one row at a time.

Data: an 8-column row (3 integers, float, decimal, 2 strings, bool) and a 4-integer row, a block of rows of one version.

    decode      `BlockDecoder.decode` from a list of values, and `decode_buffer` from one buffer, to a RecordBatch
    the peer    a hand-written loop of one `struct.Struct.unpack_from` per row over the same bytes, strings decoded and
                decimals made, into a list of tuples; it checks nothing. That is the cheapest thing a per-row reader can
                do and is *less* work than ours, which checks everything and builds Arrow columns. A second figure lets
                the peer build the same Arrow arrays from its tuples.
    encode      `RowCodec.encode_batch` against `RowCodec.encode` per row
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow

from bench.harness import Figure, figure, interleaved
from slackwater.codec.arrow import arrow_schema
from slackwater.codec.rows import RowCodec
from slackwater.codec.rows_arrow import BlockDecoder
from slackwater.model import kinds
from slackwater.model.predicates import predicate
from slackwater.model.schema import Column, KeyColumn, TableSchema
from slackwater.model.system_tables import FIRST_USER_TABLE_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

pa: Any = pyarrow

MIXED = TableSchema(
    table_id=FIRST_USER_TABLE_ID,
    name="mixed",
    version=1,
    columns=(
        Column(1, "id", kinds.INT, nullable=False),
        Column(2, "customer", kinds.INT),
        Column(3, "quantity", kinds.INT),
        Column(4, "weight", kinds.FLOAT),
        Column(5, "price", kinds.decimal_type(12, 2)),
        Column(6, "name", kinds.STRING),
        Column(7, "note", kinds.STRING),
        Column(8, "paid", kinds.BOOL),
    ),
    primary_key=(KeyColumn(1),),
)
INTEGERS = TableSchema(
    table_id=8,
    name="integers",
    version=1,
    columns=tuple(Column(i, f"c{i}", kinds.INT, nullable=i > 1) for i in (1, 2, 3, 4)),
    primary_key=(KeyColumn(1),),
)


def run(*, quick: bool) -> Iterator[Figure]:
    """All figures of the codec."""
    size = 50_000 if quick else 200_000
    rounds = 3 if quick else 7
    for schema, rows, per_row in (
        (MIXED, mixed_rows(size), struct_mixed),
        (INTEGERS, integer_rows(size), struct_integers),
    ):
        yield from _decode_figures(schema, rows, per_row, rounds)
        yield from _encode_figures(schema, rows[: size // 4], rounds)


def mixed_rows(size: int) -> list[dict[str, object]]:
    """Rows with text of 8 to 31 characters."""
    return [
        {
            "id": i,
            "customer": i * 7919 % 100_003,
            "quantity": i % 90,
            "weight": i / 7,
            "price": Decimal(i * 37 % 10_000_000).scaleb(-2),
            "name": f"customer {i * 31 % 9973:05d}",
            "note": "x" * (8 + i % 24),
            "paid": i % 3 == 0,
        }
        for i in range(size)
    ]


def integer_rows(size: int) -> list[dict[str, object]]:
    """Rows of four integers."""
    return [{"c1": i, "c2": i * 3, "c3": -i, "c4": i % 10} for i in range(size)]


def struct_mixed(values: Sequence[bytes]) -> list[tuple[object, ...]]:
    """The per-row peer for the 8-column row."""
    codec = RowCodec(MIXED)
    unpack, width = codec.layout.struct.unpack_from, codec.layout.width
    scale = Decimal("0.01")
    rows: list[tuple[object, ...]] = []
    for value in values:
        _, _, _, a, b, c, weight, price, paid, end1, end2 = unpack(value)
        name = value[width : width + end1].decode()
        note = value[width + end1 : width + end2].decode()
        rows.append((a, b, c, weight, int.from_bytes(price, "little", signed=True) * scale, name, note, bool(paid)))
    return rows


def struct_integers(values: Sequence[bytes]) -> list[tuple[object, ...]]:
    """The per-row peer for the 4-integer row."""
    unpack = RowCodec(INTEGERS).layout.struct.unpack_from
    rows: list[tuple[object, ...]] = []
    for value in values:
        _, _, _, a, b, c, d = unpack(value)
        rows.append((a, b, c, d))
    return rows


def _decode_figures(
    schema: TableSchema,
    rows: list[dict[str, object]],
    per_row: Callable[[Sequence[bytes]], list[tuple[object, ...]]],
    rounds: int,
) -> Iterator[Figure]:
    codec = RowCodec(schema)
    values = codec.encode_batch(pa.RecordBatch.from_pylist(rows, schema=arrow_schema(schema)))[1]
    buffer = b"".join(values)
    offsets = np.concatenate([[0], np.cumsum([len(v) for v in values])]).astype(np.int64)
    whole = BlockDecoder(schema, {})
    first = schema.columns[0].name
    one = BlockDecoder(schema, {}, columns=[first])
    few = BlockDecoder(schema, {}, predicates=[predicate(first, "<", len(rows) // 100)])
    fields = arrow_schema(schema)

    def per_row_arrow() -> int:
        columns = zip(*per_row(values), strict=True)
        return int(
            pa.RecordBatch.from_arrays(
                [pa.array(c, f.type) for c, f in zip(columns, fields, strict=True)], schema=fields
            ).num_rows
        )

    assert [tuple(r.values()) for r in whole.decode(values[:100]).to_pylist()] == per_row(values[:100])
    found = interleaved(
        {
            "list": lambda: int(whole.decode(values).num_rows),
            "buffer": lambda: int(whole.decode_buffer(buffer, offsets).num_rows),
            "one column": lambda: int(one.decode_buffer(buffer, offsets).num_rows),
            "1 % of rows": lambda: few.decode_buffer(buffer, offsets).num_rows * 0 + len(values),
            "struct": lambda: len(per_row(values)),
            "struct to Arrow": per_row_arrow,
        },
        rounds=rounds,
    )
    peer = "struct per row, to tuples"
    for name, goal in (("list", 5.0), ("buffer", 5.0), ("one column", None), ("1 % of rows", None)):
        yield figure(
            "codec",
            f"decode {schema.name}: {name}",
            found[name],
            "rows/s",
            peer=peer,
            peer_value=found["struct"],
            goal=goal,
        )
    yield figure(
        "codec",
        f"decode {schema.name}: list, against per-row Arrow",
        found["list"],
        "rows/s",
        peer="struct per row, to the same Arrow batch",
        peer_value=found["struct to Arrow"],
        goal=5.0,
    )


def _encode_figures(schema: TableSchema, rows: list[dict[str, object]], rounds: int) -> Iterator[Figure]:
    codec = RowCodec(schema)
    batch = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(schema))
    found = interleaved(
        {
            "batch": lambda: len(codec.encode_batch(batch)[1]),
            "per row": lambda: len([codec.encode(r) for r in rows]),
        },
        rounds=rounds,
    )
    peer = "RowCodec.encode per row"
    yield figure("codec", f"encode {schema.name}", found["batch"], "rows/s", peer=peer, peer_value=found["per row"])
