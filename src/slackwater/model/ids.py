"""Identifiers, and the bounded integers they are made of.

    NodeId      one node of a cluster; 0: no node
    RangeId     one range; an id is given out once and never again; 0: no range
    Position    a place in the log of a range
    Natural     any other count, index or identifier of up to 63 bits
    Small       one of up to 31 bits
    TableId     one table, above 0; where 0 may stand for none, it is `TableId | Literal[0]`
    Whole       any integer of 64 bits with its sign, where the one that is asked says better what it may be

Bounds are part of the types: a message with any other number in their place does not decode.
"""

from __future__ import annotations

from typing import Annotated, NewType

import msgspec

Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""An integer of at most 63 bits: identifiers, counters, positions."""

Small = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
"""An integer of at most 31 bits: what is written in four bytes or counted in memory."""

TableId = Annotated[int, msgspec.Meta(ge=1, le=(1 << 31) - 1)]
"""A table: its id is a part of keys, in four bytes."""

Whole = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""An integer that the one that is asked checks by itself, to say what it may be."""

NodeId = NewType("NodeId", Small)
RangeId = NewType("RangeId", Natural)
Position = NewType("Position", Natural)
"""A place in an ordered log. Positions increase; gaps are fine; 0 is before everything."""
