"""The column types: what a value may be, and how wide it is when stored.

    kind          Python value                   stored as                      Arrow
    int2/4/int    int                            2/4/8 bytes little-endian      int16/int32/int64
    bool          bool                           1 byte, 0 or 1                 bool
    float         float                          IEEE 754 double                float64
    decimal(p,s)  decimal.Decimal                16-byte unscaled integer       decimal128(p, s)
    string        str                            UTF-8, in the tail             string
    json          str (JSON text)                UTF-8, in the tail             string
    bytes         bytes                          in the tail                    binary
    date          datetime.date                  4 bytes, days since 1970       date32
    timestamp     datetime.datetime, naive       8 bytes, µs since 1970         timestamp[us]
    timestamptz   datetime.datetime, aware       8 bytes, µs since 1970 UTC     timestamp[us, tz=UTC]
    uuid          bytes, 16 of them              16 bytes                       fixed_size_binary(16)

A type is either *fixed* (every value takes `width` bytes at a known place in the row) or *variable* (the value lies in
the row's tail). The Arrow types are exactly those Spark demands, so a scanned batch needs no cast on its way there.
JSON is text here; whether it parses is checked where it is accepted.
"""

from __future__ import annotations

import enum
import re

import msgspec

from slackwater.errors import UsageError
from slackwater.model.ids import Whole

DECIMAL_PRECISION_MAX = 38


class ColumnKind(enum.Enum):
    """What a column holds."""

    INT2 = "int2"
    INT4 = "int4"
    INT = "int"
    BOOL = "bool"
    FLOAT = "float"
    DECIMAL = "decimal"
    STRING = "string"
    JSON = "json"
    BYTES = "bytes"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    UUID = "uuid"


INTEGERS = {ColumnKind.INT2: 16, ColumnKind.INT4: 32, ColumnKind.INT: 64}
"""Integer kinds and their bits."""
TEXTS = frozenset({ColumnKind.STRING, ColumnKind.JSON})
"""Kinds stored as UTF-8."""
VARIABLE = frozenset({ColumnKind.STRING, ColumnKind.JSON, ColumnKind.BYTES})
"""Kinds that live in the tail of a row."""
INSTANTS = frozenset({ColumnKind.TIMESTAMP, ColumnKind.TIMESTAMPTZ})
"""Kinds stored as microseconds since 1970."""

_WIDTHS = {
    ColumnKind.INT2: 2,
    ColumnKind.INT4: 4,
    ColumnKind.INT: 8,
    ColumnKind.BOOL: 1,
    ColumnKind.FLOAT: 8,
    ColumnKind.DECIMAL: 16,
    ColumnKind.DATE: 4,
    ColumnKind.TIMESTAMP: 8,
    ColumnKind.TIMESTAMPTZ: 8,
    ColumnKind.UUID: 16,
}
_TEXT = re.compile(r"([a-z0-9]+)(?:\((\d+),\s*(-?\d+)\))?")


class ColumnType(msgspec.Struct, frozen=True):
    """A kind, with precision and scale when it is a decimal."""

    kind: ColumnKind
    precision: Whole = 0
    scale: Whole = 0

    def __post_init__(self) -> None:
        if self.kind is ColumnKind.DECIMAL:
            if not 1 <= self.precision <= DECIMAL_PRECISION_MAX:
                raise UsageError(
                    f"a decimal needs a precision from 1 to {DECIMAL_PRECISION_MAX}", precision=self.precision
                )
            if not 0 <= self.scale <= self.precision:
                raise UsageError("a decimal's scale must be from 0 to its precision", scale=self.scale)
        elif self.precision or self.scale:
            raise UsageError(f"only decimal has precision and scale; write plain {self.kind.value}")

    @property
    def variable(self) -> bool:
        """Whether values lie in the row's tail."""
        return self.kind in VARIABLE

    @property
    def width(self) -> int:
        """Bytes in the fixed section; 0 for a variable type."""
        return _WIDTHS.get(self.kind, 0)

    def __str__(self) -> str:
        if self.kind is ColumnKind.DECIMAL:
            return f"decimal({self.precision},{self.scale})"
        return str(self.kind.value)


def parse_type(text: str) -> ColumnType:
    """Read what `str(ColumnType)` prints, such as `int` or `decimal(10,2)`."""
    match = _TEXT.fullmatch(text.strip().lower())
    names = {k.value: k for k in ColumnKind}
    if not match or match.group(1) not in names:
        raise UsageError(f"unknown type {text!r}; known types: {', '.join(names)}")
    kind = names[match.group(1)]
    if match.group(2) is None:
        return ColumnType(kind)
    return ColumnType(kind, int(match.group(2)), int(match.group(3)))


def decimal_type(precision: int, scale: int) -> ColumnType:
    """`decimal(precision, scale)`."""
    return ColumnType(ColumnKind.DECIMAL, precision, scale)


INT2 = ColumnType(ColumnKind.INT2)
INT4 = ColumnType(ColumnKind.INT4)
INT = ColumnType(ColumnKind.INT)
BOOL = ColumnType(ColumnKind.BOOL)
FLOAT = ColumnType(ColumnKind.FLOAT)
STRING = ColumnType(ColumnKind.STRING)
JSON = ColumnType(ColumnKind.JSON)
BYTES = ColumnType(ColumnKind.BYTES)
DATE = ColumnType(ColumnKind.DATE)
TIMESTAMP = ColumnType(ColumnKind.TIMESTAMP)
TIMESTAMPTZ = ColumnType(ColumnKind.TIMESTAMPTZ)
UUID = ColumnType(ColumnKind.UUID)
