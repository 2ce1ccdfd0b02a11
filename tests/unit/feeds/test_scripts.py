"""The golden scripts of range feeds: small keys, small timestamps, every event printed."""

import pytest

from slackwater.clock.timestamp import Timestamp
from slackwater.model.descriptors import LeaseAppliedIndex
from slackwater.model.spans import Span
from slackwater.protocol.feeds.events import Changes, Ended, EndReason, Resolved
from slackwater.storage.versions import raw_of
from tests.golden import check, scripts
from tests.unit.feeds.world import World, key, name_of


def shown(value):
    text = raw_of(value).decode() if value else "deleted"
    return text if len(text) < 20 else f"{text[0]}*{len(text)}"


def line(event):
    if isinstance(event, Resolved):
        return f"resolved {event.ts}"
    if isinstance(event, Ended):
        return f"ended: {event.reason.value}, resume after={event.resolved}; {event.reason.next.value}"
    assert isinstance(event, Changes)
    out = []
    for row in event.rows():
        before = "" if row.before is None else f" was {shown(row.before) if row.before else 'nothing'}"
        txn = f" txn={row.txn_id.rstrip(b'.').decode()}" if row.txn_id else ""
        out.append(f"{name_of(row.key)}={shown(row.value)} @{row.ts}{before}{txn}")
    return "\n".join(out)


class Runner:
    def __init__(self):
        self.world = World()

    def do_put(self, name, value, at, txn=None, closed=None):
        if "*" in value:  # x*130 is a long value
            value = value[0] * int(value[2:])
        self.world.put(name, value, int(at), txn=txn, closed=closed and int(closed))

    def do_del(self, name, at):
        self.world.delete(name, int(at))

    def do_commit(self, txn, key=None):
        self.world.decide(txn, commit=True)
        self.world.resolve(txn, key)

    def do_restart(self, txn, at):
        owner = self.world.txns[txn]
        owner.epoch += 1
        owner.ts = Timestamp(max(owner.ts, int(at)))
        return f"{txn} epoch={owner.epoch} @{owner.ts}"

    def do_decide(self, txn, what):
        self.world.decide(txn, commit=what == "commit")

    def do_resolve(self, txn, key=None):
        self.world.resolve(txn, key)

    def do_close(self, ts):
        self.world.close(int(ts))

    def do_register(self, id_, after, start=None, end=None, befores="no", budget=str(1 << 20)):
        whole = self.world.span
        span = Span(key(start) if start else whole.start, key(end) if end else whole.end)
        self.world.register(int(id_), int(after), span=span, befores=befores == "yes", budget=int(budget))

    def do_scan_locks(self, count=None):
        self.world.scan_locks(int(count) if count else 1 << 30)

    def do_history(self, id_, versions="0"):
        return None if self.world.read_history(int(id_), int(versions)) else "no room, or nothing to read"

    def do_publish(self):
        self.world.publish()

    def do_take(self, id_, limit=str(1 << 30)):
        consumer = self.world.consumers[int(id_)]
        events = consumer.take(int(limit))
        consumer.check()
        return "\n".join(filter(None, map(line, events))) or "nothing"

    def do_push(self, txn, to="0", ambiguous="no"):
        self.world.push(txn, to=int(to), ambiguous=ambiguous == "yes")
        return self.wanted()

    def wanted(self):
        wanted = [
            f"resolve {r.outcome.status.name.lower()} {[name_of(k) for k in r.keys]}" for r in self.world.to_resolve
        ]
        wanted += ["propose a barrier"] * len(self.world.barriers)
        self.world.to_resolve.clear()
        return "\n".join(wanted) or None

    def do_barrier(self, lai):
        world = self.world
        world.follow(world.feed.barrier_proposed(world.barriers, LeaseAppliedIndex(int(lai)), applied=world.lai))
        world.barriers = []

    def do_pass(self):
        """An entry without effects."""
        self.world.write(lambda batch: None)
        return self.wanted()

    def do_to_push(self, now, older_than):
        micro = 1_000_000 << 10
        found = self.world.feed.to_push(now=Timestamp(int(now) * micro), older_than_s=float(older_than))
        return " ".join(i.txn_id.rstrip(b".").decode() for i in found) or "nobody"

    def do_split(self, at):
        self.world.split(at)

    def do_end(self, reason):
        self.world.end_all(EndReason[reason])

    def do_status(self):
        return self.world.feed.status()


@pytest.mark.parametrize("path", scripts("feeds"), ids=lambda p: p.stem)
def test_script(path):
    check(path, Runner())
