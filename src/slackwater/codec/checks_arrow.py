"""Checks of whole columns that `values.py` makes value by value: what a date, an instant or a decimal may be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slackwater.errors import DecodeError
from slackwater.model.kinds import INSTANTS, ColumnKind
from slackwater.model.values import DAY_MAX, DAY_MIN, INSTANT_US_MAX, INSTANT_US_MIN

if TYPE_CHECKING:
    from slackwater.model.kinds import ColumnType


def check_range(values: np.ndarray[Any, Any], ctype: ColumnType) -> None:
    """Refuse a column (zero where NULL) that holds what its type cannot mean."""
    if not len(values):
        return
    if ctype.kind is ColumnKind.DATE:
        _check_between(values, DAY_MIN, DAY_MAX, "date is outside the years 1 to 9999")
    elif ctype.kind in INSTANTS:
        _check_between(values, INSTANT_US_MIN, INSTANT_US_MAX, "timestamp is outside the years 1 to 9999")
    elif ctype.kind is ColumnKind.DECIMAL:
        _check_decimals(values, ctype)


def _check_between(values: np.ndarray[Any, Any], low: int, high: int, problem: str) -> None:
    if int(values.min()) < low or int(values.max()) > high:
        raise DecodeError(problem)


def _check_decimals(values: np.ndarray[Any, Any], ctype: ColumnType) -> None:
    """-10^p < value < 10^p, on 128-bit integers as pairs of words."""
    words = np.ascontiguousarray(values).view("<u8").reshape(-1, 2)
    low, high = words[:, 0], words[:, 1].view("<i8")
    if ctype.precision <= 18 and bool((high == low.view("<i8") >> 63).all()):  # the usual case: all fit one word
        small = low.view("<i8")
        fits = -(10**ctype.precision) < int(small.min()) and int(small.max()) < 10**ctype.precision
    else:
        bound = 10**ctype.precision
        bound_high, bound_low = bound >> 64, np.uint64(bound & (1 << 64) - 1)
        least = -bound + 1
        least_high, least_low = least >> 64, np.uint64(least & (1 << 64) - 1)
        below = (high < bound_high) | ((high == bound_high) & (low < bound_low))
        above = (high > least_high) | ((high == least_high) & (low >= least_low))
        fits = bool((below & above).all())
    if not fits:
        raise DecodeError(f"value does not fit {ctype}")
