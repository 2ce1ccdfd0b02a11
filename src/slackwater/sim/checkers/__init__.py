"""End-of-run oracles: pure functions from a recorded history to a list of violations.

    recorder.py      pens that workloads write with           ┐
    history.py       what they wrote, and V                   ┘ the facts
    linearizable.py  check_registers                          I-19   single keys in true time (Wing and Gong)
    serializable.py  check_intervals                          I-18 I-03 I-15 I-19 I-20   against V (kvnemesis)
    listappend.py    check_list_append                        I-18 I-19 (I-03 I-20 with final lists)   cycles (Elle)
    bank.py          check_bank, check_bank_versions          I-18   constant total
    ring.py          check_ring                               I-18   one ring
    longfork.py      check_long_fork                          I-18   readers agree on the order of writes

Shared parts: `claims.py` (the writer of each version), `versions.py` (an index over V), `realtime.py` (order on one key),
`cycles.py` (graph search), `violation.py`. Nothing here reads a clock, draws a number or keeps state between calls:
the same history always gets the same answer, so a saved artifact can be judged again.
"""

from slackwater.sim.checkers.bank import check_bank, check_bank_versions
from slackwater.sim.checkers.history import (
    KeyVersions,
    ListOp,
    ListTxn,
    ObservedVersion,
    OperationOutcome,
    OpKind,
    Read,
    RecordedHistory,
    RegisterOp,
    ScanOp,
    TxnOp,
    Value,
    VersionHistory,
    WriteOp,
)
from slackwater.sim.checkers.linearizable import check_registers
from slackwater.sim.checkers.listappend import check_list_append
from slackwater.sim.checkers.longfork import check_long_fork
from slackwater.sim.checkers.recorder import ListPen, OpPen, Recorder, TxnPen
from slackwater.sim.checkers.ring import check_ring
from slackwater.sim.checkers.serializable import check_intervals
from slackwater.sim.checkers.violation import Violation

__all__ = [
    "KeyVersions",
    "ListOp",
    "ListPen",
    "ListTxn",
    "ObservedVersion",
    "OpKind",
    "OpPen",
    "OperationOutcome",
    "Read",
    "RecordedHistory",
    "Recorder",
    "RegisterOp",
    "ScanOp",
    "TxnOp",
    "TxnPen",
    "Value",
    "VersionHistory",
    "Violation",
    "WriteOp",
    "check_bank",
    "check_bank_versions",
    "check_intervals",
    "check_list_append",
    "check_long_fork",
    "check_registers",
    "check_ring",
]
