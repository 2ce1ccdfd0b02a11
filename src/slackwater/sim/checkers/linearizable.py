"""Are single-key operations linearizable in true time (I-19)?

A register history is linearizable when every operation can be given one instant between its invocation and its return
such that, executed in that order, every answer is right. The search is Wing and Gong's, arranged as Lowe's *just in
time* linearization: walk the invocations and returns in true time and keep the set of all *configurations*

    (value of the register, which of the operations now in flight have already taken effect)

    invoke  A   B       C                        at each return, every configuration is extended by operations in
            |---|-------|--> return of B         flight until the returning one has taken effect; configurations
                                                 where it cannot are dropped; none left = not linearizable

The set is the memo: two orders that lead to the same configuration are one. Where nothing is in flight the set shrinks
to the possible register values, so a long history is cut at its quiescent points without looking for them.

What keeps the set small
    * a read in flight whose value is there takes effect at once: it changes nothing, so waiting cannot help;
    * an unknown operation (it may take effect at any time after its invocation, or never) is tried only while some
      operation that has not returned yet could notice its value;
    * of two configurations that differ only in unknown operations already spent, the one that spent fewer can do all
      that the other can.
    * `CONFIGURATIONS_MAX` bounds the rest. Beyond it, `zones` decides where all values differ, as in our workloads (while
      a clock is beyond its bound, all operations of a long time count as concurrent); else the answer is "undecided",
      said aloud.

Failed operations did not happen. A value that no operation could have written is reported as such before any search:
`failed-write-visible` (I-20) when a failed operation wrote it, `thin-air-value` otherwise.

The evidence is the shortest window: the latest start such that the operations overlapping it are impossible *whatever*
the register held at its start.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from slackwater.sim.checkers import zones
from slackwater.sim.checkers.history import OperationOutcome, OpKind, RegisterOp, Value
from slackwater.sim.checkers.violation import Violation, show

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

CONFIGURATIONS_MAX = 100_000
"""Configurations kept for one key at one instant."""
WINDOW_OPS_SHOWN_MAX = 40
"""Operations of the offending window kept as evidence."""

_ANY = -1
"""The register before a window starts: whatever makes the window possible."""
_NO_VALUE = -2
_NEVER_NS = 1 << 62

_Config = tuple[int, int]


class _UndecidedOp(Exception):
    """The bound on configurations was reached."""


def check_registers(
    ops: Iterable[RegisterOp],
    *,
    initial: Mapping[bytes, Value] | None = None,
    configurations_max: int = CONFIGURATIONS_MAX,
) -> list[Violation]:
    """Judge each key's operations on their own; `initial` gives values present before the run."""
    by_key: defaultdict[bytes, list[RegisterOp]] = defaultdict(list)
    for op in ops:
        by_key[op.key].append(op)
    found = []
    for key in sorted(by_key):
        start = initial.get(key) if initial else None
        found += _check_key(by_key[key], start, configurations_max)
    return found


def _check_key(ops: list[RegisterOp], start: Value, configurations_max: int) -> list[Violation]:
    impossible = _impossible_values(ops, start)
    if impossible:
        return impossible
    happened = [op for op in ops if _may_matter(op)]
    try:
        culprit = _Search(happened, configurations_max).run(start=start)
        if culprit is None:
            return []
        return [_not_linearizable(happened, culprit, start, configurations_max)]
    except _UndecidedOp:
        return _without_search(ops, start, configurations_max)


def _without_search(ops: list[RegisterOp], start: Value, configurations_max: int) -> list[Violation]:
    """Too many operations at once for the search: where all values differ, `zones` can tell all the same."""
    try:
        together = zones.contradiction(ops, start)
    except zones.RepeatedValue:
        return [_undecided(ops, configurations_max)]
    if not together:
        return []
    shown = sorted(together, key=lambda op: op.invoked_ns)[:WINDOW_OPS_SHOWN_MAX]
    text = (
        f"key {show(ops[0].key)} is not linearizable: no order explains the answers of these {len(together)} operations "
        f"together: {'; '.join(_tell(op) for op in shown)}."
    )
    evidence = {"key": ops[0].key, "window": shown, "window_ops": len(together), "from_any": False}
    return [Violation("I-19", "not-linearizable", text, evidence)]


def _may_matter(op: RegisterOp) -> bool:
    if op.outcome is OperationOutcome.UNKNOWN:
        return op.kind is not OpKind.READ
    return op.outcome is OperationOutcome.OK


def _observed(op: RegisterOp) -> bool:
    """Whether `op.value` was seen rather than put."""
    return op.outcome is OperationOutcome.OK and (op.kind is OpKind.READ or not op.swapped)


def _impossible_values(ops: Sequence[RegisterOp], start: Value) -> list[Violation]:
    written = {
        op.value
        for op in ops
        if op.kind is not OpKind.READ and op.swapped and op.outcome is not OperationOutcome.FAILED
    }
    written.add(start)
    refused = {op.value: op for op in ops if op.kind is not OpKind.READ and op.outcome is OperationOutcome.FAILED}
    found = []
    for op in ops:
        if not _observed(op):
            continue
        if not op.swapped and op.value == op.expected:
            found.append(_mismatch_that_matches(op))
        elif op.value not in written:
            found.append(_from_nowhere(op, refused.get(op.value)))
    return found


def _mismatch_that_matches(op: RegisterOp) -> Violation:
    text = (
        f"compare-and-swap {op.op_id} on key {show(op.key)} was refused although the value it found, {show(op.value)}, "
        f"is the one it expected."
    )
    return Violation("I-19", "refused-match", text, {"op": op})


def _from_nowhere(op: RegisterOp, failed: RegisterOp | None) -> Violation:
    saw = f"operation {op.op_id} of client {op.client} saw {show(op.value)} at key {show(op.key)}"
    if failed is not None:
        text = f"{saw}, which only operation {failed.op_id} wrote, and that one was answered `failed`."
        return Violation("I-20", "failed-write-visible", text, {"read": op, "failed_write": failed})
    text = f"{saw}, a value that no operation wrote and that was not there at the start."
    return Violation("I-19", "thin-air-value", text, {"read": op})


class _Search:
    """The configurations of one key, walked through true time."""

    def __init__(self, ops: list[RegisterOp], configurations_max: int) -> None:
        self._ops = ops
        self._max = configurations_max
        self._code: dict[Value, int] = {}
        # What an operation needs to find (or _NO_VALUE: anything) and what it leaves behind.
        self._needs = [self._needed(op) for op in ops]
        self._leaves = [self._encode(op.value) for op in ops]
        self._unknown = [op.outcome is OperationOutcome.UNKNOWN for op in ops]
        self._wanted_upto = self._last_use()

    def _encode(self, value: Value) -> int:
        return self._code.setdefault(value, len(self._code))

    def _needed(self, op: RegisterOp) -> int:
        if op.kind is OpKind.WRITE:
            return _NO_VALUE
        return self._encode(op.expected if op.kind is OpKind.CAS and op.swapped else op.value)

    def _last_use(self) -> dict[int, int]:
        """For each value, the latest time at which an operation that needs to find it is still in flight."""
        wanted: dict[int, int] = {}
        for op, need in zip(self._ops, self._needs, strict=True):
            upto = _NEVER_NS if op.returned_ns is None else op.returned_ns
            wanted[need] = max(wanted.get(need, -1), upto)
        return wanted

    def run(self, *, start: Value = None, from_any: bool = False) -> RegisterOp | None:
        """The first operation whose answer cannot be explained, or None when all can."""
        self._slots: dict[int, int] = {}  # operation in flight → its bit
        self._reads: dict[int, int] = {}  # value → bits of the reads in flight that need it
        self._writers: list[int] = []
        self._unknown_bits = 0
        configs: set[_Config] = {(_ANY if from_any else self._encode(start), 0)}
        free: list[int] = []
        fresh = 0
        for when, is_return, index in self._events():
            if not is_return:
                if not free:
                    free.append(1 << fresh)
                    fresh += 1
                self._invoke(index, free.pop())
                continue
            self._drop_unwanted(when)
            configs = self._extend(configs, self._slots[index])
            if not configs:
                return self._ops[index]
            free.append(self._retire(index))
        return None

    def _events(self) -> list[tuple[int, int, int]]:
        """(time, is return, operation). At one instant invocations come first: touching intervals overlap."""
        events = [(op.invoked_ns, 0, index) for index, op in enumerate(self._ops)]
        events += [(op.returned_ns, 1, index) for index, op in enumerate(self._ops) if op.returned_ns is not None]
        events.sort()
        return events

    def _invoke(self, index: int, bit: int) -> None:
        self._slots[index] = bit
        if _observed(self._ops[index]):
            need = self._needs[index]
            self._reads[need] = self._reads.get(need, 0) | bit
            return
        self._writers.append(index)
        if self._unknown[index]:
            self._unknown_bits |= bit

    def _retire(self, index: int) -> int:
        bit = self._slots.pop(index)
        if _observed(self._ops[index]):
            self._reads[self._needs[index]] &= ~bit
        else:
            self._writers.remove(index)
        return bit

    def _drop_unwanted(self, now_ns: int) -> None:
        """Forget unknown operations whose value no operation in flight or yet to come needs to find."""
        for index in [i for i in self._writers if self._unknown[i]]:
            if self._wanted_upto.get(self._leaves[index], -1) < now_ns:
                self._writers.remove(index)

    def _extend(self, configs: set[_Config], target: int) -> set[_Config]:
        """Every configuration reachable in which `target` has taken effect, with its bit freed."""
        reached: set[_Config] = set()
        seen = set(configs)
        stack = list(configs)
        while stack:
            value, mask = stack.pop()
            if value != _ANY:
                mask |= self._reads.get(value, 0)
            if mask & target:
                reached.add((value, mask & ~target))
                continue
            for after in self._steps(value, mask):
                if after not in seen:
                    seen.add(after)
                    stack.append(after)
            if len(seen) > self._max:
                raise _UndecidedOp
        return self._without_dominated(reached)

    def _steps(self, value: int, mask: int) -> list[_Config]:
        steps = []
        for index in self._writers:
            bit = self._slots[index]
            need = self._needs[index]
            if not mask & bit and (need in (_NO_VALUE, value) or value == _ANY):
                steps.append((self._leaves[index], mask | bit))
        if value == _ANY:
            # The first thing to look at the register decides what it held.
            steps += [(need, mask | bits) for need, bits in self._reads.items() if bits & ~mask]
        return steps

    def _without_dominated(self, configs: set[_Config]) -> set[_Config]:
        unknown = self._unknown_bits
        if not unknown or len(configs) < 2:
            return configs
        groups: defaultdict[_Config, list[int]] = defaultdict(list)
        for value, mask in configs:
            groups[(value, mask & ~unknown)].append(mask & unknown)
        kept: set[_Config] = set()
        for (value, known), spent in groups.items():
            spent.sort(key=int.bit_count)
            least: list[int] = []
            for bits in spent:
                if not any(other & bits == other for other in least):
                    least.append(bits)
            kept.update((value, known | bits) for bits in least)
        return kept


def _not_linearizable(ops: list[RegisterOp], culprit: RegisterOp, start: Value, configurations_max: int) -> Violation:
    """Describe the failure by the shortest window that is impossible from any starting value."""
    window, closed = _shortest_window(ops, culprit, configurations_max)
    shown = sorted(window, key=lambda op: op.invoked_ns)[-WINDOW_OPS_SHOWN_MAX:]
    begin = min(op.invoked_ns for op in window)
    premise = "whatever the register held before" if closed else f"starting from {show(start)}"
    text = (
        f"key {show(culprit.key)} is not linearizable: no order of the {len(window)} operations between true time "
        f"{begin} and {culprit.returned_ns} ns explains every answer, {premise}. The first answer that cannot be "
        f"explained is {_tell(culprit)}. In the window: {'; '.join(_tell(op) for op in shown)}."
    )
    evidence = {"key": culprit.key, "culprit": culprit, "window": shown, "window_ops": len(window), "from_any": closed}
    return Violation("I-19", "not-linearizable", text, evidence)


def _shortest_window(
    ops: list[RegisterOp], culprit: RegisterOp, configurations_max: int
) -> tuple[list[RegisterOp], bool]:
    end = culprit.returned_ns or 0
    reach = [op for op in ops if op.invoked_ns <= end]
    cuts = sorted({min(op.returned_ns, end) for op in reach if op.returned_ns is not None})

    def window(cut: int) -> list[RegisterOp]:
        alive = [op for op in reach if op.returned_ns is None or op.returned_ns >= cut]
        seen = {op.value for op in alive if _observed(op)} | {op.expected for op in alive if op.kind is OpKind.CAS}
        return [op for op in alive if op.returned_ns is not None or op.value in seen]

    def impossible(cut: int) -> bool:
        first = _Search(window(cut), configurations_max).run(from_any=True)
        return first is not None and first.returned_ns is not None and first.returned_ns <= end

    if not impossible(cuts[0]):
        return reach, False
    low, high = 0, len(cuts) - 1  # a later cut forgets more, so impossibility is lost once and for all
    while low < high:
        middle = (low + high + 1) // 2
        if impossible(cuts[middle]):
            low = middle
        else:
            high = middle - 1
    return window(cuts[low]), True


def _tell(op: RegisterOp) -> str:
    end = "never answered" if op.returned_ns is None else f"{op.returned_ns}"
    if op.kind is OpKind.READ:
        what = f"read {show(op.value)}"
    elif op.kind is OpKind.WRITE:
        what = f"write {show(op.value)}"
    elif op.swapped:
        what = f"swap {show(op.expected)} for {show(op.value)}"
    else:
        what = f"swap refused: wanted {show(op.expected)}, found {show(op.value)}"
    return f"#{op.op_id} {what} [{op.invoked_ns}, {end}]"


def _undecided(ops: list[RegisterOp], configurations_max: int) -> Violation:
    unknown = sum(op.outcome is OperationOutcome.UNKNOWN for op in ops)
    text = (
        f"key {show(ops[0].key)} could not be judged: its {len(ops)} operations ({unknown} of unknown outcome) need "
        f"more than {configurations_max} configurations at one instant. Use more keys or fewer clients per key."
    )
    evidence = {"key": ops[0].key, "ops": len(ops), "unknown": unknown, "configurations_max": configurations_max}
    return Violation("I-19", "undecided", text, evidence, conclusive=False)
