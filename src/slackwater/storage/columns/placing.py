"""Where changed rows go among the rows of a batch: positions by one search in its sorted keys.

    keys of a batch      a b c d e                     at     where the key is, or would be
    changes, in order    b@31  d@30 (deleted)  f@33    there  whether a row has it
                         at 1  at 3            at 5
                         replaced [1]  removed [3]  inserted [5]

What was found out is kept with the changes (`delta.Bucket`), together with the rows as columns for each plan that asked for
them: the next read of the same changes sends them as they are.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
import pyarrow.compute as pac

from slackwater.codec.bulk_arrow import pack
from slackwater.codec.keys_arrow import binary_offsets
from slackwater.codec.patch_arrow import Places
from slackwater.errors import SegmentDamaged
from slackwater.model.patches import Patch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.storage.columns.reading import PlanReader

pa: Any = pyarrow
pc: Any = pac
KEY_BYTES_TOGETHER = 256
"""Keys up to this long are searched for together; longer ones one by one."""
PATCHES_MAX = 4
"""Plans for which the changed rows of one batch are kept as columns."""
PICKED_BYTES = 96
"""What is kept of one changed row beside its columns, about."""

Array = np.ndarray[Any, Any]


class Placed:
    """The visible changes of a batch, and where they go among its rows."""

    __slots__ = ("_at", "_order", "_picked", "_there", "live", "patches", "places", "written")

    def __init__(self, picked: Sequence[bytes], found: Sequence[bytes | None], at: Array, there: Array) -> None:
        """`picked`: stored keys, in order; `found`: their values, empty for a deletion."""
        assert len(picked) == len(found) == len(at) == len(there), "a place for every change"
        values = [value for value in found if value is not None]
        if len(values) < len(picked):
            raise SegmentDamaged("a version that was written is not there", versions=len(picked) - len(values))
        alive = np.fromiter(map(bool, values), bool, len(values))
        self._picked = picked
        self._at, self._there = at, there
        self.live = [value for value in values if value]
        """The values of rows that are there now, in key order."""
        self.written = [stored for stored, value in zip(picked, values, strict=True) if value]
        """Their stored keys."""
        places = at.astype(np.intp, copy=False)
        self.places = Places(places[there & ~alive], places[there & alive], places[alive & ~there])
        known = there[alive]
        self._order: Any = None
        if known.any() and not known.all():  # those that replace come first
            self._order = pa.array(np.concatenate([np.flatnonzero(known), np.flatnonzero(~known)]))
        self.patches: dict[PlanReader, Patch] = {}
        assert len(self.live) == len(self.places.replaced) + len(self.places.inserted), "a place for every row"

    def rows(self, before: int) -> int:
        """How many rows a batch of so many has with these changes."""
        assert before >= len(self.places.removed), "only rows that are there go"
        return before - len(self.places.removed) + len(self.places.inserted)

    def fresh(self, arrays: Sequence[Any]) -> list[Any]:
        """Columns of the live rows, in the order of their places."""
        assert all(len(array) == len(self.live) for array in arrays), "a value of every column for every live row"
        return list(arrays) if self._order is None else [pc.take(array, self._order) for array in arrays]

    def decoded(self, plan: PlanReader) -> list[Any]:
        """The live rows as the columns of a plan, in the order of their places."""
        return self.fresh(plan.decoder.decode(self.live).columns)

    def patch(self, plan: PlanReader) -> Patch:
        """These changes for a reader that merges them itself."""
        fresh = pa.RecordBatch.from_arrays(self.decoded(plan)[: plan.count], schema=plan.schema)
        assert not plan.count or fresh.num_rows == len(self.live), "a patch has a row for every place that it names"
        removed, replaced, inserted = (places.astype("<i4").tobytes() for places in self.places)
        return Patch(0, removed, replaced, inserted, pack(fresh))

    def known(self) -> dict[bytes, int]:
        """By key: its row, or where it would be, complemented."""
        places = np.where(self._there, self._at, ~self._at).tolist()
        return {stored[:-8]: place for stored, place in zip(self._picked, places, strict=True)}

    @property
    def size(self) -> int:
        """Bytes that it takes, about."""
        return PICKED_BYTES * len(self._picked)


def search(wanted: Sequence[bytes], keys: Any, known: dict[bytes, int]) -> tuple[Array, Array]:
    """For each wanted key, in order: the first row at or above it, and whether that has the same key.

    `keys` is called for the sorted keys when there is a key that is not `known`.
    """
    found = [known.get(key) for key in wanted] if known else [None] * len(wanted)
    missing = [number for number, place in enumerate(found) if place is None]
    if not missing:
        places = np.array(found, np.int64)
        return np.where(places >= 0, places, ~places), places >= 0
    at, there = _positions(keys(), [wanted[number] for number in missing])
    assert len(at) == len(there) == len(missing), "a place for every key"
    if len(missing) == len(wanted):
        return at, there
    places = np.array([0 if place is None else place for place in found], np.int64)
    places[missing] = np.where(there, at, ~at)
    return np.where(places >= 0, places, ~places), places >= 0


class Ordered:
    """An Arrow array of keys, for bisection."""

    def __init__(self, keys: Any) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, at: int) -> bytes:
        key: bytes = self._keys[at].as_py()
        return key


def _positions(keys: Any, wanted: Sequence[bytes]) -> tuple[Array, Array]:
    """For each wanted key: the first row at or above it, and whether that is of the same key."""
    longest = max(map(len, wanted))
    offsets = binary_offsets(keys)
    widths = np.diff(offsets)
    longest = max(longest, int(widths.max()))
    if longest > KEY_BYTES_TOGETHER:
        ordered = Ordered(keys)
        at = np.fromiter((bisect_left(ordered, key) for key in wanted), np.int64, len(wanted))
        same = [place < len(ordered) and ordered[place] == key for place, key in zip(at.tolist(), wanted, strict=True)]
        return at, np.array(same, bool)
    # Keys are prefix-free: padded to one length they keep their order, and stay different.
    if int(widths.min()) == longest:
        data = np.frombuffer(keys.buffers()[2], np.uint8, longest * len(keys), int(offsets[0]))
        held = data.view(f"S{longest}")
    else:
        held = np.array(keys.to_pylist(), f"S{longest}")
    looked = np.array(wanted, f"S{longest}")
    at = np.searchsorted(held, looked)
    inside = at < len(held)
    there = np.zeros(len(wanted), bool)
    there[inside] = held[at[inside]] == looked[inside]
    assert len(at) == len(there) == len(wanted), "a place for every key"
    return at, there
