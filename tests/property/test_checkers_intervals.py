"""The interval checker agrees with brute force over every assignment of timestamps, and implies serializability."""

from __future__ import annotations

import random
from collections import Counter

from slackwater.sim.checkers import (
    ObservedVersion,
    OperationOutcome,
    Read,
    ScanOp,
    TxnOp,
    VersionHistory,
    WriteOp,
    check_intervals,
)
from tests.property import checkers_brute as brute

HISTORIES = 14_000
KEYS = [b"a", b"b", b"c"]
LOADED_AT = 5
LOAD = TxnOp(
    txn_id=0, client=0, invoked_ns=0, returned_ns=0, outcome=OperationOutcome.OK, writes=(WriteOp(b"a", b"loaded"),)
)


class Store:
    """A multi-version table that executes transactions one after another, sometimes on a stale snapshot."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        # With deletes, all say when they read and committed, so that absence is never ambiguous.
        self.deletes = rng.random() < 0.3
        self.tagged = rng.random() < 0.3
        self.weakness = rng.choice([0.0, 0.0, 0.3])
        # Values that repeat: then writers say where they committed and all is concurrent, so nothing is ambiguous.
        self.repeats = rng.random() < 0.25
        self.slack = rng.choice([5, 30])
        self.table: dict[bytes, dict[int, ObservedVersion]] = {
            b"a": {LOADED_AT: ObservedVersion(LOADED_AT, b"loaded")},
            b"b": {},
            b"c": {},
        }
        self.now = 10
        self.values = 0

    def at(self, key: bytes, ts: int) -> ObservedVersion | None:
        return self.table[key].get(max((t for t in self.table[key] if t <= ts), default=0))

    def txn(self, number: int) -> TxnOp:
        rng = self.rng
        self.now += rng.choice([0, 1, 1, 2])
        ts = self.now
        read_at = rng.randint(0, ts) if rng.random() < self.weakness else ts
        historical = rng.random() < 0.15
        outcome = rng.choices([OperationOutcome.OK, OperationOutcome.UNKNOWN, OperationOutcome.FAILED], [8, 2, 1])[0]
        happens = outcome is OperationOutcome.OK or (outcome is OperationOutcome.UNKNOWN and rng.random() < 0.5)
        if historical:
            read_at = rng.randint(0, ts)
        reads, scans, writes = self.body(read_at, writes=0 if historical else rng.randint(0, 2))
        if happens:
            for key, value in {write.key: write.value for write in writes}.items():
                # Another may have written there at this very timestamp: then this one's write is lost.
                self.table[key].setdefault(ts, ObservedVersion(ts, value, number if self.tagged else None))
        told = self.repeats or self.deletes or (outcome is OperationOutcome.OK and rng.random() < 0.8)
        begin = -100 if self.repeats else 4 * number - rng.randint(0, self.slack)
        end = 100 if self.repeats else 4 * number + rng.randint(0, self.slack)
        return TxnOp(
            txn_id=number, client=number % 2, invoked_ns=begin, outcome=outcome,
            returned_ns=None if outcome is OperationOutcome.UNKNOWN else end,
            reads=tuple(reads), scans=tuple(scans), writes=tuple(writes), historical=historical,
            commit_ts=ts if writes and told else None,
            read_ts=read_at if not writes and (historical or self.deletes or rng.random() < 0.3) else None,
        )  # fmt: skip

    def body(self, read_at: int, *, writes: int) -> tuple[list[Read], list[ScanOp], list[WriteOp]]:
        rng, reads, scans, done = self.rng, [], [], []
        own: dict[bytes, bytes | None] = {}
        steps = ["read"] * rng.randint(0, 3) + ["scan"] * (rng.random() < 0.2) + ["write"] * writes
        rng.shuffle(steps)
        for step in steps:
            key = rng.choice(KEYS)
            if step == "write":
                self.values += 1
                value = (
                    None
                    if self.deletes and rng.random() < 0.4
                    else b"%d" % (self.values % 2 if self.repeats else self.values)
                )
                own[key] = value
                done.append(WriteOp(key, value))
            elif step == "read":
                version = self.at(key, read_at)
                held = version.value if version else None
                seen = (
                    version.ts
                    if version and version.value is not None and rng.random() < 0.3 and key not in own
                    else None
                )
                reads.append(Read(key, own.get(key, held), seen, len(done)))
            else:
                held = {k: v.value for k in KEYS if (v := self.at(k, read_at)) is not None}
                rows = {k: v for k, v in {**held, **own}.items() if v is not None and b"a" <= k < b"c"}
                scans.append(ScanOp(b"a", b"c", tuple(sorted(rows.items())), len(done)))
        return reads, scans, done


def history(rng: random.Random) -> tuple[list[TxnOp], VersionHistory]:
    store = Store(rng)
    txns = [store.txn(number) for number in range(1, rng.randint(3, 6))]
    if rng.random() < 0.6:
        at = rng.randrange(len(txns))
        txns[at] = spoil(rng, txns[at], store)
    if rng.random() < 0.2:
        spoil_versions(rng, store)
    rng.shuffle(txns)
    return txns, VersionHistory.of({k: v.values() for k, v in store.table.items()}, loaded_upto=LOADED_AT)


def spoil(rng: random.Random, txn: TxnOp, store: Store) -> TxnOp:
    fields = {name: getattr(txn, name) for name in txn.__struct_fields__}
    trick = rng.randint(0, 4)
    if trick == 0 and txn.reads:
        at = rng.randrange(len(txn.reads))
        read = txn.reads[at]
        versions = [v.value for v in store.table[read.key].values()] + [None, b"%d" % rng.randint(1, store.values + 1)]
        value = rng.choice([v for v in versions if v is not None or not store.deletes] or [None])
        fields["reads"] = (*txn.reads[:at], Read(read.key, value, None, read.after), *txn.reads[at + 1 :])
    elif trick == 1:
        fields["outcome"], fields["returned_ns"] = OperationOutcome.FAILED, txn.invoked_ns + 3
    elif trick == 2 and txn.outcome is OperationOutcome.OK:
        fields["outcome"], fields["returned_ns"] = OperationOutcome.UNKNOWN, None
    elif trick == 3 and txn.commit_ts is not None:
        fields["commit_ts"] = txn.commit_ts + rng.choice([-1, 1])
    elif txn.returned_ns is not None:
        shift = rng.choice([-12, 12])
        fields["invoked_ns"] += shift
        fields["returned_ns"] += shift
    return TxnOp(**fields)


def spoil_versions(rng: random.Random, store: Store) -> None:
    key = rng.choice(KEYS)
    recent = [ts for ts in store.table[key] if ts > LOADED_AT]
    if recent and rng.random() < 0.7:
        version = store.table[key].pop(rng.choice(recent))
        if rng.random() < 0.4 and version.ts + 1 not in store.table[key]:
            store.table[key][version.ts + 1] = ObservedVersion(version.ts + 1, version.value, version.txn_id)
    else:
        store.table[key][store.now + 1] = ObservedVersion(store.now + 1, b"out of nowhere")


def test_agrees_with_brute_force():
    verdicts = {True: 0, False: 0}
    kinds: Counter[str] = Counter()
    for seed in range(HISTORIES):
        txns, versions = history(random.Random(seed))
        expected = brute.intervals_ok(txns, versions)
        found = check_intervals(txns, versions)
        assert (not found) == expected, (seed, txns, versions, [str(v) for v in found])
        verdicts[expected] += 1
        kinds.update(f"{violation.oracle} {violation.kind}" for violation in found)
    assert min(verdicts.values()) > HISTORIES // 5, verdicts
    wanted = {"I-03 lost-write", "I-15 wrong-snapshot", "I-18 dirty-read", "I-18 internal", "I-18 no-common-timestamp",
              "I-18 read-moved", "I-18 split-commit", "I-19 reads-go-back", "I-19 stale-read", "I-19 write-order",
              "I-20 failed-write-visible", "I-20 partial-commit", "I-20 unclaimed-version"}  # fmt: skip
    assert not wanted - kinds.keys(), wanted - kinds.keys()


def test_what_passes_is_serializable():
    """The timestamps were only a proof: brute force finds a serial order without them."""
    passed = 0
    for seed in range(HISTORIES, HISTORIES + 5_000):
        txns, versions = history(random.Random(seed))
        if not check_intervals(txns, versions):
            passed += 1
            assert brute.serial_order_exists([*txns, LOAD], dict.fromkeys(KEYS)), (seed, txns, versions)
    assert passed > 1_000
