"""Which nodes the others cannot reach: what each node misses, what a majority misses, and who is told.

Liveness says that a node can write to the log. It does not say that other nodes can talk to it: a node behind a broken switch
reads and writes the log, renews its record, keeps its leases and serves no client. So nodes also ask each other:

    every heartbeat   each node calls each other one (`node.reach`) and says, in request and answer alike,
                      misses    whom it has tried to call for a whole `liveness.duration` without success
                      cut_off   whom, by what it was told lately, a majority of the cluster misses

    n1 misses n3 ─┐
                  ├─► two of three miss n3 ─► n3 is told: in the answer to its own calls, where it can still call;
    n2 misses n3 ─┘                           through the log of range 1, where not even that is possible

A node that is told so gives its leases up by itself (`fitness.py`). They are not taken from it: others only ever end the epoch
of a node whose record has expired. What is not known is not missed: a node that has just begun to call, or cannot be asked,
says nothing against a node. Without a majority that hears each other no node is cut off, so neither a cluster of two nor one
that is torn to pieces gives anything up.

Pure: times come in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from slackwater.model.ids import NodeId

PEERS_MAX = 4096


class Statement(NamedTuple):
    """What a peer said lately."""

    at_ns: int
    misses: frozenset[NodeId]
    cut_off: frozenset[NodeId]


class Reach:
    """What one node knows of who reaches whom."""

    def __init__(self, own: NodeId) -> None:
        self._own = own
        self._tried_ns: dict[NodeId, int] = {}
        """Since when a node has been called in vain; absent: the last call succeeded."""
        self._said: dict[NodeId, Statement] = {}
        self._complaint: tuple[int, str] | None = None

    def called(self, node: NodeId, *, began_ns: int, answered: bool) -> None:
        """A call to a node ended."""
        if answered:
            self._tried_ns.pop(node, None)
        elif len(self._tried_ns) < PEERS_MAX:
            self._tried_ns.setdefault(node, began_ns)

    def told(self, by: NodeId, misses: Iterable[NodeId], cut_off: Iterable[NodeId], *, now_ns: int) -> None:
        """A peer says whom it misses, and whom a majority does."""
        if by in self._said or len(self._said) < PEERS_MAX:
            self._said[by] = Statement(now_ns, frozenset(misses), frozenset(cut_off))

    def complained(self, by: NodeId, missed_by: Collection[NodeId], *, now_ns: int) -> None:
        """A peer says through the log that these nodes miss this one."""
        self._complaint = (now_ns, f"n{by} says through the log that {_names(missed_by)} cannot reach it")

    def misses(self, *, now_ns: int, window_ns: int) -> list[NodeId]:
        """Nodes that this one has called in vain for a whole window."""
        return sorted(node for node, since_ns in self._tried_ns.items() if now_ns - since_ns >= window_ns)

    def missed_by(self, node: NodeId, *, now_ns: int, window_ns: int) -> list[NodeId]:
        """The nodes that miss a node, as far as was said lately."""
        mine = [self._own] if node in self.misses(now_ns=now_ns, window_ns=window_ns) else []
        theirs = [by for by, s in self._said.items() if now_ns - s.at_ns <= window_ns and node in s.misses]
        return sorted([*mine, *theirs])

    def cut_off(self, members: Collection[NodeId], *, now_ns: int, window_ns: int) -> list[NodeId]:
        """Members that a majority of all members misses."""
        return [
            node
            for node in sorted(members)
            if node != self._own and self._is_majority(node, members, now_ns=now_ns, window_ns=window_ns)
        ]

    def _is_majority(self, node: NodeId, members: Collection[NodeId], *, now_ns: int, window_ns: int) -> bool:
        voters = [by for by in self.missed_by(node, now_ns=now_ns, window_ns=window_ns) if by in members]
        return 2 * len(voters) > len(members)

    def why_cut_off(self, *, now_ns: int, window_ns: int) -> str:
        """The nodes that said lately that a majority misses this one; empty when none did."""
        said = [by for by, s in self._said.items() if now_ns - s.at_ns <= window_ns and self._own in s.cut_off]
        if said:
            return f"{_names(said)} {'says' if len(said) == 1 else 'say'} that a majority of the nodes cannot reach it"
        if self._complaint is not None and now_ns - self._complaint[0] <= window_ns:
            return self._complaint[1]
        return ""

    def forget(self, members: Collection[NodeId]) -> None:
        """Drop what is known of nodes that are no longer members."""
        for known in (self._tried_ns, self._said):
            for node in [n for n in known if n not in members]:
                del known[node]


def _names(nodes: Iterable[NodeId]) -> str:
    return ", ".join(f"n{node}" for node in sorted(nodes))
