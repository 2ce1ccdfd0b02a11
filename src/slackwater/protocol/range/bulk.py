"""Bulk reads: what is asked of a range when columns are wanted, and what comes back.

    ScanArrow     the rows of a span at the header's timestamp
    ExportArrow   what happened to the rows of a span in (after, upto]: one row per change
    Blocks        record batches as Arrow IPC messages, and the key to go on from

Who asks knows the table; a range does not. So the request brings a `ScanPlan`: every schema version that may have written
a value, the version to read as, the columns wanted, and predicates to push into the decode. It travels as *bytes*: encoded
once by who plans the read, sent with every piece of it, and used by replicas as the name of the decoder they keep.

    plan ──encode──► bytes ──► ScanArrow ──► r1 ─► Blocks      one plan, many ranges and chunks
                                        └──► r2 ─► Blocks

Blocks are *encapsulated messages* without their schema: `bulk_arrow.plan_schema(plan)` is the schema of all of them. The
schema message, then the messages of any number of `Blocks`, then the end mark, are a valid IPC stream; so whoever passes
them on neither decodes nor copies. The views point into the frame they came in, or into Arrow's own memory.

Limits (`Header.max_keys`, `max_bytes`) are soft: they count stored rows and bytes before predicates, and cut between blocks.
A batch without limits gets `BULK_BYTES_DEFAULT`. An answer with `resume` continues there, at the same timestamp.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import msgspec

from slackwater.clock.timestamp import Timestamp
from slackwater.errors import DecodeError, UsageError
from slackwater.model.predicates import Predicate
from slackwater.model.schema import TableSchema

BULK_BYTES_DEFAULT = 4 << 20
"""Stored bytes one answer covers when the batch sets no limit."""
BULK_BYTES_MAX = 8 << 20
"""Stored bytes one answer covers at most: it has to fit an RPC frame."""
PLAN_BYTES_MAX = 1 << 20

_INT64 = range(-(1 << 63), 1 << 64)
_DECIMAL, _DATETIME, _DATE, _INTEGER = range(1, 5)


class _BulkMessage(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """As in `requests`, whose unions these are part of."""


class ScanArrow(_BulkMessage, frozen=True):
    """The rows of `[start, end)` as Arrow; not inside a transaction, whose own writes would be missing."""

    start: bytes
    end: bytes
    plan: bytes


class ExportArrow(_BulkMessage, frozen=True):
    """Every change in `[start, end)` with after < ts <= upto as Arrow, in key order, oldest first within a key.

    Each row says `_change_type`: insert, update_postimage or delete, by whether a row was there before. A delete has its
    primary key only; with `before`, it has the row that was deleted, and each update is preceded by its update_preimage.
    """

    start: bytes
    end: bytes
    after: Timestamp
    upto: Timestamp
    plan: bytes
    before: bool = False


class Blocks(_BulkMessage, frozen=True):
    """Record batches as encapsulated Arrow IPC messages; `resume` is where to go on when a limit ended the read early."""

    blocks: list[memoryview]
    rows: int = 0
    """In the blocks."""
    rows_read: int = 0
    bytes_read: int = 0
    """Of the store, before predicates: what limits count."""
    resume: bytes | None = None


BULK = (ScanArrow, ExportArrow)


class ScanPlan(msgspec.Struct, frozen=True):
    """How values become columns."""

    schemas: tuple[TableSchema, ...]
    """Every version that may have written a value of the table."""
    read_version: int
    """The version whose columns are wanted."""
    columns: tuple[str, ...] | None = None
    """In this order; None: all."""
    predicates: tuple[Predicate, ...] = ()

    def schema(self) -> TableSchema:
        """The schema to read as."""
        for schema in self.schemas:
            if schema.version == self.read_version:
                return schema
        raise UsageError("the plan does not hold the schema version it reads as", version=self.read_version)

    def encode(self) -> bytes:
        """For requests."""
        predicates = tuple(msgspec.structs.replace(p, literal=_packed(p.literal)) for p in self.predicates)
        data = _encoder.encode(msgspec.structs.replace(self, predicates=predicates))
        if len(data) > PLAN_BYTES_MAX:
            raise UsageError("the plan is too large; shorten its `in` lists", size=len(data), limit=PLAN_BYTES_MAX)
        return data


def decode_plan(data: bytes) -> ScanPlan:
    """A plan out of a request; anything else is a `DecodeError`."""
    if len(data) > PLAN_BYTES_MAX:
        raise DecodeError("a scan plan is too large", size=len(data), limit=PLAN_BYTES_MAX)
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UsageError, ValueError, ArithmeticError, RecursionError) as error:
        raise DecodeError(f"these bytes are not a scan plan: {error}") from None


def _packed(literal: object) -> object:
    """A literal in a form that msgpack carries without loss."""
    match literal:
        case list() | tuple() | set() | frozenset():
            return [_packed(item) for item in literal]
        case bool() | None | float() | str() | bytes():
            return literal
        case int():
            return literal if literal in _INT64 else _ext(_INTEGER, str(literal))
        case Decimal():
            return _ext(_DECIMAL, str(literal))
        case dt.datetime():
            return _ext(_DATETIME, literal.isoformat())
        case dt.date():
            return _ext(_DATE, literal.isoformat())
    raw = getattr(literal, "bytes", None)  # a UUID, whose module this layer does not import
    if isinstance(raw, bytes):
        return raw
    raise UsageError("a predicate compares with a plain Python value", got=type(literal).__name__)


def _ext(code: int, text: str) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(code, text.encode())


def _unpacked(code: int, data: memoryview) -> object:
    text = str(data, "utf-8")
    if code == _INTEGER:
        return int(text)
    if code == _DECIMAL:
        return Decimal(text)
    if code == _DATETIME:
        return dt.datetime.fromisoformat(text)
    if code == _DATE:
        return dt.date.fromisoformat(text)
    raise ValueError(f"unknown kind of literal {code}")


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ScanPlan, ext_hook=_unpacked)
