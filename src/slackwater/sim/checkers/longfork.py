"""Long fork: two readers see two writes in opposite orders (I-18).

Keys come in groups; each key is written once, by a transaction of its own. Readers read a whole group:

    reader 1    x = 1    y = nothing         x was first
    reader 2    x = nothing    y = 1         y was first          both cannot be right

Parallel snapshot isolation allows that; snapshot isolation and serializability do not. If there is one order of the
writes, the sets that readers saw are beginnings of that order, so of any two one contains the other. Sorted by size, it
is enough to compare neighbours: containment is transitive. Each distinct set is one integer with a bit per key.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from slackwater.sim.checkers.claims import name
from slackwater.sim.checkers.history import OperationOutcome
from slackwater.sim.checkers.violation import Violation, show

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from slackwater.sim.checkers.history import TxnOp


def check_long_fork(txns: Iterable[TxnOp], *, groups: Sequence[Sequence[bytes]]) -> list[Violation]:
    """Judge every acknowledged transaction that read a whole group; keys are written at most once and never deleted."""
    judges = [_ReadGroup(keys) for keys in groups]
    for txn in txns:
        if txn.outcome is OperationOutcome.OK:
            seen = txn.seen()
            for judge in judges:
                judge.add(txn, seen)
    return [violation for judge in judges for violation in judge.violations()]


class _ReadGroup:
    """What readers saw of one group."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = list(keys)
        self._wanted = set(keys)
        self._first, self._last = min(keys), max(keys)
        self._readers: dict[int, TxnOp] = {}  # set of keys seen → the first reader that saw it
        self._values: dict[bytes, tuple[bytes, TxnOp]] = {}
        self._changed: list[Violation] = []

    def add(self, txn: TxnOp, seen: dict[bytes, bytes | None]) -> None:
        """Note a reader, if it read the whole group."""
        scanned = any(scan.after == 0 and scan.start <= self._first and self._last < scan.end for scan in txn.scans)
        if not scanned and not seen.keys() >= self._wanted:
            return
        bits = 0
        for place, key in enumerate(self._keys):
            value = seen.get(key)
            if value is not None:
                bits |= 1 << place
                self._same(key, value, txn)
        self._readers.setdefault(bits, txn)

    def _same(self, key: bytes, value: bytes, txn: TxnOp) -> None:
        held, other = self._values.setdefault(key, (value, txn))
        if held != value and not self._changed:
            saw = f"{name(other)} saw {show(held)} and {name(txn)} saw {show(value)}"
            text = f"key {show(key)} is written once, but {saw}."
            self._changed.append(Violation("I-18", "value-changed", text, {"key": key, "readers": [other, txn]}))

    def violations(self) -> list[Violation]:
        """At most one fork and one changed value per group."""
        for small, large in pairwise(sorted(self._readers, key=lambda bits: (bits.bit_count(), bits))):
            if small & ~large:
                return [*self._changed, self._fork(small, large)]
        return self._changed

    def _fork(self, one: int, other: int) -> Violation:
        a, b = self._readers[one], self._readers[other]
        only_a, only_b = self._names(one & ~other), self._names(other & ~one)
        text = (
            f"{name(a)} saw the write of {', '.join(map(show, only_a))} but not of {', '.join(map(show, only_b))}; "
            f"{name(b)} saw the opposite: no one order of the writes explains both (long fork)."
        )
        return Violation("I-18", "long-fork", text, {"readers": [a, b], "only_first": only_a, "only_second": only_b})

    def _names(self, bits: int) -> list[bytes]:
        return [key for place, key in enumerate(self._keys) if bits >> place & 1]
