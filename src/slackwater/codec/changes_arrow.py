"""Changes of rows as record batches: the columns of the table, and what happened to them when.

    values   a1   b2   -    c3         of each row: the new value, the old one (pre-image), or none (a deletion)
    kinds    ins  upd  del  ins
                        └── its primary key is all there is: decoded from the key, put into the gap by mask

Values of any schema version come out as the columns of the version that the plan reads as. No Python object per row is
made: values go through `rows_arrow.BlockDecoder` as one block, and gaps are a `take` with NULL places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.compute as pac

from slackwater.clock.timestamp import LOGICAL_BITS
from slackwater.codec.bulk_arrow import change_schema, plan_columns
from slackwater.codec.key_columns import key_columns
from slackwater.codec.rows_arrow import BlockDecoder
from slackwater.errors import UsageError

if TYPE_CHECKING:
    from slackwater.model.scan_plan import ScanPlan

    Array = np.ndarray[Any, Any]

pa: Any = pyarrow
pc: Any = pac

CHANGE_TYPES = ("insert", "update_preimage", "update_postimage", "delete")
INSERT, PREIMAGE, POSTIMAGE, DELETE = range(4)


class ChangeRows(NamedTuple):
    """Some changes in order; row i has `values[i]`, empty where only the key is known."""

    values: list[bytes]
    kinds: Array
    timestamps: Array
    gone: list[bytes]
    """The keys of the rows without a value, in order."""


class ChangeDecoder:
    """Turns changes into record batches of one plan."""

    def __init__(self, plan: ScanPlan) -> None:
        if plan.predicates:
            raise UsageError("changes are read whole; filter them afterwards")
        self.schema = change_schema(plan)
        self._table = plan.schema()
        self._columns = plan_columns(plan)
        self._rows = BlockDecoder(
            self._table, {s.version: s for s in plan.schemas}, [column.name for column in self._columns]
        )

    def decode(self, changes: ChangeRows) -> Any:
        """One record batch."""
        arrays = self._values(changes) if changes.gone else self._rows.decode(changes.values).columns
        kinds = pa.array(CHANGE_TYPES).take(pa.array(changes.kinds))
        versions = pa.array(changes.timestamps, pa.int64())
        instants = pa.array(changes.timestamps >> LOGICAL_BITS, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
        return pa.RecordBatch.from_arrays([*arrays, kinds, versions, instants], schema=self.schema)

    def _values(self, changes: ChangeRows) -> list[Any]:
        """The columns, with gaps for rows that have no value but their key."""
        present = np.fromiter(map(len, changes.values), np.int64, len(changes.values)) > 0
        found = self._rows.decode([value for value in changes.values if value])
        places = pa.array(np.cumsum(present) - 1, pa.int64(), mask=~present)
        keys = key_columns(changes.gone, self._table)
        missing = pa.array(~present)
        arrays = []
        for column, array in zip(self._columns, found.columns, strict=True):
            spread = array.take(places)
            if column.name in keys:
                spread = pc.replace_with_mask(spread, missing, keys[column.name])
            arrays.append(spread)
        return arrays
