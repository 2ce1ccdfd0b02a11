"""Brute force for the end-of-run checkers: the definitions, tried in every possible order, no cleverness."""

from __future__ import annotations

from itertools import permutations, product

from slackwater.sim.checkers import ListTxn, OperationOutcome, OpKind, RegisterOp, TxnOp, VersionHistory

OK, FAILED, UNKNOWN = OperationOutcome.OK, OperationOutcome.FAILED, OperationOutcome.UNKNOWN


def before(a, b) -> bool:
    """`a` was over before `b` began."""
    return a.returned_ns is not None and a.returned_ns < b.invoked_ns


# --- registers -----------------------------------------------------------------------------------------------------


def linearizable(ops: list[RegisterOp], state: bytes | None) -> bool:
    """Some order of the operations, unknown ones optional, respects real time and explains every answer."""
    left = [op for op in ops if op.outcome is not FAILED and not (op.outcome is UNKNOWN and op.kind is OpKind.READ)]
    return _linearize(left, state)


def _linearize(left: list[RegisterOp], state: bytes | None) -> bool:
    if all(op.outcome is UNKNOWN for op in left):
        return True
    for op in left:
        if any(before(other, op) for other in left if other is not op):
            continue
        rest = [other for other in left if other is not op]
        if op.kind is OpKind.READ:
            if state == op.value and _linearize(rest, state):
                return True
        elif op.kind is OpKind.WRITE:
            if _linearize(rest, op.value):
                return True
        elif op.swapped:
            if state == op.expected and _linearize(rest, op.value):
                return True
        elif state == op.value != op.expected and _linearize(rest, state):
            return True
    return False


# --- list-append ---------------------------------------------------------------------------------------------------


def list_append_ok(txns: list[ListTxn], final: dict | None, *, strict: bool) -> bool:
    """Some serial order of the committed transactions, unknown ones optional, explains reads, final lists and time."""
    sure = [txn for txn in txns if txn.outcome is OK]
    unsure = [txn for txn in txns if txn.outcome is UNKNOWN]
    for choice in product((False, True), repeat=len(unsure)):
        chosen = sure + [txn for txn, taken in zip(unsure, choice, strict=True) if taken]
        if _serial_lists([], chosen, {}, final, strict=strict):
            return True
    return False


def _serial_lists(done, left, state, final, *, strict) -> bool:
    if not left:
        lists = {key: elements for key, elements in state.items() if elements}
        return (final is None or lists == {k: tuple(v) for k, v in final.items() if v}) and _time_ok(
            done, strict=strict
        )
    for txn in left:
        after = _run_lists(txn, state)
        if after is not None:
            rest = [other for other in left if other is not txn]
            if _serial_lists([*done, txn], rest, after, final, strict=strict):
                return True
    return False


def _run_lists(txn, state):
    state = dict(state)
    for op in txn.ops:
        if op.elements is not None:
            if state.get(op.key, ()) != op.elements:
                return None
        else:
            state[op.key] = (*state.get(op.key, ()), op.element)
    return state


def _time_ok(order, *, strict) -> bool:
    for at, first in enumerate(order):
        for second in order[at + 1 :]:
            if before(second, first) and (strict or _conflict(first, second)):
                return False
    return True


def _conflict(one, other) -> bool:
    """The serial order of the two can be noticed: they share a key, and not merely by reading the same list there."""
    for key in {op.key for op in one.ops} & {op.key for op in other.ops}:
        ops = [op for op in (*one.ops, *other.ops) if op.key == key]
        if any(op.element is not None for op in ops) or len({op.elements for op in ops}) > 1:
            return True
    return False


# --- transactions against V ----------------------------------------------------------------------------------------


def intervals_ok(txns: list[TxnOp], versions: VersionHistory) -> bool:
    """Some assignment of timestamps to transactions satisfies every rule, checked rule by rule."""
    table = {row.key: {v.ts: v for v in row.versions} for row in versions.keys}
    times = sorted({0} | {v.ts for row in versions.keys for v in row.versions})
    to_claim = {(key, ts) for key, of_key in table.items() for ts in of_key if ts > versions.loaded_upto}
    return _assign(list(txns), [], set(to_claim), table, times)


def _assign(left, placed, unclaimed, table, times) -> bool:
    if not left:
        return not unclaimed and _real_time_ok(placed, table) and _ties_ok(placed)
    txn, rest = left[0], left[1:]
    final = {w.key: w.value for w in txn.writes}
    if txn.outcome is FAILED or (txn.outcome is UNKNOWN and not final):
        return _assign(rest, placed, unclaimed, table, times)
    if txn.outcome is UNKNOWN and _assign(rest, placed, unclaimed, table, times):
        return True
    told = txn.commit_ts if final else txn.read_ts
    for ts in times if told is None else [told]:
        mine = {(key, ts) for key in final}
        if not mine <= unclaimed or not all(_is(table[key][ts], txn, value) for key, value in final.items()):
            continue
        if _reads_ok(txn, ts, final, table) and _assign(rest, [*placed, (txn, ts)], unclaimed - mine, table, times):
            return True
    return False


def _is(version, txn, value) -> bool:
    return version.value == value and version.txn_id in (None, txn.txn_id)


def visible(table, key, ts, final) -> int:
    """Timestamp of the version of `key` that a transaction at `ts` sees, its own left out; 0 for none."""
    return max((t for t in table.get(key, {}) if t < ts or (t == ts and key not in final)), default=0)


def _reads_ok(txn, ts, final, table) -> bool:
    for key, value, version, own in all_reads(txn, table):
        if key in own:
            if own[key] != value:
                return False
            continue
        seen = visible(table, key, ts, final)
        held = table[key][seen].value if seen else None
        if held != value or (version and version != seen):
            return False
    return True


def all_reads(txn, table):
    """(key, value, version, own writes so far) of each key read, scans taken apart."""
    for read in txn.reads:
        yield read.key, read.value, read.version, {w.key: w.value for w in txn.writes[: read.after]}
    for scan in txn.scans:
        rows = dict(scan.rows)
        own = {w.key: w.value for w in txn.writes[: scan.after]}
        for key in set(table) | set(rows) | set(own):
            if scan.start <= key < scan.end:
                yield key, rows.get(key), None, own


def _real_time_ok(placed, table) -> bool:
    for first, first_ts in placed:
        for second, second_ts in placed:
            if before(first, second):
                for key, at, _ in _touches(first, first_ts, table):
                    for other, then, wrote in _touches(second, second_ts, table):
                        if key == other and (then < at or (wrote and then == at)):
                            return False
    return True


def _touches(txn, ts, table):
    final = {w.key: w.value for w in txn.writes}
    touches = [(key, ts, True) for key in final]
    if not txn.historical:
        touches += [(k, visible(table, k, ts, final), False) for k, _, _, own in all_reads(txn, table) if k not in own]
    return touches


def _ties_ok(placed) -> bool:
    """Writers of one timestamp can be put in an order where each comes after those whose writes it saw."""
    for ts in {ts for _, ts in placed}:
        group = [txn for txn, at in placed if at == ts and txn.writes]
        if not any(_sources_first(order) for order in permutations(group)):
            return False
    return True


def _sources_first(order) -> bool:
    for at, txn in enumerate(order):
        mine = {w.key for w in txn.writes}
        reads = {r.key for r in txn.reads} - mine
        spans = [(s.start, s.end) for s in txn.scans]
        for later in order[at + 1 :]:
            for write in later.writes:
                if write.key in reads or (write.key not in mine and any(a <= write.key < b for a, b in spans)):
                    return False
    return True


def serial_order_exists(txns: list[TxnOp], loaded: dict[bytes, bytes]) -> bool:
    """Plain serializability of the acknowledged and any of the unknown transactions, timestamps ignored."""
    sure = [txn for txn in txns if txn.outcome is OK]
    unsure = [txn for txn in txns if txn.outcome is UNKNOWN]
    for choice in product((False, True), repeat=len(unsure)):
        if _serial(sure + [txn for txn, taken in zip(unsure, choice, strict=True) if taken], loaded):
            return True
    return False


def _serial(left, state) -> bool:
    if not left:
        return True
    for txn in left:
        after = _run(txn, state)
        if after is not None and _serial([other for other in left if other is not txn], after):
            return True
    return False


def _run(txn, state):
    table = dict.fromkeys(state)
    for key, value, _, own in all_reads(txn, table):
        if {**state, **own}.get(key) != value:
            return None
    return {**state, **{w.key: w.value for w in txn.writes}}
