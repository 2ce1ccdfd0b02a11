"""Which ranges have fewer replicas than asked, and which have none that answers: for `init`, which waits, and `status`.

A replica counts if its node answered and it is not quarantined. A span without one shows as a gap between
the spans of the others: its nodes are gone, or do not answer now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.codec.layout import KEY_MAX, KEY_MIN, show_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.model.ids import RangeId
    from slackwater.protocol.node.services import ReplicaStatus


class RangeReplicas(msgspec.Struct, frozen=True):
    """How many replicas of a range answered, of how many that are asked for."""

    range_id: int
    start: bytes
    end: bytes
    answered: int
    wanted: int

    def __str__(self) -> str:
        return f"r{self.range_id} {self.answered} of {self.wanted}"


def count_replicas(found: Iterable[ReplicaStatus]) -> list[RangeReplicas]:
    """One entry per range, by id. Bounds and wishes are those of its most advanced replica."""
    by_range: dict[RangeId, list[ReplicaStatus]] = {}
    for status in found:
        by_range.setdefault(status.descriptor.range_id, []).append(status)
    counted = []
    for range_id, copies in sorted(by_range.items()):
        best = max(copies, key=lambda copy: copy.position)
        well = sum(1 for copy in copies if not copy.failure)
        counted.append(RangeReplicas(range_id, best.descriptor.start, best.descriptor.end, well, best.wanted))
    return counted


def gaps(counted: Iterable[RangeReplicas]) -> list[tuple[bytes, bytes]]:
    """Spans of which no replica that answered holds anything."""
    missing, upto = [], KEY_MIN
    for one in sorted((c for c in counted if c.answered), key=lambda c: c.start):
        if one.start > upto:
            missing.append((upto, one.start))
        upto = max(upto, one.end)
    return [*missing, (upto, KEY_MAX)] if upto < KEY_MAX else missing


def warnings(counted: list[RangeReplicas], *, nodes: int) -> list[str]:
    """What an operator should know before he stops a node. `nodes` is how many answered."""
    said = []
    short = [one for one in counted if one.answered < one.wanted]
    if short:
        listed = ", ".join(map(str, short[:RANGES_LISTED_MAX])) + (", …" if len(short) > RANGES_LISTED_MAX else "")
        least = min(one.answered for one in short)
        most = max(one.wanted for one in short)
        why = f"only {nodes} of the {most} nodes this takes answer" if nodes < most else "more are being made"
        risk = "; do not stop the node that has the only one" if least <= 1 < nodes else ""
        said.append(f"{len(short)} ranges have fewer replicas than asked ({listed}): {why}{risk}")
    if counted:
        said += [
            f"no node that answers has a replica of [{show_key(start)}, {show_key(end)}): nothing there can be read or written "
            "until one that has it is started again, or another node has rebuilt it from the log, which begins when all that "
            "have it have been dead for liveness.dead_after"
            for start, end in gaps(counted)
        ]
    return said


RANGES_LISTED_MAX = 8
