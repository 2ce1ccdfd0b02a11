"""One range with feeds, small enough to steer step by step: a memory engine, transactions, consumers. No clock."""

from __future__ import annotations

from slackwater.clock.timestamp import MAX, MIN, Timestamp
from slackwater.codec.layout import kv
from slackwater.feeds.rangefeed import NeedBarrier, RangeFeed, Resolve, ScanLocks, WantSlot
from slackwater.feeds.slots import CatchUpSlots
from slackwater.feeds.validate import Validators
from slackwater.model.descriptors import LeaseAppliedIndex
from slackwater.model.spans import Span
from slackwater.model.txns import Resolution, Txn, TxnStatus
from slackwater.protocol.feeds.events import Changes, Ended, EndReason
from slackwater.storage import reads, writes
from slackwater.storage.intents import intents_in, resolve
from slackwater.storage.memory import MemoryEngine
from slackwater.storage.versions import newest, raw_value

START, END = kv(b"a"), kv(b"z")
WHOLE = Span(START, END)


def key(name: str) -> bytes:
    return kv(name.encode())


def name_of(stored: bytes) -> str:
    return stored[1:-2].decode()


class OpenTxn:
    """A transaction that its test drives by hand."""

    def __init__(self, name: str, ts: int) -> None:
        self.txn_id = name.encode().ljust(16, b".")
        self.start = self.ts = Timestamp(ts)
        self.epoch = 0
        self.sequence = 0
        self.keys: set[bytes] = set()
        self.status = TxnStatus.PENDING

    def message(self) -> Txn:
        self.sequence += 1
        return Txn(self.txn_id, b"anchor", self.start, self.epoch, self.ts, self.ts, MIN, self.sequence)

    def outcome(self) -> Resolution:
        return Resolution(self.txn_id, self.epoch, self.status, self.ts)


class Consumer:
    """What one registration sends, and what its validators make of it."""

    def __init__(self, world: World, id_: int, span: Span, after: int, *, befores: bool, budget: int) -> None:
        self.world, self.id, self.span = world, id_, span
        self.befores, self.budget = befores, budget
        self.snapshot = None
        self.resume: bytes | None = span.start
        self.ended: Ended | None = None
        self.events: list = []
        self.validators = Validators(
            [span],
            after=Timestamp(after),
            base=world.table_at(Timestamp(after), span),
            read=world.read,
            table_at=lambda ts: world.table_at(ts, span),
        )

    def take(self, bytes_max: int = 1 << 30) -> list:
        events = self.world.feed_of(self.id).take(self.id, bytes_max=bytes_max)
        for event in events:
            self.events.append(event)
            self.validators.event(event, self.span)
            if isinstance(event, Ended):
                self.ended = event
        return events

    def check(self) -> None:
        assert not self.validators.breaches, "\n".join(map(str, self.validators.breaches))


class World:
    """The range."""

    def __init__(self, *, slots: int = 4) -> None:
        self.engine = MemoryEngine()
        self.span = WHOLE
        self.feed: RangeFeed | None = None
        self.closed = Timestamp(0)
        self.lai = LeaseAppliedIndex(0)
        self.txns: dict[str, OpenTxn] = {}
        self.consumers: dict[int, Consumer] = {}
        self.slots: CatchUpSlots[int] = CatchUpSlots(slots)
        self.locks_to_scan: list[tuple[bytes, bytes]] | None = None
        self.to_resolve: list[Resolve] = []
        self.barriers: list[bytes] = []

    # --- the range ---------------------------------------------------------------------------------------------

    def write(self, call, *, closed: int | None = None) -> None:
        batch = self.engine.batch()
        call(batch)
        self.apply(batch, closed=closed)

    def apply(self, batch, *, closed: int | None = None) -> None:
        self.engine.write(batch)
        self.lai = LeaseAppliedIndex(self.lai + 1)
        self.closed = Timestamp(max(self.closed, closed or 0))
        if self.feed is not None:
            self.follow(self.feed.applied(batch, closed=self.closed, lai=self.lai, reader=self.engine))

    def put(self, name: str, value: str, at: int, *, txn: str | None = None, closed: int | None = None) -> None:
        if txn is None:
            stored, ts = raw_value(value.encode()), Timestamp(at)
            self.write(lambda b: writes.put(self.engine, b, key(name), stored, ts=ts), closed=closed)
        else:
            self.txn_put(txn, name, value, at)

    def delete(self, name: str, at: int) -> None:
        self.write(lambda b: writes.delete(self.engine, b, key(name), ts=Timestamp(at)))

    def txn_put(self, txn: str, name: str, value: str, at: int) -> None:
        owner = self.txns.setdefault(txn, OpenTxn(txn, at))
        owner.ts = Timestamp(max(owner.ts, at))
        message, stored = owner.message(), raw_value(value.encode())
        self.write(lambda b: writes.put(self.engine, b, key(name), stored, ts=owner.ts, txn=message))
        owner.keys.add(key(name))

    def decide(self, txn: str, *, commit: bool) -> None:
        self.txns[txn].status = TxnStatus.COMMITTED if commit else TxnStatus.ABORTED

    def resolve(self, txn: str, name: str | None = None) -> None:
        owner = self.txns[txn]
        for at in [key(name)] if name is not None else sorted(owner.keys):
            self.write(lambda b, at=at: resolve(self.engine, b, at, owner.outcome()))
            owner.keys.discard(at)

    def close(self, ts: int) -> None:
        self.closed = Timestamp(max(self.closed, ts))
        if self.feed is not None:
            self.feed.forward_closed(self.closed)

    def read(self, at: bytes, ts: Timestamp) -> bytes | None:
        """The committed value of a key as of `ts`, whoever holds it now."""
        found = newest(self.engine, at, upto=ts)
        return None if found is None else found.value

    def table_at(self, ts: Timestamp, span: Span) -> list[tuple[bytes, bytes]]:
        """The committed table as of `ts`; the test asks only where nothing can still be committed at or below."""
        rows: dict[bytes, bytes] = {}
        found = reads.scan_versions(self.engine, span.start, span.end, after=MIN, upto=ts, ignore_intents=True)
        for at, value in zip(found.keys, found.values, strict=True):
            rows[at] = value
        return sorted((k, v) for k, v in rows.items() if v)

    # --- the driver's part ---------------------------------------------------------------------------------------

    def feed_of(self, _: int) -> RangeFeed:
        assert self.feed is not None
        return self.feed

    def follow(self, effects) -> None:
        for effect in effects:
            if isinstance(effect, ScanLocks):
                self.locks_to_scan = list(intents_in(self.engine, effect.span.start, effect.span.end))
            elif isinstance(effect, WantSlot):
                self.slots.request(effect.registration, "someone")
            elif isinstance(effect, Resolve):
                self.to_resolve.append(effect)
            elif isinstance(effect, NeedBarrier):
                self.barriers.append(effect.txn_id)
        self.grant()

    def grant(self) -> None:
        for id_ in self.slots.grant():
            history = self.feed.open(id_)
            if history is None:
                self.slots.release(id_)
            else:
                self.consumers[id_].snapshot = self.engine.snapshot()

    def register(
        self, id_: int, after: int, *, span: Span | None = None, befores: bool = False, budget: int = 1 << 20
    ) -> Consumer:
        if self.feed is None or self.feed.over:
            self.feed = RangeFeed(self.span, closed=self.closed)
            self.locks_to_scan = None
        span = span or self.span
        consumer = Consumer(self, id_, span, after, befores=befores, budget=budget)
        self.consumers[id_] = consumer
        self.follow(self.feed.register(id_, span, after=Timestamp(after), befores=befores, budget_bytes=budget))
        return consumer

    def scan_locks(self, count: int = 1 << 30) -> None:
        if self.locks_to_scan is None:
            return
        block, self.locks_to_scan = self.locks_to_scan[:count], self.locks_to_scan[count:]
        done = not self.locks_to_scan
        if done:
            self.locks_to_scan = None
        self.follow(self.feed.locks_scanned(block, done=done))

    def read_history(self, id_: int, versions: int = 0) -> bool:
        """One block of a consumer's catch-up scan; False when there is none to read now."""
        consumer = self.consumers[id_]
        if consumer.snapshot is None or not self.feed.wants_history(id_):
            return False
        found = reads.scan_versions(
            consumer.snapshot, consumer.resume, consumer.span.end,
            after=self.feed.registrations[id_].after, upto=MAX, max_versions=versions,
            before_images=consumer.befores, ignore_intents=True,
        )  # fmt: skip
        block = Changes(found.keys, found.timestamps, found.values, found.befores)
        consumer.resume = found.resume
        self.follow(self.feed.history(id_, block, done=found.resume is None))
        if found.resume is None:
            consumer.snapshot = None
            self.slots.release(id_)
            self.grant()
        return True

    def live(self, id_: int, after: int, **options) -> Consumer:
        """A consumer that has caught up."""
        consumer = self.register(id_, after, **options)
        self.scan_locks()
        while self.read_history(id_):
            pass
        return consumer

    def push(self, txn: str, *, ambiguous: bool = False, to: int = 0) -> None:
        owner = self.txns[txn]
        if owner.status is TxnStatus.PENDING:
            owner.ts = Timestamp(max(owner.ts, to))
        self.follow(self.feed.pushed(owner.outcome(), ambiguous=ambiguous))

    def split(self, at: str) -> None:
        self.span = Span(self.span.start, key(at))
        self.follow(self.feed.split(self.span))

    def publish(self) -> None:
        self.follow(self.feed.publish())

    def end_all(self, reason: EndReason) -> None:
        self.follow(self.feed.end_all(reason))
