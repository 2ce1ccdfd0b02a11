"""The golden scripts of MVCC: small keys, small timestamps, every outcome printed."""

import pytest

from slackwater.clock.timestamp import MAX, MIN, Timestamp
from slackwater.codec.layout import kv
from slackwater.model.protection import Kept
from slackwater.model.retention import readable, stretches
from slackwater.model.txns import Resolution, Txn, TxnStatus
from slackwater.storage import gc, intents, reads, stats, writes
from slackwater.storage.memory import MemoryEngine
from slackwater.storage.versions import newest, raw_of, raw_value
from tests.golden import check, scripts


def bound(text):
    """`b` is the key b, `b+` the first byte string after it."""
    return kv(text[:-1].encode()) + b"\x00" if text.endswith("+") else kv(text.encode())


def name_of(key):
    return key[1:-2].decode()


def shown(value):
    return "deleted" if not value else raw_of(value).decode()


class Runner:
    def __init__(self):
        self.engine = MemoryEngine()
        self.stats = stats.ZERO

    def txn(self, name, ts):
        if name is None:
            return None
        name, epoch, sequence = name.split("/") if "/" in name else (name, "0", "0")
        at = Timestamp(int(ts))
        return Txn(name.encode().ljust(16, b"."), b"", Timestamp(1), int(epoch), at, at, MIN, int(sequence))

    def write(self, call):
        batch = self.engine.batch()
        result = call(batch)
        self.engine.write(batch)
        self.stats = self.stats.plus(result.stats)
        return result

    def do_put(self, key, value, at, txn=None, expect=None):
        where = {"ts": Timestamp(int(at)), "txn": self.txn(txn, at)}
        if expect is None:
            self.write(lambda b: writes.put(self.engine, b, bound(key), raw_value(value.encode()), **where))
        else:
            expected = None if expect == "none" else raw_value(expect.encode())
            self.write(
                lambda b: writes.conditional_put(
                    self.engine, b, bound(key), raw_value(value.encode()), expected=expected, **where
                )
            )

    def do_del(self, key, at, txn=None):
        self.write(lambda b: writes.delete(self.engine, b, bound(key), ts=Timestamp(int(at)), txn=self.txn(txn, at)))

    def do_get(self, key, at, txn=None, uncertain="0"):
        found = reads.get(
            self.engine,
            bound(key),
            ts=Timestamp(int(at)),
            txn=self.txn(txn, at),
            uncertain_upto=Timestamp(int(uncertain)),
        )
        return f"{key} = {shown(found.value)} @{found.ts}" if found.value else f"{key} has no value"

    def do_scan(self, start, end, at, txn=None, rows="0", reverse="no"):
        page = reads.scan(
            self.engine, bound(start), bound(end), ts=Timestamp(int(at)), txn=self.txn(txn, at), max_rows=int(rows),
            reverse=reverse == "yes",
        )  # fmt: skip
        pairs = " ".join(f"{name_of(k)}={shown(v)}" for k, v in zip(page.keys, page.values, strict=True))
        return (pairs or "nothing") + (f" resume={name_of(page.resume)}" if page.resume else "")

    def do_versions(self, start, end, after="0", upto="max"):
        top = MAX if upto == "max" else Timestamp(int(upto))
        page = reads.scan_versions(
            self.engine,
            bound(start),
            bound(end),
            after=Timestamp(int(after)),
            upto=top,
            before_images=True,
            ignore_intents=True,
        )
        rows = zip(page.keys, page.timestamps, page.values, page.befores, strict=True)
        return (
            "\n".join(f"{name_of(k)}@{t} {shown(v)}  was {shown(b) if b else 'nothing'}" for k, t, v, b in rows)
            or "nothing"
        )

    def do_refresh(self, start, end, after, upto, txn=None):
        change = reads.refresh(
            self.engine,
            bound(start),
            bound(end),
            after=Timestamp(int(after)),
            upto=Timestamp(int(upto)),
            txn=self.txn(txn, upto),
        )
        return (
            "unchanged"
            if change is None
            else f"{name_of(change.key)} changed @{change.ts}" + (" (intent)" if change.intent else "")
        )

    def do_resolve(self, key, txn, status, at="0", epoch="0"):
        outcome = Resolution(txn.encode().ljust(16, b"."), int(epoch), TxnStatus[status.upper()], Timestamp(int(at)))
        done = self.write(lambda b: intents.resolve(self.engine, b, bound(key), outcome))
        made = outcome.status is TxnStatus.COMMITTED and newest(self.engine, bound(key), upto=outcome.ts)
        made = made and made.ts == outcome.ts
        return "no intent of it" if not done.found else f"version @{outcome.ts}" if made else "done"

    def do_intents(self):
        found = [(k, intents.decode_intent(v)) for k, v in intents.intents_in(self.engine, b"", b"\xff")]
        lines = [
            f"{name_of(k)}: {i.txn_id.rstrip(b'.').decode()} epoch={i.epoch} @{i.ts} seq={i.sequence} {shown(i.value)}"
            f" history={len(i.history)}"
            for k, i in found
        ]
        return "\n".join(lines) or "none"

    def do_gc(self, start, end, threshold, protected="", after=""):
        low, high, self.threshold = bound(start), bound(end), Timestamp(int(threshold))
        self.kept = [Kept(low, high, Timestamp(int(p))) for p in protected.split(",") if p]
        self.kept += [Kept(low, high, Timestamp(int(p)), after=True) for p in after.split(",") if p]
        rules = stretches(self.threshold, self.kept, low, high)
        found = gc.plan(self.engine, low, high, stretches=rules, max_versions=1000)
        done = self.write(lambda b: gc.collect_keys(self.engine, b, found.points, stretches=rules))
        return f"removed {done.versions}"

    def do_readable(self, start, end, at):
        """Whether the last `gc` left everything that a read at this time needs."""
        known = readable(self.threshold, self.kept, bound(start), bound(end), ts=Timestamp(int(at)))
        return "yes" if known else "below the threshold"

    def do_stats(self):
        assert self.stats == stats.recompute(self.engine, b"", b"\xff")
        s = self.stats
        live = f"live {s.live_keys} keys {s.live_bytes} bytes"
        return f"{live}; garbage {s.garbage_bytes} bytes; {s.versions} versions; {s.intents} intents"


@pytest.mark.parametrize("path", scripts("storage"), ids=lambda p: p.stem)
def test_script(path):
    check(path, Runner())
