"""Conditions of checks on whole blocks of rows: the vectorized twin of `model.conditions:condition_holds`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from slackwater.codec.filters_arrow import bind
from slackwater.model.predicates import Op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.model.predicates import Predicate
    from slackwater.model.schema import TableSchema

_OF_NULLS = (Op.IS_NULL, Op.IS_NOT_NULL)


def violations(schema: TableSchema, condition: Sequence[Predicate], batch: Any) -> list[int]:
    """The numbers of the rows of a batch that make a condition false; a comparison with NULL is unknown, and passes."""
    bad = np.zeros(batch.num_rows, dtype=bool)
    for predicate in condition:
        column = batch.column(predicate.column)
        wrong = ~bind(predicate, schema.column(predicate.column))(column)
        if predicate.op not in _OF_NULLS and column.null_count:
            wrong &= np.asarray(column.is_valid())
        bad |= wrong
    found: list[int] = np.flatnonzero(bad).tolist()
    return found
