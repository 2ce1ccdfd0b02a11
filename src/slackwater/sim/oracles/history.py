"""The judgement of what clients were told, against V and against true time.

    I-03   acknowledged writes are in V                        check_intervals
    I-15   reads of the past equal V at their timestamp        check_intervals
    I-20   all or nothing; failed leaves nothing               check_intervals
    I-18   reads hold at one timestamp; no cycles; totals      check_intervals, bank, ring, long fork, list append
    I-19   real time and order agree on each key               check_intervals, registers, list append

One bug often breaks several rules at once. They are reported in the order above, from the plainest loss to the subtlest
disorder, so that a failure is named by what is worst about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from slackwater.sim.checkers import (
    check_bank,
    check_bank_versions,
    check_intervals,
    check_list_append,
    check_long_fork,
    check_registers,
    check_ring,
)
from slackwater.sim.checkers.history import VersionHistory
from slackwater.sim.scenarios.cluster_plan import (
    ACCOUNTS,
    OPENING_BALANCE,
    account_keys,
    cluster_of,
    fork_groups,
    list_keys,
    ring_keys,
)
from slackwater.sim.scenarios.cluster_work import balance

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.sim.checkers import ListTxn, RecordedHistory, RegisterOp, TxnOp
    from slackwater.sim.checkers.violation import Violation
    from slackwater.sim.oracles.versions import VersionsOracle
    from slackwater.sim.world import World

Record = TypeVar("Record", "RegisterOp", "TxnOp", "ListTxn")
ORDER = ("I-03", "I-20", "I-15", "I-18", "I-19")
TOTAL = ACCOUNTS * OPENING_BALANCE


class Told:
    """I-03, I-15, I-18, I-19, I-20."""

    name = "I-18"

    def __init__(self, versions: VersionsOracle) -> None:
        self._versions = versions

    def attach(self, world: World) -> None:
        """Clients write down what they are told; nothing to watch."""

    def judge(self, world: World) -> Iterable[Violation]:
        """All checkers, the worst first."""
        cluster = cluster_of(world)
        versions = self._versions.history()
        history = relaxed(cluster.recorder.history(versions), world)
        # Before the books were opened there was no bank and no ring; a read of that time is at most out of date (I-19).
        later = [t for t in history.txns if (t.commit_ts or t.read_ts or 0) > cluster.loaded_ts]
        found = [
            *check_intervals(history.txns, versions),
            *check_bank(later, accounts=account_keys(), total=TOTAL, decode=balance),
            *check_bank_versions(
                VersionHistory(versions.keys, cluster.loaded_ts), accounts=account_keys(), total=TOTAL, decode=balance
            ),
            *check_ring(later, keys=ring_keys()),
            *check_long_fork(history.txns, groups=fork_groups()),
            *check_list_append(history.list_txns, final=_final_lists(versions)),
            *check_registers(history.register_ops),
        ]
        return sorted(found, key=lambda v: ORDER.index(v.oracle) if v.oracle in ORDER else len(ORDER))


def relaxed(history: RecordedHistory, world: World) -> RecordedHistory:
    """The same history, in which no real time passes while a clock is beyond the bound (I-19 is promised within it).

    Whatever overlaps such a time is given all of it: two operations in it are concurrent, one before and one after it are
    in order as ever. All else that is promised of them holds without real time.
    """
    spans = [(s.begin_ns, s.upto_ns if s.upto_ns is not None else world.loop.now_ns) for s in world.shadows]
    if not spans:
        return history
    return msgspec.structs.replace(
        history,
        register_ops=tuple(_stretched(op, spans) for op in history.register_ops),
        txns=tuple(_stretched(txn, spans) for txn in history.txns),
        list_txns=tuple(_stretched(txn, spans) for txn in history.list_txns),
    )


def _stretched(record: Record, spans: list[tuple[int, int]]) -> Record:
    invoked_ns, returned_ns = record.invoked_ns, record.returned_ns
    for begin_ns, upto_ns in spans:
        if invoked_ns < upto_ns and (returned_ns is None or begin_ns <= returned_ns):
            invoked_ns = min(invoked_ns, begin_ns)
            returned_ns = None if returned_ns is None else max(returned_ns, upto_ns)
    if (invoked_ns, returned_ns) == (record.invoked_ns, record.returned_ns):
        return record
    return msgspec.structs.replace(record, invoked_ns=invoked_ns, returned_ns=returned_ns)


def _final_lists(versions: VersionHistory) -> dict[bytes, list[int]]:
    keys = set(list_keys())
    lists: dict[bytes, list[int]] = {key: [] for key in keys}
    for row in versions.keys:
        if row.key in keys and row.versions:
            last = row.versions[-1].value
            lists[row.key] = msgspec.json.decode(last) if last else []
    return lists
