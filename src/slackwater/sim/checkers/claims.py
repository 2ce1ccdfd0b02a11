"""Finds the writer of each committed version: atomicity (I-20) and durability (I-03).

Every version in V must be *claimed* by exactly one transaction, and a transaction's claim is all of its writes at one
timestamp, or nothing:

    outcome     must hold                                                   otherwise
    ok          all its final writes are in V at one timestamp              lost-write (I-03), partial-commit (I-20),
                                                                            split-commit (I-18)
    failed      none of its writes is in V                                  failed-write-visible (I-20)
    unknown     one of the two                                              partial-commit (I-20)
    version     some transaction claims it, or it was loaded before         unclaimed-version (I-20)

How a transaction finds its versions, best evidence first: the commit timestamp it was told; the writer's ID when the
watcher tagged the version; the value. Values that only one transaction wrote to a key identify it; workloads should
write such values. Where several timestamps fit, all are kept as *possible* claims: such a transaction is judged
leniently. (Two transactions of unknown outcome told one timestamp and writing the same value to one key are matched
largest first, without search.)
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from slackwater.sim.checkers.history import OperationOutcome, TxnOp, Value
from slackwater.sim.checkers.violation import Violation, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.sim.checkers.history import ObservedVersion
    from slackwater.sim.checkers.versions import VersionIndex

Place = tuple[bytes, int]
"""A version: key and timestamp."""


class Claims:
    """Matches transactions with versions; `placed` says where each committed writer may have committed."""

    def __init__(self, txns: Sequence[TxnOp], index: VersionIndex) -> None:
        self._txns = txns
        self._index = index
        self.found: list[Violation] = []
        self.placed: dict[int, list[int]] = {}
        self.finals: list[dict[bytes, Value]] = [
            {write.key: write.value for write in txn.writes} if txn.writes else _NO_WRITES for txn in txns
        ]
        self._unique: set[tuple[bytes, Value]] = set()
        self._owner: dict[Place, int] = {}
        self._possible: set[Place] = set()
        self._known_ids = {txn.txn_id for txn in txns}

    def run(self) -> None:
        """Fill `placed` and `found`."""
        rest = []
        for at, txn in enumerate(self._txns):
            if self.finals[at] and not (txn.outcome is OperationOutcome.OK and self._claim_told(at, txn)):
                rest.append(at)
        if rest:
            self._unique = self._unique_values()
        # A transaction that can claim all of its writes does so before any is accused of having only some; those that must
        # be there go first, then the larger claims, which have fewer ways to be met.
        rest.sort(key=lambda at: (self._txns[at].outcome is OperationOutcome.UNKNOWN, -len(self.finals[at])))
        for at in [at for at in rest if not self._claim_inferred(at, self._txns[at])]:
            self._judge_unplaced(at, self._txns[at])
        self._unclaimed()

    def _unique_values(self) -> set[tuple[bytes, Value]]:
        """Pairs of key and value that only one transaction wrote and that were not loaded."""
        counts: Counter[tuple[bytes, Value]] = Counter()
        for final in self.finals:
            counts.update(final.items())
        for key, of_key in self._index.keys.items():
            for version in of_key.versions:
                if version.ts > self._index.loaded_upto:
                    break
                counts[(key, version.value)] += 1
        return {pair for pair, count in counts.items() if count == 1 and pair[1] is not None}

    def _fits(self, version: ObservedVersion | None, txn: TxnOp, value: Value) -> bool:
        return version is not None and version.value == value and version.txn_id in (None, txn.txn_id)

    def _claim_told(self, at: int, txn: TxnOp) -> bool:
        """An acknowledged transaction whose versions are all where it was told they are."""
        ts = txn.commit_ts
        if ts is None:
            return False
        places = []
        owner, index = self._owner, self._index
        for key, value in self.finals[at].items():
            place = (key, ts)
            if place in owner or not self._fits(index.of(key).exact(ts), txn, value):
                return False
            places.append(place)
        for place in places:
            owner[place] = at
        self.placed[at] = [ts]
        return True

    def _candidates(self, at: int, txn: TxnOp, key: bytes) -> list[int]:
        """Timestamps of versions of `key` that this transaction may have written."""
        value = self.finals[at][key]
        return [
            version.ts
            for version in self._index.of(key).versions
            if self._fits(version, txn, value)
            and (key, version.ts) not in self._owner
            and version.ts > self._index.loaded_upto
            and (version.txn_id is not None or txn.commit_ts in (None, version.ts) or (key, value) in self._unique)
        ]

    def _claim_inferred(self, at: int, txn: TxnOp) -> bool:
        """A transaction, not failed, all of whose writes are at one timestamp that fits."""
        if txn.outcome is OperationOutcome.FAILED:
            return False
        common = set.intersection(*(set(self._candidates(at, txn, key)) for key in self.finals[at]))
        if txn.commit_ts is not None:
            common &= {txn.commit_ts}
        if common:
            self._take(at, sorted(common))
        return bool(common)

    def _judge_unplaced(self, at: int, txn: TxnOp) -> None:
        candidates = {key: self._candidates(at, txn, key) for key in self.finals[at]}
        if txn.outcome is OperationOutcome.FAILED:
            self._judge_failed(at, txn, candidates)
        else:
            self._judge_incomplete(at, txn, candidates)

    def _take(self, at: int, times: list[int]) -> None:
        self.placed[at] = times
        for key in self.finals[at]:
            if len(times) == 1:
                self._owner[(key, times[0])] = at
            else:
                self._possible.update((key, ts) for ts in times)

    def _certain(self, at: int, candidates: dict[bytes, list[int]]) -> dict[bytes, list[int]]:
        """Of the candidates, those that no other transaction can have written."""
        sure = {}
        for key, times in candidates.items():
            unique = (key, self.finals[at][key]) in self._unique
            times = [ts for ts in times if unique or self._tagged(key, ts)]
            if times:
                sure[key] = times
        return sure

    def _tagged(self, key: bytes, ts: int) -> bool:
        version = self._index.of(key).exact(ts)
        return version is not None and version.txn_id is not None

    def _own(self, at: int, places: dict[bytes, list[int]]) -> None:
        """These versions are accounted for by a violation already; do not report them as unclaimed too."""
        self._owner.update({(key, ts): at for key, times in places.items() for ts in times})

    def _judge_failed(self, at: int, txn: TxnOp, candidates: dict[bytes, list[int]]) -> None:
        sure = self._certain(at, candidates)
        if not sure:
            return
        self._own(at, sure)
        text = (
            f"{name(txn)} was answered `failed`, yet its writes are committed: {_list(sure)}. A failed transaction "
            f"must leave nothing."
        )
        self._report("I-20", "failed-write-visible", text, txn, present=_facts(sure))

    def _judge_incomplete(self, at: int, txn: TxnOp, candidates: dict[bytes, list[int]]) -> None:
        """No single timestamp has all of its writes."""
        present = self._present(at, txn, self._certain(at, candidates))
        self._own(at, present)
        missing = sorted(self.finals[at].keys() - present.keys())
        facts = {"present": _facts(present), "missing": missing}
        if missing and txn.outcome is OperationOutcome.OK:
            text = (
                f"{name(txn)} was acknowledged{_told(txn)}, but V has no version of its writes to "
                f"{', '.join(show(key) for key in missing)}: an acknowledged write is lost."
            )
            self._report("I-03", "lost-write", text, txn, **facts)
        if missing and present:
            text = (
                f"{name(txn)} ({txn.outcome.value}) took effect in part: present {_list(present)}; missing "
                f"{', '.join(show(key) for key in missing)}."
            )
            self._report("I-20", "partial-commit", text, txn, **facts)
        if present and not missing:
            self._split(txn, present)

    def _present(self, at: int, txn: TxnOp, sure: dict[bytes, list[int]]) -> dict[bytes, list[int]]:
        """Which writes are there: those at the commit timestamp it was told, and the certain ones."""
        if txn.commit_ts is None:
            return sure
        there = dict(sure)
        for key, value in self.finals[at].items():
            version = self._index.of(key).exact(txn.commit_ts)
            if key not in there and self._fits(version, txn, value) and (key, txn.commit_ts) not in self._owner:
                there[key] = [txn.commit_ts]
        return there

    def _split(self, txn: TxnOp, present: dict[bytes, list[int]]) -> None:
        text = (
            f"the writes of {name(txn)}{_told(txn)} are all committed, but not at one timestamp it could have: "
            f"{_list(present)}. A transaction commits at one timestamp."
        )
        self._report("I-18", "split-commit", text, txn, present=_facts(present))

    def _unclaimed(self) -> None:
        if len(self._owner) == sum(len(of_key.versions) for of_key in self._index.keys.values()):
            return  # only versions can be owned, so all of them are
        for key, of_key in self._index.keys.items():
            for version in of_key.versions:
                place = (key, version.ts)
                if version.ts <= self._index.loaded_upto or place in self._owner or place in self._possible:
                    continue
                text = (
                    f"the version of key {show(key)} at {version.ts} with value {show(version.value)} belongs to no "
                    f"transaction that may have written it{self._tag(version)}."
                )
                self.found.append(
                    Violation("I-20", "unclaimed-version", text, {"key": key, "ts": version.ts, "value": version.value})
                )

    def _tag(self, version: ObservedVersion) -> str:
        if version.txn_id is None:
            return ""
        known = "which did not write that" if version.txn_id in self._known_ids else "which is not in the history"
        return f" (it is tagged {version.txn_id}, {known})"

    def _report(self, oracle: str, kind: str, text: str, txn: TxnOp, **facts: object) -> None:
        self.found.append(Violation(oracle, kind, text, {"txn": txn, **facts}))


_NO_WRITES: dict[bytes, Value] = {}


def name(txn: TxnOp) -> str:
    """How prose calls a transaction."""
    return f"transaction {txn.txn_id} (client {txn.client})"


def _told(txn: TxnOp) -> str:
    return "" if txn.commit_ts is None else f", told it committed at {txn.commit_ts}"


def _list(places: dict[bytes, list[int]]) -> str:
    return ", ".join(f"{show(key)} at {'/'.join(map(str, times))}" for key, times in sorted(places.items()))


def _facts(places: dict[bytes, list[int]]) -> list[tuple[bytes, list[int]]]:
    return sorted(places.items())
