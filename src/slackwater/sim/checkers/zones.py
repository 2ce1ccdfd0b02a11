"""Linearizability of a register whose values are all different, decided without a search (Gibbons and Korach).

Where every value is put by one operation only, each answer names the write it saw. The write of a value and all that
observed it stand together in every order, as a *cluster*; a swap ties the cluster of what it found to the cluster of what it
put, and so on along a chain. Let f be the first return and s the last invocation in a chain of clusters:

    f < s   the chain is under way from f to s, and nothing else can come between            |f ─── s|   forward zone
    s <= f  all its operations overlap in [s, f]: it can take place at any instant there     |s ┄┄┄ f|   backward zone

There is an order exactly if, within each chain, no operation is over before one that must come first has begun; no two
forward zones overlap; and no backward zone lies inside a forward one. Sorting decides it, however many operations are in
flight at once: `linearizable` turns here when its own search, which knows no such limit on values, gives up.

An operation of unknown outcome whose value was observed did happen, at any time after its invocation; one whose value
was not observed need not have happened.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from slackwater.sim.checkers.history import OperationOutcome, OpKind, RegisterOp, Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_NEVER_NS = 1 << 62
_BEFORE_ALL_NS = -1


class RepeatedValue(Exception):
    """A value is put by two operations: answers do not say whose they saw."""


class _Chain:
    """Clusters that must follow each other directly: their operations in the order in which they take effect."""

    def __init__(self, clusters: Sequence[Sequence[tuple[int, int, RegisterOp | None]]]) -> None:
        self._clusters = clusters
        flat = [op for cluster in clusters for op in cluster]
        self.first_return = min(returned for _, returned, _ in flat)
        self.last_invocation = max(invoked for invoked, _, _ in flat)
        self.forward = self.first_return < self.last_invocation
        self.ops = [op for _, _, op in flat if op is not None]

    def disordered(self) -> RegisterOp | None:
        """An operation that was over before one that must take effect earlier had begun.

        The write of a value comes before all that observe it, and those before what follows in the chain.
        """
        begun = _BEFORE_ALL_NS
        for cluster in self._clusters:
            (writer_invoked, writer_returned, writer), *observers = cluster
            begun = max(begun, writer_invoked)
            if writer_returned < begun:
                return writer or self.ops[0]
            for _, returned, op in observers:
                if returned < begun:
                    return op
            begun = max([begun, *(invoked for invoked, _, _ in observers)])
        return None


def contradiction(ops: Iterable[RegisterOp], start: Value) -> list[RegisterOp]:
    """Operations of one key that no order explains together; empty when there is an order.

    Values that were never put are the caller's business. Raises `RepeatedValue` where values are not unique.
    """
    happened = _happened(list(ops))
    puts = Counter(op.value for op in happened if _puts(op))
    if start in puts or any(count > 1 for count in puts.values()):
        raise RepeatedValue
    swapped_from: dict[Value, RegisterOp] = {}
    for op in happened:
        if op.kind is OpKind.CAS and _puts(op):
            if op.expected in swapped_from:
                return [swapped_from[op.expected], op]  # both found the same value, and each replaced it
            swapped_from[op.expected] = op
    chains = _chains(happened, start, swapped_from)
    if sum(len(chain.ops) for chain in chains) < len(happened):
        return [op for op in happened if not any(op in chain.ops for chain in chains)]  # swaps that wait for each other
    for chain in chains:
        if (culprit := chain.disordered()) is not None:
            return [culprit, *(op for op in chain.ops if op is not culprit)]
    return _overlap(chains)


def _happened(ops: list[RegisterOp]) -> list[RegisterOp]:
    """Without what failed, and without what is unknown and left no trace."""
    kept = [
        op for op in ops if op.outcome is OperationOutcome.OK or (op.outcome is OperationOutcome.UNKNOWN and _puts(op))
    ]
    while True:
        seen = {op.value for op in kept if not _puts(op)}
        seen |= {op.expected for op in kept if op.kind is OpKind.CAS and _puts(op)}
        traced = [op for op in kept if op.outcome is OperationOutcome.OK or op.value in seen]
        if len(traced) == len(kept):
            return kept
        kept = traced


def _puts(op: RegisterOp) -> bool:
    return op.kind is not OpKind.READ and op.swapped


def _span(op: RegisterOp) -> tuple[int, int, RegisterOp | None]:
    return op.invoked_ns, _NEVER_NS if op.returned_ns is None else op.returned_ns, op


def _chains(happened: list[RegisterOp], start: Value, swapped_from: dict[Value, RegisterOp]) -> list[_Chain]:
    """Clusters by value, joined where one was swapped for the other; those that wait for each other in a ring are left out."""
    clusters: dict[Value, list[tuple[int, int, RegisterOp | None]]] = {start: [(_BEFORE_ALL_NS, _BEFORE_ALL_NS, None)]}
    for op in happened:
        if _puts(op):
            clusters[op.value] = [_span(op)]
    for op in happened:
        if not _puts(op):
            clusters[op.value].append(_span(op))
    heads = [start, *(op.value for op in happened if op.kind is OpKind.WRITE)]
    chains = []
    for value in heads:
        chain = [clusters[value]]
        while (swap := swapped_from.get(value)) is not None:
            value = swap.value  # along the chain
            chain.append(clusters[value])
        chains.append(_Chain(chain))
    return chains


def _overlap(chains: list[_Chain]) -> list[RegisterOp]:
    forward = sorted((c for c in chains if c.forward), key=lambda c: (c.first_return, c.last_invocation))
    for one, other in pairwise(forward):
        if other.first_return < one.last_invocation:
            return [*one.ops, *other.ops]
    for chain in chains:
        for around in forward if not chain.forward else ():
            if around.first_return < chain.last_invocation and chain.first_return < around.last_invocation:
                return [*around.ops, *chain.ops]
    return []
