"""Protections of a node: where the store of them meets the catalog, the zones and the node's tasks.

    Member.protections ── ProtectionStore, ProtectionCatalog   transactions over three system tables
                       ├─ PollingTracker                       this node's copy, polled; garbage collection asks it
                       └─ Reconciler                           releases what has expired, or whose job or feed is gone
    Member.feed_protector                                      keeps what change feeds still need
    Member.pinned                                              how much history that is: metrics, warnings, `db.protections`

To protect a table is to protect what it takes to read it then: its descriptors and its name from the catalog, its zone and that
of the rest.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from slackwater.catalog.records import history_spans
from slackwater.clock.timestamp import MIN, add_seconds, seconds_between
from slackwater.codec.layout import split_table_key, table_span
from slackwater.config.zones import zone_key
from slackwater.errors import NotFound, SlackwaterError, UsageError
from slackwater.hooks import probe
from slackwater.model.ids import NodeId
from slackwater.model.protection import OWNED, OWNED_BY_FEED, OWNED_BY_JOB, Mode
from slackwater.model.spans import Span
from slackwater.model.system_tables import PROTECTED_TS_META
from slackwater.protect import ProtectionCatalog, Protections, ProtectionStore
from slackwater.protect.reconcile import Reconciler
from slackwater.routing.parallel import in_parallel
from slackwater.storage.stats import Stats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slackwater.clock.timestamp import Timestamp
    from slackwater.config.zones import Zones
    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.model.protection import Record
    from slackwater.server.member import Member
    from slackwater.txn.coordinator import Transaction

ASKED_AT_ONCE_MAX = 16
ABOUT_CHARS_MAX = 200
RELEASE_TIMEOUT_S = 10.0
MADE_MAX = 100_000
"""Far more than the protections of ended feeds that a copy may still show. Running feeds have as many as the limit of records."""
LEFT_SHARE_MAX = 0.5
"""Of the limit of records: above this, feeds that end leave nothing behind."""


def node_protections(member: Member) -> Protections:
    """The protections of one node."""
    store = ProtectionStore(
        clock=member.clock, settings=member.settings, rng=member.runtime.rng, decoding=partial(_decoding, member)
    )
    member.job_types.releases[OWNED] = partial(_release_owned, store)
    return Protections(member.kv, store, ProtectionCatalog(member.settings), member.protection_tracker)


def _decoding(member: Member, table_id: int) -> list[Span]:
    """What it takes to read a table at a time: its descriptors, its names, its zone and that of the rest."""
    history = member.catalog.tables.by_id(table_id)
    names = [version.name for version in history.versions] if history else []
    zones = [Span.point(zone_key(start)) for start in (b"", table_span(table_id).start)]
    return [*history_spans(table_id, names), *zones]


async def _release_owned(store: ProtectionStore, txn: Transaction, ref: str) -> None:
    """Release what a job owned, in the transaction that ends it."""
    with suppress(NotFound):
        await store.release(txn, bytes.fromhex(ref))


# --- whose owner is gone ---------------------------------------------------------------------------------------------


async def keep_reconciled(member: Member) -> None:
    """Look for orphans, on the node that leads the range of the meta row."""
    meta = table_span(PROTECTED_TS_META.table_id).start

    async def job_ended(txn: Transaction, record: Record) -> bool:
        job_id = int(record.meta) if record.meta.isdigit() else 0
        try:
            return (await member.jobs.store.get(txn, job_id)).status.ended
        except UsageError:
            return True  # it is not kept any more

    async def feed_ended(txn: Transaction, record: Record) -> bool:
        """Let a feed whose process is gone keep what it needs for the grace time, like one whose consumer went away."""
        if record.expires != MIN or not member.feed_protector.orphaned(record):
            return False
        grace_s = member.feed_protector.grace_s(member.protections.tracker.state.records)
        if grace_s:
            probe("feeds.protection_left_by_process")
            await member.protections.store.renew(txn, record.id, expires=add_seconds(txn.state.read_ts, grace_s))
        return not grace_s

    orphaned = {OWNED_BY_JOB: job_ended, OWNED_BY_FEED: feed_ended}
    reconciler = Reconciler(member.kv, member.protections.store, member.protections.tracker, orphaned)
    while True:
        await member.runtime.clock.sleep(member.settings["protected_timestamp.reconcile_interval"])
        replica = member.store.holding(meta)
        with suppress(SlackwaterError):
            await member.feed_protector.release_ended()
            if replica is not None and replica.state.lease.holder == member.node_id:
                await reconciler.round()


class FeedOwner(msgspec.Struct, frozen=True):
    """The `meta` of a feed's protection: the process that runs it, and a line for people."""

    about: str = ""
    node_id: int = 0
    life: int = 0


_feed_owner = msgspec.json.Decoder(FeedOwner)


def _owner_of(record: Record) -> FeedOwner | None:
    try:
        return _feed_owner.decode(record.meta) if record.meta_type == OWNED_BY_FEED else None
    except (msgspec.MsgspecError, ValueError):
        return None


class FeedProtector:
    """Implements `feeds.protection.Protector`: everything after the feed's progress, and what it takes to decode it."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._made: dict[bytes, bool] = {}
        """Protections that were made in this process for feeds that were told of it, in order, and whether their feed runs."""
        self._making = 0
        """Protections that are being made: their ids are not known yet."""
        self._ended: set[bytes] = set()
        self._left: set[bytes] = set()

    async def protect(self, spans: Sequence[Span], ts: Timestamp, *, owner: str, user: str, former: bytes) -> bytes:
        """Keep every version of `spans` above `ts`; returns the protection's id. `TooLate` when it is."""
        member = self._member
        tables = sorted({split_table_key(span.start)[0] for span in spans})
        life = member.store.context.life
        meta = msgspec.json.encode(FeedOwner(owner[:ABOUT_CHARS_MAX], member.node_id, life))
        store = member.protections.store

        async def work(txn: Transaction) -> bytes:
            made = await store.protect(txn, ts, Mode.AFTER, OWNED_BY_FEED, meta, tables=tables, user=user)
            if former:
                with suppress(NotFound):
                    record = await store.get(txn, former)
                    if self._takes_over(record, user):
                        probe("feeds.protection_taken_over")
                        await store.release(txn, former)
            return made

        self._making += 1
        try:
            made = await member.kv.run(work)
            self._note_made(made)
        finally:
            self._making -= 1
        self._left.discard(former)
        return made

    def _note_made(self, made: bytes) -> None:
        """Remember a protection; of the oldest, those are forgotten whose feeds have ended, never one that is in use."""
        self._made[made] = True
        if len(self._made) > MADE_MAX:
            over = next((one for one, runs in self._made.items() if not runs), None)
            if over is not None:
                del self._made[over]

    def _note_ended(self, protection: bytes) -> None:
        if protection in self._made:
            self._made[protection] = False

    def _takes_over(self, record: Record, user: str) -> bool:
        """Whether a record was left by a feed of this user, so that the one that goes on with it may release it."""
        left = record.expires != MIN or self.orphaned(record)
        return record.meta_type == OWNED_BY_FEED and record.user == user and left

    async def move(self, protection: bytes, ts: Timestamp) -> None:
        """Keep only what is above `ts` from now on."""
        await self._member.protections.move(protection, ts)

    async def release(self, protection: bytes) -> None:
        """Keep nothing for this one any more; if that cannot be written now, it is tried again until it can."""
        self._note_ended(protection)
        self._ended.add(protection)
        await self.release_ended()

    async def leave(self, protection: bytes) -> None:
        """Keep it for the grace time only; if that cannot be written now, it is tried again until it can."""
        self._note_ended(protection)
        self._left.add(protection)
        await self.release_ended()

    async def release_ended(self) -> None:
        """Release, or leave for the grace time, what has ended and could not be then, and what was made for nothing."""
        member = self._member
        known = member.protections.tracker.state.records
        self._ended |= {record.id for record in known if self._forgotten(record)}
        grace_s = self.grace_s(known)
        if not grace_s:
            self._ended |= self._left
            self._left.clear()
        expires = add_seconds(member.clock.now(), grace_s)
        for protection in sorted(self._ended | self._left):
            left = protection not in self._ended
            try:
                if left:
                    await member.protections.renew(protection, expires=expires, timeout=RELEASE_TIMEOUT_S)
                else:
                    await member.protections.release(protection, timeout=RELEASE_TIMEOUT_S)
            except NotFound:
                pass
            except SlackwaterError:
                probe("feeds.release_failed")
                continue
            (self._left if left else self._ended).discard(protection)

    def grace_s(self, records: Sequence[Record]) -> float:
        """How long a feed's protection is kept after the feed; 0 where too much is protected for that."""
        settings = self._member.settings
        crowded = len(records) > settings["protected_timestamp.records_max"] * LEFT_SHARE_MAX
        return 0.0 if crowded else settings["feed.protection_grace"]

    def _forgotten(self, record: Record) -> bool:
        """Whether this process made a record and knows nothing of it: its feed was canceled before it was told of it."""
        owner = _owner_of(record)
        mine = (self._member.node_id, self._member.store.context.life)
        if self._making or owner is None or (owner.node_id, owner.life) != mine:
            return False
        return record.expires == MIN and record.id not in self._made

    def orphaned(self, record: Record) -> bool:
        """Whether the process that ran a record's feed is gone: another runs as its node, or the node is dead."""
        owner = _owner_of(record)
        if owner is None:
            return False
        member = self._member
        found = member.liveness.get(NodeId(owner.node_id))
        if found is None:
            return False  # not known: not declared gone
        another = bool(found.life and owner.life and found.life != owner.life)
        return (
            another or seconds_between(found.expiration, member.clock.peek()) > member.settings["liveness.dead_after"]
        )


class PinnedHistory:
    """How much history protections pin: what is not live in the ranges they cover, once it is older than its ttl."""

    def __init__(self, member: Member) -> None:
        self._member = member

    async def of(self, records: Sequence[Record]) -> dict[bytes, int]:
        """Bytes by record, over the whole cluster; of nodes that do not answer, nothing."""
        member = self._member
        now, zones = member.clock.peek(), member.zone_follower.zones
        works = [partial(member.peers.status, node_id) for node_id in member.book.nodes]
        answers = await in_parallel(member.scope, works, limit=ASKED_AT_ONCE_MAX, name="pinned")
        found: dict[bytes, int] = {}
        for answer in answers if records else ():
            if isinstance(answer, SlackwaterError):
                continue
            for status in answer.replicas:
                if status.lease.holder == answer.node_id:
                    for record_id in pinning(records, zones, status.descriptor, now):
                        found[record_id] = found.get(record_id, 0) + history_bytes(status.stats)
        return found

    def here(self) -> int:
        """Bytes in ranges that this node leads, whichever protection pins them."""
        member, records = self._member, self._member.protections.tracker.state.records
        if not records:
            return 0
        now, zones = member.clock.peek(), member.zone_follower.zones
        led = [r.state for r in member.store.replicas.values() if r.state.lease.holder == member.node_id]
        return sum(history_bytes(s.stats) for s in led if any(pinning(records, zones, s.descriptor, now)))

    def oldest_s(self) -> float:
        """The age of the oldest protected timestamp; 0 without any."""
        records = self._member.protections.tracker.state.records
        now = self._member.clock.peek()
        return max((seconds_between(record.ts, now) for record in records), default=0.0)

    def warnings(self) -> list[str]:
        """What an operator should know: protections that are very old."""
        limit_s, age_s = self._member.settings["protected_timestamp.warning_age"], self.oldest_s()
        if not limit_s or age_s <= limit_s:
            return []
        return [
            f"a protected timestamp is {age_s / 3600:.1f} hours old and keeps history from being collected"
            f" ({self.here() >> 20} MiB in ranges led here); see `slackwater protections`"
        ]


def pinning(records: Sequence[Record], zones: Zones, descriptor: RangeDescriptor, now: Timestamp) -> Iterator[bytes]:
    """The records that keep what the ttl would let go in a range."""
    span = Span(descriptor.start, descriptor.end)
    here = zones.of(span)
    young = add_seconds(now, -here.gc_ttl_s) if here is not None else MIN
    return (record.id for record in records if record.ts < young and record.overlaps(span))


def history_bytes(stats: tuple[int, ...]) -> int:
    """Bytes of versions that are not live."""
    counted = Stats(*stats)
    return max(0, counted.total_bytes - counted.live_bytes)
