"""How a bulk read decodes what it finds: a plan that a reader makes once and sends with every piece of the read.

    schemas        every version that may have written a value of the table
    read_version   the version whose columns are wanted; `columns` chooses among them
    predicates     conditions that rows must meet, pushed into the decode

A plan travels as bytes, and those bytes are its name: replicas keep a decoder for each plan that they have met.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from functools import lru_cache

import msgspec

from slackwater.errors import DecodeError, UsageError
from slackwater.model.predicates import Predicate
from slackwater.model.schema import TableSchema

PLAN_BYTES_MAX = 1 << 20
PLANS_KEPT_MAX = 64
"""Decoded plans that a node keeps: one read sends the same plan with every page."""

_INT64 = range(-(1 << 63), 1 << 64)
_DECIMAL, _DATETIME, _DATE, _INTEGER = range(1, 5)


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


@lru_cache(maxsize=PLANS_KEPT_MAX)
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
