"""The ring: a permutation that stays one cycle (I-18; after FoundationDB's Cycle workload).

Key i holds the key that follows it. At the start the keys form one ring; each transaction picks a place and exchanges
two neighbours by rewriting three pointers:

    before   a → b → c → d            after   a → c → b → d

Done serializably, the pointers are one ring of all keys for ever. Two transactions that overlap without noticing each
other break it: the ring falls into several, or grows a tail. Every transaction that saw all keys is judged.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from slackwater.sim.checkers.claims import name
from slackwater.sim.checkers.history import OperationOutcome
from slackwater.sim.checkers.violation import Violation, show

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from slackwater.sim.checkers.history import TxnOp, Value

SHOWN_MAX = 8
"""Keys named in the text."""


def check_ring(txns: Iterable[TxnOp], *, keys: Sequence[bytes]) -> list[Violation]:
    """Judge every acknowledged transaction that read all `keys`, each of which must hold the key after it."""
    found = []
    first, last = min(keys), max(keys)
    for txn in txns:
        if txn.outcome is not OperationOutcome.OK:
            continue
        seen = txn.seen()
        scanned = any(scan.after == 0 and scan.start <= first and last < scan.end for scan in txn.scans)
        if scanned or seen.keys() >= set(keys):
            following = {key: seen.get(key) for key in keys}
            problem = _problem(following)
            if problem is not None:
                text = f"{name(txn)} read the whole ring of {len(keys)} keys and {problem[1]}."
                found.append(Violation("I-18", problem[0], text, {"txn": txn, "ring": list(following.items())}))
    return found


def _problem(following: Mapping[bytes, Value]) -> tuple[str, str] | None:
    astray = [key for key, after in following.items() if after is None or after not in following]
    if astray:
        return "ring-broken", f"the pointer leads nowhere at {_names(astray)}"
    pointed = Counter(following.values())
    twice = [key for key in following if pointed[key] > 1]
    if twice:
        lost = [key for key in following if not pointed[key]]
        return "ring-tail", f"several keys point at {_names(twice)} and none at {_names(lost)}: an exchange was lost"
    start = next(iter(following))
    here: Value = start
    length = 0
    while here is not None and (length == 0 or here != start):
        here = following[here]
        length += 1
    if length != len(following):
        return "ring-split", f"from {show(start)} came back after {length} steps: the ring has fallen apart"
    return None


def _names(keys: list[bytes]) -> str:
    return ", ".join(show(key) for key in keys[:SHOWN_MAX]) + (" …" if len(keys) > SHOWN_MAX else "")
